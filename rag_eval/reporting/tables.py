"""Files of the field that an evaluation writes: per-query Parquet and CSV, TREC runs and qrels, measures as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.storage.atomic import write_text

MEASURE_COLUMNS = (
    "strategy",
    "level",
    "label",
    "name",
    "value",
    "ci_low",
    "ci_high",
    "n_attempted",
    "n_scored",
    "n_failed",
    "n_ineligible",
    "judged_at_k",
)
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def cell(value: Any) -> Any:
    """Keep a spreadsheet from reading a text as a formula; numbers stay numbers."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV (RFC 4180 quoting, LF), atomically; a null is an empty field."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(
        [["" if row.get(name) is None else cell(row.get(name)) for name in columns] for row in rows]
    )
    write_text(path, buffer.getvalue())


def write_measures(path: Path, strategies: Sequence[Mapping[str, Any]]) -> None:
    """Write every measure of every strategy, one a row."""
    rows = [
        {"strategy": strategy["name"], **record}
        for strategy in strategies
        for record in strategy["measures"]
    ]
    write_csv(path, MEASURE_COLUMNS, rows)


def per_query_csv(frame: pd.DataFrame) -> bytes:
    """Per-query frame as CSV; texts that a spreadsheet would run are quoted, which the Parquet file does not need."""
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
    """Make an id fit for a column of a TREC file: white space and control characters are percent-encoded, as is the percent sign."""
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
    """Write the original wordings' document ranking as a TREC run: `query Q0 document rank score tag`.

    Documents stand once, at their best rank. The score falls with the rank by construction (1 / rank), so that every reader orders it as we do.
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
