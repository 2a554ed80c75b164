"""Kept runs: their records, the history of a gold set, and the comparison with the previous run.

A home stores every run as `runs/<run id>.json` with gold_set, artifacts (keys by stage) and report.
Anybody may have changed these files, so every value is checked when it is read.
"""

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

from rag_eval.core.arrays import FloatArray
from rag_eval.core.errors import InputError, format_count, quoted
from rag_eval.core.records import Because, Open, number
from rag_eval.core.types import Level
from rag_eval.corpus.masking import mask
from rag_eval.gates.gate_report import (
    Changes,
    GateStatus,
    HistoryPart,
    NightDelta,
    PastRun,
    PreviousPart,
    RunInputs,
    StrategyInputs,
    UnreadableRun,
)
from rag_eval.gates.regression import with_delta_s
from rag_eval.measures.overlap import NamedGold, SharedGold
from rag_eval.measures.paired import paired_comparison
from rag_eval.measures.ranking import machine_name
from rag_eval.pipeline.corpus import GoldArrays
from rag_eval.pipeline.measures import COMPARED, delta_of
from rag_eval.reporting.metrics_report import REPORT_FILE, dumps
from rag_eval.reporting.report import Report
from rag_eval.reporting.verdicts import read_object, whole_report
from rag_eval.storage.artifacts import Artifact, ArtifactStore
from rag_eval.storage.hashing import digest
from rag_eval.storage.home import Home

# ---- The record of a kept run.

RUN_ID: Final = r"[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}"
Key = Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")]


class KeptRun(PastRun):
    """A run of a home, or a report alone.

    `artifacts` are the keys of its results by stage. `file` is None during the run, and `home` then
    and for a report alone.
    """

    artifacts: dict[str, Key] = Field(exclude=True)
    file: Annotated[Path | None, Because("")] = Field(exclude=True)
    home: Annotated[InstanceOf[Home] | None, Because("")] = Field(default=None, exclude=True)

    @property
    def folder(self) -> Path | None:
        """Folder of a report alone; None for a run of a home."""
        alone = self.file is not None and self.file.stem != self.run_id
        return self.file.parent if self.file is not None and alone else None

    def report(self) -> Report:
        """Read the report; raise InputError if the file was changed."""
        assert self.file is not None
        found = read_object(self.file)
        return whole_report(found if self.folder else found["report"], self.file)

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
            judged, columns = gold.frame("qrels_document"), ["query_id", "item_id", "gain"]
        else:
            judged, columns = self._table("qrels"), ["query_id", "docno", "relevance"]
            names = self._table("questions")["query_id"].unique().tolist()
        query, document, gain = (judged[name] for name in columns)
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
    ValueError, KeyError, TypeError, AttributeError
        A value has a form that no run writes.
    """
    index, level, inputs = report["index"], report["evaluation"]["level"], run_inputs(report)
    for entry in report["strategies"]:
        inputs["strategies"][entry["name"]] |= _strategy(entry, level, report)
    statuses = [gate["status"] for gate in report["gates"]]
    same = ("run_id", "content_hash", "timestamp")
    return KeptRun.model_validate(
        inputs
        | {name: report[name] for name in same}
        | {
            "gold_set": gold_set,
            "primary": report["strategy"],
            "n_groups": report["gold"]["n_groups"],
            "index_hash": index["hash"],
            "rev": quoted(mask(index["rev"]).text, 200),
            "analyzer": index["analyzer"],
            "level": level,
            "gates": {name: statuses.count(name) for name in get_args(GateStatus)},
            "comparable": None,
            "changes": {},
            "artifacts": artifacts,
            "file": file,
        }
    )


def _strategy(entry: Mapping[str, Any], level: Level, report: Mapping[str, Any]) -> Open:
    name = entry["name"]
    by_label = {record["label"]: record for record in entry["measures"] if record["level"] == level}
    observed = report["uncertainty"]["strategies"][name]["observed"]
    calibration = report["calibration"]["strategies"][name]
    figures = {"recall": by_label["R@10"], "mrr": by_label["RR"], "miss_any": observed["miss_any"]}
    columns = ("value", "ci_low", "ci_high", "n_scored")
    return {
        **{key: {name: record[name] for name in columns} for key, record in figures.items()},
        "skill": (calibration["validation"] or {}).get("skill"),
        "status": calibration["status"],
        "latency_p95_ms": entry["latency_ms"]["p95"],
    }


# ---- Storage of kept runs: write, list, find by name, and read.

RUNS: Final = "runs"
NOT_KEPT: Final = "not a complete kept run of this version"


def run_name(run_id: str) -> str:
    """Return the name of a kept run's file in the home."""
    return f"{RUNS}/{run_id}.json"


