"""Stages of the answers: the answers, the verdicts on their citations, and their measures."""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
from pydantic_core import to_jsonable_python

from rag_eval.answers.answering import AbortedError, Rejected, Tools, answer_questions
from rag_eval.answers.chat import ChatCache, ChatClient, Usage
from rag_eval.answers.evidence import (
    Library,
    PreflightRecord,
    StoredRetrieval,
    list_questions,
    with_units,
)
from rag_eval.answers.extractive import Extractive
from rag_eval.answers.recorded import RecordedAnswers
from rag_eval.answers.scoring import ScoredAnswers, Verifier, judge_faithfulness
from rag_eval.citations.checking import CheckedCitations, Payload
from rag_eval.citations.payload import LiveIndex
from rag_eval.core import config as settings_of
from rag_eval.core.arrays import FloatArray
from rag_eval.core.config import GoldSetConfig
from rag_eval.core.errors import ProblemList
from rag_eval.core.records import Open
from rag_eval.core.settings import Endpoint
from rag_eval.core.strategy import Identity
from rag_eval.core.types import Answer
from rag_eval.corpus.analyzer import count_documents, count_tokens
from rag_eval.corpus.loaders.recorded import read_outputs
from rag_eval.gold.lint import LintWarning, report_warnings
from rag_eval.measures.answers import AnswerMeasureFacts, Faithfulness, answer_figures
from rag_eval.measures.run_scores import GoldArrays
from rag_eval.measures.support import SentenceSupport
from rag_eval.pipeline.corpus import AdmittedChunks, CorpusSnapshot, GoldVariants
from rag_eval.pipeline.runner import (
    AGAIN,
    Result,
    Stage,
    Work,
    file_part,
    frame_part,
    json_part,
)
from rag_eval.pipeline.strategy_runs import StrategyRun
from rag_eval.reporting.outgoing import name_unsupported, report_gaps
from rag_eval.retrieval.service import Payloads
from rag_eval.storage.artifacts import Parts
from rag_eval.storage.hashing import digest, file_hash
from rag_eval.storage.home import write_text
from rag_eval.storage.sql import open_store

NO_ANSWERS: Final = "the gold set configures no answers"
RAGAS_OFF: Final = "FEATURE_RAGAS_EVAL is off"


def _has_answers(config: GoldSetConfig) -> bool:
    return config.answers is not None


def _answers_of(config: GoldSetConfig) -> settings_of.Answers:
    """Return the configuration of the answers, which must be there."""
    assert config.answers is not None
    return config.answers


# ---- Stage `answers`: answer every question from the evidence of one strategy.

ABORT_LOG: Final = "aborted.log"
"""Events of a run that ended before an answer; the next report removes the file."""


@dataclasses.dataclass(frozen=True)
class AnswerFacts:
    """Facts for the report on the answers; `hash` identifies answers and citations.

    `warnings` are about the file of recorded outputs. `abstain_below` is None without an answer of
    the deterministic mode.
    """

    strategy: str
    modes: list[str]
    model: str | None
    hash: str
    n_questions: int
    attempts: dict[str, int]
    findings: dict[str, int]
    abstain_below: float | None
    warnings: list[LintWarning]


class AnswerSet(Result):
    """Answers to every question, in the order of the questions.

    `stated` has the payload that a recorded output states for each citation, by query_id.
    """

    answers: list[Answer] = json_part()
    preflights: list[PreflightRecord] = json_part()
    rejected: list[Rejected] = json_part()
    stated: dict[str, list[Payload | None]] = json_part()
    events: bytes = file_part("events.log")
    about: AnswerFacts = json_part()
    usage: Usage | None = json_part(volatile=True, default=None)

    def report_part(self, _: Work) -> dict[str, object]:
        """Give who answered and how, what it cost, and the warnings about a file of outputs."""
        part: dict[str, Any] = {**vars(self.about), "usage": {}}
        warnings, n = part.pop("warnings"), self.about.n_questions
        if not self.about.findings:
            del part["findings"]
        if (usage := self.usage) is not None:
            per_1k = 1000 * (usage.cost + usage.saved_cost) / max(n, 1)
            part["usage"] = {**dataclasses.asdict(usage), "n_questions": n, "cost_per_1k": per_1k}
        return {"answers": part, "gold": {"warnings": warnings}}


