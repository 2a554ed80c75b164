"""Gather the evidence of questions: preflights over the corpus, with line numbers and cite tokens.

A line ends at a line feed; lines count from 1.
"""

import dataclasses
import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rag_eval.answers.replies import Fault
from rag_eval.core.arrays import BoolArray, IntArray
from rag_eval.core.config import AnswerOverride, Answers, Grep, Preflight, Retrieve, Section
from rag_eval.core.strategy import Identity
from rag_eval.core.types import (
    SNIPPET_CHARS,
    Evidence,
    EvidenceKind,
    Offsets,
    RetrievalMetadata,
    RetrievalResult,
    ScoredChunk,
    Window,
)
from rag_eval.corpus.analyzer import ANALYZER
from rag_eval.corpus.masking import mask
from rag_eval.retrieval.service import Payloads, Rank

# ---- Events of a run as log lines `event=<name> key=value ...` that no value can break or forge

_MAX_MASKED_CHARS = 20_000
_PLAIN = re.compile(r"[A-Za-z0-9_.:/@+,#%-]+")


def _format_value(key: str, value: str | float | None) -> str:
    """Format a plain value bare, any other value as a JSON string with `=` escaped too."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if not isinstance(value, str):
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    # ids are not masked, because people search for them; other text may repeat a source
    text = value if key.endswith("_id") else mask(value[:_MAX_MASKED_CHARS]).text
    text = text if len(text) <= SNIPPET_CHARS else f"{text[: SNIPPET_CHARS - 3]}..."
    if _PLAIN.fullmatch(text):
        return text
    return json.dumps(text).replace("=", "\\u003d").replace("\x7f", "\\u007f")


class Events:
    """Collects event lines: ASCII, with personal data masked and long values cut."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, name: str, **fields: str | float | None) -> None:
        r"""Record one event.

        Examples
        --------
        >>> log = Events()
        >>> log.add("question.done", query_id="q 1", message="a\nevent=run.start")
        >>> log.lines
        ['event=question.done query_id="q 1" message="a\\nevent\\u003drun.start"']
        """
        parts = [f"{key}={_format_value(key, value)}" for key, value in fields.items()]
        self.lines.append(" ".join([f"event={name}", *parts]))


# ---- Chunks with their lines, and a view of the corpus that finds lines, sections and chunks

MAX_EVIDENCE_CHARS = 12_000
"""Longest evidence; longer chunks are cut, so that no document fills a prompt."""


def line_starts(text: str) -> IntArray:
    """Return the offset of each line's first character, [n_lines].

    A final line feed opens a further line.
    """
    units = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    return np.concatenate([[0], np.flatnonzero(units == ord("\n")) + 1]).astype(np.int64)


def cite_token(doc_id: str, first: int, last: int) -> str:
    """Make `<doc_id>:<first>-<last>`, or `<doc_id>:<line>` for one line.

    Examples
    --------
    >>> cite_token("docs/guide.md", 3, 7), cite_token("docs/guide.md", 3, 3)
    ('docs/guide.md:3-7', 'docs/guide.md:3')
    """
    return f"{doc_id}:{first}" if first == last else f"{doc_id}:{first}-{last}"


