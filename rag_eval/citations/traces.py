"""Traces: for each question and answer segment, the citations, the index and the ranks.

A trace is a log line and a row of `rag_traces`. A missing value is `-` in a line and null in a row;
an empty text is a missing one. In a line, all but plain characters stand in JSON quotes with
escapes, so that no value can break a line, forge a second one or reorder what a person sees.
"""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rag_eval.storage.artifacts import atomic_path
from rag_eval.storage.sql import ColumnSpec, Kind, SqlStore, TableSpec

MAX_TEXT = 600
"""Characters of a text; a longer one keeps its head and gets its hash as tail."""
MAX_ITEMS = 1_000
"""Items of a list; the rest is left out."""
MISSING = "-"


def _bound(value: Any) -> Any:
    """Bound a text or a list, and make plain numbers; a number that is not finite becomes None."""
    if value is None:
        return None
    if isinstance(value, tuple):
        return tuple(map(_bound, value[:MAX_ITEMS]))
    if not isinstance(value, str):
        plain = value.item() if hasattr(value, "item") else value  # a number of a frame
        return plain + 0 if math.isfinite(plain) else None  # + 0 turns -0.0 into 0.0
    if len(value) <= MAX_TEXT:
        return value
    tail = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{value[: MAX_TEXT - 33]}…{tail}"


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """The grounds of one segment of one answer; values are bounded when it is made.

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
        The kind of storage that held the vectors or postings.
    analyzer
        Stands in the row only, as run_id, strategy, paraphrase_id and seed do.
    citations, scores, kpos, kfinal
        Cited documents, their scores, and their ranks before and after reranking.
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
        """Bound every value."""
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _bound(getattr(self, field.name)))

    @property
    def key(self) -> tuple[str, str, str, str, int, int]:
        """Key of a trace: run, strategy, question, wording, seed and segment."""
        return self.run_id, self.strategy, self.qid, self.paraphrase_id, self.seed, self.seg


_LINE = {
    "ts": "ts",
    "qid": "qid",
    "seg": "seg",
    "deltaS": "delta_s",
    "lambda": "lambda_state",
    "k": "k",
    "store": "store",
    "index_hash": "index_hash",
    "embed": "embed_model",
    "citations": "citations",
    "scores": "scores",
    "kpos": "kpos",
    "kfinal": "kfinal",
    "section_id": "section_id",
    "rev": "rev",
}
"""Key of the line -> field of the record."""

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

_KEY = ("run_id", "strategy", "qid", "paraphrase_id", "seed", "seg")

RAG_TRACES = TableSpec(
    "rag_traces",
    tuple(ColumnSpec(name, kind, required=name in _KEY) for name, (_, kind) in _ROW.items()),
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
    # JSON leaves separators, bidi controls and other characters that do not print as they are
    return "".join(
        letter if letter.isprintable() else json.dumps(letter)[1:-1]
        for letter in json.dumps(value, ensure_ascii=False)
    )


def line(trace: Trace) -> str:
    r"""Write the trace as one line without its line end, keys in the contract's order.

    Examples
    --------
    >>> line(Trace("2026-01-31", "q 1", 0, citations=("a.md:3-4", "x\ny"))).split(" seg=")[0]
    'ts=2026-01-31 qid="q 1"'
    """
    return " ".join(f"{key}={_format(getattr(trace, field))}" for key, field in _LINE.items())


def row(trace: Trace) -> tuple[Any, ...]:
    """Return the trace as a row of `RAG_TRACES`; empty texts are null except in the key."""
    values = ((name, getattr(trace, field)) for name, (field, _) in _ROW.items())
    return tuple([None if value == "" and name not in _KEY else value for name, value in values])


def write_traces(store: SqlStore, traces: Sequence[Trace]) -> int:
    """Write all traces of a run's strategies in one transaction and return how many.

    They replace every row of their (run_id, strategy), which an earlier try of the same run left.
    Raises ValueError where two traces share a key.
    """
    if len({trace.key for trace in traces}) != len(traces):
        raise ValueError("two traces of one run, strategy, wording, seed and segment")
    store.create(RAG_TRACES)
    owned = sorted({(trace.run_id, trace.strategy) for trace in traces})
    locks = [f"{RAG_TRACES.name} {json.dumps(run_id)}" for run_id, _ in owned]
    with store.transaction(*locks) as transaction:
        for run_id, strategy in owned:
            transaction.delete(RAG_TRACES, {"run_id": run_id, "strategy": strategy})
        return transaction.insert(RAG_TRACES, map(row, traces))


def write_log(path: Path, traces: Iterable[Trace]) -> None:
    """Write a line for each trace of one run, whole or not at all."""
    with atomic_path(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(f"{line(trace)}\n" for trace in traces)
