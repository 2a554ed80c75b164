"""Measure what further signals and other models add to miss_any@10, beside plain scikit-learn.

Every line compares an idea with the logistic regression over SIGNALS: the change of AUROC and Brier
skill, the mean over bm25, vector and hybrid, with a paired 95 % interval that resamples groups.
StandardScaler and LogisticRegression predict out of fold, and inner grouped folds choose C. Of
SciFact only the train questions are read here. `--test` fits on their outcomes and prints the
figures of the test questions in groups without outcomes. `--cost` times signals and retrieval.
"""

import argparse
import dataclasses
import warnings
from collections.abc import Callable

import numpy as np
from miss_rate_data import STRATEGIES, collection, folder, judged
from signal_ideas import IDEAS, K
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from timing import alternate, emit, report

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.retrieval.dense import ExactSearch
from rag_eval.uncertainty.scores import grouped_folds, log_losses
from rag_eval.uncertainty.signals import SIGNALS, WORDING_SIGNALS, signals

DEVELOPMENT = {
    "scifact": "minilm",
    "xquad_sentences": "minilm",
    "clapnq": "lsa-256",
    "xquad_articles": "lsa-256",
    "clapnq_passages": "lsa-256",
}
REPEATS, FOLDS, INNER, RESAMPLES, FEWEST = 2, 5, 3, 1000, 15
CS = (0.03, 0.1, 0.3)
CUTOFFS = (5, 10, 20)
"""K of the targets that are learned together."""
ALONE = tuple(name for name in SIGNALS if name not in WORDING_SIGNALS)
GOALS = {"auroc": 0.88, "skill": 0.40}
Predict = Callable[[FloatArray, IntArray, IntArray, FloatArray], FloatArray]
"""Signals, rank of the first gold, groups, signals of new questions -> probabilities of a miss."""

# ---- Models.


def _linear(x: FloatArray, missed: FloatArray, new: FloatArray, c: float) -> FloatArray:
    scaler = StandardScaler().fit(x)
    z, other = (np.nan_to_num(np.clip(scaler.transform(part), -4, 4)) for part in (x, new))
    model = LogisticRegression(C=c, solver="newton-cholesky").fit(z, missed)
    return model.predict_proba(other)[:, 1]


def logistic(x: FloatArray, first: FloatArray, group: IntArray, new: FloatArray) -> FloatArray:
    """Fit miss_any@K, with C chosen on inner grouped folds."""
    missed, loss = first > K, np.zeros(len(CS))
    fold = grouped_folds(group, INNER, np.random.default_rng(0))
    for number in np.unique(fold):
        held = fold == number
        for at, c in enumerate(CS):
            predicted = _linear(x[~held], missed[~held], x[held], c)
            loss[at] += log_losses(predicted, missed[held]).sum()
    return _linear(x, missed, new, CS[int(loss.argmin())])


def boosting(x: FloatArray, first: FloatArray, group: IntArray, new: FloatArray) -> FloatArray:  # noqa: ARG001 - a `Predict`
    """Fit 60 small trees."""
    small = {"max_iter": 60, "learning_rate": 0.07, "max_leaf_nodes": 5, "l2_regularization": 5}
    known = ~np.isnan(x).all(axis=0)
    return (
        HistGradientBoostingClassifier(**small)
        .fit(x[:, known], first > K)
        .predict_proba(new[:, known])[:, 1]
    )


def together(x: FloatArray, first: FloatArray, group: IntArray, new: FloatArray) -> FloatArray:  # noqa: ARG001 - a `Predict`
    """Fit misses at several cutoffs with shared coefficients and an intercept for each."""
    level = np.repeat(np.eye(len(CUTOFFS)), len(x), axis=0)
    missed = np.concatenate([first > k for k in CUTOFFS])
    mine = np.repeat(np.eye(len(CUTOFFS))[[CUTOFFS.index(K)]], len(new), axis=0)
    stacked = np.hstack([level, np.tile(x, (len(CUTOFFS), 1))])
    return _linear(stacked, missed, np.hstack([mine, new]), 0.1)


MODELS: dict[str, Predict] = {"targets_together": together, "gradient_boosting": boosting}

# ---- Comparison.


def out_of_fold(x: FloatArray, first: FloatArray, group: IntArray, predict: Predict) -> FloatArray:
    """Predict by fits that did not see the group, [REPEATS, n]."""
    result = np.empty((REPEATS, len(x)))
    for row, rng in zip(result, np.random.default_rng(0).spawn(REPEATS), strict=True):
        fold = grouped_folds(group, FOLDS, rng)
        for number in np.unique(fold):
            held = fold == number
            row[held] = predict(x[~held], first[~held], group[~held], x[held])
    return result


def _area(predicted: FloatArray, missed: FloatArray, weight: FloatArray) -> FloatArray:
    """Compute the AUROC for each row of weights, [rows]; ties count half."""
    order = np.argsort(predicted, kind="stable")
    starts = np.flatnonzero(np.diff(predicted[order], prepend=-np.inf))
    hits, misses = (
        np.add.reduceat((weight * part)[:, order], starts, axis=1) for part in (~missed, missed)
    )
    below = np.cumsum(hits, axis=1) - hits / 2
    return (misses * below).sum(axis=1) / (misses.sum(axis=1) * hits.sum(axis=1))


