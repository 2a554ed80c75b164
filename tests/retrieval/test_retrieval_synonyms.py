"""Synonyms: the list is sound, phrases are found, and the score follows its formula.

Without synonyms nothing changes.
"""

import collections
import json
import math

import numpy as np
import pytest
from corpora import chunks_frame, listed, places, table

from rag_eval.corpus.analyzer import Analyzer, terms
from rag_eval.retrieval.embedding.source import ChunkTable
from rag_eval.retrieval.kinds.bm25 import Bm25
from rag_eval.retrieval.kinds.hybrid import Hybrid
from rag_eval.retrieval.lexical import Bm25s
from rag_eval.retrieval.strategies import ReadyStrategy, StrategyIndex
from rag_eval.retrieval.synonyms import Expansion

SMALL = Expansion.model_validate_json(
    json.dumps(
        {
            "version": 3,
            "ignored": ["please", "more"],
            "entries": [
                {"terms": terms_, "means": means, "weight": weight}
                for terms_, means, weight in (
                    (["throw away", "discard"], ["drop"], 0.5),
                    (["twice", "more than once"], ["duplicate", "drop_duplicates"], 0.8),
                    (["rows into columns"], ["pivot"], 0.6),
                    (["columns into rows"], ["melt"], 0.6),
                    (["away"], ["distance"], 0.4),
                )
            ],
        }
    )
)
DOCUMENTS = [
    "drop rows",
    "throw a ball away",
    "drop duplicates of rows",
    "the distance of two points",
    "pivot a table",
    "melt a table",
    "rows and columns",
    "nothing of it",
    "duplicate twice",
]
LENGTHS = [len(terms(text)) for text in DOCUMENTS]


# the list that comes with the package


def test_the_shipped_list_is_sound():
    expansion = Expansion.load("data-terms")
    assert 500 <= len(expansion.entries) <= 900
    pairs = collections.Counter()
    for entry in expansion.entries:
        assert 0 < entry.weight <= 1
        for phrase in (*entry.terms, *entry.means):
            assert terms(phrase), phrase
            assert phrase == phrase.strip()
        for term in entry.terms:
            words = len(term.replace("-", " ").replace("/", " ").split())
            assert len(terms(term)) > 1 or words == 1, (
                f"{term}: stop words leave one word, which would match far too much"
            )
            assert len(terms(term)) <= 8
            pairs.update(
                (tuple(terms(term)), tuple(terms(mean))) for mean in dict.fromkeys(entry.means)
            )
    assert not [pair for pair, count in pairs.items() if count > 1]
    assert not [pair for pair in pairs if pair[0] == pair[1]]


# finding phrases


def widen(expansion, question):
    """Return (term, largest weight) of the terms that synonyms add, heaviest first."""
    analyzer = Analyzer()
    bound = expansion.bind(analyzer)
    (row,) = analyzer.index([question])
    names, found = list(analyzer.vocabulary), collections.defaultdict(float)
    for phrase in bound.phrases([row])[0]:
        singles = [] if len(phrase) == 1 else [(term,) for term in phrase]
        for mean in (mean for part in [phrase, *singles] for mean in bound.means(part)):
            for term in set(mean.terms) - set(row):
                found[names[term]] = max(found[names[term]], mean.weight)
    return sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))


@pytest.mark.parametrize(
    ("question", "wanted"),
    [
        ("Throwing it away", [("drop", 0.5), ("distanc", 0.4)]),
        ("throw the rows all away", [("drop", 0.5), ("distanc", 0.4)]),
        ("throw one two three away", [("distanc", 0.4)]),
        ("discard what stands twice", [("drop", 0.8), ("duplic", 0.8)]),
        ("drop what stands twice", [("duplic", 0.8)]),
        ("turn rows into columns", [("pivot", 0.6)]),
        ("turn columns into rows", [("melt", 0.6)]),
        ("more of this than once", [("drop", 0.8), ("duplic", 0.8)]),
        ("nothing", []),
        ("", []),
    ],
)
def test_a_question_is_widened(question, wanted):
    assert widen(SMALL, question) == wanted


