"""Stages of measures: rankings, stability, answers, and those of ragas."""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from rag_eval.answers.chat import ChatCache, Usage
from rag_eval.answers.scoring import Verifier, judge_faithfulness, open_verifier, score_answers
from rag_eval.core.arrays import FloatArray
from rag_eval.core.frames import ANSWER_MEASURES, DELTA_S, PER_QUERY
from rag_eval.core.records import AnswerFigure, ComparedPair, Measure
from rag_eval.core.settings import Endpoint
from rag_eval.core.types import Level
from rag_eval.measures.answers import (
    Faithfulness,
    RagasFigure,
    RetrievalGap,
    UnsupportedSentence,
    VerifierPart,
    answer_figures,
    measure_contexts,
)
from rag_eval.measures.run_scores import LEVELS, GoldArrays
from rag_eval.measures.stability import StabilityPart, measure_distances, measure_wordings
from rag_eval.measures.strategy_figures import (
    AnnRecall,
    SlicesPart,
    compare_strategies,
    list_scores,
    measure_approximation,
    measure_level,
    measure_slices,
)
from rag_eval.measures.support import SentenceSupport
from rag_eval.pipeline.answer_stages import AnswerSet, CitationSet, answers_of, has_answers
from rag_eval.pipeline.corpus import AdmittedChunks, GoldVariants
from rag_eval.pipeline.open_strategies import open_index
from rag_eval.pipeline.runner import Result, Results, Stage, Work, frame_part, json_part
from rag_eval.pipeline.runs import StrategyRun, score_runs
from rag_eval.reporting.outgoing import name_unsupported, report_gaps
from rag_eval.storage.artifacts import Parts
from rag_eval.storage.hashing import digest
from rag_eval.storage.sql import open_store
from rag_eval.uncertainty.opened_index import stability_embedding


@dataclasses.dataclass(frozen=True)
class StrategyMeasures:
    """Ranking measures of one strategy."""

    name: str
    measures: list[Measure]
    ann_recall: AnnRecall | None


@dataclasses.dataclass(frozen=True)
class RankingFacts:
    """Measures of every strategy and their paired comparisons for the report.

    `level` is the headline level of the gold set.
    """

    level: Level
    strategies: list[StrategyMeasures]
    comparisons: list[ComparedPair]


class RankingMeasures(Result):
    """Ranking measures: PER_QUERY frame, figures, and those of the questions by tag."""

    per_query: pd.DataFrame = frame_part()
    about: RankingFacts = json_part()
    slices: SlicesPart = json_part()

    def report_part(self, _: Work) -> dict[str, object]:
        """Give the measures of the strategies, their paired comparisons, and the slices."""
        strategies = {
            entry.name: {"measures": entry.measures, "ann_recall": entry.ann_recall}
            for entry in self.about.strategies
        }
        return {
            "strategies": strategies,
            "comparisons": self.about.comparisons,
            "slices": self.slices,
        }


@Stage(
    "ranking_measures",
    "measures",
    reads=("k", "level", "depth", "seeds", "uncertainty.k"),
    columns=PER_QUERY,
)
def measure_rankings(
    work: Work,
    *,
    runs: dict[str, StrategyRun],
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
) -> RankingMeasures:
    """Measure and compare the strategies at every level: recall, MRR, nDCG and more."""
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    opened, strategies = open_index(work.evaluation, admitted_chunks), []
    with work.progress.step("Scoring rankings", len(scored.names), "strategies") as advance:
        for name in scored.names:
            measures = [row for level in LEVELS for row in measure_level(scored, name, level)]
            recall = measure_approximation(scored, opened.index, name)
            strategies.append(StrategyMeasures(name, measures, recall))
            advance(1)
    with work.progress.step("Comparing strategies"):
        comparisons = compare_strategies(scored)
    return RankingMeasures(
        per_query=list_scores(scored),
        about=RankingFacts(work.config.level, strategies, comparisons),
        slices=measure_slices(scored),
    )


class StabilityMeasures(Result):
    """Stability: delta_s by strategy, question, wording and seed; lambda_state by question."""

    per_run: pd.DataFrame = frame_part()
    per_query: pd.DataFrame = frame_part()
    about: StabilityPart = json_part()

    def report_part(self, _: Work) -> dict[str, object]:
        """Give the part `stability`."""
        return {"stability": self.about}


