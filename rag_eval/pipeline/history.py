"""Kept runs: their records, the previous run, baselines, comparisons, and the rollout decision.

A home stores every run as `runs/<run id>.json` with gold_set, artifacts (keys by stage) and report.
Anybody may have changed these files, so every value is checked when it is read. A baseline names a
kept run, with the person, the reason and the time.
"""

import contextlib
import datetime as dt
import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, get_args

import numpy as np
import pandas as pd
from pydantic import BaseModel, Field, InstanceOf, ValidationError

from rag_eval.core.arrays import FloatArray, number
from rag_eval.core.errors import InputError, check_decision, format_count, quoted
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
from rag_eval.core.settings import Settings
from rag_eval.core.types import Level
from rag_eval.corpus.masking import mask
from rag_eval.gates import rollout
from rag_eval.gates.gate import Changes, GateStatus, NightDelta, PreviousPart, RunInputs
from rag_eval.gates.verdict import higher_is_better, required_failures, with_delta_s
from rag_eval.gold.configuration import gold_set_name
from rag_eval.measures.intervals import COMPARED, delta_of, paired_comparison
from rag_eval.measures.overlap import NamedGold, SharedGold
from rag_eval.measures.ranking import find_machine_name, machine_name
from rag_eval.measures.run_scores import GoldArrays
from rag_eval.measures.strategy_figures import Row, comparison_rows
from rag_eval.reporting.report import Report, dumps, read_object, whole_report
from rag_eval.storage.artifacts import Artifact, ArtifactStore
from rag_eval.storage.hashing import canonical_json, digest
from rag_eval.storage.home import Home, open_home
from rag_eval.storage.locks import WriteLock

# ---- The record of a kept run.

RUN_ID: Final = r"[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}"
Key = Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")]


class Recall(Estimate):
    """R@10 of the primary strategy at the headline level."""

    n_scored: Count


class KeptRun(RunInputs):
    """A run of a home. `artifacts` are the keys of its results by stage.

    `file` and `home` are None during the run.
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

    def report(self) -> Report:
        """Read the report; raise InputError if the file was changed."""
        assert self.file is not None
        return whole_report(read_object(self.file)["report"], self.file)

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
        """Read the figures of every question, with delta_s; raise InputError if they are gone."""
        per_run = self.stored("stability_measures").frame("per_run")
        return with_delta_s(self.stored("ranking_measures").frame("per_query"), per_run)

    def shared_gold(self) -> NamedGold:
        """Read which relevant documents the questions share; raise InputError if it is gone."""
        gold = self.stored("gold_variants")
        names = gold.frame("queries", ["query_id"])["query_id"].tolist()
        qrels = gold.frame("qrels_document")
        qrels = qrels[qrels["gain"] > 0]
        row = pd.Index(names).get_indexer(pd.Index(qrels["query_id"]))
        document = pd.factorize(qrels["item_id"])[0]
        return NamedGold(names, SharedGold.of_pairs(row, document, len(names)))

    def keep(self, home: Home, artifacts: Mapping[str, str], report: Open) -> None:
        """Store the run with its whole report and the keys of its artifacts."""
        record = {"gold_set": self.gold_set, "artifacts": artifacts, "report": report}
        home.write(run_name(self.run_id), dumps(record).encode())


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
    """Make the record of a run; raise an error of `_DAMAGES` for a value that no run writes."""
    level, primary = report["evaluation"]["level"], report["strategy"]
    statuses = [gate["status"] for gate in report["gates"]]
    measures = {entry["name"]: entry["measures"] for entry in report["strategies"]}[primary]
    recall = {row["label"]: row for row in measures if row["level"] == level}["R@10"]
    columns = ("value", "ci_low", "ci_high", "n_scored")
    return KeptRun(
        **run_inputs(report),
        **{name: report[name] for name in ("run_id", "content_hash", "timestamp")},
        gold_set=gold_set,
        primary=primary,
        index_hash=report["index"]["hash"],
        analyzer=report["index"]["analyzer"],
        level=level,
        recall=Recall.model_validate({name: recall[name] for name in columns}),
        gates={name: statuses.count(name) for name in get_args(GateStatus)},
        artifacts=artifacts,
        file=file,
    )


# ---- Storage of kept runs: write, list, find by name, and read.

RUNS: Final = "runs"
_DAMAGES: Final = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors of reading a file that another program changed."""


def run_name(run_id: str) -> str:
    """Return the name of a kept run's file in the home."""
    return f"{RUNS}/{run_id}.json"


