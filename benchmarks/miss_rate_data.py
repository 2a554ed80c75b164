"""Judged retrievals of public collections, for the benchmarks and fits of miss rates.

`collection(name)` reads one of COLLECTIONS. `judged(collection, strategy, model, depth)` retrieves
for it and returns the batch with its gold. BM25 and exact vector search are the project's own
engines with default parameters. The second retriever of bm25 is the vector search. The second
retriever of vector and hybrid is bm25. All three have vectors.

The models are `lsa-256` and `minilm`. `minilm` reads the public vectors file, which holds SciFact
and the whole paragraphs of the original XQuAD wordings only.
"""

import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from timing import ROOT, data_folder, indexed_text, json_lines

from rag_eval.corpus.analyzer import Analyzer
from rag_eval.corpus.chunking import spans
from rag_eval.gold.loading import group_ids
from rag_eval.retrieval.dense import ExactSearch
from rag_eval.retrieval.embedding.embedders import LsaEmbedder, fit_lsa, read_vectors
from rag_eval.retrieval.kinds.bm25 import Bm25
from rag_eval.retrieval.kinds.hybrid import weighted
from rag_eval.retrieval.lexical import Bm25s
from rag_eval.retrieval.ranking import Ranking
from rag_eval.storage.hashing import text_hash
from rag_eval.uncertainty.scores import Labelled
from rag_eval.uncertainty.signals import SIGNALS, RankedBatch, TermSpace, signals