@Stage(
    "stability_measures",
    "measures",
    stores=("embeddings",),
    reads=("k", "level", "depth", "seeds", "strategies"),
    columns=DELTA_S,
)
def measure_stability(
    work: Work,
    *,
    runs: dict[str, StrategyRun],
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
) -> StabilityMeasures:
    """Measure whether a question finds the same evidence under every wording."""
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    opened = open_index(work.evaluation, admitted_chunks)
    source = opened.index.source(stability_embedding(work.config))
    figures, parts, lambdas = {}, [], []
    with work.progress.step("Measuring stability", len(scored.names), "strategies") as advance:
        for name in scored.names:
            scores = scored.scores(name)
            distances, per_run = measure_distances(scored, name, source)
            figures[name], states = measure_wordings(scored, name, distances)
            per_query = gold_variants.queries[["query_id"]].assign(lambda_state=states)
            per_query.insert(0, "strategy", name)
            lambdas.append(per_query)
            ids = gold_variants.variants[["query_id", "paraphrase_id"]].iloc[scores.variant]
            part = ids.reset_index(drop=True).assign(seed=scores.seed, delta_s=per_run)
            part.insert(0, "strategy", name)
            parts.append(part)
            advance(1)
    return StabilityMeasures(
        per_run=pd.concat(parts, ignore_index=True),
        per_query=pd.concat(lambdas, ignore_index=True),
        about=StabilityPart(embedding=source.model, strategies=figures),
    )


# ---- Faithfulness by a judging model through ragas, behind FEATURE_RAGAS_EVAL

NO_ANSWERS = "the gold set configures no answers"
RAGAS_OFF = "FEATURE_RAGAS_EVAL is off"


def _find_judge(work: Work) -> tuple[str, Endpoint]:
    """Return name and endpoint of the judge; default: the endpoint of the answers."""
    name = work.settings.ragas_endpoint or answers_of(work.config).endpoint
    return name or "", work.settings.find_endpoint(name, "ragas_endpoint")


def _identify_models(work: Work, **_: object) -> object:
    """Identify the judge of faithfulness, while FEATURE_RAGAS_EVAL is on, and the scorer."""
    verifier = _open_verifier(work)
    identities: list[object] = [None if verifier is None else verifier.identity]
    if work.settings.feature_ragas_eval:
        name, endpoint = _find_judge(work)
        identities += [name, endpoint.base_url, endpoint.model]
    return identities


# ---- A verifier of sentences, where the gold set names one


def _open_verifier(work: Work) -> Verifier | None:
    name = answers_of(work.config).verifier
    if name is None:
        return None
    return open_verifier(name, work.settings, lambda: ChatCache(open_store(work.settings)))


def _verify(
    work: Work, verifier: Verifier, sentences: Sequence[str], evidence: Sequence[str]
) -> FloatArray:
    """Score sentences on their evidence, [n]; NaN where a verdict fails.

    The scores of a model on this machine are stored. A chat endpoint has its stored replies.
    """

    def make() -> Parts:
        before = verifier.failures.copy()
        scores = verifier.score(sentences, evidence)
        return {"scores": scores, "failures": dict(verifier.failures - before)}

    if verifier.usage() is not None:
        return np.asarray(make()["scores"])
    identity = [verifier.identity, digest([list(sentences), list(evidence)])]
    scored = work.keep("verified_sentences", identity, make)
    if scored.reused:
        verifier.failures.update(scored.json("failures"))
    return scored.array("scores")


# ---- Stage `answer_measures`


@dataclasses.dataclass(frozen=True)
class AnswerMeasureFacts:
    """The answer measures in the form of the report."""

    measures: list[AnswerFigure]
    gap: RetrievalGap
    outcomes: dict[str, int]
    codes: dict[str, int]
    faithfulness: Faithfulness
    n_unsupported: int
    unsupported: list[UnsupportedSentence]
    verifier: VerifierPart | None = None


CITATION_MEASURES: Final = (
    "coverage",
    *(
        f"citation_{name}"
        for name in ("precision", "recall", "match_rate", "validity_rate", "support")
    ),
)


class AnswerMeasures(Result):
    """Measures of the answers.

    `per_question` has the counts of citations, coverage, outcome, groundedness, supported share,
    citing sentences, gap and its reason. `unsupported` has the sentences that their citations do
    not support, by query_id.
    """

    per_question: pd.DataFrame = frame_part()
    unsupported: dict[str, list[SentenceSupport]] = json_part()
    about: AnswerMeasureFacts = json_part()
    verifier_usage: Usage | None = json_part(volatile=True, default=None)

    def report_part(self, _: Work) -> dict[str, object]:
        """Give the measures of answers and of citations, and the requests to the verifier."""
        facts, cited = self.about, {"n_unsupported": self.about.n_unsupported}
        of_answers, of_citations = (
            [figure for figure in facts.measures if (figure.name in CITATION_MEASURES) == is_cited]
            for is_cited in (False, True)
        )
        part = {name: getattr(facts, name) for name in ("outcomes", "codes", "gap", "faithfulness")}
        if facts.verifier is not None:
            part["verifier"] = facts.verifier
        if self.verifier_usage is not None:
            part["verifier_usage"] = dataclasses.asdict(self.verifier_usage)
        return {
            "answers": {"measures": of_answers, **part},
            "citations": {"measures": of_citations, "unsupported": facts.unsupported, **cited},
        }


