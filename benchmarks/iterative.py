"""Compare iterative retrieval with its base: recovered misses and lost hits of each strategy.

SciFact (all judged questions, documents, recall@10) is retrieved by bm25, MiniLM vectors and their
hybrid. pandas_api (all wordings of answerable questions) is retrieved by the strategies of its gold
set. Each case runs with three miss rates: `heuristic_v0` on all retrieved scores,
`heuristic_v0` on the first ten, and a calibrated miss rate. The calibrated miss rate is a ridge
logistic regression on the signals, out of fold, with folds by group.

The weights of the merge and the levels of the gaps were chosen on the half of SciFact's groups with
even numbers. `part` names the half of each line. No part is fully unseen: the factor of the weights
was compared on both halves and on pandas_api. The script prints a JSON line for each strategy and
part, with the expansion strategies nested.
"""

import csv
import dataclasses
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from miss_rate_data import group_questions
from timing import ROOT, data_folder, emit, json_lines, skipped

from rag_eval.core.arrays import Float32Array
from rag_eval.core.errors import Embedding, InputError
from rag_eval.core.settings import Settings
from rag_eval.pipeline.corpus import AdmittedChunks, GoldArrays, GoldVariants
from rag_eval.pipeline.evaluation import open_gold_set
from rag_eval.pipeline.retrieval import open_index
from rag_eval.retrieval.dense import ExactSearch, model_folder
from rag_eval.retrieval.embedding.embedders import MiniLmEmbedder, read_vectors
from rag_eval.retrieval.embedding.source import ChunkTable
from rag_eval.retrieval.kinds.bm25 import Bm25
from rag_eval.retrieval.kinds.vector import Vector
from rag_eval.retrieval.lexical import Bm25s
from rag_eval.retrieval.ranking import Ranking, weighted
from rag_eval.retrieval.strategies import ReadyStrategy
from rag_eval.storage.hashing import digest, text_hash
from rag_eval.uncertainty.estimator import heuristic_v0
from rag_eval.uncertainty.expansion import CorpusWords, ExpansionContext
from rag_eval.uncertainty.iterative import Iterative, Risk, harm, iterate
from rag_eval.uncertainty.signals import RankedBatch, TermSpace, signals

sys.path.insert(0, str(ROOT / "tests" / "reference"))

DEPTH, K, FOLDS = 100, 10, 10
SPEC = Iterative(name="iterative", kind="iterative", base="base")
Search = Callable[[list[str]], Ranking]


@dataclasses.dataclass(frozen=True)
class Case:
    """One benchmark: questions, a base retriever, a second retriever, and recall@10 of rows."""

    bench: str
    name: str
    words: CorpusWords
    texts: list[str]
    groups: np.ndarray
    search: Search
    other: Search
    cosine: bool
    recall: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """Recall@10 [n] of chunk rows [n, depth] for the questions at places [n]."""
    query_vectors: Float32Array
    chunk_vectors: Float32Array
    question: np.ndarray | None = None


class Embedder:
    """MiniLM vectors from the file, or from the model for a text that the file lacks."""

    def __init__(self, path: Path) -> None:
        names, self._vectors = read_vectors(path)
        self._row = {name: row for row, name in enumerate(names)}
        self._made: dict[str, np.ndarray] = {}
        self._model = MiniLmEmbedder(model_folder(Settings().home / "models"))

    def __call__(self, texts: list[str]) -> Float32Array:
        keys = [text_hash(text) for text in texts]
        new = {
            key: text
            for key, text in zip(keys, texts, strict=True)
            if key not in self._row and key not in self._made
        }
        if new:
            self._made.update(zip(new, self._model.embed(list(new.values())), strict=True))
        return np.stack(
            [self._vectors[self._row[key]] if key in self._row else self._made[key] for key in keys]
        )


