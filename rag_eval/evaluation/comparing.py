"""Two kept runs side by side: paired on the same gold, or refused; different indexes are named."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.evaluation.measure_steps import BOOTSTRAP_SEED, COMPARED, comparison_rows, with_holm
from rag_eval.measures.labels import machine_name
from rag_eval.measures.paired import paired_comparison
from rag_eval.records.problems import InputError, Problem
from rag_eval.reporting.metrics_report import FILE_NAME
from rag_eval.reporting.verdict_reading import read_object, read_report
from rag_eval.storage.artifacts import ArtifactStore


@dataclasses.dataclass(frozen=True)
class KeptRun:
    """A run that can be compared.

    Parameters
    ----------
    report
        Its report.
    per_query
        Its per-query frame; None where a report stands alone.
    """

    report: dict[str, Any]
    per_query: pd.DataFrame | None


def run_ids(home: Path, gold_set: str | None = None) -> list[str]:
    """Ids of the runs kept in a home, oldest first."""
    ids = sorted(path.stem for path in (home / "runs").glob("*.json"))
    if gold_set is None:
        return ids
    return [
        run_id
        for run_id in ids
        if json.loads((home / "runs" / f"{run_id}.json").read_text(encoding="utf-8"))["gold_set"]
        == gold_set
    ]


def find_run(name: str, home: Path) -> KeptRun:
    """Find a run by its id, the start of its id, `latest`, `previous`, or the path of a report with its per-query.parquet beside it.

    Raises
    ------
    InputError
        There is no such run, or it is not complete.
    """
    path = Path(name)
    if path.suffix == ".json" or path.is_dir():
        path = path / FILE_NAME if path.is_dir() else path
        if not path.is_file():
            raise InputError(Problem("run_not_found", "no such report", file=str(path)))
        report = read_report(path)
        beside = path.parent / "per-query.parquet"
        return KeptRun(report, _per_query(beside, report) if beside.is_file() else None)
    ids = run_ids(home)
    places = {"latest": -1, "previous": -2}
    if name in places:
        found = ids[places[name] :][:1] if len(ids) >= -places[name] else []
    else:
        found = [run_id for run_id in ids if name and run_id.startswith(name)]
    if len(found) != 1:
        recent = ", ".join(ids[-5:]) or "none is kept here"
        raise InputError(
            Problem(
                "run_not_found",
                f"{len(found)} runs go by this name",
                file=str(home / "runs"),
                field="RUN",
                found=name,
                accepted=f"latest, previous, a report's path, or one of: {recent}",
            )
        )
    kept = read_object(home / "runs" / f"{found[0]}.json")
    artifact = ArtifactStore(home / "artifacts").get("ranking", kept["artifacts"]["ranking"])
    if artifact is None:
        raise InputError(
            Problem(
                "run_incomplete",
                "the run's per-query figures are no longer in the home",
                file=str(home / "artifacts"),
                found=found[0],
            )
        )
    return KeptRun(kept["report"], artifact.frame("per_query"))


def _per_query(path: Path, report: dict[str, Any]) -> pd.DataFrame:
    """Read the per-query figures beside a report and make sure that they are its own."""
    try:
        frame = pd.read_parquet(path)
    except (ValueError, OSError) as error:
        raise InputError(
            Problem(
                "run_incomplete",
                "the per-query figures cannot be read",
                file=str(path),
                found=str(error),
            )
        ) from error
    missing = {
        "strategy",
        "level",
        "query_id",
        "group_id",
        *(machine_name(label) for label in COMPARED),
    } - set(frame.columns)
    if missing:
        raise InputError(
            Problem(
                "run_incomplete",
                "columns are missing from the per-query figures",
                file=str(path),
                found=", ".join(sorted(missing)),
            )
        )
    part = frame[
        (frame["strategy"] == report["strategy"])
        & (frame["level"] == report["evaluation"]["level"])
    ]
    recall = part.groupby("query_id")["recall_at_10"].mean().mean()
    if not np.isclose(
        recall,
        np.nan if report["recallAt10"] is None else report["recallAt10"],
        atol=1e-9,
        equal_nan=True,
    ):
        raise InputError(
            Problem(
                "run_incomplete",
                "the per-query figures beside the report are another run's",
                file=str(path),
                found=f"recall_at_10 {recall:.6g}",
                accepted=str(report["recallAt10"]),
            )
        )
    return frame


def differences(a: KeptRun, b: KeptRun) -> list[str]:
    """Name what differs between two runs besides their figures.

    Raises
    ------
    InputError
        Their gold differs: the same question may have other targets, so nothing can be paired.
    """
    gold = [run.report["gold"] for run in (a, b)]
    if gold[0]["hash"] != gold[1]["hash"]:
        raise InputError(
            Problem(
                "gold_differs",
                "the runs were judged by different gold, so their figures cannot be paired",
                field="gold.hash",
                found=f"{gold[0]['name']} {gold[0]['hash'][:12]} and {gold[1]['name']} {gold[1]['hash'][:12]}",
                accepted="two runs of the same gold hash",
            )
        )
    notes = []
    for key, text in (
        ("corpus_rev", "corpus"),
        ("chunks_hash", "chunks"),
        ("analyzer", "analyzer"),
    ):
        left, right = a.report["index"][key], b.report["index"][key]
        if left != right:
            notes.append(f"DIFFERENT {text}: {left} against {right}")
    hashes = [
        {entry["name"]: entry["index_hash"] for entry in run.report["strategies"]} for run in (a, b)
    ]
    notes += [
        f"DIFFERENT index of {name}: {hashes[0][name]} against {hashes[1][name]}"
        for name in hashes[0]
        if name in hashes[1] and hashes[0][name] != hashes[1][name]
    ]
    for name in hashes[0]:
        configured = [
            next(
                (
                    entry["configuration"]
                    for entry in run.report["strategies"]
                    if entry["name"] == name
                ),
                None,
            )
            for run in (a, b)
        ]
        if None not in configured and configured[0] != configured[1]:
            notes.append(
                f"DIFFERENT configuration of {name}: {_changes(configured[0], configured[1])}"
            )
    pairs = (("evaluation", "evaluation"), ("seeds", "seeds"), ("code", "code"))
    for key, text in pairs:
        left, right = (
            ({"seeds": run.report["gold"]["seeds"]} if key == "seeds" else run.report[key])
            for run in (a, b)
        )
        if left != right:
            notes.append(f"DIFFERENT {text}: {_changes(left, right)}")
    return notes


def _changes(left: Any, right: Any) -> str:
    """Name the keys that differ, with both values."""
    keys = sorted({*left, *right})
    return "; ".join(
        f"{key} {json.dumps(left.get(key), sort_keys=True)} against {json.dumps(right.get(key), sort_keys=True)}"
        for key in keys
        if left.get(key) != right.get(key)
    )


def compare(a: KeptRun, b: KeptRun) -> list[dict[str, Any]]:
    """Paired differences a - b of every strategy that both runs have, Holm-adjusted over all rows."""
    if a.per_query is None or b.per_query is None:
        raise InputError(
            Problem(
                "run_incomplete",
                "a report without its per-query.parquet beside it can be shown but not compared",
                field="RUN",
            )
        )
    frames = (a.per_query, b.per_query)
    level = a.report["evaluation"]["level"]
    columns = [machine_name(label) for label in COMPARED]
    strategies = [
        entry["name"]
        for entry in a.report["strategies"]
        if entry["name"] in {other["name"] for other in b.report["strategies"]}
    ]
    if not strategies:
        raise InputError(
            Problem("nothing_to_compare", "the runs have no strategy in common", field="strategies")
        )
    rows: list[dict[str, Any]] = []
    for name in strategies:
        means = []
        for frame in frames:
            part = frame[(frame["strategy"] == name) & (frame["level"] == level)]
            means.append(
                part.groupby(["query_id", "group_id"], sort=True)[columns]
                .mean()
                .reset_index()
                .set_index("query_id")
            )
        left, right = means
        right = right.reindex(left.index)
        groups = np.unique(left["group_id"].to_numpy(dtype=str), return_inverse=True)[1]
        found = paired_comparison(
            left[columns].to_numpy(), right[columns].to_numpy(), groups, BOOTSTRAP_SEED
        )
        rows += comparison_rows(f"{name} (a)", f"{name} (b)", level, found)
    return with_holm(rows)
