"""A corpus configuration -> documents, sections and what is known of their sources, masked, with revisions: the face of the loaders.

Belongs here: what holds for every source. Each format is a loader of its own.
"""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from rag_eval.corpus import beir, folder, hf_datasets, masking, package_docs, recorded, sections
from rag_eval.corpus.raw_documents import Problems, RawCorpus, RawDocument
from rag_eval.corpus.source_facts import facts_of, storable
from rag_eval.records.frames import DOCUMENTS, SECTIONS
from rag_eval.records.gold_set import Beir, Corpus, Folder, HuggingFace, PackageDocs, Recorded
from rag_eval.records.problems import Problem
from rag_eval.records.trust import SOURCES
from rag_eval.storage.hashing import digest, lines_hash, text_hash

_DIRTY_DIGITS = 12


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedCorpus:
    """A corpus as stages use it.

    Parameters
    ----------
    documents
        DOCUMENTS frame, sorted by doc_id.
    sections
        SECTIONS frame, sorted by document and place.
    sources
        SOURCES frame, one row a document in the order of documents.
    corpus_rev
        Revision of the whole: package version, commit (`+dirty.<hash>` where files differ), hub revision, or hash of the contents.
    masked
        Number of masked pieces in the documents frame for each pattern name, 0 included; empty where masking is off.
    loader
        Name of the loader.
    unreadable_dates
        How many dates were stated that could not be read; a document without any other has an unknown date.
    """

    documents: pd.DataFrame
    sections: pd.DataFrame
    sources: pd.DataFrame
    corpus_rev: str
    masked: dict[str, int]
    loader: str
    unreadable_dates: int


def identify(spec: Corpus, base: Path) -> str:
    """Hash of everything that loading would read: the configuration but for the chunker, and the content of the input.

    Nothing is parsed or imported. Relative paths are resolved against `base`, the gold set's folder.

    Raises
    ------
    InputError
        The input is not there.
    """
    match spec:
        case PackageDocs():
            found = package_docs.identity(spec, base)
        case Folder():
            found = folder.identity(spec, base)
        case Beir():
            found = beir.identity(spec, base)
        case HuggingFace():
            found = hf_datasets.identity(spec, base)
        case Recorded():
            found = recorded.identity(spec, base)
    # names of files need not be UTF-8
    return digest([spec.model_dump(mode="json", exclude={"chunker"}), lines_hash(found)])


def _read(spec: Corpus, base: Path) -> RawCorpus:
    match spec:
        case PackageDocs():
            return package_docs.load(spec, base)
        case Folder():
            return folder.load(spec, base)
        case Beir():
            return beir.load(spec, base)
        case HuggingFace():
            return hf_datasets.load(spec, base)
        case Recorded():
            return recorded.load(spec, base)


def source_bytes(spec: Corpus, base: Path) -> dict[str, bytes]:
    """Read the corpus again for its documents' bytes as the source gives them, before masking, by doc_id: what signatures are over.

    A file's bytes; a line of BEIR without its line end; the canonical JSON of a data set's id, title and text; a docstring in UTF-8; of
    recorded contexts the title, a line feed and the text in UTF-8. The input may have changed since `load_corpus` read it: compare the
    SHA-256 with `source_hash`.

    Raises
    ------
    InputError
        As `load_corpus`, but for section ids that two documents share.
    """
    return {
        document.doc_id: document.source
        for document in sorted(_read(spec, base).documents, key=lambda one: one.doc_id)
    }


def _sections(document: RawDocument, title: str, text: str) -> list[sections.Section]:
    if document.passages and document.text == text:
        return [
            sections.Section(section_id, "", start, end)
            for section_id, start, end in document.passages
        ]
    if document.section_id is not None:
        return sections.whole(document.doc_id, title, text, document.section_id)
    if document.kind == "numpydoc":
        return sections.of_numpydoc(document.doc_id, title, text)
    if document.kind == "markdown":
        return sections.of_markdown(document.doc_id, title, text, document.body_start)
    return sections.whole(document.doc_id, title, text)


def _refuse_shared_sections(found: list[sections.Section], owners: list[RawDocument]) -> None:
    """Two documents must not give the same section id: gold could not tell them apart."""
    shared = sections.duplicates(section.section_id for section in found)
    problems = Problems()
    first: dict[str, str] = {}
    for section, owner in zip(found, owners, strict=True):
        if (
            section.section_id in shared
            and first.setdefault(section.section_id, owner.doc_id) != owner.doc_id
        ):
            sentence = f"the section id is also that of document {first[section.section_id]}"
            problems.add(
                Problem(
                    "duplicate_section_id",
                    sentence,
                    owner.file,
                    owner.line,
                    "section_id",
                    section.section_id,
                    "every section id once",
                )
            )
    problems.raise_if_any()


def load_corpus(spec: Corpus, base: Path) -> LoadedCorpus:
    """Read a corpus; mask titles, texts, authors and addresses before anything else sees them.

    Ids and names are not masked: they are how a document is found. An address loses `user:password@` whether masking is on or off, and its
    domain is taken before it is masked. A document with an empty text is kept and gives no chunk, even if it has a title.

    Raises
    ------
    InputError
        With every problem of the input, the first hundred listed.
    """
    raw = _read(spec, base)
    masked: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    sources: list[dict[str, str]] = []
    found: list[sections.Section] = []
    owners: list[RawDocument] = []
    for document in sorted(raw.documents, key=lambda one: one.doc_id):
        title, text = storable(document.title), storable(document.text)
        facts = facts_of(document, mask_pii=spec.mask_pii)
        sources.append(facts.row)
        if spec.mask_pii:
            (title, in_title), (text, in_text) = masking.mask(title), masking.mask(text)
            for counts in (in_title, in_text, facts.counts):
                masked.update(counts)
        content_hash = text_hash(text)
        rev = document.rev or content_hash
        rows.append(
            {
                "doc_id": document.doc_id,
                "title": title,
                "text": text,
                "rev": f"{rev}+dirty.{content_hash[:_DIRTY_DIGITS]}" if document.dirty else rev,
                "content_hash": content_hash,
                "source_url": facts.address,
                "kind": document.kind,
                "names": [document.doc_id, *document.names],
            }
        )
        its = _sections(document, title, text)
        found += its
        owners += [document] * len(its)
    _refuse_shared_sections(found, owners)
    documents = DOCUMENTS.check(pd.DataFrame(rows))
    frame = pd.DataFrame(found, columns=list(sections.Section._fields))
    frame["doc_id"] = [owner.doc_id for owner in owners]
    content = lines_hash(part for row in rows for part in (row["doc_id"], row["content_hash"]))
    rev = raw.rev or content
    return LoadedCorpus(
        documents=documents,
        sections=SECTIONS.check(frame),
        sources=SOURCES.check(pd.DataFrame(sources)),
        corpus_rev=f"{rev}+dirty.{content[:_DIRTY_DIGITS]}" if raw.dirty else rev,
        masked={name: masked[name] for name in masking.NAMES} if spec.mask_pii else {},
        loader=spec.loader,
        unreadable_dates=raw.unreadable_dates,
    )
