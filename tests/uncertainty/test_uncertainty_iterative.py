"""Iterative rounds: budgets, stops, histories, merging, gaps and accounts of harm."""

import dataclasses
import json

import numpy as np
import pytest
from corpora import made_ranking
from expansion_corpus import ANIMALS, FILLER, make_context
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.core.config import EXPANSIONS
from rag_eval.measures.overlap import SharedGold
from rag_eval.retrieval.lexical import Bm25s
from rag_eval.uncertainty.confidence import SEVERITIES
from rag_eval.uncertainty.iterative import (
    HARMS,
    OVERALL,
    RECOVERS,
    UNDECIDED,
    Iterative,
    _account,
    _merge,
    iterate,
    list_expansions,
    semantic_gaps,
)

TEXTS = FILLER + ANIMALS
QUESTIONS = ["spaniel with granite collar", "poodle", "", "unheardof", "dataFrame slate gneiss"]
N = len(QUESTIONS)
APART = SharedGold.of_groups(np.arange(N))
SPEC = Iterative(name="i", kind="iterative", base="b")


class Setting:
    """A lexical base strategy that records its queries."""

    def __init__(self):
        self.context = make_context(TEXTS, QUESTIONS)
        self.table = self.context.words.table
        self.engine = Bm25s(self.table.terms, self.table.n_terms, k1=0.9, b=0.4)
        self.first = self.retrieve(QUESTIONS)
        self.asked = []

    def retrieve(self, texts):
        return self.engine.search(self.table.query_terms(texts), 20)

    def search(self, texts):
        self.asked.append(texts)
        return self.retrieve(texts)

    def run(self, risk=0.9, first=None, search=None, **fields):
        estimate = risk if callable(risk) else lambda batch: (np.full(len(batch), risk), "h")
        search = search or self.search
        spec = SPEC.model_copy(update=fields)
        return iterate(first or self.first, self.context, spec, search=search, risk=estimate)


def n_expanded(done):
    return np.bincount(done.steps["question"], minlength=N)


@pytest.fixture(scope="module")
def shared():
    return Setting()


@pytest.fixture
def setting(shared):
    shared.asked = []
    return shared


@pytest.fixture(scope="module")
def done(shared):
    return shared.run()


@pytest.mark.parametrize(("budget", "most"), [("max_iterations", 2), ("max_expansions", 1)])
def test_a_budget_ends_the_rounds(setting, budget, most):
    done = setting.run(**{budget: most})
    assert n_expanded(done).max() == most == len(setting.asked)
    assert done.stopped[0] == budget


def test_rounds_end_when_no_strategy_is_viable(setting):
    done = setting.run(max_iterations=10, max_expansions=50)
    assert set(done.stopped) == {"no_viable_strategy"}
    assert n_expanded(done)[[2, 3]].tolist() == [0, 0]  # without a query there is no result
    tried = done.steps.groupby("question")["strategy"]
    assert (tried.nunique() == tried.size()).all()
    assert tried.size()[0] > 1


def test_rounds_end_at_the_threshold(setting):
    estimates = iter([0.9, 0.1])
    done = setting.run(lambda batch: (np.full(len(batch), next(estimates)), "calibrated"))
    assert {done.stopped[place] for place in done.steps["question"]} == {"threshold"}
    assert done.facts.basis == "calibrated"
    confidences = done.steps[["confidence_before", "confidence_after"]].to_numpy()
    assert confidences == pytest.approx(np.tile([0.1, 0.9], (len(done.steps), 1)))


def test_without_a_gap_the_question_is_reformulated(setting):
    # Without a second list, no gap names the reformulation.
    gaps = semantic_gaps(setting.context, np.arange(N), 10, every_word=True)
    assert "reformulation" not in {gap.mitigation for of_one in gaps for gap in of_one}
    done = setting.run(expansions=("reformulation",))
    assert set(done.steps["strategy"]) == {"reformulation"}
    assert (done.steps["iteration"] == 1).all()
    first = setting.run().steps.groupby("question")["strategy"].first()
    assert first[0] != "reformulation"  # the strategies of the gaps come first


