"""Stages of the answers: answers, verdicts on citations, measures, files and traces."""

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

import numpy as np
import pandas as pd
from pydantic_core import to_jsonable_python

from rag_eval.answers.chat import ChatCache, ChatClient, Usage, async_client
from rag_eval.answers.evidence import Library, PreflightRecord, Question, apply_override
from rag_eval.answers.extractive import Extractive
from rag_eval.answers.recorded import Payload, RecordedAnswers, judge_refusals
from rag_eval.answers.runner import AbortedError, Rejected, Tools, answer_questions
from rag_eval.answers.verifier import Verifier, open_verifier
from rag_eval.citations.matching import Spans, Words, coverage, match_citations
from rag_eval.citations.payload import LiveIndex, Verdicts, citation_records, validate
from rag_eval.core import config as settings_of
from rag_eval.core.arrays import FloatArray
from rag_eval.core.config import GoldSetConfig
from rag_eval.core.errors import InputError, ProblemList, quoted
from rag_eval.core.frames import ANSWER_MEASURES, CITATIONS, make_frame
from rag_eval.core.records import AnswerFigure, Open
from rag_eval.core.settings import Endpoint
from rag_eval.core.strategy import Identity
from rag_eval.core.types import (
    AUDITABLE_FIELDS,
    Answer,
    CitedSpan,
    RetrievalMetadata,
    RetrievalResult,
    snippet,
)
from rag_eval.corpus.analyzer import DocumentFrequencies, count_documents, count_tokens
from rag_eval.corpus.loaders.recorded import BESIDE, RecordedOutput, read_outputs
from rag_eval.gold.gold_report import LintWarning, report_warnings
from rag_eval.measures.answer_report import (
    Faithfulness,
    GapFlag,
    RetrievalGap,
    UnsupportedSentence,
    VerifierPart,
)
from rag_eval.measures.answers import (
    AnswerResults,
    Sample,
    answer_figures,
    faithfulness_figure,
    judge_faithfulness,
)
from rag_eval.measures.citation_support import SentenceSupport, citation_support
from rag_eval.measures.gold_arrays import GoldArrays
from rag_eval.measures.groundedness import (
    CODE,
    Cites,
    Gap,
    Purpose,
    Score,
    comparable,
    groundedness,
    retrieval_gaps,
)
from rag_eval.measures.overlap import SharedGold
from rag_eval.pipeline.corpus import AdmittedChunks, CorpusSnapshot, GoldVariants
from rag_eval.pipeline.retrieval import StrategyRun
from rag_eval.pipeline.runner import (
    AGAIN,
    Result,
    Results,
    Stage,
    Work,
    file_part,
    frame_part,
    json_part,
)
from rag_eval.reporting.metrics_report import Outgoing
from rag_eval.retrieval.service import Payloads, Rank
from rag_eval.storage.artifacts import Parts
from rag_eval.storage.files import write_text
from rag_eval.storage.hashing import digest, file_hash
from rag_eval.storage.sql import open_store

# ---- Stage `answers`: answer every question from the evidence of one strategy.

ABORT_LOG = "aborted.log"
"""Events of a run that ended before an answer; the next report removes the file."""


@dataclasses.dataclass(frozen=True)
class AnswerFacts:
    """Facts for the report on the answers; `hash` identifies answers and citations.

    `warnings` are about the file of recorded outputs. `abstain_below` is None without an answer of
    the deterministic mode.
    """

    strategy: str
    modes: list[str]
    counts: dict[str, int]
    hash: str
    model: str
    warnings: list[LintWarning]
    abstain_below: float | None


@dataclasses.dataclass(frozen=True)
class AnswerUsage(Usage):
    """Usage of the endpoint in this run; `cost_per_1k` is the uncached cost of 1,000 questions."""

    n_questions: int
    cost_per_1k: float


