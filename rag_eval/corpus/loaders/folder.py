"""Loader `folder`: documents below a folder, with the git revision of each.

Markdown, plain text and reStructuredText are read as they are, other formats by `formats`.

The loader does not follow symbolic links to folders, and skips names that begin with a dot.

Front matter of a Markdown file (YAML or TOML) may give these fields:

- `title`
- `source_url`, `url` or `canonical_url`
- `author` or `authors`: a name or a list of names
- `date`, `updated`, `last_modified` and `modified`: the latest counts

A file without a date has the date of its last commit, unless it differs from that commit.
"""

import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from rag_eval.core.errors import Problem, ProblemList
from rag_eval.core.fields import read_id
from rag_eval.core.loader import Chunker, PathLoader, RawCorpus, RawDocument
from rag_eval.core.rows import decode_file
from rag_eval.corpus.loaders.formats import (
    ENDINGS,
    MARKDOWN,
    Content,
    UnreadableError,
    missing_reader,
    read_format,
)
from rag_eval.corpus.markdown import front_matter, headings
from rag_eval.corpus.source import (
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
READ = frozenset({*MARKDOWN, ".txt", *ENDINGS})
"""Endings of the files that are read."""
_URL_KEYS = ("source_url", "url", "canonical_url")
_DATE_KEYS = ("date", "updated", "last_modified", "modified")

# ---- Git.

_TIMEOUT_S = 60
_MAX_REFS = 64 * 1024 * 1024
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HEAD = re.compile(r"ref: (refs/[^\x00-\x20\x7f]{1,200})")
_BOUNDED = 'ulimit -v 2000000; ulimit -f 500000; exec "$@"'
"""Runs git with at most 2 GB of memory and 256 MB of output: a tree of a few objects can name
itself ten times at each level."""


class Revisions(NamedTuple):
    """Commit and UTC day of the last change of each committed file; no day where it is unknown."""

    commit: dict[str, str]
    day: dict[str, str]


def _read_file(path: Path, limit: int = 4096) -> str:
    """Read a file of a repository; empty for a link, a missing or a larger file."""
    if path.resolve() != path or not path.is_file() or path.stat().st_size > limit:
        return ""
    return path.read_text("utf-8", "replace").strip()


def _find_stores(link: Path) -> tuple[Path, Path] | None:
    """Find the folder of HEAD, and that of refs and objects, for the `.git` of a work tree.

    A file `.git` names a folder elsewhere. It must be the folder of this work tree or of a
    submodule of a repository around it, because a stranger's file could name any repository.
    """
    if link.resolve() != link:
        return None
    if link.is_dir():
        return link, link
    target = (link.parent / _read_file(link).removeprefix("gitdir: ")).resolve()
    if target.parent.name == "worktrees" and _read_file(target / "gitdir") == str(link):
        return target, target.parents[1]
    around = (parent / ".git" / "modules" for parent in link.parent.parents)
    return (target, target) if any(map(target.is_relative_to, around)) else None


def _find_head(folder: Path, common: Path) -> str:
    """Find the commit of HEAD; empty without one."""
    head = _read_file(folder / "HEAD")
    if branch := _HEAD.fullmatch(head):
        ref = branch[1]
        packed = (
            line.split(" ") for line in _read_file(common / "packed-refs", _MAX_REFS).split("\n")
        )
        listed = (line[0] for line in packed if line[1:] == [ref])
        head = _read_file(common / ref) or next(listed, "")
    return head if _COMMIT.fullmatch(head) else ""


def _stands_alone(objects: Path) -> bool:
    """Tell whether no link or list of alternates leads from the objects elsewhere.

    Pipes do, and git would wait for them.
    """
    kinds = (stat.S_IFREG, stat.S_IFDIR)
    paths = (objects, *objects.rglob("*"))
    return objects.is_dir() and all(
        stat.S_IFMT(path.lstat().st_mode) in kinds and path.name != "alternates" for path in paths
    )


class Git:
    """The commit of the work tree that holds a folder; `head` is empty without one.

    Only objects are read. A repository comes from a stranger, and its configuration, attributes,
    hooks and index can start programs or connections. Git therefore runs in an empty repository
    of our own, to which it takes the stranger's folder of objects.
    """

    def __init__(self, folder: Path) -> None:
        self.head = self._shallow = self._prefix = ""
        self._folder, self._objects = folder.resolve(), folder
        tops = (self._folder, *self._folder.parents)
        top = next((top for top in tops if os.path.lexists(top / ".git")), None)
        stores = None if top is None else _find_stores(top / ".git")
        if top is not None and stores is not None and _stands_alone(stores[1] / "objects"):
            self.head, self._objects = _find_head(*stores), stores[1] / "objects"
            self._shallow = _read_file(stores[1] / "shallow", _MAX_REFS)
            self._prefix = "/".join(self._folder.relative_to(top).parts)
        self._blobs: dict[str, str] = {}

    def _ask(self, *command: str) -> str:
        """Return the output of a git command; empty if it fails."""
        program = shutil.which("git")
        if program is None or not self.head:
            return ""
        with tempfile.TemporaryDirectory(prefix="rag-eval-git-") as name:
            (Path(name) / "refs").mkdir()
            (Path(name) / "HEAD").write_text(f"{self.head}\n", encoding="utf-8")
            if self._shallow:
                (Path(name) / "shallow").write_text(f"{self._shallow}\n", encoding="utf-8")
            settings = {"GIT_DIR": name, "GIT_OBJECT_DIRECTORY": str(self._objects), "HOME": name}
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
                    return ""
                output.seek(0)
                return output.read().decode("utf-8", "surrogateescape")

    def state(self) -> list[str]:
        """Return the facts from git that decide the revisions, beside the files' content."""
        return [self.head, "true" if self._shallow else "false"]

    def read_tree(self) -> None:
        """Read the files of the commit."""
        for entry in self._ask("ls-tree", "-r", "-z", f"{self.head}:{self._prefix}").split("\0"):
            mode, _, name = entry.partition("\t")
            if mode[7:11] == "blob":
                self._blobs[name] = mode[12:]

    def has_lost_files(self) -> bool:
        """Tell whether a file of the commit was deleted from the folder or renamed."""
        return not all(os.path.lexists(self._folder / name) for name in self._blobs)

    def differs(self, name: str, source: bytes) -> bool:
        """Tell whether a file differs from the commit; the kind of line ends does not count."""
        path = self._folder / name
        content = os.fsencode(path.readlink()) if path.is_symlink() else source
        forms = (content, content.replace(b"\r\n", b"\n"))
        return self._blobs.get(name) not in {_blob_hash(form) for form in forms}

    def revisions(self) -> Revisions:
        """Read the last commit of each file with one `git log` of the whole folder.

        In a shallow clone, git reports every file as created in the oldest commit, so files whose
        last commit has no parent have no day there.
        """
        last = Revisions({}, {})
        commit = day = ""
        form = ("--format=%x00%H,%ct,%P", "--name-only", "--no-renames", "-z")
        below = (f"--relative={self._prefix}/", "--", self._prefix) if self._prefix else ()
        entries = iter(self._ask("log", *form, *below).split("\0"))
        for entry in entries:  # newest first; an empty entry comes before each commit
            name = entry.removeprefix("\n")
            if not entry:
                commit, seconds, parents = (next(entries, "") + ",,").split(",")[:3]
                is_oldest = bool(self._shallow) and not parents
                day = "" if is_oldest or not seconds else day_of(int(seconds))
            elif name not in last.commit:
                last.commit[name], last.day[name] = commit, day
        return last


def _blob_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


# ---- Files.


class Folder(PathLoader):
    """Documents below a folder: Markdown, text, reStructuredText, HTML, notebooks, PDF."""

    loader: Literal["folder"]
    exclude: tuple[Annotated[str, Field(max_length=1000)], ...] = Field(default=(), max_length=1000)
    """Files to leave out, as paths below the folder."""
    chunker: Chunker = Chunker(kind="markdown")

    def _root(self, base: Path) -> Path:
        root = resolve(self.path, base)
        if not root.is_dir():
            raise missing_input(self.path, "a folder, relative to the gold set's folder")
        return root

    def _paths(self, root: Path) -> dict[str, Path]:
        """Return doc_id -> path of every file with a known ending, sorted by doc_id."""
        paths: dict[str, Path] = {}
        for path in list_files(root):
            parts = path.relative_to(root).parts
            is_hidden = any(part.startswith(".") for part in parts)
            if not is_hidden and path.suffix.lower() in READ and not path.is_dir():
                paths["/".join(parts)] = path
        return {name: paths[name] for name in sorted(paths.keys() - set(self.exclude))}

    def identity(self, base: Path) -> list[str]:
        """Return names and content hashes of the files, and the state of git."""
        root = self._root(base)
        paths = self._paths(root)
        parts = [*Git(root).state(), "files"]
        for name, path in paths.items():
            parts += (name, "refused" if _path_fault(name, path, root) else file_hash(path))
        return parts

    def read(self, base: Path) -> RawCorpus:
        """Read the files.

        The title is that of the front matter or of the file, else the first heading of level 1,
        else the file's stem. Headings and pages begin sections; a text file is one section.
        """
        root = self._root(base)
        paths = self._paths(root)
        if not paths:
            accepted = f"files with the endings {', '.join(sorted(READ))}"
            raise empty_corpus("no file has a known ending", self.path, accepted)
        git, problems = Git(root), ProblemList()
        git.read_tree()
        revisions = git.revisions()
        documents: list[RawDocument] = []
        for name, path in paths.items():
            if (fault := _path_fault(name, path, root)) is not None:
                problems.extend([fault])
                continue
            source = path.read_bytes()
            content = _read_content(name, source, problems)
            if content is not None:
                documents.append(self._make_document(name, content, source, git, revisions))
        problems.raise_errors()
        # if git tracks none of the files, the commit says nothing about the files
        if not any(document.rev for document in documents):
            return RawCorpus(documents)
        is_dirty = git.has_lost_files() or any(
            document.is_dirty or not document.rev for document in documents
        )
        return RawCorpus(documents, git.head, is_dirty)

    def _make_document(
        self, name: str, content: Content, source: bytes, git: Git, revisions: Revisions
    ) -> RawDocument:
        path, text = PurePosixPath(name), content.text
        is_markdown = path.suffix.lower() in MARKDOWN
        values, body_start = front_matter(text) if is_markdown else ({}, 0)
        title = _first_text(values, ("title",))
        if not title and is_markdown:
            heads = (head.title for head in headings(text, body_start) if head.level == 1)
            title = next(filter(None, heads), "")
        # The name of an empty file is no title by which the file could be found.
        name_as_title = path.stem if text[body_start:].strip() else ""
        dates = [value for key in _DATE_KEYS if (value := values.get(key))]
        rev, is_dirty = revisions.commit.get(name, ""), git.differs(name, source)
        if not dates and not is_dirty:
            dates = [revisions.day.get(name, "")]
        return RawDocument(
            name,
            title or content.title or name_as_title,
            text,
            _first_text(values, _URL_KEYS) or f"{self.path.rstrip('/')}/{name}",
            content.kind,
            source,
            rev=rev,
            is_dirty=bool(rev) and is_dirty,
            body_start=body_start,
            place=name,
            author=find_author(values),
            date=latest_day(dates),
        )


def _read_content(name: str, source: bytes, problems: ProblemList) -> Content | None:
    """Read a file by its ending; None after a problem."""
    ending = PurePosixPath(name).suffix.lower()
    if missing := missing_reader(ending):
        problems.add("missing_package", missing, name, accepted="the package, or `exclude`")
        return None
    try:
        return read_format(ending, source, lambda data: decode_file(data, Path(name), problems))
    except UnreadableError as error:
        accepted = "a whole file in the format of its ending; `exclude` leaves a file out"
        problems.add("unreadable_document", str(error), name, accepted=accepted)
        return None


def _first_text(values: dict[str, object], keys: Iterable[str]) -> str:
    texts = (value.strip() for key in keys if isinstance(value := values.get(key), str))
    return next(filter(None, texts), "")


def _path_fault(name: str, path: Path, root: Path) -> Problem | None:
    """Return the reason for refusing a file; None for a readable file."""
    if read_id(name) is None:
        message, accepted = "the file's name cannot be a doc_id", "names in UTF-8"
        return Problem("bad_id", message, ascii(name)[1:-1], accepted=accepted)
    # `Path.resolve` raises for a link that leads to itself; such a link is no regular file
    if not Path(os.path.realpath(path)).is_relative_to(root.resolve()):
        message = "a symbolic link leads out of the folder"
        return Problem("outside_folder", message, name, accepted="files inside the folder")
    if not path.is_file():
        message = "not a regular file, or a link to nothing"
        return Problem("not_a_file", message, name, accepted="regular files")
    if not os.access(path, os.R_OK):
        message, accepted = "the file cannot be read", "files that this user may read"
        return Problem("unreadable_file", message, name, accepted=accepted)
    if (size := path.stat().st_size) > MAX_BYTES:
        bytes_text, accepted = f"{size} bytes", f"at most {MAX_BYTES} bytes"
        message = "the file is too large"
        return Problem("too_large", message, name, found=bytes_text, accepted=accepted)
    return None
