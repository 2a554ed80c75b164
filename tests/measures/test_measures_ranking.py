"""Ranking measures against ir-measures and slow references: labels, levels, spans."""

import math

import ir_measures
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.core.errors import InputError
from rag_eval.measures.ranking import (
    Extents,
    Qrels,
    Spans,
    collapse,
    judged_label,
    labels_at,
    machine_name,
    parse_label,
    precision_upper_bound,
    relevant_ranks,
    score_rankings,
    span_carriers,
    span_ranks,
)

LABELS = (
    "R@1",
    "R@3",
    "R@10",
    "Success@2",
    "RR",
    "RR@3",
    "nDCG@3",
    "nDCG",
    "P@3",
    "P@10",
    "AP",
    "AP@3",
    "Judged@3",
    "Judged",
)


def slow(label, ranking, gold):  # noqa: PLR0911 - one return a measure
    """The definition, written out; `gold` maps item to gain."""
    name, k = parse_label(label)
    relevant = {item for item, gain in gold.items() if gain > 0}
    if not relevant:
        return math.nan
    top = ranking[:k]
    if not top:
        return 0.0
    hits = [item in relevant for item in top]
    if name == "R":
        return sum(hits) / len(relevant)
    if name == "P":
        return sum(hits) / k
    if name == "Success":
        return float(any(hits))
    if name == "RR":
        return next((1 / rank for rank, hit in enumerate(hits, 1) if hit), 0.0)
    if name == "AP":
        return sum(sum(hits[: i + 1]) / (i + 1) for i in range(len(top)) if hits[i]) / len(relevant)
    if name == "Judged":
        return sum(item in gold for item in top) / len(top)
    dcg = sum(max(gold.get(item, 0), 0) / math.log2(rank + 1) for rank, item in enumerate(top, 1))
    ideal = sorted((gain for gain in gold.values() if gain > 0), reverse=True)[:k]
    return dcg / sum(gain / math.log2(rank + 1) for rank, gain in enumerate(ideal, 1))


@st.composite
def cases(draw):
    n_queries = draw(st.integers(1, 4))
    golds = [
        draw(st.dictionaries(st.integers(0, 14), st.integers(-1, 3), max_size=8))
        for _ in range(n_queries)
    ]
    depth = draw(st.integers(0, 12))
    runs = draw(
        st.lists(
            st.tuples(
                st.integers(0, n_queries - 1),
                st.lists(st.integers(0, 14), unique=True, max_size=depth),
            ),
            max_size=8,
        )
    )
    return golds, runs, depth


def arrays(golds, runs, depth, code=lambda item: item):
    items = np.full((len(runs), depth), -1)
    for row, (_, ranking) in enumerate(runs):
        items[row, : len(ranking)] = [code(item) for item in ranking]
    triples = [(q, code(item), gain) for q, gold in enumerate(golds) for item, gain in gold.items()]
    columns = np.array(triples, dtype=np.int64).reshape(-1, 3).T
    return (
        items,
        Qrels.from_rows(*columns, len(golds)),
        np.array([q for q, _ in runs], dtype=np.int64),
    )


@given(cases())
@settings(max_examples=200, deadline=None)
def test_equals_the_definition_written_out(case):
    golds, runs, _ = case
    ours = score_rankings(*arrays(*case), LABELS)
    expected = np.array(
        [[slow(label, ranking, golds[q]) for label in LABELS] for q, ranking in runs]
    ).reshape(len(runs), len(LABELS))
    np.testing.assert_allclose(ours, expected, atol=1e-6)


