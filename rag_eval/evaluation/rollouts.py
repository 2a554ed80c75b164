"""Rollouts of a candidate strategy: planned, decided, and written down (`rollout_records`) under the lock of the home.

Nothing is deployed from here: a caller asks
`rag_eval.gates.rollout_assignment.on_candidate` with the plan's id and the present share.
"""

import contextlib
import datetime as dt
from pathlib import Path
from typing import Any, Final

import numpy as np

from rag_eval.evaluation.comparing import run_ids
from rag_eval.evaluation.inputs import select_gold_sets
from rag_eval.evaluation.kept_runs import kept_run
from rag_eval.evaluation.rollout_evidence import Evidence, file_evidence, run_evidence
from rag_eval.evaluation.rollout_records import append_events, read_record, record_path
from rag_eval.gates.regression import higher_is_better
from rag_eval.gates.rollout_assignment import STAGES, assignments, stage_before
from rag_eval.gates.rollout_decision import MIN_GROUPS, Decision, Reason, Rule, decide
from rag_eval.gates.rollout_plan import plan_stages
from rag_eval.gates.rollout_record import Abandoned, Basis, Decided, Planned, Standing, standing
from rag_eval.gates.rollout_size import (
    UNKNOWN_BASE,
    Spread,
    estimated_spread,
    largest_spread,
    rolled_back,
)
from rag_eval.gold.configuration import load_config
from rag_eval.gold.loading import load_gold
from rag_eval.gold.set_names import gold_set_name
from rag_eval.measures.labels import label
from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.settings import Settings
from rag_eval.storage.hashing import digest
from rag_eval.storage.locking import home_lock

MAX_DEGRADATION: Final = 0.05
DETECT: Final = (0.005, 0.5)
POWER: Final = (0.5, 0.99)
RECENT: Final = 20
"""Newest runs that are looked through for one that has both strategies."""


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _bad(field: str, message: str, found: object, accepted: str) -> InputError:
    return InputError(
        Problem("bad_arguments", message, field=field, found=str(found), accepted=accepted)
    )


def _checked(
    strategies: list[str],
    *,
    current: str,
    candidate: str,
    measure: str,
    detect: float,
    power: float,
) -> None:
    for field, name in (("--current", current), ("--candidate", candidate)):
        if name not in strategies:
            raise _bad(field, "the gold set has no such strategy", name, ", ".join(strategies))
    if current == candidate:
        raise _bad(
            "--candidate",
            "a strategy is not rolled out against itself",
            candidate,
            ", ".join(name for name in strategies if name != current)
            or "another strategy in gold_set.yaml",
        )
    if measure != "delta_s":
        label(measure)
    for field, value, (low, high) in (("--detect", detect, DETECT), ("--power", power, POWER)):
        if not low <= value <= high:
            raise _bad(field, "out of range", value, f"{low} to {high}")


def _newest_run(home: Path, gold_set: str, gold_hash: str, names: set[str]) -> str | None:
    for run_id in reversed(run_ids(home, gold_set)[-RECENT:]):
        report = kept_run(home, run_id)["report"]
        if report["gold"]["hash"] == gold_hash and names <= {
            entry["name"] for entry in report["strategies"]
        }:
            return run_id
    return None


def _basis(evidence: Evidence | None, current: str) -> tuple[Spread, str]:
    found = (
        None
        if evidence is None
        else estimated_spread(evidence.current, evidence.candidate, evidence.groups)
    )
    if found is not None and evidence is not None and found.n_groups >= MIN_GROUPS:
        where = (
            f"differences of run {evidence.source.name} on {found.n_groups} independent questions"
        )
        return (
            found,
            f"{where}: mean of {quoted(current)} {found.base:.3f}, standard deviation of the relative difference {found.relative:.3f}",
        )
    few = (
        "has too few questions to tell from"
        if evidence is None or found is not None
        else f"says nothing of {quoted(current)}, which scores 0 or was not scored"
    )
    why = (
        "no kept run of this gold set has both strategies"
        if evidence is None
        else f"run {evidence.source.name} {few}"
    )
    return (
        largest_spread(),
        f"{why}: the numbers are the most that can be needed when {quoted(current)} scores {UNKNOWN_BASE} or better; rag-eval run gives those of your own strategies",
    )


