"""Shared parts of loaders, and corpora as they load them: masked, with sections and revisions."""

import contextlib
import dataclasses
import datetime as dt
import hashlib
import os
import re
import unicodedata
import urllib.parse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import pandas as pd
from pydantic import BaseModel, Field, model_validator

from rag_eval.core.errors import InputError, Place, ProblemList, quoted
from rag_eval.core.frames import DOCUMENTS, SECTIONS, SOURCES, make_frame
from rag_eval.core.loader import Loader, PathLoader, RawCorpus, RawDocument
from rag_eval.core.rows import SeenIds, check_row
from rag_eval.core.types import Id, PlainText, Title
from rag_eval.corpus.chunking import Section, document_sections
from rag_eval.corpus.masking import NAMES, mask, mask_decoded
from rag_eval.storage.hashing import canonical_json, digest, lines_hash, text_hash

# ---- Rows and paths

Page = (
    Annotated[int, Field(strict=True, ge=0, le=10**9)]
    | Annotated[str, Field(min_length=1, max_length=20, pattern=r"^\S+$")]
)
"""The page of a passage in its source, as a field of a row: a number, or a text such as `iv`."""


class DocumentRow(BaseModel):
    """A document in a row of a file; a null text is empty where the row has a title."""

    id: Id
    title: Title = ""
    text: PlainText

    @model_validator(mode="before")
    @classmethod
    def _may_be_a_title_alone(cls, values: dict[str, object]) -> dict[str, object]:
        is_title = "text" in values and values["text"] is None and values.get("title")
        return {**values, "text": ""} if is_title else values


def resolve(path: str, base: Path) -> Path:
    """Return the path of a configuration, relative to the gold set's folder."""
    return (base / path).absolute()


def list_files(root: Path) -> Iterator[Path]:
    """Yield every entry below a folder that is no folder; links to folders are not followed.

    The depth of folders is not bounded by Python's stack. Raises InputError: `unreadable_folder`.
    """
    folders = [root]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    path = folder / entry.name
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(path)
                    else:
                        yield path
        except OSError as error:
            message = f"the folder cannot be read: {error.strerror}"
            raise InputError.of("unreadable_folder", message, folder) from error


def missing_input(path: str, accepted: str) -> InputError:
    """Make the error for a missing input; `found` is the configured path."""
    more: Place = {"field": "corpus.path", "found": path, "accepted": accepted}
    return InputError.of("missing_input", "the corpus was not found", **more)


def empty_corpus(message: str, source: str, accepted: str) -> InputError:
    """Make the error for a corpus without documents."""
    return InputError.of("empty_corpus", message, field="corpus", found=source, accepted=accepted)


# ---- Authors

MAX_AUTHORS = 100
MAX_AUTHOR_CHARS = 10_000
"""Most characters of all names of a document together, before hashing."""
MAX_SHOWN_CHARS = 200


def find_author(values: Mapping[str, object]) -> str:
    """Return the `author` of a document's metadata, else the `authors`, joined by `, `.

    A value is a text, an object with a `name`, or a list of these. Other values give an empty text.
    """
    for value in (values.get("author"), values.get("authors")):
        items = value[:MAX_AUTHORS] if isinstance(value, list | tuple) else [value]
        names = (item.get("name") if isinstance(item, Mapping) else item for item in items)
        texts = (name.strip() for name in names if isinstance(name, str))
        if author := ", ".join(filter(None, texts)):
            return author[:MAX_AUTHOR_CHARS]
    return ""


def author_hash(author: str) -> str:
    """Hash a name without regard to case and runs of white space; empty for an empty name."""
    compared = " ".join(author.casefold().split())
    return text_hash(compared) if compared else ""


# ---- Dates

_MIN_SECONDS = 100_000_000
"""Numbers below this are no seconds since 1970, but years or days such as 20240131."""


