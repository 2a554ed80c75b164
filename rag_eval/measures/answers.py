"""Answer measures with intervals, their part of the report, and measures of ragas beside ours."""

import asyncio
import contextlib
import dataclasses
import hashlib
import math
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

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
from rag_eval.measures.run_scores import RankedRuns, figure_of

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


CITATION_MEASURES: Final = frozenset(
    "coverage citation_precision citation_recall citation_match_rate citation_validity_rate "
    "citation_support".split()
)


@dataclasses.dataclass(frozen=True)
class AnswerMeasureFacts:
    """Measures of answers and citations; `verifier` is None where words alone give support."""

    measures: list[AnswerFigure]
    gap: RetrievalGap
    outcomes: dict[str, int]
    codes: dict[str, int]
    faithfulness: Faithfulness
    n_unsupported: int
    unsupported: list[UnsupportedSentence]
    verifier: VerifierPart | None = None

    def as_report(self) -> dict[str, dict[str, object]]:
        """Return the measures for the parts `answers` and `citations` of the report."""
        of_answers, of_citations = (
            [figure for figure in self.measures if (figure.name in CITATION_MEASURES) == is_cited]
            for is_cited in (False, True)
        )
        part = {name: getattr(self, name) for name in ("outcomes", "codes", "gap", "faithfulness")}
        if self.verifier is not None:
            part["verifier"] = self.verifier
        cited = {"unsupported": self.unsupported, "n_unsupported": self.n_unsupported}
        return {
            "answers": {"measures": of_answers, **part},
            "citations": {"measures": of_citations, **cited},
        }


T = TypeVar("T")
Numbers = FloatArray | IntArray | BoolArray
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

    `rows` has a row for each attempted question: the counts and shares of its answer, `answerable`,
    and `known`. The last one tells whether the gold set says if the corpus answers the question; if
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
    outcome = rows["outcome"]
    answered, abstained = (outcome == "answered").to_numpy(), outcome.isin(ABSTAINED).to_numpy()
    failed = outcome.isin(["failed", "contract_error_reply"]).to_numpy()
    answerable, known, n_gold = (
        rows[name].to_numpy() for name in ("answerable", "known", "n_gold")
    )
    has_gold, unanswerable = answerable & (n_gold > 0), known & ~answerable

    def of_answered(name: str) -> Numbers:
        return np.where(answered, rows[name], 0)

    def unless_failed(name: str, value: int = 0) -> Numbers:
        return np.where(failed, value, rows[name])

    def figure(
        name: str,
        values: Numbers,
        scored: BoolArray,
        reason: str,
        wholes: Numbers | None = None,
    ) -> AnswerFigure:
        """Average the scored values, or divide their sum by the sum of `wholes`."""
        if wholes is None:
            means = np.where(scored, values.astype(np.float64), np.nan)
            units: Numbers = ~np.isnan(means)
            interval = mean_interval(means, gold)
        else:
            units = np.where(scored, wholes, 0)
            counted = np.where(units > 0, units, np.nan)
            interval = ratio_interval(values.astype(np.float64), counted, gold)
        value, low, high, n_effective = (number(float(part[0])) for part in interval)
        n_scored = int((units > 0).sum())
        return AnswerFigure(
            name=name,
            value=value,
            ci_low=low,
            ci_high=high,
            n_attempted=n,
            n_scored=n_scored,
            n_failed=int(((units > 0) & failed).sum()),
            n_ineligible=n - n_scored,
            n_units=int(units.sum()),
            n_effective=n_effective,
            why={} if n_scored else {"value": reason},
            **({"target": TARGETS[name]} if name in TARGETS else {}),
        )

    everything, has_text = np.ones(n, dtype=bool), answered | failed
    n_cited, grounded = unless_failed("n_cited", 1), unless_failed("groundedness")
    correct, coverage = of_answered("n_correct"), of_answered("coverage")
    no_gold = "no answerable question has a gold span"
    no_citation = "no answer to a judged question cites anything"
    no_source = "no answer cites anything"
    no_text = "no answer has a sentence to score"
    no_unanswerable = "no question is unanswerable"
    nothing = "no question was attempted"
    failures = {code: np.array([code in row for row in codes]) for row in codes for code in row}
    return [
        figure("coverage", coverage, has_gold, no_gold),
        figure(
            "citation_precision",
            np.where(answerable, unless_failed("n_correct"), 0),
            has_gold | unanswerable,
            no_citation,
            n_cited,
        ),
        figure("citation_recall", of_answered("n_gold_matched"), has_gold, no_gold, n_gold),
        figure("citation_match_rate", correct, has_gold, no_gold, np.maximum(n_cited, 1)),
        figure("citation_validity_rate", unless_failed("n_valid"), everything, no_source, n_cited),
        figure(
            "citation_support",
            unless_failed("n_upheld"),
            everything,
            no_source,
            unless_failed("n_citing", 1),
        ),
        figure("groundedness", grounded, has_text, no_text),
        figure("supported_share", unless_failed("supported"), has_text, no_text),
        figure("abstention_rate", abstained, unanswerable, no_unanswerable),
        figure("answered_anyway", answered, unanswerable, no_unanswerable),
        figure("refused_answerable", abstained, known & answerable, "no question is answerable"),
        figure("failure_rate", failed, everything, nothing),
        *(
            figure(f"failure_rate_{code}", failures[code], everything, nothing)
            for code in sorted(failures)
        ),
    ]


