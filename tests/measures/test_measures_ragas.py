"""The bridge to ragas: real ragas against a local server that plays the judge, and our recall against its own."""

import asyncio
import json
import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
from ragas_fake_server import FakeJudge

from rag_eval.measures.levels import Spans, span_recall
from rag_eval.measures.ragas_bridge import (
    Limits,
    Sample,
    faithfulness,
    faithfulness_record,
    is_sampled,
    single_turn_samples,
)
from rag_eval.measures.ranking import Qrels, score_rankings

CONTEXT = ("The Eiffel Tower stands in Paris. It was completed in 1889.",)
SAMPLES = [
    Sample("all", "Where is it?", "The Eiffel Tower stands in Paris.", CONTEXT),
    Sample(
        "half",
        "Where is it?",
        "The Eiffel Tower stands in Paris. Elephants never forget anything.",
        CONTEXT,
    ),
    Sample("none", "Where is it?", "Elephants never forget anything.", CONTEXT),
]
QUICK = Limits(attempts=1, timeout_s=20)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


def ask(judge, samples=SAMPLES, **how):
    import openai

    how = {"limits": QUICK} | how
    return faithfulness(
        samples,
        lambda: openai.AsyncOpenAI(base_url=judge.base_url, api_key="fake", max_retries=1),
        "judge",
        **how,
    )


def test_a_good_judge_is_believed():
    with FakeJudge() as judge:
        found = ask(judge)
        assert found.value.tolist() == [1.0, 0.5, 0.0]
        assert found.failure == ["", "", ""]
        assert len(judge.requests) == 6
        assert all(
            request["response_format"]["type"] == "json_object" for request in judge.requests
        )
        assert all(request["model"] == "judge" for request in judge.requests)
    record = faithfulness_record(found, [0, 1, 2], 1, 200)
    assert (record.value, record.n_scored, record.n_failed, record.n_groups, record.reason) == (
        0.5,
        3,
        0,
        3,
        "",
    )


@pytest.mark.parametrize(
    ("behaviour", "failure"),
    [
        ("no_statements", "nan"),
        ("garbage", "invalid_reply"),
        ("wrong_schema", "invalid_reply"),
        ("busy", "rate_limited"),
        ("down", "refused"),
    ],
)
def test_a_bad_judge_is_counted(behaviour, failure):
    with FakeJudge(behaviour) as judge:
        found = ask(judge, SAMPLES[:2])
    assert np.isnan(found.value).all()
    assert found.failure == [failure, failure]
    record = faithfulness_record(found, [0, 1], 1, 200)
    assert math.isnan(record.value)
    assert (record.n_attempted, record.n_scored, record.n_failed, record.reason) == (
        2,
        0,
        2,
        f"every call of the judge failed: {failure} 2",
    )


def test_a_busy_moment_is_waited_out():
    with FakeJudge("busy_once") as judge:
        assert ask(judge, SAMPLES[:1]).value.tolist() == [1.0]
        assert len(judge.requests) == 3


def test_a_slow_judge_times_out():
    with FakeJudge("slow") as judge:
        assert ask(judge, SAMPLES[:1], limits=Limits(attempts=1, timeout_s=0.2)).failure == [
            "timeout"
        ]


def test_no_more_are_asked_at_once_than_allowed_and_a_running_loop_does_not_matter():
    async def inside() -> np.ndarray:
        return ask(judge, SAMPLES * 3, limits=Limits(concurrency=1, timeout_s=20)).value

    with FakeJudge() as judge:
        assert asyncio.run(inside()).tolist() == [1.0, 0.5, 0.0] * 3
        assert judge.most_at_once == 1


def test_samples_start_at_the_allowed_pace():
    with FakeJudge() as judge:
        found = ask(judge, SAMPLES, limits=Limits(requests_per_minute=300, timeout_s=20))
        first = [
            at
            for at, request in zip(judge.started, judge.requests, strict=True)
            if "statements based on a given context" not in request["messages"][-1]["content"]
        ]
    assert found.value.tolist() == [1.0, 0.5, 0.0]
    assert len(first) == 3
    assert first[-1] - first[0] > 0.5  # two gaps of 0.4 s, less what the way to the server takes


