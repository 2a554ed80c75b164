"""Compare kept runs: with the accepted baseline, with each other, and for a rollout.

A baseline is the name of a kept run, with the person, the reason and the time. Later runs are
compared with the newest baseline by the regression gate.
"""

import dataclasses
import datetime as dt
from typing import Final

import pandas as pd
from pydantic import BaseModel, ValidationError

from rag_eval.core.errors import InputError, check_decision
from rag_eval.core.settings import Settings
from rag_eval.gates import rollout
from rag_eval.gates.verdict import higher_is_better, required_failures
from rag_eval.gold.configuration import gold_set_name
from rag_eval.measures.intervals import paired_comparison
from rag_eval.measures.ranking import find_machine_name
from rag_eval.measures.strategy_figures import Row, comparison_rows
from rag_eval.pipeline.history import KeptRun, changes, means_by_query, open_run
from rag_eval.storage.hashing import canonical_json
from rag_eval.storage.home import Home, open_home
from rag_eval.storage.locks import WriteLock

# ---- Baselines in the home: records that name kept runs, which `rag-eval clean` then keeps.

HISTORY: Final = "accepted.jsonl"
MENDED_BY_ACCEPTING: Final = frozenset({"no_baseline", "gold_differs", "strategy_missing"})
"""Reasons of the regression gate that disappear when a person accepts a run."""


class Acceptance(BaseModel):
    """One acceptance of a run: the run, the person and the reason."""

    run_id: str
    accepted_at: str
    who: str
    why: str
    forced: bool
    failed_gates: list[str]


@dataclasses.dataclass(frozen=True)
class Baseline:
    """An accepted run with its figures by question."""

    record: Acceptance
    run: KeptRun
    per_query: pd.DataFrame


def accept_baseline(
    settings: Settings, name: str, who: str, why: str, *, gold_set: str, force: bool = False
) -> Acceptance:
    """Accept a run as the baseline of its gold set. Earlier acceptances stay in the history.

    `name` is a name as in `open_run`. With `force`, a run is accepted even if a required gate did
    not pass; the record names the gates.

    Raises
    ------
    InputError
        There is no such run, its artifacts are gone, or a required gate did not pass.
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
            forced=bool(failed),
            failed_gates=failed,
        )
        run.stored("ranking_measures")  # refuses a report alone
        _open_baseline(run, record)
        history = _history(run.gold_set)
        lock.check()
        before = home.read(history) if home.has(history) else b""
        home.write(history, before + f"{canonical_json(record.model_dump())}\n".encode())
    return record


def acceptances(home: Home, gold_set: str) -> list[Acceptance]:
    """Read every acceptance of a gold set, oldest first.

    Raises
    ------
    InputError
        Another program changed the history.
    """
    history = _history(gold_set)
    if not home.has(history):
        return []
    records = []
    lines = home.read(history).decode().removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            records.append(Acceptance.model_validate_json(line))
        except ValidationError as error:
            raise InputError.of(
                "baseline_damaged",
                "changed after its acceptance; remove the file and accept a run again",
                file=home.address_of(history),
                line=number,
                found=error.errors()[0]["msg"],
                accepted="what rag-eval gate --accept wrote",
            ) from error
    return records


def load_baseline(home: Home, gold_set: str) -> Baseline | None:
    """Read the last accepted run; None without one.

    Raises
    ------
    InputError
        The run, its report or one of its results is gone or changed.
    """
    records = acceptances(home, gold_set)
    if not records:
        return None
    return _open_baseline(open_run(home, records[-1].run_id, gold_set), records[-1])


def _history(gold_set: str) -> str:
    return f"baselines/{gold_set_name(gold_set)}/{HISTORY}"


def _open_baseline(run: KeptRun, record: Acceptance) -> Baseline:
    """Read what later runs are compared with; raise InputError if a part is gone."""
    run.report()  # refuses a changed report
    return Baseline(record, run, run.per_query())


# ---- Comparison of two runs of the same gold, by question.


def compare_runs(a: KeptRun, b: KeptRun) -> tuple[list[str], list[Row]]:
    """Compare two runs: differences of their inputs, and paired differences a - b of their figures.

    The rows are Holm-adjusted over all strategies that both runs have.

    Raises
    ------
    InputError
        The runs have different gold, they share no strategy, or their figures by question are gone.
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
        compared = paired_comparison(left, right, gold)
        pairs.append((f"{name} (a)", f"{name} (b)", compared))
    earlier, later = sorted((a, b), key=lambda run: run.run_id)
    notes = [f"DIFFERENT: {sentence}" for sentence in changes(earlier, later).values()]
    return notes, comparison_rows(pairs, a.level)


# ---- The rollout decision from a kept run.


@dataclasses.dataclass(frozen=True)
class Rollout:
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

    Parameters
    ----------
    home, gold_set, run
        Home and gold set of the stored run, and its id, `latest` or `previous`.
    candidate, against
        Strategies of the run. Default of `against`: the first other strategy of the gold set.
    measure
        A ranking measure such as recall_at_10 or R@10, or delta_s.

    Raises
    ------
    InputError
        There is no such run, strategy or measure, or the run's artifacts are gone.
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