class AnswerSet(Result):
    """Answers to every question, in the order of the questions.

    `stated` has the payload that a recorded output states for each citation, by query_id.
    `verifier_usage` counts the requests of validators.
    """

    answers: list[Answer] = json_part()
    preflights: list[PreflightRecord] = json_part()
    rejected: list[Rejected] = json_part()
    stated: dict[str, list[Payload | None]] = json_part()
    events: bytes = file_part("events.log")
    about: AnswerFacts = json_part()
    usage: AnswerUsage | None = json_part(volatile=True, default=None)
    verifier_usage: Usage | None = json_part(volatile=True, default=None)

    def report_part(self, _: Work) -> dict[str, Any]:
        """Give who answered and how, what it cost, and the warnings about a file of outputs."""
        about, prefix = self.about, "finding."
        attempts = ("attempts", "schema_retries", "adaptive_reruns")
        part: dict[str, Any] = {
            "strategy": about.strategy,
            "modes": about.modes,
            "model": about.model or None,
            "hash": about.hash,
            "n_questions": about.counts["questions"],
            "attempts": {name: about.counts.get(name, 0) for name in attempts},
            "abstain_below": about.abstain_below,
            "usage": {} if self.usage is None else dataclasses.asdict(self.usage),
        }
        findings = {
            name.removeprefix(prefix): n
            for name, n in about.counts.items()
            if name.startswith(prefix)
        }
        part |= {"findings": findings} if findings else {}
        if self.verifier_usage is not None:
            part["verifier_usage"] = dataclasses.asdict(self.verifier_usage)
        return {"answers": part, "gold": {"warnings": about.warnings}}


def _has_answers(config: GoldSetConfig) -> bool:
    """Tell whether a gold set configures answers."""
    return config.answers is not None


def _answers_config(config: GoldSetConfig) -> settings_of.Answers:
    if config.answers is None:
        raise RuntimeError("the gold set configures no answers")
    return config.answers


def list_questions(config: GoldSetConfig, gold: GoldVariants) -> list[Question]:
    """List the questions of a gold set, each with the settings of its answer."""
    answers, rows = _answers_config(config), gold.queries[["query_id", "text"]]
    return [
        Question(query_id, text, apply_override(answers, gold.overrides.get(query_id)))
        for query_id, text in rows.itertuples(index=False, name=None)
    ]


def _join_lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


class StoredRetrieval:
    """Rankings of one strategy under its first seed, by wording.

    The rankings come from the stored run. Each chunk has the payload that an answer can cite.
    """

    def __init__(
        self,
        run: StrategyRun,
        admitted: AdmittedChunks,
        documents: pd.DataFrame,
        variants: pd.DataFrame,
    ) -> None:
        chunks = admitted.chunks
        self.about, seed = run.about, run.about.seeds[0]
        rows = run.run[run.run["seed"] == seed].sort_values(["variant", "k_final"], kind="stable")
        self._rows = rows
        self._bounds = np.searchsorted(rows["variant"], np.arange(len(variants) + 1))
        self._failed = set(run.failed.loc[run.failed["seed"] == seed, "variant"])
        first = variants.reset_index(drop=True).drop_duplicates("text")
        self._variant_of = dict(zip(first["text"], first.index, strict=True))
        units = run.units
        if units is not None:  # a unit that equals a chunk becomes that chunk
            own, ids = units["chunk"].to_numpy(), chunks["chunk_id"].to_numpy(dtype=object)
            names_of_units = units["unit_id"].to_numpy(dtype=object)
            chunks = units.assign(
                chunk_id=np.where(own >= 0, ids[np.maximum(own, 0)], names_of_units),
                tokens=[count_tokens(text) for text in units["text"]],
            )
        self._payloads = Payloads(chunks, documents, admitted.about.analyzer)

    def __call__(self, query: str, top_k: int) -> RetrievalResult | None:
        """Return the first top_k chunks of a wording; None after a failed retrieval."""
        variant = self._variant_of[query]
        if variant in self._failed:
            return None
        rows = self._rows.iloc[self._bounds[variant] : self._bounds[variant + 1]]
        index = Identity(self.about.index_hash, self.about.embed_model)
        chunks = []
        for row in rows.head(top_k).to_dict("records"):
            scores = row["score_raw"], row["score_norm"]
            rerank = None if math.isnan(row["rerank_score"]) else row["rerank_score"]
            rank = Rank(*scores, row["k_pos"], row["k_final"], rerank)
            chunks.append(self._payloads.scored(row["chunk"], index, rank))
        return RetrievalResult(tuple(chunks), RetrievalMetadata(self.about.name, 0.0, len(rows)))


