"""Traces: for each question and answer segment, the citations, the index and the ranks.

A trace is a log line and a row of `rag_traces`. A missing value or empty text is `-` in a line; a
row has NO_DELTA_S or NO_STATE where ΔS or λ is missing. A line writes values with special
characters as JSON strings with escapes. So no value can break a line, forge another line or reorder
the visible text.
"""

import dataclasses
import datetime as dt
import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rag_eval.storage.home import atomic_path
from rag_eval.storage.sql import ColumnSpec, Kind, SqlStore, TableSpec

MAX_TEXT = 600
"""Most characters of a text; a longer text keeps its head and ends with a hash."""
MAX_ITEMS = 1_000
"""Most items of a list; further items are left out."""
MISSING = "-"
NO_DELTA_S, NO_STATE = -1.0, "undefined"
"""Values of a row without ΔS or λ, whose columns are NOT NULL. ΔS itself is 0 to 1."""


def _bound(value: Any) -> Any:
    """Shorten a text or a list; return a plain number, or None for a number that is not finite."""
    if isinstance(value, tuple):
        return tuple(map(_bound, value[:MAX_ITEMS]))
    if isinstance(value, str) and len(value) > MAX_TEXT:
        tail = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return f"{value[: MAX_TEXT - 33]}…{tail}"
    if value is None or isinstance(value, str):
        return value
    plain = value.item() if hasattr(value, "item") else value  # a NumPy number
    return plain + 0 if math.isfinite(plain) else None  # + 0 turns -0.0 into 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """Citations, index and ranks behind one segment of an answer; the constructor bounds values.

    `seg` is the number of the answer's sentence from 1; 0 for the answer as a whole. `delta_s` is
    1 - cosine between the question and its evidence. `k`, the number of requested chunks, is in the
    line only; the fields that the contract's line lacks are in the row only. `citations`, `scores`,
    `kpos` and `kfinal` are the cited snippets, their scores, and their ranks before and after
    reranking.
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
        """Shorten long texts and lists."""
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _bound(getattr(self, field.name)))


_LINE = (
    "ts qid seg deltaS=delta_s lambda=lambda_state k store index_hash embed=embed_model citations "
    "scores kpos kfinal section_id rev"
).split()
"""Keys of a line in the contract's order, each with its field where the names differ."""
_COLUMNS = (
    "ts qid seg delta_s lambda_state store index_hash embed_model analyzer section_id rev "
    "citations scores kpos kfinal run_id strategy paraphrase_id seed"
).split()
"""Field of each column of the table."""
_KINDS: dict[str, Kind] = {
    "ts": "timestamp",
    "seg": "integer",
    "seed": "integer",
    "delta_s": "float",
    **dict.fromkeys(("citations", "scores", "kpos", "kfinal"), "jsonb"),
}
"""Kind of the columns that are no text."""
_REQUIRED = frozenset({"ts", "qid", "seg", "delta_s", "lambda_state"})
_NAMES = {"delta_s": "deltaS"}

RAG_TRACES = TableSpec(
    "rag_traces",
    tuple(
        ColumnSpec(_NAMES.get(name, name), _KINDS.get(name, "text"), required=name in _REQUIRED)
        for name in _COLUMNS
    ),
    indexes=(("run_id",), ("qid",)),
)

_PLAIN = re.compile(r"[A-Za-z0-9_./:#@+-]+")


def _format(value: object) -> str:
    """Return a value as a line writes it."""
    if isinstance(value, tuple):
        return f"[{','.join(map(_format, value))}]"
    if value is None or value == "":
        return MISSING
    if not isinstance(value, str):
        return repr(value)
    if _PLAIN.fullmatch(value) and value != MISSING:
        return value
    # escape separators and bidi controls, because JSON leaves them unescaped
    return "".join(
        letter if letter.isprintable() else json.dumps(letter)[1:-1]
        for letter in json.dumps(value, ensure_ascii=False)
    )


def format_line(trace: Trace) -> str:
    r"""Write the trace as one line without its line end.

    Examples
    --------
    >>> format_line(Trace("2026-01-31", "q 1", 0, citations=("a.md:3-4", "x\ny"))).split(" seg=")[0]
    'ts=2026-01-31 qid="q 1"'
    """
    pairs = (key.partition("=") for key in _LINE)
    return " ".join(f"{key}={_format(getattr(trace, name or key))}" for key, _, name in pairs)


def _make_row(trace: Trace) -> tuple[Any, ...]:
    """Return a trace as a row of `RAG_TRACES`; `ts` becomes UTC without its zone."""
    moment = dt.datetime.fromisoformat(trace.ts).astimezone(dt.UTC).replace(tzinfo=None)
    delta_s = NO_DELTA_S if trace.delta_s is None else trace.delta_s
    filled = {"ts": moment, "delta_s": delta_s, "lambda_state": trace.lambda_state or NO_STATE}
    return tuple([filled.get(name, getattr(trace, name)) for name in _COLUMNS])


def write_traces(store: SqlStore, traces: Sequence[Trace]) -> int:
    """Write all traces in one transaction and return the number of traces.

    The traces replace the rows of an earlier try with the same (run_id, strategy). A table that was
    made with the contract's columns alone gets ours too.
    """
    store.create(RAG_TRACES)
    owned = sorted({(trace.run_id, trace.strategy) for trace in traces})
    locks = [f"{RAG_TRACES.name} {json.dumps(run_id)}" for run_id, _ in owned]
    with store.transaction(*locks) as transaction:
        for run_id, strategy in owned:
            transaction.delete(RAG_TRACES, {"run_id": run_id, "strategy": strategy})
        return transaction.insert(RAG_TRACES, map(_make_row, traces))


def write_log(path: Path, traces: Iterable[Trace]) -> None:
    """Write a file with a line for each trace of one run; a failure leaves no partial file."""
    with atomic_path(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(f"{format_line(trace)}\n" for trace in traces)
