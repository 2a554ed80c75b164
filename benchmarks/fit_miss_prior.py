"""Fit the prior of miss rates and write rag_eval/uncertainty/prior.json.

The data are judged retrievals (miss_any@10) by bm25, vector and hybrid search, with LSA and with
MiniLM vectors. Three collections have one answer or few: SciFact, the sentences of XQuAD with five
wordings of each question, and CLAPnq. Three have many relevant chunks; miss_rate_data.py says how
they are made. Retrievals with fewer than FEWEST misses or hits are left out. The fit leaves out the
gold set pandas_api, because the nightly run measures the shipped prior on pandas_api, and NPL,
which is a test.

The model is one ridge logistic regression over signals z-scored per collection and strategy. Each
collection and strategy has an intercept, and every collection has the same weight. The intercept
of the prior is the mean of these intercepts. The spread says how the log-odds of the collections'
own fits differ from the shared ones. Each kind of strategy has a prior from the retrievals of its
kind. The prior `any` comes from all retrievals. All priors share the intercept of `any`.

`held_out` in the file measures, on each collection, a prior that was fitted without the collection
and without the others of its source. For pandas_api and NPL that is the shipped prior. The figures
are of the prior alone and of the prior with 25 outcomes (10 draws, measured on groups without
outcomes; not for NPL, because its questions are a chain of shared documents).
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np
from miss_rate_data import COLLECTIONS, MANY_RELEVANT, SINGLE_ANSWER, STRATEGIES, judged
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from timing import ROOT, data_folder, emit, skipped

from rag_eval.core.arrays import FloatArray
from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.estimator import (
    PRIOR_FILE,
    PRIOR_KINDS,
    Kind,
    MissRateModel,
    Prior,
    fit_head,
    fit_scaling,
)
from rag_eval.uncertainty.validation import Labelled

TESTS = ("pandas_api", "npl")
FITTED_ON = tuple(name for name in COLLECTIONS if name not in TESTS)
K, SEED, DRAWS, FEW, DIGITS, FEWEST = 10, 0, 10, 25, 4, 10
WEIGHT = 600.0  # effective outcomes of a collection: its strategies judge the same questions
PENALTY, OWN_PENALTY, FREE_PENALTY = 100.0, 30.0, 0.01
SOURCES = (
    "SciFact (claims CC BY 4.0, abstracts ODC-By 1.0), XQuAD and SQuAD paragraphs with "
    "NoiseQA wordings (CC BY-SA 4.0), CLAPnq dev (Apache-2.0); only these numbers are kept "
    "of them. This repository's pandas_api and NPL are in held_out only"
)

Sets = Mapping[str, Mapping[str, Labelled]]


def datasets(names: Sequence[str] = COLLECTIONS) -> dict[str, dict[str, Labelled]]:
    """Read the outcomes by collection and by model/strategy."""
    return {
        name: {
            f"{model}/{strategy}": judged(name, strategy, model).labelled(K)
            for model in (("lsa-256",) if name == "pandas_api" else ("lsa-256", "minilm"))
            for strategy in STRATEGIES
        }
        for name in names
    }


def _usable(parts: Mapping[str, Labelled]) -> dict[str, Labelled]:
    """Keep the retrievals with enough misses and hits."""
    return {
        key: part
        for key, part in parts.items()
        if min(part.missed.sum(), (~part.missed).sum()) >= FEWEST
    }


def _source(name: str) -> str:
    """Return the source of a collection; `xquad_articles` is made of `xquad`."""
    return name if name in TESTS else name.partition("_")[0]


def fit_prior(given: Sets, kind: Kind = "any", *, without: str = "") -> Prior:
    """Fit the prior of one kind of strategy over FITTED_ON except the source of `without`."""
    kept = [name for name in FITTED_ON if _source(name) != _source(without)]
    sets = {name: _usable(given[name]) for name in kept}
    intercepts, shared, spread = _fit_shared(sets)
    if kind != "any":
        of_kind = {
            name: {key: part for key, part in parts.items() if kind == kind_of(key)}
            for name, parts in sets.items()
        }
        _, shared, spread = _fit_shared(of_kind)
    width = float(np.sqrt(np.var(intercepts, ddof=1) + (spread**2).sum()))
    return Prior(
        next(iter(next(iter(sets.values())).values())).names,
        tuple(np.round(shared, DIGITS).tolist()),
        round(float(intercepts.mean()), DIGITS),
        round(width, DIGITS),
    )


def _fit_shared(sets: Sets) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return intercepts of the parts, shared coefficients, and spread of coefficients."""
    by_set = [list(parts.values()) for parts in sets.values()]
    everything = [part for parts in by_set for part in parts]
    weight = np.concatenate([_weigh(parts) for parts in by_set])
    n = len(everything)
    found = _fit(everything, weight, PENALTY)
    intercepts, shared = found[:n], found[n:]
    own = [_fit(parts, _weigh(parts), OWN_PENALTY, shared)[len(parts) :] for parts in by_set]
    return intercepts, shared, np.sqrt(np.mean((np.array(own) - shared) ** 2, axis=0))


