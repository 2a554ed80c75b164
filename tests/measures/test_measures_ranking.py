"""Ranking measures against slow references: labels, levels, spans."""

import math

import ir_measures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.api.results import _standard_label
from rag_eval.core.errors import InputError
from rag_eval.measures.ranking import (
    Qrels,
    Spans,
    collapse,
    find_machine_name,
    labels_at,
    machine_name,
    parse_label,
    score_rankings,
)
from rag_eval.measures.run_scores import _precision_upper_bounds

LABELS = (
    *("R@1", "R@3", "R@10", "Success@2", "RR", "RR@3", "nDCG@3", "nDCG"),
    *("P@3", "P@10", "AP", "AP@3", "Judged@3", "Judged"),
)
OF_IR_MEASURES = [
    getattr(ir_measures, name) if k is None else getattr(ir_measures, name) @ k
    for name, k in map(parse_label, LABELS)
]


def slow(label, ranking, gold):  # noqa: PLR0911 - one return a measure
    """Compute a measure by its definition; `gold` maps an item to its gain."""
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


def padded(rankings, depth):
    out = np.full((len(rankings), depth), -1)
    for row, ranking in enumerate(rankings):
        out[row, : len(ranking)] = ranking
    return out


@st.composite
def cases(draw):
    """Draw the gains of the items of each query, rankings with their queries, and a depth."""
    gold = st.dictionaries(st.integers(0, 14), st.integers(-1, 3), max_size=8)
    golds = draw(st.lists(gold, min_size=1, max_size=4))
    depth, queries = draw(st.integers(0, 12)), st.integers(0, len(golds) - 1)
    ranking = st.lists(st.integers(0, 14), unique=True, max_size=depth)
    return golds, draw(st.lists(st.tuples(queries, ranking), max_size=8)), depth


def arrays(golds, runs, depth, code=lambda item: item):
    items = padded([[code(item) for item in ranking] for _, ranking in runs], depth)
    triples = [(q, code(item), gain) for q, gold in enumerate(golds) for item, gain in gold.items()]
    columns = np.array(triples, dtype=np.int64).reshape(-1, 3).T
    query_of = np.array([q for q, _ in runs], dtype=np.int64)
    return items, Qrels.from_rows(*columns, len(golds)), query_of


@given(cases())
@settings(max_examples=200)
def test_equals_the_definition_written_out(case):
    golds, runs, _ = case
    expected = [[slow(label, ranking, golds[q]) for label in LABELS] for q, ranking in runs]
    expected = np.array(expected).reshape(len(runs), len(LABELS))
    np.testing.assert_allclose(score_rankings(*arrays(*case), LABELS), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("items", "query_of", "label", "message"),
    [
        ([[3, 4, 3]], [0], "R@2", "more than once"),
        ([[-1, 3]], [0], "R@2", "padding before an item"),
        ([[3]], [0, 0], "R@2", "query_of"),
        ([[3.0]], [0], "R@2", "integers"),
        ([[3]], [0], "recall", "no such ranking measure; did you mean R@10"),
        ([[3]], [0], "Recall@k", "did you mean R@10"),
        ([[3]], [0], "ndgc@5", "did you mean nDCG@5"),
        ([[3]], [0], "F1@3", r"no such ranking measure \("),
        ([[3]], [0], "P(rel=2)@5", r"no such ranking measure \("),
    ],
)
def test_defective_input_is_refused(items, query_of, label, message):
    with pytest.raises((ValueError, InputError), match=message):
        score_rankings(items, Qrels.from_rows([0], [3], [1], 1), query_of, [label])


ALIASES = {
    "R@10": "recall@10 Recall@10 recall_10 recall.10 recall_at_10 R_10",
    "Success@5": "hit@5 hit_rate@5 HR@5 Hits@5 accuracy@5 success_5 success.5 hit-rate@5",
    "P@5": "P_5 P.5 precision@5 Precision@5 p@5",
    "RR": "MRR mrr recip_rank reciprocal_rank",
    "RR@10": "MRR@10 mrr_at_10",
    "nDCG@10": "NDCG@10 ndcg_cut_10 ndcg_cut.10 ndcg@10",
    "AP": "map MAP average_precision",
    "AP@100": "map_cut_100 MAP@100",
}


@pytest.mark.parametrize(("label", "names"), ALIASES.items())
def test_names_of_other_tools_are_read(label, names):
    assert {_standard_label(name) for name in names.split()} == {label}
    assert find_machine_name(names.split()[0]) == machine_name(label)


@given(cases(), st.integers(1, 12))
@settings(max_examples=60)
def test_upper_bound_of_precision_takes_unjudged_items_as_relevant(case, k):
    golds, runs, _ = case
    items, *gold = arrays(*case)
    precision, judged = np.split(score_rankings(items, *gold, [f"P@{k}", f"Judged@{k}"]), 2, axis=1)
    bounds = _precision_upper_bounds(precision, judged, items, [k])[:, 0]
    for bound, (q, ranking) in zip(bounds, runs, strict=True):
        eligible = any(gain > 0 for gain in golds[q].values())
        full = sum(golds[q].get(item, 1) > 0 for item in ranking[:k]) / k
        np.testing.assert_allclose(bound, full if eligible else math.nan, atol=1e-12)


