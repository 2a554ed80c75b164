"""Fit the weights of the extractive answerer and write rag_eval/answers/coefficients.json.

The fit sees SciFact's train claims, half of CLAPnq's questions, and the questions of half of
XQuAD's paragraphs. The other parts are held out, and the file reports figures on them.
The fit never reads gold sets of this project. Each set has the same weight. Each model has two
logistic regressions:

- sentence: whether a unit overlaps a span that people marked, over questions with such a span;
- signal: whether the best unit is right, over questions with and without an answer in the evidence.

The threshold refuses the share REFUSED of the answerable questions in the fitted half of CLAPnq.
"""

import sys
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from timing import ROOT, data_folder, emit, skipped, write_coefficients

from rag_eval.answers.extractive import FEATURES, FILE, Model, Pool, signal_names
from rag_eval.corpus.analyzer import count_documents

sys.path.insert(0, str(ROOT / "tests" / "reference"))
import answer_sets

DIGITS = 4
REFUSED = 0.11
SENTENCE_SETS = ("clapnq", "scifact", "scifact_open", "xquad", "xquad_open")
SIGNAL_SETS = (*SENTENCE_SETS[:4], "xquad_wrong", "xquad_open", "xquad_open_wrong")
SENTENCE_C, SIGNAL_C = 1.0, 0.3


class Measured:
    """One set with the features of one model."""

    def __init__(self, its: answer_sets.AnswerSet, model: Model, embed: Any) -> None:
        self.set = its
        self.pool = Pool(its.questions, its.passages)
        self.x = self.pool.lexical(count_documents(its.background))
        if model != "lexical":
            embedding = embed if model == "sentence" else answer_sets.lsa_embed(its.background)
            self.x = np.hstack([self.x, self.pool.dense(embedding)])
        self.right = answer_sets.candidate_labels(self.pool, its.gold)

    def order(self, log_odds: np.ndarray) -> np.ndarray:
        return np.lexsort((-log_odds, self.pool.question_of))

    def best_is_right(self, order: np.ndarray) -> np.ndarray:
        counts = np.bincount(self.pool.question_of, minlength=len(self.set.questions))
        first = np.minimum(np.cumsum(counts) - counts, len(order) - 1)
        return self.right[order[first]] & (counts > 0)


def regression(
    parts: list[tuple[np.ndarray, np.ndarray]], sizes: list[int], c: float
) -> tuple[np.ndarray, float]:
    """Fit on standardised columns with equal weight for each part.

    Returns weights for the raw columns, and the intercept.
    """
    x, y = np.vstack([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    weight = np.concatenate(
        [np.full(len(part[1]), 1000.0 / size) for part, size in zip(parts, sizes, strict=True)]
    )
    mean, spread = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-9)
    fitted = LogisticRegression(C=c, max_iter=5000, tol=1e-8).fit(
        (x - mean) / spread, y, sample_weight=weight
    )
    slope = np.round(fitted.coef_[0] / spread, DIGITS)
    return slope, float(np.round(fitted.intercept_[0] - slope @ mean, DIGITS))


def fit(model: Model, sets: dict[str, answer_sets.AnswerSet], embed: Any) -> dict[str, object]:
    """Fit one model and measure it on the parts that are held out."""
    names = FEATURES[model]
    measured = {name: Measured(its, model, embed) for name, its in sets.items()}
    parts, sizes = [], []
    for name in SENTENCE_SETS:
        its = measured[name]
        used = ~its.set.held_out & its.set.answerable
        rows = used[its.pool.question_of]
        parts.append((its.x[rows], its.right[rows]))
        sizes.append(int(used.sum()))
    slope, bias = regression(parts, sizes, SENTENCE_C)
    rows, right = {}, {}
    for name in SIGNAL_SETS:
        its = measured[name]
        log_odds = its.x @ slope + bias
        order = its.order(log_odds)
        rows[name] = its.pool.signals(names, its.x, log_odds, order)
        right[name] = its.best_is_right(order)
    fitted = {name: ~sets[name].held_out for name in SIGNAL_SETS}
    signal_slope, signal_bias = regression(
        [(rows[name][fitted[name]], right[name][fitted[name]]) for name in SIGNAL_SETS],
        [int(fitted[name].sum()) for name in SIGNAL_SETS],
        SIGNAL_C,
    )
    signal = {
        name: 1 / (1 + np.exp(-(rows[name] @ signal_slope + signal_bias))) for name in SIGNAL_SETS
    }
    clapnq, given = signal["clapnq"], sets["clapnq"]
    held_out, answerable = given.held_out, given.answerable
    threshold = float(np.round(np.quantile(clapnq[~held_out & answerable], REFUSED), 3))
    both = np.concatenate(
        [signal["xquad"][sets["xquad"].held_out], signal["xquad_wrong"][sets["xquad"].held_out]]
    )
    report = {
        "clapnq_auroc": answer_sets.auroc(answerable[held_out], clapnq[held_out]),
        "clapnq_refused_answerable": float((clapnq[held_out & answerable] < threshold).mean()),
        "clapnq_refused_unanswerable": float((clapnq[held_out & ~answerable] < threshold).mean()),
        "xquad_right_or_wrong_paragraph_auroc": answer_sets.auroc(
            np.repeat([True, False], len(both) // 2), both
        ),
        **{
            f"{name}_best_sentence_right": float(
                right[name][sets[name].held_out & sets[name].answerable].mean()
            )
            for name in SENTENCE_SETS
        },
    }
    return {
        "sentence": {**dict(zip(names, slope.tolist(), strict=True)), "bias": bias},
        "signal": {
            **dict(zip(signal_names(names), signal_slope.tolist(), strict=True)),
            "bias": signal_bias,
        },
        "threshold": threshold,
        "held_out": {name: round(value, 3) for name, value in report.items()},
    }


def main() -> None:
    folder, embed = data_folder(), answer_sets.minilm_embed()
    if folder is None or embed is None:
        lacking = "the public data is not there; set RAG_EVAL_TEST_DATA"
        if folder is not None:
            lacking = "the model file of MiniLM is not on this machine"
        skipped("fit_extractive", lacking)
        return
    sets = {
        "clapnq": answer_sets.clapnq(folder),
        "scifact": answer_sets.scifact_evidence(folder),
        "scifact_open": answer_sets.scifact_open(folder),
        **answer_sets.xquad(folder),
    }
    models: tuple[Model, ...] = ("lexical", "lsa", "sentence")
    document: dict[str, object] = {
        "schema_version": 1,
        "provenance": {
            "fitted_by": "benchmarks/fit_extractive.py",
            "fitted_on": {name: int((~its.held_out).sum()) for name, its in sets.items()},
            "held_out": {name: int(its.held_out.sum()) for name, its in sets.items()},
            "sets": (
                "CLAPnq dev (Apache-2.0), SciFact train (claims CC BY 4.0, abstracts ODC-By 1.0), "
                "XQuAD English (CC BY-SA 4.0); only these numbers are kept of them"
            ),
            "sentence_model": "all-MiniLM-L6-v2",
            "threshold": (
                f"refuses {REFUSED:.0%} of the fitted half of CLAPnq's answerable questions"
            ),
        },
        "models": {model: fit(model, sets, embed) for model in models},
    }
    write_coefficients("answers", FILE, document)
    for model, fitted in document["models"].items():
        emit("fit_extractive", model=model, threshold=fitted["threshold"], **fitted["held_out"])


if __name__ == "__main__":
    main()