def run_ids(home: Home) -> list[str]:
    """List the ids of the runs of a home, oldest first."""
    return sorted(
        Path(name).stem for name in home.names(RUNS) if Path(name).match(f"{RUNS}/*.json")
    )


def read_run(home: Home, run_id: str) -> KeptRun:
    """Read the record of a kept run. An unchanged file is read only once.

    Raises InputError (`run_unreadable`) if another program, or another version, wrote the file.
    """
    try:
        path = home.fetch(run_name(run_id))
        state = path.stat()
        return _read(path, (state.st_mtime_ns, state.st_size)).model_copy(update={"home": home})
    except _DAMAGES as error:
        fields: list[object] = []
        if isinstance(error, ValidationError):
            fields = [part for part in error.errors()[0]["loc"] if part in KeptRun.model_fields]
        place = f" at {'.'.join(map(str, fields))}" if fields else ""
        raise InputError.of(
            "run_unreadable",
            f"not a complete kept run of this version{place}; move it away",
            file=home.address_of(run_name(run_id)),
            found=quoted(mask(run_id).text, 100),
        ) from None


@functools.lru_cache(maxsize=4096)
def _read(path: Path, _state: tuple[int, int]) -> KeptRun:
    record = json.loads(path.read_text(encoding="utf-8"))
    run = make_record(record["gold_set"], record["artifacts"], record["report"], path)
    if run.run_id != path.stem:
        raise ValueError("another run")
    return run


def open_run(home: Home, name: str, gold_set: str | None = None) -> KeptRun:
    """Open a run of a home.

    `name` is the id of a run or its start, `latest` or `previous` among the runs of `gold_set` (of
    all gold sets without it), or the name of a gold set for its newest run.

    Raises InputError if no run or several runs have this name, or the run cannot be read.
    """
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
    """Yield the readable runs of a gold set, or of all, with ids before `before`, newest first."""
    for run_id in run_ids(home)[::-1]:
        if run_id < before:
            with contextlib.suppress(InputError):
                run = read_run(home, run_id)
                if gold_set in {None, run.gold_set}:
                    yield run


# ---- The previous run: what changed since, and the differences of the figures.

NO_PREVIOUS: Final = "no run of this gold set is kept from before"
GOLD_DIFFERS: Final = (
    "the two runs were judged by different gold: a question may have other targets, so no "
    "figures can be paired"
)
GONE: Final = "the per-query figures of the previous run are gone from the home, or damaged"
NONE_IN_COMMON: Final = "the two have no strategy in common"
NOT_PAIRED: Final = "no question was scored in both runs"
MAX_NAMED: Final = 5


def changes(before: RunInputs, now: RunInputs) -> Changes:
    """Describe the changed inputs of the figures of two runs: code -> sentence."""
    old, new = before.strategies, now.strategies
    both = sorted(old.keys() & new.keys())
    indexed = [name for name in both if old[name].index_hash != new[name].index_hash]
    configured = [name for name in both if old[name].configuration != new[name].configuration]
    settings = "the level, cutoffs, depth, primary strategy, seeds or the target of the miss rate"
    parts = [settings] if before.settings != now.settings else []
    parts += _list_names("strategies", configured)
    others = _list_names("new strategies:", sorted(new.keys() - old.keys()))
    others += _list_names("strategies no longer there:", sorted(old.keys() - new.keys()))
    code = "the code differs: another version of rag_eval or of the libraries underneath"
    sentences: Changes = {
        "gold_changed": _compare_hashes("gold differs", before.gold_hash, now.gold_hash),
        "chunks_changed": _compare_hashes("chunks differ", before.chunks_hash, now.chunks_hash),
        "index_changed": "".join(_list_names("the index differs of", indexed)),
        "configuration_changed": f"configured otherwise: {'; '.join(parts)}" if parts else "",
        "strategies_changed": "; ".join(others),
        "code_changed": code if before.code != now.code else "",
    }
    return {change: sentence for change, sentence in sentences.items() if sentence}


def _compare_hashes(what: str, before: str, now: str) -> str:
    return "" if before == now else f"the {what}: {before[:12]} before, {now[:12]} now"


