"""Measure miss rates on public data against the bars of docs/uncertainty.md.

Prints one JSON line for each figure, with `bar` and `met` (null without a bar). Progress goes to
stderr. `--only SECTION ...` runs some sections. Folds never split a group. Intervals resample
groups. The public data is read from RAG_EVAL_TEST_DATA.
"""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import fit_miss_prior as priors
import numpy as np
from miss_rate_answers import answers
from miss_rate_data import COLLECTIONS, STRATEGIES, Judged, judged
from miss_rate_lines import Bar, emit, progress, validation_figures
from timing import data_folder, skipped

from rag_eval.uncertainty.conformal import Questions, conformal_k
from rag_eval.uncertainty.estimator import cross_validate, heuristic_v0
from rag_eval.uncertainty.scores import Labelled, auroc, brier_skill
from rag_eval.uncertainty.signals import (
    SINGLE_PREDICTORS,
    WORDING_SIGNALS,
)
from rag_eval.uncertainty.validation import Validation, validate
from rag_eval.uncertainty.wordings import cross_validate_wordings

REPEATS, LEAKY_REPEATS, RISK_REPEATS, SEED, K = 20, 5, 5, 0, 10
BARS = {
    "minilm": {"bm25": (0.84, 0.25), "vector": (0.82, 0.25), "hybrid": (0.81, 0.15)},
    "lsa-256": {"bm25": (0.82, 0.19), "vector": (0.84, 0.30), "hybrid": (0.85, 0.28)},
}
"""Least AUROC and Brier skill."""
SIZES, SMALL_SIZES = (25, 50, 100, 200, 400), (25, 100)
DEPTH = 1000
"""Number of ranks in the lists that conformal K looks at."""


def _judge(labelled: Labelled, predicted: np.ndarray) -> Validation:
    return validate(labelled, predicted, checked_together=len(STRATEGIES), seed=SEED)


def _keep_signals(labelled: Labelled, names: Sequence[str]) -> Labelled:
    at = [labelled.names.index(name) for name in names]
    return dataclasses.replace(labelled, names=tuple(names), signals=labelled.signals[:, at])


def _skill(labelled: Labelled, predicted: np.ndarray) -> float:
    scores = brier_skill(predicted, labelled.missed, labelled.group, labelled.weight)
    return float(np.mean(scores))


# ---- Estimates.


def scifact(section: str, model: str) -> None:
    """Judge the estimator without any prior, beside simpler ones, on SciFact's claims."""
    for strategy in STRATEGIES:
        data = judged("scifact", strategy, model)
        labelled, about = data.labelled(K), {"strategy": strategy, "vectors": model}
        predicted = cross_validate(labelled, prior=None, repeats=REPEATS, seed=SEED)
        leaky = cross_validate(
            labelled, prior=None, repeats=LEAKY_REPEATS, seed=SEED, folds="random"
        )
        found = _judge(labelled, predicted)
        least_auroc, least_skill = BARS[model][strategy]
        figures = {
            **about,
            "estimator": "ridge, no prior",
            **validation_figures(found),
            "leakage_gap": _skill(labelled, leaky) - found.skill.value,
        }
        bars = {
            "auroc": Bar(least_auroc),
            "skill": Bar(least_skill),
            "slope": Bar(0.8, 1.25),
            "ece": Bar(most=found.ece.null_95),
        }
        emit(section, figures, bars)
        progress(f"{section} {strategy}: estimator")
        _emit_baselines(section, about, data, labelled)
        progress(f"{section} {strategy}: baselines")


def _emit_baselines(section: str, about: dict[str, Any], data: Judged, labelled: Labelled) -> None:
    guess = _judge(labelled, np.clip(heuristic_v0(data.batch, K), 0, 1)[None, :])
    emit(section, {**about, "estimator": "heuristic_v0", **validation_figures(guess)})
    for name in SINGLE_PREDICTORS:
        one = _keep_signals(labelled, [name])
        column = one.signals[:, 0]
        filled = np.where(np.isnan(column), np.nanmedian(column), column)
        ranked = float(auroc(filled, labelled.missed, labelled.weight))
        fitted = cross_validate(one, prior=None, repeats=REPEATS, seed=SEED)
        figures = {"auroc": max(ranked, 1 - ranked), "skill": _skill(one, fitted)}
        emit(section, {**about, "estimator": f"single predictor {name}", **figures})