def keep_run(home: Home, run: KeptRun, artifacts: Mapping[str, str], report: Open) -> None:
    """Store a run with its whole report and the keys of its artifacts."""
    kept = {"gold_set": run.gold_set, "artifacts": artifacts, "report": report}
    home.write(run_name(run.run_id), dumps(kept).encode())


def run_ids(home: Home) -> list[str]:
    """List the ids of the runs of a home, oldest first."""
    return sorted(
        Path(name).stem for name in home.names(RUNS) if Path(name).match(f"{RUNS}/*.json")
    )


def read_run(home: Home, run_id: str) -> KeptRun | UnreadableRun:
    """Read the record of a kept run. An unchanged file is read only once."""
    try:
        path = home.fetch(run_name(run_id))
        state = path.stat()
        run = _read(path, (state.st_mtime_ns, state.st_size))
        return run.model_copy(update={"home": home}) if isinstance(run, KeptRun) else run
    except OSError as error:
        return UnreadableRun(run_id=_mask_run_id(run_id), reason=quoted(str(error.strerror)))


def _mask_run_id(run_id: str) -> str:
    return quoted(mask(run_id).text, 100)


@functools.lru_cache(maxsize=4096)
def _read(path: Path, _state: tuple[int, int]) -> KeptRun | UnreadableRun:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        run = make_record(kept["gold_set"], kept["artifacts"], kept["report"], path)
        if run.run_id == path.stem and run.primary in run.strategies:
            return run
        reason = NOT_KEPT
    except ValidationError as error:
        place = [str(part) for part in error.errors()[0]["loc"] if part in KeptRun.model_fields]
        reason = f"{NOT_KEPT}: {'.'.join(place)}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        reason = NOT_KEPT
    return UnreadableRun(run_id=_mask_run_id(path.stem), reason=reason)


def _gold_set_of(home: Home, run_id: str) -> str | None:
    """Return the name of the gold set of a run; None for a run that cannot be read."""
    run = read_run(home, run_id)
    return None if isinstance(run, UnreadableRun) else run.gold_set


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
    if name and (path.suffix == ".json" or path.is_dir()):
        path = path / REPORT_FILE if path.is_dir() else path
        report = whole_report(read_object(path), path)
        return make_record(report.gold.name, {}, report.dump(), path.absolute())
    ids = run_ids(home)
    by_age = {"latest": 0, "previous": 1}
    named = [run_id for run_id in ids[::-1] if name and (name in by_age or run_id.startswith(name))]
    if gold_set is None and name and not named:
        named = [run_id for run_id in ids[::-1] if _gold_set_of(home, run_id) == name][:1]
    found: list[KeptRun] = []
    for run_id in named:
        run = read_run(home, run_id)
        if isinstance(run, UnreadableRun):
            message = f"This kept run cannot be read ({run.reason}). Move it away."
            place = home.address_of(run_name(run_id))
            raise InputError.of("run_unreadable", message, file=place, found=run.run_id)
        found += [run] if gold_set in {None, run.gold_set} else []
        if len(found) > by_age.get(name, len(named)):
            return found[-1]
    if len(found) == 1 and name not in by_age:
        return found[0]
    owner = "" if gold_set is None else f" of {quoted(gold_set)}"
    recent = ", ".join(quoted(run_id) for run_id in ids[-5:]) or "this home keeps none"
    message = f"{format_count(len(found), 'run')}{owner} by this name. Name one run."
    if name in by_age and found:
        message = f"Only one run{owner} is kept. Run again, or name another."
    elif name in by_age:
        message = f"No run{owner} is kept. Run first."
    raise InputError.of(
        "run_not_found",
        message,
        file=home.address_of(RUNS),
        field="RUN",
        found=name,
        accepted=f"latest, previous, or one of: {recent}",
    )


