"""Slow reference of retrieval: plain Python from the definitions, without code of rag_eval."""

import math
from collections.abc import Sequence

Ids = Sequence[tuple[str, str]]
Ranked = list[tuple[int, float]]


def best(scores: Sequence[float | None], ids: Ids, depth: int, decimals: int = 6) -> Ranked:
    """Rank chunks by (score desc, section_id asc, snippet_id asc); drop chunks with score None."""
    rounded = [
        (row, round(score, decimals)) for row, score in enumerate(scores) if score is not None
    ]
    return sorted(rounded, key=lambda item: (-item[1], ids[item[0]]))[:depth]


def by_top(scores: Sequence[float]) -> list[float]:
    """Divide the scores by the best score; return zeros when no score is positive."""
    top = max(scores, default=0.0)
    return [score / top if top > 0 else 0.0 for score in scores]


def min_max(scores: Sequence[float]) -> list[float]:
    """Map scores linearly to [0, 1]; equal scores become 1."""
    if not scores:
        return []
    low, high = min(scores), max(scores)
    return [1.0 if high == low else (score - low) / (high - low) for score in scores]


def cosines(
    query: Sequence[float],
    vectors: Sequence[Sequence[float]],
    allowed: Sequence[bool] | None = None,
) -> list[float | None]:
    """Return dot products with unit vectors.

    A zero query, a zero vector and a chunk that is not allowed give None.
    """
    if not any(query):
        return [None] * len(vectors)
    return [
        sum(a * b for a, b in zip(query, vector, strict=True))
        if any(vector) and (allowed is None or allowed[row])
        else None
        for row, vector in enumerate(vectors)
    ]


def lucene_bm25(
    query: Sequence[int],
    documents: Sequence[Sequence[int]],
    k1: float,
    b: float,
    allowed: Sequence[bool] | None = None,
) -> list[float | None]:
    """Return the BM25 of Lucene without its constant factor (k1 + 1).

    A chunk without a common term is no candidate.
    """
    average = sum(len(document) for document in documents) / len(documents)
    result: list[float | None] = []
    for row, document in enumerate(documents):
        if (allowed is not None and not allowed[row]) or not set(query) & set(document):
            result.append(None)
            continue
        total = 0.0
        for term in query:
            df = sum(term in other for other in documents)
            tf = document.count(term)
            if tf:
                idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
                total += idf * tf / (tf + k1 * (1 - b + b * len(document) / average))
        result.append(total)
    return result


def okapi_bm25(
    query: Sequence[int],
    documents: Sequence[Sequence[int]],
    k1: float,
    b: float,
    epsilon: float = 0.25,
) -> list[float]:
    """Return the BM25Okapi of rank-bm25, whose idf is not smoothed.

    A negative idf becomes epsilon times the mean idf over the vocabulary.
    """
    average = sum(len(document) for document in documents) / len(documents)
    raw = {}
    for term in {term for document in documents for term in document}:
        df = sum(term in document for document in documents)
        raw[term] = math.log(len(documents) - df + 0.5) - math.log(df + 0.5)
    mean = sum(raw.values()) / len(raw)
    idf = {term: value if value >= 0 else epsilon * mean for term, value in raw.items()}
    return [
        sum(
            idf.get(term, 0.0)
            * document.count(term)
            * (k1 + 1)
            / (document.count(term) + k1 * (1 - b + b * len(document) / average))
            for term in query
            if term in document
        )
        for document in documents
    ]


def weighted(
    lexical: Ranked, vector: Ranked, ids: Ids, *, alpha: float, beta: float, depth: int
) -> Ranked:
    """Return (alpha * lexical + beta * vector) / (alpha + beta) over the union of two lists.

    Both lists hold (row, normalised score).
    """
    left, right = dict(lexical), dict(vector)
    total = alpha + beta
    scores = [
        left.get(row, 0.0) * (alpha / total) + right.get(row, 0.0) * (beta / total)
        if row in left or row in right
        else None
        for row in range(len(ids))
    ]
    return best(scores, ids, depth, 9)


def reciprocal_rank(lexical: Ranked, vector: Ranked, ids: Ids, k: int, depth: int) -> Ranked:
    """Compute the sum of 1 / (k + rank) over two lists, divided by its maximum 2 / (k + 1)."""
    ranks = [
        {row: place for place, (row, _) in enumerate(part, start=1)} for part in (lexical, vector)
    ]
    top = 2.0 / (k + 1)
    scores = [
        sum(1.0 / (k + part[row]) / top for part in ranks if row in part)
        if any(row in part for part in ranks)
        else None
        for row in range(len(ids))
    ]
    return best(scores, ids, depth, 9)


def mmr(candidates: Ranked, vectors: Sequence[Sequence[float]], lambda_: float) -> Ranked:
    """Rank (row, normalised score) by greedy maximal marginal relevance, best first.

    A tie goes to the earlier candidate.
    """
    left = list(candidates)
    chosen: Ranked = []
    while left:
        values = []
        for row, norm in left:
            likeness = max(
                (
                    sum(a * b for a, b in zip(vectors[row], vectors[other], strict=True))
                    for other, _ in chosen
                ),
                default=0.0,
            )
            values.append(round(lambda_ * norm - (1 - lambda_) * likeness, 6))
        place = values.index(max(values))
        chosen.append((left.pop(place)[0], values[place]))
    return chosen
