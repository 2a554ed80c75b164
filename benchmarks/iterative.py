"""Compare iterative retrieval with its base: recovered misses and lost hits of each strategy.

The collections are SciFact with MiniLM vectors and pandas_api (all wordings of answerable
questions) with LSA vectors; recall@10 counts documents. The bases are bm25, vector and their
hybrid. Each case runs with three miss rates: `heuristic_v0` on all retrieved scores,
`heuristic_v0` on the first ten, and a calibrated miss rate. The calibrated miss rate is a ridge
logistic regression on the signals, out of fold, with folds by group.

The weights of the merge and the levels of the gaps were chosen on the half of SciFact's groups with
even numbers. `part` names the half of each line. No part is fully unseen: the factor of the weights
was compared on both halves and on pandas_api. The script prints a JSON line for each strategy and
part, with the expansion strategies nested.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from miss_rate_data import STRATEGIES, Collection, collection, judged
from timing import ROOT, data_folder, emit, skipped

from rag_eval.core.arrays import Float32Array
from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.measures.overlap import SharedGold
from rag_eval.retrieval.dense import ExactSearch, model_folder
from rag_eval.retrieval.embedding.embedders import (
    LsaEmbedder,
    MiniLmEmbedder,
    fit_lsa,
    read_vectors,
)
from rag_eval.retrieval.kinds.hybrid import weighted
from rag_eval.retrieval.ranking import Ranking
from rag_eval.storage.hashing import text_hash
from rag_eval.uncertainty.expansion import CorpusWords, ExpansionContext
from rag_eval.uncertainty.heuristic import heuristic_v0
from rag_eval.uncertainty.iterative import Iterative, Risk, harm, iterate
from rag_eval.uncertainty.signals import RankedBatch, signals

sys.path.insert(0, str(ROOT / "tests" / "reference"))

MODELS = {"scifact": "minilm", "pandas_api": "lsa-256"}
DEPTH, K, FOLDS = 100, 10, 10
SPEC = Iterative(name="iterative", kind="iterative", base="base")


class MiniLm:
    """MiniLM vectors from the public file, or from the model for a text that the file lacks."""

    def __init__(self) -> None:
        folder = data_folder()
        if folder is None:
            raise SystemExit("the public data is not there; set RAG_EVAL_TEST_DATA")
        names, vectors = read_vectors(folder / "embeddings" / "all-MiniLM-L6-v2.npz")
        self._known = dict(zip(names, vectors, strict=True))
        self._model = MiniLmEmbedder(model_folder(Path(Settings().home, "models")))

    def __call__(self, texts: list[str]) -> Float32Array:
        new = list({text for text in texts if text_hash(text) not in self._known})
        if new:
            self._known |= zip(map(text_hash, new), self._model.embed(new), strict=True)
        return np.stack([self._known[text_hash(text)] for text in texts])


class Retriever:
    """Retrieves by one of STRATEGIES for any text, like `judged` for the questions."""

    def __init__(self, its: Collection, strategy: str) -> None:
        self.its, self.strategy = its, strategy
        if MODELS[its.name] == "minilm":
            self.embed: Any = MiniLm()
        else:
            fitted = fit_lsa(its.terms, list(its.analyzer.vocabulary)[: its.n_terms], 256)
            lsa = LsaEmbedder(fitted, "benchmark", 256)
            self.embed = lambda texts: lsa.embed_terms(its.analyzer.index(texts))
        self.exact = ExactSearch(its.vectors(MODELS[its.name])[1])

    def __call__(self, texts: list[str]) -> Ranking:
        found = []
        if self.strategy != "vector":
            found.append(self.its.bm25.search(self.its.analyzer.index(texts), DEPTH))
        if self.strategy != "bm25":
            found.append(self.exact.search(self.embed(texts), DEPTH))
        return found[0] if len(found) == 1 else weighted(*found, alpha=0.5, beta=0.5, depth=DEPTH)


def recall(its: Collection, rows: np.ndarray) -> np.ndarray:
    """Compute recall@K of documents for each wording, [n], from chunk rows [n, depth]."""
    wanted: list[set[int]] = [set() for _ in its.queries]
    for wording, chunk in its.gold.tolist():
        wanted[wording].add(int(its.document[chunk]))
    found = (list(dict.fromkeys(its.document[row[row >= 0]].tolist()))[:K] for row in rows)
    pairs = zip(wanted, found, strict=True)
    return np.array([len(gold.intersection(top)) / len(gold) for gold, top in pairs])


def calibrated(batch: RankedBatch, missed: np.ndarray, groups: np.ndarray) -> Risk:
    """Predict miss rates out of fold: no model saw the group of a question that it predicts."""
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    fold = np.random.default_rng(13).permutation(groups.max() + 1)[groups] % FOLDS
    values = signals(batch, K)
    models = [
        make_pipeline(
            SimpleImputer(keep_empty_features=True),
            StandardScaler(),
            LogisticRegression(C=0.1, max_iter=1000),
        ).fit(values[fold != part], missed[fold != part])
        for part in range(FOLDS)
    ]

    def risk(again: RankedBatch) -> tuple[np.ndarray, str]:
        now, out = signals(again, K), np.zeros(len(missed))
        for part, model in enumerate(models):
            out[fold == part] = model.predict_proba(now[fold == part])[:, 1]
        return out, "calibrated"

    return risk


def measure(name: str, strategy: str) -> None:
    from corpora import table

    its, batch = collection(name), judged(name, strategy, MODELS[name], DEPTH).batch
    search = Retriever(its, strategy)
    first, words = search(its.queries), CorpusWords(table(its.texts), its.space)
    context, before = ExpansionContext(batch, its.queries, words), recall(its, batch.rows)
    risks: dict[str, Risk] = {
        "heuristic_v0": lambda again: (heuristic_v0(again, DEPTH), "heuristic_v0"),
        "heuristic_v0_at_10": lambda again: (heuristic_v0(again, K), "heuristic_v0"),
        "calibrated": calibrated(batch, before == 0, its.group),
    }
    gold = SharedGold.of_groups(its.group)
    halves = {"all": np.ones(len(before), dtype=bool)}
    if name == "scifact":
        halves |= {"chosen_on": its.group % 2 == 0, "held_out": its.group % 2 == 1}
    for basis, risk in risks.items():
        done = iterate(first, context, SPEC, search=search, risk=risk)
        recalls = [recall(its, rows) for rows in done.rounds]
        for part, mask in halves.items():
            rounds = iter([np.where(mask, values, np.nan) for values in recalls])
            accounts = harm(done.rounds, done.steps, lambda _, own=rounds: next(own), gold)
            line = {
                "collection": name,
                "strategy": strategy,
                "basis": basis,
                "part": part,
                "recall_at_10_base": round(float(before[mask].mean()), 4),
                "triggered_share": round(accounts[0].triggered / accounts[0].questions, 3),
            }
            whole, *by_expansion = (_round(account.as_json()) for account in accounts)
            line |= {key: value for key, value in whole.items() if key != "strategy"}
            if part == "all":
                reasons = sorted(set(done.stopped))
                line["by_expansion"] = by_expansion
                line["stopped"] = {reason: done.stopped.count(reason) for reason in reasons}
            emit("iterative", **line)


def _round(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in figures.items()
    }


def main(wanted: list[str]) -> None:
    for name in wanted or MODELS:
        try:
            for strategy in STRATEGIES:
                measure(name, strategy)
        except InputError as error:  # the MiniLM model is not on this machine
            skipped(f"iterative {name}", str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
