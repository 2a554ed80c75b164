"""Fit the prior of miss rates and write rag_eval/uncertainty/prior.json.

Fitted on judged retrievals (miss_any@10) of SciFact, the sentences of XQuAD with five wordings of each question, and CLAPnq, each retrieved by
bm25, vector and hybrid search (LSA vectors; MiniLM too where they exist). The gold set pandas_api is never fitted on: the nightly run states
figures of the shipped prior on it, which would be flattered. One ridge logistic regression over signals z-scored per collection and strategy, with an intercept for each; every collection has the same weight. The intercept of the prior
is their mean, the spread says how intercepts and coefficients differ between the collections. Four priors are fitted so: for each kind of
strategy from its own retrievals, and `any` from all; intercept and its spread are those of all kinds.

`held_out` in the file says what a prior that was fitted without a collection does on it (pandas_api: the shipped one): alone, and with 25
outcomes (30 draws, other groups judged). `--without COLLECTION` prints such a prior and writes nothing; `--curve COLLECTION` prints skill with it and without any
prior by number of outcomes.
"""

import argparse
import json
from collections.abc import Mapping, Sequence

import numpy as np
from miss_rate_data import COLLECTIONS, STRATEGIES, judged
from timing import ROOT, data_folder, skipped

from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.folds import grouped_folds
from rag_eval.uncertainty.head import fit_head, prior_head
from rag_eval.uncertainty.labelled import FloatArray, Labelled
from rag_eval.uncertainty.prior import FILE, KINDS, Kind, Prior
from rag_eval.uncertainty.ridge import solve
from rag_eval.uncertainty.scaling import scaling

FITTED_ON = ("scifact", "xquad_sentences", "clapnq")
K, SEED, DRAWS, FEW, DIGITS = 10, 0, 30, 25, 4
WEIGHT = 600.0  # outcomes that a collection counts as: its strategies judge the same questions
PENALTY, OWN_PENALTY = 100.0, 30.0
SIZES = (25, 50, 100, 200, 400)

Sets = Mapping[str, Mapping[str, Labelled]]


def datasets() -> dict[str, dict[str, Labelled]]:
    """Collection -> model/strategy -> outcomes."""
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
    z = np.vstack([scaling(part.signals).z(part.signals) for part in parts])
    each = np.concatenate([np.full(len(part), weight / len(parts) / len(part)) for part in parts])
    return z, np.concatenate([part.missed for part in parts]).astype(np.float64), each


def fit_prior(given: Sets, kind: Kind = "any", *, without: str = "") -> Prior:
    """One prior over FITTED_ON but one, of one kind of strategy or any. Intercept and its spread are those of all kinds: few collections say little."""
    sets = {name: given[name] for name in FITTED_ON if name != without}
    intercepts, shared, spread = _fitted(sets)
    if kind != "any":
        _, shared, spread = _fitted(
            {
                name: {key: part for key, part in its.items() if kind == kind_of(key)}
                for name, its in sets.items()
            }
        )
    intercept = round(float(intercepts.mean()), DIGITS)
    widths = np.round([float(np.std(intercepts, ddof=1)), *spread], DIGITS).tolist()
    return Prior(
        next(iter(next(iter(sets.values())).values())).names,
        tuple(np.round(shared, DIGITS).tolist()),
        intercept,
        tuple(widths),
    )