def _make_extractor(answers: settings_of.Answers, chunks: pd.DataFrame) -> Extractive:
    """Make the extractive answerer of the corpus."""
    indexed = (chunks["title"] + " " + chunks["text"]).str.strip().tolist()
    return Extractive(count_documents(indexed), answers.abstain_below)


def _ask_refusals(
    recorded: Mapping[str, Answer], verifier: Verifier, warnings: ProblemList
) -> dict[str, Answer]:
    """Return the recorded answers that the verifier calls refusals, by query_id."""
    refusals, n_failed = judge_refusals(recorded.values(), verifier.score)
    if n_failed:
        message = f"the verifier gave no verdict on {n_failed} answers, so they are no refusals"
        warnings.add("refusal_not_judged", message, field="answers.verifier", severity="warning")
    return {answer.query_id: answer for answer in refusals}


def _identify_answers(work: Work, gold_variants: GoldVariants, **_: object) -> object:
    """Hash the file of recorded outputs; empty without a file.

    Returns AGAIN when a model answers or a plug-in is configured. A repeated stage takes known
    replies from the cache and repeats failed requests. The code of a plug-in may have changed.
    """
    answers = _answers_config(work.config)
    modes = {one.settings.mode for one in list_questions(work.config, gold_variants)}
    asks_verifier = "recorded" in modes and answers.verifier is not None
    if "llm" in modes or answers.validators or answers.postprocessors or asks_verifier:
        return AGAIN
    path = work.base / (answers.recorded or "")
    return file_hash(path) if path.is_file() else ""


