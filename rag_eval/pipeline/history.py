"""Kept runs: their records, and the comparison with the previous run.

A home stores every run as `runs/<run id>.json` with gold_set, artifacts (keys by stage) and report.
Anybody may have changed these files, so every value is checked when it is read.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import numpy as np
import pandas as pd
from pydantic import Field, InstanceOf, ValidationError

from rag_eval.core.arrays import FloatArray, number
from rag_eval.core.errors import InputError, format_count, quoted
from rag_eval.core.parts import Name
from rag_eval.core.records import (
    Because,
    Count,
    Estimate,
    Hash,
    IndexHash,
    Open,
    RunId,
    ShortText,
    Timestamp,
)
from rag_eval.core.types import Level
from rag_eval.corpus.masking import mask
from rag_eval.gates.gate import (
    Changes,
    GateStatus,
    NightDelta,
    PreviousPart,
    RunInputs,
    StrategyInputs,
)
from rag_eval.gates.verdict import with_delta_s
from rag_eval.measures.intervals import COMPARED, delta_of, paired_comparison
from rag_eval.measures.overlap import NamedGold, SharedGold
from rag_eval.measures.ranking import machine_name
from rag_eval.measures.run_scores import GoldArrays
from rag_eval.reporting.report import REPORT_FILE, Report, dumps, read_object, whole_report
from rag_eval.storage.artifacts import Artifact, ArtifactStore
from rag_eval.storage.hashing import digest
from rag_eval.storage.home import Home

# ---- The record of a kept run.

RUN_ID: Final = r"[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}"
Key = Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")]


class Recall(Estimate):
    """R@10 of the primary strategy at the headline level."""

    n_scored: Count


class KeptRun(RunInputs):
    """A run of a home, or a report alone.

    `artifacts` are the keys of its results by stage. `file` is None during the run, and `home` then
    and for a report alone.
    """

    gold_set: Name
    run_id: RunId
    content_hash: Hash
    timestamp: Timestamp
    index_hash: IndexHash
    analyzer: ShortText
    level: Level
    primary: Name
    recall: Recall
    gates: dict[GateStatus, Count]
    artifacts: dict[str, Key]
    file: Annotated[Path | None, Because("")]
    home: Annotated[InstanceOf[Home] | None, Because("")] = None

    @property
    def folder(self) -> Path | None:
        """Folder of a report alone; None for a run of a home."""
        alone = self.file is not None and self.file.stem != self.run_id
        return self.file.parent if self.file is not None and alone else None

    def report(self) -> Report:
        """Read the report; raise InputError if the file was changed."""
        assert self.file is not None
        content = read_object(self.file)
        return whole_report(content if self.folder else content["report"], self.file)

    def artifact(self, stage: str) -> Artifact | None:
        """Find the result of a stage; None when the run names no result or the result is gone."""
        key = self.artifacts.get(stage)
        if key is None or self.home is None:
            return None
        return ArtifactStore(self.home).get(stage.split(maxsplit=1)[0], key)

    def stored(self, stage: str) -> Artifact:
        """Open the result of a stage; raise InputError when it is gone."""
        artifact = self.artifact(stage)
        if artifact is None:
            message = f"The {stage} of this run is no longer in the home. Run the gold set again."
            raise InputError.of(
                "run_incomplete", message, file=self.file, field="RUN", found=self.run_id
            )
        return artifact

    def per_query(self) -> pd.DataFrame:
        """Read the figures of every question, with delta_s for a run of a home.

        Raises
        ------
        InputError
            The figures are gone.
        """
        if self.folder is None:
            per_run = self.stored("stability_measures").frame("per_run")
            return with_delta_s(self.stored("ranking_measures").frame("per_query"), per_run)
        return self._table("per-query")

    def shared_gold(self) -> NamedGold:
        """Read which relevant documents the questions share; raise InputError if it is gone."""
        if self.folder is None:
            gold = self.stored("gold_variants")
            names = gold.frame("queries", ["query_id"])["query_id"].tolist()
            qrels, columns = gold.frame("qrels_document"), ["query_id", "item_id", "gain"]
        else:
            qrels, columns = self._table("qrels"), ["query_id", "docno", "relevance"]
            names = self._table("questions")["query_id"].unique().tolist()
        query, document, gain = (qrels[name] for name in columns)
        relevant = (gain > 0).to_numpy()
        row = pd.Index(names).get_indexer(pd.Index(query[relevant]))
        shared = SharedGold.of_pairs(row, pd.factorize(document[relevant])[0], len(names))
        return NamedGold(names, shared)

    def _table(self, name: str) -> pd.DataFrame:
        """Read a table of the run card beside a report."""
        assert self.folder is not None
        path = self.folder / f"{name}.parquet"
        try:
            return pd.read_parquet(path)
        except (OSError, ValueError) as error:
            message = f"The table {name} beside the report cannot be read."
            raise InputError.of("run_incomplete", message, path, found=str(error)) from error


def run_inputs(report: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the fields of `RunInputs` from a report, finished or not."""
    miss = report["uncertainty"]
    settings = [report["evaluation"], report["gold"]["seeds"], miss["target"], miss["k"]]
    return {
        "gold_hash": report["gold"]["hash"],
        "chunks_hash": report["index"]["chunks_hash"],
        "settings": digest(settings),
        "code": report["code"]["version"],
        "strategies": {
            entry["name"]: {
                "index_hash": entry["index_hash"],
                "configuration": digest(entry["configuration"]),
            }
            for entry in report["strategies"]
        },
    }


