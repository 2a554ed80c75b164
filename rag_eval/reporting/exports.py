"""Write per-query tables and measures as CSV, TREC runs and qrels, LaTeX tables, and outcomes."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from rag_eval.core.errors import InputError, Problem, quoted
from rag_eval.core.report import StrategyPart
from rag_eval.storage.artifacts import atomic_path, write_text
from rag_eval.uncertainty.outcomes import of_frame

MEASURE_COLUMNS = (
    "strategy level label name value ci_low ci_high n_attempted n_scored n_failed n_ineligible "
    "judged_at_k"
).split()
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def cell(value: Any) -> Any:
    """Keep a spreadsheet from reading a text as a formula; numbers stay numbers."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV (RFC 4180 quoting, LF), atomically; a null is an empty field."""
    cells = [[cell(row.get(name)) for name in columns] for row in rows]
    frame = pd.DataFrame(cells, columns=list(columns), dtype=object)
    write_text(path, frame.to_csv(index=False, lineterminator="\n"))


_LATEX: Final = str.maketrans(
    {
        "\\": r"\textbackslash ",
        "~": r"\textasciitilde ",
        "^": r"\textasciicircum ",
        **{sign: f"\\{sign}" for sign in "_%$#{}&"},
    }
)


def latex_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, figures: Sequence[bool]
) -> str:
    """Write rows of texts as a LaTeX tabular of the package booktabs; every text is escaped.

    `headings`, `rows`: texts; every row has a text for each heading.
    `figures`: whether a column holds figures, which are aligned at the right.
    """
    lines = [
        " & ".join(" ".join(text.split()).translate(_LATEX) for text in row) + r" \\"
        for row in (headings, *rows)
    ]
    # LaTeX reads [ or * after a line break as an argument of the line break.
    heading, *body = ("{}" + line if line.startswith(("[", "*")) else line for line in lines)
    columns = "".join("r" if right else "l" for right in figures)
    table = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", heading, r"\midrule", *body]
    return "\n".join([*table, r"\bottomrule", r"\end{tabular}", ""])


def write_measures(path: Path, strategies: Sequence[StrategyPart]) -> None:
    """Write a row for every measure of every strategy."""
    rows = [
        {"strategy": strategy.name, **record.dump()}
        for strategy in strategies
        for record in strategy.measures
    ]
    write_csv(path, MEASURE_COLUMNS, rows)


def per_query_csv(frame: pd.DataFrame) -> bytes:
    """Write the per-query frame as CSV; ids and names cannot act as formulas."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    shown = frame.copy()
    for name in ("strategy", "query_id", "group_id", "paraphrase_id"):
        shown[name] = shown[name].map(cell)
    sink = pa.BufferOutputStream()
    arrow_csv.write_csv(pa.Table.from_pandas(shown, preserve_index=False), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def trec_token(text: str) -> str:
    """Percent-encode white space, controls and percent signs of an id for a TREC file."""
    if text.isprintable() and " " not in text and "%" not in text:
        return text
    return "".join(
        char
        if char.isprintable() and not char.isspace() and char != "%"
        else "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
        for char in text
    )


def trec_run(
    run: pd.DataFrame, variants: pd.DataFrame, doc_ids: np.ndarray, tag: str, seed: int
) -> str:
    """Write the ranking of documents of the original wordings as a TREC run.

    A line is `query Q0 document rank score tag`. A document has one line, at its best rank. The
    score is 1 / rank, so that every reader keeps the order of the run.
    """
    original = np.flatnonzero((variants["paraphrase_id"] == "original").to_numpy())
    part = run[(run["seed"] == seed) & np.isin(run["variant"], original)].sort_values(
        ["variant", "k_final"]
    )
    part = part.assign(document=doc_ids[part["chunk"].to_numpy()]).drop_duplicates(
        ["variant", "document"]
    )
    rank = part.groupby("variant").cumcount().to_numpy() + 1
    queries = [
        trec_token(name) for name in variants["query_id"].to_numpy()[part["variant"].to_numpy()]
    ]
    documents = [trec_token(name) for name in part["document"]]
    tag = trec_token(tag)
    return "".join(
        f"{q} Q0 {d} {k} {1 / k:.9f} {tag}\n"
        for q, d, k in zip(queries, documents, rank.tolist(), strict=True)
    )


def trec_qrels(qrels: pd.DataFrame) -> str:
    """Write document judgements as TREC qrels: `query 0 document gain`."""
    rows = zip(qrels["query_id"], qrels["item_id"], qrels["gain"], strict=True)
    return "".join(
        f"{trec_token(query)} 0 {trec_token(item)} {gain}\n" for query, item, gain in rows
    )


# ---- Outcomes as a file of the field: CSV, JSON lines or Parquet, by the ending of its name.

RESTORED: Final = ".jsonl"
"""Ending of the files from which outcomes can be read back."""
_OBJECTS: Final = ("gold_strategies", "gold_documents", "signals")


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Write lists and objects as JSON text, because not every table reader supports them."""
    texts = {
        name: [json.dumps(value, sort_keys=True, ensure_ascii=False) for value in frame[name]]
        for name in _OBJECTS
    }
    return frame.assign(**texts)


def _jsonl(path: Path, frame: pd.DataFrame) -> None:
    rows = (outcome.model_dump(mode="json") for outcome in of_frame(frame))
    write_text(path, "".join(f"{json.dumps(row, sort_keys=True)}\n" for row in rows))


def _csv(path: Path, frame: pd.DataFrame) -> None:
    write_text(path, _plain(frame).map(cell).to_csv(index=False, lineterminator="\n"))


def _parquet(path: Path, frame: pd.DataFrame) -> None:
    with atomic_path(path) as partial:
        _plain(frame).to_parquet(partial, index=False)


WRITERS: Final[Mapping[str, Callable[[Path, pd.DataFrame], None]]] = {
    ".csv": _csv,
    RESTORED: _jsonl,
    ".parquet": _parquet,
}


def write_outcomes(path: Path, frame: pd.DataFrame) -> None:
    """Write outcomes to a file, whole or not at all; raise InputError for an unknown ending."""
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        message, accepted = "the ending says which kind of file to write", ", ".join(WRITERS)
        found = quoted(path.suffix)
        raise InputError(
            Problem("bad_value", message, file=str(path), found=found, accepted=accepted)
        )
    writer(path, frame)
