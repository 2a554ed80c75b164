"""Iterative rounds: budgets, stops, histories, merging, gaps and accounts of harm."""

import dataclasses
import json

import numpy as np
import pytest
from corpora import made_ranking, table
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.core.config import EXPANSIONS
from rag_eval.measures.paired import paired_comparison
from rag_eval.retrieval.lexical import Bm25s
from rag_eval.uncertainty.expansion import CorpusWords, ExpansionContext
from rag_eval.uncertainty.gaps import SEVERITIES, semantic_gaps
from rag_eval.uncertainty.iterative import (
    EXPANSIONS_FRAME,
    HARMS,
    OVERALL,
    RECOVERS,
    UNDECIDED,
    Iterative,
    expansions_frame,
    harm,
    iterate,
    merged,
    verdict,
)
from rag_eval.uncertainty.signals import RankedBatch, TermSpace

STONES = (
    "granite",
    "basalt",
    "marble",
    "slate",
    "chalk",
    "gneiss",
    "schist",
    "tuff",
    "pumice",
    "flint",
)
TEXTS = [
    f"{stone} {place} lies {where} number{i}"
    for i, (where, stone, place) in enumerate(
        (w, s, p)
        for w in ("north", "south")
        for s in STONES
        for p in ("quarry", "cliff", "ridge", "ledge", "gorge", "dune")
    )
]
TEXTS += [
    f"the {breed} is a dog of {colour} fur"
    for breed, colours in (("spaniel", "brown white golden"), ("poodle", "grey silver red"))
    for colour in colours.split()
]
QUESTIONS = [
    "spaniel with granite collar",
    "poodle",
    "",
    "unheardof",
    "dataFrame slate gneiss tuff",
]
SPEC = Iterative(name="i", kind="iterative", base="b")


class Setting:
    """A lexical base that notes its queries."""

    def __init__(self, questions=QUESTIONS, depth=20):
        self.table = table(TEXTS)
        self.words = CorpusWords(self.table, TermSpace(self.table.terms, self.table.n_terms))
        self.engine = Bm25s(self.table.terms, self.table.n_terms, k1=0.9, b=0.4)
        self.depth, self.asked, self.questions = depth, [], questions
        self.first = self.engine.search(self.table.query_terms(questions), depth)
        self.context = ExpansionContext(self.batch_of(self.first), questions, self.words)

    def batch_of(self, ranking):
        return RankedBatch(
            ranking.rows,
            ranking.raw,
            ranking.norm,
            cosine=False,
            space=self.words.space,
            query_terms=self.table.query_terms(self.questions),
        )

    def search(self, texts):
        self.asked.append(texts)
        return self.engine.search(self.table.query_terms(texts), self.depth)

    def run(self, risk, spec=SPEC, first=None):
        return iterate(first or self.first, self.context, spec, search=self.search, risk=risk)


@pytest.fixture(scope="module")
def shared():
    return Setting()


@pytest.fixture
def setting(shared):
    shared.asked = []
    return shared


def always(value):
    return lambda batch: (np.full(len(batch), value), "heuristic_v0")


def spec(**fields):
    return SPEC.model_copy(update=fields)


def test_confident_retrievals_are_left_alone(setting):
    done = setting.run(always(0.3))
    assert set(done.stopped) == {"threshold"}
    assert setting.asked == []
    assert done.steps == ()
    np.testing.assert_array_equal(done.ranking.rows, setting.first.rows)
    np.testing.assert_array_equal(done.ranking.norm, setting.first.norm)


def test_the_budget_of_rounds_ends_them(setting):
    done = setting.run(always(0.9), spec(max_iterations=2))
    assert done.extra_queries.max() == 2
    assert done.stopped[0] == "max_iterations"
    assert len(setting.asked) == 2


def test_the_budget_of_expansions_ends_them(setting):
    done = setting.run(always(0.9), spec(max_expansions=1))
    assert done.extra_queries.max() == 1
    assert done.stopped[0] == "max_expansions"
    assert len(setting.asked) == 1