def make_record(
    gold_set: str, artifacts: dict[str, str], report: Mapping[str, Any], file: Path | None = None
) -> KeptRun:
    """Make the record of a run.

    Raises
    ------
    ValueError, KeyError, TypeError, AttributeError, StopIteration
        A value has a form that no run writes.
    """
    index, level, primary = report["index"], report["evaluation"]["level"], report["strategy"]
    statuses = [gate["status"] for gate in report["gates"]]
    measures = next(s["measures"] for s in report["strategies"] if s["name"] == primary)
    recall = next(row for row in measures if (row["label"], row["level"]) == ("R@10", level))
    columns = ("value", "ci_low", "ci_high", "n_scored")
    return KeptRun.model_validate(
        run_inputs(report)
        | {name: report[name] for name in ("run_id", "content_hash", "timestamp")}
        | {
            "gold_set": gold_set,
            "primary": primary,
            "index_hash": index["hash"],
            "analyzer": index["analyzer"],
            "level": level,
            "recall": {name: recall[name] for name in columns},
            "gates": {name: statuses.count(name) for name in get_args(GateStatus)},
            "artifacts": artifacts,
            "file": file,
        }
    )


# ---- Storage of kept runs: write, list, find by name, and read.

RUNS: Final = "runs"
NOT_KEPT: Final = "not a complete kept run of this version"


def run_name(run_id: str) -> str:
    """Return the name of a kept run's file in the home."""
    return f"{RUNS}/{run_id}.json"


def keep_run(home: Home, run: KeptRun, artifacts: Mapping[str, str], report: Open) -> None:
    """Store a run with its whole report and the keys of its artifacts."""
    record = {"gold_set": run.gold_set, "artifacts": artifacts, "report": report}
    home.write(run_name(run.run_id), dumps(record).encode())


def run_ids(home: Home) -> list[str]:
    """List the ids of the runs of a home, oldest first."""
    return sorted(
        Path(name).stem for name in home.names(RUNS) if Path(name).match(f"{RUNS}/*.json")
    )


def read_run(home: Home, run_id: str) -> KeptRun:
    """Read the record of a kept run. An unchanged file is read only once.

    Raises
    ------
    InputError
        `run_unreadable`: another program, or another version, wrote the file.
    """
    try:
        path = home.fetch(run_name(run_id))
        state = path.stat()
        return _read(path, (state.st_mtime_ns, state.st_size)).model_copy(update={"home": home})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        place = f" at {_find_place(error)}" if isinstance(error, ValidationError) else ""
        raise InputError.of(
            "run_unreadable",
            f"not a complete kept run of this version{place}; move it away",
            file=home.address_of(run_name(run_id)),
            found=quoted(mask(run_id).text, 100),
        ) from None


def _find_place(error: ValidationError) -> str:
    place = (str(part) for part in error.errors()[0]["loc"])
    return ".".join(part for part in place if part in KeptRun.model_fields)


@functools.lru_cache(maxsize=4096)
def _read(path: Path, _state: tuple[int, int]) -> KeptRun:
    record = json.loads(path.read_text(encoding="utf-8"))
    try:
        run = make_record(record["gold_set"], record["artifacts"], record["report"], path)
    except StopIteration:
        raise ValueError("no measures of the primary strategy") from None
    if run.run_id != path.stem or run.primary not in run.strategies:
        raise ValueError("another run")
    return run