def day_of(value: object) -> str:
    """Return the UTC day of a date or time as `YYYY-MM-DD`; empty for a value without a day.

    A value is an ISO 8601 text, a date or time object (from YAML, TOML or Arrow), or seconds since
    1970, also as text.
    """
    try:
        if isinstance(value, str):
            text = value.strip()
            is_seconds = text.isdecimal() and int(text) >= _MIN_SECONDS
            value = int(text) if is_seconds else dt.datetime.fromisoformat(text)
        if isinstance(value, int | float) and value >= _MIN_SECONDS:
            value = dt.datetime.fromtimestamp(value, dt.UTC)
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            value = value.astimezone(dt.UTC)
    except (OverflowError, ValueError, OSError):  # no such day, or outside the years 1 to 9999
        return ""
    if isinstance(value, dt.datetime):
        value = value.date()
    return value.isoformat() if isinstance(value, dt.date) else ""


def latest_day(values: Iterable[object]) -> str:
    """Return the latest day of several dates; empty if no date is readable."""
    return max(map(day_of, values), default="")


# ---- Tables with columns. Manifests use the canonical JSON of a document's id, title and text as
# the bytes of the document.

TableRow = tuple[str, int, Sequence[object]]
"""File, line or row from 1, and values of `COLUMNS`."""
COLUMNS = ("id", "text", "title", "url", "author", "date")


class TableLoader(PathLoader):
    """Configuration of a corpus with one document in each row of a table."""

    id_column: str = "id"
    """Id of a document."""
    text_column: str = "text"
    """Text of a document. Columns of the names title, url, author and date are read too."""

    def column_names(self, present: Sequence[str]) -> dict[str, str | None]:
        """Return the names in the table by the names of `COLUMNS`; None stands for no column.

        Raises InputError `unknown_column` if the table has no column for ids or texts.
        """
        names: dict[str, str | None] = {name: name if name in present else None for name in COLUMNS}
        for column, name in (("id", self.id_column), ("text", self.text_column)):
            if name not in present:
                field, accepted = f"corpus.{column}_column", ", ".join(present)
                message = "there is no such column"
                raise InputError.of(
                    "unknown_column", message, field=field, found=name, accepted=accepted
                )
            names[column] = name
        return names

    def make_documents(
        self, rows: Iterable[TableRow], problems: ProblemList
    ) -> Iterator[RawDocument]:
        """Make a document of each row, and collect problems."""
        ids = SeenIds(problems)
        for file, line, (doc_id, text, title, url, author, date) in rows:
            values = {"id": doc_id, "title": title, "text": text}
            row = check_row(values, DocumentRow, problems, file, line)
            if row is not None and ids.add(row.id, file, line, "id"):
                yield RawDocument(
                    row.id,
                    row.title,
                    row.text,
                    url if isinstance(url, str) and url else f"{self.path}#{row.id}",
                    "text",
                    canonical_json(row.model_dump()).encode("utf-8", "surrogatepass"),
                    place=f"{file}:{line}",
                    author=find_author({"author": author}),
                    date=day_of(date),
                )

    def read_rows(self, rows: Iterable[TableRow], problems: ProblemList) -> RawCorpus:
        """Read the documents. Raises InputError with all problems, and for an empty corpus."""
        documents = list(self.make_documents(rows, problems))
        problems.raise_errors()
        if not documents:
            raise empty_corpus("there is no document", self.path, "at least one row")
        return RawCorpus(documents)


@contextlib.contextmanager
def naming_errors(path: str, accepted: str) -> Iterator[None]:
    """Name the corpus in errors of files, stores and packages, which share no base class."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        message = f"it cannot be loaded: {type(error).__name__}: {str(error)[:500]}"
        raise InputError.of(
            "not_loadable", message, field="corpus.path", found=path, accepted=accepted
        ) from error


# ---- Addresses of documents

MAX_DOMAIN_CHARS = 253
"""Bound of the DNS (RFC 1035, section 2.3.4), without the root's dot."""

