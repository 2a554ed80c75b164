"""The kind `external`: the user's own retriever, or rankings that were made beforehand.

A source is asked over HTTP or through an imported object, or its lists are read from a file. The
items that it retrieves are placed in the corpus as units.
"""

import dataclasses
import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field, ValidationError, model_validator

from rag_eval.core.errors import InputError, ProblemList, quoted
from rag_eval.core.fields import decode_id
from rag_eval.core.frames import Column, FrameSchema, make_frame
from rag_eval.core.parts import FOREIGN, Name
from rag_eval.core.rows import read_lines
from rag_eval.core.settings import ExternalLimits, Settings
from rag_eval.core.strategy import Identity, IdentityInputs
from rag_eval.core.types import Level, RetrievalOptions
from rag_eval.corpus.loaders.recorded import read_outputs
from rag_eval.corpus.masking import mask
from rag_eval.gold.files import ORIGINAL
from rag_eval.gold.resolving import Catalogue
from rag_eval.retrieval.outside import (
    Advance,
    Item,
    Outcome,
    Outside,
    QueryError,
    Replies,
    Retrieved,
    Source,
    SourceKind,
    WebClient,
    describe_first,
    failed_note,
    parse_reply,
)
from rag_eval.retrieval.ranking import Ranking, ranking, scale_min_max
from rag_eval.storage.hashing import digest, file_hash


class External(Outside):
    """A strategy whose rankings come from a named source, a TREC run, or recorded outputs.

    The settings map the name of a source to an import path or URL.
    """

    kind: Literal["external"]
    source: Name | None = Field(default=None, description="a name under `sources` of the settings")
    run_file: str | None = Field(default=None, description="a TREC run; relative to the gold set")
    recorded: str | None = Field(
        default=None,
        description="recorded outputs (JSONL); their contexts, in order, are the ranking",
    )

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if sum(way is not None for way in (self.source, self.run_file, self.recorded)) != 1:
            raise ValueError("give exactly one of source, run_file and recorded")
        return self

    def files(self) -> dict[str, str]:
        """Return the run file or the recorded outputs."""
        paths = {"run_file": self.run_file, "recorded": self.recorded}
        return {field: path for field, path in paths.items() if path is not None}

    @property
    def store_name(self) -> str:
        """Name the source."""
        return f"external:{self.source or 'file'}"

    def identity(self, inputs: IdentityInputs) -> Identity:
        """Hash the source's name, its kind, the statements of a port, and the content of a file.

        The address does not count, because a service that moves stays the same. The version of a
        service does not count, because it is only known after a query.
        """
        kind = self.source_kind(inputs.settings)
        content = file_hash(self.list_path(inputs.folder)) if self.files() else ""
        corpus_facts = dict(inputs.stated())
        return Identity(f"external:{digest([self.source or '', kind, corpus_facts, content])}", "")

    def source_kind(self, settings: Settings) -> SourceKind:
        """Name the kind of the source. Raises `InputError` (`unknown_source`)."""
        if self.source is None:
            return "recorded" if self.run_file is None else "run_file"
        address = settings.sources.get(self.source)
        if address is None:
            raise InputError.of(
                "unknown_source",
                f"the settings enable no source of this name, which strategy {self.name} asks for",
                field="source",
                found=self.source,
                accepted=(", ".join(sorted(settings.sources)) or "none is enabled")
                + " (enable one with RAG_EVAL_SOURCES or under [sources] of settings.toml)",
            )
        return "http" if address.startswith(("http://", "https://")) else "import"

    def open_source(self, settings: Settings) -> Source:
        """Open the endpoint or the imported object of the name."""
        kind, name = self.source_kind(settings), self.source or ""
        address = settings.sources[name]
        if kind == "http":
            return HttpSource(address, settings.external)
        return PortSource.load(name, address, settings.external)

    def list_path(self, folder: Path) -> Path:
        """Path of the run file or recorded outputs. Raises `InputError` (`missing_file`)."""
        ((field, name),) = self.files().items()
        path = folder / name
        if not path.is_file():
            message, accepted = (
                f"strategy {self.name}: no such file",
                "a path relative to the gold set",
            )
            raise InputError.of(
                "missing_file", message, path, field=field, found=name, accepted=accepted
            )
        return path

    def read_lists(
        self, folder: Path, variants: pd.DataFrame, top_k: int, warnings: ProblemList
    ) -> Replies:
        """Read the rankings of the file. Raises `InputError` when it cannot be used.

        A wording without a row of a run retrieved nothing, because run files leave empty rankings
        out. A question without a recorded output failed. `warnings` gets what recorded outputs
        lack.
        """
        path = self.list_path(folder)
        if self.run_file is not None:
            return match_lists(read_run(path, variants), variants, top_k, Retrieved(()))
        lacking = QueryError("not_recorded", "the recorded outputs lack the question")
        return match_lists(_read_recorded(path, warnings), variants, top_k, lacking)


