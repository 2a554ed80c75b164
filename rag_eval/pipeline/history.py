"""Kept runs: their records, the history of a gold set, and the comparison with the previous run.

A home stores every run as `runs/<run id>.json` with gold_set, artifacts (keys by stage) and report.
Anybody may have changed these files, so every value is checked when it is read.
"""

import dataclasses
import datetime as dt
import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn, get_args

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.core.config import Level
from rag_eval.core.errors import InputError, quoted
from rag_eval.core.report import (
    Estimate,
    Evaluated,
    HistoryPart,
    NightDelta,
    Open,
    PastFigure,
    PastRun,
    PastStrategy,
    PreviousPart,
    Report,
    UnreadableRun,
    number,
)
from rag_eval.core.settings import Settings
from rag_eval.core.strategy import Strategy
from rag_eval.corpus.masking import mask
from rag_eval.gold.configuration import gold_set_name
from rag_eval.measures.paired import paired_comparison
from rag_eval.measures.ranking import machine_name
from rag_eval.pipeline.corpus import GoldArrays
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.measures import BOOTSTRAP_SEED, COMPARED, delta_of
from rag_eval.reporting.metrics_report import REPORT_FILE, dumps
from rag_eval.reporting.verdicts import read_object, read_report, whole_report
from rag_eval.storage.artifacts import Artifact, ArtifactStore, write_text
from rag_eval.storage.hashing import code_version, digest

# ---- The record of a kept run.

RUN_ID: Final = r"[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}"
MAX_STRATEGIES: Final = 1000
NOT_STATED: Final = (
    "the run's report has no value: too few questions, or a version without this measure"
)
_SHOWN_REVISION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,:=+@/-]{0,199}")

GateStatus = Literal["pass", "fail", "insufficient_evidence"]
Count = Annotated[int, Field(ge=0, le=10**12)]
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32,64}$")]
IndexHash = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,64}:[0-9a-f]{32}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
Key = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8,64}$")]


class _Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class StrategyBasis(_Checked):
    """Inputs of a strategy's figures: its index and a hash of its configuration."""

    index_hash: IndexHash
    configuration: Hash


class KeptStrategy(StrategyBasis):
    """One strategy of a kept run. `fingerprint` is the fingerprint of its claims."""

    fingerprint: Hash | None
    figures: PastStrategy


class RunBasis(_Checked):
    """Inputs of the figures of a run.

    `settings`: Hash of levels, cutoffs, seeds and of the definition of a miss.
    `code`: Version of the code; None for early versions that did not record it.
    """

    gold_hash: Hash
    chunks_hash: Hash
    settings: Hash
    code: Hash | None
    strategies: Annotated[Mapping[Name, StrategyBasis], Field(max_length=MAX_STRATEGIES)]


