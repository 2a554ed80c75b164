"""Fit the prior of miss rates and write rag_eval/uncertainty/prior.json.

The data are judged retrievals (miss_any@10) of SciFact, of the sentences of XQuAD with five
wordings of each question, and of CLAPnq. bm25, vector and hybrid search retrieve each collection
(LSA vectors; MiniLM too where they exist). The fit leaves out the gold set pandas_api, because the
nightly run measures the shipped prior on pandas_api.

The model is one ridge logistic regression over signals z-scored per collection and strategy. Each
collection and strategy has an intercept, and every collection has the same weight. The intercept
of the prior is the mean of these intercepts. The spread says how intercepts and coefficients differ
between the collections. Each kind of strategy has a prior from the retrievals of its kind. The
prior `any` comes from all retrievals. All priors share the intercept of `any` and its spread.

`held_out` in the file measures, on each collection, a prior that was fitted without the collection.
For pandas_api that is the shipped prior. The figures are of the prior alone and of the prior with
25 outcomes (30 draws, measured on groups without outcomes).
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np
from miss_rate_data import COLLECTIONS, STRATEGIES, judged
from timing import ROOT, data_folder, emit, skipped

from rag_eval.core.arrays import FloatArray
from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.estimator import (
    PRIOR_FILE,
    PRIOR_KINDS,
    Kind,
    Prior,
    Regression,
    fit_head,
    fit_scaling,
    model_from_prior,
)
from rag_eval.uncertainty.scores import Labelled

FITTED_ON = ("scifact", "xquad_sentences", "clapnq")
K, SEED, DRAWS, FEW, DIGITS = 10, 0, 30, 25, 4
WEIGHT = 600.0  # effective outcomes of a collection: its strategies judge the same questions
PENALTY, OWN_PENALTY = 100.0, 30.0

Sets = Mapping[str, Mapping[str, Labelled]]


def datasets() -> dict[str, dict[str, Labelled]]:
    """Read the outcomes by collection and by model/strategy."""
    models = {
        name: ("lsa-256", "minilm") if name == "scifact" else ("lsa-256",) for name in COLLECTIONS
    }
    return {
        name: {
            f"{model}/{strategy}": judged(name, strategy, model).labelled(K)
            for model in models[name]
            for strategy in STRATEGIES
        }
        for name in COLLECTIONS
    }


def _stacked(parts: Sequence[Labelled], weight: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    z = np.vstack([fit_scaling(part.signals).z(part.signals) for part in parts])
    each = np.concatenate([np.full(len(part), weight / len(parts) / len(part)) for part in parts])
    return z, np.concatenate([part.missed for part in parts]).astype(np.float64), each


def fit_prior(given: Sets, kind: Kind = "any", *, without: str = "") -> Prior:
    """Fit the prior of one kind of strategy over FITTED_ON except `without`."""
    sets = {name: given[name] for name in FITTED_ON if name != without}
    intercepts, shared, spread = _fitted(sets)
    if kind != "any":
        of_kind = {
            name: {key: part for key, part in its.items() if kind == kind_of(key)}
            for name, its in sets.items()
        }
        _, shared, spread = _fitted(of_kind)
    intercept = round(float(intercepts.mean()), DIGITS)
    widths = np.round([float(np.std(intercepts, ddof=1)), *spread], DIGITS).tolist()
    return Prior(
        next(iter(next(iter(sets.values())).values())).names,
        tuple(np.round(shared, DIGITS).tolist()),
        intercept,
        tuple(widths),
    )


def _fitted(sets: Sets) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return intercepts of the parts, shared coefficients, and spread of coefficients."""
    parts = [part for its in sets.values() for part in its.values()]
    stacked = [_stacked(list(its.values()), WEIGHT) for its in sets.values()]
    z, y, w = (np.concatenate([each[i] for each in stacked]) for i in range(3))
    dummies = np.repeat(np.eye(len(parts)), [len(part) for part in parts], axis=0)
    penalty = np.concatenate([np.full(len(parts), 0.01), np.full(z.shape[1], PENALTY)])
    regression = Regression(np.hstack([dummies, z]), y, np.zeros(len(penalty)))
    found = regression.solve(w[None], penalty[None])[0, 0]
    intercepts, shared = found[: len(parts)], found[len(parts) :]
    own = []
    for its, (its_z, its_y, its_w) in zip(sets.values(), stacked, strict=True):
        ones = np.repeat(np.eye(len(its)), [len(part) for part in its.values()], axis=0)
        lam = np.concatenate([np.full(len(its), 0.01), np.full(z.shape[1], OWN_PENALTY)])
        centre = np.concatenate([np.zeros(len(its)), shared])
        regression = Regression(np.hstack([ones, its_z]), its_y, centre)
        own.append(regression.solve(its_w[None], lam[None])[0, 0, len(its) :])
    return intercepts, shared, np.sqrt(np.mean((np.array(own) - shared) ** 2, axis=0))


