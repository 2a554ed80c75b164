"""The signals of a miss in plain Python, one query at a time.

Tests compare the vectorised signals with them. NaN means not defined.
"""

import math
import statistics

NAN = math.nan


class Corpus:
    """Chunks as lists of term ids."""

    def __init__(self, chunks, n_terms):
        self.chunks, self.n_terms, self.n = chunks, n_terms, len(chunks)
        self.mean_length = max(sum(map(len, chunks)) / max(self.n, 1), 1e-9)
        self.nowhere = math.log(1 + (self.n + 0.5) / 0.5)

    def idf(self, term):
        holding = sum(term in chunk for chunk in self.chunks)
        return (
            math.log(1 + (self.n - holding + 0.5) / (holding + 0.5))
            if term < self.n_terms
            else self.nowhere
        )

    def bm25(self, query, chunk):
        """Compute BM25 over the summed idf of the query; NaN for a query without terms."""
        terms, found = set(query), 0.0
        if not terms:
            return NAN
        long = 0.9 * (1 - 0.4 + 0.4 * len(self.chunks[chunk]) / self.mean_length)
        for term in terms:
            tf = self.chunks[chunk].count(term)
            found += self.idf(term) * tf / (tf + long)
        return found / sum(map(self.idf, terms))

    def covered(self, query, chunks, power=1):
        terms = set(query)
        if not terms:
            return NAN
        union = {term for chunk in chunks for term in self.chunks[chunk]}
        return sum(self.idf(term) ** power for term in terms & union) / sum(
            self.idf(term) ** power for term in terms
        )


def cosine(query, chunk):
    return (
        NAN
        if query is None or not any(query)
        else sum(a * b for a, b in zip(query, chunk, strict=True))
    )


def numbers(values):
    return [value for value in values if not math.isnan(value)]


def sd(values):
    return statistics.pstdev(values) if len(values) > 1 else NAN


def best(values, nth=1):
    ranked = sorted(numbers(values), reverse=True)
    return ranked[nth - 1] if len(ranked) >= nth else NAN


def score_shape(raw, k):
    if not raw or raw[0] <= 0:
        return {}
    s = [score / raw[0] for score in raw]
    return {"tail_ratio": s[min(k, len(s)) - 1], "nqc": sd(s[:100])}


def coverage(corpus, query, rows, k):
    if not query:
        return {}
    return {
        "cover_union": corpus.covered(query, rows[:k]),
        "cover_rare": max((corpus.covered(query, [chunk], 2) for chunk in rows[:k]), default=0.0),
    }


def agreement(rows, other, k):
    if not rows or not other:
        return {}
    shared = set(rows[:k]) & set(other[:k])
    return {"overlap": len(shared) / k, "same_first": float(rows[0] == other[0])}


def standardised(values):
    some = numbers(values)
    spread = statistics.pstdev(some) if len(some) > 1 else 0.0
    # Averages of equal numbers can differ in their last bits, so a tiny spread counts as 0.
    return [
        value
        if math.isnan(value)
        else (value - statistics.mean(some)) / spread
        if spread > 1e-12
        else 0.0
        for value in values
    ]


def candidates(corpus, query, lists, near_by, k):
    (rows, other), (vector, vectors) = lists, near_by
    width = max(30, 3 * k)
    rows, other = rows[:width], other[:width]
    pool = rows + [chunk for chunk in other if chunk not in rows]
    near = [NAN if vectors is None else cosine(vector, vectors[chunk]) for chunk in pool]
    lexical = [corpus.bm25(query, chunk) for chunk in pool]
    pairs = list(zip(standardised(lexical), standardised(near), strict=True))
    fused = [sum(numbers(pair)) if numbers(pair) else NAN for pair in pairs]
    found = {"lexical_crowd": best(lexical, k)}
    inside = min(k, len(rows))
    for name, scores in (
        ("beyond_lexical", lexical),
        ("beyond_cosine", near),
        ("beyond_fused", fused),
    ):
        found[name] = best(scores[inside:]) - best(scores[:inside])
    return found


def of_query(query, vector, vectors):
    found = {"length": math.log(1 + len(query))}
    if vectors is not None:
        centre = [statistics.mean(column) for column in zip(*vectors, strict=True)]
        found["generic"] = cosine(vector, [value / math.hypot(*centre) for value in centre])
    return found