def xquad() -> None:
    """Judge new questions, and new wordings of judged questions, on XQuAD."""
    for strategy in STRATEGIES:
        labelled = judged("xquad_sentences", strategy).labelled(K)
        about = {"strategy": strategy, "vectors": "lsa-256"}
        alone = [name for name in labelled.names if name not in WORDING_SIGNALS]
        for part, what in (
            (_keep_signals(labelled, alone), "new questions, signals of the wording alone"),
            (labelled, "new questions, with signals of their other wordings' lists"),
        ):
            predicted = cross_validate(part, prior=None, repeats=REPEATS, seed=SEED)
            figures = {**about, "estimator": what, **validation_figures(_judge(part, predicted))}
            emit("xquad", figures, {"skill": Bar(0.17)} if strategy == "bm25" else None)
            progress(f"xquad {strategy}: {what}")
        predicted = cross_validate_wordings(labelled, prior=None, repeats=REPEATS, seed=SEED)
        figures = validation_figures(_judge(labelled, predicted))
        what = "questions with other wordings judged"
        emit("xquad", {**about, "estimator": what, **figures}, {"auroc": Bar(0.90)})
        progress(f"xquad {strategy}: {what}")


def prior() -> None:
    """Judge priors on collections that the priors were not fitted on."""
    sets = priors.datasets()
    progress("prior: collections")
    gains: dict[int, list[float]] = {}
    for name in COLLECTIONS:
        for key, labelled in sets[name].items():
            held_out = priors.fit_prior(sets, priors.kind_of(key), without=name)
            for n in SIZES if name == "scifact" else SMALL_SIZES:
                if n > 0.7 * len(labelled):
                    continue
                withs = priors.draw_skill(labelled, held_out, n)
                difference = withs - priors.draw_skill(labelled, None, n)
                gain = float(difference.mean())
                error = float(difference.std(ddof=1) / np.sqrt(len(difference)))
                gains.setdefault(n, []).append(gain)
                figures = {
                    "collection": name,
                    "strategy": key,
                    "outcomes": n,
                    "skill_with_prior": float(withs.mean()),
                    "gain": gain,
                    "gain_high": gain + 2 * error,
                }
                bars = {"gain_high": Bar(0.0)}
                if name == "scifact" and n == priors.FEW:
                    bars["skill_with_prior"] = Bar(0.10)
                emit("prior", figures, bars)
            progress(f"prior {name} {key}")
    for n, of_cases in gains.items():
        mean = {"gain": float(np.mean(of_cases)), "worst": min(of_cases), "cases": len(of_cases)}
        emit("prior", {"collection": "mean", "outcomes": n, **mean}, {"gain": Bar(0.0)})


# ---- What miss rates are used for.


def conformal() -> None:
    """Judge K for risks that the estimator predicts out of fold."""
    for strategy in STRATEGIES:
        deep = judged("scifact", strategy, "minilm", DEPTH)
        labelled = judged("scifact", strategy, "minilm").labelled(K)
        predicted = cross_validate(labelled, prior=None, repeats=RISK_REPEATS, seed=SEED)
        risk = predicted.mean(axis=0)
        questions = Questions(
            deep.first_gold, deep.collection.group, DEPTH, risk, *_gold_ranks(deep)
        )
        riskiest = deep.first_gold[risk >= np.quantile(risk, 2 / 3)]
        for result in conformal_k(questions):
            figures = {
                "strategy": strategy,
                "method": result.method,
                "level": result.level,
                "k": [part.k for part in result.bins] or result.k,
                "coverage": dataclasses.asdict(result.coverage),
                "riskiest_third": None if result.riskiest is None else result.riskiest.value,
                "unattainable": result.share_unattainable,
                "within_depth_riskiest_third": float(np.isfinite(riskiest).mean()),
            }
            bars = {"coverage": Bar(result.level - 0.01)}
            if result.method == "mondrian":  # At 95 % the riskiest third has no K.
                bars = {"riskiest_third": Bar(0.9)} if result.level == 0.9 else {}
            emit("conformal", figures, bars)
        progress(f"conformal {strategy}")


def _gold_ranks(data: Judged) -> tuple[np.ndarray, np.ndarray]:
    """Return the rank of every gold item (inf beyond the depth), and the row of its query."""
    query, place = np.nonzero(data.relevant)
    lacking = np.repeat(np.arange(len(data.n_gold)), data.n_gold - data.relevant.sum(axis=1))
    ranks = np.concatenate([place + 1.0, np.full(len(lacking), np.inf)])
    return ranks, np.concatenate([query, lacking]).astype(np.int64)


SECTIONS: dict[str, Callable[[], None]] = {
    "scifact": lambda: scifact("scifact", "minilm"),
    "lsa": lambda: scifact("lsa", "lsa-256"),
    "xquad": xquad,
    "prior": prior,
    "conformal": conformal,
    "answers": answers,
}


def main() -> None:
    """Run the chosen sections."""
    parser = argparse.ArgumentParser(description="Miss rates against the bars of the project.")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options = parser.parse_args()
    if data_folder() is None:
        skipped("miss_rate", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    for name in options.only:
        progress(name)
        SECTIONS[name]()


if __name__ == "__main__":
    main()