class Library:
    """Documents, sections and chunks of a corpus revision, with lookups by id and line.

    `index` and `analyzer` are in the payload of chunks that grep and section find.
    """

    def __init__(
        self,
        documents: pd.DataFrame,
        sections: pd.DataFrame,
        chunks: pd.DataFrame,
        index: Identity,
        analyzer: str = ANALYZER,
    ) -> None:
        self.chunks, self.index, self.analyzer = chunks, index, analyzer
        self.texts: list[str] = chunks["text"].tolist()
        self.starts: list[int] = chunks["start"].tolist()
        self._payloads = Payloads(chunks, documents, analyzer)
        self._documents = documents.set_index("doc_id")[["text", "title"]].to_dict("index")
        columns = sections[["doc_id", "start", "end"]].itertuples(index=False, name=None)
        self._sections = dict(zip(sections["section_id"].tolist(), columns, strict=True))
        self._line_starts: dict[str, IntArray] = {}

    def text(self, doc_id: str) -> str | None:
        """Return the text of a document; None for an unknown document."""
        return self._documents[doc_id]["text"] if doc_id in self._documents else None

    def title(self, doc_id: str) -> str:
        """Return the title of a document, or an empty text."""
        return self._documents[doc_id]["title"] if doc_id in self._documents else ""

    def line_of(self, doc_id: str, offset: int) -> int:
        """Return the line of a character of a known document, from 1."""
        if doc_id not in self._line_starts:
            self._line_starts[doc_id] = line_starts(self._documents[doc_id]["text"])
        return int(np.searchsorted(self._line_starts[doc_id], offset, side="right"))

    @functools.cached_property
    def _rows_of_document(self) -> Mapping[Any, Iterable[int]]:
        return self.chunks.groupby("doc_id", sort=False).indices

    def document_rows(self, doc_id: str) -> list[int]:
        """Return the rows of the chunks of a document, by place; empty if unknown."""
        rows = self._rows_of_document.get(doc_id, ())
        return sorted(map(int, rows), key=lambda row: self.starts[row])

    def section_rows(self, section_id: str) -> list[int] | None:
        """Return the rows of the chunks that overlap a section, by place; None if unknown."""
        if section_id not in self._sections:
            return None
        doc_id, start, end = self._sections[section_id]
        rows = self.document_rows(doc_id)
        ends = [self.starts[row] + len(self.texts[row]) for row in rows]
        return [
            row
            for row, row_end in zip(rows, ends, strict=True)
            if self.starts[row] < end and row_end > start
        ]

    def payload(self, row: int, rank: int, score_raw: float, score_norm: float) -> ScoredChunk:
        """Make the payload of a chunk that comes from no ranking; rank from 1."""
        return self._payloads.scored(row, self.index, Rank(score_raw, score_norm, rank, rank, None))

    def evidence(self, chunk: ScoredChunk, kind: EvidenceKind) -> Evidence | None:
        """Give a chunk its lines in the corpus document and its cite token; None for blank text.

        If the document does not have the text of the chunk at the chunk's offsets, the document is
        searched for the text. If the search fails, the chunk counts as a document of its own.
        """
        text = chunk.text
        if len(text) > MAX_EVIDENCE_CHARS:
            cut = text.rfind("\n", MAX_EVIDENCE_CHARS // 2, MAX_EVIDENCE_CHARS)
            text = text[: cut if cut > 0 else MAX_EVIDENCE_CHARS]
        if not text.strip():
            return None
        doc_id, start, whole = chunk.doc_id, chunk.offsets.start, self.text(chunk.doc_id)
        stands = chunk.offsets.unit == "char" and start >= 0
        if whole is not None and not (stands and whole.startswith(text, start)):
            start = whole.find(text)
        if whole is None or start < 0:
            start, first, last = 0, 1, 1 + text.count("\n", 0, len(text) - 1)
        else:
            first = self.line_of(doc_id, start)
            last = self.line_of(doc_id, start + len(text) - 1)
        offsets = Offsets(start, start + len(text))
        if offsets != chunk.offsets:
            window = None if whole is None else Window.around(start, start + len(text), len(whole))
            chunk = dataclasses.replace(chunk, text=text, offsets=offsets, window=window)
        return Evidence(cite_token(doc_id, first, last), chunk, kind, first, last)


# ---- The stored ranking of a strategy


def with_units(chunks: pd.DataFrame, units: pd.DataFrame) -> pd.DataFrame:
    """Append the units of an external retriever that have a place in a document to the chunks."""
    placed = units[(units["start"] >= 0) & (units["chunk"] < 0)]
    placed = placed.rename(columns={"unit_id": "chunk_id"}).reindex(columns=chunks.columns)
    return pd.concat([chunks, placed], ignore_index=True)


class StoredRetrieval:
    """Gives the stored ranking of a wording; each chunk has the payload that an answer can cite.

    `run` and `failed` are `strategy_run` frames of one seed. `variants` are the texts of the
    wordings in the order of the run.
    """

    def __init__(
        self,
        strategy: tuple[str, Identity],
        run: pd.DataFrame,
        failed: pd.DataFrame,
        payloads: Payloads,
        variants: list[str],
    ) -> None:
        (self._name, self._index), self._payloads = strategy, payloads
        self._rows = run.sort_values(["variant", "k_final"], kind="stable")
        self._bounds = np.searchsorted(self._rows["variant"], np.arange(len(variants) + 1))
        self._failed = set(failed["variant"])
        # the first of equal wordings
        self._variant_of = {text: at for at, text in reversed(list(enumerate(variants)))}

    def __call__(self, query: str, top_k: int) -> RetrievalResult | None:
        """Return the first top_k chunks of a wording; None after a failed retrieval."""
        variant = self._variant_of[query]
        if variant in self._failed:
            return None
        rows = self._rows.iloc[self._bounds[variant] : self._bounds[variant + 1]]
        chunks = []
        for row in rows.head(top_k).to_dict("records"):
            rerank = None if math.isnan(row["rerank_score"]) else row["rerank_score"]
            scores, ranks = (row["score_raw"], row["score_norm"]), (row["k_pos"], row["k_final"])
            rank = Rank(*scores, *ranks, rerank)
            chunks.append(self._payloads.scored(row["chunk"], self._index, rank))
        return RetrievalResult(tuple(chunks), RetrievalMetadata(self._name, 0.0, len(rows)))


# ---- Terms of grep

MAX_TERMS = 32
MAX_TERM_CHARS = 200

_MOST_SECTIONS = 2
"""Most sections of the first retrieved chunks that are read whole."""
_QUOTED = re.compile(
    r"`([^`\n]{1,200})`|\"([^\"\n]{1,200})\"|“([^”\n]{1,200})”|«([^»\n]{1,200})»"
    r"|(?<!\w)'([^'\n]{1,200})'(?!\w)"
)
_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*(?:\(\))?")
_INNER = re.compile(r"_|\.|\(\)|[a-z][A-Z]|[A-Za-z]\d|[A-Z]{2}")
_ABBREVIATION = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]")
_SENTENCE_START = re.compile(r"(?:^|[.!?:]\s+)[\"'“«(]*$")


