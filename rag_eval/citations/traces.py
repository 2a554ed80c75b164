"""Traces: for each question and segment what was cited, on which index, at which ranks. As log lines and as rows of `rag_traces`.

Belongs here: the record, its two forms and their writers. A missing value is `-` in a line and null in a row; an empty text is a missing
one. In a line everything but plain characters stands in JSON quotes with whatever does not print escaped, so that no value can break a
line, forge a second one or reorder what a person sees.
"""

import dataclasses
import hashlib
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.storage.atomic import atomic_path
from rag_eval.storage.sql import SqlStore
from rag_eval.storage.sql_tables import ColumnSpec, Kind, TableSpec

MAX_TEXT = 600
"""Characters of a text; a longer one keeps its head and gets its hash as tail, so that different texts stay different."""
MAX_ITEMS = 1_000
"""Items of a list; what comes after is left out."""
MISSING = "-"


def _bounded(text: str) -> str:
    return (
        text
        if len(text) <= MAX_TEXT
        else f"{text[: MAX_TEXT - 33]}…{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
    )


def _texts(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(_bounded, values[:MAX_ITEMS]))


def _numbers(values: Sequence[float | None]) -> tuple[float | None, ...]:
    return tuple(
        [
            None if value is None or not math.isfinite(value) else float(value) + 0.0
            for value in values[:MAX_ITEMS]
        ]
    )


def _integers(values: Sequence[int | None]) -> tuple[int | None, ...]:
    return tuple([None if value is None else int(value) for value in values[:MAX_ITEMS]])


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """What one segment of one answer rests on. Texts and lists are bounded and numbers that are not finite become None, -0.0 becomes 0.0, when it is made.

    Parameters
    ----------
    ts
        UTC, ISO 8601.
    qid, seg
        The question, and the number of the answer's segment from 0; -1 for the answer as a whole.
    delta_s
        1 - cosine between the question and its evidence; None where it was not measured.
    lambda_state
        convergent, divergent, recursive, chaotic or undefined; empty where unknown.
    k
        Chunks asked for; stands in the line only.
    store
        What held the vectors or postings.
    index_hash, embed_model, analyzer
        What the index was made from; `analyzer` stands in the row only.
    section_id, rev
        Section and revision of what is cited.
    citations, scores, kpos, kfinal
        What is cited, and its scores and ranks before and after reranking.
    run_id, strategy, paraphrase_id, seed
        Which answer of which run; stand in the row only.
    """

    ts: str
    qid: str
    seg: int
    delta_s: float | None = None
    lambda_state: str = ""
    k: int | None = None
    store: str = ""
    index_hash: str = ""
    embed_model: str = ""
    analyzer: str = ""
    section_id: str = ""
    rev: str = ""
    citations: tuple[str, ...] = ()
    scores: tuple[float | None, ...] = ()
    kpos: tuple[int | None, ...] = ()
    kfinal: tuple[int | None, ...] = ()
    run_id: str = ""
    strategy: str = ""
    paraphrase_id: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        """Bound the texts and lists and make plain Python numbers."""
        for name in _TEXT_FIELDS:
            text = getattr(self, name)
            if len(text) > MAX_TEXT:
                object.__setattr__(self, name, _bounded(text))
        for name in ("seg", "seed", "k"):
            number = getattr(self, name)
            if number is not None and type(number) is not int:
                object.__setattr__(self, name, int(number))
        if self.delta_s is not None:
            object.__setattr__(self, "delta_s", _numbers([self.delta_s])[0])
        for name, plain in _LISTS.items():
            object.__setattr__(self, name, plain(getattr(self, name)))


_TEXT_FIELDS = (
    "ts",
    "qid",
    "lambda_state",
    "store",
    "index_hash",
    "embed_model",
    "analyzer",
    "section_id",
    "rev",
    "run_id",
    "strategy",
    "paraphrase_id",
)
_LISTS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "citations": _texts,
    "scores": _numbers,
    "kpos": _integers,
    "kfinal": _integers,
}

