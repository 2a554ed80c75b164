"""Compute answer measures with clustered intervals, and faithfulness as ragas judges it."""

import asyncio
import dataclasses
import hashlib
import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from pydantic import JsonValue

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray, count_within
from rag_eval.core.report import AnswerFigure, Faithfulness, number
from rag_eval.core.types import ABSTAINED, AnswerOutcome
from rag_eval.measures.intervals import RESAMPLES, Interval, clustered_interval

_FAILED: frozenset[AnswerOutcome] = frozenset({"failed", "contract_error_reply"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerResults:
    """Results of all attempted questions, one row for each question, [n] each."""

    outcome: Sequence[AnswerOutcome]
    codes: Sequence[Sequence[str]]
    """Failure codes of each question, without repetition; empty without a failure."""
    answerable: BoolArray
    known: BoolArray
    """Whether the gold set says if the corpus answers the question.

    If unknown, neither abstaining nor answering is right or wrong.
    """
    group: IntArray
    n_cited: IntArray
    n_valid: IntArray
    """Number of citations with the code `ok`."""
    n_correct: IntArray
    """Number of citations with the code `ok` that overlap a gold span."""
    n_gold: IntArray
    n_matched: IntArray
    """Number of gold spans that a correct citation matches."""
    coverage: FloatArray
    """Cited share of the tokens of the gold spans; NaN without a gold span."""
    groundedness: FloatArray
    """Groundedness of the answer's text; NaN without text."""
    supported: FloatArray
    """Share of the answer's supported sentences; NaN without text."""


TARGETS = {
    "coverage": ">= 0.70",
    "citation_precision": ">= 0.85",
    "citation_recall": ">= 0.75",
    "citation_match_rate": ">= 0.95",
}
"""Usual targets of the field, shown in the report. Gates use the targets of the gold set."""


def ratio_interval(
    parts: IntArray, wholes: IntArray, groups: IntArray, seed: int, resamples: int = RESAMPLES
) -> Interval:
    """Divide sums over questions, sum(part) / sum(whole), with a 95 % interval over groups.

    The ratio is the mean of the units (citations, spans) as ones and zeros. So its interval is
    `clustered_interval` of the units with the groups of their questions: a group of many units
    counts as one observation. `parts` is [n] or [n, m].
    """
    owner = np.repeat(np.arange(len(wholes)), wholes)
    units = (count_within(wholes) < parts[owner].T).T.astype(np.float64)
    return clustered_interval(units, groups[owner], seed, resamples)


def answer_figures(
    results: AnswerResults, seed: int, resamples: int = RESAMPLES
) -> list[AnswerFigure]:
    """Compute every answer measure, and `failure_rate_<code>` for each code by name.

    Answerable questions with gold spans are the base of `coverage` (mean), `citation_recall`
    (matched / gold) and `citation_match_rate` (correct / due); an unanswered question counts 0
    in these three measures. `due` counts the citations of an answer, and 1 for an answer without
    citations. `citation_precision` (correct / cited) includes unanswerable questions, whose
    citations are wrong. `citation_validity_rate` is valid / cited over all questions.

    A failed answer is a miss in every rate. It counts as one citation that is neither valid nor
    correct, and as groundedness 0. The citations of its rejected reply are ignored.
    """
    n, groups = len(results.group), results.group
    answered = np.array([outcome == "answered" for outcome in results.outcome], dtype=bool)
    failed = np.array([outcome in _FAILED for outcome in results.outcome], dtype=bool)
    abstained = np.array([outcome in ABSTAINED for outcome in results.outcome], dtype=bool)
    gold = results.answerable & (results.n_gold > 0)
    unanswerable = results.known & ~results.answerable
    n_cited = np.where(failed, 1, results.n_cited)
    n_valid, n_correct = (
        np.where(failed, 0, part) for part in (results.n_valid, results.n_correct)
    )
    everything = np.ones(n, dtype=bool)

    def figure(
        name: str, interval: Interval, units: IntArray | BoolArray, reason: str
    ) -> AnswerFigure:
        value, low, high = (number(float(part[0])) for part in interval)
        scored = units > 0
        n_scored = int(scored.sum())
        return AnswerFigure(
            name=name,
            value=value,
            ci_low=low,
            ci_high=high,
            n_attempted=n,
            n_scored=n_scored,
            n_failed=int((scored & failed).sum()),
            n_ineligible=n - n_scored,
            n_units=int(units.sum()),
            n_groups=len(np.unique(groups[scored])),
            why={} if n_scored else {"value": reason},
            **({"target": TARGETS[name]} if name in TARGETS else {}),
        )

    def mean(
        name: str, values: FloatArray | BoolArray, scored: BoolArray, reason: str
    ) -> AnswerFigure:
        kept = np.where(scored, values.astype(np.float64), np.nan)
        return figure(
            name, clustered_interval(kept, groups, seed, resamples), ~np.isnan(kept), reason
        )

    def ratio(
        name: str, parts: IntArray, wholes: IntArray, scored: BoolArray, reason: str
    ) -> AnswerFigure:
        units = np.where(scored, wholes, 0)
        interval = ratio_interval(np.where(scored, parts, 0), units, groups, seed, resamples)
        return figure(name, interval, units, reason)

    no_gold = "no answerable question has a gold span"
    no_text = "no answer has a sentence to score"
    no_unanswerable = "no question is unanswerable"
    nothing = "no question was attempted"
    found_text = answered | failed
    due = np.maximum(n_cited, 1)
    return [
        mean("coverage", np.where(answered, results.coverage, 0.0), gold, no_gold),
        ratio(
            "citation_precision",
            np.where(results.answerable, n_correct, 0),
            n_cited,
            gold | unanswerable,
            "no answer to a judged question cites anything",
        ),
        ratio(
            "citation_recall",
            np.where(answered, results.n_matched, 0),
            results.n_gold,
            gold,
            no_gold,
        ),
        ratio("citation_match_rate", np.where(answered, n_correct, 0), due, gold, no_gold),
        ratio("citation_validity_rate", n_valid, n_cited, everything, "no answer cites anything"),
        mean("groundedness", np.where(failed, 0.0, results.groundedness), found_text, no_text),
        mean("supported_share", np.where(failed, 0.0, results.supported), found_text, no_text),
        mean("abstention_rate", abstained, unanswerable, no_unanswerable),
        mean("answered_anyway", answered, unanswerable, no_unanswerable),
        mean(
            "refused_answerable",
            abstained,
            results.known & results.answerable,
            "no question is answerable",
        ),
        mean("failure_rate", failed, everything, nothing),
        *(
            mean(
                f"failure_rate_{code}",
                np.array([code in row for row in results.codes], dtype=bool),
                everything,
                nothing,
            )
            for code in sorted({code for row in results.codes for code in row})
        ),
    ]


# ---- Faithfulness with ragas. Only this file imports ragas, and only on demand

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
