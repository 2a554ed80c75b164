"""Loader `folder`: documents below a folder, with the git revision of each.

The loader does not follow symbolic links to folders, and skips names that begin with a dot.
`formats` reads the files. Front matter of a Markdown file (YAML or TOML) may give these fields:

- `title`
- `source_url`, `url` or `canonical_url`
- `author` or `authors`: a name or a list of names
- `date`, `updated`, `last_modified` and `modified`: the latest counts

A file without a date has the date of its last commit, unless it differs from that commit.
"""

import hashlib
import logging
import os
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import Field

from rag_eval.core.errors import Problem, ProblemList
from rag_eval.core.fields import read_id
from rag_eval.core.loader import Chunker, PathLoader, RawCorpus, RawDocument
from rag_eval.core.rows import decode_file
from rag_eval.corpus.loaders.formats import (
    ENDINGS,
    Content,
    UnreadableError,
    first_text,
    read_format,
)
from rag_eval.corpus.loading import (
    day_of,
    empty_corpus,
    find_author,
    latest_day,
    list_files,
    missing_input,
    resolve,
)
from rag_eval.storage.hashing import file_hash

MAX_BYTES = 64 * 1024 * 1024
_URL_KEYS = ("source_url", "url", "canonical_url")
_DATE_KEYS = ("date", "updated", "last_modified", "modified")

# ---- Git

_TIMEOUT_S = 60
_MAX_REFS = 64 * 1024 * 1024
_COMMIT = re.compile(r"[0-9a-f]{40}")
_BRANCH = re.compile(r"ref: (refs/[^\x00-\x20\x7f]{1,200})")
_BOUNDED = 'ulimit -v 2000000; ulimit -f 500000; exec "$@"'
"""Runs git with at most 2 GB of memory and 256 MB of output: a tree of a few objects can name
itself ten times at each level."""


def _read_file(path: Path, limit: int = 4096) -> str:
    """Read a file of a repository; empty for a link, a missing or a larger file."""
    if path.resolve() != path or not path.is_file() or path.stat().st_size > limit:
        return ""
    return path.read_text("utf-8", "replace").strip()


def _find_head(store: Path) -> str:
    """Find the commit of HEAD; empty without one."""
    head = _read_file(store / "HEAD")
    if branch := _BRANCH.fullmatch(head):
        packed = _read_file(store / "packed-refs", _MAX_REFS)
        listed = re.search(rf"^(\S+) {re.escape(branch[1])}$", packed, re.MULTILINE)
        head = _read_file(store / branch[1]) or (listed[1] if listed else "")
    return head if _COMMIT.fullmatch(head) else ""


def _stands_alone(store: Path) -> bool:
    """Tell whether no link or list of alternates leads from a repository's objects elsewhere."""
    # git would wait for a pipe, and a stranger's `.git` that is a file could name any repository
    kinds, objects = (stat.S_IFREG, stat.S_IFDIR), store / "objects"
    return (store.resolve() == store and objects.is_dir()) and all(
        stat.S_IFMT(path.lstat().st_mode) in kinds and path.name != "alternates"
        for path in (objects, *objects.rglob("*"))
    )