def _warn_of_unread_markers(
    unread: Sequence[tuple[RecordedOutput, str]], warnings: ProblemList
) -> None:
    """Count the texts of answers that resemble citation markers, and name the first."""
    if unread:
        output, mark = unread[0]
        warnings.add(
            "unread_markers",
            f"{len(unread)} texts of the answers resemble citation markers and are none",
            output.file,
            line=output.line,
            field="answer",
            found=quoted(snippet(mark)),
            accepted="a form of the table in docs/recorded.md",
            severity="warning",
        )


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
    config, answers = work.config, _answers_config(work.config)
    strategy = answers.strategy or config.primary_strategy
    questions = list_questions(config, gold_variants)
    modes = {question.settings.mode for question in questions}
    documents, chunks = corpus_snapshot.documents, admitted_chunks.chunks
    stored = StoredRetrieval(runs[strategy], admitted_chunks, documents, gold_variants.variants)
    identity = {"index_hash": stored.about.index_hash, "embed_model": stored.about.embed_model}
    identity["analyzer"] = admitted_chunks.about.analyzer
    library = Library(documents, corpus_snapshot.sections, chunks, **identity)
    endpoint = chat = extract = recorded = None
    verifier = _open_verifier(work) if answers.validators or "recorded" in modes else None
    if "llm" in modes:
        endpoint = work.settings.find_endpoint(answers.endpoint, "answers.endpoint")
        chat = ChatClient(endpoint, ChatCache(open_store(work.settings)))
    if "deterministic" in modes:
        extract = _make_extractor(answers, chunks)
    stated: dict[str, list[Payload | None]] = {}
    warnings = ProblemList()
    if "recorded" in modes and answers.recorded is not None:
        has_corpus = config.corpus.has_whole_documents
        maker, recorded = RecordedAnswers(library, documents, has_corpus=has_corpus), {}
        asked = {one.query_id for one in questions if one.settings.mode == "recorded"}
        for output in read_outputs(work.base / answers.recorded, warnings):
            if output.query_id in asked:
                recorded[output.query_id], payloads = maker.answer(output)
                if any(payloads):
                    stated[output.query_id] = payloads
        _warn_of_unread_markers(maker.unread, warnings)
        if verifier is not None:
            recorded |= _ask_refusals(recorded, verifier, warnings)
    tools = Tools(
        library,
        stored,
        admitted_chunks.passes if config.trust.filter else None,
        extract,
        chat,
        recorded,
        endpoint.concurrency if endpoint else 1,
        verifier.score if verifier is not None else None,
    )
    title, n = f"Answering ({', '.join(sorted(modes))})", len(questions)
    with work.progress.step(title, n, "questions") as advance:
        try:
            made = answer_questions(questions, answers, tools, lambda: advance(1))
        except AbortedError as error:
            write_text(work.evaluation.reports / ABORT_LOG, _join_lines(error.events))
            raise
    usage = None
    # Leave token counts out of the hash, because they depend on the cached replies.
    hashed = [dataclasses.replace(answer, tokens_in=0, tokens_out=0) for answer in made.answers]
    if chat is not None:
        paid = chat.usage()
        per_1k = 1000 * (paid.cost + paid.saved_cost) / max(n, 1)
        usage = AnswerUsage(**dataclasses.asdict(paid), n_questions=n, cost_per_1k=per_1k)
    return AnswerSet(
        answers=list(made.answers),
        preflights=list(made.preflights),
        rejected=list(made.rejected),
        stated=stated,
        events=_join_lines(made.events).encode(),
        about=AnswerFacts(
            strategy=strategy,
            modes=sorted(modes),
            counts=made.counts,
            hash=digest(to_jsonable_python(hashed)),
            model=endpoint.model if endpoint else "",
            warnings=report_warnings(warnings.listed(), work.base),
            abstain_below=None if extract is None else answers.abstain_below,
        ),
        usage=usage,
        verifier_usage=None if verifier is None else verifier.usage(),
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


def _stated_record(own: Open, span: CitedSpan, payload: Payload) -> Open:
    """Make the record of a citation that has a payload from the system itself.

    `own` is our record of the citation. It completes a citation of the auditable block. A valid
    payload outside the evidence of the answer is marked `in_evidence: false`. An invalid payload
    stays, so that its first broken rule is reported.
    """
    record: Open = {**payload, "query_id": own["query_id"]}
    if payload.keys() <= {*AUDITABLE_FIELDS, *BESIDE}:
        record = own | {name: value for name, value in record.items() if value is not None}
    record["segment"] = span.segment  # a number that the answer lacks is the whole answer
    record.pop("number", None)
    if span.evidence < 0 and not validate([record]).failures[0]:
        record["in_evidence"] = False
    return record


def with_units(chunks: pd.DataFrame, units: pd.DataFrame) -> pd.DataFrame:
    """Append the units of an external retriever that have a place in a document to the chunks."""
    placed = units[(units["start"] >= 0) & (units["chunk"] < 0)].rename(
        columns={"unit_id": "chunk_id"}
    )
    return pd.concat([chunks, placed.reindex(columns=chunks.columns)], ignore_index=True)


@Stage(
    "citations",
    "answers",
    reads=("answers.cross_section_allowed", "corpus.has_whole_documents"),
    configured=_has_answers,
    columns=CITATIONS,
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
    """Check every citation: its payload against the live index, its span against the gold.

    When only the contexts of recorded outputs are available, the index, analyzer and revisions of
    the system are unknown. A stated payload is then checked by itself, and its place against the
    contexts. Raises InputError `analyzer_mismatch` if a stated payload has another analyzer than
    the index.
    """
    pairs = _answers_config(work.config).cross_section_allowed
    with work.progress.step("Checking citations"):
        found, chunks = answers.answers, admitted_chunks.chunks
        placed: list[Open] = []
        records: list[Open] = []
        for answer in found:
            own = citation_records(answer.query_id, answer.citations, answer.evidence)
            placed += own
            stated = answers.stated.get(answer.query_id, [None] * len(own))
            # a domain validator may have rejected the answer with its citations
            records += [
                _stated_record(record, span, payload) if payload else record
                for record, span, payload in zip(own, answer.citations, stated, strict=False)
            ]
        units = runs[answers.about.strategy].units
        if units is not None:
            chunks = with_units(chunks, units)
        indexes = (Identity(run.about.index_hash, run.about.embed_model) for run in runs.values())
        models = {one.index_hash: one.stated_model for one in indexes}
        documents, analyzer = corpus_snapshot.documents, admitted_chunks.about.analyzer
        live = LiveIndex(documents, corpus_snapshot.sections, chunks, models, analyzer)
        if work.config.corpus.has_whole_documents:
            verdicts = validate(records, live, pairs)
        else:
            verdicts = validate(placed, live, pairs).joined(validate(records, None, pairs))
        if n := verdicts.counts["analyzer_mismatch"]:
            _refuse_analyzer(records, analyzer, n)
        cited, per_question = _match(gold_variants, found, verdicts, live)
    codes = {code: n for code, n in verdicts.counts.items() if n} if records else {}
    return CitationSet(
        citations=cited,
        records=records,
        per_question=per_question,
        about=CitationFacts(codes, len(records)),
    )


def _refuse_analyzer(records: list[Open], analyzer: str, n: int) -> NoReturn:
    """Raise `analyzer_mismatch`, which ends the run.

    No citation can be trusted when the citing system uses another analyzer than the index.
    """
    record = next(one for one in records if one.get("analyzer", analyzer) != analyzer)
    message = (
        f"{n} citations were made with another analyzer, the first for question "
        f"{quoted(str(record.get('query_id')))}; align the analyzers"
    )
    raise InputError.of(
        "analyzer_mismatch",
        message,
        field="analyzer",
        found=quoted(str(record.get("analyzer"))),
        accepted=analyzer,
    )


def _match(
    gold: GoldVariants, answers: Sequence[Answer], verdicts: Verdicts, live: LiveIndex
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Make a row for each citation and one for each question."""
    queries, spans = gold.queries, gold.spans
    cited = [
        (answer.query_id, span.segment, span.doc_id, span.start, span.end)
        for answer in answers
        for span in answer.citations
    ]
    rows = pd.DataFrame(cited, columns=["query_id", "segment", "doc_id", "start", "end"])
    # Name only cited documents and documents with gold spans, so that no other text is analyzed.
    named = sorted({*rows["doc_id"], *spans["doc_id"]} & live.texts.keys())
    codes = pd.Index(queries["query_id"]), pd.Index(named, dtype="object")

    def encode(frame: pd.DataFrame) -> Spans:
        ids = (pd.Index(frame[name], dtype="object") for name in ("query_id", "doc_id"))
        query, doc = (code.get_indexer(own) for code, own in zip(codes, ids, strict=True))
        places = (frame[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
        return Spans(query.astype(np.int64), doc.astype(np.int64), *places)

    quoted_spans, wanted, valid = encode(rows), encode(spans), verdicts.valid
    owed = queries["answerable"].to_numpy(dtype=bool)
    correct, counts = match_citations(quoted_spans, valid, wanted, len(queries), owed)
    words = Words.of([live.texts[doc] for doc in named])
    covered = coverage(quoted_spans, valid, wanted, words, len(queries))
    judged = zip(cited, verdicts.codes, verdicts.fields, correct.tolist(), strict=True)
    # A gold span that the corpus lacks has no words. It counts as missed.
    is_missed = np.isnan(covered) & (counts["n_gold"].to_numpy() > 0)
    per_question = counts.assign(coverage=np.where(is_missed, 0.0, covered))
    per_question.insert(0, "query_id", queries["query_id"].astype("str").to_numpy())
    return make_frame(CITATIONS, [(*place, *verdict) for place, *verdict in judged]), per_question


# ---- Faithfulness by a judging model through ragas, behind FEATURE_RAGAS_EVAL

RAGAS_OFF = "FEATURE_RAGAS_EVAL is off"


def _find_judge(work: Work) -> tuple[str, Endpoint]:
    """Return name and endpoint of the judge; default: the endpoint of the answers."""
    name = work.settings.ragas_endpoint or _answers_config(work.config).endpoint
    return name or "", work.settings.find_endpoint(name, "ragas_endpoint")


def _identify_models(work: Work, **_: object) -> object:
    """Identify the judge of faithfulness, while FEATURE_RAGAS_EVAL is on, and the scorer."""
    verifier = _open_verifier(work)
    identities: list[object] = [None if verifier is None else verifier.identity]
    if work.settings.feature_ragas_eval:
        name, endpoint = _find_judge(work)
        identities += [name, endpoint.base_url, endpoint.model]
    return identities


def _judge_faithfulness(
    work: Work, found: Sequence[Answer], gold: GoldVariants, shared: SharedGold
) -> Faithfulness:
    """Judge a sample of the answers."""
    if not work.settings.feature_ragas_eval:
        return Faithfulness(value=None, why={"value": RAGAS_OFF})
    rate = _answers_config(work.config).ragas_sample_rate
    name, endpoint = _find_judge(work)
    texts = dict(zip(gold.queries["query_id"], gold.queries["text"], strict=True))
    samples = [
        Sample(
            answer.query_id,
            texts[answer.query_id],
            answer.text if answer.outcome == "answered" else "",
            [item.chunk.text for item in answer.evidence],
        )
        for answer in found
    ]
    with work.progress.step(f"Judging faithfulness with {endpoint.model}"):
        judged = judge_faithfulness(samples, lambda: async_client(endpoint), endpoint, rate)
    return faithfulness_figure(judged, shared, rate=rate, judge=(name, endpoint.model))


# ---- A verifier of sentences, where the gold set names one


def _open_verifier(work: Work) -> Verifier | None:
    name = _answers_config(work.config).verifier
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
    kept = work.keep("verified_sentences", identity, make)
    if kept.reused:
        verifier.failures.update(kept.json("failures"))
    return kept.array("scores")


def _ask_once(score: Score) -> Score:
    """Ask a verifier once about each sentence and its evidence, also where it fails."""
    known: dict[str, float] = {}

    def ask(sentences: list[str], evidence: list[str]) -> FloatArray:
        pairs = list(zip(sentences, evidence, strict=True))
        keys = [digest(list(pair)) for pair in pairs]
        new = {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in known}
        if new:
            found = score([one for one, _ in new.values()], [shown for _, shown in new.values()])
            known.update(zip(new, found.tolist(), strict=True))
        return np.array([known[key] for key in keys], dtype=np.float64)

    return ask


# ---- Vectors of sentences, without a verifier and where the model is on this machine

# ---- Stage `answer_measures`

UNCHECKED = ("failed", "contract_error_reply")
"""Outcomes of questions without an answer, which FK019 therefore skips."""
MAX_FLAGGED = 50
"""Most answers, and most sentences, that the report names."""


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
        about, cited = self.about, {"n_unsupported": self.about.n_unsupported}
        of_answers, of_citations = (
            [one for one in about.measures if (one.name in CITATION_MEASURES) == is_cited]
            for is_cited in (False, True)
        )
        part = {name: getattr(about, name) for name in ("outcomes", "codes", "gap", "faithfulness")}
        if about.verifier is not None:
            part["verifier"] = about.verifier
        if self.verifier_usage is not None:  # validators ask it too, when the answers are made
            part["verifier_usage"] = dataclasses.asdict(self.verifier_usage)
        return {
            "answers": {"measures": of_answers, **part},
            "citations": {"measures": of_citations, "unsupported": about.unsupported, **cited},
        }


@Stage(
    "answer_measures",
    "measures",
    stores=("chat",),
    reads=(
        *("answers.purpose", "answers.ragas_sample_rate", "answers.verifier"),
        "settings.feature_ragas_eval",
    ),
    outside=_identify_models,
    configured=_has_answers,
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
    found, gold = answers.answers, GoldArrays(gold_variants, admitted_chunks.names)
    judged = _judge_faithfulness(work, found, gold_variants, gold.shared)
    with work.progress.step("Measuring answers", len(found), "answers") as advance:
        texts = admitted_chunks.artifact.frame("chunks", ["text"])["text"].tolist()
        frequencies = count_documents([comparable(text) for text in texts])
        said = [answer.text if answer.outcome == "answered" else "" for answer in found]
        evidence = [[item.chunk.text for item in answer.evidence] for answer in found]
        scored = groundedness(said, evidence, frequencies)
        score = None if verifier is None else _ask_once(functools.partial(_verify, work, verifier))
        if score is not None:
            texts = ["\n\n".join(evidence[at]) for at in scored.answer_of.tolist()]
            scored = scored.rescored(score(scored.sentences, texts))
        cited = [
            [one for one in own if one.places and answer.outcome == "answered"]
            for answer, own in zip(found, citation_support(found, frequencies, score), strict=True)
        ]
        citing = [[one for one in own if not math.isnan(one.score)] for own in cited]
        purpose = _answers_config(work.config).purpose
        gaps = _answer_gaps(found, cited, purpose, frequencies, score)
        per_question = citations.per_question.assign(
            outcome=[answer.outcome for answer in found],
            groundedness=scored.value,
            supported=scored.supported,
            n_citing=list(map(len, citing)),
            n_upheld=[sum(one.supported for one in own) for own in citing],
            gap=[at in gaps and gaps[at].violation for at in range(len(found))],
            gap_reason=[
                gaps[at].reason if at in gaps else answer.outcome for at, answer in enumerate(found)
            ],
        )
        advance(len(found))
    codes = [tuple(dict.fromkeys(answer.codes)) for answer in found]
    same = (
        *("n_cited", "n_valid", "n_correct", "n_gold", "n_citing", "n_upheld"),
        *("coverage", "groundedness", "supported"),
    )
    figures = answer_figures(
        AnswerResults(
            outcome=[answer.outcome for answer in found],
            codes=codes,
            answerable=gold.queries["answerable"].to_numpy(dtype=bool),
            known=gold_variants.answerable_known | (per_question["n_gold"].to_numpy() > 0),
            gold=gold.shared,
            **{name: per_question[name].to_numpy() for name in same},
            n_matched=per_question["n_gold_matched"].to_numpy(),
        ),
    )
    unsupported = {
        answer.query_id: weak
        for answer, own in zip(found, citing, strict=True)
        if (weak := [one for one in own if not one.supported])
    }
    violations = [(found[at], gap.reason) for at, gap in gaps.items() if gap.violation]
    flagged = [  # `Outgoing` masks secrets that only the evidence labels
        GapFlag(query_id=answer.query_id, reason=reason, answer=snippet(Outgoing(answer).text))
        for answer, reason in violations[:MAX_FLAGGED]
    ]
    measured = AnswerMeasures(
        per_question=per_question,
        unsupported=unsupported,
        about=AnswerMeasureFacts(
            measures=figures,
            gap=RetrievalGap(
                code=CODE,
                severity="warning",
                n_checked=sum(gap.reason != "no_verdict" for gap in gaps.values()),
                n_flagged=len(violations),
                flagged=flagged,
            ),
            outcomes=dict(Counter(answer.outcome for answer in found)),
            codes=dict(Counter(code for own in codes for code in own)),
            faithfulness=judged,
            n_unsupported=sum(map(len, unsupported.values())),
            unsupported=_name_unsupported(found, unsupported),
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
    failures = (judged.model_extra or {}).get("failures")
    if verifier is not None and verifier.usage() is not None:
        failures = failures or verifier.failures
    measured.is_lasting = not failures
    return measured


def _name_unsupported(
    found: Sequence[Answer], unsupported: Mapping[str, Sequence[SentenceSupport]]
) -> list[UnsupportedSentence]:
    """Make the rows of the report for the first sentences that their citations do not support."""
    pairs = ((one, weak) for one in found for weak in unsupported.get(one.query_id, ()))
    rows: list[UnsupportedSentence] = []
    for answer, weak in itertools.islice(pairs, MAX_FLAGGED):
        outgoing = Outgoing(answer)
        row = UnsupportedSentence(
            query_id=answer.query_id,
            sentence=outgoing.line(weak.text),
            citations=[outgoing.token(place) for place in weak.places],
            score=weak.score,
            passage=outgoing.line(weak.passage),
            conflict=outgoing.line(weak.conflict),
        )
        rows.append(row)
    return rows


def _answer_gaps(
    found: Sequence[Answer],
    citing: Sequence[Sequence[SentenceSupport]],
    purpose: Purpose,
    frequencies: DocumentFrequencies | None = None,
    score: Score | None = None,
) -> dict[int, Gap]:
    """Check FK019 on every answer, and return the results by the position of the answer.

    `citing` are the sentences of each answer that cite something. Answers with an outcome in
    UNCHECKED are left out.
    """
    checked = [at for at, answer in enumerate(found) if answer.outcome not in UNCHECKED]
    verdicts = retrieval_gaps(
        [found[at].text for at in checked],
        [[item.chunk.text for item in found[at].evidence] for at in checked],
        cites=[_cites(citing[at]) for at in checked],
        purpose=purpose,
        frequencies=frequencies,
        score=score,
    )
    return dict(zip(checked, verdicts, strict=True))


def _cites(citing: Sequence[SentenceSupport]) -> Cites:
    """Tell whether the citations of an answer support a sentence, if the verifier judged them."""
    if any(one.supported for one in citing):
        return True
    if any(math.isnan(one.score) for one in citing):
        return "no_verdict"
    return False if citing else None


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