def _find_names(text: str) -> Iterator[str]:
    """Yield identifiers, and capitalised words inside a sentence."""
    for match in _DOTTED.finditer(text):
        word = match[0]
        before = text[max(0, match.start() - 8) : match.start()]
        is_name = word[0].isupper() and len(word) > 1 and not _SENTENCE_START.search(before)
        if (_INNER.search(word) or is_name) and not _ABBREVIATION.fullmatch(word):
            yield word.removesuffix("()")


def _default_terms(question: str) -> tuple[str, ...]:
    """Return the quoted words and names of a question, each once, at most 32.

    Examples
    --------
    >>> _default_terms("How does DataFrame.sort_values() treat 'na_position' in Paris?")
    ('na_position', 'DataFrame.sort_values', 'Paris')
    """
    quoted_words = (next(filter(None, groups)).strip() for groups in _QUOTED.findall(question))
    terms = [*quoted_words, *_find_names(_QUOTED.sub(" ", question))]
    return tuple(dict.fromkeys(term[:MAX_TERM_CHARS] for term in terms if term))[:MAX_TERMS]


def _compile(term: str) -> re.Pattern[str]:
    """Compile a term so that it matches whole words, in any case unless it has a capital."""
    before = r"(?<!\w)" if term[0].isalnum() or term[0] == "_" else ""
    after = r"(?!\w)" if term[-1].isalnum() or term[-1] == "_" else ""
    has_capital = any(letter.isupper() for letter in term)
    return re.compile(before + re.escape(term) + after, 0 if has_capital else re.IGNORECASE)