def test_rounds_end_when_no_strategy_is_viable(setting):
    done = setting.run(always(0.9), spec(max_iterations=10, max_expansions=50))
    assert set(done.stopped) == {"no_viable_strategy"}
    assert done.extra_queries[[2, 3]].tolist() == [0, 0]  # without a query there is no result
    tried = [
        [step.strategy for step in done.steps if step.question == place]
        for place in range(len(QUESTIONS))
    ]
    assert all(len(set(its)) == len(its) for its in tried)
    assert len(tried[0]) > 1


def test_rounds_end_at_the_threshold(setting):
    calls = []

    def risk(batch):
        calls.append(batch)
        return np.full(len(batch), 0.9 if len(calls) == 1 else 0.1), "calibrated"

    done = setting.run(risk)
    assert [why for why, count in zip(done.stopped, done.extra_queries, strict=True) if count] == [
        "threshold"
    ] * int((done.extra_queries > 0).sum())
    assert done.basis == "calibrated"
    assert [step.confidence_before for step in done.steps] == pytest.approx([0.1] * len(done.steps))
    assert [step.confidence_after for step in done.steps] == pytest.approx([0.9] * len(done.steps))
    assert done.steps


def test_only_the_strategies_that_are_allowed_are_chosen(setting):
    done = setting.run(always(0.9), spec(expansions=("reformulation",)))
    assert {step.strategy for step in done.steps} <= {"reformulation"}


def test_only_uncertain_questions_are_expanded(setting):
    done = setting.run(lambda _: (np.array([0.9, 0.1, 0.1, 0.1, 0.1]), "calibrated"))
    assert {step.question for step in done.steps} == {0}
    np.testing.assert_array_equal(done.ranking.rows[1:], setting.first.rows[1:])
    assert not np.array_equal(done.ranking.norm[0], setting.first.norm[0])


def test_histories_are_whole(setting):
    done = setting.run(always(0.9))
    for place, why in enumerate(done.stopped):
        history = [step for step in done.steps if step.question == place]
        n = int(done.extra_queries[place])
        assert [step.iteration for step in history] == list(range(1, n + 1))
        assert [step.stopped for step in history] == [""] * (n - 1) + [why] * bool(n)
        for step in history:
            assert step.original == QUESTIONS[place] != step.expanded
            assert 0 <= step.found_unique_results <= step.result_count <= 20
    asked = sorted(text for texts in setting.asked for text in texts)
    assert asked == sorted(step.expanded for step in done.steps)
    frame = done.frame()
    assert frame["question"].tolist() == sorted(frame["question"])
    assert len(EXPANSIONS_FRAME.check(expansions_frame([]))) == 0


def test_unique_results_are_those_that_no_earlier_list_had(setting):
    done = setting.run(always(0.9))
    lists = {place: set(row[row >= 0].tolist()) for place, row in enumerate(setting.first.rows)}
    for step in sorted(done.steps, key=lambda step: step.iteration):
        found = setting.engine.search(setting.table.query_terms([step.expanded]), 20).rows[0]
        found = set(found[found >= 0].tolist())
        assert (step.result_count, step.found_unique_results) == (
            len(found),
            len(found - lists[step.question]),
        )
        lists[step.question] |= found


def test_each_chunk_stands_once(setting):
    done = setting.run(always(0.9))
    for row in done.ranking.rows:
        found = row[row >= 0].tolist()
        assert len(set(found)) == len(found)
    assert done.ranking.rows.shape == setting.first.rows.shape


def test_the_same_input_gives_the_same_rounds(setting):
    first, second = setting.run(always(0.9)), setting.run(always(0.9))
    np.testing.assert_array_equal(first.ranking.rows, second.ranking.rows)
    assert [dataclasses.replace(step, seconds=0) for step in first.steps] == [
        dataclasses.replace(step, seconds=0) for step in second.steps
    ]


