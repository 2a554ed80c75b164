"""Measure the signals on SciFact's test questions, and their time beside retrieval.

The fit is scikit-learn's StandardScaler and LogisticRegression over the signals of a single
wording, with the outcomes of the train questions; inner grouped folds choose C. The figures are of
test questions in groups without outcomes, with 95 % intervals that resample groups.
"""

import dataclasses
import warnings
from collections.abc import Callable

import numpy as np
from miss_rate_data import STRATEGIES, collection, folder, judged
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler
from timing import alternate, emit, report

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.retrieval.dense import ExactSearch
from rag_eval.uncertainty.scores import grouped_folds, log_losses
from rag_eval.uncertainty.signals import SIGNALS, WORDING_SIGNALS, signals

K, INNER, RESAMPLES = 10, 3, 1000
CS = (0.03, 0.1, 0.3)
ALONE = tuple(name for name in SIGNALS if name not in WORDING_SIGNALS)
GOALS = {"auroc": 0.88, "skill": 0.40}


def _linear(x: FloatArray, missed: FloatArray, new: FloatArray, c: float) -> FloatArray:
    scaler = StandardScaler().fit(x)
    z, other = (np.nan_to_num(np.clip(scaler.transform(part), -4, 4)) for part in (x, new))
    model = LogisticRegression(C=c, solver="newton-cholesky").fit(z, missed)
    return model.predict_proba(other)[:, 1]


def logistic(x: FloatArray, missed: FloatArray, group: IntArray, new: FloatArray) -> FloatArray:
    """Fit misses, with C chosen on inner grouped folds, and predict new questions."""
    loss = np.zeros(len(CS))
    fold = grouped_folds(group, INNER, np.random.default_rng(0))
    for number in np.unique(fold):
        held = fold == number
        for at, c in enumerate(CS):
            predicted = _linear(x[~held], missed[~held], x[held], c)
            loss[at] += log_losses(predicted, missed[held]).sum()
    return _linear(x, missed, new, CS[int(loss.argmin())])


def figures(predicted: FloatArray, missed: FloatArray, weight: FloatArray) -> tuple[float, float]:
    """Compute AUROC and Brier skill of weighted questions; NaN without misses or without hits."""
    rate = np.average(missed, weights=weight)
    if not 0 < rate < 1:
        return np.nan, np.nan
    loss = np.average((predicted - missed) ** 2, weights=weight)
    area = roc_auc_score(missed, predicted, sample_weight=weight)
    return area, 1 - loss / (rate * (1 - rate))


def test() -> None:
    """Print figures of SciFact's test questions in groups that the train questions do not share."""
    lines = (folder() / "scifact" / "qrels" / "train.tsv").read_text(encoding="utf-8").splitlines()
    train = {line.split("\t")[0] for line in lines[1:]}
    for strategy in STRATEGIES:
        data = judged("scifact", strategy, "minilm")
        seen = np.array([name in train for name in data.collection.ids])
        group, missed = data.collection.group, data.first_gold > K
        new = ~seen & ~np.isin(group, group[seen])
        x = signals(data.batch, K)[:, [SIGNALS.index(signal) for signal in ALONE]]
        predicted = logistic(x[seen], missed[seen], group[seen], x[new])
        _, code = np.unique(group[new], return_inverse=True)
        n = code.max() + 1
        drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), RESAMPLES)[:, code]
        value = figures(predicted, missed[new], np.ones(len(code)))
        samples = [figures(predicted, missed[new], weight) for weight in drawn]
        ends = np.nanquantile(samples, [0.025, 0.975], axis=0)
        shown = dict(zip(GOALS, np.round(np.vstack([value, ends]).T, 3).tolist(), strict=True))
        counts = {"n": len(code), "misses": int(missed[new].sum())}
        met = all(np.array(value) >= list(GOALS.values()))
        emit("signals_test", strategy=strategy, **shown, **counts, goals=GOALS, met=bool(met))


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


if __name__ == "__main__":
    warnings.simplefilter("ignore", RuntimeWarning)  # a signal can be NaN for all questions
    test()
    cost()
