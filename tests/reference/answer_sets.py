"""Public data sets that mark the sentences that answer a question, for the extractive answerer."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rag_eval.answers.extractive import Extract, Passage
from rag_eval.corpus.analyzer import Analyzer
from rag_eval.retrieval.lexical import Bm25s

Span = tuple[int, int, int]
"""Place in the question's passages, start and end."""


class AnswerSet(NamedTuple):
    """Questions, the ten passages that BM25 ranks first for each, and the spans that answer.

    `background` holds the indexed text of each passage of the corpus.
    """

    questions: list[str]
    passages: list[list[Passage]]
    gold: list[list[Span]]
    background: list[str]


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _open(
    questions: list[str], corpus: list[Passage], gold: list[dict[int, list[tuple[int, int]]]]
) -> AnswerSet:
    """Retrieve ten passages for each question; `gold` has its spans by row of the corpus."""
    background = [f"{passage.title} {passage.text}".strip() for passage in corpus]
    analyzer = Analyzer()
    engine = Bm25s(analyzer.index(background), len(analyzer.vocabulary), k1=0.9, b=0.4)
    ranked = [
        [row for row in rows if row >= 0]
        for rows in engine.search(analyzer.index(questions), 10).rows.tolist()
    ]
    spans = [
        [(place, *span) for place, row in enumerate(rows) for span in of_row.get(row, [])]
        for rows, of_row in zip(ranked, gold, strict=True)
    ]
    passages = [[corpus[row] for row in rows] for rows in ranked]
    return AnswerSet(questions, passages, spans, background)


def clapnq(data: Path) -> AnswerSet:
    """Return 300 answerable and 300 unanswerable questions over all their passages.

    The gold is every sentence that any annotator selected.
    """
    rows = [
        row
        for part in ("answerable", "unanswerable")
        for row in _lines(data / "clapnq" / f"clapnq_dev_{part}.jsonl")
    ]
    sources = [row["passages"][0] for row in rows]
    own = [Passage(source["text"], source["title"]) for source in sources]
    corpus = list(dict.fromkeys(own))
    place = {passage: row for row, passage in enumerate(corpus)}
    gold = []
    for row, source, passage in zip(rows, sources, own, strict=True):
        chosen = {sentence for output in row["output"] for sentence in output["selected_sentences"]}
        at, spans = 0, []
        for sentence in source["sentences"]:
            start = source["text"].index(sentence, at)
            at = start + len(sentence)
            if sentence in chosen:
                spans.append((start, at))
        gold.append({place[passage]: spans})
    return _open([row["input"] for row in rows], corpus, gold)


def scifact(data: Path) -> AnswerSet:
    """Return the SciFact claims with marked rationales over all abstracts."""
    corpus = _lines(data / "scifact" / "corpus.jsonl")
    place = {row["_id"]: number for number, row in enumerate(corpus)}
    claims = {row["_id"]: row["text"] for row in _lines(data / "scifact" / "queries.jsonl")}
    spans: dict[str, dict[int, list[tuple[int, int]]]] = {}
    for row in _lines(data / "scifact" / "evidence.jsonl"):
        own = spans.setdefault(row["query_id"], {}).setdefault(place[row["doc_id"]], [])
        own += [(span["start"], span["end"]) for span in row["spans"]]
    passages = [Passage(row["text"], row["title"]) for row in corpus]
    return _open([claims[claim] for claim in spans], passages, list(spans.values()))


def _is_right(span: Span, others: list[Span]) -> bool:
    """Tell whether a span overlaps another one by at least half of the shorter span."""
    place, start, end = span
    return any(
        place == at and 2 * (min(end, high) - max(start, low)) >= min(end - start, high - low)
        for at, low, high in others
    )


def figures(answer_set: AnswerSet, extracts: list[Extract]) -> dict[str, float]:
    """Return shares of the questions with gold, and of those without.

    They are whether the first sentence is right, precision and recall of the sentences, and what is
    refused.
    """
    rows: dict[str, list[float]] = {}
    for extract, gold in zip(extracts, answer_set.gold, strict=True):
        if not gold:
            rows.setdefault("refused_unanswerable", []).append(not extract.answered)
            continue
        cited = [sentence[:3] for sentence in extract.sentences]
        right = [_is_right(span, gold) for span in cited] or [False]
        rows.setdefault("best_right", []).append(right[0])
        rows.setdefault("precision", []).append(float(np.mean(right)))
        matched = [_is_right(span, cited) for span in gold]
        rows.setdefault("recall", []).append(float(np.mean(matched)))
        rows.setdefault("refused_answerable", []).append(not extract.answered)
    return {name: float(np.mean(values)) for name, values in rows.items()}
