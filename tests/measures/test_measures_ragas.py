"""The bridge to ragas: real ragas against a local server that plays the judge."""

import asyncio
import functools
import subprocess
import sys

import numpy as np
import pytest
from fake_llm import FakeJudge

from rag_eval.core.settings import Endpoint
from rag_eval.measures.answers import (
    Sample,
    _is_sampled,
    _judge,
    _score_contexts,
    measure_faithfulness,
)
from rag_eval.measures.overlap import SharedGold

CONTEXT = ("The Eiffel Tower stands in Paris. It was completed in 1889.",)
TOWER, ELEPHANTS = "The Eiffel Tower stands in Paris.", "Elephants never forget anything."
SAMPLES = [
    Sample(name, "Where is it?", answer, CONTEXT)
    for name, answer in (("all", TOWER), ("half", f"{TOWER} {ELEPHANTS}"), ("none", ELEPHANTS))
]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


def models(judge, **options):
    import openai

    options = {"base_url": judge.base_url, "model": "judge", "timeout_s": 10, **options}
    client = functools.partial(
        openai.AsyncOpenAI, base_url=judge.base_url, api_key="fake", max_retries=1
    )
    return client, Endpoint(**options)


def ask(judge, samples=SAMPLES, **options):
    client, endpoint = models(judge, **options)
    verdicts = _judge(samples, client, endpoint, 1.0)
    return [value for _, value, _ in verdicts], [failure for _, _, failure in verdicts]


def figure(judge, samples=SAMPLES):
    client, endpoint = models(judge)
    gold = SharedGold.of_groups(np.arange(len(samples)))
    return measure_faithfulness(samples, gold, client, ("local", endpoint), 1.0)


def test_contexts_are_scored_by_their_ids_without_a_model():
    scores = _score_contexts([["a", "b"], ["a"], []], [["a"], ["b", "a"], ["c"]])
    assert scores[:, 0].tolist() == [1.0, 0.5, 0.0]
    assert scores[:2, 1].tolist() == [0.5, 1.0]
    assert np.isnan(scores[2, 1])  # nothing was retrieved


def test_a_good_judge_is_believed():
    with FakeJudge() as judge:
        assert ask(judge) == ([1.0, 0.5, 0.0], ["", "", ""])
        assert len(judge.requests) == 6
        for request in judge.requests:
            assert request["response_format"]["type"] == "json_object"
            assert request["model"] == "judge"
        record = figure(judge)
    assert (record.value, record.why) == (0.5, {})
    extra = record.model_extra
    assert (extra["n_scored"], extra["n_failed"], extra["n_effective"]) == (3, 0, pytest.approx(3))


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
        record = figure(judge, SAMPLES[:2])
    assert record.value is None
    extra = record.model_extra
    assert (extra["n_attempted"], extra["n_scored"], extra["n_failed"]) == (2, 0, 2)
    assert record.why["value"] == f"every call of the judge failed: {failure} 2"


def test_a_busy_moment_is_waited_out():
    with FakeJudge("busy_once") as judge:
        assert ask(judge, SAMPLES[:1])[0] == [1.0]
        assert len(judge.requests) == 3


def test_a_slow_judge_times_out():
    with FakeJudge("slow") as judge:
        assert ask(judge, SAMPLES[:1], timeout_s=0.1)[1] == ["timeout"]


def test_no_more_are_asked_at_once_than_allowed_and_a_running_loop_does_not_matter():
    async def inside() -> list[float]:
        return ask(judge, SAMPLES * 3, concurrency=1)[0]

    with FakeJudge() as judge:
        assert asyncio.run(inside()) == [1.0, 0.5, 0.0] * 3
        assert judge.most_at_once == 1


def test_what_cannot_be_judged_is_not_asked():
    rows = [("Where?", "", CONTEXT), ("Where?", "There.", ()), ("Where?", " ", CONTEXT)]
    rows.append((" ", "There.", CONTEXT))
    with FakeJudge() as judge:
        record = figure(judge, [Sample(str(number), *row) for number, row in enumerate(rows)])
        assert not judge.requests
    assert record.why["value"] == "no answer was in the sample"


def test_the_sample_is_the_same_every_time_and_grows_with_the_rate():
    ids = [f"q{number}" for number in range(2000)]
    small, large = ({name for name in ids if _is_sampled(name, rate)} for rate in (0.1, 0.5))
    assert small < large
    assert 150 < len(small) < 250
    assert not any(_is_sampled(name, 0) for name in ids)
    assert all(_is_sampled(name, 1) for name in ids)


def test_without_a_sample_ragas_is_not_imported(project_root):
    code = (
        "import sys, rag_eval.measures.answers as bridge\n"
        "bridge._judge([bridge.Sample('q', 'Why?', 'So.', ('So it is.',))], None, None, 0)\n"
        "print(sorted({'ragas', 'openai', 'instructor', 'langchain_core'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=project_root, timeout=120
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
