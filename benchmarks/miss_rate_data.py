"""Judged retrievals of public collections, for the benchmarks and fits of miss rates.

`collection(name)` reads one of COLLECTIONS. `judged(collection, strategy, model)` retrieves
for it and returns the batch with its gold. BM25 and exact vector search are the project's own
engines with default parameters. The second retriever of bm25 is the vector search. The second
retriever of vector and hybrid is bm25. All three have vectors.

The models are `lsa-256` and `minilm`. Texts that the public vectors file lacks are embedded once
and kept in `.rag_eval`.

Three collections with many relevant chunks are made from the others. In `xquad_paragraphs` every
sentence of a paragraph is gold for all questions on the paragraph (5 on average, shared by 5
questions). In `xquad_articles` this holds for the five paragraphs of an article (25, shared by 25
questions). In `clapnq_passages` every sentence of the answering passages is gold (7). `npl` has 22
relevant documents a question and is a test: nothing is tuned on it alone.
"""

import dataclasses
import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from timing import ROOT, data_folder, indexed_text, json_lines

from rag_eval.core.types import BinaryTarget
from rag_eval.corpus.analyzer import Analyzer
from rag_eval.corpus.chunking import spans
from rag_eval.gold.loading import gold_groups
from rag_eval.measures.overlap import SharedGold
from rag_eval.pipeline.stages import open_runner
from rag_eval.retrieval.chroma import model_folder
from rag_eval.retrieval.dense import POOL as FUSED
from rag_eval.retrieval.dense import ExactSearch, Hybrid
from rag_eval.retrieval.embedding.embedders import (
    LsaEmbedder,
    MiniLmEmbedder,
    fit_lsa,
    read_vectors,
)
from rag_eval.retrieval.lexical import Bm25, Bm25s
from rag_eval.retrieval.ranking import Ranking
from rag_eval.storage.hashing import text_hash
from rag_eval.uncertainty.signals import SIGNALS, RankedBatch, TermSpace, signals
from rag_eval.uncertainty.validation import Labelled

SINGLE_ANSWER = ("scifact", "xquad_sentences", "clapnq", "pandas_api")
MANY_RELEVANT = ("xquad_paragraphs", "xquad_articles", "clapnq_passages", "npl")
COLLECTIONS = (*SINGLE_ANSWER, *MANY_RELEVANT)
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
        return minilm(self.queries), minilm(self.texts)


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

    def missed(self, k: int = 10, target: BinaryTarget = "miss_any") -> npt.NDArray[np.bool_]:
        """Return whether each question counts as missed at k, bool [n]."""
        if target == "miss_some":
            return np.asarray(self.relevant[:, :k].sum(axis=1) < self.n_gold)
        return self.first_gold > k

    def labelled(self, k: int = 10, target: BinaryTarget = "miss_any") -> Labelled:
        """Return signals and outcomes. Weights are 1, because every row is judged."""
        weight, its = np.ones(len(self.first_gold)), self.collection
        missed = self.missed(k, target)
        found = signals(self.batch, k)
        shared = SharedGold.of_pairs(
            its.question[its.gold[:, 0]], its.document[its.gold[:, 1]], int(its.question.max()) + 1
        )
        return Labelled(SIGNALS, found, missed, its.group, weight, its.question, shared)