def _list_names(what: str, names: Sequence[str]) -> list[str]:
    """Return a sentence on some names; none without names."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return [f"{what} {', '.join(names[:MAX_NAMED])}{more}"] if names else []


class Previous(NamedTuple):
    """The last kept run before this one: part `previous` of the report, and its figures.

    `means` has the form of `means_by_query` for the strategies of this run. It is None when no
    figures can be paired.
    """

    part: PreviousPart
    means: FloatArray | None


def find_previous(
    home: Home, now: KeptRun, gold: GoldArrays, per_query: pd.DataFrame
) -> Previous | None:
    """Compare this run with the last run of the gold set before it; None without one.

    `gold` and `per_query` are of this run. Runs with a later date come from a wrong clock and are
    left out.
    """
    before = next(readable_runs(home, now.gold_set, before=now.run_id), None)
    if before is None:
        return None
    names, queries = list(now.strategies), gold.queries["query_id"].tolist()
    means, reason, deltas = None, "", None
    ranking = before.artifact("ranking_measures")
    if before.gold_hash != now.gold_hash:
        reason = GOLD_DIFFERS
    elif before.strategies.keys().isdisjoint(names):
        reason = NONE_IN_COMMON
    elif ranking is None:
        reason = GONE
    else:
        try:
            means = means_by_query(ranking.frame("per_query"), names, queries, now.level)
        except (InputError, NotImplementedError, *_DAMAGES):
            reason = GONE
    if means is not None:
        rows = _deltas(
            names, means_by_query(per_query, names, queries, now.level), means, gold.shared
        )
        deltas = [row for row in rows if row.strategy in before.strategies]
    changed = changes(before, now)
    part = PreviousPart(
        run_id=before.run_id,
        timestamp=before.timestamp,
        comparable=changed.keys() <= {"code_changed"},
        changes=changed,
        deltas=deltas,
        why={} if deltas is not None else {"deltas": reason},
    )
    return Previous(part, means)


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

    A question that a strategy was not scored on is NaN. Raises an error of `_DAMAGES` if the frame
    does not hold figures by question.
    """
    columns = [machine_name(label) for label in COMPARED]
    by_query = frame[frame["level"] == level].groupby(["strategy", "query_id"])[columns].mean()
    parts = [
        by_query.reindex(pd.MultiIndex.from_product([[name], queries])).to_numpy(dtype=np.float64)
        for name in names
    ]
    values = np.concatenate(parts, axis=1)
    if ((values < 0) | (values > 1)).any():
        raise ValueError("values outside 0 to 1")
    return values


# ---- Comparison of two runs of the same gold, by question.


def compare_runs(a: KeptRun, b: KeptRun) -> tuple[list[str], list[Row]]:
    """Compare two runs: differences of their inputs, and paired differences a - b of their figures.

    The rows are Holm-adjusted over all strategies that both runs have.

    Raises InputError if the runs have different gold, share no strategy, or lack their figures.
    """
    if a.gold_hash != b.gold_hash:
        raise InputError.of(
            "gold_differs",
            "the runs were judged by different gold, so their figures cannot be paired",
            field="gold.hash",
            found=f"{a.gold_set} {a.gold_hash[:12]} and {b.gold_set} {b.gold_hash[:12]}",
            accepted="two runs of the same gold hash",
        )
    names = [name for name in a.strategies if name in b.strategies]
    if not names:
        raise InputError.of(
            "nothing_to_compare", "the runs have no strategy in common", field="strategies"
        )
    frames = a.per_query(), b.per_query()
    queries, pairs = sorted(frames[0]["query_id"].unique()), []
    gold = a.shared_gold().of(queries)
    for name in names:
        left, right = (means_by_query(frame, [name], queries, a.level) for frame in frames)
        pairs.append((f"{name} (a)", f"{name} (b)", paired_comparison(left, right, gold)))
    earlier, later = sorted((a, b), key=lambda run: run.run_id)
    notes = [f"DIFFERENT: {sentence}" for sentence in changes(earlier, later).values()]
    return notes, comparison_rows(pairs, a.level)


# ---- Baselines in the home: records that name kept runs, which `rag-eval clean` then keeps.

HISTORY: Final = "accepted.jsonl"
MENDED_BY_ACCEPTING: Final = frozenset({"no_baseline", "gold_differs", "strategy_missing"})
"""Reasons of the regression gate that disappear when a person accepts a run."""


class Acceptance(BaseModel):
    """One acceptance of a run: the run, the person, the reason, and gates that did not pass."""

    run_id: str
    accepted_at: str
    who: str
    why: str
    failed_gates: list[str]


class Baseline(NamedTuple):
    """An accepted run with its figures by question."""

    run: KeptRun
    per_query: pd.DataFrame