class KeptRun(RunBasis):
    """A kept run.

    `primary`: Name of the primary strategy.
    `gates`: Number of gates by status.
    `artifacts`: Keys of the artifacts by stage.
    `file`: File of the kept run, or of a single report; None during the run.
    """

    gold_set: Name
    run_id: Annotated[str, StringConstraints(pattern=rf"^{RUN_ID}$")]
    content_hash: Hash
    timestamp: Annotated[str, StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z$")]
    n_groups: Count
    index_hash: IndexHash
    rev: str | None
    analyzer: str
    level: Level
    primary: str
    strategies: Annotated[Mapping[Name, KeptStrategy], Field(max_length=MAX_STRATEGIES)]
    gates: dict[GateStatus, Count]
    artifacts: dict[str, Key]
    file: Path | None = None

    @property
    def recall(self) -> PastFigure | None:
        """R@10 of the primary strategy at the headline level."""
        return self.strategies[self.primary].figures.recall

    @property
    def folder(self) -> Path | None:
        """Folder of a single report; None for a run of a home."""
        alone = self.file is not None and self.file.stem != self.run_id
        return self.file.parent if self.file is not None and alone else None

    def report(self) -> Report:
        """Read the report.

        Raises
        ------
        InputError
            The file was changed.
        """
        assert self.file is not None
        if self.folder is not None:
            return read_report(self.file)
        return whole_report(read_object(self.file)["report"], self.file)

    def artifact(self, stage: str, strategy: str = "") -> Artifact | None:
        """Find the result of a stage; None when the run names no result or the result is gone."""
        key = self.artifacts.get(f"{stage} {strategy}".strip())
        if key is None or self.file is None:
            return None
        return ArtifactStore(self.file.parents[1] / "artifacts").get(stage, key)

    def stored(self, stage: str, strategy: str = "") -> Artifact:
        """Open the result of a stage.

        Raises
        ------
        InputError
            The run names no result, or the result is gone.
        """
        artifact = self.artifact(stage, strategy)
        if artifact is None:
            raise InputError.of(
                "run_incomplete",
                f"The {stage} of this run is no longer in the home. Run the gold set again.",
                file=self.file,
                field="RUN",
                found=self.run_id,
            )
        return artifact

    def per_query(self) -> pd.DataFrame:
        """Read the figures of every question.

        Raises
        ------
        InputError
            The figures are gone.
        """
        if self.folder is not None:
            path = self.folder / "per-query.parquet"
            try:
                return pd.read_parquet(path)
            except (OSError, ValueError) as error:
                message = "The figures by question beside the report cannot be read."
                raise InputError.of("run_incomplete", message, path, found=str(error)) from error
        return self.stored("ranking_measures").frame("per_query")


def make_record(
    gold_set: str, artifacts: dict[str, str], report: Mapping[str, Any], file: Path | None = None
) -> KeptRun:
    """Make the record of a run. Parts that early versions lack are None.

    Raises
    ------
    pydantic.ValidationError, KeyError, TypeError, AttributeError
        A value has a form that no run writes.
    """
    index, evaluation = report["index"], report["evaluation"]
    uncertainty, rev = report.get("uncertainty", {}), index.get("corpus_rev")
    statuses: tuple[GateStatus, ...] = get_args(GateStatus)
    strategies = {entry["name"]: _strategy(entry, report) for entry in report["strategies"]}
    if report["strategy"] not in strategies:
        raise ValueError("the primary strategy has no entry")
    return KeptRun(
        gold_set=gold_set,
        run_id=report["run_id"],
        content_hash=report["content_hash"],
        timestamp=report["timestamp"],
        gold_hash=report["gold"]["hash"],
        n_groups=report["gold"]["n_groups"],
        index_hash=index["hash"],
        chunks_hash=index["chunks_hash"],
        rev=rev if isinstance(rev, str) else None,
        analyzer=index["analyzer"],
        level=evaluation["level"],
        settings=digest(
            [
                evaluation,
                report["gold"].get("seeds"),
                uncertainty.get("target"),
                uncertainty.get("k"),
            ]
        ),
        code=report.get("code", {}).get("version"),
        primary=report["strategy"],
        strategies=strategies,
        gates={
            status: sum(gate["status"] == status for gate in report["gates"]) for status in statuses
        },
        artifacts=artifacts,
        file=file,
    )


def _strategy(entry: Mapping[str, Any], report: Mapping[str, Any]) -> KeptStrategy:
    level, name = report["evaluation"]["level"], entry["name"]
    by_label = {record["label"]: record for record in entry["measures"] if record["level"] == level}
    claims = report.get("uncertainty", {}).get("strategies", {}).get(name, {})
    calibration = report.get("calibration", {}).get("strategies", {}).get(name, {})
    skill = (calibration.get("validation") or {}).get("skill")
    figures = {
        "recall": _figure(by_label.get("R@10")),
        "mrr": _figure(by_label.get("RR")),
        "miss_any": _figure(claims.get("observed", {}).get("miss_any")),
        "skill": None
        if skill is None
        else Estimate(value=skill["value"], ci_low=skill["low"], ci_high=skill["high"]),
        "status": calibration.get("status"),
        "latency_p95_ms": entry["latency_ms"]["p95"],
    }
    why = {key: NOT_STATED for key, value in figures.items() if value is None}
    return KeptStrategy(
        index_hash=entry["index_hash"],
        configuration=digest(entry["configuration"]),
        fingerprint=claims.get("fingerprint"),
        figures=PastStrategy(index_hash=entry["index_hash"], **figures, why=why),
    )


def _figure(record: Mapping[str, Any] | None) -> PastFigure | None:
    names = ("value", "ci_low", "ci_high", "n_scored")
    return None if record is None else PastFigure(**{name: record[name] for name in names})


# ---- Storage of kept runs: write, list, find by name, and read.

NOT_KEPT: Final = "not a complete kept run"
CANNOT: Final = "it cannot be read"


def keep_run(home: Path, run: KeptRun, report: Mapping[str, Any]) -> Path:
    """Store a run with its whole report."""
    path = home / "runs" / f"{run.run_id}.json"
    kept = {"gold_set": run.gold_set, "artifacts": run.artifacts, "report": report}
    write_text(path, dumps(kept))
    return path


def run_ids(home: Path) -> list[str]:
    """List the ids of the runs of a home, oldest first."""
    return sorted(path.stem for path in (home / "runs").glob("*.json") if path.name[0] != ".")


def read_run(home: Path, run_id: str) -> KeptRun | UnreadableRun:
    """Read the record of a kept run. An unchanged file is read only once."""
    path = home / "runs" / f"{run_id}.json"
    try:
        state = path.stat()
        return _read(path, (state.st_mtime_ns, state.st_size))
    except OSError:
        return UnreadableRun(run_id=quoted(mask(run_id).text, 100), reason=CANNOT)


@functools.lru_cache(maxsize=4096)
def _read(path: Path, _state: tuple[int, int]) -> KeptRun | UnreadableRun:
    try:
        text = path.read_text(encoding="utf-8")
        kept = json.loads(text, parse_constant=_refuse_constant)
        run = make_record(kept["gold_set"], kept["artifacts"], kept["report"], path)
        if run.run_id == path.stem:
            return run
        reason = f"{NOT_KEPT}: it is the file of another run"
    except ValidationError as error:
        models: tuple[type[BaseModel], ...] = (KeptRun, PastStrategy, PastFigure)
        names = {name for model in models for name in model.model_fields}
        place = [str(part) for part in error.errors()[0]["loc"] if part in names]
        reason = f"{NOT_KEPT}: {'.'.join(place)}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        reason = NOT_KEPT
    return UnreadableRun(run_id=quoted(mask(path.stem).text, 100), reason=reason)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def open_run(home: Path, name: str, gold_set: str | None = None) -> KeptRun:
    """Open a run by a name as in `open_kept_run`, or by the path of a report of any gold set."""
    path = Path(name)
    if name and (path.suffix == ".json" or path.is_dir()):
        path = path / REPORT_FILE if path.is_dir() else path
        report = read_report(path)
        try:
            return make_record(report.gold.name, {}, report.dump(), path.absolute())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            found = str(error)[:200]
            raise InputError.of("run_unreadable", NOT_KEPT, path, found=found) from error
    return open_kept_run(home, name, gold_set)


def open_kept_run(home: Path, name: str, gold_set: str | None = None) -> KeptRun:
    """Open a run of a home by its id, the start of its id, `latest` or `previous`.

    Only runs of `gold_set` count, if it is given.

    Raises
    ------
    InputError
        No run or several runs have this name, or the run cannot be read.
    """
    ids = run_ids(home)
    by_age = name in {"latest", "previous"}
    named = ids[::-1] if by_age else [run_id for run_id in ids if name and run_id.startswith(name)]
    found: list[KeptRun] = []
    needed = {"latest": 1, "previous": 2}.get(name, len(named))
    for run_id in named:
        run = read_run(home, run_id)
        if isinstance(run, UnreadableRun):
            message = f"This kept run cannot be read ({run.reason}). Move it away."
            path = home / "runs" / f"{run_id}.json"
            raise InputError.of("run_unreadable", message, file=path, found=run.run_id)
        found += [run] if gold_set in {None, run.gold_set} else []
        if len(found) == needed:
            break
    if by_age:
        found = found[needed - 1 : needed]
    if len(found) == 1:
        return found[0]
    owner = "" if gold_set is None else f" of {quoted(gold_set)}"
    recent = ", ".join(quoted(run_id) for run_id in ids[-5:]) or "this home keeps none"
    raise InputError.of(
        "run_not_found",
        f"{len(found)} runs{owner} have this name",
        file=str(home / "runs"),
        field="RUN",
        found=name,
        accepted=f"latest, previous, or one of: {recent}",
    )


def open_judged_run(settings: Settings, gold_set: str | None, name: str | None) -> KeptRun:
    """Open the run for a verdict; without a name, the newest report in the folder of reports.

    `gold_set` defaults to the primary one, unless an id or a path names the run.
    """
    owner = gold_set or settings.primary_gold_set
    if name is None:
        return open_run(settings.home, str(settings.reports / gold_set_name(owner) / REPORT_FILE))
    return open_run(settings.home, name, owner if name in {"latest", "previous"} else gold_set)


@dataclasses.dataclass(frozen=True)
class Past:
    """The kept runs of one gold set in a home.

    `runs`: The newest runs, oldest first.
    `unreadable`: Some of the runs that cannot be read, newest first.
    `n_unreadable`, `n_left_out`: Number of unreadable runs, and of older runs not in `runs`.
    """

    runs: list[KeptRun]
    unreadable: list[UnreadableRun]
    n_unreadable: int
    n_left_out: int


MAX_UNREADABLE: Final = 20
MAX_RUNS: Final = 60
"""Number of runs in a history, with the current run."""


def past_runs(home: Path, gold_set: str, *, before: str = "~", limit: int | None = None) -> Past:
    """Read the newest kept runs of a gold set with ids before `before`."""
    records = [read_run(home, run_id) for run_id in run_ids(home)[::-1] if run_id < before]
    runs = [run for run in records if isinstance(run, KeptRun) and run.gold_set == gold_set]
    unreadable = [run for run in records if isinstance(run, UnreadableRun)]
    newest = runs[:limit]
    left_out = len(runs) - len(newest)
    return Past(newest[::-1], unreadable[:MAX_UNREADABLE], len(unreadable), left_out)


def earlier_runs(evaluation: Evaluation) -> Past:
    """Read the kept runs of this gold set that are dated before now.

    Runs with a later date come from a wrong clock and are left out.
    """
    now = f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%S%f}"[:-3]
    home, name = evaluation.settings.home, evaluation.config.name
    return past_runs(home, name, before=f"{now}Z", limit=MAX_RUNS - 1)


