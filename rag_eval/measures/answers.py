"""Compute answer measures with intervals, and faithfulness as ragas judges it."""

import asyncio
import contextlib
import dataclasses
import hashlib
import math
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.records import AnswerFigure, number
from rag_eval.core.settings import Endpoint, telemetry_off
from rag_eval.core.types import ABSTAINED, AnswerOutcome
from rag_eval.measures.answer_report import Faithfulness
from rag_eval.measures.overlap import SharedGold, mean_interval, ratio_interval

T = TypeVar("T")
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
    gold: SharedGold
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
    n_citing: IntArray
    """Number of sentences that cite something."""
    n_upheld: IntArray
    """Number of sentences that the text they cite supports."""


TARGETS = {
    "coverage": ">= 0.70",
    "citation_precision": ">= 0.85",
    "citation_recall": ">= 0.75",
    "citation_match_rate": ">= 0.95",
}
"""Usual targets of the field, shown in the report. Gates use the targets of the gold set."""


def answer_figures(results: AnswerResults) -> list[AnswerFigure]:
    """Compute every answer measure, and `failure_rate_<code>` for each code by name.

    Answerable questions with gold spans are the base of `coverage` (mean), `citation_recall`
    (matched / gold) and `citation_match_rate` (correct / due); an unanswered question counts 0
    in these three measures. `due` counts the citations of an answer, and 1 for an answer without
    citations. `citation_precision` (correct / cited) includes unanswerable questions, whose
    citations are wrong. `citation_validity_rate` is valid / cited over all questions.
    `citation_support` is the share of the citing sentences that the cited text supports.

    A failed answer is a miss in every rate. It counts as one citation that is neither valid nor
    correct, as one unsupported sentence, and as groundedness 0. The citations of its rejected reply
    are ignored.
    """
    n = len(results.gold)
    answered = np.array([outcome == "answered" for outcome in results.outcome], dtype=bool)
    failed = np.array([outcome in _FAILED for outcome in results.outcome], dtype=bool)
    abstained = np.array([outcome in ABSTAINED for outcome in results.outcome], dtype=bool)
    gold = results.answerable & (results.n_gold > 0)
    unanswerable = results.known & ~results.answerable
    n_cited = np.where(failed, 1, results.n_cited)
    n_citing = np.where(failed, 1, results.n_citing)
    n_valid, n_correct, n_upheld = (
        np.where(failed, 0, part) for part in (results.n_valid, results.n_correct, results.n_upheld)
    )

    def figure(
        name: str,
        values: FloatArray | IntArray | BoolArray,
        scored: BoolArray,
        reason: str,
        wholes: IntArray | None = None,
    ) -> AnswerFigure:
        """Average the scored values, or divide their sum by the sum of `wholes`."""
        if wholes is None:
            kept = np.where(scored, values.astype(np.float64), np.nan)
            units: IntArray = (~np.isnan(kept)).astype(np.int64)
            interval = mean_interval(kept, results.gold)
        else:
            units = np.where(scored, wholes, 0)
            counted = np.where(units > 0, units, np.nan)
            interval = ratio_interval(values.astype(np.float64), counted, results.gold)
        value, low, high, n_effective = (number(float(part[0])) for part in interval)
        is_counted = units > 0
        n_scored = int(is_counted.sum())
        return AnswerFigure(
            name=name,
            value=value,
            ci_low=low,
            ci_high=high,
            n_attempted=n,
            n_scored=n_scored,
            n_failed=int((is_counted & failed).sum()),
            n_ineligible=n - n_scored,
            n_units=int(units.sum()),
            n_effective=n_effective,
            why={} if n_scored else {"value": reason},
            **({"target": TARGETS[name]} if name in TARGETS else {}),
        )

    everything, has_text = np.ones(n, dtype=bool), answered | failed
    judged, due = gold | unanswerable, np.maximum(n_cited, 1)
    of_answerable = np.where(results.answerable, n_correct, 0)
    no_gold = "no answerable question has a gold span"
    no_citation = "no answer to a judged question cites anything"
    no_source = "no answer cites anything"
    no_text = "no answer has a sentence to score"
    no_unanswerable = "no question is unanswerable"
    no_answerable = "no question is answerable"
    nothing = "no question was attempted"
    n_correct, n_matched = (np.where(answered, part, 0) for part in (n_correct, results.n_matched))
    return [
        figure("coverage", np.where(answered, results.coverage, 0.0), gold, no_gold),
        figure("citation_precision", of_answerable, judged, no_citation, n_cited),
        figure("citation_recall", n_matched, gold, no_gold, results.n_gold),
        figure("citation_match_rate", n_correct, gold, no_gold, due),
        figure("citation_validity_rate", n_valid, everything, no_source, n_cited),
        figure("citation_support", n_upheld, everything, no_source, n_citing),
        figure("groundedness", np.where(failed, 0.0, results.groundedness), has_text, no_text),
        figure("supported_share", np.where(failed, 0.0, results.supported), has_text, no_text),
        figure("abstention_rate", abstained, unanswerable, no_unanswerable),
        figure("answered_anyway", answered, unanswerable, no_unanswerable),
        figure("refused_answerable", abstained, results.known & results.answerable, no_answerable),
        figure("failure_rate", failed, everything, nothing),
        *(
            figure(
                f"failure_rate_{code}",
                np.array([code in row for row in results.codes], dtype=bool),
                everything,
                nothing,
            )
            for code in sorted({code for row in results.codes for code in row})
        ),
    ]