# ---- Measures of ragas. Only this file imports ragas, and only on demand

_REQUESTS = 2
"""Requests that ragas sends for a sample: one for the statements, one for their verdicts."""
_FAILURES = {
    "TimeoutError": "timeout",
    "APITimeoutError": "timeout",
    "RateLimitError": "rate_limited",
    "APIStatusError": "refused",
    "APIConnectionError": "connection",
}
"""Failure name by class of an error or of its cause; the first fitting class counts."""


class Sample(NamedTuple):
    """A question for ragas; `response` is empty without an answer."""

    query_id: str
    user_input: str
    response: str
    retrieved_contexts: Sequence[str]


def measure_faithfulness(
    samples: Sequence[Sample],
    gold: SharedGold,
    make_client: Callable[[], Any],
    judge: tuple[str, Endpoint],
    rate: float,
) -> Faithfulness:
    """Average ragas' Faithfulness over a deterministic sample of the questions.

    ragas splits an answer into statements, and asks which statements follow from the contexts. The
    value is their share. Questions without words, answer or contexts are left out. A failure of the
    judge says nothing about the answer, so it counts in `n_failed` and in `n_ineligible`. `judge`
    is the name of the endpoint with the endpoint. `make_client` makes its `openai.AsyncOpenAI`,
    once, in the thread and event loop that use and close it.
    """
    name, endpoint = judge
    value, failures = np.full(len(samples), np.nan), Counter[str]()
    for at, score, failure in _judge(samples, make_client, endpoint, rate):
        value[at] = score
        failures.update([failure] if failure else [])
    n_scored = int((~np.isnan(value)).sum())
    counts = dict(sorted(failures.items()))
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    reason = (
        f"every call of the judge failed: {listed}" if counts else "no answer was in the sample"
    )
    mean, low, high, n_effective = (number(float(p[0])) for p in mean_interval(value, gold))
    return Faithfulness.model_validate(
        {
            "value": mean,
            "ci_low": low,
            "ci_high": high,
            "why": {} if n_scored else {"value": reason},
            "n_attempted": len(value),
            "n_scored": n_scored,
            "n_failed": failures.total(),
            "n_ineligible": len(value) - n_scored,
            "n_effective": n_effective,
            "n_sampled": n_scored + failures.total(),
            "failures": counts,
            "sample_rate": rate,
            "endpoint": name,
            "model": endpoint.model,
        }
    )