def past_runs(
    home: Home, gold_set: str, before: str = "~"
) -> tuple[list[KeptRun], list[UnreadableRun]]:
    """Read the kept runs of a gold set with ids before `before`, oldest first.

    The second list holds the runs of the home that cannot be read.
    """
    records = [read_run(home, run_id) for run_id in run_ids(home) if run_id < before]
    runs = [run for run in records if isinstance(run, KeptRun) and run.gold_set == gold_set]
    return runs, [run for run in records if isinstance(run, UnreadableRun)]


def open_nights(home: Home, name: str, nights: int) -> list[KeptRun]:
    """Open a run as `open_run` does, after the kept runs of its gold set before it, oldest first.

    `nights` is the largest number of runs.
    """
    run = open_run(home, name)
    before, _ = past_runs(home, run.gold_set, run.run_id)
    return [*before, run][-nights:]


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
    found: Changes = {}
    if before.gold_hash != now.gold_hash:
        old_gold, new_gold = before.gold_hash[:12], now.gold_hash[:12]
        found["gold_changed"] = f"the gold differs: {old_gold} before, {new_gold} now"
    if before.chunks_hash != now.chunks_hash:
        old_chunks, new_chunks = before.chunks_hash[:12], now.chunks_hash[:12]
        found["chunks_changed"] = f"the chunks differ: {old_chunks} before, {new_chunks} now"
    if indexed:
        found["index_changed"] = f"the index differs {_name_some('of', indexed)}"
    if parts:
        found["configuration_changed"] = f"configured otherwise: {'; '.join(parts)}"
    if before.strategies.keys() != now.strategies.keys():
        found["strategies_changed"] = "; ".join(_name_some(*row) for row in others if row[1])
    if before.code != now.code:
        found["code_changed"] = (
            "the code differs: another version of rag_eval or of the libraries underneath"
        )
    return found


def are_comparable(changed: Changes) -> bool:
    """Check whether two runs measured the same thing. A change of code does not matter."""
    return changed.keys() <= {"code_changed"}


def _name_some(what: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{what} {', '.join(names[:MAX_NAMED])}{more}"


# ---- The parts `history` and `previous` of a report.

MAX_RUNS, MAX_UNREADABLE = 60, 20
NO_PREVIOUS: Final = "no run of this gold set is kept from before"
GOLD_DIFFERS: Final = (
    "the two runs were judged by different gold: a question may have other targets, so no "
    "figures can be paired"
)
GONE: Final = "the per-query figures of the previous run are gone from the home, or damaged"
NONE_IN_COMMON: Final = "the two have no strategy in common"
NOT_PAIRED: Final = "no question was scored in both runs"


def history_part(
    past: Sequence[KeptRun], unreadable: Sequence[UnreadableRun], now: KeptRun
) -> HistoryPart:
    """Describe the newest of the kept runs with what changed between them; `now` is the last."""
    runs = [*past[1 - MAX_RUNS :], now]
    entries: list[PastRun] = [runs[0]]
    for before, run in itertools.pairwise(runs):
        found = changes(before, run)
        entries.append(
            run.model_copy(update={"comparable": are_comparable(found), "changes": found})
        )
    return HistoryPart(
        runs=[PastRun.model_validate(entry.dump()) for entry in entries],
        n_left_out=len(past) + 1 - len(runs),
        unreadable=list(unreadable[::-1][:MAX_UNREADABLE]),
        n_unreadable=len(unreadable),
    )


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


def find_previous(past: Sequence[KeptRun], now: KeptRun, gold: GoldArrays) -> Previous | None:
    """Read the last of the kept runs beside this run; None without one."""
    if not past:
        return None
    before, names = past[-1], list(now.strategies)
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
    found = paired_comparison(now, before, gold)
    for at, (name, label) in enumerate((name, label) for name in names for label in COMPARED):
        pairs = np.stack([before[:, at], now[:, at]])
        pairs = pairs[:, ~np.isnan(pairs).any(axis=0)]
        means = pairs.mean(axis=1) if pairs.size else np.full(2, np.nan)
        why = {} if pairs.size else dict.fromkeys(("before", "after"), NOT_PAIRED)
        row = {"strategy": name, "measure": label, **delta_of(found, at), "why": why}
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