def test_failed_retrievals_are_not_expanded(setting):
    failed = np.array([True, False, False, False, False])
    done = setting.run(always(0.9), first=dataclasses.replace(setting.first, failed=failed))
    assert done.stopped[0] == "failed"
    assert done.extra_queries[0] == 0
    assert done.ranking.failed is failed


def test_an_expansion_that_retrieves_nothing_changes_nothing(setting):
    empty = setting.engine.search([[] for _ in range(9)], 20)

    def search(texts):
        return dataclasses.replace(
            empty,
            **{
                name: getattr(empty, name)[: len(texts)]
                for name in ("rows", "raw", "norm", "k_pos", "rerank", "candidates")
            },
        )

    done = iterate(setting.first, setting.context, SPEC, search=search, risk=always(0.9))
    np.testing.assert_array_equal(done.ranking.rows, setting.first.rows)
    assert {step.result_count for step in done.steps} == {0}


@pytest.mark.parametrize("wrong", [np.array([0.5]), np.full(5, np.nan), np.full(5, 1.5)])
def test_a_risk_that_is_no_probability_is_refused(setting, wrong):
    with pytest.raises(ValueError, match="risk"):
        setting.run(lambda _: (wrong, "calibrated"))


def test_lists_of_another_batch_are_refused(setting):
    other = dataclasses.replace(setting.first, rows=setting.first.rows[::-1].copy())
    with pytest.raises(ValueError, match="different lists"):
        setting.run(always(0.9), first=other)


LISTS = st.lists(
    st.tuples(st.integers(0, 12), st.floats(0, 1)), max_size=8, unique_by=lambda pair: pair[0]
).map(lambda pairs: sorted(pairs, key=lambda pair: (-pair[1], pair[0])))


@settings(deadline=None, max_examples=150)
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
    weights = np.tile([1.0, first_weight, second_weight], (len(queries), 1))
    fused = merged(lists, weights, depth)
    for query, parts in enumerate(queries):
        expected = {}
        for weight, part in zip(weights[query], parts, strict=True):
            for row, score in part:
                if weight > 0:
                    expected[row] = expected.get(row, 0.0) + weight * score
        expected = {row: score / weights[query].sum() for row, score in expected.items()}
        found = [int(row) for row in fused.rows[query] if row >= 0]
        assert len(set(found)) == len(found) == min(depth, len(expected))
        assert [round(expected[row], 6) for row in found] == pytest.approx(
            sorted((round(score, 6) for score in expected.values()), reverse=True)[: len(found)],
            abs=2e-6,
        )
        assert ((fused.norm[query] >= 0) & (fused.norm[query] <= 1 + 1e-9)).all()
        assert (fused.rows[query][len(found) :] == -1).all()


@settings(deadline=None, max_examples=100)
@given(LISTS, st.floats(0, 3))
def test_a_list_merged_with_itself_or_with_an_empty_one_keeps_its_order(pairs, weight):
    one, empty = made_ranking([pairs], 8), made_ranking([[]], 8)
    apart = {round(score, 4) for _, score in pairs}
    if len(apart) == len(pairs):  # equal scores follow the order of rows
        for other in (one, empty):
            assert (
                merged([one, other], np.array([[1.0, weight]]), 8).rows.tolist()
                == one.rows.tolist()
            )


def test_a_reranked_order_is_kept():
    reranked = made_ranking([[(3, 0.2), (5, 0.9), (1, 0.5)]], 4)
    reranked = dataclasses.replace(reranked, rerank=np.where(reranked.rows >= 0, 1.0, np.nan))
    assert merged([reranked], np.ones((1, 1)), 4).rows.tolist() == [[3, 5, 1, -1]]


