"""Sections of `miss_rate.py` that judge estimates of the miss rate: SciFact, XQuAD sentences, priors."""

from collections.abc import Sequence
from typing import Any

import fit_miss_prior as priors
import numpy as np
from miss_rate_data import COLLECTIONS, STRATEGIES, Judged, judged
from miss_rate_lines import Bar, emit, progress, validation_figures

from rag_eval.uncertainty.estimator import cross_validated
from rag_eval.uncertainty.heuristic import heuristic_v0
from rag_eval.uncertainty.labelled import Labelled
from rag_eval.uncertainty.ladder import Counts, standing
from rag_eval.uncertainty.scores import auroc, base_rate_brier, brier_skill, recalibration
from rag_eval.uncertainty.signals import SINGLE_PREDICTORS
from rag_eval.uncertainty.signals.wordings import NAMES as OF_WORDINGS
from rag_eval.uncertainty.validation import Validation, validate
from rag_eval.uncertainty.wordings import cross_validated_wordings

REPEATS, LEAKY_REPEATS, SEED, K = 20, 5, 0, 10
SLOPE = Bar(0.8, 1.25)
BARS = {
    "minilm": {"bm25": (0.84, 0.25), "vector": (0.82, 0.25), "hybrid": (0.81, 0.15)},
    "lsa-256": {"bm25": (0.82, 0.19), "vector": (0.84, 0.30), "hybrid": (0.85, 0.28)},
}
AIM = {"auroc": 0.88, "skill": 0.40}
SIZES, SMALL_SIZES = (25, 50, 100, 200, 400), (25, 100)


def _judge(its: Labelled, predicted: np.ndarray) -> Validation:
    return validate(its, predicted, checked_together=len(STRATEGIES), seed=SEED)


def _one_fit(its: Labelled, predicted: np.ndarray) -> dict[str, float]:
    """Means over single repeats: curves of predictions that are averaged over repeats are those of a small ensemble."""
    slopes = [float(recalibration(row, its.missed, its.weight).slope) for row in predicted]
    return {
        "auroc_one_fit": float(auroc(predicted, its.missed, its.weight).mean()),
        "slope_one_fit": float(np.mean(slopes)),
    }


def _part(its: Labelled, names: Sequence[str]) -> Labelled:
    """Outcomes with some of the signals."""
    at = [its.names.index(name) for name in names]
    return Labelled(
        tuple(names), its.signals[:, at], its.missed, its.group, its.weight, its.question
    )


def scifact(section: str, model: str) -> None:
    """The estimator without any prior, and beside it what is simpler."""
    for strategy in STRATEGIES:
        data = judged("scifact", strategy, model)
        its, about = data.labelled(K), {"strategy": strategy, "vectors": model}
        predicted = cross_validated(its, prior=None, repeats=REPEATS, seed=SEED)
        found = _judge(its, predicted)
        leaky = cross_validated(its, prior=None, repeats=LEAKY_REPEATS, seed=SEED, folds="random")
        random = float(
            np.mean([brier_skill(row, its.missed, its.group, its.weight) for row in leaky])
        )
        least = BARS[model][strategy]
        bars = {
            "auroc": Bar(least[0]),
            "auroc_one_fit": Bar(least[0]),
            "skill": Bar(least[1]),
            "slope": SLOPE,
            "slope_one_fit": SLOPE,
            "ece": Bar(most=found.ece.null_95),
            "smece": Bar(most=found.smece.null_95),
        }
        aims = {
            "aim": AIM,
            "aim_met": {name: getattr(found, name).value >= aim for name, aim in AIM.items()},
        }
        figures = {
            **about,
            "estimator": "ridge, no prior",
            **validation_figures(found),
            **_one_fit(its, predicted),
        }
        emit(
            section,
            {
                **figures,
                "skill_folds_that_split_groups": random,
                "leakage_gap": random - found.skill.value,
                **aims,
            },
            bars,
        )
        progress(f"{section} {strategy}: estimator")
        _baselines(section, about, data, its)
        progress(f"{section} {strategy}: baselines")