def accept_baseline(
    settings: Settings, name: str, who: str, why: str, *, gold_set: str, force: bool = False
) -> Acceptance:
    """Accept a run as the baseline of its gold set. Earlier acceptances stay in the history.

    `name` is a name as in `open_run`. With `force`, a run is accepted even if a required gate did
    not pass; the record names the gates.

    Raises InputError if there is no such run, its artifacts are gone, or such a gate did not pass.
    """
    who, why = check_decision(who, why)
    home = open_home(settings)
    with WriteLock(settings, gold_set) as lock:
        run = open_run(home, name, gold_set)
        failed = required_failures(
            gate
            for gate in run.report().gates
            if gate.gate != "regression" or gate.reason_code not in MENDED_BY_ACCEPTING
        )
        if failed and not force:
            raise InputError.of(
                "gates_failed",
                "required gates of this run did not pass",
                field="RUN",
                found=", ".join(failed),
                accepted="a run that passed, or --force, which the record will say",
            )
        record = Acceptance(
            run_id=run.run_id,
            accepted_at=f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}",
            who=who,
            why=why,
            failed_gates=failed,
        )
        run.per_query()  # refuses a run that later runs cannot be compared with
        history = _history(run.gold_set)
        lock.check()
        before = home.read(history) if home.has(history) else b""
        home.write(history, before + f"{canonical_json(record.model_dump())}\n".encode())
    return record


def _acceptances(home: Home, gold_set: str) -> list[Acceptance]:
    """Read every acceptance of a gold set, oldest first.

    Raises InputError (`baseline_damaged`) if another program changed the history.
    """
    history = _history(gold_set)
    if not home.has(history):
        return []
    records = []
    lines = home.read(history).decode().removesuffix("\n").split("\n")
    for place, line in enumerate(lines, start=1):
        try:
            records.append(Acceptance.model_validate_json(line))
        except ValidationError as error:
            raise InputError.of(
                "baseline_damaged",
                "changed after its acceptance; remove the file and accept a run again",
                file=home.address_of(history),
                line=place,
                found=error.errors()[0]["msg"],
                accepted="what rag-eval gate --accept wrote",
            ) from error
    return records


def load_baseline(home: Home, gold_set: str) -> Baseline | None:
    """Read the last accepted run; None without one.

    Raises InputError if the run, its report or one of its results is gone or changed.
    """
    records = _acceptances(home, gold_set)
    if not records:
        return None
    run = open_run(home, records[-1].run_id, gold_set)
    run.report()  # refuses a changed report
    return Baseline(run, run.per_query())


def _history(gold_set: str) -> str:
    return f"baselines/{gold_set_name(gold_set)}/{HISTORY}"


# ---- The rollout decision from a kept run.


class Rollout(NamedTuple):
    """A decision, and the run and strategies that it is about."""

    run: KeptRun
    base: str
    measure: str
    decision: rollout.Decision


def decide_rollout(
    home: Home,
    gold_set: str,
    candidate: str,
    *,
    against: str | None = None,
    run: str = "latest",
    measure: str = "recall_at_10",
) -> Rollout:
    """Decide about a candidate from a run in which both strategies answered the same questions.

    `run` is its id, `latest` or `previous`. `candidate` and `against` are strategies of the run;
    default of `against`: the first other one. `measure` is a ranking measure such as recall_at_10
    or R@10, or delta_s. Raises InputError if there is no such run, strategy or measure, or if the
    run's artifacts are gone.
    """
    measure = find_machine_name(measure)
    stored = open_run(home, run, gold_set)
    rows = stored.per_query()
    measures = rows.select_dtypes("number").columns.difference(["seed"]).tolist()
    names = list(stored.strategies)
    others = [name for name in names if name != candidate]
    base = against or next(iter(others), candidate)
    for field, value, choices in (
        ("CANDIDATE", candidate, names),
        ("--against", base, others),
        ("--measure", measure, measures),
    ):
        if value not in choices:
            message, accepted = "the run does not allow this", ", ".join(choices)
            raise InputError.of(
                "bad_arguments", message, field=field, found=value, accepted=accepted
            )
    rows = rows[(rows["level"] == stored.level) & rows["strategy"].isin([base, candidate])]
    values = rows.pivot_table(measure, "query_id", "strategy", "mean", dropna=False)
    values = values.reindex(columns=[base, candidate])
    decision = rollout.decide(
        values[base],
        values[candidate],
        stored.shared_gold().of(values.index.tolist()),
        higher_is_better=higher_is_better(measure),
    )
    return Rollout(stored, base, measure, decision)