def scifact_cases(data: Path) -> Iterator[Case]:
    from corpora import chunks_frame

    documents = json_lines(data / "scifact" / "corpus.jsonl")
    frame = chunks_frame(
        [its["text"] for its in documents],
        [(its["_id"], digest(its["_id"])) for its in documents],
        [its["title"] for its in documents],
    )
    table = ChunkTable(frame, "scifact")
    row_of = {document: row for row, document in enumerate(table.doc_ids)}
    judged: dict[str, list[int]] = {}
    for split in ("train", "test"):
        with (data / "scifact" / "qrels" / f"{split}.tsv").open(
            encoding="utf-8", newline=""
        ) as stream:
            for query, document, gain in list(csv.reader(stream, delimiter="\t"))[1:]:
                if int(gain) > 0:
                    judged.setdefault(query, []).append(row_of[document])
    wording = {its["_id"]: its["text"] for its in json_lines(data / "scifact" / "queries.jsonl")}
    gold, texts = list(judged.values()), [wording[query] for query in judged]
    groups = group_questions(
        np.repeat(np.arange(len(gold)), [len(its) for its in gold]), np.concatenate(gold), len(gold)
    )
    words = CorpusWords(table, TermSpace(table.terms, table.n_terms))

    def recall(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        pairs = zip(rows, places.tolist(), strict=True)
        return np.array([np.isin(gold[place], row[:K]).mean() for row, place in pairs])

    lexical = Bm25s(table.terms, table.n_terms, k1=0.9, b=0.4)
    embed = Embedder(data / "embeddings" / "all-MiniLM-L6-v2.npz")
    chunks = embed(table.texts)
    exact = ExactSearch(chunks)

    def by_term(texts: list[str]) -> Ranking:
        return lexical.search(table.query_terms(texts), DEPTH)

    def by_vector(texts: list[str]) -> Ranking:
        return exact.search(embed(texts), DEPTH)

    def both(texts: list[str]) -> Ranking:
        return weighted(by_term(texts), by_vector(texts), alpha=0.5, beta=0.5, depth=DEPTH)

    for name, search, other in (
        ("bm25", by_term, by_vector),
        ("vector", by_vector, by_term),
        ("hybrid", both, by_term),
    ):
        found = ("scifact", name, words, texts, groups, search, other, name == "vector", recall)
        yield Case(*found, embed(texts), chunks)


def pandas_cases(home: Path) -> Iterator[Case]:
    evaluation = open_gold_set(
        ROOT / "gold_sets" / "pandas_api",
        Settings(home=home, reports=home / "reports", tracking_uri="refused://"),
    )
    opened = open_index(evaluation, evaluation.runner.get(AdmittedChunks))
    gold = GoldArrays(
        evaluation.runner.get(GoldVariants),
        evaluation.runner.get(AdmittedChunks).chunks,
    )
    judged = gold.qrels_document
    parts = [slice(*judged.indptr[q : q + 2].tolist()) for q in gold.query_of.tolist()]
    wanted = [set(judged.items[part][judged.gains[part] > 0].tolist()) for part in parts]
    asked = np.array([place for place, its in enumerate(wanted) if its])

    def recall(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        values = []
        for row, place in zip(rows, places.tolist(), strict=True):
            found = list(dict.fromkeys(gold.document_of_chunk[row[row >= 0]].tolist()))[:K]
            values.append(len(wanted[asked[place]].intersection(found)) / len(wanted[asked[place]]))
        return np.array(values)

    table: ChunkTable = opened.table
    words = CorpusWords(table, TermSpace(table.terms, table.n_terms))
    texts = gold.variants["text"].to_numpy()[asked].tolist()
    lexical = ReadyStrategy(Bm25(name="plain", kind="bm25"), opened.index)
    spec = Vector(name="plain-vector", kind="vector", embedding=Embedding(model="lsa-256"))
    dense = ReadyStrategy(spec, opened.index)
    source = dense.source
    if source is None:
        raise TypeError("a vector strategy has an embedding")
    for name, strategy in opened.strategies.items():
        second = dense if isinstance(strategy.spec, Bm25) else lexical
        yield Case(
            "pandas_api",
            name,
            words,
            texts,
            gold.groups[gold.query_of[asked]],
            lambda its, strategy=strategy: strategy.search(its, DEPTH),
            lambda its, second=second: second.search(its, DEPTH),
            isinstance(strategy.spec, Vector),
            recall,
            source.query_vectors(texts),
            source.chunk_vectors(),
            gold.query_of[asked].astype(np.int64),
        )


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


def measure(case: Case) -> None:
    first, other = case.search(case.texts), case.other(case.texts)
    batch = RankedBatch(
        first.rows,
        first.raw,
        first.norm,
        case.cosine,
        case.words.space,
        case.words.table.query_terms(case.texts),
        other.rows,
        other.raw,
        case.query_vectors,
        case.chunk_vectors,
        case.question,
    )
    context, every = ExpansionContext(batch, case.texts, case.words), np.arange(len(case.texts))
    before = case.recall(first.rows, every)
    risks: dict[str, Risk] = {
        "heuristic_v0": lambda its: (heuristic_v0(its, DEPTH), "heuristic_v0"),
        "heuristic_v0_at_10": lambda its: (heuristic_v0(its, K), "heuristic_v0"),
        "calibrated": calibrated(batch, before == 0, case.groups),
    }
    for basis, risk in risks.items():
        done = iterate(first, context, SPEC, search=case.search, risk=risk)
        halves = {"all": np.ones(len(every), dtype=bool)}
        if case.bench == "scifact":
            halves |= {"chosen_on": case.groups % 2 == 0, "held_out": case.groups % 2 == 1}
        for part, mask in halves.items():
            accounts = harm(
                done.rounds,
                done.steps,
                lambda rows, mask=mask: np.where(mask, case.recall(rows, every), np.nan),
                case.groups,
            )
            line = {
                "collection": case.bench,
                "strategy": case.name,
                "basis": basis,
                "part": part,
                "recall_at_10_base": round(float(before[mask].mean()), 4),
                "triggered_share": round(accounts[0].triggered / accounts[0].questions, 3),
            }
            rounded = [_round(account.as_json()) for account in accounts]
            line |= {name: value for name, value in rounded[0].items() if name != "strategy"}
            if part == "all":
                reasons = sorted(set(done.stopped))
                line["by_expansion"] = rounded[1:]
                line["stopped"] = {reason: done.stopped.count(reason) for reason in reasons}
            emit("iterative", **line)


def _round(figures: dict[str, object]) -> dict[str, Any]:
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in figures.items()
    }


def main(wanted: list[str]) -> None:
    if not wanted or "scifact" in wanted:
        data = data_folder()
        try:
            if data is None:
                skipped("iterative scifact", "the public data is not there; set RAG_EVAL_TEST_DATA")
            for case in scifact_cases(data) if data else ():
                measure(case)
        except InputError as error:  # the MiniLM model is not on this machine
            skipped("iterative scifact", str(error))
    if not wanted or "pandas_api" in wanted:
        with tempfile.TemporaryDirectory() as home:
            for case in pandas_cases(Path(home)):
                measure(case)


if __name__ == "__main__":
    main(sys.argv[1:])
