"""Faithfulness through ragas, and the export of samples for ragas. The only file that imports ragas, and only when faithfulness is asked for.

Belongs here: sampling, calling, and what counts as a failure of the judge. Not here: the client of the endpoint (`rag_eval.answers.chat`),
and whether FEATURE_RAGAS_EVAL allows it (the caller).
"""

import asyncio
import hashlib
import json
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.measures.answers import AnswerRecord
from rag_eval.measures.arrays import BoolArray, FloatArray, as_codes
from rag_eval.measures.intervals import RESAMPLES, clustered_interval

OFF = "FEATURE_RAGAS_EVAL is off"
"""Why there is no faithfulness by default."""

_SAMPLE_FIELDS = (
    "user_input",
    "response",
    "reference",
    "retrieved_contexts",
    "reference_contexts",
    "retrieved_context_ids",
    "reference_context_ids",
)
_REQUESTS = 2  # ragas asks twice for a sample: for the statements, and for their verdicts


class Sample(NamedTuple):
    """One answered question for ragas; what is not known is None."""

    query_id: str
    user_input: str
    response: str | None = None
    retrieved_contexts: Sequence[str] | None = None
    reference: str | None = None
    reference_contexts: Sequence[str] | None = None
    retrieved_context_ids: Sequence[str] | None = None
    reference_context_ids: Sequence[str] | None = None


class Limits(NamedTuple):
    """How the judge is called.

    Parameters
    ----------
    concurrency
        Samples judged at a time.
    requests_per_minute
        0: no limit.
    attempts
        Times that a sample is tried, the first included. Retries of a request after 429 and 5xx are the client's own.
    backoff_s
        Wait before the second attempt; doubles each time.
    timeout_s
        For one attempt at one sample.
    """

    concurrency: int = 4
    requests_per_minute: int = 0
    attempts: int = 2
    backoff_s: float = 0.5
    timeout_s: float = 120.0


class Faithfulness(NamedTuple):
    """What ragas said of every question, `[n]`.

    Parameters
    ----------
    value
        In [0, 1]; NaN where the question was not asked about, or the judge failed.
    eligible
        Question, answer and retrieved contexts are there.
    sampled
        Eligible and in the sample.
    failure
        Why there is no value though it was sampled: `nan`, `timeout`, `invalid_reply`, `refused` or the name of the error; else empty.
    """

    value: FloatArray
    eligible: BoolArray
    sampled: BoolArray
    failure: list[str]


def is_sampled(query_id: str, rate: float) -> bool:
    """Whether a question is in the sample of this rate; a larger rate keeps every question of a smaller one.

    Examples
    --------
    >>> [is_sampled("q1", rate) for rate in (0.0, 1.0)]
    [False, True]
    """
    return int.from_bytes(hashlib.sha256(query_id.encode()).digest()[:8]) < rate * 2**64


def single_turn_samples(samples: Iterable[Sample]) -> str:
    """Samples as JSONL of ragas' `SingleTurnSample`, keys sorted, one line each, without importing ragas.

    The query id is left out, because ragas refuses keys that it does not know; lines are in the order of the samples.
    """
    rows = ({name: getattr(sample, name) for name in _SAMPLE_FIELDS} for sample in samples)
    return "".join(
        json.dumps(
            {key: _plain(value) for key, value in row.items() if value is not None},
            ensure_ascii=False,
            sort_keys=True,
        )
        + "\n"
        for row in rows
    )


def _plain(value: str | Sequence[str]) -> str | list[str]:
    return value if isinstance(value, str) else list(value)