def kind_of(key: str) -> Kind:
    """Return the kind of strategy in a key `model/strategy`."""
    return next(kind for kind in PRIOR_KINDS if kind == key.split("/")[1])


def skill(predicted: FloatArray, missed: FloatArray) -> float:
    """Compute the Brier skill against the base rate of the same outcomes."""
    return float(1 - ((predicted - missed) ** 2).mean() / (missed.mean() * (1 - missed.mean())))


def auroc(predicted: FloatArray, missed: FloatArray) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(missed, predicted))


def draw_skill(part: Labelled, prior: Prior | None, n: int) -> FloatArray:
    """Compute the skill on groups without outcomes after n random outcomes, [DRAWS]."""
    result = np.empty(DRAWS)
    for draw in range(DRAWS):
        rng = np.random.default_rng([SEED, n, draw])
        few = rng.choice(len(part), n, replace=False)
        rest = np.flatnonzero(~np.isin(part.group, part.group[few]))
        signals, missed = part.signals[rest], part.missed[rest].astype(np.float64)
        head = fit_head(part.take(few), prior=prior, rng=rng, unlabelled=signals).head
        result[draw] = skill(head.predict(signals, part.names), missed)
    return result


def held_out(sets: Sets, name: str) -> dict[str, dict[str, float]]:
    """Measure, on a collection, the prior that was fitted without the collection."""
    figures = {}
    for strategy, part in sets[name].items():
        prior = fit_prior(sets, kind_of(strategy), without=name)
        alone = model_from_prior(prior, part.names, part.signals).predict(part.signals, part.names)
        missed = part.missed.astype(np.float64)
        figures[strategy] = {
            "alone_auroc": round(auroc(alone, missed), 3),
            "alone_skill": round(skill(alone, missed), 3),
            f"skill_at_{FEW}": round(float(draw_skill(part, prior, FEW).mean()), 3),
        }
    return figures


def main() -> None:
    if data_folder() is None:
        skipped("fit_miss_prior", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    sets = datasets()
    held = {name: held_out(sets, name) for name in COLLECTIONS}
    provenance = {
        "fitted_by": "benchmarks/fit_miss_prior.py",
        "target": f"miss_any@{K}",
        "signals": {
            "version": digest(sets[FITTED_ON[0]]["lsa-256/bm25"].names, 16),
            "what": "hash of the names of the signals, in order",
        },
        "seed": SEED,
        "penalty": PENALTY,
        "fitted_on": {
            name: {
                strategy: {
                    "outcomes": len(part),
                    "groups": len(np.unique(part.group)),
                    "misses": int(part.missed.sum()),
                }
                for strategy, part in sets[name].items()
            }
            for name in FITTED_ON
        },
        "held_out": held,
        "sets": (
            "SciFact (claims CC BY 4.0, abstracts ODC-By 1.0), XQuAD and SQuAD paragraphs with "
            "NoiseQA wordings (CC BY-SA 4.0), CLAPnq dev (Apache-2.0); only these numbers are kept "
            "of them. This repository's pandas_api is in held_out only"
        ),
    }
    document = {"schema_version": 1, "provenance": provenance} | {
        kind: fit_prior(sets, kind).to_json() for kind in PRIOR_KINDS
    }
    (ROOT / "rag_eval" / "uncertainty" / PRIOR_FILE).write_text(
        json.dumps(document, indent=1) + "\n", encoding="utf-8"
    )
    for name, figures in held.items():
        for strategy, its in figures.items():
            emit("fit_miss_prior", held_out=name, strategy=strategy, **its)


if __name__ == "__main__":
    main()