def tfidf(corpus, chunk):
    weights = {
        term: (1 + math.log(corpus.chunks[chunk].count(term))) * corpus.idf(term)
        for term in set(corpus.chunks[chunk])
    }
    norm = math.sqrt(sum(weight**2 for weight in weights.values()))
    return [weights.get(term, 0.0) / norm if norm else 0.0 for term in range(corpus.n_terms)]


def coherence(corpus, rows, vectors):
    rows = rows[:10]
    ours = [tfidf(corpus, chunk) if vectors is None else vectors[chunk] for chunk in rows]
    pairs = [
        sum(a * b for a, b in zip(x, y, strict=True)) for i, x in enumerate(ours) for y in ours[:i]
    ]
    return {"coherence": statistics.mean(pairs) if pairs else NAN}


def wordings(lists, norms, own, k):
    """Compute the signals from other wordings of the question.

    `lists` and `norms` hold one entry for each wording; `own` is the index of this wording.
    """
    if len(lists) < 2 or not lists[own]:
        return {}
    mine = lists[own][:k]
    overlap = statistics.mean(
        len(set(mine) & set(other[:k])) / len(mine)
        for place, other in enumerate(lists)
        if place != own
    )
    scores = {}
    for rows, norm in zip(lists, norms, strict=True):
        for chunk, score in list(zip(rows, norm, strict=True))[:100]:
            scores[chunk] = scores.get(chunk, 0.0) + score / len(lists)
    crowd = best(scores.values(), k)
    most = max(scores.values())
    return {
        "wordings_overlap": overlap,
        "consensus_best": most,
        "consensus_crowd": 0.0 if math.isnan(crowd) else crowd,
        "consensus_missed": most - max(scores[chunk] for chunk in mine if chunk in scores),
    }


def clustering(rows, document, k):
    if not rows or document is None or len(set(document)) == len(document):
        return {}
    same = [document[row] == document[rows[0]] for row in rows[:k]]
    return {"same_document": sum(same) / len(same)}


def signals_of(batch, chunks, n_terms, k):
    """Return the defined signals of every query of a RankedBatch, as a list of dictionaries."""
    corpus, result = Corpus(chunks, n_terms), []
    vectors = None if batch.chunk_vectors is None else batch.chunk_vectors.tolist()
    document = None if batch.document is None else batch.document.tolist()
    questions = list(range(len(batch)))
    if batch.question is not None:
        questions = batch.question.tolist()
    lists = [[row for row in rows if row >= 0] for rows in batch.rows.tolist()]
    norms = [norm[: len(rows)] for norm, rows in zip(batch.norm.tolist(), lists, strict=True)]
    others = [[] for _ in lists]
    if batch.other_rows is not None:
        others = [[row for row in rows if row >= 0] for rows in batch.other_rows.tolist()]
    for i, query in enumerate(batch.query_terms):
        rows, other = lists[i], others[i]
        vector = None if vectors is None else batch.query_vectors[i].tolist()
        same = [j for j, code in enumerate(questions) if code == questions[i]]
        result.append(
            score_shape(batch.raw[i, : len(rows)].tolist(), k)
            | coverage(corpus, query, rows, k)
            | agreement(rows, other, k)
            | candidates(corpus, query, (rows, other), (vector, vectors), k)
            | of_query(query, vector, vectors)
            | coherence(corpus, rows, vectors)
            | clustering(rows, document, k)
            | wordings([lists[j] for j in same], [norms[j] for j in same], same.index(i), k)
        )
    return result


def heuristic(raw, rows, query, k, *, cosine_scores):
    """Compute heuristic_v0 of one query."""
    scores = [score for score, row in zip(raw, rows, strict=True) if row >= 0][:k]
    if not cosine_scores:
        top = max(scores, default=0.0)
        scores = [score / top if top > 0 else 0.0 for score in scores]
    scores = [min(1.0, max(0.0, score)) for score in scores]
    density = min(0.5, sum(0.3 <= score < 0.5 for score in scores) / len(scores)) if scores else 0.5
    near = sum(0.3 < score < 0.5 for score in scores)
    return min(
        0.9, 0.3 * density + min(near / 10, 0.3) + 0.3 * 0.3 + 0.1 * min(1.0, len(set(query)) / 10)
    )