def test_only_uncertain_questions_are_expanded(setting):
    done = setting.run(lambda _: (np.array([0.9, 0.1, 0.1, 0.1, 0.1]), "calibrated"))
    assert set(done.steps["question"]) == {0}
    assert done.stopped[1:] == ("threshold",) * (N - 1)
    np.testing.assert_array_equal(done.ranking.rows[1:], setting.first.rows[1:])
    np.testing.assert_array_equal(done.ranking.norm[1:], setting.first.norm[1:])
    assert not np.array_equal(done.ranking.norm[0], setting.first.norm[0])


def test_histories_are_whole(setting):
    done = setting.run()
    for place, why in enumerate(done.stopped):
        history = done.steps[done.steps["question"] == place]
        n = len(history)
        assert history["iteration"].tolist() == list(range(1, n + 1))
        assert history["stopped"].tolist() == [""] * (n - 1) + [why] * bool(n)
        for step in history.itertuples():
            assert step.original == QUESTIONS[place] != step.expanded
            assert 0 <= step.unique_result_count <= step.result_count <= 20
    asked = sorted(text for texts in setting.asked for text in texts)
    assert asked == sorted(done.steps["expanded"])
    assert done.steps["question"].is_monotonic_increasing


def test_an_expansion_without_new_results_is_named(done):
    steps = done.steps.head(2).assign(question=[0, 1], unique_result_count=[0, 2])
    named = [line["found_unique_results"] for [line] in list_expansions(steps).values()]
    assert named == [False, True]


def test_unique_results_are_those_that_no_earlier_list_had(shared, done):
    lists = {place: set(row[row >= 0].tolist()) for place, row in enumerate(shared.first.rows)}
    for step in done.steps.sort_values("iteration", kind="stable").itertuples():
        rows = shared.retrieve([step.expanded]).rows[0]
        found = set(rows[rows >= 0].tolist())
        new = found - lists[step.question]
        assert (step.result_count, step.unique_result_count) == (len(found), len(new))
        lists[step.question] |= found


def test_failed_retrievals_are_not_expanded(setting):
    failed = np.array([True, False, False, False, False])
    done = setting.run(first=dataclasses.replace(setting.first, failed=failed))
    assert (done.stopped[0], n_expanded(done)[0]) == ("failed", 0)
    assert done.ranking.failed is failed


LISTS = st.lists(
    st.tuples(st.integers(0, 12), st.floats(0, 1)), max_size=8, unique_by=lambda pair: pair[0]
).map(lambda pairs: sorted(pairs, key=lambda pair: (-pair[1], pair[0])))


@settings(max_examples=150)
@given(
    st.lists(st.tuples(LISTS, LISTS, LISTS), min_size=1, max_size=4),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(1, 20),
)
def test_merging_keeps_every_chunk_once_in_order_of_the_weighted_mean(
    queries, first_weight, second_weight, depth
):
    lists = [made_ranking([query[part] for query in queries], 8) for part in range(3)]
    n, weights = len(queries), (1.0, first_weight, second_weight)
    places = np.arange(n)
    weighted = [
        (part, places, np.full(n, weight)) for part, weight in zip(lists, weights, strict=True)
    ]
    fused = _merge(weighted, n, depth)
    for query, parts in enumerate(queries):
        expected = {}
        for weight, part in zip(weights, parts, strict=True):
            for row, score in part:
                if weight > 0:
                    expected[row] = expected.get(row, 0.0) + weight * score
        expected = {row: score / sum(weights) for row, score in expected.items()}
        found = [int(row) for row in fused.rows[query] if row >= 0]
        assert len(set(found)) == len(found) == min(depth, len(expected))
        best = sorted((round(score, 6) for score in expected.values()), reverse=True)
        scores = [round(expected[row], 6) for row in found]
        assert scores == pytest.approx(best[: len(found)], abs=2e-6)
        assert ((fused.norm[query] >= 0) & (fused.norm[query] <= 1 + 1e-9)).all()
        assert (fused.rows[query][len(found) :] == -1).all()


def test_a_reranked_order_is_kept():
    reranked = made_ranking([[(3, 0.2), (5, 0.9), (1, 0.5)]], 4)
    reranked = dataclasses.replace(reranked, rerank=np.where(reranked.rows >= 0, 1.0, np.nan))
    assert _merge([(reranked, np.arange(1), np.ones(1))], 1, 4).rows.tolist() == [[3, 5, 1, -1]]