# ---- HTTP: `POST {query, top_k}`.


class HttpSource(Source):
    """A retriever behind an endpoint of its own."""

    def __init__(self, url: str, limits: ExternalLimits) -> None:
        super().__init__(limits)
        self._web = WebClient(url, limits)
        self._version: str | None = None

    def close(self) -> None:
        """Close the connections. The next query opens new ones."""
        self._web.close()

    def ask_version(self, query: str) -> str:
        """Ask one query to learn the version of the source, once; empty when it states none."""
        if self._version is None:
            try:
                self._version = self.ask_one(query, 1).version
            except QueryError:
                self._version = ""
            self.close()  # A reused run asks no further query.
        return self._version

    def ask_one(self, query: str, top_k: int) -> Retrieved:
        """Ask once, without a retry. Raises `QueryError`."""
        body = {"query": query, "top_k": top_k}
        return parse_reply(self._web.send("POST", self._web.url, body), top_k)


# ---- An imported RetrievalPort, which is foreign code.

METHODS = ("retrieve", "batch_retrieve", "stats")
VERSION = 1
BATCH = 64
"""Number of queries in a call of `batch_retrieve`. A failed batch is asked one by one."""


class PortSource(Source):
    """A port that `load` imported. It is asked without threads, as it may not allow them."""

    def __init__(self, port: Any, limits: ExternalLimits) -> None:
        super().__init__(limits)
        self.port = port
        names = ("corpus_rev", "chunks_hash", "embed_model", "index_hashes")
        try:
            stats = port.stats()
            facts = {name: str(value) for name in names if (value := getattr(stats, name, None))}
        except FOREIGN:
            facts = {}
        self.stated = facts
        self.embed_model = quoted(facts.get("embed_model", ""), 200)

    @classmethod
    def load(cls, name: str, path: str, limits: ExternalLimits) -> "PortSource":
        """Import a RetrievalPort: an object, or a class or function without required arguments.

        Raises `InputError` (`source_unusable`) when it cannot be loaded or is no port.
        """
        module, attribute = path.split(":")
        try:
            port: Any = getattr(importlib.import_module(module), attribute)
            if isinstance(port, type) or (callable(port) and not hasattr(port, "retrieve")):
                port = port()
            version = getattr(port, "version", None)
            lacks = [method for method in METHODS if not callable(getattr(port, method, None))]
            if lacks or type(version) is not int or version != VERSION:
                raise TypeError(f"without {', '.join(lacks)}" if lacks else f"version {version!r}")
            return cls(port, limits)
        except FOREIGN as error:
            raise InputError.of(
                "source_unusable",
                f"the source {quoted(name)} cannot be loaded as a RetrievalPort",
                "settings",
                field="sources",
                found=f"{path}: {type(error).__name__}: {error}",
                accepted=f"version {VERSION} with {', '.join(METHODS)}",
            ) from error

    def ask_version(self, query: str) -> str:  # noqa: ARG002 - no query is needed
        """Return a hash of the stats; empty without them."""
        return digest(self.stated) if self.stated else ""

    def ask_one(self, query: str, top_k: int) -> Retrieved:
        """Ask through `retrieve`. Raises `QueryError`."""
        try:
            result = self.port.retrieve(query, RetrievalOptions(top_k=top_k))
        except FOREIGN as error:
            raise QueryError("raised", f"{type(error).__name__}: {error}") from error
        return parse_reply(result, top_k)

    def ask_all(
        self, queries: Sequence[str], top_k: int, advance: Advance
    ) -> list[Retrieved | QueryError]:
        """Ask through `batch_retrieve`.

        A batch that raises, or has a faulty result or another length, is asked one by one, so that
        only the faulty queries fail.
        """
        outcomes: list[Retrieved | QueryError] = []
        for start in range(0, len(queries), BATCH):
            batch = list(queries[start : start + BATCH])
            try:
                results = self.port.batch_retrieve(batch, RetrievalOptions(top_k=top_k))
                pairs = zip(batch, results, strict=True)
                outcomes += [parse_reply(result, top_k) for _, result in pairs]
            except FOREIGN:
                outcomes += [self.ask_again(query, top_k) for query in batch]
            failed = sum(isinstance(outcome, QueryError) for outcome in outcomes)
            advance(len(batch), failed_note(failed))
        return outcomes