def _weigh(parts: Sequence[Labelled]) -> FloatArray:
    return np.concatenate([np.full(len(part), WEIGHT / len(parts) / len(part)) for part in parts])


def _fit(
    parts: Sequence[Labelled], weight: FloatArray, penalty: float, known: FloatArray | None = None
) -> FloatArray:
    """Fit an intercept for each part, and coefficients drawn towards a multiple of `known` or 0."""
    z = np.vstack([fit_scaling(part.signals).z(part.signals) for part in parts])
    missed = np.concatenate([part.missed for part in parts]).astype(np.float64)
    ones = np.repeat(np.eye(len(parts)), [len(part) for part in parts], axis=0)
    # The penalty falls on the coefficient: a column that is c times larger has 1 / c**2 of it.
    free = np.sqrt(penalty / FREE_PENALTY)
    direction = free * (np.zeros(z.shape[1]) if known is None else known)
    design = np.hstack([free * ones, z, (z @ direction)[:, None]])
    model = LogisticRegression(C=1 / penalty, fit_intercept=False, solver="newton-cholesky")
    found = model.fit(design, missed, sample_weight=weight).coef_[0]
    n = len(parts)
    return np.concatenate([free * found[:n], found[n:-1] + found[-1] * direction])


def kind_of(key: str) -> Kind:
    """Return the kind of strategy in a key `model/strategy`."""
    return next(kind for kind in PRIOR_KINDS if kind == key.split("/")[1])


def skill(predicted: FloatArray, missed: FloatArray) -> float:
    """Compute the Brier skill against the base rate of the same outcomes."""
    return float(1 - ((predicted - missed) ** 2).mean() / (missed.mean() * (1 - missed.mean())))


def draw_skill(part: Labelled, prior: Prior | None, n: int) -> FloatArray:
    """Compute the skill on groups without outcomes after n random outcomes, [DRAWS].

    It is against the base rate of the same outcomes.
    """
    result = np.empty(DRAWS)
    for draw in range(DRAWS):
        rng = np.random.default_rng([SEED, n, draw])
        few = rng.choice(len(part), n, replace=False)
        rest = np.flatnonzero(~np.isin(part.group, part.group[few]))
        signals, missed = part.signals[rest], part.missed[rest].astype(np.float64)
        head = fit_head(part.take(few), prior=prior, unlabelled=signals)
        base = ((part.missed[few].mean() - missed) ** 2).mean()
        result[draw] = 1 - ((head.predict(signals, part.names) - missed) ** 2).mean() / base
    return result


def held_out(sets: Sets, name: str) -> dict[str, dict[str, float]]:
    """Measure, on a collection, the prior that was fitted without the collection."""
    figures = {}
    for strategy, part in _usable(sets[name]).items():
        prior = fit_prior(sets, kind_of(strategy), without=name)
        alone = MissRateModel.from_prior(prior, part.names, part.signals).predict(
            part.signals, part.names
        )
        figures[strategy] = {
            "alone_auroc": round(float(roc_auc_score(part.missed, alone)), 3),
            "alone_skill": round(skill(alone, part.missed.astype(np.float64)), 3),
        }
        if name != "npl":
            few = float(draw_skill(part, prior, FEW).mean())
            figures[strategy][f"skill_at_{FEW}"] = round(few, 3)
    return figures


def _count(part: Labelled) -> dict[str, int]:
    groups = len(np.unique(part.group))
    return {"outcomes": len(part), "groups": groups, "misses": int(part.missed.sum())}


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
            kind: {
                name: {strategy: _count(part) for strategy, part in _usable(sets[name]).items()}
                for name in names
                if name in FITTED_ON
            }
            for kind, names in (("single answer", SINGLE_ANSWER), ("many relevant", MANY_RELEVANT))
        },
        "held_out": held,
        "sets": SOURCES,
    }
    document = {"schema_version": 2, "provenance": provenance} | {
        kind: fit_prior(sets, kind).to_json() for kind in PRIOR_KINDS
    }
    text = json.dumps(document, indent=1)
    (ROOT / "rag_eval" / "uncertainty" / PRIOR_FILE).write_text(f"{text}\n", encoding="utf-8")
    for name, by_strategy in held.items():
        for strategy, figures in by_strategy.items():
            emit("fit_miss_prior", held_out=name, strategy=strategy, **figures)


if __name__ == "__main__":
    main()
