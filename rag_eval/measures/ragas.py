"""Measure faithfulness with ragas. Only this file imports ragas, and only on demand."""

import asyncio
import hashlib
import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from pydantic import JsonValue

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.report import Faithfulness, number
from rag_eval.measures.intervals import RESAMPLES, clustered_interval

_REQUESTS = 2
"""Requests that ragas sends for a sample: one for the statements, one for their verdicts."""

MakeMetric = Callable[[Any], Any]
"""Function that makes the metric of ragas from the client of the endpoint."""


class Sample(NamedTuple):
    """A question for ragas; `response` is None without an answer."""

    query_id: str
    user_input: str
    response: str | None
    retrieved_contexts: Sequence[str]


class Limits(NamedTuple):
    """Options of the calls to the judge."""

    concurrency: int = 4
    """Largest number of samples judged at a time."""
    requests_per_minute: int = 0
    """Largest number of requests per minute; 0 sets no limit."""
    timeout_s: float = 120.0
    """Seconds that one sample may take. The client repeats requests after 429 and 5xx."""


class Judged(NamedTuple):
    """Scores of ragas for every question, [n]."""

    value: FloatArray
    """Faithfulness in [0, 1]; NaN outside the sample, or after a failure of the judge."""
    eligible: BoolArray
    """Whether the question has a text, an answer and retrieved contexts."""
    sampled: BoolArray
    """Whether the question is eligible and in the sample."""
    failure: list[str]
    """Reason why a sampled question has no value: `nan`, `timeout`, `refused`, ...; else empty."""


def is_sampled(query_id: str, rate: float) -> bool:
    """Tell whether a question is in the sample of this rate, by the hash of its id.

    A larger rate keeps every question of a smaller rate.

    Examples
    --------
    >>> [is_sampled("q1", rate) for rate in (0.0, 1.0)]
    [False, True]
    """
    return int.from_bytes(hashlib.sha256(query_id.encode()).digest()[:8]) < rate * 2**64


def judge_faithfulness(
    samples: Sequence[Sample],
    make_client: Callable[[], Any],
    model: str,
    *,
    rate: float = 1.0,
    limits: Limits | None = None,
    options: Mapping[str, float | int] | None = None,
) -> Judged:
    """Ask ragas' Faithfulness about a deterministic sample of the questions.

    ragas splits an answer into statements, and asks which statements follow from the contexts. The
    value is their share. ragas gives NaN without a statement or verdict, which counts as a failure.

    Parameters
    ----------
    samples
        A sample for each question.
    make_client
        Makes the `openai.AsyncOpenAI` of an endpoint, once, in the thread and event loop that use
        and close the client.
    rate
        Share of the questions (`ragas_sample_rate`).
    options
        Further arguments of `ragas.llms.llm_factory`: temperature, max_tokens.
    """
    eligible = np.array(
        [
            bool(
                sample.user_input.strip()
                and (sample.response or "").strip()
                and sample.retrieved_contexts
            )
            for sample in samples
        ],
        dtype=bool,
    )
    drawn = [is_sampled(sample.query_id, rate) for sample in samples]
    sampled = eligible & np.array(drawn, dtype=bool)
    value, failure = np.full(len(samples), np.nan), [""] * len(samples)
    chosen = np.flatnonzero(sampled).tolist()
    if chosen:
        make_metric = _import_ragas(model, options or {})
        asked = _ask_all(
            [samples[at] for at in chosen], make_client, make_metric, limits or Limits()
        )
        # The caller may run an event loop, and a client belongs to one loop. So use a new thread.
        with ThreadPoolExecutor(1) as pool:
            results = pool.submit(asyncio.run, asked).result()
        for at, (score, reason) in zip(chosen, results, strict=True):
            value[at], failure[at] = score, reason
    return Judged(value, eligible, sampled, failure)


NOT_SAMPLED = "no answer was in the sample"