# ---- Lists that were made beforehand: recorded outputs, or a TREC run.

Key = tuple[str, str]
"""Key of a wording: (query_id, paraphrase_id)."""


def match_lists(
    lists: Mapping[Key, Retrieved | QueryError],
    variants: pd.DataFrame,
    top_k: int,
    missing: Retrieved | QueryError,
) -> Replies:
    """Give every wording (VARIANTS) its list, cut at `top_k`; `missing` where it has none.

    If no paraphrase has a list, the source was not run on paraphrases.
    """
    keys = list(zip(variants["query_id"].tolist(), variants["paraphrase_id"].tolist(), strict=True))
    paraphrases = {key for key in keys if key[1] != ORIGINAL}
    original_only = bool(paraphrases) and paraphrases.isdisjoint(lists)
    ran = [key for key in keys if not original_only or key not in paraphrases]
    list_of = {key: lists.get(key, missing) for key in ran}
    outcomes = [
        Retrieved(outcome.items[:top_k]) if isinstance(outcome, Retrieved) else outcome
        for outcome in map(list_of.get, keys)
    ]
    without, others = sum(key not in lists for key in ran), len(set(lists) - set(keys))
    notes = {
        "evaluated on the questions' original wordings only: "
        "there is no list for any paraphrase": original_only,
        f"{without} of {len(ran)} wordings have no row and count as having retrieved nothing": (
            without and isinstance(missing, Retrieved)
        ),
        f"{others} rankings belong to no question of the gold set and were left out": others,
    }
    shown = [note for note, applies in notes.items() if applies]
    return Replies(outcomes, shown, original_only=original_only)


def _read_recorded(path: Path, warnings: ProblemList) -> dict[Key, Retrieved | QueryError]:
    """Read rankings of recorded outputs: the recorded order, a missing score becomes 1 / rank.

    An output with an error and without contexts is a failed retrieval.
    """
    outputs = read_outputs(path, warnings)
    lists: dict[Key, Retrieved | QueryError] = {}
    for output in outputs:
        key = (output.query_id, ORIGINAL)
        if output.error and not output.contexts:
            lists[key] = QueryError("recorded_error", output.error)
            continue
        scores: dict[tuple[str, str], float | None] = {}  # a repeated passage keeps its first place
        for item in output.contexts:
            scores.setdefault((item.document, item.text), item.score)
        chunks = [
            {"doc_id": name, "text": text, "score": 1 / place if score is None else score}
            for place, ((name, text), score) in enumerate(scores.items(), start=1)
        ]
        try:
            lists[key] = parse_reply({"chunks": chunks}, len(chunks))
        except QueryError as error:
            lists[key] = error.with_traceback(None)
    return lists