_LINE: dict[str, tuple[str, Callable[[str], Any]]] = {
    "ts": ("ts", str),
    "qid": ("qid", str),
    "seg": ("seg", int),
    "deltaS": ("delta_s", float),
    "lambda": ("lambda_state", str),
    "k": ("k", int),
    "store": ("store", str),
    "index_hash": ("index_hash", str),
    "embed": ("embed_model", str),
    "citations": ("citations", str),
    "scores": ("scores", float),
    "kpos": ("kpos", int),
    "kfinal": ("kfinal", int),
    "section_id": ("section_id", str),
    "rev": ("rev", str),
}
"""Key of the line -> field of the record and the type of its value or items."""

_ROW: dict[str, tuple[str, Kind]] = {
    "ts": ("ts", "text"),
    "qid": ("qid", "text"),
    "seg": ("seg", "integer"),
    "deltaS": ("delta_s", "float"),
    "lambda_state": ("lambda_state", "text"),
    "store": ("store", "text"),
    "index_hash": ("index_hash", "text"),
    "embed_model": ("embed_model", "text"),
    "analyzer": ("analyzer", "text"),
    "section_id": ("section_id", "text"),
    "rev": ("rev", "text"),
    "citations": ("citations", "json"),
    "scores": ("scores", "json"),
    "kpos": ("kpos", "json"),
    "kfinal": ("kfinal", "json"),
    "run_id": ("run_id", "text"),
    "strategy": ("strategy", "text"),
    "paraphrase_id": ("paraphrase_id", "text"),
    "seed": ("seed", "integer"),
}
"""Column of the table -> field of the record and kind."""

_OF_ROW = operator.attrgetter(*(field for field, _ in _ROW.values()))
_KEY = ("run_id", "strategy", "qid", "paraphrase_id", "seed", "seg")

RAG_TRACES = TableSpec(
    "rag_traces",
    tuple(ColumnSpec(name, kind, required=name in _KEY) for name, (_, kind) in _ROW.items()),
    indexes=(("run_id",), ("qid",)),
)

_BARE = r"[A-Za-z0-9_./:#@+-]+"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_VALUE = f"(?:{_BARE}|{_QUOTED})"
_PLAIN = re.compile(_BARE)
_ITEM = re.compile(_VALUE)
_FIELDS = re.compile(
    " ".join(
        f"{key}="
        + (
            rf"(?P<{field}>\[(?:{_VALUE}(?:,{_VALUE})*)?\])"
            if field in _LISTS
            else f"(?P<{field}>{_VALUE})"
        )
        for key, (field, _) in _LINE.items()
    )
)


def _token(value: object) -> str:
    """A value as it stands in a line."""
    if value is None or value == "":
        return MISSING
    if not isinstance(value, str):
        return repr(value)
    if _PLAIN.fullmatch(value) and value != MISSING:
        return value
    text = json.dumps(value, ensure_ascii=False)
    # JSON leaves separators, bidi controls and whatever else does not print as it is
    return (
        text
        if text.isprintable()
        else "".join(
            [letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text]
        )
    )


def _value(token: str, kind: Callable[[str], Any]) -> Any:
    if token == MISSING:
        return "" if kind is str else None
    return kind(json.loads(token) if token.startswith('"') else token)


def line(trace: Trace) -> str:
    r"""Write the trace as one line without its line end, keys in the contract's order.

    Examples
    --------
    >>> print(line(Trace("2026-01-31T02:00:00Z", "q 1", 0, citations=("a.md:3-4", "x\ny"), scores=(0.5, None), kpos=(1, 7))))
    ts=2026-01-31T02:00:00Z qid="q 1" seg=0 deltaS=- lambda=- k=- store=- index_hash=- embed=- citations=[a.md:3-4,"x\ny"] scores=[0.5,-] kpos=[1,7] kfinal=[] section_id=- rev=-
    """
    parts = []
    for key, (field, _) in _LINE.items():
        value = getattr(trace, field)
        parts.append(
            f"{key}=[{','.join(map(_token, value))}]"
            if field in _LISTS
            else f"{key}={_token(value)}"
        )
    return " ".join(parts)