# ---- Measures of ragas. Only this file imports ragas, and only on demand

_REQUESTS = 2
"""Requests that ragas sends for a sample: one for the statements, one for their verdicts."""


class Sample(NamedTuple):
    """A question for ragas; `response` is empty without an answer."""

    query_id: str
    user_input: str
    response: str
    retrieved_contexts: Sequence[str]


class Judged(NamedTuple):
    """Scores of ragas for every question, [n]."""

    value: FloatArray
    """Faithfulness in [0, 1]; NaN outside the sample, or after a failure of the judge."""
    failure: list[str]
    """Reason why a sampled question has no value: `nan`, `timeout`, `refused`, ...; else empty."""


def _is_sampled(query_id: str, rate: float) -> bool:
    """Tell whether a question is in the sample of this rate, by the hash of its id.

    A larger rate keeps every question of a smaller rate.

    Examples
    --------
    >>> [_is_sampled("q1", rate) for rate in (0.0, 1.0)]
    [False, True]
    """
    return int.from_bytes(hashlib.sha256(query_id.encode()).digest()[:8]) < rate * 2**64


def judge_faithfulness(
    samples: Sequence[Sample], make_client: Callable[[], Any], endpoint: Endpoint, rate: float
) -> Judged:
    """Ask ragas' Faithfulness about a deterministic sample of the questions.

    ragas splits an answer into statements, and asks which statements follow from the contexts. The
    value is their share. ragas gives NaN without a statement or verdict, which counts as a failure.
    Questions without words, answer or contexts are left out. `make_client` makes the
    `openai.AsyncOpenAI` of the endpoint, once, in the thread and event loop that use and close it.
    """
    value, failure = np.full(len(samples), np.nan), [""] * len(samples)
    chosen = [
        at
        for at, sample in enumerate(samples)
        if sample.user_input.strip() and sample.response.strip() and sample.retrieved_contexts
        if _is_sampled(sample.query_id, rate)
    ]
    if chosen:
        metric = _import_ragas(endpoint)
        asked = _ask_all([samples[at] for at in chosen], make_client, metric, endpoint)
        for at, (score, reason) in zip(chosen, _run_alone(asked), strict=True):
            value[at], failure[at] = score, reason
    return Judged(value, failure)


