"""What the live index knows that a citation can be held against: texts, revisions, sections, snippets, accepted index hashes.

Belongs here: look-ups over the frames of one corpus. The rules that ask are `rag_eval.citations.validators`.
"""

import functools
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

import pandas as pd

from rag_eval.corpus.outgoing import masked_text

_WORD = re.compile(
    r"[^\W_]+"
)  # the analyzer's word: `rag_eval.corpus.analyzer.words` finds the same ones (a test holds it to that)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Character ranges of the words that the analyzer counts as tokens, in order."""
    return [match.span() for match in _WORD.finditer(text)]


class Place(NamedTuple):
    """A range of a document's characters, and for a snippet the section that it is filed under (else empty)."""

    doc_id: str
    start: int
    end: int
    section_id: str = ""


class LiveIndex:
    """Facts of one corpus revision and the indexes over it.

    Parameters
    ----------
    texts, revs
        doc_id -> text, and doc_id -> revision.
    sections, snippets
        section_id -> place, and snippet_id -> place.
    index_hashes
        Every index_hash that counts as live: one a strategy.
    analyzer
        Name of the read path's analyzer.
    """

    def __init__(
        self,
        texts: Mapping[str, str],
        revs: Mapping[str, str],
        sections: Mapping[str, Place],
        snippets: Mapping[str, Place],
        *,
        index_hashes: Collection[str],
        analyzer: str,
    ) -> None:
        self.texts, self.revs, self.sections, self.snippets = texts, revs, sections, snippets
        self.index_hashes = frozenset(index_hashes)
        self.analyzer = analyzer
        self.masked = functools.lru_cache(maxsize=64)(lambda doc_id: masked_text(texts[doc_id]))
        """doc_id -> its text with personal data masked, of the same length."""
        self._words = functools.lru_cache(maxsize=1024)(lambda doc_id: word_spans(texts[doc_id]))

    @classmethod
    def from_frames(
        cls,
        documents: pd.DataFrame,
        sections: pd.DataFrame,
        chunks: pd.DataFrame,
        index_hashes: Collection[str],
        analyzer: str,
    ) -> "LiveIndex":
        """Build it from the DOCUMENTS, SECTIONS and CHUNKS frames of one corpus."""
        doc_ids = documents["doc_id"].tolist()

        def places(frame: pd.DataFrame, name: str, *more: str) -> dict[str, Place]:
            columns = [frame[column].tolist() for column in ("doc_id", "start", "end", *more)]
            return dict(zip(frame[name].tolist(), map(Place, *columns), strict=True))

        return cls(
            dict(zip(doc_ids, documents["text"].tolist(), strict=True)),
            dict(zip(doc_ids, documents["rev"].tolist(), strict=True)),
            places(sections, "section_id"),
            places(chunks, "chunk_id", "section_id"),
            index_hashes=index_hashes,
            analyzer=analyzer,
        )

    def length(self, doc_id: str, unit: str) -> int:
        """Length of a known document in characters or tokens."""
        return len(self.texts[doc_id]) if unit == "char" else len(self._words(doc_id))

    def characters(self, doc_id: str, start: int, end: int, unit: str) -> tuple[int, int]:
        """Offsets of a known document as characters; 0 <= start < end <= length."""
        if unit == "char":
            return start, end
        words = self._words(doc_id)
        return words[start][0], words[end - 1][1]

    def holds(self, section_id: str, snippet: Place) -> bool:
        """Whether a snippet may be cited under a section: the one it is filed under, or another that it reaches into."""
        section = self.sections.get(section_id)
        return section_id == snippet.section_id or (
            section is not None
            and section.doc_id == snippet.doc_id
            and section.start < snippet.end
            and snippet.start < section.end
        )