def _join_lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _identify_answers(work: Work, gold_variants: GoldVariants, **_: object) -> object:
    """Hash the file of recorded outputs, empty without one; AGAIN for a model or a plug-in."""
    answers = _answers_of(work.config)
    asked = list_questions(answers, gold_variants.queries, gold_variants.overrides)
    is_asked = any(question.settings.mode == "llm" for question in asked)
    if is_asked or answers.validators or answers.postprocessors:
        return AGAIN
    path = work.base / (answers.recorded or "")
    return file_hash(path) if path.is_file() else ""


def _name_units(units: pd.DataFrame, chunks: pd.DataFrame) -> pd.DataFrame:
    """Return the units of an external retriever as chunks; a unit that equals a chunk is it."""
    rows, ids = units["chunk"].to_numpy(), chunks["chunk_id"].to_numpy(dtype=object)
    names = np.where(rows >= 0, ids[np.maximum(rows, 0)], units["unit_id"].to_numpy(dtype=object))
    return units.assign(chunk_id=names, tokens=[count_tokens(text) for text in units["text"]])


@Stage(
    "answers",
    "answers",
    stores=("chat",),
    reads=(
        *("answers", "primary_strategy", "strategies", "trust.filter", "trust.quarantine"),
        "corpus.has_whole_documents",
    ),
    outside=_identify_answers,
    configured=_has_answers,
)
def answer_gold_set(
    work: Work,
    *,
    runs: dict[str, StrategyRun],
    corpus_snapshot: CorpusSnapshot,
    admitted_chunks: AdmittedChunks,
    gold_variants: GoldVariants,
) -> AnswerSet:
    """Answer every question from the evidence of one strategy, held to the answer contract.

    Raises InputError if a mode, validator, endpoint or file cannot be used, or if a question has no
    evidence and `strict_fail_on_empty_evidence` is on.
    """
    config, answers = work.config, _answers_of(work.config)
    strategy = answers.strategy or config.primary_strategy
    questions = list_questions(answers, gold_variants.queries, gold_variants.overrides)
    modes = {question.settings.mode for question in questions}
    documents, chunks = corpus_snapshot.documents, admitted_chunks.chunks
    run, analyzer = runs[strategy], admitted_chunks.about.analyzer
    index = Identity(run.about.index_hash, run.about.embed_model)
    library = Library(documents, corpus_snapshot.sections, chunks, index, analyzer)
    units = chunks if run.units is None else _name_units(run.units, chunks)
    ranked, failed = (frame[frame["seed"] == run.about.seeds[0]] for frame in (run.run, run.failed))
    payloads_of, wordings = Payloads(units, documents, analyzer), gold_variants.texts
    stored = StoredRetrieval((strategy, index), ranked, failed, payloads_of, wordings)
    endpoint = chat = extract = recorded = None
    if "llm" in modes:
        endpoint = work.settings.find_endpoint(answers.endpoint, "answers.endpoint")
        chat = ChatClient(endpoint, ChatCache(open_store(work.settings)))
    if "deterministic" in modes:
        indexed = (chunks["title"] + " " + chunks["text"]).str.strip().tolist()
        extract = Extractive(count_documents(indexed), answers.abstain_below)
    payloads: dict[str, list[Payload | None]] = {}
    warnings = ProblemList()
    if "recorded" in modes and answers.recorded is not None:
        has_corpus = config.corpus.has_whole_documents
        maker = RecordedAnswers(library, documents, has_corpus=has_corpus)
        asked = {
            question.query_id for question in questions if question.settings.mode == "recorded"
        }
        outputs = read_outputs(work.base / answers.recorded, warnings)
        recorded, payloads = maker.answer_all(outputs, asked, warnings)
    tools = Tools(
        library,
        stored,
        admitted_chunks.passes if config.trust.filter else None,
        extract,
        chat,
        recorded,
        endpoint.concurrency if endpoint else 1,
    )
    title, n = f"Answering ({', '.join(sorted(modes))})", len(questions)
    with work.progress.step(title, n, "questions") as advance:
        try:
            answered = answer_questions(questions, answers, tools, lambda: advance(1))
        except AbortedError as error:
            write_text(work.evaluation.reports / ABORT_LOG, _join_lines(error.events))
            raise
    # Leave token counts out of the hash, because they depend on the cached replies.
    hashed = [dataclasses.replace(answer, tokens_in=0, tokens_out=0) for answer in answered.answers]
    return AnswerSet(
        answers=list(answered.answers),
        preflights=list(answered.preflights),
        rejected=list(answered.rejected),
        stated=payloads,
        events=_join_lines(answered.events).encode(),
        about=AnswerFacts(
            strategy=strategy,
            modes=sorted(modes),
            n_questions=n,
            attempts=answered.counts,
            findings=answered.findings,
            hash=digest(to_jsonable_python(hashed)),
            model=endpoint.model if endpoint else None,
            warnings=report_warnings(warnings.listed(), work.base),
            abstain_below=None if extract is None else answers.abstain_below,
        ),
        usage=None if chat is None else chat.usage(),
    )