# ---- Questions with their settings


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A gold question with its settings."""

    query_id: str
    text: str
    settings: Answers


def apply_override(config: Answers, override: AnswerOverride | None) -> Answers:
    """Return the settings of the gold set with the changes of one question."""
    changes = {name: value for name, value in override or () if value is not None}
    if "answer_mode" in changes:
        changes["mode"] = changes.pop("answer_mode")
    return config.model_copy(update=changes)


def list_questions(
    config: Answers, queries: pd.DataFrame, overrides: Mapping[str, AnswerOverride]
) -> list[Question]:
    """List the questions of a gold set, each with the settings of its answer."""
    return [
        Question(query_id, text, apply_override(config, overrides.get(query_id)))
        for query_id, text in queries[["query_id", "text"]].itertuples(index=False, name=None)
    ]


# ---- Preflights: `retrieve`, `grep` and `section`

Retriever = Callable[[str, int], RetrievalResult | None]
"""(query, top_k) -> result; None after a failed retrieval."""


@dataclasses.dataclass(frozen=True, slots=True)
class PreflightRecord:
    """One preflight of one question; `preflight.schema.json` describes the fields."""

    query_id: str
    question: str
    step: int
    kind: EvidenceKind
    parameters: dict[str, int | tuple[str, ...]]
    tokens: tuple[str, ...]
    hits: tuple[dict[str, Any], ...]
    filtered: dict[str, int]
    missing: tuple[str, ...]
    schema_version: int = 1


class Gathered(NamedTuple):
    """Evidence of one question, a record for each step, and the fault if gathering failed."""

    evidence: tuple[Evidence, ...] = ()
    records: tuple[PreflightRecord, ...] = ()
    fault: Fault | None = None


class _Findings(NamedTuple):
    """Chunks that one step found; `matched` holds the matches of grep in each chunk."""

    parameters: dict[str, int | tuple[str, ...]]
    chunks: Sequence[ScoredChunk]
    matched: Sequence[Sequence[str]] = ()
    filtered: Mapping[str, int] = {}
    missing: Sequence[str] = ()


def asks_for_ranking(step: Preflight) -> bool:
    """Tell whether a larger top_k can change the findings of a step."""
    return isinstance(step, Retrieve) or (isinstance(step, Section) and not step.sections)


class Preflights:
    """Runs preflights over one corpus with the ranking of one strategy, from any thread.

    Grep and section leave out chunks that `passes`, bool [n_chunks], does not mark: the trust
    filter withholds them. The ranking already lacks these chunks.
    """

    def __init__(self, library: Library, retrieve: Retriever, passes: BoolArray | None) -> None:
        self._library, self._retrieve, self._passes = library, retrieve, passes
        self._find_term = functools.cache(self._search_term)

    def gather(self, question: Question, log: Events, raised: int = 0) -> Gathered:
        """Run the steps of one question; keep the first of equal pieces of evidence.

        `raised` is the top_k of an adaptive rerun. A larger top_k of a step overrides it.
        """
        evidence: dict[tuple[str, Offsets, str], Evidence] = {}
        records: list[PreflightRecord] = []
        for place, step in enumerate(question.settings.preflights):
            facts: dict[str, str | int] = {
                "query_id": question.query_id,
                "step": place,
                "kind": step.kind,
            }
            log.add("preflight.step.start", **facts)
            ranked: tuple[ScoredChunk, ...] = ()
            depth = max(getattr(step, "top_k", None) or question.settings.top_k, raised)
            if asks_for_ranking(step):
                result = self._retrieve(question.text, depth)
                if result is None:
                    fault = Fault("retrieval_error", "retrieval failed for this question.")
                    return Gathered((), tuple(records), fault)
                ranked = result.chunks[:depth]
            if isinstance(step, Grep):
                findings = self._grep(question, step)
            elif isinstance(step, Section):
                findings = self._take_sections(step, ranked)
            else:
                findings = _Findings({"top_k": depth}, ranked)
            items, record = self._record(question, place, step, findings)
            records.append(record)
            for item in items:
                evidence.setdefault((item.chunk.doc_id, item.chunk.offsets, item.chunk.text), item)
            if not items:
                missing = len(findings.missing)
                log.add("preflight.step.filtered_to_zero", **facts, missing=missing)
        return Gathered(tuple(evidence.values()), tuple(records))

    def _drop_withheld(self, rows: Sequence[int]) -> tuple[list[int], int]:
        """Return the rows that the trust filter lets through, and the number of the others."""
        allowed = [row for row in rows if self._passes is None or bool(self._passes[row])]
        return allowed, len(rows) - len(allowed)

    def _search_term(self, term: str) -> list[int]:
        """Return the rows of the chunks that have a term."""
        lowered, search = term.lower(), _compile(term).search
        texts = enumerate(self._library.texts)
        return [row for row, text in texts if lowered in text.lower() and search(text)]

    def _grep(self, question: Question, step: Grep) -> _Findings:
        """Rank chunks by the summed idf of their matches; ties keep the chunks' order."""
        terms = step.terms or _default_terms(question.text)
        rows_of = {term: self._find_term(term) for term in terms}
        scores: dict[int, float] = {}
        matched: dict[int, list[str]] = {}
        best = 0.0
        for term, rows in rows_of.items():
            weight = math.log1p(len(self._library.texts) / len(rows)) if rows else 0.0
            best += weight
            for row in rows:
                scores[row] = scores.get(row, 0.0) + weight
                matched.setdefault(row, []).append(term)
        ranked = sorted(scores, key=lambda row: (-scores[row], row))
        # remove withheld chunks before the cut, so that they displace no other chunk
        allowed, n_withheld = self._drop_withheld(ranked)
        taken = allowed[: step.max_hits]
        chunks = [
            self._library.payload(row, rank, scores[row], scores[row] / best)
            for rank, row in enumerate(taken, 1)
        ]
        return _Findings(
            {"terms": terms, "max_hits": step.max_hits},
            chunks,
            [matched[row] for row in taken],
            {"over_max_hits": len(allowed) - len(taken), "withheld": n_withheld},
            [term for term, rows in rows_of.items() if not rows],
        )

    def _take_sections(self, step: Section, ranked: Sequence[ScoredChunk]) -> _Findings:
        """Take the chunks of the named sections, or of the first sections of the ranking."""
        ranking = {chunk.snippet_id: chunk for chunk in ranked}
        wanted = step.sections or tuple(dict.fromkeys(chunk.section_id for chunk in ranked))
        taken = wanted if step.sections else wanted[:_MOST_SECTIONS]
        chunks: list[ScoredChunk] = []
        missing, withheld = [], 0
        for section in taken:
            rows = self._library.section_rows(section)
            if rows is None:  # the section is from an outside retriever or was deleted
                alike = [chunk for chunk in ranked if chunk.section_id == section]
                chunks += alike
                missing += [] if alike else [section]
                continue
            allowed, n_withheld = self._drop_withheld(rows)
            withheld += n_withheld
            for row in allowed:
                chunk = self._library.payload(row, len(chunks) + 1, 1.0, 1.0)
                chunks.append(ranking.get(chunk.snippet_id, chunk))
        return _Findings(
            {"sections": step.sections, "max_sections": _MOST_SECTIONS},
            chunks,
            filtered={"over_max_sections": len(wanted) - len(taken), "withheld": withheld},
            missing=missing,
        )

    def _record(
        self, question: Question, place: int, step: Preflight, findings: _Findings
    ) -> tuple[list[Evidence], PreflightRecord]:
        """Make the evidence of a step, and its record."""
        evidence, hits = [], []
        matches = findings.matched or [()] * len(findings.chunks)
        for chunk, matched in zip(findings.chunks, matches, strict=True):
            item = self._library.evidence(chunk, step.kind)
            if item is None:
                continue
            evidence.append(item)
            hit = {"token": item.token, "start": item.chunk.offsets.start}
            hit |= {"end": item.chunk.offsets.end, "matched": tuple(matched)}
            names = ("doc_id", "section_id", "snippet_id", "rev", "k_final")
            raw = item.chunk.score_raw
            hit["score_raw"] = round(raw, 9) if math.isfinite(raw) else None
            hits.append(hit | {name: getattr(item.chunk, name) for name in names})
        filtered = {"blank": len(findings.chunks) - len(evidence), **findings.filtered}
        record = PreflightRecord(
            question.query_id,
            question.text,
            place,
            step.kind,
            findings.parameters,
            tuple(dict.fromkeys(item.token for item in evidence)),
            tuple(hits),
            {name: n for name, n in filtered.items() if n or name != "withheld"},
            tuple(findings.missing),
        )
        return evidence, record
