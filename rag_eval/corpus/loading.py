"""Load a corpus: documents, sections and facts of their sources, masked, with revisions."""

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from rag_eval.core.config import SOURCES
from rag_eval.core.errors import Place, ProblemList, quoted
from rag_eval.core.frames import DOCUMENTS, SECTIONS, make_frame
from rag_eval.core.loader import Loader, RawDocument
from rag_eval.corpus.chunking import (
    Section,
    heading_sections,
    markdown_sections,
    numpydoc_sections,
    page_sections,
)
from rag_eval.corpus.markdown import rst_headings
from rag_eval.corpus.masking import NAMES, mask, mask_decoded
from rag_eval.corpus.source import (
    MAX_SHOWN_CHARS,
    author_hash,
    domain_of,
    one_line,
    without_user,
)
from rag_eval.storage.hashing import digest, lines_hash, text_hash

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


class LoadedCorpus(NamedTuple):
    """A corpus as stages use it."""

    documents: pd.DataFrame
    """DOCUMENTS, sorted by doc_id."""
    sections: pd.DataFrame
    """SECTIONS, sorted by document and place."""
    sources: pd.DataFrame
    """SOURCES, with one row for each document in the order of `documents`."""
    about: CorpusFacts


def identify(spec: Loader, base: Path) -> str:
    """Hash the configuration without its chunker, and the input, without parsing anything.

    Relative paths are resolved against `base`, the gold set's folder. Raises InputError if the
    input is missing.
    """
    configured = spec.model_dump(mode="json", exclude={"chunker"})
    return digest([configured, lines_hash(spec.identity(base))])


def _make_storable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot hold, by one U+FFFD each, so offsets stay."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _make_sections(document: RawDocument, title: str, text: str) -> list[Section]:
    doc_id = document.doc_id
    if document.passages and document.text == text:
        return [Section(section_id, "", start, end) for section_id, start, end in document.passages]
    if document.section_id is None and document.kind == "numpydoc":
        return numpydoc_sections(doc_id, title, text)
    if document.section_id is None and document.kind == "markdown":
        return markdown_sections(doc_id, title, text, document.body_start)
    if document.section_id is None and document.kind == "rst":
        return heading_sections(doc_id, title, text, rst_headings(text))
    if document.section_id is None and document.kind == "pages":
        return page_sections(doc_id, title, text)
    return [Section(document.section_id or doc_id, title, 0, len(text))]


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


def load_corpus(spec: Loader, base: Path) -> LoadedCorpus:
    """Read a corpus; mask it before anything else sees it (`mask_documents`).

    Raises InputError with every problem of the input, the first hundred listed.
    """
    raw = spec.read(base)
    documents = mask_documents(raw.documents, spec)
    facts = describe_corpus(
        spec, documents.frames.documents, documents.masked, raw.rev, is_dirty=raw.is_dirty
    )
    return LoadedCorpus(*documents.frames, facts)


class CorpusFrames(NamedTuple):
    """The frames of a corpus, as in `LoadedCorpus`."""

    documents: pd.DataFrame
    sections: pd.DataFrame
    sources: pd.DataFrame


class MaskedDocuments(NamedTuple):
    """Frames of a corpus, with the number of masked pieces by document and pattern name."""

    frames: CorpusFrames
    masked: pd.DataFrame


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
        title, text = _make_storable(document.title), _make_storable(document.text)
        url = without_user(_make_storable(document.source_url))
        author = _make_storable(document.author)
        # Join lines before masking, because removing characters later could complete an address.
        shown, domain = one_line(author), domain_of(url)
        hashed = author_hash(author) if shown else ""
        if spec.mask_pii:
            shown = mask(shown).text
            pieces = (mask(title), mask(text), mask_decoded(url))
            title, text, url = (piece.text for piece in pieces)
            for piece in pieces:
                counts.update(piece.counts)
        masked.append((doc_id, *(counts[name] for name in NAMES)))
        source_hash = hashlib.sha256(document.source).hexdigest()
        shown = shown[:MAX_SHOWN_CHARS]
        source = (source_hash, shown, hashed, document.date, domain)
        sources.append((doc_id, *source))
        content = text_hash(text)
        rev = _mark_dirty(document.rev or content, content, is_dirty=document.is_dirty)
        names = [doc_id, *document.names]
        rows.append((doc_id, title, text, rev, content, url, document.kind, names, document.page))
        owned += [(section, document) for section in _make_sections(document, title, text)]
    _refuse_shared_sections(owned)
    sections = [(section.section_id, owner.doc_id, *section[1:]) for section, owner in owned]
    frames = CorpusFrames(
        make_frame(DOCUMENTS, rows), make_frame(SECTIONS, sections), make_frame(SOURCES, sources)
    )
    return MaskedDocuments(frames, pd.DataFrame(masked, columns=["doc_id", *NAMES]))


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