def plan_rollout(
    settings: Settings,
    gold_set: str,
    current: str,
    candidate: str,
    *,
    measure: str = "recall_at_10",
    detect: float = MAX_DEGRADATION,
    power: float = 0.8,
    restart: bool = False,
) -> Planned:
    """Plan a rollout and write it down.

    Parameters
    ----------
    settings
        Names home and gold sets.
    gold_set, current, candidate
        The gold set and two of its strategies.
    measure
        Name of a ranking measure as machines write it, or delta_s.
    detect
        Relative degradation that each stage must be able to tell from zero.
    power
        With which.
    restart
        Give up a rollout of this candidate that is running.

    Raises
    ------
    InputError
        Something given cannot be used, the gold set has errors, or a rollout of this candidate is running.
    """
    name = gold_set_name(gold_set)
    folder = select_gold_sets(settings.gold_sets, [name])[0]
    config = load_config(folder)
    _checked(
        [spec.name for spec in config.strategies],
        current=current,
        candidate=candidate,
        measure=measure,
        detect=detect,
        power=power,
    )
    gold, home = load_gold(folder, config), settings.home
    with home_lock(home):
        record = read_record(home, name, candidate)
        running = None if record is None else standing(record)
        if running is not None and running.share is not None and not restart:
            found = f"planned at {running.plan.at}, at {running.share * 100:g} % now"
            raise InputError(
                Problem(
                    "rollout_running",
                    "this candidate is being rolled out",
                    file=str(record_path(home, name, candidate)),
                    found=found,
                    accepted="rag-eval rollout decide, or --restart",
                )
            )
        run_id = _newest_run(home, name, gold.gold_hash, {current, candidate})
        evidence = (
            None
            if run_id is None
            else run_evidence(
                home, name, run_id, current, candidate, measure=measure, level=config.level
            )
        )
        spread, sentence = _basis(evidence, current)
        report = None if evidence is None else evidence.report
        asked = gold.queries[gold.queries["answerable"]]
        identity = {
            "gold_set": name,
            "gold": gold.gold_hash,
            "current": current,
            "candidate": candidate,
            "measure": measure,
            "events": 0 if record is None else len(record.events),
        }
        plan_id = digest(identity)
        stages = plan_stages(
            spread,
            asked["text"].tolist(),
            asked["group_id"].tolist(),
            plan_id,
            detect=detect,
            power=power,
        )
        plan = Planned(
            plan_id=plan_id,
            at=_now(),
            gold_hash=gold.gold_hash,
            current=current,
            candidate=candidate,
            measure=measure,
            level=config.level,
            higher_is_better=higher_is_better(measure),
            detect=detect,
            power=power,
            max_degradation=MAX_DEGRADATION,
            rolled_back=rolled_back(spread.relative, stages[0].needed, power, MAX_DEGRADATION),
            basis=Basis(
                run_id=run_id,
                base=spread.base,
                spread=spread.relative,
                n_groups=spread.n_groups,
                sentence=sentence,
            ),
            index_hashes={
                strategy: None if report is None else _index_hash(report, strategy)
                for strategy in (current, candidate)
            },
            stages=stages,
        )
        given_up = (
            []
            if running is None or running.ended is not None
            else [Abandoned(plan_id=running.plan.plan_id, at=plan.at)]
        )
        append_events(home, record, name, candidate, [*given_up, plan])
    return plan


def _index_hash(report: dict[str, Any], strategy: str) -> str | None:
    return next(
        (str(entry["index_hash"]) for entry in report["strategies"] if entry["name"] == strategy),
        None,
    )