ACCEPTED = "qid Q0 docno rank score tag, separated by white space"


def read_run(path: Path, variants: pd.DataFrame) -> dict[Key, Retrieved | QueryError]:
    """Read the rankings of a TREC run by (query_id, paraphrase_id).

    A qid is `query_id` for the original wording, or `query_id/paraphrase_id`. Percent-encoded ids,
    as our exports write them, are decoded. As in trec_eval, rows are ordered by score, then by rank
    and docno. Rows of other queries get the key (qid, ""), to be counted. Raises `InputError` with
    every faulty line: `bad_row`, `other_queries`, and those of `read_lines`.
    """
    problems = ProblemList()
    keys = zip(variants["query_id"].tolist(), variants["paraphrase_id"].tolist(), strict=True)
    wordings = {"/".join(key): key for key in keys}
    wordings |= {query: (query, ORIGINAL) for query, _ in list(wordings.values())}
    rows: dict[Key, list[tuple[float, int, str, Item]]] = {}
    for line, text in read_lines(path, problems):
        try:
            qid, _, docno, rank, score, _ = text.split()
            item = Item.model_validate({"id": docno, "score": score})
            row = (-item.score, int(rank), docno, item)
        except ValueError as error:
            why = describe_first(error) if isinstance(error, ValidationError) else str(error)
            problems.add(
                "bad_row",
                f"not a row of a run: {why}",
                file=str(path),
                line=line,
                found=quoted(text),
                accepted=ACCEPTED,
            )
            continue
        key = wordings.get(qid) or wordings.get(decode_id(qid)) or (qid, "")
        rows.setdefault(key, []).append(row)
    if not problems.n_errors and not any(paraphrase for _, paraphrase in rows):
        problems.add(
            "other_queries",
            "no row is about a question of this gold set",
            file=str(path),
            found=", ".join(quoted(query, 40) for query, _ in list(rows)[:3]) or "no row",
            accepted=f"query_id or query_id/paraphrase_id as qid of {ACCEPTED}",
        )
    problems.raise_errors()
    return {
        key: Retrieved(tuple(item for *_, item in sorted(ranked, key=lambda row: row[:3])))
        for key, ranked in rows.items()
    }


# ---- Units: the retrieved items with their places in the corpus.

UNITS = FrameSchema(
    "units",
    {
        "unit_id": Column("str", "the id that the source gave"),
        "doc_id": Column("str", "the document; an unknown id is kept as given"),
        "section_id": Column("str", "the section; empty where unknown"),
        "start": Column("int", "first character in the document's text; -1 where unknown"),
        "end": Column("int", "one past the last character; -1 where unknown"),
        "text": Column("str", "the text of the place, else as the source gave it, masked"),
        "chunk": Column("int", "row of the chunks frame where it is one of our chunks; else -1"),
        "known": Column("bool", "whether the corpus has the document"),
        "returned": Column("str", "text of the source, masked, where it differs from the corpus"),
    },
)


class _Unit(NamedTuple):
    """A row of UNITS. Items that give equal units, whatever their id, are one unit."""

    unit_id: str
    doc_id: str
    section_id: str = ""
    start: int = -1
    end: int = -1
    text: str = ""
    chunk: int = -1
    known: bool = True
    returned: str = ""