def minilm(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Look up the MiniLM vectors of texts, [n, 384]; the missing ones are embedded and kept."""
    kept = ROOT / ".rag_eval" / "benchmarks" / "minilm.npz"
    known: dict[str, npt.NDArray[np.float32]] = {}
    for path in (folder() / "embeddings" / "all-MiniLM-L6-v2.npz", kept):
        if path.is_file():
            known |= dict(zip(*read_vectors(path), strict=True))
    names = list(map(text_hash, texts))
    missing = {name: text for name, text in zip(names, texts, strict=True) if name not in known}
    if missing:
        found = MiniLmEmbedder(model_folder(ROOT / ".rag_eval")).embed(list(missing.values()))
        old = read_vectors(kept) if kept.is_file() else ([], np.empty((0, found.shape[1])))
        kept.parent.mkdir(parents=True, exist_ok=True)
        every = np.vstack([old[1], found]).astype(np.float32)
        np.savez(kept, sha256=np.array([*old[0], *missing]), vectors=every)
        known |= dict(zip(missing, found, strict=True))
    return np.array([known[name] for name in names])


def folder() -> Path:
    found = data_folder()
    if found is None:
        raise SystemExit("the public data is not there; set RAG_EVAL_TEST_DATA")
    return found


def group_questions(question: Ints, document: Ints, n: int) -> Ints:
    """Return the group of each of n questions; questions with a common gold document share it."""
    pairs = question.astype(str).tolist(), document.astype(str).tolist()
    return pd.factorize(np.array(gold_groups(list(map(str, range(n))), *pairs)))[0]


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


def _beir(name: str) -> Collection:
    """Read a collection in BEIR layout with all its judged queries."""
    base = folder() / name
    documents = sorted(json_lines(base / "corpus.jsonl"), key=lambda document: document["_id"])
    ids = [document["_id"] for document in documents]
    row = {doc: i for i, doc in enumerate(ids)}
    gold: dict[str, list[int]] = {}
    for judgements in sorted((base / "qrels").glob("*.tsv")):
        for line in judgements.read_text(encoding="utf-8").splitlines()[1:]:
            query, doc, gain = line.split("\t")
            if int(gain) > 0:
                gold.setdefault(query, []).append(row[doc])
    queries = json_lines(base / "queries.jsonl")
    rows = [(row["_id"], row["text"]) for row in queries if row["_id"] in gold]
    return _collection(name, list(map(indexed_text, documents)), ids, rows, gold)


def _xquad(name: str) -> Collection:
    """Cut paragraphs and distractors into sentences; gold sentences touch the first answer.

    In `xquad_paragraphs` and `xquad_articles` all sentences of the paragraph or article are gold,
    and questions have a single wording.
    """
    base = folder() / "xquad"
    texts: list[str] = []
    document: list[str] = []
    places: dict[str, list[tuple[int, int, int]]] = {}
    whole: dict[str, list[int]] = {}
    for file in ("corpus", "distractors"):
        for paragraph in json_lines(base / f"{file}.jsonl"):
            for start, end in spans(paragraph["text"]):
                places.setdefault(paragraph["_id"], []).append((start, end, len(texts)))
                for unit in (paragraph["_id"], _article(paragraph["_id"])):
                    whole.setdefault(unit, []).append(len(texts))
                texts.append(paragraph["text"][start:end])
                document.append(paragraph["_id"])
    gold: dict[str, list[int]] = {}
    answers: list[Any] = [*json_lines(base / "answers.jsonl")]
    for row in answers:
        first, paragraph = row["answers"][0], row["doc_id"]
        gold[row["query_id"]] = {
            "xquad_paragraphs": whole[paragraph],
            "xquad_articles": whole[_article(paragraph)],
            "xquad_sentences": [
                chunk
                for start, end, chunk in places[paragraph]
                if start < first["end"] and first["start"] < end
            ],
        }[name]
    queries, others = json_lines(base / "queries.jsonl"), json_lines(base / "paraphrases.jsonl")
    text = {("original", row["_id"]): row["text"] for row in queries}
    text |= {(row["paraphrase_id"], row["query_id"]): row["text"] for row in others}
    wordings = WORDINGS if name == "xquad_sentences" else WORDINGS[:1]
    rows = [(question, text[wording, question]) for question in gold for wording in wordings]
    return _collection(name, texts, document, rows, gold)


def _article(paragraph: str) -> str:
    """Return the article of a paragraph's id; `xq-07-03` is a paragraph of article `xq-07`."""
    return paragraph.rpartition("-")[0]


def _clapnq(name: str) -> Collection:
    """Read the sentences of the passages of all questions, answerable or not, without titles.

    Gold is every sentence that the answer was drawn from; in `clapnq_passages` every sentence of
    the passages of these sentences.
    """
    whole = name == "clapnq_passages"
    texts: list[str] = []
    document: list[str] = []
    chunk: dict[tuple[str, str], int] = {}
    rows: list[tuple[str, str]] = []
    gold: dict[str, list[int]] = {}
    for part in ("answerable", "unanswerable"):
        questions: list[Any] = [*json_lines(folder() / "clapnq" / f"clapnq_dev_{part}.jsonl")]
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
                if not whole or chosen & set(passage["sentences"])
                for sentence in passage["sentences"]
                if sentence.strip() and (whole or sentence in chosen)
            ]
            if found:
                rows.append((question["id"], question["input"]))
                gold[question["id"]] = sorted(set(found))
    return _collection(name, texts, document, rows, gold)


def _pandas_api() -> Collection:
    """Read the project's gold set at level document, with all wordings of answerable questions."""
    from rag_eval.core.settings import Settings
    from rag_eval.pipeline.corpus import AdmittedChunks, GoldVariants
    from rag_eval.pipeline.opening import open_gold_set

    with tempfile.TemporaryDirectory() as place:
        home, gold_sets = Path(place), ROOT / "gold_sets"
        reports, nowhere = home / "reports", "refused://"
        settings = Settings(home=home, reports=reports, gold_sets=gold_sets, tracking_uri=nowhere)
        evaluation = open_gold_set(ROOT / "gold_sets" / "pandas_api", settings)
        found = open_runner(evaluation).get(GoldVariants).artifact
        variants, qrels = found.frame("variants"), found.frame("qrels_document")
        chunks = open_runner(evaluation).get(AdmittedChunks).artifact.frame("chunks")
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
    if name in {"scifact", "npl"}:
        return _beir(name)
    if name.startswith("xquad"):
        return _xquad(name)
    if name.startswith("clapnq"):
        return _clapnq(name)
    return _pandas_api()


@functools.lru_cache(maxsize=8)
def _search(name: str, model: str) -> dict[str, Ranking]:
    its = collection(name)
    queries, chunks = its.vectors(model)
    bm25 = its.bm25.search(its.query_terms, max(POOL, FUSED))
    vector = ExactSearch(chunks).search(queries, max(POOL, FUSED))
    hybrid = Hybrid(name="hybrid", kind="hybrid").fuse(bm25, vector, POOL)
    return {"bm25": bm25.cut(POOL), "vector": vector.cut(POOL), "hybrid": hybrid}


def judged(name: str, strategy: str, model: str = "lsa-256") -> Judged:
    """Retrieve for a collection by one of STRATEGIES, POOL deep, and look up the gold."""
    its, found = collection(name), _search(name, model)
    queries, chunks = its.vectors(model)
    main = found[strategy]
    other = found["vector" if strategy == "bm25" else "bm25"]
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