def decide_rollout(
    settings: Settings,
    gold_set: str,
    candidate: str,
    *,
    run: str | None = None,
    evidence: Path | None = None,
    dry_run: bool = False,
) -> tuple[Planned, Decided]:
    """Decide about the present stage of a rollout and write the decision down.

    Parameters
    ----------
    settings
        Names the home.
    gold_set, candidate
        Whose rollout.
    run
        A kept run of the gold set that has both strategies; default: the newest, where no evidence is given.
    evidence
        A file of outcomes instead (`file_evidence`).
    dry_run
        Only say what would be decided.

    Raises
    ------
    InputError
        No such rollout, it has ended, the evidence cannot be used, or it was judged by other gold than the plan.
    """
    if run is not None and evidence is not None:
        raise _bad(
            "--evidence",
            "give a run or a file of outcomes, not both",
            "--run and --evidence",
            "one of them",
        )
    home = settings.home
    path = record_path(home, gold_set, candidate)
    with contextlib.nullcontext() if dry_run else home_lock(home):
        record = read_record(home, gold_set, candidate)
        now = None if record is None else standing(record)
        if now is None:
            raise InputError(
                Problem(
                    "no_rollout",
                    "no rollout of this candidate was planned",
                    file=str(path),
                    found=candidate,
                    accepted="rag-eval rollout plan",
                )
            )
        if now.share is None:
            raise InputError(
                Problem(
                    "rollout_ended",
                    "this rollout has ended",
                    file=str(path),
                    found=f"{now.ended}, planned at {now.plan.at}",
                    accepted="a new one: rag-eval rollout plan",
                )
            )
        plan = now.plan
        found = (
            file_evidence(evidence)
            if evidence
            else run_evidence(
                home,
                gold_set,
                run or "latest",
                plan.current,
                candidate,
                measure=plan.measure,
                level=plan.level,
            )
        )
        decided = _decided(now, now.share, found, _notes(plan, found))
        if not dry_run:
            append_events(home, record, gold_set, candidate, [decided])
    return plan, decided


def _notes(plan: Planned, found: Evidence) -> list[str]:
    """Name what the evidence does not share with the plan.

    Raises
    ------
    InputError
        The gold differs.
    """
    if found.report is None:
        return [
            f"outcomes of {found.source.name} name no index and no gold; they are taken to be {plan.measure} of the two strategies as they are deployed"
        ]
    gold = str(found.report["gold"]["hash"])
    if gold != plan.gold_hash:
        accepted = "a run of the gold that was planned with, or a new plan: rag-eval rollout plan --restart"
        raise InputError(
            Problem(
                "gold_differs",
                "the run was judged by other gold than the plan",
                field="gold.hash",
                found=f"{gold[:12]}, planned with {plan.gold_hash[:12]}",
                accepted=accepted,
            )
        )
    notes = []
    for name, planned in plan.index_hashes.items():
        now = _index_hash(found.report, name)
        if planned is None:
            notes.append(
                f"index of {name}: {quoted(now)}; the plan rests on no run and so on no index"
            )
        elif planned != now:
            notes.append(
                f"DIFFERENT index of {name}: planned with {quoted(planned)}, decided on {quoted(now)}"
            )
    return notes


def _decided(now: Standing, share: float, found: Evidence, notes: list[str]) -> Decided:
    plan, before = now.plan, stage_before(share)
    places = assignments(found.queries, plan.plan_id)
    on = places < share
    needed = next(stage.needed for stage in plan.stages if stage.share == share)
    rule = Rule(
        max_degradation=plan.max_degradation,
        higher_is_better=plan.higher_is_better,
        power=plan.power,
    )
    decision = decide(
        found.current[on],
        found.candidate[on],
        found.groups[on],
        needed,
        rule,
        fresh=places[on] >= before,
    )
    seen_at = now.promoted_by(found.source)
    if decision.action == "promote" and seen_at is not None:
        reason = Reason(
            "evidence_seen",
            f"the same evidence has promoted the candidate from {seen_at * 100:g} % already; another run, or new outcomes, must do so now",
        )
        decision = Decision("hold", (reason, *decision.reasons), decision.figures)
    if now.look > 1:
        notes = [
            *notes,
            f"this is look {now.look} at this stage: each look is another chance of an error, and the intervals hold for one",
        ]
    later = [stage for stage in STAGES if stage > share]
    return Decided(
        plan_id=plan.plan_id,
        at=_now(),
        share=share,
        look=now.look,
        action=decision.action,
        next_share=later[0] if decision.action == "promote" and later else None,
        reasons=tuple((reason.code, reason.sentence) for reason in decision.reasons),
        figures={**decision.figures, "n_given": len(places), "n_assigned": int(np.sum(on))},
        evidence=found.source,
        notes=tuple(notes),
    )