def test_what_cannot_be_judged_is_not_asked():
    with FakeJudge() as judge:
        found = ask(
            judge,
            [
                Sample("a", "Where?", "", CONTEXT),
                Sample("b", "Where?", "There.", ()),
                Sample("c", "Where?", None, CONTEXT),
                Sample("d", " ", "There.", CONTEXT),
            ],
        )
        assert not judge.requests
    assert not found.eligible.any()
    assert faithfulness_record(found, range(4), 1, 200).reason == "no answer was in the sample"


def test_the_sample_is_the_same_every_time_and_grows_with_the_rate():
    ids = [f"q{number}" for number in range(2000)]
    small, large = ({name for name in ids if is_sampled(name, rate)} for rate in (0.1, 0.5))
    assert small < large
    assert 150 < len(small) < 250
    assert not any(is_sampled(name, 0) for name in ids)
    assert all(is_sampled(name, 1) for name in ids)
    with pytest.raises(ValueError, match="rate is 2"):
        faithfulness([], lambda: None, "judge", rate=2)


def test_without_a_sample_ragas_is_not_imported(project_root):
    code = (
        "import sys, rag_eval.measures.ragas_bridge as bridge\n"
        "bridge.single_turn_samples([bridge.Sample('q', 'Why?', 'So.', ('So it is.',))])\n"
        "bridge.faithfulness([bridge.Sample('q', 'Why?', 'So.', ('So it is.',))], None, 'm', rate=0)\n"
        "print(sorted({'ragas', 'openai', 'instructor', 'langchain_core'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=project_root, timeout=120
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


@pytest.fixture(scope="module")
def ragas():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ragas.dataset_schema
        import ragas.metrics
    return ragas


def test_the_export_is_what_ragas_reads(ragas):
    samples = [
        *SAMPLES,
        Sample(
            "q", "Wo?\n", "Da – „dort“.", CONTEXT, "Dort.", ("Dort ist es.",), ("c1", "c2"), ("c1",)
        ),
    ]
    lines = single_turn_samples(samples).splitlines()
    read = [ragas.dataset_schema.SingleTurnSample(**json.loads(line)) for line in lines]
    assert [item.user_input for item in read] == [sample.user_input for sample in samples]
    assert (read[-1].response, read[-1].reference, read[-1].retrieved_context_ids) == (
        "Da – „dort“.",
        "Dort.",
        ["c1", "c2"],
    )
    assert read[0].reference is None
    assert list(json.loads(lines[-1])) == sorted(json.loads(lines[-1]))


def test_recall_of_chunks_is_that_of_ragas(ragas):
    rng = np.random.default_rng(7)
    n, depth, n_chunks = 60, 10, 25
    rankings = np.array([rng.permutation(n_chunks)[:depth] for _ in range(n)])
    gold = [rng.permutation(n_chunks)[: rng.integers(1, 8)] for _ in range(n)]
    rows = np.repeat(np.arange(n), [len(items) for items in gold])
    qrels = Qrels.from_rows(rows, np.concatenate(gold), np.ones(len(rows), dtype=int), n)
    ours = score_rankings(rankings, qrels, np.arange(n), [f"R@{depth}"])[:, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metric = ragas.metrics.IDBasedContextRecall()
        theirs = [
            asyncio.run(
                metric.single_turn_ascore(
                    ragas.dataset_schema.SingleTurnSample(
                        retrieved_context_ids=ranked.tolist(), reference_context_ids=items.tolist()
                    )
                )
            )
            for ranked, items in zip(rankings, gold, strict=True)
        ]
    np.testing.assert_allclose(ours, theirs)
    # a span that one chunk carries is that chunk: evidence spans give the same
    indptr = np.concatenate([[0], np.cumsum([len(items) for items in gold])])
    spans = Spans(indptr, np.arange(len(rows) + 1), np.concatenate(gold))
    np.testing.assert_allclose(span_recall(rankings, spans, np.arange(n), [depth])[:, 0], theirs)