def open_run(home: Home, name: str, gold_set: str | None = None) -> KeptRun:
    """Open a run of a home, or a report alone.

    `name` is the id of a run or its start, `latest` or `previous` among the runs of `gold_set` (of
    all gold sets without it), the name of a gold set for its newest run, or the path of a report or
    of its folder.

    Raises
    ------
    InputError
        No run or several runs have this name, or the run cannot be read.
    """
    path = Path(name)
    if name and (path.suffix == ".json" or (path / REPORT_FILE).is_file()):
        path = path / REPORT_FILE if path.is_dir() else path
        report = whole_report(read_object(path), path)
        return make_record(report.gold.name, {}, report.dump(), path.absolute())
    age = {"latest": 0, "previous": 1}.get(name)
    if age is not None:
        runs = list(itertools.islice(readable_runs(home, gold_set), age, age + 1))
    else:
        matching = (run_id for run_id in run_ids(home) if name and run_id.startswith(name))
        runs = [read_run(home, run_id) for run_id in matching]
        runs = [run for run in runs if gold_set in {None, run.gold_set}]
        if not runs and gold_set is None and name:
            runs = list(itertools.islice(readable_runs(home, name), 1))
    if len(runs) == 1:
        return runs[0]
    owner = "" if gold_set is None else f" of {quoted(gold_set)}"
    recent = ", ".join(map(quoted, run_ids(home)[-5:])) or "this home keeps none"
    message = f"{format_count(len(runs), 'run')}{owner} by this name. Name one run."
    raise InputError.of(
        "run_not_found",
        message if age is None else f"No {name} run{owner} is kept. Run again.",
        file=home.address_of(RUNS),
        field="RUN",
        found=name,
        accepted=f"latest, previous, or one of: {recent}",
    )


def readable_runs(home: Home, gold_set: str | None = None, before: str = "~") -> Iterator[KeptRun]:
    """Yield the runs of a gold set with ids before `before`, newest first.

    Runs that cannot be read are left out. Without a gold set, yields the runs of all.
    """
    for run_id in run_ids(home)[::-1]:
        if run_id < before:
            with contextlib.suppress(InputError):
                run = read_run(home, run_id)
                if gold_set in {None, run.gold_set}:
                    yield run


MAX_NAMED: Final = 5


def changes(before: RunInputs, now: RunInputs) -> Changes:
    """Describe the changed inputs of the figures of two runs: code -> sentence."""
    both = sorted(before.strategies.keys() & now.strategies.keys())
    pairs: dict[str, tuple[StrategyInputs, StrategyInputs]] = {
        name: (before.strategies[name], now.strategies[name]) for name in both
    }
    indexed = [name for name, (old, new) in pairs.items() if old.index_hash != new.index_hash]
    configured = [
        name for name, (old, new) in pairs.items() if old.configuration != new.configuration
    ]
    settings = "the level, cutoffs, depth, primary strategy, seeds or the target of the miss rate"
    parts = [settings] if before.settings != now.settings else []
    parts += [_name_some("strategies", configured)] if configured else []
    others = (
        ("new strategies:", sorted(now.strategies.keys() - before.strategies.keys())),
        ("strategies no longer there:", sorted(before.strategies.keys() - now.strategies.keys())),
    )
    changed: Changes = {}
    if before.gold_hash != now.gold_hash:
        old_gold, new_gold = before.gold_hash[:12], now.gold_hash[:12]
        changed["gold_changed"] = f"the gold differs: {old_gold} before, {new_gold} now"
    if before.chunks_hash != now.chunks_hash:
        old_chunks, new_chunks = before.chunks_hash[:12], now.chunks_hash[:12]
        changed["chunks_changed"] = f"the chunks differ: {old_chunks} before, {new_chunks} now"
    if indexed:
        changed["index_changed"] = f"the index differs {_name_some('of', indexed)}"
    if parts:
        changed["configuration_changed"] = f"configured otherwise: {'; '.join(parts)}"
    if before.strategies.keys() != now.strategies.keys():
        changed["strategies_changed"] = "; ".join(_name_some(*row) for row in others if row[1])
    if before.code != now.code:
        changed["code_changed"] = (
            "the code differs: another version of rag_eval or of the libraries underneath"
        )
    return changed


def are_comparable(changed: Changes) -> bool:
    """Check whether two runs measured the same thing. A change of code does not matter."""
    return changed.keys() <= {"code_changed"}


