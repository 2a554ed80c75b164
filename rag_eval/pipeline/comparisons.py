"""Compare two kept runs, and decide on the rollout of a candidate strategy from a kept run."""

import dataclasses
from pathlib import Path
from typing import Final

import pandas as pd

from rag_eval.core.errors import InputError
from rag_eval.gates import rollout
from rag_eval.gates.regression import higher_is_better
from rag_eval.measures.paired import paired_comparison
from rag_eval.pipeline.history import KeptRun, changes, means_by_query, open_run
from rag_eval.pipeline.measures import Row, comparison_rows

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
        left, right = (means_by_query(one, [name], queries, a.level) for one in frames)
        found = paired_comparison(left, right, gold)
        pairs.append((f"{name} (a)", f"{name} (b)", found))
    earlier, later = sorted((a, b), key=lambda run: run.run_id)
    notes = [f"DIFFERENT: {sentence}" for sentence in changes(earlier, later).values()]
    return notes, comparison_rows(pairs, a.level)


# ---- The rollout decision from a kept run.

_NOT_MEASURES: Final = frozenset(
    {"strategy", "level", "query_id", "group_id", "paraphrase_id", "seed", "eligible", "failed"}
)


@dataclasses.dataclass(frozen=True)
class Rollout:
    """A decision and its evidence. `next_stage` is None except after a promotion below 100 %."""

    gold_set: str
    gold_hash: str
    run_id: str
    base: str
    candidate: str
    index_hashes: dict[str, str]
    measure: str
    level: str
    stage: int
    next_stage: int | None
    decision: rollout.Decision


def decide_rollout(
    home: Path,
    gold_set: str,
    candidate: str,
    *,
    against: str | None = None,
    stage: int = 10,
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
    stage
        Current percentage of the questions that the candidate answers: 10, 50 or 100.
    measure
        Machine name of a ranking measure, or delta_s.

    Raises
    ------
    InputError
        There is no such run, stage, strategy or measure, or the run's artifacts are gone.
    """
    if stage not in rollout.STAGES:
        raise _bad("no such stage", "--stage", str(stage), ", ".join(map(str, rollout.STAGES)))
    kept = open_run(home, run, gold_set)
    names = list(kept.strategies)
    base = against or next((name for name in names if name != candidate), candidate)
    for field, name in (("CANDIDATE", candidate), ("--against", base)):
        if name not in names:
            message, accepted = "The run has no such strategy.", ", ".join(names)
            raise _bad(message, field, name, accepted, "strategy_missing")
    if base == candidate:
        message = "A strategy is not compared with itself."
        raise _bad(message, "--against", base, "another strategy of the run")
    per_query = kept.per_query()
    values = _pair_strategies(per_query[per_query["level"] == kept.level], base, candidate, measure)
    gold = kept.shared_gold().of(values["query_id"].tolist())
    decision = rollout.decide(
        values["base"], values["candidate"], gold, higher_is_better=higher_is_better(measure)
    )
    later = [other for other in rollout.STAGES if other > stage]
    return Rollout(
        gold_set=gold_set,
        gold_hash=kept.gold_hash,
        run_id=kept.run_id,
        base=base,
        candidate=candidate,
        index_hashes={name: kept.strategies[name].index_hash for name in (base, candidate)},
        measure=measure,
        level=kept.level,
        stage=stage,
        next_stage=later[0] if decision.action == "promote" and later else None,
        decision=decision,
    )


def _bad(
    message: str, field: str, found: str, accepted: str, code: str = "bad_arguments"
) -> InputError:
    return InputError.of(code, message, field=field, found=found, accepted=accepted)


def _pair_strategies(rows: pd.DataFrame, base: str, candidate: str, measure: str) -> pd.DataFrame:
    """Average each strategy inside each question, over the shared wordings and seeds.

    The result has query_id, base and candidate. Questions without a score are NaN. A
    question that only the base ran keeps the value of the base.
    """
    measures = [name for name in rows.columns if name not in _NOT_MEASURES]
    if measure not in measures:
        message, accepted = "The run has no such measure.", ", ".join(measures)
        raise _bad(message, "--measure", measure, accepted, "unknown_measure")
    keys = ["query_id", "paraphrase_id", "seed"]
    left, right = (rows[rows["strategy"] == name].set_index(keys) for name in (base, candidate))
    both = left.index.intersection(right.index)
    means = [frame.loc[both, measure].groupby(level="query_id").mean() for frame in (left, right)]
    alone = left.groupby(level="query_id", sort=True)[measure].mean()
    shared = means[0].reindex(alone.index).fillna(alone)
    return pd.DataFrame({"base": shared, "candidate": means[1].reindex(alone.index)}).reset_index()