def _baselines(section: str, about: dict[str, Any], data: Judged, its: Labelled) -> None:
    guess = np.clip(heuristic_v0(data.batch, K), 0, 1)
    emit(
        section,
        {**about, "estimator": "heuristic_v0", **validation_figures(_judge(its, guess[None, :]))},
    )
    base = float(base_rate_brier(its.missed, its.group, its.weight))
    emit(
        section,
        {
            **about,
            "estimator": "base rate, out of fold",
            "n": len(its),
            "brier": base,
            "skill": 0.0,
            "auroc": 0.5,
        },
    )
    for name in SINGLE_PREDICTORS:
        one = _part(its, [name])
        column = one.signals[:, 0]
        ranked = float(
            auroc(np.where(np.isnan(column), np.nanmedian(column), column), its.missed, its.weight)
        )
        fitted = cross_validated(
            one, prior=None, repeats=REPEATS, seed=SEED
        )  # the same seed deals the same folds
        skill = float(
            np.mean([brier_skill(row, its.missed, its.group, its.weight) for row in fitted])
        )
        emit(
            section,
            {
                **about,
                "estimator": f"single predictor {name}",
                "n": len(its),
                "auroc": max(ranked, 1 - ranked),
                "higher_is": "miss" if ranked > 0.5 else "hit",
                "skill": skill,
            },
        )


def xquad() -> None:
    """New questions with and without what their wordings' lists agree on, and questions of which other wordings were judged."""
    for strategy in STRATEGIES:
        its = judged("xquad_sentences", strategy).labelled(K)
        about = {
            "strategy": strategy,
            "vectors": "lsa-256",
            "questions": len(np.unique(its.question)),
        }
        alone = _part(its, [name for name in its.names if name not in OF_WORDINGS])
        for part, what in (
            (alone, "new questions, signals of the wording alone"),
            (its, "new questions, with what the lists of their wordings agree on"),
        ):
            predicted = cross_validated(part, prior=None, repeats=REPEATS, seed=SEED)
            emit(
                "xquad",
                {
                    **about,
                    "estimator": what,
                    **validation_figures(_judge(part, predicted)),
                    **_one_fit(part, predicted),
                },
                {"skill": Bar(0.17)} if strategy == "bm25" else None,
            )
            progress(f"xquad {strategy}: {what}")
        predicted = cross_validated_wordings(its, prior=None, repeats=REPEATS, seed=SEED)
        figures = {**validation_figures(_judge(its, predicted)), **_one_fit(its, predicted)}
        emit(
            "xquad",
            {**about, "estimator": "questions with other wordings judged", **figures},
            {"auroc": Bar(0.90), "auroc_one_fit": Bar(0.90)},
        )
        progress(f"xquad {strategy}: other wordings judged")


def prior() -> None:
    """Priors that were fitted without the collection that they are applied to; pandas_api is in none. A single case must not be shown to be hurt, the mean must gain."""
    sets = priors.datasets()
    progress("prior: collections")
    gains: dict[int, list[float]] = {}
    for name in COLLECTIONS:
        for key, its in sets[name].items():
            fitted_on = [other for other in priors.FITTED_ON if other != name]
            its_prior = priors.fit_prior(sets, priors.kind_of(key), without=name)
            for n in (
                n for n in (SIZES if name == "scifact" else SMALL_SIZES) if n <= 0.7 * len(its)
            ):
                withs, without = priors.drawn(its, its_prior, n), priors.drawn(its, None, n)
                gain, error = (
                    float((withs - without).mean()),
                    float((withs - without).std(ddof=1) / np.sqrt(len(withs))),
                )
                gains.setdefault(n, []).append(gain)
                figures = {
                    "skill_with_prior": float(withs.mean()),
                    "skill_without": float(without.mean()),
                    "gain": gain,
                    "gain_standard_error": error,
                    "gain_high": gain + 2 * error,
                }
                bars = {"gain_high": Bar(0.0)} | (
                    {"skill_with_prior": Bar(0.10)} if name == "scifact" and n == priors.FEW else {}
                )
                emit(
                    "prior",
                    {
                        "collection": name,
                        "strategy": key,
                        "prior_fitted_on": fitted_on,
                        "outcomes": n,
                        "draws": len(withs),
                        **figures,
                    },
                    bars,
                )
            progress(f"prior {name} {key}")
    for n, its_gains in gains.items():
        emit(
            "prior",
            {
                "collection": "mean over collections and strategies",
                "outcomes": n,
                "cases": len(its_gains),
                "gain": float(np.mean(its_gains)),
                "worst": min(its_gains),
            },
            {"gain": Bar(0.0)},
        )
    fresh = {
        "fingerprint_changed": False,
        "drift_alarm": False,
        "age_days": None,
        "stale_after_days": 180,
        "own_gold_only": False,
        "n_unlabelled": 1109,
    }
    for n in (0, priors.FEW):
        status = standing(Counts(n, n, n // 3, n - n // 3), None, **fresh).status
        emit(
            "prior",
            {
                "collection": "status",
                "outcomes": n,
                "status": status,
                "is_measured": float(status == "measured"),
            },
            {"is_measured": Bar(most=0)},
        )