# scores


def engine(texts=DOCUMENTS):
    chunks = table(texts)
    return chunks, Bm25s(chunks.terms, chunks.n_terms, k1=0.9, b=0.4), SMALL.bind(chunks.analyzer)


def scores(query, *, allowed=None, widened=True):
    chunks, bm25, bound = engine()
    rows = chunks.query_terms([query])
    found = (
        bm25.search_expanded(rows, bound, 20, allowed)
        if widened
        else bm25.search(rows, 20, allowed)
    )
    return dict(listed(found, 0))


def idf(n_with):
    n = len(DOCUMENTS)
    return math.log(1 + (n - n_with + 0.5) / (n_with + 0.5))


def test_a_question_without_synonyms_scores_as_plain_bm25():
    assert scores("rows of points") == pytest.approx(
        scores("rows of points", widened=False), abs=2e-6
    )


def test_a_synonym_counts_its_weight_and_never_as_rarer_than_its_word():
    drop = scores("drop", widened=False)
    assert scores("discard") == pytest.approx(
        {row: 0.5 * score for row, score in drop.items()}, abs=2e-6
    )  # the corpus lacks "discard", so no idf limits the score
    twice, duplicate = scores("twice", widened=False), scores("duplicate", widened=False)
    both = [row for row in duplicate if row in scores("drop", widened=False)]
    found = scores("twice")
    for row in duplicate:
        parts = [twice.get(row, 0.0), 0.8 * duplicate[row] * min(1, idf(1) / idf(2))]
        if row in both:
            parts.append(0.8 * (duplicate[row] + drop[row]) / 2)
        assert found[row] == pytest.approx(math.hypot(*parts), abs=3e-6)
    # "rows" stands in three documents and "pivot" in one.
    # The idf of "pivot" counts as that of "columns", which also stands in one.
    limited = scores("rows into columns")
    pivot = scores("pivot", widened=False)
    assert limited[4] == pytest.approx(
        2 * 0.6 * pivot[4] * min(1, max(idf(1), idf(3)) / idf(1)), abs=3e-6
    )


def test_ignored_words_count_only_as_part_of_a_phrase():
    length = 0.6 + 0.4 * 1 / (sum(LENGTHS) / len(LENGTHS))
    wanted = {7: pytest.approx(idf(1) / (1 + 0.9 * length), abs=2e-6)}
    assert scores("please nothing") == scores("nothing", widened=False) == wanted
    assert scores("please") == {}
    assert 2 in scores("more than once, please")


# strategies


TEXTS = [
    "Remove missing values with dropna.",
    "Draw a bar plot.",
    "Return duplicate rows.",
    "Cumulative sum, cumsum, over an axis.",
    "blank verse",
]


@pytest.fixture
def index(tmp_path):
    return StrategyIndex(ChunkTable(chunks_frame(TEXTS), "hash"), places(tmp_path))


def test_a_strategy_finds_what_only_a_synonym_names(index):
    plain, widened = (
        ReadyStrategy(Bm25(name="b", kind="bm25", expand=expand), index)
        for expand in (None, "data-terms")
    )
    questions = ["running total", "which lines stand there twice", "blank cells"]
    assert not plain.search(questions, 5).has_chunk[:2].any()
    found = widened.search(questions, 5)
    assert found.rows[:2, 0].tolist() == [3, 2]
    assert {row for row, _ in listed(found, 2)} >= {0, 4}
    assert np.array_equal(widened.search(questions[1:2], 5).raw[0], found.raw[1])
    spec = Hybrid(
        name="h", kind="hybrid", expand="data-terms", beta=0, embedding={"model": "lsa-2"}
    )
    hybrid = ReadyStrategy(spec, index)
    assert hybrid.search(questions, 5).rows[:2, 0].tolist() == [3, 2]
