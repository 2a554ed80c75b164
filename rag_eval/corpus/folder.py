"""Loader `folder`: Markdown and text files below a folder, with the git revision of each.

Belongs here: which files are read and what is refused. Symbolic links to folders are not followed; names that begin with a dot are left out.

Front matter of a Markdown file (YAML or TOML) may say: `title`; `source_url`, `url` or `canonical_url`; `author` or `authors`, a name or a list of
names; `date`, `updated`, `last_modified` and `modified`, of which the latest counts. A file without any such date has that of its last commit,
unless it differs from it.
"""

import fnmatch
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from rag_eval.corpus import authors, dates, git_revision, markdown
from rag_eval.corpus.raw_documents import (
    Problems,
    RawCorpus,
    RawDocument,
    id_fault,
    missing,
    resolve,
)
from rag_eval.records.gold_set import Folder
from rag_eval.records.problems import InputError, Problem
from rag_eval.storage.hashing import file_hash

MAX_BYTES = 64 * 1024 * 1024
_MARKDOWN = frozenset({".md", ".markdown"})
_TITLE_KEYS = ("title",)
_URL_KEYS = ("source_url", "url", "canonical_url")
_AUTHOR_KEYS = ("author", "authors")
_DATE_KEYS = ("date", "updated", "last_modified", "modified")


def _root(spec: Folder, base: Path) -> Path:
    root = resolve(spec.path, base)
    if not root.is_dir():
        raise missing(spec.path, "a folder, relative to the gold set's folder")
    return root