def test_gaps_name_what_is_missing_and_who_may_mend_it(shared):
    gaps = semantic_gaps(shared.context, np.arange(N))
    severities = [SEVERITIES.index(gap.severity) for gap in gaps[0]]
    assert severities == sorted(severities, reverse=True)
    assert {gap.mitigation for own in gaps for gap in own} <= set(EXPANSIONS)
    unknown = next(gap for gap in gaps[3] if gap.mitigation == "code_pattern")
    assert unknown.severity == "high"
    assert "“unheardof”" in unknown.description
    assert "synonym" not in {gap.mitigation for gap in gaps[1]}  # the question's only word is found


def test_a_word_without_content_is_no_gap():
    asked = ["poodle", "How do they use poodle?", "what does unheardof do?", "how do you?"]
    context = make_context([*TEXTS, "How one does them."], asked)
    plain, padded, unknown, empty = semantic_gaps(context, np.arange(4))
    assert [gap.mitigation for gap in padded] == [gap.mitigation for gap in plain]
    words = " ".join(gap.description for gap in [*padded, *unknown, *empty])
    assert "“unheardof”" in words
    assert not any(f"“{word}”" in words.lower() for word in ("how", "do", "what", "does", "use"))
    assert "synonym" not in {gap.mitigation for gap in empty}


def test_disagreement_with_a_second_list_is_a_gap(shared):
    def severity(others):
        batch = shared.context.batch
        batch = dataclasses.replace(batch, other_rows=others, other_raw=np.ones(others.shape))
        gaps = semantic_gaps(dataclasses.replace(shared.context, batch=batch), np.array([0]))[0]
        return next((gap.severity for gap in gaps if gap.mitigation == "reformulation"), None)

    rows = shared.first.rows
    assert severity(rows) is None
    others = np.setdiff1d(np.arange(len(TEXTS)), rows[0])[:20].astype(np.int32)
    assert severity(np.tile(others, (N, 1))) == "high"


def test_harm_counts_what_each_step_changed(setting):
    done = setting.run(max_iterations=1)
    place = done.steps["question"][0]
    gained = next(row for row in done.rounds[1][place] if row not in done.rounds[0][place])

    def recall(rows):
        found = (rows == gained).any(axis=1).astype(float)
        return np.where(np.arange(N) == place, found, 0.0)

    total, *by_strategy = _account(done.rounds, done.steps, recall, APART)
    assert (total.strategy, total.recovered, total.lost, total.questions) == (OVERALL, 1, 0, N)
    triggered = sum(part.triggered for part in by_strategy)
    assert total.extra_queries == len(done.steps) == triggered
    assert sum(part.recovered for part in by_strategy) == 1
    assert total.delta == pytest.approx(1 / N)
    reverse = _account(done.rounds, done.steps, lambda rows: 1.0 - recall(rows), APART)[0]
    assert (reverse.recovered, reverse.lost) == (0, 1)
    json.dumps([part.dump() for part in (total, *by_strategy)], allow_nan=False)


def test_questions_without_gold_count_for_nothing(setting):
    done = setting.run(max_iterations=1)

    def recall(rows):
        return np.where(np.arange(len(rows)) == 1, 1.0, np.nan)

    total = _account(done.rounds, done.steps, recall, APART)[0]
    assert (total.questions, total.triggered) == (1, int(n_expanded(done)[1]))


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [(0.5, 1.0, RECOVERS), (0.5, 0.0, HARMS), (0.5, 0.5, UNDECIDED), (np.nan, 1.0, UNDECIDED)],
)
def test_the_verdict_follows_the_interval(done, before, after, verdict):
    groups = np.arange(60)
    recalls = iter([np.full(60, before), np.where(groups < 30, after, before)])
    total = _account(
        [groups, groups], done.steps[:0], lambda _: next(recalls), SharedGold.of_groups(groups)
    )[0]
    assert total.verdict == verdict
    assert ("too few groups" in total.dump().get("delta_reason", "")) is bool(np.isnan(before))
