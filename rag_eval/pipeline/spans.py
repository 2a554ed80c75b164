"""Spans of a finished run and of served queries, for OpenTelemetry.

A run sends its spans when its report is written: a retrieval of each strategy for the original
wording of each question, and the answers. So a run that reuses stored results has spans too, and
no measured latency includes them.
"""

import dataclasses
import datetime as dt
import functools
import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from rag_eval.answers.runner import PromptTooLongError, build_prompt
from rag_eval.core.report import Report
from rag_eval.core.types import Answer, RetrievalResult
from rag_eval.gold.files import ORIGINAL
from rag_eval.pipeline.answers import AnswerSet, StoredRetrieval, list_questions
from rag_eval.pipeline.retrieval import StrategyRun
from rag_eval.pipeline.runner import Work
from rag_eval.reporting.metrics_report import Outgoing
from rag_eval.reporting.spans import (
    MAX_DOCUMENTS,
    SpanCounts,
    SpanRecord,
    Spans,
    describe_answer,
    describe_chat,
    describe_retrieval,
    hide_endpoints,
    is_configured,
    open_exporter,
)

if TYPE_CHECKING:
    from rag_eval.pipeline.metrics_report import Inputs

_log = logging.getLogger(__name__)
RUN_ROOM: Final = 1_000_000
SERVED_ROOM: Final = 2_048
NANOSECONDS: Final = 1_000_000_000
INSTALL: Final = "install rag-eval[spans]"

# ---- A finished run.


def send_run_spans(work: Work, made: "Inputs", report: Report) -> SpanCounts | None:
    """Send the spans of a run. None without a configured exporter; a failure is only counted."""
    if not is_configured():
        return None
    spans = _open(RUN_ROOM, gives_up=True)
    if isinstance(spans, str):
        return SpanCounts(0, 0, spans)
    for record in _run_spans(work, made, report):
        spans.send(record)
    return spans.close()


def _open(room: int, *, gives_up: bool = False) -> Spans | str:
    """Open the configured exporter, or say why it cannot be used."""
    try:
        return Spans(open_exporter(), room=room, gives_up=gives_up)
    except ImportError as error:
        return f"{error}; {INSTALL}"
    except ValueError as error:  # a variable has a value that the exporter cannot use
        return hide_endpoints(str(error))


def _run_spans(work: Work, made: "Inputs", report: Report) -> Iterator[SpanRecord]:
    """Make a trace for each question and strategy; the answers' strategy has them as its root."""
    gold, answers = made.gold_variants, made.answers
    common = {"gold_set": work.config.name, "run_id": report.run_id, "rev": report.index.rev}
    moment = dt.datetime.fromisoformat(report.timestamp).timestamp()
    chats = None if answers is None else _Answers(work, made, answers)
    for name, run in made.runs.items():
        stored = StoredRetrieval(
            run, made.admitted_chunks.chunks, made.corpus_snapshot.documents, gold.variants
        )
        claims, end = _claims_by_query(made, name), _end(moment, run)
        for query_id, text in _original_wordings(made, run):
            about = {**common, "query_id": query_id, "strategy": name}
            about["index_hash"] = run.about.index_hash
            result = stored(text, MAX_DOCUMENTS)
            record = SpanRecord(
                f"retrieve {name}",
                "RETRIEVER",
                int(moment * NANOSECONDS),
                end,
                describe_retrieval(
                    text, result.chunks if result else (), about | claims.get(query_id, {})
                ),
                error="" if result else run.about.first_failure or "the retrieval failed",
            )
            is_answered = answers is not None and answers.about.strategy == name
            yield chats.around(record, query_id, about) if chats and is_answered else record


def _end(moment: float, run: StrategyRun) -> int:
    """Return the end of a retrieval that took the mean time of its run, in nanoseconds."""
    return int((moment + run.timing.seconds / max(run.about.n_runs, 1)) * NANOSECONDS)