# ---- Stage `citations`: check every citation against the live index, and match it with the gold.


@dataclasses.dataclass(frozen=True)
class CitationFacts:
    """Number of citations by code, and number of all citations."""

    codes: dict[str, int]
    n_citations: int


class CitationSet(Result):
    """Verdicts on every citation, and the records of citations.jsonl, in the order of the answers.

    `per_question` has n_cited, n_valid, n_correct, n_due, n_gold, n_gold_matched and coverage.
    """

    citations: pd.DataFrame = frame_part()
    records: list[Open] = json_part()
    per_question: pd.DataFrame = frame_part()
    about: CitationFacts = json_part()

    def report_part(self, _: Work) -> dict[str, object]:
        """Give the number of citations, and their codes."""
        return {"citations": dataclasses.asdict(self.about)}


@Stage(
    "citations",
    "answers",
    reads=("answers.cross_section_allowed", "corpus.has_whole_documents"),
    configured=_has_answers,
)
def check_citations(
    work: Work,
    *,
    answers: AnswerSet,
    runs: dict[str, StrategyRun],
    corpus_snapshot: CorpusSnapshot,
    admitted_chunks: AdmittedChunks,
    gold_variants: GoldVariants,
) -> CitationSet:
    """Check every citation: its payload against the live index, its span against the gold."""
    chunks, units = admitted_chunks.chunks, runs[answers.about.strategy].units
    if units is not None:
        chunks = with_units(chunks, units)
    indexes = (Identity(run.about.index_hash, run.about.embed_model) for run in runs.values())
    models = {index.index_hash: index.stated_model for index in indexes}
    documents, analyzer = corpus_snapshot.documents, admitted_chunks.about.analyzer
    with work.progress.step("Checking citations"):
        checked = CheckedCitations.of(
            answers.answers,
            answers.stated,
            LiveIndex(documents, corpus_snapshot.sections, chunks, models, analyzer),
            (gold_variants.queries, gold_variants.spans),
            section_pairs=_answers_of(work.config).cross_section_allowed,
            has_corpus=work.config.corpus.has_whole_documents,
        )
    return CitationSet(
        citations=checked.citations,
        records=checked.records,
        per_question=checked.per_question,
        about=CitationFacts(checked.codes, len(checked.records)),
    )