class _Corpus:
    """DOCUMENTS, SECTIONS and CHUNKS, with the names that the items of a source give."""

    def __init__(
        self,
        documents: pd.DataFrame,
        sections: pd.DataFrame,
        chunks: pd.DataFrame,
        items: Sequence[Item],
    ) -> None:
        catalogue = Catalogue(documents, sections)
        names = list(dict.fromkeys(name for item in items for name in _names(item)))
        located = catalogue.find(names)
        places = zip(located.document.tolist(), located.section.tolist(), strict=True)
        self._place_of = dict(zip(names, places, strict=True))
        self._doc_ids: list[str] = documents["doc_id"].tolist()
        self._texts: list[str] = documents["text"].tolist()
        self._section_ids: list[str] = sections["section_id"].tolist()
        self._bounds = list(zip(sections["start"].tolist(), sections["end"].tolist(), strict=True))
        self._sections_of: dict[int, list[int]] = {}
        for row, owner in enumerate(catalogue.section_document.tolist()):
            self._sections_of.setdefault(owner, []).append(row)
        columns = ("chunk_id", "doc_id", "section_id", "start", "end", "text")
        rows = zip(*(chunks[name].tolist() for name in columns), strict=True)
        units = [_Unit(*row)._replace(chunk=chunk) for chunk, row in enumerate(rows)]
        self._chunk_of = {unit.unit_id: unit for unit in units}
        self._chunk_at = {(unit.doc_id, unit.start, unit.end): unit for unit in units}

    def place(self, item: Item) -> _Unit:
        """Place an item: by our chunk id, else by the document, section, offsets or text."""
        masked = mask(item.text).text
        unit = self._chunk_of.get(item.id) or self._place_by_name(item, masked)
        returned = _other_words(item.text, masked, unit.text) if unit.start >= 0 else ""
        return unit._replace(unit_id=item.name, returned=returned)

    def _place_by_name(self, item: Item, masked: str) -> _Unit:
        places = [self._place_of[name] for name in _names(item)]
        document = next((document for document, _ in places if document >= 0), -1)
        if document < 0:
            return _Unit(item.name, item.doc_id or item.name, known=False, text=masked)
        # A section of another document is ignored.
        in_document = (section for owner, section in places if section >= 0 and owner == document)
        section = next(in_document, -1)
        # The corpus may be masked, and a source is not.
        start, end = self._find_place(item, (item.text, masked), document, section)
        doc_id = self._doc_ids[document]
        if (unit := self._chunk_at.get((doc_id, start, end))) is not None:
            return unit
        if section < 0:
            section = self._section_at(document, start)
        text = self._texts[document][start:end] if start >= 0 else masked
        section_id = self._section_ids[section] if section >= 0 else ""
        return _Unit(item.name, doc_id, section_id, start, end, text)

    def _find_place(
        self, item: Item, texts: Sequence[str], document: int, section: int
    ) -> tuple[int, int]:
        """Place an item by its offsets, else where a text is found; (-1, -1) for neither."""
        whole, at = self._texts[document], item.offsets
        # Offsets in tokens do not give a place in the text.
        if at is not None and at.unit == "char" and 0 <= at.start < at.end <= len(whole):
            return at.start, at.end
        low, high = self._bounds[section] if section >= 0 else (0, len(whole))
        for text in filter(None, dict.fromkeys(text.strip() for text in texts)):
            start = max(whole.find(text, low, high), whole.find(text))
            if start >= 0:
                return start, start + len(text)
            words = re.search(r"\s+".join(map(re.escape, text.split())), whole)
            if words is not None:  # with other white space between the words
                return words.span()
        return -1, -1

    def _section_at(self, document: int, start: int) -> int:
        """Return the section of a place, or the only section of the document; -1 for none."""
        rows = self._sections_of.get(document, [])
        if len(rows) == 1:
            return rows[0]
        bounds = [(*self._bounds[row], row) for row in rows]
        around = [(high - low, row) for low, high, row in bounds if low <= start < high]
        return min(around, default=(0, -1))[1]


def _names(item: Item) -> list[str]:
    """List the names of an item, documents first; TREC runs have percent-encoded names."""
    names = (item.doc_id, item.id)
    return [*names, *map(decode_id, names), item.section_id]


