"""Two runs as the regression gate compares them.

Belongs here: what is read of a run, and the values of its questions. When a difference counts is `regression`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pandas as pd

from rag_eval.records.problems import quoted


@dataclasses.dataclass(frozen=True)
class MeasuredRun:
    """What the gate reads of a run, of the baseline and of the one that is judged.

    Parameters
    ----------
    run_id
        Its id; empty while the run is being judged.
    gold_hash
        Hash of its gold set.
    per_query
        One row for each (strategy, level, query, wording, seed): columns strategy, level, query_id, group_id and one for each measure;
        NaN = not eligible.
    index_hashes
        index_hash by strategy.
    identity
        What else the figures rest on, by name for a person: chunks, corpus, code.
    """

    run_id: str
    gold_hash: str
    per_query: pd.DataFrame
    index_hashes: Mapping[str, str]
    identity: Mapping[str, str]


def measured_run(report: Mapping[str, Any], per_query: pd.DataFrame) -> MeasuredRun:
    """Put together what the regression gate reads of a run.

    Parameters
    ----------
    report
        A report, or its body before it is finished.
    per_query
        The frame of `with_delta_s`, or the per_query part of the ranking stage.
    """
    index, code = report["index"], report["code"]
    return MeasuredRun(
        run_id=str(report.get("run_id", "")),
        gold_hash=report["gold"]["hash"],
        per_query=per_query,
        index_hashes={entry["name"]: entry["index_hash"] for entry in report["strategies"]},
        identity={
            "chunks": index["chunks_hash"],
            "corpus": index["corpus_rev"],
            "code": code["version"],
        },
    )


def with_delta_s(per_query: pd.DataFrame, per_run: pd.DataFrame | None) -> pd.DataFrame:
    """Add delta_s of each retrieval to the per-query figures, so that the regression gate can be asked for it.

    A failed retrieval counts as 1, as it does in the report; a strategy without any delta_s has none.

    Parameters
    ----------
    per_query
        Part of the ranking stage.
    per_run
        Part of the stability stage: strategy, query_id, paraphrase_id, seed, delta_s. None leaves the frame as it is.
    """
    if per_run is None:
        return per_query
    keys = ["strategy", "query_id", "paraphrase_id", "seed"]
    joined = per_query.merge(
        per_run[[*keys, "delta_s"]], on=keys, how="left", validate="many_to_one"
    )
    # a strategy that no seed changes was run under one of them and stands under all
    by_wording = per_run.groupby(keys[:-1])["delta_s"].mean().rename("of_wording")
    joined = joined.join(by_wording, on=keys[:-1])
    value = joined["delta_s"].fillna(joined["of_wording"])
    measured = value.notna().groupby(joined["strategy"]).transform("any")
    return joined.drop(columns="of_wording").assign(
        delta_s=value.mask(joined["failed"] & measured, 1.0)
    )


def differing(before: MeasuredRun, now: MeasuredRun, strategy: str) -> dict[str, dict[str, str]]:
    """Name what the figures of the two runs rest on and is not the same: index of the strategy, chunks, corpus, code."""
    left = {"index": before.index_hashes.get(strategy, ""), **before.identity}
    right = {"index": now.index_hashes.get(strategy, ""), **now.identity}
    return {
        name: {"before": quoted(left.get(name, "")), "now": quoted(value)}
        for name, value in right.items()
        if left.get(name, "") != value
    }


def by_query(run: MeasuredRun, strategy: str, level: str, measures: list[str]) -> pd.DataFrame:
    """Mean of each measure inside each query, NaN for measures that the run does not have; with `group_id`."""
    frame = run.per_query
    part = frame[(frame["strategy"] == strategy) & (frame["level"] == level)]
    there = [name for name in measures if name in frame.columns]
    by_query = part.groupby("query_id", sort=True)
    return (
        by_query[there]
        .mean()
        .reindex(columns=measures)
        .assign(group_id=by_query["group_id"].first())
    )