def _fitted(sets: Sets) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Intercepts of the parts, coefficients, and how these differ between the collections."""
    parts = [part for its in sets.values() for part in its.values()]
    stacked = [_stacked(list(its.values()), WEIGHT) for its in sets.values()]
    z, y, w = (np.concatenate([each[i] for each in stacked]) for i in range(3))
    dummies = np.repeat(np.eye(len(parts)), [len(part) for part in parts], axis=0)
    penalty = np.concatenate([np.full(len(parts), 0.01), np.full(z.shape[1], PENALTY)])
    found = solve(np.hstack([dummies, z]), y, w[None], penalty[None], np.zeros(len(penalty)))[0]
    intercepts, shared = found[: len(parts)], found[len(parts) :]
    own = []
    for its, (its_z, its_y, its_w) in zip(sets.values(), stacked, strict=True):
        ones = np.repeat(np.eye(len(its)), [len(part) for part in its.values()], axis=0)
        lam = np.concatenate([np.full(len(its), 0.01), np.full(z.shape[1], OWN_PENALTY)])
        own.append(
            solve(
                np.hstack([ones, its_z]),
                its_y,
                its_w[None],
                lam[None],
                np.concatenate([np.zeros(len(its)), shared]),
            )[0][len(its) :]
        )
    return intercepts, shared, np.sqrt(np.mean((np.array(own) - shared) ** 2, axis=0))


def kind_of(key: str) -> Kind:
    """Kind of a model/strategy."""
    return next(kind for kind in KINDS if kind == key.split("/")[1])


def skill(predicted: FloatArray, missed: FloatArray) -> float:
    """Brier skill against the base rate of the same outcomes."""
    return float(1 - ((predicted - missed) ** 2).mean() / (missed.mean() * (1 - missed.mean())))


def auroc(predicted: FloatArray, missed: FloatArray) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(missed, predicted))


def drawn(
    part: Labelled, prior: Prior | None, n: int, draws: int = DRAWS, *, strict: bool = False
) -> FloatArray:
    """Skill on the groups without outcomes after n random outcomes, [draws]. z-scores over all of them too, or over half of them and tested on the rest (strict)."""
    result = np.empty(draws)
    for draw in range(draws):
        rng = np.random.default_rng([SEED, n, draw])
        few = rng.choice(len(part), n, replace=False)
        rest = np.flatnonzero(~np.isin(part.group, part.group[few]))
        half = grouped_folds(part.group[rest], 2, rng)
        seen, tested = (rest[half == 0], rest[half == 1]) if strict else (rest, rest)
        head = fit_head(part.take(few), prior=prior, rng=rng, unlabelled=part.signals[seen]).head
        result[draw] = skill(
            head.predict(part.signals[tested], part.names), part.missed[tested].astype(np.float64)
        )
    return result


def held_out(sets: Sets, name: str) -> dict[str, dict[str, float]]:
    """What a prior fitted without a collection does on it."""
    figures = {}
    for strategy, part in sets[name].items():
        prior = fit_prior(sets, kind_of(strategy), without=name)
        alone = prior_head(prior, part.names, part.signals).head.predict(part.signals, part.names)
        missed = part.missed.astype(np.float64)
        figures[strategy] = {
            "alone_auroc": round(auroc(alone, missed), 3),
            "alone_skill": round(skill(alone, missed), 3),
            f"skill_at_{FEW}": round(float(drawn(part, prior, FEW).mean()), 3),
        }
    return figures


def curve(sets: Sets, name: str) -> None:
    """Print skill by number of outcomes, with the held-out prior and without."""
    for strategy, part in sets[name].items():
        prior = fit_prior(sets, kind_of(strategy), without=name)
        for n in SIZES:
            if n <= 0.7 * len(part):
                withs, without = drawn(part, prior, n), drawn(part, None, n)
                line = {
                    "outcomes": n,
                    "skill_with_prior": round(float(withs.mean()), 3),
                    "skill_without": round(float(without.mean()), 3),
                    "gain_se": round(float((withs - without).std(ddof=1) / np.sqrt(DRAWS)), 3),
                }
                strict = (
                    {
                        "skill_with_prior_half_for_z": round(
                            float(drawn(part, prior, n, strict=True).mean()), 3
                        )
                    }
                    if n == FEW
                    else {}
                )
                print(
                    json.dumps(
                        {
                            "bench": "fit_miss_prior",
                            "curve": name,
                            "strategy": strategy,
                            **line,
                            **strict,
                        }
                    ),
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--without", choices=COLLECTIONS)
    parser.add_argument("--curve", choices=COLLECTIONS)
    options = parser.parse_args()
    if data_folder() is None:
        skipped("fit_miss_prior", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    sets = datasets()
    if options.without:
        print(
            json.dumps(
                {kind: fit_prior(sets, kind, without=options.without).to_json() for kind in KINDS},
                indent=1,
            )
        )
    if options.curve:
        curve(sets, options.curve)
    if options.without or options.curve:
        return
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
        "sets": "SciFact (claims CC BY 4.0, abstracts ODC-By 1.0), XQuAD and SQuAD paragraphs with NoiseQA wordings (CC BY-SA 4.0), CLAPnq dev (Apache-2.0); only these numbers are kept of them. This repository's pandas_api is in held_out only",
    }
    document = {"schema_version": 1, "provenance": provenance} | {
        kind: fit_prior(sets, kind).to_json() for kind in KINDS
    }
    (ROOT / "rag_eval" / "uncertainty" / FILE).write_text(
        json.dumps(document, indent=1) + "\n", encoding="utf-8"
    )
    for name, figures in held.items():
        for strategy, its in figures.items():
            print(
                json.dumps(
                    {"bench": "fit_miss_prior", "held_out": name, "strategy": strategy, **its}
                )
            )


if __name__ == "__main__":
    main()
