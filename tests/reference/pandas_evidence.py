"""The input of the extractive answerer on pandas_api: wordings, retrieved chunks and gold spans."""

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from answer_sets import is_right

from rag_eval.answers.extractive import Extract, Extractive, Passage
from rag_eval.core.settings import Settings
from rag_eval.corpus.analyzer import DocumentFrequencies, count_documents
from rag_eval.pipeline.corpus import AdmittedChunks, CorpusSnapshot, GoldVariants
from rag_eval.pipeline.evaluation import open_gold_set
from rag_eval.pipeline.retrieval import open_index
from rag_eval.retrieval.synonyms import Expansion


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Questions, their passages, and the chunk row of each passage.

    Gold spans are (doc_id, start, end).
    """

    variants: pd.DataFrame
    chunks: pd.DataFrame
    texts: dict[str, str]
    passages: list[list[Passage]]
    rows: list[list[int]]
    gold: list[list[tuple[str, int, int]]]
    embed: object
    frequencies: DocumentFrequencies
    expansion: Expansion

    def answerer(self, **options) -> Extractive:
        """Return the default answerer, with the strategy's synonyms and LSA of the corpus."""
        return Extractive(
            self.embed,
            embedding="lsa",
            frequencies=self.frequencies,
            expansion=self.expansion,
            **options,
        )

    def spans(self, question: int, extract: Extract) -> list[tuple[str, int, int]]:
        """Return the cited spans as (doc_id, start, end)."""
        found = []
        for its in extract.sentences:
            row = self.rows[question][its.passage]
            first = int(self.chunks["start"].iloc[row])
            found.append((self.chunks["doc_id"].iloc[row], first + its.start, first + its.end))
        return found


STRATEGIES = [
    {"name": "lexical", "kind": "bm25", "expand": "data-terms"},
    {"name": "vector", "kind": "vector", "embedding": {"model": "lsa-256"}},
]


def pandas_evidence(root: Path, home: Path) -> Evidence:
    """Retrieve for the questions of pandas_api with BM25 and synonyms."""
    gold_set = home / "gold_sets" / "pandas_api"
    shutil.copytree(root / "gold_sets" / "pandas_api", gold_set)
    given = yaml.safe_load((gold_set / "gold_set.yaml").read_text(encoding="utf-8"))
    given |= {"strategies": STRATEGIES, "primary": "lexical"}
    (gold_set / "gold_set.yaml").write_text(yaml.safe_dump(given), encoding="utf-8")
    settings = Settings(
        home=home, reports=home / "reports", gold_sets=gold_set.parent, tracking_uri="refused://"
    )
    evaluation = open_gold_set(gold_set, settings)
    top_k = evaluation.config.answers.top_k
    gold = evaluation.runner.get(GoldVariants).artifact
    variants = gold.frame("variants")
    variants = variants[variants["paraphrase_id"] == "original"].reset_index(drop=True)
    chunks, documents = (
        evaluation.runner.get(AdmittedChunks).artifact.frame("chunks"),
        evaluation.runner.get(CorpusSnapshot).artifact.frame("documents"),
    )
    ready = open_index(evaluation, evaluation.runner.get(AdmittedChunks)).strategies
    ranking = ready["lexical"].search(variants["text"].tolist(), top_k, evaluation.config.seeds[0])
    rows = [[row for row in its if row >= 0] for its in ranking.rows.tolist()]
    titles, texts = chunks["title"].tolist(), chunks["text"].tolist()
    passages = [
        [
            Passage(texts[row], titles[row], rank)
            for rank, (row, score) in enumerate(zip(its, scores, strict=False), start=1)
        ]
        for its, scores in zip(rows, ranking.norm.tolist(), strict=True)
    ]
    spans = {
        query: list(zip(its["doc_id"], its["start"], its["end"], strict=True))
        for query, its in gold.frame("spans").groupby("query_id")
    }
    source = ready["vector"].source
    frequencies = count_documents(
        [f"{title} {text}" for title, text in zip(titles, texts, strict=True)]
    )
    by_id = dict(zip(documents["doc_id"], documents["text"], strict=True))
    return Evidence(
        variants,
        chunks,
        by_id,
        passages,
        rows,
        [spans.get(query, []) for query in variants["query_id"]],
        source.embedder.embed,
        frequencies,
        Expansion.load("data-terms"),
    )


def figures(
    evidence: Evidence, extracts: Sequence[Extract], *, ignore_refusals: bool = False
) -> dict[str, float]:
    """Return the number, precision and validity of citations, and wrongly answered questions."""
    cited, right, valid = (np.zeros(len(extracts)) for _ in range(3))
    for i, extract in enumerate(extracts):
        spans = evidence.spans(i, extract) if extract.answered or ignore_refusals else []
        gold = evidence.gold[i]
        cited[i] = len(spans)
        right[i] = sum(
            is_right(start, end, [(low, high) for name, low, high in gold if name == doc])
            for doc, start, end in spans
        )
        valid[i] = sum(
            0 <= start < end <= len(evidence.texts[doc])
            and bool(evidence.texts[doc][start:end].strip())
            for doc, start, end in spans
        )
    answerable = np.array([bool(gold) for gold in evidence.gold])
    return {
        "cited": int(cited.sum()),
        "answered_unanswerable": int(((cited > 0) & ~answerable).sum()),
        "citation_precision": float(right.sum() / cited.sum()),
        "citation_validity": float(valid.sum() / cited.sum()),
    }