_WEB = re.compile(r"(?:https?|ftp)://([^/?#]*)", re.IGNORECASE)
_DOCSTRING = re.compile(r"(python:[A-Za-z_][A-Za-z0-9_]*)(?:\.|\Z)")
_USER_INFO = re.compile(r"(?P<before>(?:[A-Za-z][A-Za-z0-9+.-]*+:)?//)(?P<authority>[^/?#\\]*+)")
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_AMBIGUOUS = re.compile("[\\s\\\\\x00-\x1f\x7f\u00df\u1e9e\u03c2\u200c\u200d]")
"""Characters at which programs disagree about the host.

A browser ends it at a backslash. IDNA 2003 (Python) and IDNA 2008 (browsers) encode some letters
differently (RFC 5894)."""


def _domain_of(source_url: str) -> str:
    """Return the domain of an address; empty for an address without a domain.

    For http, https and ftp, the domain is the host in lower case, without user, port and final dot.
    Letters beyond ASCII are in xn-- form (RFC 3490). For `python:<package>.<name>`, the domain is
    `python:<package>`. A host that programs read differently and an IPv6 address give an empty
    domain, because they must not pass an allowlist.
    """
    address = source_url.strip()
    if docstring := _DOCSTRING.match(address):
        return docstring[1]
    web = _WEB.match(address)
    if web is None or _AMBIGUOUS.search(web[1]):
        return ""
    try:
        parts = urllib.parse.urlsplit(address)
        _ = parts.port  # raises ValueError for what is no port
        host = (parts.hostname or "").removesuffix(".").encode("idna").decode("ascii").lower()
    except ValueError:
        return ""
    # Check the encoded name, because look-alikes of / and : are encoded as / and :.
    return host if _HOST.fullmatch(host) and len(host) <= MAX_DOMAIN_CHARS else ""


def _without_user(source_url: str) -> str:
    """Drop `user:password@` from an address, because it is no part of a document's place."""
    match = _USER_INFO.match(source_url)
    if match is None or "@" not in match["authority"]:
        return source_url
    return match["before"] + match["authority"].rpartition("@")[2] + source_url[match.end() :]


# ---- Corpora

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_DIRTY_DIGITS = 12


@dataclasses.dataclass(frozen=True)
class CorpusFacts:
    """Facts for the report on a corpus."""

    corpus_rev: str
    """Package version, commit (`+dirty.<hash>`), hub revision, or content hash."""
    loader: str
    masked: dict[str, int] | None
    """Numbers of masked pieces by pattern name, 0 included; None when masking is off."""
    n_documents: int


class CorpusFrames(NamedTuple):
    """DOCUMENTS and SOURCES, sorted by doc_id, and SECTIONS, by document and place."""

    documents: pd.DataFrame
    sections: pd.DataFrame
    sources: pd.DataFrame


class LoadedCorpus(NamedTuple):
    """The frames of a corpus, as in `CorpusFrames`, and its facts."""

    documents: pd.DataFrame
    sections: pd.DataFrame
    sources: pd.DataFrame
    about: CorpusFacts


class MaskedDocuments(NamedTuple):
    """Frames of a corpus, with the number of masked pieces by document and pattern name."""

    frames: CorpusFrames
    masked: pd.DataFrame


def identify(spec: Loader, base: Path) -> str:
    """Hash the configuration without its chunker, and the input, without parsing anything.

    Relative paths are resolved against `base`, the gold set's folder. Raises InputError if the
    input is missing.
    """
    configured = spec.model_dump(mode="json", exclude={"chunker"})
    return digest([configured, lines_hash(spec.identity(base))])


def load_corpus(spec: Loader, base: Path) -> LoadedCorpus:
    """Read a corpus; mask it before anything else sees it (`mask_documents`).

    Raises InputError with every problem of the input, the first hundred listed.
    """
    raw = spec.read(base)
    frames, masked = mask_documents(raw.documents, spec)
    facts = describe_corpus(spec, frames.documents, masked, raw.rev, is_dirty=raw.is_dirty)
    return LoadedCorpus(*frames, facts)