# ---- Stage `answer_measures`, with a verifier of sentences where the gold set names one, and
# faithfulness by a judging model through ragas behind FEATURE_RAGAS_EVAL.


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

    def report_part(self, _: Work) -> Mapping[str, object]:
        """Give the measures of answers and of citations, and the requests to the verifier."""
        part = self.about.as_report()
        if self.verifier_usage is not None:
            part["answers"]["verifier_usage"] = dataclasses.asdict(self.verifier_usage)
        return part


def _find_judge(work: Work) -> tuple[str, Endpoint]:
    """Return name and endpoint of the judge."""
    name = work.settings.ragas_endpoint or _answers_of(work.config).endpoint
    return name or "", work.settings.find_endpoint(name, "ragas_endpoint")


def _open_verifier(work: Work) -> Verifier | None:
    name = _answers_of(work.config).verifier
    if name is None:
        return None
    return Verifier.open(name, work.settings, lambda: ChatCache(open_store(work.settings)))


def _identify_models(work: Work, **_: object) -> object:
    """Identify the judge of faithfulness, while FEATURE_RAGAS_EVAL is on, and the verifier."""
    verifier = _open_verifier(work)
    identities: list[object] = [None if verifier is None else verifier.identity]
    if work.settings.feature_ragas_eval:
        name, endpoint = _find_judge(work)
        identities += [name, endpoint.base_url, endpoint.model]
    return identities


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


@Stage(
    "answer_measures",
    "measures",
    stores=("chat",),
    reads=(
        *("answers.purpose", "answers.ragas_sample_rate", "answers.verifier", "measures"),
        "settings.feature_ragas_eval",
    ),
    outside=_identify_models,
    configured=_has_answers,
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
    verifier, config = _open_verifier(work), _answers_of(work.config)
    rows, gold = answers.answers, GoldArrays(gold_variants, admitted_chunks.names)
    faithfulness = Faithfulness(value=None, why={"value": RAGAS_OFF})
    if work.settings.feature_ragas_eval:
        judge, rate = _find_judge(work), config.ragas_sample_rate
        questions = dict(zip(gold.queries["query_id"], gold.queries["text"], strict=True))
        with work.progress.step(f"Judging faithfulness with {judge[1].model}"):
            faithfulness = judge_faithfulness(rows, questions, gold.shared, judge, rate)
    with work.progress.step("Measuring answers", len(rows), "answers") as advance:
        scored = ScoredAnswers.of(
            rows,
            citations.per_question,
            admitted_chunks.artifact.frame("chunks", ["text"])["text"].tolist(),
            purpose=config.purpose,
            score=None if verifier is None else functools.partial(_verify, work, verifier),
            bar=work.config.measures.support_bar,
        )
        advance(len(rows))
    known = gold_variants.answerable_known | (scored.per_question["n_gold"].to_numpy() > 0)
    answerable = gold.queries["answerable"].to_numpy(dtype=bool)
    figures = scored.per_question.assign(answerable=answerable, known=known)
    codes = [tuple(dict.fromkeys(answer.codes)) for answer in rows]
    part = None if verifier is None else verifier.part()
    usage = None if verifier is None else verifier.usage()
    measured = AnswerMeasures(
        per_question=scored.per_question,
        unsupported=scored.unsupported,
        about=AnswerMeasureFacts(
            measures=answer_figures(figures, codes, gold.shared),
            gap=report_gaps(rows, scored.gaps),
            outcomes=dict(Counter(answer.outcome for answer in rows)),
            codes=dict(Counter(itertools.chain.from_iterable(codes))),
            faithfulness=faithfulness,
            n_unsupported=sum(map(len, scored.unsupported.values())),
            unsupported=name_unsupported(rows, scored.unsupported),
            verifier=part,
        ),
        verifier_usage=usage,
    )
    # after a failure of a model that is asked, the next run asks again
    open_requests = (faithfulness.model_extra or {}).get("failures")
    if part is not None and usage is not None:
        open_requests = open_requests or part.failures
    measured.is_lasting = not open_requests
    return measured