def _paths(spec: Folder, root: Path) -> list[tuple[str, Path]]:
    """doc_id and path of every file that the patterns choose, sorted by doc_id."""
    bad = [
        pattern
        for pattern in spec.pattern
        if not pattern or pattern.startswith(("/", "\\")) or ".." in PurePosixPath(pattern).parts
    ]
    if bad:
        accepted = "shell patterns below the folder, such as **/*.md"
        raise InputError(
            [
                Problem(
                    "bad_pattern",
                    "the pattern leaves the folder",
                    field="corpus.pattern",
                    found=one,
                    accepted=accepted,
                )
                for one in bad
            ]
        )
    try:
        found = {
            path.relative_to(root).as_posix(): path
            for pattern in spec.pattern
            for path in root.glob(pattern)
        }
    except ValueError as error:  # such as `a**b` before Python 3.13
        accepted = "shell patterns in which ** is a whole path part"
        raise InputError(
            Problem(
                "bad_pattern",
                str(error),
                field="corpus.pattern",
                found=", ".join(spec.pattern),
                accepted=accepted,
            )
        ) from error
    return sorted(
        (name, path) for name, path in found.items() if not _hidden(name) and not path.is_dir()
    )


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether `Path.glob` would have found this file, which is no more there to be found."""
    if not pattern or not parts:
        return not parts and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return _fits(parts, pattern[1:]) or _fits(parts[1:], pattern)
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])


def _lacking(spec: Folder, git: git_revision.GitRevisions) -> bool:
    """Whether a file of the commit that the patterns would choose has been deleted or renamed."""
    patterns = [PurePosixPath(pattern).parts for pattern in spec.pattern]
    return any(
        not _hidden(name) and any(_fits(name.split("/"), pattern) for pattern in patterns)
        for name in git.missing
    )


def identity(spec: Folder, base: Path) -> list[str]:
    """Names and content hashes of the files, and what git says of their revisions and dates: its commit, and which files differ from it."""
    root = _root(spec, base)
    inside = root.resolve()
    paths = _paths(spec, root)
    parts = [*git_revision.standing(root, (doc_id for doc_id, _ in paths)), "files"]
    for doc_id, path in paths:
        # what loading refuses is not read here either
        readable = (
            path.is_file()
            and path.resolve().is_relative_to(inside)
            and path.stat().st_size <= MAX_BYTES
        )
        parts += (doc_id, file_hash(path) if readable else "refused")
    return parts


def _faults(doc_id: str, path: Path, inside: Path) -> Iterator[Problem]:
    """Reasons not to open a file."""
    fault = id_fault(doc_id)
    if fault:
        yield Problem(
            fault[0],
            "the file's name cannot be a doc_id",
            file=ascii(doc_id)[1:-1],
            accepted="names without control characters, in UTF-8",
        )
    if not path.resolve().is_relative_to(inside):
        yield Problem(
            "outside_folder",
            "a symbolic link leads out of the folder",
            file=doc_id,
            accepted="files inside the folder",
        )
    elif not path.is_file():
        yield Problem(
            "not_a_file",
            "not a regular file, or a link to nothing",
            file=doc_id,
            accepted="regular files",
        )
    elif path.stat().st_size > MAX_BYTES:
        yield Problem(
            "too_large",
            "the file is too large",
            file=doc_id,
            found=f"{path.stat().st_size} bytes",
            accepted=f"at most {MAX_BYTES} bytes",
        )


def _text(doc_id: str, data: bytes) -> str | Problem:
    if b"\x00" in data:
        line = data.count(b"\n", 0, data.index(b"\x00")) + 1
        return Problem(
            "nul_byte",
            "the file holds a NUL byte",
            file=doc_id,
            line=line,
            accepted="text in UTF-8",
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{data[error.start]:02x}"
        return Problem(
            "not_utf8",
            "the file is not in UTF-8",
            file=doc_id,
            line=line,
            found=found,
            accepted="text in UTF-8",
        )


def _committed(doc_id: str, git: git_revision.GitRevisions | None) -> dates.Dated:
    """Date of a file that says none: of the commit that last changed it, where it is still what that commit made."""
    if git is None or doc_id in git.dirty or doc_id not in git.last_date:
        return dates.Dated("", 0)
    day = git.last_date[doc_id]
    return dates.Dated(day, int(not day))


def _document(
    spec: Folder, doc_id: str, text: str, source: bytes, git: git_revision.GitRevisions | None
) -> tuple[RawDocument, int]:
    """Make the document, and count the dates that could not be read."""
    stem = PurePosixPath(doc_id).stem
    commit = git.last_commit.get(doc_id, "") if git else ""
    dirty = git is not None and bool(commit) and doc_id in git.dirty
    url = f"{spec.path.rstrip('/')}/{doc_id}"
    if PurePosixPath(doc_id).suffix.lower() not in _MARKDOWN:
        dated = _committed(doc_id, git)
        return RawDocument(
            doc_id,
            stem,
            text,
            url,
            "text",
            rev=commit,
            dirty=dirty,
            file=doc_id,
            date=dated.day,
            source=source,
        ), dated.unreadable
    values, body_start = markdown.front_matter(text)
    title = markdown.first_string(values, _TITLE_KEYS)
    if title is None:
        title = next(
            (
                heading.title
                for heading in markdown.headings(text, body_start)
                if heading.level == 1 and heading.title
            ),
            stem,
        )
    url = markdown.first_string(values, _URL_KEYS) or url
    dated = dates.latest(values.get(key) for key in _DATE_KEYS)
    if not dated.day and not dated.unreadable:
        dated = _committed(doc_id, git)
    author = authors.author_of(values, _AUTHOR_KEYS)
    document = RawDocument(
        doc_id,
        title,
        text,
        url,
        "markdown",
        rev=commit,
        dirty=dirty,
        body_start=body_start,
        file=doc_id,
        author=author,
        date=dated.day,
        source=source,
    )
    return document, dated.unreadable


def load(spec: Folder, base: Path) -> RawCorpus:
    """Read the files.

    The title is the front matter's `title`, else the first heading of level 1, else the file's stem. Text files are one section.

    Raises
    ------
    InputError
        The folder is missing or has no such file; or files that are not UTF-8, hold NUL bytes, are too large or lie outside.
    """
    root = _root(spec, base)
    inside = root.resolve()
    paths = _paths(spec, root)
    if not paths:
        raise InputError(
            Problem(
                "empty_corpus",
                "no file fits the patterns",
                field="corpus.pattern",
                found=spec.path,
                accepted=", ".join(spec.pattern),
            )
        )
    git = git_revision.revisions(root, (doc_id for doc_id, _ in paths))
    problems = Problems()
    documents = []
    unreadable = 0
    committed = git is None or not _lacking(spec, git)
    for doc_id, path in paths:
        faults = list(_faults(doc_id, path, inside))
        source = b"" if faults else path.read_bytes()
        content = faults[0] if faults else _text(doc_id, source)
        if isinstance(content, Problem):
            for fault in faults or [content]:
                problems.add(fault)
            continue
        document, undated = _document(spec, doc_id, content, source, git)
        unreadable += undated
        committed &= bool(document.rev) and not document.dirty
        documents.append(document)
    problems.raise_if_any()
    # in a checkout that holds none of the files, its commit says nothing about them
    known = git is not None and bool(git.last_commit)
    return RawCorpus(
        documents,
        rev=git.head if git is not None and known else "",
        dirty=known and not committed,
        unreadable_dates=unreadable,
    )