# ---- Differences between two runs.

CODES: Final = (
    "gold_changed",
    "chunks_changed",
    "index_changed",
    "configuration_changed",
    "strategies_changed",
    "code_changed",
)
MAX_NAMED: Final = 5


def configuration_part(spec: Strategy) -> Open:
    """Describe the configuration of a strategy, without local paths and settings."""
    shown = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    for part in (shown, shown.get("rerank", {})):
        embedding = part.get("embedding", {})
        if "vectors" in embedding:
            embedding["vectors"] = "(file)"
        if embedding.get("config"):  # part of the settings, which may hold an address
            embedding["config"] = f"(settings {digest(embedding['config'], 16)})"
    return shown | {key: "(file)" for key in ("run_file", "recorded") if key in shown}


def evaluation_part(evaluation: Evaluation) -> Evaluated:
    """Describe the configuration of the evaluation."""
    config = evaluation.config
    return Evaluated(
        k=list(config.k),
        depth=config.depth,
        level=config.level,
        primary=config.primary_strategy,
        partial=evaluation.partial,
        known=evaluation.known,
    )


def run_basis(
    evaluation: Evaluation, gold_hash: str, chunks_hash: str, index_hashes: Mapping[str, str]
) -> RunBasis:
    """Identify the inputs of this run, before its report exists."""
    config = evaluation.config
    specs = {spec.name: spec for spec in config.strategies}
    miss = config.uncertainty
    return RunBasis(
        gold_hash=gold_hash,
        chunks_hash=chunks_hash,
        settings=digest(
            [evaluation_part(evaluation).dump(), list(config.seeds), miss.target, miss.k],
        ),
        code=code_version(),
        strategies={
            name: StrategyBasis(
                index_hash=index_hash, configuration=digest(configuration_part(specs[name]))
            )
            for name, index_hash in index_hashes.items()
        },
    )