def parse(text: str) -> dict[str, Any]:
    """Read a line back: the record's fields that a line carries, equal to those of the trace it was made from.

    Raises
    ------
    InputError
        `bad_trace_line`: this is not a line of `line`.
    """
    found = _FIELDS.fullmatch(text)
    try:
        if found is not None:
            return {
                field: tuple(_value(item, kind) for item in _ITEM.findall(found[field][1:-1]))
                if field in _LISTS
                else _value(found[field], kind)
                for field, kind in _LINE.values()
            }
    except ValueError:  # not a number, or not JSON
        pass
    raise InputError(
        Problem(
            "bad_trace_line",
            "this is not a trace",
            found=quoted(text),
            accepted=" ".join(f"{key}=..." for key in _LINE),
        )
    )


def row(trace: Trace) -> tuple[Any, ...]:
    """The trace as a row of `RAG_TRACES`; empty texts are null except in the key."""
    values: tuple[Any, ...] = _OF_ROW(trace)
    return (
        tuple(
            [
                None if value == "" and name not in _KEY else value
                for name, value in zip(_ROW, values, strict=True)
            ]
        )
        if "" in values
        else values
    )


def write_traces(store: SqlStore, traces: Sequence[Trace]) -> int:
    """Write all traces of a run's strategies in one transaction, in place of what an earlier try of the same run left; returns how many.

    What is replaced are the rows of every (run_id, strategy) that stands in `traces`: give all traces of a strategy at once.

    Raises
    ------
    ValueError
        Two traces have the same run_id, strategy, qid, paraphrase_id, seed and seg.
    InputError
        The database cannot be used, or its table has other columns.
    """
    if len(
        {
            (trace.run_id, trace.strategy, trace.qid, trace.paraphrase_id, trace.seed, trace.seg)
            for trace in traces
        }
    ) != len(traces):
        raise ValueError("two traces of one run, strategy, wording, seed and segment")
    store.create(RAG_TRACES)
    owned = sorted({(trace.run_id, trace.strategy) for trace in traces})
    with store.transaction(
        *(f"{RAG_TRACES.name} {json.dumps(run_id)}" for run_id, _ in owned)
    ) as transaction:
        for run_id, strategy in owned:
            transaction.delete(RAG_TRACES, {"run_id": run_id, "strategy": strategy})
        return transaction.insert(RAG_TRACES, map(row, traces))


def read_traces(store: SqlStore, run_id: str | None = None, qid: str | None = None) -> list[Trace]:
    """Read traces, all or those of a run or a question, sorted by run, strategy, question, wording, seed and segment. `k` is None: the table has no such column."""
    store.create(RAG_TRACES)
    where = {
        name: _bounded(value)
        for name, value in (("run_id", run_id), ("qid", qid))
        if value is not None
    }
    with store.reading() as transaction:
        rows = transaction.select(RAG_TRACES, where)
    values: Iterable[dict[str, Any]] = (
        {
            field: "" if found[name] is None and kind == "text" else found[name]
            for name, (field, kind) in _ROW.items()
        }
        for found in rows
    )
    # sorted here: databases collate text in their own ways
    return sorted(
        (Trace(**named) for named in values),
        key=lambda trace: (
            trace.run_id,
            trace.strategy,
            trace.qid,
            trace.paraphrase_id,
            trace.seed,
            trace.seg,
        ),
    )


def write_log(path: Path, traces: Iterable[Trace]) -> int:
    """Write the log of one run, a line each, in place of the last run's, whole or not at all; returns how many lines."""
    count = 0
    with atomic_path(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as stream:
        for trace in traces:
            stream.write(f"{line(trace)}\n")
            count += 1
    return count
