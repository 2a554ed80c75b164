"""What the rounds of an iterative strategy did, against its base: recovered, lost, what it cost, and in words whether it helped."""

from typing import Any

import numpy as np

from rag_eval.evaluation.measure_steps import BOOTSTRAP_SEED, Runs, number
from rag_eval.evaluation.scoring import score_strategy
from rag_eval.measures.aggregate import within_query
from rag_eval.records.gold_set import Iterative
from rag_eval.uncertainty.harm import harm
from rag_eval.uncertainty.histories import steps_of


def iterative_accounts(runs: Runs, name: str) -> dict[str, Any]:
    """Account for one iterative strategy on every wording, under the first seed.

    Returns
    -------
    dict
        base, basis, min_recall; stops, not_viable and suggestions_failed by name; k, recall_before and recall_after (means over questions, in [0, 1]);
        accounts: overall first, then by expansion strategy (`Harm.as_json`); verdict, in words.
    """
    artifact, spec = runs.artifact(name), runs.spec(name)
    if not isinstance(spec, Iterative):
        raise TypeError(f"{name} is no iterative strategy")
    about, gold, k = artifact.json("about"), runs.gold, runs.evaluation.config.uncertainty.k
    rounds = [artifact.array(f"round_{at}") for at in range(about["iterative"]["n_rounds"])]
    level = runs.evaluation.config.level
    steps = steps_of(artifact.frame("expansions"))

    def recall(rows: np.ndarray) -> np.ndarray:
        scores = score_strategy({0: rows.astype(np.int64)}, gold, runs.evaluation.config.k)
        return scores.column(level, f"R@{k}")

    group = gold.groups[gold.query_of].astype(np.int64)
    accounts = [
        account.as_json() for account in harm(rounds, steps, recall, group, seed=BOOTSTRAP_SEED)
    ]
    before, after = (
        within_query(recall(rows)[:, None], gold.query_of, len(gold.queries))[:, 0]
        for rows in (rounds[0], rounds[-1])
    )
    return {
        "base": spec.base,
        "basis": about["iterative"]["basis"],
        "min_recall": spec.min_recall,
        "stops": about["iterative"]["stops"],
        "not_viable": about["iterative"]["not_viable"],
        "suggestions_failed": about["iterative"]["suggestions_failed"],
        "recall_before": number(float(np.nanmean(before))) if np.isfinite(before).any() else None,
        "recall_after": number(float(np.nanmean(after))) if np.isfinite(after).any() else None,
        "k": k,
        "accounts": accounts,
        "verdict": accounts[0]["verdict"],
    }