@Stage(
    "answer_measures",
    "measures",
    stores=("chat",),
    reads=(
        *("answers.purpose", "answers.ragas_sample_rate", "answers.verifier", "measures"),
        "settings.feature_ragas_eval",
    ),
    outside=_identify_models,
    configured=has_answers,
    columns=ANSWER_MEASURES,
)
def measure_answers(
    work: Work,
    *,
    answers: AnswerSet,
    citations: CitationSet,
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
) -> AnswerMeasures:
    """Measure citations, groundedness, abstention and cost of the answers, and unused evidence."""
    verifier = _open_verifier(work)
    rows, gold = answers.answers, GoldArrays(gold_variants, admitted_chunks.names)
    faithfulness = Faithfulness(value=None, why={"value": RAGAS_OFF})
    if work.settings.feature_ragas_eval:
        judge, rate = _find_judge(work), answers_of(work.config).ragas_sample_rate
        questions = dict(zip(gold.queries["query_id"], gold.queries["text"], strict=True))
        with work.progress.step(f"Judging faithfulness with {judge[1].model}"):
            faithfulness = judge_faithfulness(rows, questions, gold.shared, judge, rate)
    with work.progress.step("Measuring answers", len(rows), "answers") as advance:
        score = None if verifier is None else functools.partial(_verify, work, verifier)
        texts = admitted_chunks.artifact.frame("chunks", ["text"])["text"].tolist()
        scored = score_answers(
            rows,
            citations.per_question,
            texts,
            purpose=answers_of(work.config).purpose,
            score=score,
            bar=work.config.measures.support_bar,
        )
        advance(len(rows))
    known = gold_variants.answerable_known | (scored.per_question["n_gold"].to_numpy() > 0)
    answerable = gold.queries["answerable"].to_numpy(dtype=bool)
    judged = scored.per_question.assign(answerable=answerable, known=known)
    codes = [tuple(dict.fromkeys(answer.codes)) for answer in rows]
    measured = AnswerMeasures(
        per_question=scored.per_question,
        unsupported=scored.unsupported,
        about=AnswerMeasureFacts(
            measures=answer_figures(judged, codes, gold.shared),
            gap=report_gaps(rows, scored.gaps),
            outcomes=dict(Counter(answer.outcome for answer in rows)),
            codes=dict(Counter(itertools.chain.from_iterable(codes))),
            faithfulness=faithfulness,
            n_unsupported=sum(map(len, scored.unsupported.values())),
            unsupported=name_unsupported(rows, scored.unsupported),
            verifier=None
            if verifier is None
            else VerifierPart(
                name=verifier.name,
                model=verifier.model,
                identity=verifier.identity,
                failures=dict(verifier.failures),
            ),
        ),
        verifier_usage=None if verifier is None else verifier.usage(),
    )
    # after a failure of a model that is asked, the next run asks again
    failures = (faithfulness.model_extra or {}).get("failures")
    if verifier is not None and verifier.usage() is not None:
        failures = failures or verifier.failures
    measured.is_lasting = not failures
    return measured


@dataclasses.dataclass(frozen=True)
class Answered:
    """The results of the answer stages."""

    answers: AnswerSet
    citations: CitationSet
    measures: AnswerMeasures

    @property
    def ids(self) -> list[str]:
        """Identities of the three results."""
        return [self.answers.id, self.citations.id, self.measures.id]


def find_answered(results: Results) -> Answered | None:
    """Find the results of the answer stages; None without configured answers."""
    answers, citations = results.find(AnswerSet), results.find(CitationSet)
    measures = results.find(AnswerMeasures)
    if answers is None or citations is None or measures is None:
        return None
    return Answered(answers, citations, measures)


class RagasMeasures(Result):
    """Measures of ragas for the primary strategy, each beside our measure on equal inputs."""

    shown = ("figures",)
    figures: list[RagasFigure] = json_part()

    def report_part(self, _: Work) -> dict[str, object]:
        """Give the part `ragas`."""
        return {"ragas": self.figures}


@Stage(
    "ragas_measures",
    "measures",
    reads=("primary_strategy",),
    configured=lambda config: config.ragas,
)
def measure_with_ragas(
    work: Work,
    *,
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
    ranking_measures: RankingMeasures,
    runs: dict[str, StrategyRun],
) -> RagasMeasures:
    """Let ragas compute its measures that need no model, beside ours on equal inputs."""
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    with work.progress.step("Measuring with ragas"):
        figures = measure_contexts(scored, ranking_measures.per_query)
    return RagasMeasures(figures=figures)