def _name_some(what: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{what} {', '.join(names[:MAX_NAMED])}{more}"


# ---- The part `previous` of a report.

NO_PREVIOUS: Final = "no run of this gold set is kept from before"
GOLD_DIFFERS: Final = (
    "the two runs were judged by different gold: a question may have other targets, so no "
    "figures can be paired"
)
GONE: Final = "the per-query figures of the previous run are gone from the home, or damaged"
NONE_IN_COMMON: Final = "the two have no strategy in common"
NOT_PAIRED: Final = "no question was scored in both runs"


@dataclasses.dataclass(frozen=True)
class Previous:
    """The last kept run before this one, with the changed inputs since.

    `means` are its figures in the form of `means_by_query` for the strategies of this run. They
    are None when no figures can be paired, for `reason`.
    """

    run: KeptRun
    changes: Changes
    means: FloatArray | None
    reason: str


def find_previous(home: Home, now: KeptRun, gold: GoldArrays) -> Previous | None:
    """Read the last run of the gold set before this one; None without one.

    Runs with a later date come from a wrong clock and are left out.
    """
    before = next(readable_runs(home, now.gold_set, before=now.run_id), None)
    if before is None:
        return None
    names = list(now.strategies)
    means, reason, ranking = None, "", before.artifact("ranking_measures")
    if before.gold_hash != now.gold_hash:
        reason = GOLD_DIFFERS
    elif before.strategies.keys().isdisjoint(names):
        reason = NONE_IN_COMMON
    elif ranking is None:
        reason = GONE
    else:
        try:
            queries = gold.queries["query_id"].tolist()
            means = means_by_query(ranking.frame("per_query"), names, queries, now.level)
        except (InputError, OSError, ValueError, KeyError, TypeError, NotImplementedError):
            reason = GONE
    return Previous(before, changes(before, now), means, reason)


def previous_part(
    previous: Previous, now: KeptRun, gold: GoldArrays, per_query: pd.DataFrame
) -> PreviousPart:
    """Compare this run with the previous run; `gold` and `per_query` are of this run."""
    deltas, run = None, previous.run
    if previous.means is not None:
        names, queries = list(now.strategies), gold.queries["query_id"].tolist()
        values = means_by_query(per_query, names, queries, now.level)
        rows = _deltas(names, values, previous.means, gold.shared)
        deltas = [row for row in rows if row.strategy in run.strategies]
    return PreviousPart(
        run_id=run.run_id,
        timestamp=run.timestamp,
        comparable=are_comparable(previous.changes),
        changes=previous.changes,
        deltas=deltas,
        why={} if deltas is not None else {"deltas": previous.reason},
    )


def _deltas(
    names: Sequence[str], now: FloatArray, before: FloatArray, gold: SharedGold
) -> Iterator[NightDelta]:
    """Compare arrays of `means_by_query`: now - before of each strategy and measure."""
    compared = paired_comparison(now, before, gold)
    for at, (name, label) in enumerate((name, label) for name in names for label in COMPARED):
        pairs = np.stack([before[:, at], now[:, at]])
        pairs = pairs[:, ~np.isnan(pairs).any(axis=0)]
        means = pairs.mean(axis=1) if pairs.size else np.full(2, np.nan)
        why = {} if pairs.size else dict.fromkeys(("before", "after"), NOT_PAIRED)
        row = {"strategy": name, "measure": label, **delta_of(compared, at), "why": why}
        row |= {"before": number(means[0]), "after": number(means[1])}
        yield NightDelta.model_validate(row)


def means_by_query(
    frame: pd.DataFrame, names: Sequence[str], queries: Sequence[str], level: Level
) -> FloatArray:
    """Average each compared measure inside each question: float64 [n_queries, 3 x n_strategies].

    A question that a strategy was not scored on is NaN.

    Raises
    ------
    ValueError, KeyError, TypeError, NotImplementedError
        The frame does not hold figures by question.
    """
    columns = [machine_name(label) for label in COMPARED]
    frame = frame[frame["level"] == level]
    by_query = frame.groupby(["strategy", "query_id"])[columns].mean()
    parts = [
        by_query.reindex(pd.MultiIndex.from_product([[name], queries])).to_numpy(dtype=np.float64)
        for name in names
    ]
    values = np.concatenate(parts, axis=1)
    if ((values < 0) | (values > 1)).any():
        raise ValueError("values outside 0 to 1")
    return values
