"""Answer measures with intervals, their part of the report, and measures of ragas beside ours."""

import asyncio
import contextlib
import hashlib
import math
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from pydantic import ConfigDict, Field

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray, number
from rag_eval.core.records import (
    NO_SPREAD,
    NOT_SCORED,
    AnswerFigure,
    Because,
    Count,
    Counts,
    Estimate,
    Figure,
    Hash,
    Open,
    Record,
    Text,
    Unit,
)
from rag_eval.core.settings import Endpoint, telemetry_off
from rag_eval.core.types import ABSTAINED
from rag_eval.gold.files import ORIGINAL
from rag_eval.measures.intervals import aggregate
from rag_eval.measures.overlap import SharedGold, mean_interval, ratio_interval
from rag_eval.measures.run_scores import AnyRuns, figure_of

# ---- Answers and citations.


class GapFlag(Record):
    """An answer that leaves the retrieved evidence unused."""

    query_id: str
    reason: str
    answer: str


class RetrievalGap(Record):
    """Answers that leave the retrieved evidence unused."""

    code: Literal["FK019"]
    severity: Literal["warning"]
    n_checked: Count
    n_flagged: Count
    flagged: list[GapFlag]


class Faithfulness(Estimate):
    """Faithfulness by RAGAS on a sample. Without a measurement, only value is set."""

    model_config = ConfigDict(extra="allow")
    ci_low: Annotated[float | None, Because(NO_SPREAD, "value")] = None
    ci_high: Annotated[float | None, Because(NO_SPREAD, "value")] = None


class VerifierPart(Record):
    """The model that scored the answer sentences instead of their words."""

    name: Text = Field(description="its name in the settings")
    model: Text
    identity: Hash = Field(description="of everything that decides its scores")
    failures: Counts = Field(description="sentences without a verdict, by reason")


class AnswersPart(Record):
    """Answers to the questions of the gold set."""

    strategy: str
    modes: list[Literal["deterministic", "llm", "recorded"]]
    model: Annotated[str | None, Because("no question is answered by a model")]
    hash: Hash = Field(description="of every answer, citation and piece of evidence")
    n_questions: Count
    attempts: Counts
    outcomes: Counts
    codes: Counts
    abstain_below: Annotated[
        Unit | None, Because("no question is answered in the deterministic mode")
    ]
    measures: list[AnswerFigure]
    gap: RetrievalGap
    faithfulness: Faithfulness
    usage: Open
    findings: Counts = Field(
        default_factory=dict, description="of postprocessors, as plug-in.kind -> n"
    )
    verifier: VerifierPart | None = None
    verifier_usage: Open | None = None


class RagasFigure(Figure):
    """A measure of ragas beside our measure of the same questions or answers."""

    name: str
    ours: Text = Field(description="our measure")
    ours_value: Annotated[Unit | None, Because(NOT_SCORED)]
    difference: Text


class UnsupportedSentence(Record):
    """A sentence of an answer that its citations do not support."""

    query_id: str
    sentence: str
    citations: list[str] = Field(description="cite tokens; a fabricated citation as it was given")
    score: Unit
    verdict: Literal["partly", "unsupported"]
    passage: str = Field(description="the cited text that supports the sentence best")
    conflict: str = Field(description="what the passage says otherwise; empty for nothing found")
    lacks: str = Field(description="words in a row that the cited text lacks")


class CitationsPart(Record):
    """Citations of the answers, and the first fifty sentences that they do not support."""

    n_citations: Count
    codes: Counts
    measures: list[AnswerFigure]
    n_unsupported: Count
    unsupported: list[UnsupportedSentence]


T = TypeVar("T")


TARGETS = {
    "coverage": ">= 0.70",
    "citation_precision": ">= 0.85",
    "citation_recall": ">= 0.75",
    "citation_match_rate": ">= 0.95",
}
"""Usual targets of the field, shown in the report. Gates use the targets of the gold set."""


