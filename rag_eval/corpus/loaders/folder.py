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

from rag_eval.core.errors import InputError, Problem, ProblemList
from rag_eval.core.loader import Chunker, PathLoader, RawCorpus, RawDocument
from rag_eval.core.rows import decode_file
from rag_eval.corpus.chunking import first_string, front_matter, headings
from rag_eval.corpus.source import (
    LatestDay,
    day_of_seconds,
    empty_corpus,
    find_author,
    id_fault,
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


class Revisions(NamedTuple):
    """Facts from git about the files of a folder, with paths relative to the folder."""

    head: str
    """Commit of the work tree."""
    last_commit: dict[str, str]
    """Commit that last changed each committed file."""
    last_date: dict[str, str]
    """UTC day of the last commit of each file; empty for an impossible date.

    Files whose last commit is the oldest commit of a shallow clone are absent. Git reports every
    file as created in that commit.
    """
    dirty: frozenset[str]
    """Files that differ from HEAD."""
    has_lost_files: bool
    """Whether a file of HEAD was deleted from the folder or renamed."""


class Git:
    """The work tree that holds a folder; `head` is empty outside a work tree, or without git."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        answer = self._ask("rev-parse", "--show-prefix", "HEAD") or ""
        self._prefix, _, self.head = answer.removesuffix("\n").rpartition("\n")

    def _ask(self, *arguments: str) -> str | None:
        program = shutil.which("git")
        if program is None or not self._folder.is_dir():
            return None
        # a hook sets GIT_DIR and its kin, which would point git elsewhere
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        options = [part for option in _SAFE for part in ("-c", option)]
        try:
            done = subprocess.run(  # noqa: S603 - fixed arguments, no shell
                [program, *options, "-C", str(self._folder), *arguments],
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
                env=kept | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.decode("utf-8", "surrogateescape") if done.returncode == 0 else None

    def _changes(self) -> dict[str, bool]:
        """Find the files of the folder that differ from HEAD, and whether each is gone."""
        status = self._ask("status", "--porcelain=v1", "-z", "--untracked-files=all", "--", ".")
        changes: dict[str, bool] = {}
        entries = iter((status or "").split("\0"))
        for entry in filter(None, entries):
            index, tree, path = entry[0], entry[1], entry[3:]
            changes[path] = index == "D" or (tree == "D" and index not in "ARC")
            if index in "RC" or tree in "RC":  # git lists two paths for a renamed file
                changes[next(entries, "")] = "R" in entry[:2]
        return {
            path.removeprefix(self._prefix): gone
            for path, gone in changes.items()
            if path.startswith(self._prefix)
        }

    def _oldest(self) -> frozenset[str]:
        """Return the oldest commits of a shallow clone; empty for a full clone."""
        answer = self._ask("rev-parse", "--git-path", "shallow") or ""
        place = self._folder / answer.removesuffix("\n")
        text = place.read_text(encoding="ascii") if answer and place.is_file() else ""
        return frozenset(text.split())

    def state(self, wanted: Iterable[str]) -> list[str]:
        """Return the facts from git that decide the revisions: commits and changed files.

        A file can differ from HEAD with unchanged bytes, for example after `git rm --cached`.
        """
        if not self.head:
            return []
        differing = sorted(self._changes().keys() & set(wanted))
        return [self.head, *sorted(self._oldest()), "differing", *differing]

    def revisions(self, wanted: Iterable[str]) -> Revisions | None:
        """Read revisions and dates with one `git log` and one `git status` of the whole folder."""
        log = self._ask(
            *("log", "--format=%x00%H %ct", "--name-only", "--no-renames", "--relative"),
            *("-z", "--", "."),
        )
        if not self.head or log is None:
            return None
        files, changes, oldest = set(wanted), self._changes(), self._oldest()
        last: dict[str, str] = {}
        dates: dict[str, str] = {}
        commit = seconds = ""
        entries = iter(log.split("\0"))
        for entry in entries:  # newest first; an empty entry comes before each commit
            path = entry.removeprefix("\n")
            if not entry:
                commit, _, seconds = next(entries, "").partition(" ")
            elif path in files and path not in last:
                last[path] = commit
                if commit not in oldest:
                    dates[path] = day_of_seconds(int(seconds))
        lost = any(gone and path not in files for path, gone in changes.items())
        return Revisions(self.head, last, dates, frozenset(changes.keys() & files), lost)


# ---- Files.


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


class Folder(PathLoader):
    """Markdown and text files below a folder."""

    loader: Literal["folder"]
    pattern: tuple[str, ...] = PATTERN
    chunker: Chunker = Chunker(kind="markdown")

    def _root(self, base: Path) -> Path:
        root = resolve(self.path, base)
        if not root.is_dir():
            raise missing_input(self.path, "a folder, relative to the gold set's folder")
        return root

    def _paths(self, root: Path) -> list[tuple[str, Path]]:
        """Return doc_id and path of every file that matches a pattern, sorted by doc_id."""
        field, accepted = "corpus.pattern", "shell patterns below the folder, such as **/*.md"
        for pattern in self.pattern:
            leaves = pattern.startswith(("/", "\\")) or ".." in PurePosixPath(pattern).parts
            if not pattern or leaves:
                message = "the pattern leaves the folder"
                raise InputError.of(
                    "bad_pattern", message, field=field, found=pattern, accepted=accepted
                )
        try:
            found = {
                path.relative_to(root).as_posix(): path
                for pattern in self.pattern
                for path in root.glob(pattern)
            }
        except ValueError as error:  # such as `a**b` before Python 3.13
            shown = ", ".join(self.pattern)
            raise InputError.of(
                "bad_pattern", str(error), field=field, found=shown, accepted=accepted
            ) from error
        return sorted(
            (name, path)
            for name, path in found.items()
            if not _is_hidden(name) and not path.is_dir()
        )

    def identity(self, base: Path) -> list[str]:
        """Return names and content hashes of the files, and the state of git."""
        root = self._root(base)
        paths = self._paths(root)
        parts = [*Git(root).state(name for name, _ in paths), "files"]
        for name, path in paths:
            parts += (name, file_hash(path) if _path_fault(name, path, root) is None else "refused")
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
        git = Git(root).revisions(name for name, _ in paths)
        problems = ProblemList()
        documents: list[RawDocument] = []
        unreadable = 0
        for name, path in paths:
            if (fault := _path_fault(name, path, root)) is not None:
                problems.extend([fault])
                continue
            source = path.read_bytes()
            text = decode_file(source, Path(name), problems)
            if text is not None:
                document, undated = self._make_document(name, text, source, git)
                documents.append(document)
                unreadable += undated
        problems.raise_errors()
        # if git tracks none of the files, the commit says nothing about the files
        if git is None or not git.last_commit:
            return RawCorpus(documents, unreadable_dates=unreadable)
        is_dirty = git.has_lost_files or any(
            document.is_dirty or not document.rev for document in documents
        )
        return RawCorpus(documents, git.head, is_dirty, unreadable)

    def _make_document(
        self, name: str, text: str, source: bytes, git: Revisions | None
    ) -> tuple[RawDocument, int]:
        """Make the document, and count the dates that could not be read."""
        path = PurePosixPath(name)
        is_markdown = path.suffix.lower() in _MARKDOWN
        values, body_start = front_matter(text) if is_markdown else ({}, 0)
        title = first_string(values, ("title",))
        if title is None and is_markdown:
            heads = (head.title for head in headings(text, body_start) if head.level == 1)
            title = next(filter(None, heads), None)
        day = latest_day(values.get(key) for key in _DATE_KEYS)
        is_dirty = git is not None and name in git.dirty
        if not day.day and not day.unreadable and git is not None and not is_dirty:
            committed = git.last_date.get(name)
            day = LatestDay(committed or "", int(committed == ""))
        rev = "" if git is None else git.last_commit.get(name, "")
        document = RawDocument(
            name,
            path.stem if title is None else title,
            text,
            first_string(values, _URL_KEYS) or f"{self.path.rstrip('/')}/{name}",
            "markdown" if is_markdown else "text",
            source,
            rev=rev,
            is_dirty=bool(rev) and is_dirty,
            body_start=body_start,
            place=name,
            author=find_author(values),
            date=day.day,
        )
        return document, day.unreadable


def _path_fault(name: str, path: Path, root: Path) -> Problem | None:
    """Return the reason for refusing a file; None for a readable file."""
    if (fault := id_fault(name)) is not None:
        message, accepted = "the file's name cannot be a doc_id", "names in UTF-8"
        return Problem(fault.code, message, ascii(name)[1:-1], accepted=accepted)
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