COLLECTIONS = ("scifact", "xquad_sentences", "clapnq", "pandas_api")
STRATEGIES = ("bm25", "vector", "hybrid")
WORDINGS = ("original", *(f"back-translation-{language}" for language in ("es", "de", "ru", "zh")))
POOL = 100

Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class Collection:
    """Chunks, wordings of questions, and the gold chunks of each wording.

    `gold` is int64 [m, 2] of (wording, chunk row). `question` and `group` are codes [n]. Wording 0
    of a question comes first. Groups are connected components over shared gold documents.
    """

    name: str
    texts: list[str]
    analyzer: Analyzer
    terms: list[list[int]]
    n_terms: int
    ids: list[str]
    queries: list[str]
    question: Ints
    group: Ints
    gold: Ints
    document: Ints

    @functools.cached_property
    def query_terms(self) -> list[list[int]]:
        return self.analyzer.index(self.queries)

    @functools.cached_property
    def space(self) -> TermSpace:
        return TermSpace(self.terms, self.n_terms)

    @functools.cached_property
    def bm25(self) -> Bm25s:
        spec = Bm25(name="bm25", kind="bm25")
        return Bm25s(self.terms, self.n_terms, k1=spec.k1, b=spec.b)

    @functools.cache  # noqa: B019 - collections live as long as the benchmark
    def vectors(self, model: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Vectors of the queries and of the chunks."""
        if model == "lsa-256":
            fitted = fit_lsa(self.terms, list(self.analyzer.vocabulary)[: self.n_terms], 256)
            embedder = LsaEmbedder(fitted, "benchmark", 256)
            return embedder.embed_terms(self.query_terms), embedder.embed_terms(self.terms)
        names, vectors = read_vectors(folder() / "embeddings" / "all-MiniLM-L6-v2.npz")
        row = {name: i for i, name in enumerate(names)}
        asked, held = (
            [row.get(text_hash(text), -1) for text in texts] for texts in (self.queries, self.texts)
        )
        if min(*asked, *held) < 0:
            raise SystemExit(f"{self.name}: there are no MiniLM vectors of its texts; use lsa-256")
        return vectors[asked], vectors[held]


@dataclasses.dataclass(frozen=True, eq=False)
class Judged:
    """A batch with its gold.

    `relevant` bool [n, depth]: whether the chunk at a rank is gold. `first_gold` float64 [n]: rank
    of the first gold from 1, inf if the list has no gold. `n_gold` int64 [n]: number of gold chunks
    in the collection.
    """

    collection: Collection
    strategy: str
    model: str
    batch: RankedBatch
    relevant: npt.NDArray[np.bool_]
    first_gold: npt.NDArray[np.float64]
    n_gold: Ints

    def missed(self, k: int = 10) -> npt.NDArray[np.bool_]:
        """Return miss_any@k of each question, bool [n]."""
        return self.first_gold > k

    def labelled(self, k: int = 10) -> Labelled:
        """Return signals and outcomes of miss_any@k. Weights are 1, because every row is judged."""
        weight, group = np.ones(len(self.first_gold)), self.collection.group
        found = signals(self.batch, k)
        return Labelled(SIGNALS, found, self.missed(k), group, weight, self.collection.question)


def folder() -> Path:
    found = data_folder()
    if found is None:
        raise SystemExit("the public data is not there; set RAG_EVAL_TEST_DATA")
    return found


def group_questions(question: Ints, document: Ints, n: int) -> Ints:
    """Return the group of each of n questions; questions with a common gold document share it."""
    pairs = question.astype(str).tolist(), document.astype(str).tolist()
    return pd.factorize(np.array(group_ids(list(map(str, range(n))), *pairs)))[0]


def _collection(
    name: str,
    texts: list[str],
    document: list[str],
    rows: list[tuple[str, str]],
    gold: dict[str, list[int]],
) -> Collection:
    """Build a collection.

    `rows` are (question id, text of a wording), `gold` holds the chunk rows of each question, and
    `document` the document of each chunk.
    """
    analyzer = Analyzer()
    terms = analyzer.index(texts)
    ids, queries = (list(column) for column in zip(*rows, strict=True))
    question, names = pd.factorize(np.array(ids, dtype=object))
    number = pd.factorize(np.array(document, dtype=object))[0]
    tied = [(i, number[row]) for i, name in enumerate(names) for row in gold.get(name, [])]
    of_question, of_document = np.array(tied, dtype=np.int64).reshape(-1, 2).T
    pairs = [(i, row) for i, name in enumerate(ids) for row in gold.get(name, [])]
    return Collection(
        name,
        texts,
        analyzer,
        terms,
        len(analyzer.vocabulary),
        ids,
        queries,
        question,
        group_questions(of_question, of_document, len(names))[question],
        np.array(pairs, dtype=np.int64).reshape(-1, 2),
        number,
    )


def _scifact() -> Collection:
    base = folder() / "scifact"
    documents = sorted(json_lines(base / "corpus.jsonl"), key=lambda document: document["_id"])
    ids = [document["_id"] for document in documents]
    row = {doc: i for i, doc in enumerate(ids)}
    gold: dict[str, list[int]] = {}
    for split in ("train", "test"):
        for line in (base / "qrels" / f"{split}.tsv").read_text(encoding="utf-8").splitlines()[1:]:
            query, doc, gain = line.split("\t")
            if int(gain) > 0:
                gold.setdefault(query, []).append(row[doc])
    queries = json_lines(base / "queries.jsonl")
    rows = [(row["_id"], row["text"]) for row in queries if row["_id"] in gold]
    return _collection("scifact", list(map(indexed_text, documents)), ids, rows, gold)


def _xquad_sentences() -> Collection:
    """Cut paragraphs and distractors into sentences; gold sentences touch the first answer."""
    base = folder() / "xquad"
    texts: list[str] = []
    document: list[str] = []
    places: dict[str, list[tuple[int, int, int]]] = {}
    for name in ("corpus", "distractors"):
        for paragraph in json_lines(base / f"{name}.jsonl"):
            for start, end in spans(paragraph["text"]):
                places.setdefault(paragraph["_id"], []).append((start, end, len(texts)))
                texts.append(paragraph["text"][start:end])
                document.append(paragraph["_id"])
    gold: dict[str, list[int]] = {}
    answers: list[Any] = [*json_lines(base / "answers.jsonl")]
    for row in answers:
        first = row["answers"][0]
        gold[row["query_id"]] = [
            chunk
            for start, end, chunk in places[row["doc_id"]]
            if start < first["end"] and first["start"] < end
        ]
    queries, others = json_lines(base / "queries.jsonl"), json_lines(base / "paraphrases.jsonl")
    text = {("original", row["_id"]): row["text"] for row in queries}
    text |= {(row["paraphrase_id"], row["query_id"]): row["text"] for row in others}
    rows = [(question, text[name, question]) for question in gold for name in WORDINGS]
    return _collection("xquad_sentences", texts, document, rows, gold)


def _clapnq() -> Collection:
    """Read the sentences of the passages of all questions, answerable or not, without titles.

    Gold is every sentence that the answer was drawn from.
    """
    texts: list[str] = []
    document: list[str] = []
    chunk: dict[tuple[str, str], int] = {}
    rows: list[tuple[str, str]] = []
    gold: dict[str, list[int]] = {}
    for name in ("answerable", "unanswerable"):
        questions: list[Any] = [*json_lines(folder() / "clapnq" / f"clapnq_dev_{name}.jsonl")]
        for question in questions:
            for passage in question["passages"]:
                for sentence in passage["sentences"]:
                    if (passage["text"], sentence) not in chunk and sentence.strip():
                        chunk[passage["text"], sentence] = len(texts)
                        texts.append(sentence)
                        document.append(passage["text"])
            chosen = {
                sentence
                for answer in question["output"]
                for sentence in answer.get("selected_sentences", [])
            }
            found = [
                chunk[passage["text"], sentence]
                for passage in question["passages"]
                for sentence in passage["sentences"]
                if sentence in chosen
            ]
            if found:
                rows.append((question["id"], question["input"]))
                gold[question["id"]] = sorted(set(found))
    return _collection("clapnq", texts, document, rows, gold)


def _pandas_api() -> Collection:
    """Read the project's gold set at level document, with all wordings of answerable questions."""
    from rag_eval.core.settings import Settings
    from rag_eval.pipeline.corpus import AdmittedChunks, GoldVariants
    from rag_eval.pipeline.evaluation import open_gold_set

    with tempfile.TemporaryDirectory() as place:
        home, gold_sets = Path(place), ROOT / "gold_sets"
        reports, nowhere = home / "reports", "refused://"
        settings = Settings(home=home, reports=reports, gold_sets=gold_sets, tracking_uri=nowhere)
        evaluation = open_gold_set(ROOT / "gold_sets" / "pandas_api", settings)
        found = evaluation.runner.get(GoldVariants).artifact
        variants, qrels = found.frame("variants"), found.frame("qrels_document")
        chunks = evaluation.runner.get(AdmittedChunks).artifact.frame("chunks")
    variants = variants[variants["answerable"]]
    document = chunks["doc_id"].tolist()
    of_document: dict[str, list[int]] = {}
    for row, doc in enumerate(document):
        of_document.setdefault(doc, []).append(row)
    gold: dict[str, list[int]] = {}
    for query, doc, gain in zip(qrels["query_id"], qrels["item_id"], qrels["gain"], strict=True):
        if gain > 0:
            gold.setdefault(query, []).extend(of_document.get(doc, []))
    rows = list(zip(variants["query_id"], variants["text"], strict=True))
    texts = (chunks["title"] + " " + chunks["text"]).str.strip().tolist()
    return _collection("pandas_api", texts, document, rows, gold)


@functools.cache
def collection(name: str) -> Collection:
    """Read one of COLLECTIONS."""
    return {
        "scifact": _scifact,
        "xquad_sentences": _xquad_sentences,
        "clapnq": _clapnq,
        "pandas_api": _pandas_api,
    }[name]()


@functools.lru_cache(maxsize=8)
def _search(name: str, model: str, depth: int) -> dict[str, Ranking]:
    its = collection(name)
    queries, chunks = its.vectors(model)
    bm25 = its.bm25.search(its.query_terms, depth)
    vector = ExactSearch(chunks).search(queries, depth)
    hybrid = weighted(bm25, vector, alpha=0.5, beta=0.5, depth=depth)
    return {"bm25": bm25, "vector": vector, "hybrid": hybrid}


def judged(name: str, strategy: str, model: str = "lsa-256", depth: int = POOL) -> Judged:
    """Retrieve for a collection by one of STRATEGIES, at least POOL deep, and look up the gold."""
    its, found = collection(name), _search(name, model, max(depth, POOL))
    queries, chunks = its.vectors(model)
    main = found[strategy].cut(depth)
    other = found["vector" if strategy == "bm25" else "bm25"].cut(depth)
    question = its.question if len(np.unique(its.question)) < len(its.question) else None
    batch = RankedBatch(
        main.rows,
        main.raw,
        main.norm,
        strategy == "vector",
        its.space,
        its.query_terms,
        other.rows,
        other.raw,
        queries,
        chunks,
        question,
        its.document,
    )
    n_chunks = len(its.texts)
    codes = np.arange(len(its.queries), dtype=np.int64)[:, None] * n_chunks + main.rows
    relevant = np.isin(codes, its.gold[:, 0] * n_chunks + its.gold[:, 1]) & (main.rows >= 0)
    first = np.where(relevant.any(axis=1), relevant.argmax(axis=1) + 1.0, np.inf)
    n_gold = np.bincount(its.gold[:, 0], minlength=len(its.queries))
    return Judged(its, strategy, model, batch, relevant, first, n_gold)