def faithfulness(
    samples: Sequence[Sample],
    make_client: Callable[[], Any],
    model: str,
    *,
    rate: float = 1.0,
    limits: Limits | None = None,
    options: Mapping[str, Any] | None = None,
) -> Faithfulness:
    """Ask ragas' Faithfulness about a deterministic sample of the questions.

    Parameters
    ----------
    samples
        One a question.
    make_client
        Makes the `openai.AsyncOpenAI` of any OpenAI-compatible endpoint. Called once, in the thread and event loop that use it, and closed there.
    model
        Name of the model.
    rate
        Share of the questions, by the hash of their ids (`ragas_sample_rate`).
    limits
        How the judge is called.
    options
        More for `ragas.llms.llm_factory`: temperature, max_tokens.

    Returns
    -------
    Faithfulness

    Notes
    -----
    ragas splits an answer into statements and asks which of them follow from the contexts; the value is their share. ragas 0.4 asks in JSON
    mode through instructor, which asks again up to three times when a reply does not fit the schema. It gives NaN when there is no statement
    or no verdict; that is a failure, counted as such, and never 0 or left out in silence.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate is {rate}; accepted: 0 to 1")
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
    sampled = eligible & np.array(
        [is_sampled(sample.query_id, rate) for sample in samples], dtype=bool
    )
    value, failure = np.full(len(samples), np.nan), [""] * len(samples)
    chosen = np.flatnonzero(sampled).tolist()
    if chosen:
        metric_of = _import_ragas()
        # a thread of its own: the caller may be inside an event loop, and a client belongs to one loop
        with ThreadPoolExecutor(1) as pool:
            results = pool.submit(
                asyncio.run,
                _ask_all(
                    [samples[at] for at in chosen],
                    make_client,
                    lambda client: metric_of(client, model, options or {}),
                    limits or Limits(),
                ),
            ).result()
        for at, (score, reason) in zip(chosen, results, strict=True):
            value[at], failure[at] = score, reason
    return Faithfulness(value, eligible, sampled, failure)


def faithfulness_record(
    found: Faithfulness, groups: ArrayLike, seed: int, resamples: int = RESAMPLES
) -> AnswerRecord:
    """Aggregate: mean over the questions that the judge gave a value; its failures are counted in `n_failed`.

    A failure of the judge says nothing about the answer, so it is not a 0; `n_ineligible` holds it with what was not sampled.
    """
    group = as_codes(groups, "groups")
    scored = ~np.isnan(found.value)
    interval = clustered_interval(found.value, group, seed, resamples)
    n, n_scored, n_failed = len(group), int(scored.sum()), sum(map(bool, found.failure))
    why = (
        ""
        if n_scored
        else (
            "every call of the judge failed: "
            + ", ".join(
                f"{name} {count}"
                for name, count in sorted(Counter(filter(None, found.failure)).items())
            )
            if n_failed
            else "no answer was in the sample"
        )
    )
    value, low, high = (float(part[0]) for part in interval)
    return AnswerRecord(
        "faithfulness",
        value,
        low,
        high,
        n,
        n_scored,
        n_failed,
        n - n_scored,
        n_scored,
        len(np.unique(group[scored])),
        why,
    )


def _import_ragas() -> Callable[[Any, str, Mapping[str, Any]], Any]:
    """What makes the metric of a client; imported in the caller's thread."""
    from rag_eval.settings import telemetry_off

    telemetry_off()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependencies deprecate each other
        from ragas.llms import llm_factory
        from ragas.metrics.collections import Faithfulness as Metric
    return lambda client, model, options: Metric(llm=llm_factory(model, client=client, **options))


async def _ask_all(
    samples: list[Sample],
    make_client: Callable[[], Any],
    metric_of: Callable[[Any], Any],
    limits: Limits,
) -> list[tuple[float, str]]:
    slots, pace = asyncio.Semaphore(limits.concurrency), _Pace(limits.requests_per_minute)
    async with make_client() as client:
        metric = metric_of(client)

        async def ask(sample: Sample) -> tuple[float, str]:
            async with slots:
                return await _ask(metric, sample, limits, pace)

        return await asyncio.gather(*map(ask, samples))


async def _ask(metric: Any, sample: Sample, limits: Limits, pace: "_Pace") -> tuple[float, str]:
    """Value and failure of one sample."""
    failure = ""
    for attempt in range(limits.attempts):
        if attempt:
            await asyncio.sleep(limits.backoff_s * 2 ** (attempt - 1))
        await pace.wait()
        try:
            call = metric.ascore(
                user_input=sample.user_input,
                response=sample.response,
                retrieved_contexts=list(sample.retrieved_contexts or ()),
            )
            score = float((await asyncio.wait_for(call, limits.timeout_s)).value)
        except Exception as error:  # noqa: BLE001 - whatever the judge or its libraries raise is this sample's failure, not the run's
            failure = _name(error)
            continue
        if math.isfinite(score) and 0 <= score <= 1:
            return score, ""
        failure = "nan"
    return math.nan, failure


def _name(error: BaseException) -> str:
    """Short name of a failure; no text of the reply, which is untrusted."""
    kinds = {
        cls.__name__
        for link in (error, error.__cause__, error.__context__)
        if link is not None
        for cls in type(link).__mro__
    }
    if kinds & {"TimeoutError", "APITimeoutError"}:
        return "timeout"
    if kinds & {"RateLimitError"}:
        return "rate_limited"
    if kinds & {"APIStatusError"}:
        return "refused"
    if kinds & {"APIConnectionError"}:
        return "connection"
    if kinds & {
        "InstructorError",
        "InstructorRetryException",
        "ValidationError",
        "JSONDecodeError",
        "IncompleteOutputException",
    }:
        return "invalid_reply"
    return type(error).__name__


class _Pace:
    """Starts samples no faster than the endpoint's limit of requests allows."""

    def __init__(self, requests_per_minute: int) -> None:
        self._gap = 60 * _REQUESTS / requests_per_minute if requests_per_minute else 0.0
        self._next = 0.0

    async def wait(self) -> None:
        if self._gap:
            now = asyncio.get_running_loop().time()
            start = max(now, self._next)
            self._next = start + self._gap
            await asyncio.sleep(start - now)