@given(cases())
@settings(max_examples=100)
def test_every_relevant_item_has_its_rank(case):
    golds, runs, _ = case
    items, qrels, query_of = arrays(*case)
    owner, rank = qrels.rank_relevant(items, query_of)
    assert sorted(zip(owner.tolist(), rank.tolist(), strict=True)) == sorted(
        (row, ranking.index(item) + 1.0 if item in ranking else np.inf)
        for row, (q, ranking) in enumerate(runs)
        for item, gain in golds[q].items()
        if gain > 0
    )


# ---- Labels

PAIRS = {
    "R@10": "recall_at_10",
    "Success@5": "success_at_5",
    "P@5": "precision_at_5",
    "RR": "mrr",
    "RR@10": "mrr_at_10",
    "nDCG@10": "ndcg_at_10",
    "nDCG": "ndcg",
    "AP": "map",
    "Judged@10": "judged_at_10",
}


def test_labels_have_machine_names_and_are_those_of_ir_measures():
    assert {screen: machine_name(screen) for screen in PAIRS} == PAIRS
    assert tuple(map(str, OF_IR_MEASURES)) == LABELS


@pytest.mark.parametrize(
    "bad", ["R", "P", "R@0", "R@-1", "R@1.5", "recall_at_0", "R@10 ", "", "Foo@3", "R@010"]
)
def test_other_labels_are_refused_with_the_accepted_ones(bad):
    with pytest.raises(InputError) as caught:
        machine_name(bad)
    assert caught.value.problems[0].found == bad
    assert "nDCG@k" in caught.value.problems[0].accepted


@pytest.mark.parametrize(
    ("level", "judged"), [("document", ("Judged@1", "Judged@5")), ("span", ())]
)
def test_every_k_is_measured(level, judged):
    swept = ("R@1", "R@5", "Success@1", "Success@5", "P@1", "P@5")
    assert labels_at(level, [1, 5]) == (*swept, "RR", "nDCG@10", *judged)


# ---- Levels

CHUNKS = 12
chunk_codes = st.integers(0, CHUNKS - 1)


@given(
    st.lists(st.lists(chunk_codes, unique=True, max_size=8), max_size=6),
    st.lists(st.integers(-1, 4), min_size=CHUNKS, max_size=CHUNKS),
    st.integers(0, 10),
)
@settings(max_examples=200)
def test_collapse_keeps_the_best_rank_of_each_group(rankings, group_of, depth):
    groups = [
        list(dict.fromkeys(group_of[chunk] for chunk in ranking if group_of[chunk] >= 0))[:depth]
        for ranking in rankings
    ]
    found = collapse(padded(rankings, 8), group_of, depth)
    np.testing.assert_array_equal(found, padded(groups, depth))


@st.composite
def span_cases(draw):
    """Draw rankings of queries, and the spans of each query as lists of chunks."""
    gold = st.lists(st.lists(chunk_codes, max_size=3, unique=True), max_size=4)
    golds = draw(st.lists(gold, min_size=1, max_size=3))
    ranking = st.lists(chunk_codes, unique=True, max_size=6)
    return golds, draw(st.lists(st.tuples(st.integers(0, len(golds) - 1), ranking), max_size=5))


def span_arrays(golds, runs):
    spans = [carriers for gold in golds for carriers in gold]
    indptr = np.cumsum([0, *map(len, golds)])
    carriers = np.array([chunk for span in spans for chunk in span], dtype=np.int64)
    query_of = np.array([q for q, _ in runs], dtype=np.int64)
    chunks = padded([ranking for _, ranking in runs], 6)
    return chunks, Spans(indptr, np.cumsum([0, *map(len, spans)]), carriers), query_of


@given(span_cases())
@settings(max_examples=200)
def test_span_measures_equal_a_slow_reference(case):
    golds, runs = case
    chunks, spans, query_of = span_arrays(*case)
    found = spans.rank(chunks, query_of)
    judged = {(q, chunk) for q, gold in enumerate(golds) for span in gold for chunk in span}
    rows = np.array(sorted(judged), dtype=np.int64).reshape(-1, 2).T
    qrels = Qrels.from_rows(*rows, np.ones(rows.shape[1], dtype=np.int64), len(golds))
    labels = ("R@1", "R@3", "R@10", "Success@3", "RR", "P@3")
    scores = spans.score(chunks, qrels, query_of, labels)
    for row, (q, ranking) in enumerate(runs):
        ranks = [
            min((rank for rank, chunk in enumerate(ranking, 1) if chunk in span), default=math.inf)
            for span in golds[q]
        ]
        assert found.rank[found.owner == row].tolist() == ranks
        if not golds[q]:
            assert np.isnan([found.first[row], *scores[row]]).all()
            continue
        first = min(ranks)
        assert found.first[row] == first
        recall = [sum(rank <= k for rank in ranks) / len(ranks) for k in (1, 3, 10)]
        precision = sum((q, chunk) in judged for chunk in ranking[:3]) / 3
        expected = [*recall, first <= 3, 1 / first, precision]
        np.testing.assert_allclose(scores[row], expected, atol=1e-9)