def _run_alone(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread of its own, because the caller may run an event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def score_contexts(
    retrieved: Sequence[Sequence[str]], reference: Sequence[Sequence[str]]
) -> FloatArray:
    """Compute ragas' IDBasedContextRecall and IDBasedContextPrecision from ids, [n, 2]."""
    with _quiet():
        from ragas import SingleTurnSample
        from ragas.metrics import IDBasedContextPrecision, IDBasedContextRecall
    metrics = IDBasedContextRecall(), IDBasedContextPrecision()

    async def score() -> list[float]:
        return [
            # single_turn_ascore keeps an id for telemetry in the user's home in any case.
            await metric._single_turn_ascore(sample, None)  # noqa: SLF001 - no telemetry id
            for found, wanted in zip(retrieved, reference, strict=True)
            for sample in [
                SingleTurnSample(
                    retrieved_context_ids=list(found), reference_context_ids=list(wanted)
                )
            ]
            for metric in metrics
        ]

    return np.array(_run_alone(score()), dtype=np.float64).reshape(-1, len(metrics))


def align_quoted_spans(responses: Sequence[str], contexts: Sequence[Sequence[str]]) -> FloatArray:
    """Compute ragas' QuotedSpansAlignment of each answer, [n]; NaN for an answer without quote.

    ragas itself gives 1 to an answer without a quote of three words.
    """
    with _quiet():
        from ragas.metrics.collections import QuotedSpansAlignment
    metric = QuotedSpansAlignment()

    async def score() -> list[float]:
        found = [
            await metric.ascore(response=response, retrieved_contexts=list(texts))
            for response, texts in zip(responses, contexts, strict=True)
        ]
        return [math.nan if one.reason.startswith("No quoted") else one.value for one in found]

    return np.array(_run_alone(score()), dtype=np.float64)


def faithfulness_figure(
    judged: Judged, gold: SharedGold, *, rate: float = 1.0, judge: tuple[str, str] = ("", "")
) -> Faithfulness:
    """Average over the questions with a value; count the judge's failures in `n_failed`.

    A failure of the judge says nothing about the answer, so `n_ineligible` counts it too. `judge`
    is the name and the model of the endpoint.
    """
    scored = ~np.isnan(judged.value)
    n_scored = int(scored.sum())
    failures = dict(sorted(Counter(filter(None, judged.failure)).items()))
    listed = ", ".join(f"{name} {count}" for name, count in failures.items())
    reason = (
        f"every call of the judge failed: {listed}" if listed else "no answer was in the sample"
    )
    interval = mean_interval(judged.value, gold)
    value, low, high, n_effective = (number(float(part[0])) for part in interval)
    return Faithfulness.model_validate(
        {
            "value": value,
            "ci_low": low,
            "ci_high": high,
            "why": {} if n_scored else {"value": reason},
            "n_attempted": len(scored),
            "n_scored": n_scored,
            "n_failed": sum(failures.values()),
            "n_ineligible": len(scored) - n_scored,
            "n_effective": n_effective,
            "n_sampled": n_scored + sum(failures.values()),
            "failures": failures,
            "sample_rate": rate,
            "endpoint": judge[0],
            "model": judge[1],
        }
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Turn telemetry off, and hide that the dependencies of ragas deprecate each other."""
    telemetry_off()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _import_ragas(endpoint: Endpoint) -> Callable[[Any], Any]:
    """Import ragas in the caller's thread; return the function that makes the metric."""
    with _quiet():
        from ragas.llms import llm_factory
        from ragas.metrics.collections import Faithfulness as Metric
    options = {"temperature": endpoint.temperature, "max_tokens": endpoint.max_tokens}
    return lambda client: Metric(llm=llm_factory(endpoint.model, client=client, **options))


async def _ask_all(
    samples: list[Sample],
    make_client: Callable[[], Any],
    make_metric: Callable[[Any], Any],
    endpoint: Endpoint,
) -> list[tuple[float, str]]:
    """Return value (NaN after a failure) and failure of each sample."""
    slots = asyncio.Semaphore(endpoint.concurrency)
    async with make_client() as client:
        metric = make_metric(client)

        async def ask(sample: Sample) -> tuple[float, str]:
            async with slots:
                try:
                    call = metric.ascore(
                        user_input=sample.user_input,
                        response=sample.response,
                        retrieved_contexts=list(sample.retrieved_contexts),
                    )
                    found = await asyncio.wait_for(call, _REQUESTS * endpoint.timeout_s)
                    score = float(found.value)
                except Exception as error:  # noqa: BLE001 - any error fails this sample only
                    return math.nan, _failure_name(error)
            is_score = math.isfinite(score) and 0 <= score <= 1
            return (score, "") if is_score else (math.nan, "nan")

        return await asyncio.gather(*map(ask, samples))


_FAILURES = {
    "TimeoutError": "timeout",
    "APITimeoutError": "timeout",
    "RateLimitError": "rate_limited",
    "APIStatusError": "refused",
    "APIConnectionError": "connection",
}
"""Failure name by class of an error or of its cause; the first fitting class counts."""


def _failure_name(error: BaseException) -> str:
    """Name a failure without the text of the reply, because the text is untrusted."""
    links = [link for link in (error, error.__cause__, error.__context__) if link is not None]
    classes = {cls.__name__ for link in links for cls in type(link).__mro__}
    return next((name for cls, name in _FAILURES.items() if cls in classes), "invalid_reply")