@given(cases(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_codes_are_only_names(case, random):
    codes = random.sample(range(1_000_000), 15)
    np.testing.assert_array_equal(
        score_rankings(*arrays(*case), LABELS),
        score_rankings(*arrays(*case, code=codes.__getitem__), LABELS),
    )


@given(cases())
@settings(max_examples=60, deadline=None)
def test_bounds_and_monotone_recall(case):
    ks = range(1, 13)
    scores = score_rankings(
        *arrays(*case), [f"R@{k}" for k in ks] + [f"Success@{k}" for k in ks] + list(LABELS)
    )
    scores = scores[~np.isnan(scores).any(axis=1)]
    assert ((scores >= 0) & (scores <= 1 + 1e-12)).all()
    assert (np.diff(scores[:, :12], axis=1) >= 0).all()
    assert (np.diff(scores[:, 12:24], axis=1) >= 0).all()


def test_equals_ir_measures_called_naively_on_frames():
    rng = np.random.default_rng(5)
    n, depth = 60, 40
    items = np.argsort(rng.random((n, 90)), axis=1)[:, :depth]
    judged = np.argsort(rng.random((n, 90)), axis=1)[:, :12]
    gains = rng.integers(0, 4, size=judged.shape)
    gains[:, 0] = 2
    query = np.arange(n)
    ours = score_rankings(
        items,
        Qrels.from_rows(np.repeat(query, 12), judged.ravel(), gains.ravel(), n),
        query,
        LABELS,
    )
    measures = [
        getattr(ir_measures, name) if k is None else getattr(ir_measures, name) @ k
        for name, k in map(parse_label, LABELS)
    ]
    qrels = pd.DataFrame(
        {
            "query_id": np.repeat(query, 12).astype(str),
            "doc_id": judged.ravel().astype(str),
            "relevance": gains.ravel(),
        }
    )
    run = pd.DataFrame(
        {
            "query_id": np.repeat(query, depth).astype(str),
            "doc_id": items.ravel().astype(str),
            "score": np.tile(np.arange(depth, 0, -1.0), n),
        }
    )
    naive = np.full(ours.shape, np.nan)
    for metric in ir_measures.iter_calc(measures, qrels, run):
        naive[int(metric.query_id), LABELS.index(str(metric.measure))] = metric.value
    np.testing.assert_allclose(ours, naive, atol=1e-9)


def test_order_is_ours_where_trec_would_break_ties_by_name():
    qrels = Qrels.from_rows([0], [9], [1], 1)
    assert score_rankings([[1, 9]], qrels, [0], ["RR"]).tolist() == [[0.5]]
    assert score_rankings([[9, 1]], qrels, [0], ["RR"]).tolist() == [[1.0]]


def test_empty_ranking_scores_zero_and_empty_gold_is_ineligible():
    qrels = Qrels.from_rows([0, 1], [3, 3], [1, 0], 3)
    scores = score_rankings([[-1, -1], [3, 4], [3, 4]], qrels, [0, 1, 2], LABELS)
    assert (scores[0] == 0).all()
    assert np.isnan(scores[1:]).all()
    assert qrels.n_relevant.tolist() == [1, 0, 0]


def test_repeated_labels_and_no_labels():
    qrels = Qrels.from_rows([0], [3], [1], 1)
    assert score_rankings([[3]], qrels, [0], ["R@1", "RR", "R@1"]).tolist() == [[1, 1, 1]]
    assert score_rankings([[3]], qrels, [0], []).shape == (1, 0)
    assert score_rankings(np.empty((0, 5), dtype=int), qrels, [], LABELS).shape == (0, len(LABELS))


def test_same_item_in_many_rankings_of_many_queries():
    """Seeds repeat rankings: equal rankings are scored once, and each row keeps its own values."""
    qrels = Qrels.from_rows([0, 1, 1], [3, 3, 4], [1, 1, 1], 2)
    items = np.array([[3, 5], [3, 5], [5, 3], [3, 5], [4, 3]])
    assert score_rankings(items, qrels, [0, 0, 0, 1, 1], ["RR", "R@2"]).tolist() == [
        [1, 1],
        [1, 1],
        [0.5, 1],
        [1, 0.5],
        [1, 1],
    ]


def test_defective_input_is_refused():
    qrels = Qrels.from_rows([0], [3], [1], 1)
    with pytest.raises(ValueError, match="more than once"):
        score_rankings([[3, 4, 3]], qrels, [0], ["R@2"])
    with pytest.raises(ValueError, match="padding before an item"):
        score_rankings([[-1, 3]], qrels, [0], ["R@2"])
    with pytest.raises(ValueError, match="query_of"):
        score_rankings([[3]], qrels, [0, 0], ["R@2"])
    with pytest.raises(ValueError, match="integers"):
        score_rankings([[3.0]], qrels, [0], ["R@2"])
    with pytest.raises(InputError):
        score_rankings([[3]], qrels, [0], ["recall"])


@given(cases(), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_the_upper_bound_of_precision_takes_unjudged_items_as_relevant(case, k):
    golds, runs, _ = case
    for bound, (q, ranking) in zip(precision_upper_bound(*arrays(*case), k), runs, strict=True):
        eligible = any(gain > 0 for gain in golds[q].values())
        full = sum(golds[q].get(item, 1) > 0 for item in ranking[:k]) / k
        np.testing.assert_allclose(bound, full if eligible else math.nan)


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 7), unique=True, max_size=6), st.integers(0, 2)),
        max_size=6,
    ),
    st.lists(st.dictionaries(st.integers(0, 7), st.integers(-1, 2)), min_size=3, max_size=3),
)
def test_every_relevant_item_has_its_rank(runs, gold):
    rankings = np.full((len(runs), 6), -1)
    for row, (items, _) in enumerate(runs):
        rankings[row, : len(items)] = items
    judged = [(query, item, gain) for query, of in enumerate(gold) for item, gain in of.items()]
    qrels = Qrels.from_rows(
        *(np.array([row[column] for row in judged], dtype=np.int64) for column in range(3)), 3
    )
    owner, rank = relevant_ranks(
        rankings, qrels, np.array([query for _, query in runs], dtype=np.int64)
    )
    found = sorted(zip(owner.tolist(), rank.tolist(), strict=True))
    assert found == sorted(
        (row, items.index(item) + 1.0 if item in items else np.inf)
        for row, (items, query) in enumerate(runs)
        for item, gain in gold[query].items()
        if gain > 0
    )