def _other_words(returned: str, masked: str, place: str) -> str:
    """Return the masked text of a source when it differs from the text of its place, else "".

    A part of the place's text, other white space, and masks count as no difference.
    """
    corpus_text, plain, hidden = (
        " ".join(text.split()) for text in (f"{place}\n{mask(place).text}", returned, masked)
    )
    return "" if plain in corpus_text or hidden in corpus_text else masked


PLACED_SHARE = 0.95
"""Least share of the retrieved units with a section, or with a place for the span level.

A level with a smaller share is not measured. At a measured level, a unit without a section or place
counts as a miss.
"""


@dataclasses.dataclass(frozen=True)
class Placed:
    """Rankings over the units of one source."""

    ranking: Ranking
    """Ranking of rows of `units`; each unit occurs once, at its best place."""
    units: pd.DataFrame
    ran: npt.NDArray[np.bool_]
    """[n]: whether the source was run on the wording."""

    @classmethod
    def of(
        cls,
        outcomes: Sequence[Outcome],
        documents: pd.DataFrame,
        sections: pd.DataFrame,
        chunks: pd.DataFrame,
        depth: int,
    ) -> "Placed":
        """Place the items of n wordings in the corpus, as one ranking of n rows over units.

        The guard reads what the source returned: an item whose text differs from the corpus is a
        unit of its own.
        """
        scored = [
            [(item.model_copy(update={"score": 0.0}), item.score) for item in outcome.items]
            if isinstance(outcome, Retrieved)
            else []
            for outcome in outcomes
        ]
        distinct = list(dict.fromkeys(item for items in scored for item, _ in items))
        corpus = _Corpus(documents, sections, chunks, distinct)
        unit_of = {item: corpus.place(item) for item in distinct}
        row_of: dict[tuple[object, ...], int] = {}
        units: list[_Unit] = []
        rows = np.full((len(outcomes), depth), -1, dtype=np.int32)
        raw = np.full((len(outcomes), depth), -np.inf)
        for query, items in enumerate(scored):
            best: dict[int, float] = {}
            for item, score in items:
                unit = unit_of[item]
                row = row_of.setdefault(unit[1:], len(units))
                if row == len(units):
                    units.append(unit)
                best.setdefault(row, score)
            top = list(best.items())[:depth]
            rows[query, : len(top)] = [row for row, _ in top]
            raw[query, : len(top)] = [score for _, score in top]
        failed = [isinstance(outcome, QueryError) for outcome in outcomes]
        placed = dataclasses.replace(
            ranking(rows, raw, scale_min_max(raw)),
            failed=np.array(failed, dtype=bool),
            failure=next((str(error) for error in outcomes if isinstance(error, QueryError)), None),
        )
        ran = np.array([outcome is not None for outcome in outcomes], dtype=bool)
        return cls(placed, make_frame(UNITS, units), ran)

    def unmeasured_levels(self) -> dict[Level, str]:
        """Find the levels at which the units cannot be judged, with the reason.

        Documents can always be judged, because an unknown document is not relevant.
        """
        retrieved = self.units.iloc[self.ranking.rows[self.ranking.has_chunk]]
        in_corpus = retrieved[retrieved["known"]]
        parts: tuple[tuple[Level, str, pd.Series], ...] = (
            ("section", "section", in_corpus["section_id"] == ""),
            ("span", "place in its document", in_corpus["start"] < 0),
        )
        reasons: dict[Level, str] = {}
        for level, what, lacks in parts:
            if in_corpus.empty:
                reasons[level] = (
                    f"nothing was retrieved that the corpus knows, so nothing has a {what}"
                )
            elif lacks.sum() > (1 - PLACED_SHARE) * len(in_corpus):
                reasons[level] = (
                    f"the source names no {what} for {lacks.sum()} of {len(in_corpus)} retrieved "
                    "units, by id, offsets or text; "
                    f"at least {PLACED_SHARE:.0%} must have one"
                )
        return reasons