def answer_figures(
    rows: pd.DataFrame, codes: Sequence[Sequence[str]], gold: SharedGold
) -> list[AnswerFigure]:
    """Compute every answer measure, and `failure_rate_<code>` for each code by name.

    `rows` has a row for each attempted question: the columns of ANSWER_MEASURES, `answerable`, and
    `known`. The last one tells whether the gold set says if the corpus answers the question; if
    not, neither abstaining nor answering is right or wrong. `codes` are the failure codes of each.

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
    n = len(gold)
    answered, failed, abstained = (
        rows["outcome"].isin(outcomes).to_numpy()
        for outcomes in (["answered"], ["failed", "contract_error_reply"], ABSTAINED)
    )
    answerable, known, n_gold = (
        rows[name].to_numpy() for name in ("answerable", "known", "n_gold")
    )
    has_gold, unanswerable = answerable & (n_gold > 0), known & ~answerable
    n_cited, n_citing = (np.where(failed, 1, rows[name]) for name in ("n_cited", "n_citing"))
    n_valid, n_correct, n_upheld, grounded, supported = (
        np.where(failed, 0, rows[name])
        for name in ("n_valid", "n_correct", "n_upheld", "groundedness", "supported")
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
            interval = mean_interval(kept, gold)
        else:
            units = np.where(scored, wholes, 0)
            counted = np.where(units > 0, units, np.nan)
            interval = ratio_interval(values.astype(np.float64), counted, gold)
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
    judged, due = has_gold | unanswerable, np.maximum(n_cited, 1)
    of_answerable = np.where(answerable, n_correct, 0)
    no_gold = "no answerable question has a gold span"
    no_citation = "no answer to a judged question cites anything"
    no_source = "no answer cites anything"
    no_text = "no answer has a sentence to score"
    no_unanswerable = "no question is unanswerable"
    no_answerable = "no question is answerable"
    nothing = "no question was attempted"
    parts = rows["coverage"], n_correct, rows["n_gold_matched"]
    coverage, n_correct, n_matched = (np.where(answered, part, 0) for part in parts)
    failures = {
        f"failure_rate_{code}": np.array([code in row for row in codes], dtype=bool)
        for code in sorted({code for row in codes for code in row})
    }
    return [
        figure("coverage", coverage, has_gold, no_gold),
        figure("citation_precision", of_answerable, judged, no_citation, n_cited),
        figure("citation_recall", n_matched, has_gold, no_gold, n_gold),
        figure("citation_match_rate", n_correct, has_gold, no_gold, due),
        figure("citation_validity_rate", n_valid, everything, no_source, n_cited),
        figure("citation_support", n_upheld, everything, no_source, n_citing),
        figure("groundedness", grounded, has_text, no_text),
        figure("supported_share", supported, has_text, no_text),
        figure("abstention_rate", abstained, unanswerable, no_unanswerable),
        figure("answered_anyway", answered, unanswerable, no_unanswerable),
        figure("refused_answerable", abstained, known & answerable, no_answerable),
        figure("failure_rate", failed, everything, nothing),
        *(figure(name, values, everything, nothing) for name, values in failures.items()),
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


K = 10
MAX_SAMPLES = 500
"""Largest number of questions that ragas sees, the first ones of the gold set."""
_BESIDE = {
    "id_based_context_recall": (
        "R@10",
        f"recall_at_{K}",
        "none: both count the distinct documents of the first ten",
    ),
    "id_based_context_precision": (
        "P@10",
        f"precision_at_{K}",
        "ragas divides by the number of retrieved documents, P@10 by ten",
    ),
}
"""Measure of ragas -> label and column of ours, and why they differ."""
NO_DOCUMENT = "no question has a relevant document"


def measure_contexts(runs: AnyRuns, per_query: pd.DataFrame) -> list[RagasFigure]:
    """Measure the first ten documents of each question as it was first put, under one seed."""
    name, gold = runs.config.primary_strategy, runs.gold_variants
    seed = runs.first_seed(name)
    relevant = gold.qrels_document[gold.qrels_document["gain"] > 0]
    wanted = relevant.groupby("query_id")["item_id"].agg(list)
    variants = gold.variants.reset_index(drop=True)
    first = variants[
        (variants["paraphrase_id"] == ORIGINAL) & variants["query_id"].isin(wanted.index)
    ].head(MAX_SAMPLES)
    documents = runs.units(name)["doc_id"].to_numpy(dtype=object)
    rows = runs.rows(name)[seed]
    found = [
        list(dict.fromkeys(documents[[row for row in rows[at] if row >= 0]]))[:K]
        for at in first.index
    ]
    values = score_contexts(found, wanted[first["query_id"]].tolist())
    own = per_query[
        (per_query["strategy"] == name)
        & (per_query["level"] == "document")
        & (per_query["paraphrase_id"] == ORIGINAL)
        & (per_query["seed"] == seed)
    ].set_index("query_id")
    shared = runs.gold.named_gold.of(first["query_id"].tolist())
    figures = []
    for at, (name, (ours, column, difference)) in enumerate(_BESIDE.items()):
        mean = own[column].reindex(first["query_id"]).mean() if len(first) else np.nan
        record = aggregate([name], values[:, [at]], shared)[0]
        figures.append(
            RagasFigure(
                **dict(figure_of(record, None if len(first) else NO_DOCUMENT)),
                name=name,
                ours=ours,
                ours_value=number(float(mean)),
                difference=difference,
            )
        )
    return figures