# labels

PAIRS = [
    ("R@10", "recall_at_10"),
    ("Success@5", "success_at_5"),
    ("P@5", "precision_at_5"),
    ("RR", "mrr"),
    ("RR@10", "mrr_at_10"),
    ("nDCG@10", "ndcg_at_10"),
    ("nDCG", "ndcg"),
    ("AP", "map"),
    ("Judged@10", "judged_at_10"),
]


@pytest.mark.parametrize(("screen", "machine"), PAIRS)
def test_labels_have_machine_names(screen, machine):
    assert machine_name(screen) == machine


@pytest.mark.parametrize(
    "bad",
    ["R", "P", "R@0", "R@-1", "R@1.5", "recall_at_10", "R@10 ", "", "Foo@3", "R@010"],
)
def test_other_labels_are_refused_with_what_is_accepted(bad):
    with pytest.raises(InputError) as caught:
        machine_name(bad)
    assert caught.value.problems[0].found == bad
    assert "nDCG@k" in caught.value.problems[0].accepted


def test_labels_are_those_of_ir_measures():
    import ir_measures

    for screen, _ in PAIRS:
        name, k = parse_label(screen)
        measure = getattr(ir_measures, name)
        assert str(measure if k is None else measure @ k) == screen


@pytest.mark.parametrize(
    ("level", "judged"), [("document", ("Judged@1", "Judged@5")), ("span", ())]
)
def test_every_k_is_measured(level, judged):
    swept = ("R@1", "R@5", "Success@1", "Success@5", "P@1", "P@5")
    assert labels_at(level, [1, 5]) == (*swept, "RR", "nDCG@10", *judged)


def test_judged_stands_beside_measures_with_the_same_cutoff():
    assert [judged_label(name) for name in ("R@10", "RR", "Judged@10", "delta_s")] == [
        "Judged@10",
        "Judged",
        None,
        None,
    ]


# levels

CHUNKS = 12


@given(
    st.lists(st.lists(st.integers(0, CHUNKS - 1), unique=True, max_size=8), max_size=6),
    st.lists(st.integers(-1, 4), min_size=CHUNKS, max_size=CHUNKS),
    st.integers(0, 10),
)
@settings(max_examples=200, deadline=None)
def test_collapse_keeps_the_best_rank_of_each_group(rankings, group_of, depth_out):
    chunks = np.full((len(rankings), 8), -1)
    expected = np.full((len(rankings), depth_out), -1)
    for row, ranking in enumerate(rankings):
        chunks[row, : len(ranking)] = ranking
        seen = list(dict.fromkeys(group_of[chunk] for chunk in ranking if group_of[chunk] >= 0))[
            :depth_out
        ]
        expected[row, : len(seen)] = seen
    np.testing.assert_array_equal(collapse(chunks, group_of, depth_out), expected)


