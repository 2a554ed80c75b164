"""Loader `folder`: Markdown and text files below a folder, with the git revision of each.

The loader does not follow symbolic links to folders, and skips names that begin with a dot.

Front matter of a Markdown file (YAML or TOML) may give these fields:

- `title`
- `source_url`, `url` or `canonical_url`
- `author` or `authors`: a name or a list of names
- `date`, `updated`, `last_modified` and `modified`: the latest counts

A file without a date has the date of its last commit, unless it differs from that commit.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from rag_eval.core.errors import InputError, Place, Problem, ProblemList
from rag_eval.core.loader import Chunker, PathLoader, RawCorpus, RawDocument
from rag_eval.core.rows import decode_file
from rag_eval.corpus.markdown import front_matter, headings
from rag_eval.corpus.source import (
    day_of,
    empty_corpus,
    find_author,
    is_doc_id,
    latest_day,
    missing_input,
    resolve,
)
from rag_eval.storage.hashing import file_hash

MAX_BYTES = 64 * 1024 * 1024
PATTERN = ("**/*.md", "**/*.markdown", "**/*.txt", "**/*.rst")
_MARKDOWN = frozenset({".md", ".markdown"})
_URL_KEYS = ("source_url", "url", "canonical_url")
_DATE_KEYS = ("date", "updated", "last_modified", "modified")

# ---- Git.

_TIMEOUT_S = 60
# a repository's own configuration must not start programs, and a status must not write to it
_SAFE = (
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "log.showSignature=false",
    "core.quotePath=false",
)
_LOG = "log --format=%x00%H,%ct,%P --name-only --no-renames --relative -z -- ."
_STATUS = "status --porcelain=v1 -z --no-renames --untracked-files=all -- ."


class Revisions(NamedTuple):
    """Commit and UTC day of the last change of each committed file; no day where it is unknown."""

    commit: dict[str, str]
    day: dict[str, str]


class Git:
    """The work tree that holds a folder; `head` is empty outside a work tree, or without git."""

    def __init__(self, folder: Path, files: Iterable[str]) -> None:
        self._folder, self._files = folder, frozenset(files)
        answer = self._ask("rev-parse --is-shallow-repository --show-prefix HEAD") or "\n\n"
        self._shallow, prefix, self.head = answer.split("\n")[:3]
        self.differing: set[str] = set()
        """Files that differ from HEAD."""
        self.has_lost_files = False
        """Whether a file of HEAD was deleted from the folder or renamed."""
        for entry in (self._ask(_STATUS) or "").split("\0") if self.head else ():
            name = entry[3:].removeprefix(prefix)
            if name in self._files:
                self.differing.add(name)
            elif entry[:2] in {"D ", " D"} and entry[3:].startswith(prefix):
                self.has_lost_files = True

    def _ask(self, command: str) -> str | None:
        program = shutil.which("git")
        if program is None or not self._folder.is_dir():
            return None
        # a hook sets GIT_DIR and its kin, which would point git elsewhere
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        options = [part for option in _SAFE for part in ("-c", option)]
        try:
            done = subprocess.run(  # noqa: S603 - fixed arguments, no shell
                [program, *options, "-C", str(self._folder), *command.split()],
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
                env=kept | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.decode("utf-8", "surrogateescape") if done.returncode == 0 else None

    def state(self) -> list[str]:
        """Return the facts from git that decide the revisions: commit and changed files.

        A file can differ from HEAD with unchanged bytes, for example after `git rm --cached`.
        """
        return [self.head, self._shallow, *sorted(self.differing)]

    def revisions(self) -> Revisions:
        """Read the last commit of each file with one `git log` of the whole folder.

        In a shallow clone, git reports every file as created in the oldest commit, so files whose
        last commit has no parent have no day there.
        """
        found = Revisions({}, {})
        commit = day = ""
        entries = iter((self._ask(_LOG) or "" if self.head else "").split("\0"))
        for entry in entries:  # newest first; an empty entry comes before each commit
            name = entry.removeprefix("\n")
            if not entry:
                commit, seconds, parents = (next(entries, "") + ",,").split(",")[:3]
                is_oldest = self._shallow == "true" and not parents
                day = "" if is_oldest or not seconds else day_of(int(seconds))
            elif name in self._files and name not in found.commit:
                found.commit[name], found.day[name] = commit, day
        return found


# ---- Files.


class Folder(PathLoader):
    """Markdown and text files below a folder."""

    loader: Literal["folder"]
    pattern: tuple[str, ...] = PATTERN
    """Shell patterns of the files to read."""
    chunker: Chunker = Chunker(kind="markdown")

    def _root(self, base: Path) -> Path:
        root = resolve(self.path, base)
        if not root.is_dir():
            raise missing_input(self.path, "a folder, relative to the gold set's folder")
        return root

    def _paths(self, root: Path) -> dict[str, Path]:
        """Return doc_id -> path of every file that matches a pattern, sorted by doc_id."""
        found: dict[str, Path] = {}
        for pattern in self.pattern:
            leaves = pattern.startswith(("/", "\\")) or ".." in PurePosixPath(pattern).parts
            try:
                paths = [] if leaves else list(root.glob(pattern))
            except ValueError:  # such as `a**b` before Python 3.13
                leaves = True
            if leaves:
                more: Place = {"field": "corpus.pattern", "found": pattern}
                more["accepted"] = "shell patterns below the folder, such as **/*.md"
                raise InputError.of("bad_pattern", "the pattern cannot be used", **more)
            found |= {path.relative_to(root).as_posix(): path for path in paths}
        return {
            name: found[name]
            for name in sorted(found)
            if not any(part.startswith(".") for part in name.split("/"))
            and not found[name].is_dir()
        }

    def identity(self, base: Path) -> list[str]:
        """Return names and content hashes of the files, and the state of git."""
        root = self._root(base)
        paths = self._paths(root)
        parts = [*Git(root, paths).state(), "files"]
        for name, path in paths.items():
            parts += (name, "refused" if _path_fault(name, path, root) else file_hash(path))
        return parts

    def read(self, base: Path) -> RawCorpus:
        """Read the files.

        The title is the front matter's `title`, else the first heading of level 1, else the file's
        stem. Text files are one section.
        """
        root = self._root(base)
        paths = self._paths(root)
        if not paths:
            accepted = ", ".join(self.pattern)
            raise empty_corpus("no file fits the patterns", self.path, accepted)
        git, problems = Git(root, paths), ProblemList()
        revisions = git.revisions()
        documents: list[RawDocument] = []
        for name, path in paths.items():
            if (fault := _path_fault(name, path, root)) is not None:
                problems.extend([fault])
                continue
            source = path.read_bytes()
            text = decode_file(source, Path(name), problems)
            if text is not None:
                documents.append(self._make_document(name, text, source, git, revisions))
        problems.raise_errors()
        # if git tracks none of the files, the commit says nothing about the files
        if not revisions.commit:
            return RawCorpus(documents)
        is_dirty = git.has_lost_files or any(
            document.is_dirty or not document.rev for document in documents
        )
        return RawCorpus(documents, git.head, is_dirty)

    def _make_document(
        self, name: str, text: str, source: bytes, git: Git, revisions: Revisions
    ) -> RawDocument:
        path = PurePosixPath(name)
        is_markdown = path.suffix.lower() in _MARKDOWN
        values, body_start = front_matter(text) if is_markdown else ({}, 0)
        title = _first_text(values, ("title",))
        if not title and is_markdown:
            heads = (head.title for head in headings(text, body_start) if head.level == 1)
            title = next(filter(None, heads), "")
        dates = [value for key in _DATE_KEYS if (value := values.get(key))]
        if not dates and name not in git.differing:
            dates = [revisions.day.get(name, "")]
        rev = revisions.commit.get(name, "")
        return RawDocument(
            name,
            title or path.stem,
            text,
            _first_text(values, _URL_KEYS) or f"{self.path.rstrip('/')}/{name}",
            "markdown" if is_markdown else "text",
            source,
            rev=rev,
            is_dirty=bool(rev) and name in git.differing,
            body_start=body_start,
            place=name,
            author=find_author(values),
            date=latest_day(dates),
        )


def _first_text(values: dict[str, object], keys: Iterable[str]) -> str:
    texts = (value.strip() for key in keys if isinstance(value := values.get(key), str))
    return next(filter(None, texts), "")


def _path_fault(name: str, path: Path, root: Path) -> Problem | None:
    """Return the reason for refusing a file; None for a readable file."""
    if not is_doc_id(name):
        message, accepted = "the file's name cannot be a doc_id", "names in UTF-8"
        return Problem("bad_id", message, ascii(name)[1:-1], accepted=accepted)
    if not path.resolve().is_relative_to(root.resolve()):
        message = "a symbolic link leads out of the folder"
        return Problem("outside_folder", message, name, accepted="files inside the folder")
    if not path.is_file():
        message = "not a regular file, or a link to nothing"
        return Problem("not_a_file", message, name, accepted="regular files")
    if (size := path.stat().st_size) > MAX_BYTES:
        found, accepted = f"{size} bytes", f"at most {MAX_BYTES} bytes"
        message = "the file is too large"
        return Problem("too_large", message, name, found=found, accepted=accepted)
    return None