def faithfulness_figure(
    judged: Judged, groups: IntArray, seed: int, resamples: int = RESAMPLES, **about: JsonValue
) -> Faithfulness:
    """Average over the questions with a value; count the judge's failures in `n_failed`.

    A failure of the judge says nothing about the answer, so `n_ineligible` counts it too. `about`
    holds further fields of the report.
    """
    scored = ~np.isnan(judged.value)
    n_scored = int(scored.sum())
    failures = Counter(filter(None, judged.failure))
    listed = ", ".join(f"{name} {count}" for name, count in sorted(failures.items()))
    reason = (
        f"every call of the judge failed: {listed}" if listed else "no answer was in the sample"
    )
    interval = clustered_interval(judged.value, groups, seed, resamples)
    value, low, high = (number(float(part[0])) for part in interval)
    fields = {
        "n_attempted": len(scored),
        "n_scored": n_scored,
        "n_failed": failures.total(),
        "n_ineligible": len(scored) - n_scored,
        "n_groups": len(np.unique(groups[scored])),
        "n_sampled": int(judged.sampled.sum()),
        "failures": dict(sorted(failures.items())),
    }
    why = {} if n_scored else {"value": reason}
    return Faithfulness.model_validate(
        {"value": value, "ci_low": low, "ci_high": high, "why": why, **fields, **about}
    )


def _import_ragas(model: str, options: Mapping[str, float | int]) -> MakeMetric:
    """Import ragas in the caller's thread; return the function that makes the metric."""
    from rag_eval.core.settings import telemetry_off

    telemetry_off()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dependencies of ragas deprecate each other
        from ragas.llms import llm_factory
        from ragas.metrics.collections import Faithfulness as Metric
    return lambda client: Metric(llm=llm_factory(model, client=client, **options))


async def _ask_all(
    samples: list[Sample],
    make_client: Callable[[], Any],
    make_metric: MakeMetric,
    limits: Limits,
) -> list[tuple[float, str]]:
    slots, pace = asyncio.Semaphore(limits.concurrency), _Pace(limits.requests_per_minute)
    async with make_client() as client:
        metric = make_metric(client)

        async def ask(sample: Sample) -> tuple[float, str]:
            async with slots:
                return await _ask(metric, sample, limits, pace)

        return await asyncio.gather(*map(ask, samples))


async def _ask(metric: Any, sample: Sample, limits: Limits, pace: "_Pace") -> tuple[float, str]:
    """Return the value of one sample (NaN after a failure) and the name of the failure."""
    await pace.wait()
    try:
        call = metric.ascore(
            user_input=sample.user_input,
            response=sample.response,
            retrieved_contexts=list(sample.retrieved_contexts),
        )
        score = float((await asyncio.wait_for(call, limits.timeout_s)).value)
    except Exception as error:  # noqa: BLE001 - whatever the judge raises fails this sample only
        return math.nan, _failure_name(error)
    return (score, "") if math.isfinite(score) and 0 <= score <= 1 else (math.nan, "nan")


_FAILURES = {
    "TimeoutError": "timeout",
    "APITimeoutError": "timeout",
    "RateLimitError": "rate_limited",
    "APIStatusError": "refused",
    "APIConnectionError": "connection",
    "InstructorError": "invalid_reply",
    "InstructorRetryException": "invalid_reply",
    "ValidationError": "invalid_reply",
    "JSONDecodeError": "invalid_reply",
    "IncompleteOutputException": "invalid_reply",
}
"""Failure name by class of an error or of its cause; the first fitting class counts."""


def _failure_name(error: BaseException) -> str:
    """Name a failure without the text of the reply, because the text is untrusted."""
    links = [link for link in (error, error.__cause__, error.__context__) if link is not None]
    classes = {cls.__name__ for link in links for cls in type(link).__mro__}
    fitting = (name for cls, name in _FAILURES.items() if cls in classes)
    return next(fitting, type(error).__name__)


class _Pace:
    """Delays the start of samples to respect the endpoint's limit of requests per minute."""

    def __init__(self, requests_per_minute: int) -> None:
        self._gap = 60 * _REQUESTS / requests_per_minute if requests_per_minute else 0.0
        self._next = 0.0

    async def wait(self) -> None:
        if self._gap:
            now = asyncio.get_running_loop().time()
            start = max(now, self._next)
            self._next = start + self._gap
            await asyncio.sleep(start - now)