def _original_wordings(made: "Inputs", run: StrategyRun) -> Iterator[tuple[str, str]]:
    """List id and original wording of the questions that the strategy was asked."""
    variants = made.gold_variants.variants.reset_index(drop=True)
    if run.not_run is not None:
        variants = variants.drop(index=run.not_run["variant"].tolist())
    originals = variants[variants["paraphrase_id"] == ORIGINAL]
    yield from originals[["query_id", "text"]].itertuples(index=False, name=None)


def _claims_by_query(made: "Inputs", name: str) -> dict[str, dict[str, object]]:
    """Collect the stated miss rate of each original wording, under the first seed."""
    claims = made.miss_rate_claims.claims_of(name)
    own = claims[claims["paraphrase_id"] == ORIGINAL].drop_duplicates("query_id").astype(object)
    names = ["strategy_fingerprint", "miss_rate", "status"]
    rows = own[names].where(own[names].notna(), None).to_dict("records")
    return dict(zip(own["query_id"], rows, strict=True))


class _Answers:
    """Puts the answers of a run around the retrievals."""

    def __init__(self, work: Work, made: "Inputs", answers: AnswerSet) -> None:
        self._model = answers.about.model
        self._answers = {answer.query_id: answer for answer in answers.answers}
        questions = list_questions(work.config, made.gold_variants)
        self._questions = {question.query_id: question for question in questions}

    def around(
        self, retrieval: SpanRecord, query_id: str, about: Mapping[str, object]
    ) -> SpanRecord:
        """Make the span of an answer, with its retrieval and its chat."""
        answer, question = self._answers[query_id], self._questions[query_id]
        outgoing = Outgoing(answer)
        more = {
            "mode": answer.mode,
            "outcome": answer.outcome,
            "codes": list(answer.codes),
            "citations": _list_cited(answer),
            "confidence": answer.confidence,
            "signal": answer.signal,
            "attempts": answer.attempts,
        }
        children, end = [retrieval], retrieval.end
        if answer.mode == "llm" and answer.attempts:
            try:
                prompt = build_prompt(question, answer.evidence).messages
            except PromptTooLongError:
                prompt = ()
            messages = [
                dataclasses.replace(one, content=outgoing.cut_copies(one.content)) for one in prompt
            ]
            tokens = answer.tokens_in, answer.tokens_out
            chat = describe_chat(self._model, messages, outgoing.text, tokens)
            children.append(SpanRecord("chat", "LLM", end, end, chat))
        described = describe_answer(question.text, outgoing.text, {**about, **more})
        error = ", ".join(answer.codes) if answer.outcome == "failed" else ""
        return SpanRecord("answer", "CHAIN", retrieval.start, end, described, error, (*children,))


def _list_cited(answer: Answer) -> list[str]:
    """List the ids of the cited chunks once each; a citation outside of the evidence has none."""
    places = (span.evidence for span in answer.citations if span.evidence >= 0)
    return list(dict.fromkeys(answer.evidence[place].chunk.snippet_id for place in places))


# ---- Served queries.


@functools.cache
def _served_spans() -> Spans | None:
    """Open the spans of this process, or warn once. The end of the process sends what waits."""
    opened = _open(SERVED_ROOM)
    if isinstance(opened, Spans):
        return opened
    _log.warning("spans are not sent: %s", opened)
    return None


def send_served(
    query: str, found: RetrievalResult | Exception, seconds: float, about: Mapping[str, object]
) -> None:
    """Queue the span of a served query that just ended, where an exporter is configured."""
    spans = _served_spans() if is_configured() else None
    if spans is None:
        return
    now = time.time_ns()
    result = None if isinstance(found, Exception) else found
    spans.send(
        SpanRecord(
            f"retrieve {about['strategy']}",
            "RETRIEVER",
            now - int(seconds * NANOSECONDS),
            now,
            describe_retrieval(query, result.chunks if result else (), about),
            error="" if result else str(found),
        )
    )