def figures(predicted: FloatArray, missed: FloatArray, weight: FloatArray) -> FloatArray:
    """Compute AUROC and Brier skill for each row of weights, [2, rows], means over the repeats."""
    total = weight.sum(axis=-1)
    rate = (weight @ missed) / total
    loss = weight @ ((predicted - missed) ** 2).mean(axis=0) / total
    area = np.mean([_area(row, missed, weight) for row in predicted], axis=0)
    return np.stack([area, 1 - loss / (rate * (1 - rate))])


def _weights(group: IntArray) -> FloatArray:
    """Weigh every question once, then by resampled groups, [1 + RESAMPLES, n]."""
    _, code = np.unique(group, return_inverse=True)
    n = code.max() + 1
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), RESAMPLES)[:, code]
    return np.vstack([np.ones(len(code)), drawn])


def _line(value: FloatArray) -> dict[str, list[float]]:
    """Round each figure with its 95 % interval; `value` [2, 1 + RESAMPLES] begins with it."""
    ends = np.nanquantile(value[:, 1:], [0.025, 0.975], axis=1).T
    rows = np.column_stack([value[:, 0], ends])
    return dict(zip(GOALS, np.round(rows, 3).tolist(), strict=True))


def _train() -> set[str]:
    lines = (folder() / "scifact" / "qrels" / "train.tsv").read_text(encoding="utf-8").splitlines()
    return {line.split("\t")[0] for line in lines[1:]}


def compare(name: str) -> None:
    """Print the change that each idea makes on a collection."""
    found: dict[str, list[FloatArray]] = {}
    for strategy in STRATEGIES:
        data = judged(name, strategy, DEVELOPMENT[name])
        its, train = data.collection, _train()
        _, wording = np.unique(its.question, return_index=True)
        kept = np.array([row for row in wording if name != "scifact" or its.ids[row] in train])
        first, group = data.first_gold[kept], its.group[kept]
        missed = first > K
        if min(missed.sum(), (~missed).sum()) < FEWEST:
            continue
        x = signals(data.batch, K)[:, [SIGNALS.index(signal) for signal in ALONE]]
        weight = _weights(group)
        base = figures(out_of_fold(x[kept], first, group, logistic), missed, weight)
        found.setdefault("figures of SIGNALS", []).append(base)
        tried = {idea.__name__: (np.hstack([x, idea(data)]), logistic) for idea in IDEAS}
        tried |= {idea: (x, model) for idea, model in MODELS.items()}
        for at, signal in enumerate(ALONE):
            tried[f"without {signal}"] = np.delete(x, at, axis=1), logistic
        for idea, (columns, model) in tried.items():
            value = figures(out_of_fold(columns[kept], first, group, model), missed, weight)
            found.setdefault(idea, []).append(value - base)
    for idea, values in found.items():
        line = _line(np.mean(values, axis=0))
        emit("signals", collection=name, idea=idea, strategies=len(values), **line)


def test() -> None:
    """Print figures of SciFact's test questions in groups that the train questions do not share."""
    for strategy in STRATEGIES:
        data, train = judged("scifact", strategy, "minilm"), _train()
        seen = np.array([name in train for name in data.collection.ids])
        group, first = data.collection.group, data.first_gold
        new = ~seen & ~np.isin(group, group[seen])
        x = signals(data.batch, K)[:, [SIGNALS.index(signal) for signal in ALONE]]
        predicted = logistic(x[seen], first[seen], group[seen], x[new])
        missed = first[new] > K
        value = figures(predicted[None], missed, _weights(group[new]))
        line = _line(value) | {"n": len(missed), "misses": int(missed.sum()), "goals": GOALS}
        met = bool((value[:, 0] >= list(GOALS.values())).all())
        emit("signals_test", strategy=strategy, **line, met=met)


def cost() -> None:
    """Time the signals beside the retrieval of the same questions, without embedding them."""
    for name, model in (("scifact", "minilm"), ("xquad_sentences", "lsa-256")):
        its = collection(name)
        queries, chunks = its.vectors(model)
        search = ExactSearch(chunks)
        retrieve: dict[str, Callable[[], object]] = {
            "bm25": lambda its=its: its.bm25.search(its.query_terms, 100),
            "vector": lambda search=search, queries=queries: search.search(queries, 100),
        }
        for strategy, run in retrieve.items():
            batch = dataclasses.replace(judged(name, strategy, model).batch, question=None)
            seconds = alternate({"ours": lambda b=batch: signals(b, K), "reference": run}, 5)
            report(
                "signals_cost", seconds["ours"], seconds["reference"], 1.0, of=f"{name} {strategy}"
            )


def main() -> None:
    """Run the comparison, the test or the timing."""
    parser = argparse.ArgumentParser(description="What signals and models add to miss rates.")
    parser.add_argument("--test", action="store_true", help="SciFact's test questions")
    parser.add_argument("--cost", action="store_true", help="time signals and retrieval")
    parser.add_argument("--only", nargs="+", choices=DEVELOPMENT, default=list(DEVELOPMENT))
    options = parser.parse_args()
    if options.test or options.cost:
        test() if options.test else cost()
        return
    for name in options.only:
        compare(name)


if __name__ == "__main__":
    warnings.simplefilter("ignore", RuntimeWarning)  # a signal can be NaN for all questions
    main()