@st.composite
def span_cases(draw):
    n_queries = draw(st.integers(1, 3))
    golds = [
        draw(st.lists(st.lists(st.integers(0, CHUNKS - 1), max_size=3, unique=True), max_size=4))
        for _ in range(n_queries)
    ]
    runs = draw(
        st.lists(
            st.tuples(
                st.integers(0, n_queries - 1),
                st.lists(st.integers(0, CHUNKS - 1), unique=True, max_size=6),
            ),
            max_size=5,
        )
    )
    return golds, runs


def span_arrays(golds, runs):
    spans = [carriers for gold in golds for carriers in gold]
    chunks = np.full((len(runs), 6), -1)
    for row, (_, ranking) in enumerate(runs):
        chunks[row, : len(ranking)] = ranking
    indptr = np.cumsum([0, *map(len, golds)])
    carrier_indptr = np.cumsum([0, *map(len, spans)])
    carriers = np.array([chunk for span in spans for chunk in span], dtype=np.int64)
    return (
        chunks,
        Spans(indptr, carrier_indptr, carriers),
        np.array([q for q, _ in runs], dtype=np.int64),
    )


@given(span_cases())
@settings(max_examples=200, deadline=None)
def test_span_measures_equal_a_slow_reference(case):
    golds, runs = case
    chunks, spans, query_of = span_arrays(golds, runs)
    ks = [1, 3, 10]
    found = span_ranks(chunks, spans, query_of)
    recall, first = np.stack([found.recall(k) for k in ks], axis=1), found.first
    owner, each = found.owner, found.rank
    np.testing.assert_equal(found.reciprocal(None), 1 / first)
    np.testing.assert_equal(found.success(3), np.where(np.isnan(first), np.nan, first <= 3))
    for row, (q, ranking) in enumerate(runs):
        for column, k in enumerate(ks):
            carried = sum(any(chunk in span for chunk in ranking[:k]) for span in golds[q])
            np.testing.assert_equal(
                recall[row, column], carried / len(golds[q]) if golds[q] else math.nan
            )
        ranks = [
            rank for rank, chunk in enumerate(ranking, 1) if any(chunk in span for span in golds[q])
        ]
        np.testing.assert_equal(first[row], min(ranks, default=math.inf) if golds[q] else math.nan)
        assert each[owner == row].tolist() == [
            min((rank for rank, chunk in enumerate(ranking, 1) if chunk in span), default=math.inf)
            for span in golds[q]
        ]


extents = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 20)), max_size=8)


@given(extents, extents)
@settings(max_examples=200, deadline=None)
def test_carriers_overlap_by_half_of_the_shorter(spans, chunks):
    def columns(rows):
        document, start, length = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        return Extents(document, start, start + length)

    indptr, carriers = span_carriers(columns(spans), columns(chunks))
    assert len(indptr) == len(spans) + 1
    for at, (document, start, length) in enumerate(spans):
        expected = set()
        for chunk, (other, begin, size) in enumerate(chunks):
            common = (
                len(set(range(start, start + length)) & set(range(begin, begin + size)))
                if document == other
                else 0
            )
            if common and common >= min(length, size) / 2:
                expected.add(chunk)
        assert set(carriers[indptr[at] : indptr[at + 1]].tolist()) == expected


def test_exactly_half_carries_and_less_does_not():
    span = Extents([0], [0], [10])
    assert span_carriers(span, Extents([0, 0, 1], [5, 6, 0], [50, 50, 10]))[1].tolist() == [0]


def test_span_ranking_with_a_repeated_chunk_is_refused():
    with pytest.raises(ValueError, match="more than once"):
        span_ranks([[1, 1]], Spans(np.array([0, 1]), np.array([0, 1]), np.array([1])), [0])