def test_gaps_name_what_is_missing_and_who_may_mend_it(setting):
    gaps = semantic_gaps(setting.context, np.arange(len(QUESTIONS)))
    assert [SEVERITIES.index(gap.severity) for gap in gaps[0]] == sorted(
        (SEVERITIES.index(gap.severity) for gap in gaps[0]), reverse=True
    )
    assert {gap.mitigation for its in gaps for gap in its} <= set(EXPANSIONS)
    unknown = next(gap for gap in gaps[3] if gap.mitigation == "code_pattern")
    assert unknown.severity == "high"
    assert "“unheardof”" in unknown.description
    assert unknown.as_json()["miss_likelihood"] == {"kind": "absent", "reason": "uncalibrated"}
    assert gaps[1] == [] or all(
        gap.mitigation != "synonym" for gap in gaps[1]
    )  # its one word is found


def test_descriptions_quote_hostile_words_and_are_bounded():
    hostile = Setting(
        [
            "a\x1b[31mb \u202egnitirw <script>alert(1)</script> "
            + "x" * 100_000
            + " word" * 50_000,
            "spaniel " + " ".join(f"unknownWord{i}" for i in range(5000)),
        ]
    )
    for its in semantic_gaps(hostile.context, np.arange(2)):
        assert its
        for gap in its:
            assert len(gap.description) < 600
            assert gap.description.isprintable()
            assert "<script>" not in gap.description


def test_disagreement_with_a_second_list_is_a_gap(setting):
    def gap(others):
        batch = dataclasses.replace(
            setting.context.batch, other_rows=others, other_raw=np.ones(others.shape)
        )
        found = semantic_gaps(dataclasses.replace(setting.context, batch=batch), np.array([0]))[0]
        return next((its.severity for its in found if its.mitigation == "reformulation"), None)

    rows = setting.first.rows
    assert gap(rows) is None
    assert gap(np.where(rows >= 0, len(TEXTS) + 5, -1).astype(np.int32)) == "high"


def test_harm_counts_what_each_step_changed(setting):
    done = setting.run(always(0.9), spec(max_iterations=1))
    place = done.steps[0].question
    before, after = set(done.rounds[0][place].tolist()), done.rounds[1][place]
    gained = next(int(row) for row in after if row >= 0 and int(row) not in before)

    def recall(rows):
        found = (rows == gained).any(axis=1).astype(float)
        return np.where(np.arange(len(rows)) == place, found, 0.0)

    accounts = harm(done.rounds, done.steps, recall, np.arange(len(QUESTIONS)))
    assert accounts[0].strategy == OVERALL
    assert (accounts[0].recovered, accounts[0].lost, accounts[0].questions) == (
        1,
        0,
        len(QUESTIONS),
    )
    assert (
        accounts[0].extra_queries
        == int(done.extra_queries.sum())
        == sum(its.triggered for its in accounts[1:])
    )
    assert sum(its.recovered for its in accounts[1:]) == 1
    assert accounts[0].delta == pytest.approx(1 / len(QUESTIONS))
    reverse = harm(
        done.rounds, done.steps, lambda rows: 1.0 - recall(rows), np.arange(len(QUESTIONS))
    )
    assert (reverse[0].recovered, reverse[0].lost) == (0, 1)
    json.dumps([its.as_json() for its in accounts], allow_nan=False)


def test_questions_without_gold_count_for_nothing(setting):
    done = setting.run(always(0.9), spec(max_iterations=1))
    accounts = harm(
        done.rounds,
        done.steps,
        lambda rows: np.where(np.arange(len(rows)) == 1, 1.0, np.nan),
        np.arange(len(QUESTIONS)),
    )
    assert accounts[0].questions == 1
    assert accounts[0].triggered == int(done.extra_queries[1])


def test_the_verdict_follows_the_interval():
    groups, zero = np.arange(60), np.zeros(60)
    ends = [
        (paired.ci_low[0], paired.ci_high[0])
        for change in (0.5, -0.5, 0.0)
        for paired in [paired_comparison(0.5 + change * (groups < 30), zero + 0.5, groups, 1)]
    ]
    assert [verdict(*its) for its in ends] == [RECOVERS, HARMS, UNDECIDED]
    assert verdict(float("nan"), float("nan")) == UNDECIDED