def changes(before: RunBasis, now: RunBasis) -> dict[str, str]:
    """Describe the changed inputs of the figures of two runs: code -> sentence."""
    both = sorted(set(before.strategies) & set(now.strategies))
    pairs = {name: (before.strategies[name], now.strategies[name]) for name in both}
    indexed = [name for name, (was, is_now) in pairs.items() if was.index_hash != is_now.index_hash]
    configured = [
        name for name, (was, is_now) in pairs.items() if was.configuration != is_now.configuration
    ]
    new = sorted(set(now.strategies) - set(before.strategies))
    gone = sorted(set(before.strategies) - set(now.strategies))
    found = {}
    if before.gold_hash != now.gold_hash:
        found["gold_changed"] = (
            f"the gold differs: {before.gold_hash[:12]} before, {now.gold_hash[:12]} now"
        )
    if before.chunks_hash != now.chunks_hash:
        found["chunks_changed"] = (
            f"the chunks differ: {before.chunks_hash[:12]} before, {now.chunks_hash[:12]} now"
        )
    if indexed:
        found["index_changed"] = f"the index differs of {_name_some(indexed)}"
    if before.settings != now.settings or configured:
        parts = (
            ["the level, cutoffs, depth, primary strategy, seeds or the target of the miss rate"]
            if before.settings != now.settings
            else []
        ) + ([f"strategies {_name_some(configured)}"] if configured else [])
        found["configuration_changed"] = f"configured otherwise: {'; '.join(parts)}"
    if new or gone:
        named = (("new strategies", new), ("strategies no longer there", gone))
        found["strategies_changed"] = "; ".join(
            f"{what}: {_name_some(names)}" for what, names in named if names
        )
    if before.code != now.code:
        found["code_changed"] = (
            "the code differs: another version of rag_eval or of the libraries underneath"
        )
    return found