class Git:
    """The commit of the repository that holds a folder; `head` is empty without one.

    Only objects are read. A repository comes from a stranger, and its configuration, attributes,
    hooks and index can start programs or connections. Git therefore runs in an empty repository
    of our own, to which it takes the stranger's folder of objects.
    """

    def __init__(self, folder: Path) -> None:
        self.head = self.shallow = self._prefix = ""
        self._folder = folder.resolve()
        tops = (self._folder, *self._folder.parents)
        top = next((top for top in tops if os.path.lexists(top / ".git")), self._folder)
        self._store = top / ".git"
        if _stands_alone(self._store):
            self.head = _find_head(self._store)
            self.shallow = _read_file(self._store / "shallow", _MAX_REFS)
            self._prefix = "/".join(self._folder.relative_to(top).parts)
        self.commits: dict[str, str] = {}
        """Last commit of each file."""
        self.days: dict[str, str] = {}
        """UTC day of that commit; empty in a shallow clone, whose oldest commit has every file."""
        self._blobs: dict[str, str] = {}

    def _ask(self, *command: str) -> list[str]:
        """Return the entries of the output of a git command; none if it fails."""
        program = shutil.which("git")
        if program is None or not self.head:
            return []
        with tempfile.TemporaryDirectory(prefix="rag-eval-git-") as name:
            (Path(name) / "refs").mkdir()
            (Path(name) / "HEAD").write_text(f"{self.head}\n", encoding="utf-8")
            if self.shallow:
                (Path(name) / "shallow").write_text(f"{self.shallow}\n", encoding="utf-8")
            objects = str(self._store / "objects")
            settings = {"GIT_DIR": name, "GIT_OBJECT_DIRECTORY": objects, "HOME": name}
            settings |= {"XDG_CONFIG_HOME": name, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
            settings |= {"GIT_LITERAL_PATHSPECS": "1", "PATH": os.environ.get("PATH", os.defpath)}
            options = ["-c", "core.packedGitLimit=512m", "-c", "core.packedGitWindowSize=64m"]
            with (Path(name) / "output").open("w+b") as output:
                try:
                    subprocess.run(  # noqa: S603 - fixed arguments
                        ["/bin/sh", "-c", _BOUNDED, "sh", program, *options, *command],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.DEVNULL,
                        timeout=_TIMEOUT_S,
                        check=True,
                        cwd=name,
                        env=settings,
                    )
                except (OSError, subprocess.SubprocessError):
                    return []
                output.seek(0)
                return output.read().decode("utf-8", "surrogateescape").split("\0")

    def read(self) -> None:
        """Read the files of the commit, and their last commits with one log of the folder."""
        if not self.head and os.path.lexists(self._store):
            message = "no commit is read from %s: hashes of the content are the revisions"
            logging.getLogger(__name__).warning(message, ascii(str(self._store)))
        for entry in self._ask("ls-tree", "-r", "-z", f"{self.head}:{self._prefix}"):
            mode, _, name = entry.partition("\t")
            if mode[7:11] == "blob":
                self._blobs[name] = mode[12:]
        below = (f"--relative={self._prefix}/", "--", self._prefix) if self._prefix else ()
        form = ("--format=%x00%H %ct", "--name-only", "--no-renames", "-z")
        entries = iter(self._ask("log", *form, *below))
        commit = seconds = ""
        for entry in entries:  # newest first; an empty entry comes before each commit
            if not entry:
                commit, _, seconds = next(entries, "").partition(" ")
            elif (name := entry.removeprefix("\n")) not in self.commits:
                self.commits[name] = commit
                self.days[name] = "" if self.shallow else day_of(int(seconds))

    def has_lost_files(self) -> bool:
        """Tell whether a file of the commit was deleted from the folder or renamed."""
        return not all(os.path.lexists(self._folder / name) for name in self._blobs)

    def differs(self, name: str, source: bytes) -> bool:
        """Tell whether a file differs from the commit; the kind of line ends does not count."""
        path = self._folder / name
        content = os.fsencode(path.readlink()) if path.is_symlink() else source
        forms = (content, content.replace(b"\r\n", b"\n"))
        blobs = (b"blob %d\0" % len(form) + form for form in forms)
        hashes = {hashlib.sha1(blob, usedforsecurity=False).hexdigest() for blob in blobs}
        return self._blobs.get(name) not in hashes


# ---- Files


class Folder(PathLoader):
    """Documents below a folder: Markdown, text, reStructuredText, HTML, notebooks, PDF."""

    loader: Literal["folder"]
    exclude: tuple[Annotated[str, Field(max_length=1000)], ...] = Field(default=(), max_length=1000)
    """Files to leave out, as paths below the folder."""
    chunker: Chunker = Chunker(kind="markdown")

    def _find_files(self, base: Path) -> tuple[Path, dict[str, Path]]:
        """Return the folder, and its files with a known ending by doc_id, sorted."""
        root = resolve(self.path, base)
        if not root.is_dir():
            raise missing_input(self.path, "a folder, relative to the gold set's folder")
        paths: dict[str, Path] = {}
        for path in list_files(root):
            parts = path.relative_to(root).parts
            is_hidden = any(part.startswith(".") for part in parts)
            if not is_hidden and path.suffix.lower() in ENDINGS and not path.is_dir():
                paths["/".join(parts)] = path
        return root, {name: paths[name] for name in sorted(paths.keys() - set(self.exclude))}

    def identity(self, base: Path) -> list[str]:
        """Return names and content hashes of the files, and the commit."""
        root, paths = self._find_files(base)
        git = Git(root)
        parts = [git.head, git.shallow]
        for name, path in paths.items():
            parts += (name, "refused" if _path_fault(name, path, root) else file_hash(path))
        return parts

    def read(self, base: Path) -> RawCorpus:
        """Read the files.

        The title is that of the front matter or of the file, else the first heading of level 1,
        else the file's stem. Headings and pages begin sections; a text file is one section.
        """
        root, paths = self._find_files(base)
        if not paths:
            accepted = f"files with the endings {', '.join(sorted(ENDINGS))}"
            raise empty_corpus("no file has a known ending", self.path, accepted)
        git, problems = Git(root), ProblemList()
        git.read()
        documents: list[RawDocument] = []
        for name, path in paths.items():
            if (fault := _path_fault(name, path, root)) is not None:
                problems.extend([fault])
                continue
            source = path.read_bytes()
            content = _read_content(name, source, problems)
            if content is not None:
                documents.append(self._make_document(name, content, source, git))
        problems.raise_errors()
        # if git tracks none of the files, the commit says nothing about the files
        if not any(document.rev for document in documents):
            return RawCorpus(documents)
        is_dirty = any(document.is_dirty or not document.rev for document in documents)
        return RawCorpus(documents, git.head, is_dirty or git.has_lost_files())

    def _make_document(self, name: str, content: Content, source: bytes, git: Git) -> RawDocument:
        values = content.front_matter
        # The name of an empty file is no title by which the file could be found.
        is_empty = not content.text[content.body_start :].strip()
        rev, is_dirty = git.commits.get(name, ""), git.differs(name, source)
        dates = [value for key in _DATE_KEYS if (value := values.get(key))]
        if not dates and not is_dirty:
            dates = [git.days.get(name, "")]
        return RawDocument(
            name,
            content.title or ("" if is_empty else PurePosixPath(name).stem),
            content.text,
            first_text(values, *_URL_KEYS) or f"{self.path.rstrip('/')}/{name}",
            content.kind,
            source,
            rev=rev,
            is_dirty=bool(rev) and is_dirty,
            body_start=content.body_start,
            place=name,
            author=find_author(values),
            date=latest_day(dates),
        )


def _read_content(name: str, source: bytes, problems: ProblemList) -> Content | None:
    """Read a file by its ending; None after a problem."""
    ending = PurePosixPath(name).suffix.lower()
    try:
        return read_format(ending, source, lambda data: decode_file(data, Path(name), problems))
    except UnreadableError as error:
        accepted = "a whole file in the format of its ending; `exclude` leaves a file out"
        problems.add("unreadable_document", str(error), name, accepted=accepted)
        return None


def _path_fault(name: str, path: Path, root: Path) -> Problem | None:
    """Return the reason for refusing a file; None for a readable file."""
    if read_id(name) is None:
        message, accepted = "the file's name cannot be a doc_id", "names in UTF-8"
        return Problem("bad_id", message, ascii(name)[1:-1], accepted=accepted)
    # `Path.resolve` raises for a link that leads to itself; such a link is no regular file
    if not Path(os.path.realpath(path)).is_relative_to(root.resolve()):
        message = "a symbolic link leads out of the folder"
        return Problem("outside_folder", message, name, accepted="files inside the folder")
    if not path.is_file() or not os.access(path, os.R_OK):
        message, accepted = "not a regular file that can be read", "regular files, and no pipes"
        return Problem("not_a_file", message, name, accepted=accepted)
    if path.stat().st_size > MAX_BYTES:
        accepted = f"at most {MAX_BYTES} bytes"
        return Problem("too_large", "the file is too large", name, accepted=accepted)
    return None
