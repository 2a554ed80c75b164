"""Conformal K on SciFact: all 1,109 judged queries, lists of depth 1,000, MiniLM vectors; one JSON line for each strategy, method and level.

`coverage` is over held-out groups of 200 random splits: two thirds of the groups calibrate, a third is looked at; a K beyond the depth
covers nothing. Bars: coverage at most 1 point under the level; the adaptive mean K at 90 % at least 25 % under the one K of the same
splits; coverage of the riskiest third with its own K at least 0.90 at 90 %. Predicted risks are out-of-fold: a ridge regression on the
signals, folds by group. Last lines of each strategy say what predictions are worth where only a share of the groups has labels.
"""

import json

import numpy as np
from miss_rate_data import STRATEGIES, Judged, judged
from timing import data_folder, skipped

from rag_eval.uncertainty.conformal_report import ConformalK, conformal_k
from rag_eval.uncertainty.conformal_splits import Questions
from rag_eval.uncertainty.figures import skill_figure
from rag_eval.uncertainty.labelled import Labelled
from rag_eval.uncertainty.prediction_powered import prediction_powered

DEPTH, LEVELS, SPLITS, REPEATS, FOLDS, DRAWS = 1000, (0.8, 0.9, 0.95), 200, 5, 10, 20
UNDER, SHORTER, RISKIEST = 0.01, 0.25, 0.9


def predicted(its: Labelled, labelled: np.ndarray, seed: int) -> np.ndarray:
    """Miss probabilities of all queries from models fitted on the labelled ones: out-of-fold for those, the mean of the folds' models for others."""
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows, found = np.flatnonzero(labelled), np.zeros(len(its))
    for train, test in GroupKFold(FOLDS, shuffle=True, random_state=seed).split(
        rows, groups=its.group[rows]
    ):
        model = make_pipeline(
            SimpleImputer(keep_empty_features=True),
            StandardScaler(),
            LogisticRegression(C=0.1, max_iter=1000),
        )
        model.fit(its.signals[rows[train]], its.missed[rows[train]])
        chances = model.predict_proba(its.signals)[:, 1]
        found[rows[test]] = chances[rows[test]]
        found[~labelled] += chances[~labelled] / FOLDS
    return found


def gold_ranks(data: Judged) -> tuple[np.ndarray, np.ndarray]:
    """Rank of every gold item, inf beyond the depth, and its query."""
    query, place = np.nonzero(data.relevant)
    lacking = np.repeat(np.arange(len(data.n_gold)), data.n_gold - data.relevant.sum(axis=1))
    return np.concatenate([place + 1.0, np.full(len(lacking), np.inf)]), np.concatenate(
        [query, lacking]
    ).astype(np.int64)


def line(strategy: str, result: ConformalK, one: ConformalK) -> dict[str, object]:
    """What is printed of a result; `one` is the fixed K at the same level."""
    covered, riskiest = result.coverage, result.riskiest
    found: dict[str, object] = {
        "bench": "conformal_k",
        "strategy": strategy,
        "method": result.method,
        "level": result.level,
        "k": result.k,
    }
    found |= {
        "mean_k": result.mean_k,
        "mean_k_held_out": result.mean_k_held_out,
        "coverage": covered.value,
        "coverage_low": covered.low,
        "coverage_high": covered.high,
    }
    found |= {
        "coverage_by_group": result.coverage_by_group,
        "riskiest_third": riskiest and riskiest.value,
        "unattainable": result.share_unattainable,
    }
    found |= {"n": result.n, "groups": result.n_groups, "splits": result.splits}
    if result.method == "mondrian":
        found |= {
            "k_by_third": [part.k for part in result.bins],
            "riskiest_bar": RISKIEST if result.level == 0.9 else None,
        }
    else:
        found |= {"coverage_bar": result.level - UNDER}
    if result.method == "adaptive" and result.mean_k_held_out and one.mean_k_held_out:
        found |= {
            "exponent": result.exponent,
            "shorter": 1 - result.mean_k_held_out / one.mean_k_held_out,
            "shorter_bar": SHORTER if result.level == 0.9 else None,
        }
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in found.items()
    }


def worth(strategy: str, its: Labelled, share: float) -> dict[str, object]:
    """Prediction-powered miss rates over DRAWS of labelled groups, against the miss rate of all; models see the labelled groups only."""
    group, truth = its.group, its.missed.astype(np.float64)
    rows = []
    for draw in range(DRAWS):
        order = np.random.default_rng(draw).permutation(int(group.max()) + 1)
        labelled = order[group] < share * len(order)
        found = prediction_powered(
            np.where(labelled, truth, np.nan), predicted(its, labelled, draw), group
        )
        rows.append(
            (
                found.extra_labels,
                (found.high - found.low) / (found.labels_high - found.labels_low),
                abs(found.value - truth.mean()),
                abs(found.labels_value - truth.mean()),
            )
        )  # type: ignore[operator]
    extra, width, error, alone = np.mean(rows, axis=0)
    figures = {
        "extra_labels": extra,
        "width_ratio": width,
        "widest_ratio": np.max(rows, axis=0)[1],
        "error": error,
        "error_labels_only": alone,
    }
    return {
        "bench": "prediction_powered",
        "strategy": strategy,
        "labelled_share": share,
        "draws": DRAWS,
        **{name: round(float(value), 4) for name, value in figures.items()},
    }


def main() -> None:
    if data_folder() is None:
        skipped("conformal_k", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    for strategy in STRATEGIES:
        data = judged("scifact", strategy, "minilm", DEPTH)
        its, group = data.labelled(), data.collection.group
        risk = np.mean(
            [predicted(its, np.ones(len(its), dtype=bool), seed) for seed in range(REPEATS)], axis=0
        )
        results = conformal_k(
            Questions(data.first_gold, group, DEPTH, risk, *gold_ranks(data)), LEVELS, splits=SPLITS
        )
        one = {result.level: result for result in results if result.method == "fixed"}
        for result in results:
            print(json.dumps(line(strategy, result, one[result.level])), flush=True)
        print(
            json.dumps(
                {
                    "bench": "conformal_k",
                    "strategy": strategy,
                    "risk_skill": skill_figure(
                        risk, data.missed().astype(np.float64), group
                    )._asdict(),
                }
            )
        )
        for share in (0.1, 0.25, 0.5):
            print(json.dumps(worth(strategy, its, share)), flush=True)


if __name__ == "__main__":
    main()