def mask_documents(documents: Iterable[RawDocument], spec: Loader) -> MaskedDocuments:
    """Mask titles, texts, authors and addresses of documents.

    Ids and names are not masked, because people find documents by ids and names. An address loses
    `user:password@` whether masking is on or off. Domains and author hashes come from unmasked
    values. A document with an empty text is kept and gives no chunk. Raises InputError for section
    ids that two documents share.
    """
    masked: list[tuple[object, ...]] = []
    rows: list[tuple[object, ...]] = []
    sources: list[tuple[str, ...]] = []
    owned: list[tuple[Section, RawDocument]] = []
    for document in sorted(documents, key=lambda document: document.doc_id):
        doc_id, counts = document.doc_id, Counter[str]()
        storable = (document.title, document.text, document.source_url, document.author)
        # lone surrogates, which UTF-8 cannot hold, become one U+FFFD each, so offsets stay
        title, text, url, author = (_SURROGATE.sub("\ufffd", value) for value in storable)
        url = _without_user(url)
        # Join lines before masking, because removing characters later could complete an address.
        shown, domain = _one_line(author), _domain_of(url)
        hashed = author_hash(author) if shown else ""
        if spec.mask_pii:
            shown = mask(shown).text
            pieces = (mask(title), mask(text), mask_decoded(url))
            title, text, url = (piece.text for piece in pieces)
            for piece in pieces:
                counts.update(piece.counts)
        masked.append((doc_id, *(counts[name] for name in NAMES)))
        source_hash = hashlib.sha256(document.source).hexdigest()
        sources.append(
            (doc_id, source_hash, shown[:MAX_SHOWN_CHARS], hashed, document.date, domain)
        )
        content = text_hash(text)
        rev = _mark_dirty(document.rev or content, content, is_dirty=document.is_dirty)
        names = [doc_id, *document.names]
        rows.append((doc_id, title, text, rev, content, url, document.kind, names, document.page))
        owned += [(section, document) for section in document_sections(document, title, text)]
    _refuse_shared_sections(owned)
    sections = [(section.section_id, owner.doc_id, *section[1:]) for section, owner in owned]
    frames = CorpusFrames(
        make_frame(DOCUMENTS, rows), make_frame(SECTIONS, sections), make_frame(SOURCES, sources)
    )
    return MaskedDocuments(frames, pd.DataFrame(masked, columns=["doc_id", *NAMES]))


def _refuse_shared_sections(owned: list[tuple[Section, RawDocument]]) -> None:
    """Refuse a section id of two documents, because gold could not tell them apart."""
    problems = ProblemList()
    first: dict[str, str] = {}
    for section, owner in owned:
        other = first.setdefault(section.section_id, owner.doc_id)
        if other != owner.doc_id:
            message = f"the section id is also that of document {quoted(other)}"
            more: Place = {"field": "section_id", "found": quoted(section.section_id)}
            problems.add("duplicate_section_id", message, owner.place or owner.doc_id, **more)
    problems.raise_errors()


def describe_corpus(
    spec: Loader,
    documents: pd.DataFrame,
    masked: pd.DataFrame,
    rev: str = "",
    *,
    is_dirty: bool = False,
) -> CorpusFacts:
    """Collect the facts about DOCUMENTS and the numbers of masked pieces of each."""
    content = lines_hash(documents[["doc_id", "content_hash"]].to_numpy().ravel().tolist())
    return CorpusFacts(
        corpus_rev=_mark_dirty(rev or content, content, is_dirty=is_dirty),
        loader=spec.loader,
        masked={name: int(masked[name].sum()) for name in NAMES} if spec.mask_pii else None,
        n_documents=len(documents),
    )


def _mark_dirty(rev: str, content: str, *, is_dirty: bool) -> str:
    return f"{rev}+dirty.{content[:_DIRTY_DIGITS]}" if is_dirty else rev


def _one_line(author: str) -> str:
    """Write a name on one line: control characters become spaces, invisible characters go."""
    spaced = (
        " " if unicodedata.category(character) in {"Cc", "Zl", "Zp"} else character
        for character in author
        if unicodedata.category(character) not in {"Cf", "Co", "Cn", "Cs"}
    )
    return " ".join("".join(spaced).split())
