"""Outcomes as rows of `retrieval_outcomes` and as the frame that stages hand to each other.

Belongs here: the table's columns and the ways between record, row and frame. Reading and writing them is `outcomes`.
"""

import datetime as dt
from typing import Any, Final

import numpy as np
import pandas as pd

from rag_eval.gold.groups import group_ids
from rag_eval.records.outcomes import RETRIEVAL_OUTCOMES, Outcome, Shown
from rag_eval.storage.sql_tables import ColumnSpec, Row, TableSpec

TABLE: Final = TableSpec(
    "retrieval_outcomes",
    (
        ColumnSpec("outcome_id", "text", required=True),
        ColumnSpec("claim_id", "text", required=True),
        ColumnSpec("query_id", "text", required=True),
        ColumnSpec("group_id", "text", required=True),
        ColumnSpec("strategy", "text", required=True),
        ColumnSpec("strategy_fingerprint", "text", required=True),
        ColumnSpec("target", "text", required=True),
        ColumnSpec("k", "integer", required=True),
        ColumnSpec("missed", "boolean"),
        ColumnSpec("missed_content", "text"),
        ColumnSpec("agent_success", "boolean"),
        ColumnSpec("gold_source", "text", required=True),
        ColumnSpec("gold_strategies", "json"),
        ColumnSpec("gold_documents", "json"),
        ColumnSpec("audit_depth", "integer"),
        ColumnSpec("inclusion_probability", "float"),
        ColumnSpec("signals", "json"),
        ColumnSpec("shown_value", "float"),
        ColumnSpec("shown_status", "text", required=True),
        ColumnSpec("shown_calibrator", "text"),
        ColumnSpec("feedback", "text"),
        ColumnSpec("supersedes", "text", required=True),
        ColumnSpec("note", "text"),
        ColumnSpec("at", "text", required=True),
    ),
    indexes=(("strategy_fingerprint", "target", "k"), ("strategy",)),
    unique=(("outcome_id",), ("claim_id", "target", "k", "gold_source", "supersedes")),
)


def row_of(outcome: Outcome) -> Row:
    """Write an outcome as a row of the table."""
    values = {
        **dict(outcome),
        "shown_value": outcome.shown.value,
        "shown_status": outcome.shown.status,
        "shown_calibrator": outcome.shown.calibrator,
    }
    values |= {
        "signals": dict(outcome.signals),
        "supersedes": outcome.supersedes or "",
        "at": utc_text(outcome.at),
    }
    return [values[name] for name in TABLE.column_names]


def utc_text(at: dt.datetime) -> str:
    """Write a time so that texts sort as times do."""
    return f"{at.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def of_row(row: dict[str, Any]) -> Outcome:
    """Read an outcome from a row of the table."""
    shown = Shown(
        value=row["shown_value"], status=row["shown_status"], calibrator=row["shown_calibrator"]
    )
    plain = {name: value for name, value in row.items() if not name.startswith("shown_")}
    return Outcome.model_validate(
        {**plain, "shown": shown, "supersedes": row["supersedes"] or None}
    )


def as_frame(columns: dict[str, list[Any]]) -> pd.DataFrame:
    """Make the frame of outcomes, oldest first, from the values of each column of the table."""
    made: dict[str, Any] = {}
    for name, column in RETRIEVAL_OUTCOMES.columns.items():
        values = columns[name]
        if column.kind == "float":
            made[name] = np.array(
                [np.nan if value is None else value for value in values], dtype=np.float64
            )
        elif column.kind == "int":
            made[name] = np.array(values, dtype=np.int64)
        elif column.kind == "list":
            empty: Any = {} if name == "signals" else []
            made[name] = pd.Series(
                [empty if value is None else value for value in values], dtype=object
            )
        else:
            made[name] = pd.Series(
                ["" if value is None else value for value in values], dtype=object
            ).astype(str)
    # sorted here: databases collate text in their own ways
    return RETRIEVAL_OUTCOMES.check(
        pd.DataFrame(made).sort_values(["at", "outcome_id"], kind="stable", ignore_index=True)
    )


def of_frame(frame: pd.DataFrame) -> list[Outcome]:
    """Read outcomes from the frame, in its order."""

    def known(value: Any) -> Any:
        return None if value == "" or value != value else value  # noqa: PLR0124 - NaN is the value that differs from itself

    found = []
    for row in frame.to_dict("records"):
        plain: dict[str, Any] = {
            str(name): known(value) if not isinstance(value, list | dict) else value
            for name, value in row.items()
        }
        plain |= {
            name: None if plain[name] is None else bool(plain[name])
            for name in ("missed", "agent_success")
        }
        plain |= {
            "audit_depth": None if plain["audit_depth"] is None else int(plain["audit_depth"]),
            "note": row["note"],
        }
        found.append(of_row(plain))
    return found


def joined(frame: pd.DataFrame) -> pd.DataFrame:
    """Join the groups of outcomes whose questions share a known gold document, or that one question stands in; the smallest name stays."""
    own = frame[["group_id", "query_id"]].drop_duplicates()
    linked = [
        (group, f"document {document}")
        for group, documents in zip(frame["group_id"], frame["gold_documents"], strict=True)
        for document in documents
    ]
    if not linked and own["query_id"].is_unique:
        return frame
    linked += [(group, f"query {query}") for group, query in own.itertuples(index=False)]
    groups = sorted(set(frame["group_id"]))
    found = dict(
        zip(
            groups,
            group_ids(groups, [group for group, _ in linked], [tie for _, tie in linked]),
            strict=True,
        )
    )
    return frame.assign(group_id=frame["group_id"].map(found).astype(str))