def are_comparable(changed: Mapping[str, str]) -> bool:
    """Check whether two runs measured the same thing. A change of code does not matter."""
    return not set(changed) - {"code_changed"}


def _name_some(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


# ---- The parts `history` and `previous` of a report.

NO_PREVIOUS: Final = "no run of this gold set is kept from before"
FIRST: Final = "the history holds no earlier run"
GOLD_DIFFERS: Final = (
    "the two runs were judged by different gold: a question may have other targets, so no "
    "figures can be paired"
)
GONE: Final = "the per-query figures of the previous run are no longer in the home"
DAMAGED: Final = "the per-query figures of the previous run are damaged"
NONE_IN_COMMON: Final = "the two have no strategy in common"
NOT_PAIRED: Final = "no question was scored in both runs"
NO_REVISION: Final = (
    "the run's report has no revision that could be shown: a name without personal data or markup"
)


def history_parts(
    evaluation: Evaluation, now: KeptRun, gold: GoldArrays, per_query: pd.DataFrame
) -> tuple[HistoryPart, PreviousPart | None]:
    """Build the parts `history` and `previous` of a report; None without a previous run.

    `gold` and `per_query` are the questions and the figures of this run.
    """
    past = earlier_runs(evaluation)
    runs = [*past.runs, now]
    history = HistoryPart(
        runs=[
            _entry(run, before, is_this=run is now)
            for run, before in zip(runs, [None, *runs], strict=False)
        ],
        n_left_out=past.n_left_out,
        unreadable=past.unreadable,
        n_unreadable=past.n_unreadable,
    )
    if not past.runs:
        return history, None
    before = past.runs[-1]
    found, deltas = changes(before, now), _deltas(before, now, gold, per_query)
    previous = PreviousPart(
        run_id=before.run_id,
        timestamp=before.timestamp,
        comparable=are_comparable(found),
        reason_codes=list(found),
        reasons=list(found.values()),
        deltas=None if isinstance(deltas, str) else deltas,
        why={"deltas": deltas} if isinstance(deltas, str) else {},
    )
    return history, previous


def _entry(run: KeptRun, before: KeptRun | None, *, is_this: bool) -> PastRun:
    found = {} if before is None else changes(before, run)
    has_rev = run.rev and _SHOWN_REVISION.fullmatch(run.rev) and mask(run.rev).text == run.rev
    why = {} if has_rev else {"rev": NO_REVISION}
    if not found:
        why["reason"] = FIRST if before is None else "comparable with the previous run"
    if before is None:
        why["comparable"] = FIRST
    return PastRun(
        run_id=run.run_id,
        timestamp=run.timestamp,
        index_hash=run.index_hash,
        chunks_hash=run.chunks_hash,
        rev=run.rev if has_rev else None,
        gold_hash=run.gold_hash,
        n_groups=run.n_groups,
        level=run.level,
        comparable=None if before is None else are_comparable(found),
        reason="; ".join(found.values()) or None,
        reason_codes=list(found),
        strategies={name: strategy.figures for name, strategy in run.strategies.items()},
        gates={
            "passed": run.gates["pass"],
            "failed": run.gates["fail"],
            "insufficient": run.gates["insufficient_evidence"],
        },
        is_this=is_this,
        why=why,
    )


def _deltas(
    before: KeptRun, now: KeptRun, gold: GoldArrays, per_query: pd.DataFrame
) -> list[NightDelta] | str:
    """Compare this run with the previous run at the headline level.

    Returns the reason when the runs cannot be compared.
    """
    names = [name for name in now.strategies if name in before.strategies]
    queries = gold.queries["query_id"].tolist()
    past = previous_means(before, now.gold_hash, names, queries, now.level)
    if isinstance(past, str):
        return past
    values = means_by_query(per_query, names, queries, now.level)
    return delta_rows(names, values, past, gold.groups)


def previous_means(
    before: KeptRun, gold_hash: str, names: Sequence[str], queries: Sequence[str], level: Level
) -> FloatArray | str:
    """Read the figures of the previous run in the form of `means_by_query`.

    Returns the reason when the figures cannot be used.
    """
    if before.gold_hash != gold_hash:
        return GOLD_DIFFERS
    if not names:
        return NONE_IN_COMMON
    ranking = before.artifact("ranking_measures")
    if ranking is None:
        return GONE
    try:
        return means_by_query(ranking.frame("per_query"), names, queries, level)
    except (InputError, OSError, ValueError, KeyError, TypeError, NotImplementedError):
        return DAMAGED


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


def delta_rows(
    names: Sequence[str], now: FloatArray, before: FloatArray, groups: IntArray
) -> list[NightDelta]:
    """Compute paired differences now - before, one row for each strategy and measure.

    `now` and `before` are [n_queries, 3 x n_strategies], NaN without a score; `groups` is
    [n_queries], the unit of inference.
    """
    # One sign flip is enough, because the report shows no p-value of these differences.
    found = paired_comparison(now, before, groups, BOOTSTRAP_SEED, flips=1)
    both = ~np.isnan(now) & ~np.isnan(before)
    rows = []
    for at, (name, label) in enumerate((name, label) for name in names for label in COMPARED):
        scored = both[:, at]
        means = {
            key: number(float(values[scored, at].mean())) if scored.any() else None
            for key, values in (("before", before), ("after", now))
        }
        why = {} if scored.any() else dict.fromkeys(means, NOT_PAIRED)
        row = {"strategy": name, "measure": label, **means, **delta_of(found, at), "why": why}
        rows.append(NightDelta.model_validate(row))
    return rows