def _judge(
    samples: Sequence[Sample], make_client: Callable[[], Any], endpoint: Endpoint, rate: float
) -> list[tuple[int, float, str]]:
    """Return position, value (NaN after a failure) and failure of each judged sample."""
    chosen = [
        at
        for at, sample in enumerate(samples)
        if sample.user_input.strip() and sample.response.strip() and sample.retrieved_contexts
        if _is_sampled(sample.query_id, rate)
    ]
    if not chosen:
        return []
    with _quiet():
        from ragas.llms import llm_factory
        from ragas.metrics.collections import Faithfulness as Metric
    options = {"temperature": endpoint.temperature, "max_tokens": endpoint.max_tokens}

    async def ask_all() -> list[tuple[int, float, str]]:
        slots = asyncio.Semaphore(endpoint.concurrency)
        async with make_client() as client:
            metric = Metric(llm=llm_factory(endpoint.model, client=client, **options))

            async def ask(at: int) -> tuple[int, float, str]:
                async with slots:
                    try:
                        call = metric.ascore(
                            user_input=samples[at].user_input,
                            response=samples[at].response,
                            retrieved_contexts=list(samples[at].retrieved_contexts),
                        )
                        reply = await asyncio.wait_for(call, _REQUESTS * endpoint.timeout_s)
                        score = float(reply.value)
                    except Exception as error:  # noqa: BLE001 - any error fails this sample only
                        return at, math.nan, _failure_name(error)
                is_score = math.isfinite(score) and 0 <= score <= 1
                return (at, score, "") if is_score else (at, math.nan, "nan")

            return await asyncio.gather(*map(ask, chosen))

    return _run_alone(ask_all())


def _is_sampled(query_id: str, rate: float) -> bool:
    """Tell by the hash of its id whether a question is in the sample; a larger rate only adds."""
    return int.from_bytes(hashlib.sha256(query_id.encode()).digest()[:8]) < rate * 2**64


def _failure_name(error: BaseException) -> str:
    """Name a failure without the text of the reply, because the text is untrusted."""
    links = [link for link in (error, error.__cause__, error.__context__) if link is not None]
    classes = {cls.__name__ for link in links for cls in type(link).__mro__}
    return next((name for cls, name in _FAILURES.items() if cls in classes), "invalid_reply")


def _run_alone(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread of its own, because the caller may run an event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Turn telemetry off, and hide that the dependencies of ragas deprecate each other."""
    telemetry_off()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# ---- Measures of ragas on ids of documents, beside ours

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


def measure_contexts(runs: RankedRuns, per_query: pd.DataFrame) -> list[RagasFigure]:
    """Measure the first ten documents of each question as it was first put, under one seed."""
    name, gold = runs.config.primary_strategy, runs.gold_variants
    seed = runs.first_seed(name)
    relevant = gold.qrels_document[gold.qrels_document["gain"] > 0]
    wanted = relevant.groupby("query_id")["item_id"].agg(list)
    variants = gold.variants.reset_index(drop=True)
    is_original = variants["paraphrase_id"] == ORIGINAL
    first = variants[is_original & variants["query_id"].isin(wanted.index)].head(MAX_SAMPLES)
    ids, rows = first["query_id"].tolist(), runs.rows(name)[seed]
    documents = runs.units(name)["doc_id"].to_numpy(dtype=object)
    ranked = [documents[[row for row in rows[at] if row >= 0]] for at in first.index]
    values = _score_contexts([list(dict.fromkeys(row))[:K] for row in ranked], wanted[ids].tolist())
    ours = per_query.query(
        "strategy == @name and level == 'document' and paraphrase_id == @ORIGINAL and seed == @seed"
    ).set_index("query_id")
    records = aggregate(list(_BESIDE), values, runs.gold.named_gold.of(ids))
    return [
        RagasFigure(
            **dict(figure_of(record, None if ids else NO_DOCUMENT)),
            name=record.label,
            ours=label,
            ours_value=number(float(ours[column].reindex(ids).mean())) if ids else None,
            difference=difference,
        )
        for record, (label, column, difference) in zip(records, _BESIDE.values(), strict=True)
    ]


def _score_contexts(
    retrieved: Sequence[Sequence[str]], reference: Sequence[Sequence[str]]
) -> FloatArray:
    """Compute ragas' IDBasedContextRecall and IDBasedContextPrecision from ids, [n, 2]."""
    with _quiet():
        from ragas import SingleTurnSample
        from ragas.metrics import IDBasedContextPrecision, IDBasedContextRecall
    metrics = IDBasedContextRecall(), IDBasedContextPrecision()
    samples = [
        SingleTurnSample(retrieved_context_ids=list(ids), reference_context_ids=list(relevant))
        for ids, relevant in zip(retrieved, reference, strict=True)
    ]

    async def score() -> list[float]:
        return [
            # single_turn_ascore keeps an id for telemetry in the user's home in any case.
            await metric._single_turn_ascore(sample, None)  # noqa: SLF001 - no telemetry id
            for sample in samples
            for metric in metrics
        ]

    return np.array(_run_alone(score()), dtype=np.float64).reshape(-1, len(metrics))
