"""Answer questions: preflights, the mode of each question, prompts and replies, validators, counts.

An answer that breaks its contract fails. A model is asked again, with the reasons or with more
evidence. `prompts.json` has the texts of the prompts.
"""

import bisect
import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any

from rag_eval.answers.contract import judge
from rag_eval.answers.evidence import (
    Events,
    Gathered,
    Library,
    PreflightRecord,
    Preflights,
    Question,
    Retriever,
    asks_for_ranking,
)
from rag_eval.answers.extractive import Extractive, Passage
from rag_eval.answers.plugins import Candidate, Plugins, load_plugins
from rag_eval.answers.replies import CODES, Fault, parse_reply
from rag_eval.core.arrays import BoolArray
from rag_eval.core.config import Answers, ResponseSchema
from rag_eval.core.errors import InputError, Problem, format_count, quoted
from rag_eval.core.types import (
    AUDITABLE_FIELDS,
    INSUFFICIENT_EVIDENCE,
    NOT_FOUND,
    Answer,
    Chat,
    ChatError,
    CitedSpan,
    Evidence,
    Message,
    Reply,
)
from rag_eval.corpus.chunking import segments
from rag_eval.storage.hashing import lines_hash

# ---- Prompts: the contract, the evidence as data, the question

NONCE_DIGITS = 16
MAX_CORRECTION_CHARS = 600
MAX_REJECTED_CHARS = 1500

_BREAKS = re.compile("[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_UNSAFE = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
_TEXTS = {
    name: "\n".join(lines)
    for name, lines in json.loads(
        files("rag_eval.answers").joinpath("prompts.json").read_text("utf-8")
    ).items()
}


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """Messages for the model: system and user message, then the messages of a correction.

    The answer may cite `evidence` only; `left_out` pieces had no room. The model refuses with
    INSUFFICIENT EVIDENCE under `analyze_only`, else with NOT FOUND.
    """

    messages: tuple[Message, ...]
    evidence: tuple[Evidence, ...]
    left_out: int
    analyze_only: bool


class PromptTooLongError(Exception):
    """Not even one piece of evidence fits within max_prompt_chars."""


def _make_plain(text: str) -> str:
    """Remove control characters and all line ends but line feeds."""
    return _UNSAFE.sub("\ufffd", _BREAKS.sub(" ", text))


def _format_evidence(item: Evidence, schema: ResponseSchema) -> str:
    """Write the token and the numbered lines of a piece of evidence, and the fields to cite."""
    first, *others = _make_plain(item.chunk.text.replace("\r\n", "\n")).split("\n")
    numbered = [f"{number}| {line}" for number, line in enumerate(others, item.first_line + 1)]
    if schema == "auditable":
        fields = dataclasses.asdict(item.chunk)
        numbered.insert(0, f"{item.first_line}| {first}")
        first = json.dumps({name: fields[name] for name in AUDITABLE_FIELDS})
    return "\n".join([f"[{quoted(item.token, 4000)}] {first}", *numbered])


def _system(question: Question, *, analyze_only: bool, nonce: str) -> str:
    gaps = f"{INSUFFICIENT_EVIDENCE}: <what is missing>"
    other_refusal = NOT_FOUND if analyze_only else INSUFFICIENT_EVIDENCE
    form = _TEXTS[f"{question.settings.response_schema}_form"].format(
        refusal=f'"{gaps if analyze_only else NOT_FOUND}"',
        verdicts=", ".join(
            verdict for verdict in question.settings.verdicts if verdict != other_refusal
        ),
        refusal_verdict=INSUFFICIENT_EVIDENCE if analyze_only else NOT_FOUND,
        refusal_text="then the missing pieces by name" if analyze_only else "nothing after it",
    )
    task = _TEXTS["analyze" if analyze_only else "ground"]
    return "\n".join([task, form, _TEXTS["rules"].format(nonce=nonce)])


def _user(question: Question, shown: Sequence[str], nonce: str) -> str:
    block = shown or ["(no evidence was found)"]
    asked = "Question: " + _make_plain(question.text).replace("\n", " ")
    return "\n".join([f"<<<EVIDENCE {nonce}>>>", *block, f"<<<END {nonce}>>>", asked])


def _correct(reply: str, faults: Sequence[str]) -> tuple[Message, Message]:
    """Make the messages after a rejected reply: its beginning, and its faults."""
    reasons = " ".join(_make_plain(fault)[:MAX_CORRECTION_CHARS] for fault in faults)
    rejected = f"This reply was rejected: {reasons[: 2 * MAX_CORRECTION_CHARS]}"
    again = f"{rejected} Reply again, to the same question and in the same form."
    shown = _make_plain(reply[:MAX_REJECTED_CHARS]) or "(empty)"
    return Message("assistant", shown), Message("user", again)


def _build_prompt(
    question: Question, evidence: Sequence[Evidence], correcting: Sequence[Message] = ()
) -> Prompt:
    """Make the messages for one question, at most question.settings.max_prompt_chars long.

    Whole pieces of evidence are left out from the end until the rest fits. Raises
    PromptTooLongError if the question does not fit, or no piece of the evidence fits.
    """
    bypass, longest = question.settings.quote_bypass, question.settings.max_prompt_chars
    analyze_only = bypass == "on" or (bypass == "auto" and bool(evidence))
    texts = [_format_evidence(item, question.settings.response_schema) for item in evidence]
    nonce = lines_hash([question.query_id, question.text, *texts], NONCE_DIGITS)
    system = _system(question, analyze_only=analyze_only, nonce=nonce)
    room = longest - len(system) - len(_user(question, [], nonce))
    room -= sum(len(message.content) for message in correcting)
    used = list(itertools.accumulate(len(text) + 1 for text in texts))
    n = bisect.bisect_right(used, room)
    if n == 0 and (evidence or room < 0):
        raise PromptTooLongError(
            f"the prompt of question {quoted(question.query_id)} has more than {longest} "
            "characters with one piece of evidence"
        )
    user = _user(question, texts[:n], nonce)
    messages = (Message("system", system), Message("user", user), *correcting)
    return Prompt(messages, tuple(evidence[:n]), len(texts) - n, analyze_only)


# ---- One question

MAX_KEPT_CHARS = 2000
"""Most characters of a rejected reply that are kept for a person to read."""
PROVENANCE = frozenset({"unknown_snippet", "path_not_in_evidence"})
"""Codes that start an adaptive rerun, because more evidence can mend the answer."""
_BROKEN_PLUGIN = frozenset({"validator_error", "postprocessor_error"})
"""Codes that no other reply of the model can mend."""
_CUT_OFF = {
    "length": "it was cut off for its length; answer shorter.",
    "content_filter": "the endpoint's filter cut it off.",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Tools:
    """Inputs of answering.

    `passes`, bool [n_chunks], marks the chunks that the trust filter lets through; None without a
    filter. `extract`, `chat` and `recorded` serve the modes deterministic, llm and recorded; None
    if no question uses the mode. `concurrency` is the number of questions sent to the model at a
    time.
    """

    library: Library
    retrieve: Retriever
    passes: BoolArray | None
    extract: Extractive | None = None
    chat: Chat | None = None
    recorded: Mapping[str, Answer] | None = None
    concurrency: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Rejected:
    """A rejected reply, shortened, with its faults."""

    query_id: str
    attempt: int
    top_k: int
    codes: tuple[str, ...]
    messages: tuple[str, ...]
    reply: str


def _codes_of(faults: Sequence[Fault]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(fault.code for fault in faults))


class _Case:
    """A question with its answer so far, its events and its part of the counts."""

    def __init__(self, question: Question, preflights: Preflights, plugins: Plugins) -> None:
        self.question, self._preflights, self._plugins = question, preflights, plugins
        self.answer = Answer(
            question.query_id,
            question.settings.mode,
            "not_found",
            text=NOT_FOUND,
            attempts=0,
            top_k=question.settings.top_k,
        )
        self.log = Events()
        self.gathered = Gathered()
        self.reruns: list[PreflightRecord] = []
        self.rejected: list[Rejected] = []
        self.counts: Counter[str] = Counter()
        self.chat_retries = 0

    def _add_event(self, name: str, **fields: str | int) -> None:
        self.log.add(name, query_id=self.question.query_id, **fields)

    def _set(self, **values: Any) -> None:
        self.answer = dataclasses.replace(self.answer, **values)

    def _fail(self, *faults: Fault) -> None:
        """End as failed, without the content of the answer."""
        self._set(outcome="failed", codes=_codes_of(faults), text="", citations=())

    def _reject(self, reply: str, faults: Sequence[Fault]) -> None:
        shown = reply[:MAX_KEPT_CHARS].encode("utf-8", "backslashreplace").decode()
        place = self.answer.query_id, self.answer.attempts, self.answer.top_k
        messages = tuple(fault.message for fault in faults)
        self.rejected.append(Rejected(*place, _codes_of(faults), messages, shown))

    def _accept(self, body: str, answer: Answer) -> list[Fault]:
        """Post-process an answer and take it unless a plug-in objects; return the objections."""
        candidate = Candidate(
            answer.query_id,
            self.question.text,
            answer.mode,
            body,
            answer.text,
            answer.verdict,
            answer.citations,
            answer.evidence,
        )
        processed = self._plugins.postprocess(candidate)
        if isinstance(processed, Fault):
            return [processed]
        candidate, findings = processed
        objections = self._plugins.validate(candidate)
        if objections:
            return objections
        self.answer = dataclasses.replace(answer, text=candidate.text, findings=findings)
        if self._plugins.postprocessors:
            reworded = candidate.text != answer.text
            self._add_event("question.postprocessed", reworded=reworded, findings=len(findings))
        return []

    def gather(self) -> None:
        """Run the preflights; a fault of a preflight ends the question."""
        self.gathered = self._preflights.gather(self.question, self.log)
        if self.gathered.fault:
            self._fail(self.gathered.fault)

    def end_with(self, answer: Answer) -> None:
        """End with an answer if the plug-ins accept the answer; else end as failed."""
        self.answer = answer
        if answer.outcome == "answered" and (faults := self._accept(answer.text, answer)):
            self._reject(answer.text, faults)
            self._fail(*faults)

    def quote(self, extractive: Extractive, library: Library) -> None:
        """Answer with sentences of the evidence verbatim, one citation each, or with NOT FOUND."""
        evidence = self.gathered.evidence
        passages = [Passage(item.chunk.text, library.title(item.chunk.doc_id)) for item in evidence]
        extract = extractive.answer(self.question.text, passages)
        self._set(evidence=evidence, signal=extract.signal, attempts=1)
        text, citations = "", list[CitedSpan]()
        for passage, start, end, _ in extract.sentences if extract.answered else ():
            chunk = evidence[passage].chunk
            quote, low = chunk.text[start:end], chunk.offsets.start
            segment = len(segments(text))
            joined = f"{text} {quote}".strip()
            if len(segments(joined)) < segment + len(segments(quote)):
                # a heading or an entry without a full stop would swallow the next sentence
                joined = f"{text}\n\n{quote}"
            text, place = joined, (chunk.doc_id, low + start, low + end)
            citations.append(CitedSpan(segment, passage, *place, quote))
        if extract.answered:
            self._set(outcome="answered", text=text, citations=tuple(citations))
        self.end_with(self.answer)

    def converse(self, chat: Chat) -> None:
        """Let a model answer; no error of one question stops the others."""
        self._set(outcome="failed", text="", evidence=self.gathered.evidence)
        try:
            faults = self._converse(chat)
        except Exception as error:  # noqa: BLE001 - the endpoint adapter may be anybody's code
            self._add_event("question.error", error=type(error).__name__, message=str(error))
            faults = [Fault("internal_error", str(error))]
        if faults:
            self._fail(*faults)

    def _converse(self, chat: Chat) -> Sequence[Fault]:
        """Ask at most 1 + schema_retry_attempts + len(adaptive_top_k) times; return what fails.

        A reply that breaks the form, the quotes, gate B or a validator is requested again with the
        reasons. A reply that cites or names things outside the evidence is requested again with
        more evidence.
        """
        settings, evidence = self.question.settings, self.gathered.evidence
        ladder, left = self._list_larger_top_k(), settings.schema_retry_attempts
        correcting: tuple[Message, ...] = ()
        while True:
            try:
                prompt = _build_prompt(self.question, evidence, correcting)
            except PromptTooLongError as error:
                return [Fault("prompt_too_long", str(error))]
            reply = self._ask(chat, prompt)
            if isinstance(reply, Fault):
                return [reply]
            faults, attempt = self._judge(reply, prompt), self.answer.attempts
            if not faults:
                if left < settings.schema_retry_attempts:
                    self._add_event("question.chat.schema_retry.satisfied", attempt=attempt)
                return []
            self._reject(reply.text, faults)
            codes = _codes_of(faults)
            facts = {"codes": ",".join(codes), "message": faults[0].message}
            self._add_event("question.chat.rejected", attempt=attempt, **facts)
            correcting = _correct(reply.text, [fault.message for fault in faults])
            if not PROVENANCE.isdisjoint(codes) and ladder:
                again = self._gather_again(ladder.pop(0))
                if again.fault:
                    return [again.fault]
                evidence = again.evidence
            elif PROVENANCE.isdisjoint(codes) and left and _BROKEN_PLUGIN.isdisjoint(codes):
                left -= 1
                self.counts["schema_retries"] += 1
                self._add_event("question.chat.schema_retry", attempt=attempt + 1, left=left)
            else:
                return faults

    def _list_larger_top_k(self) -> list[int]:
        """Return the rising values of adaptive_top_k; empty if top_k cannot change the evidence."""
        ladder: list[int] = []
        if any(map(asks_for_ranking, self.question.settings.preflights)):
            for top_k in self.question.settings.adaptive_top_k:
                if top_k > max(self.answer.top_k, *ladder, 0):
                    ladder.append(top_k)
        return ladder

    def _gather_again(self, top_k: int) -> Gathered:
        self.counts["adaptive_reruns"] += 1
        self._add_event("question.chat.adaptive_rerun", top_k=top_k)
        again = self._preflights.gather(self.question, self.log, top_k)
        self.reruns.extend(again.records)
        self._set(top_k=top_k)
        return again

    def _ask(self, chat: Chat, prompt: Prompt) -> Reply | Fault:
        """Send the prompt and add its cost, even if the reply is useless."""
        settings = self.question.settings
        self._set(attempts=self.answer.attempts + 1, evidence=prompt.evidence)
        self._add_event(
            "question.chat.prepare",
            attempt=self.answer.attempts,
            mode="analyze_only" if prompt.analyze_only else "grounding",
            schema=settings.response_schema,
            evidence=len(prompt.evidence),
            left_out=prompt.left_out,
            chars=sum(len(message.content) for message in prompt.messages),
            top_k=self.answer.top_k,
            strict_response_template=True,
            retry_on_schema_fail=settings.schema_retry_attempts > 0,
            schema_retry_attempts=settings.schema_retry_attempts,
        )
        try:
            reply = chat.ask(prompt.messages)
        except ChatError as error:
            self.chat_retries += error.retries
            code = f"chat_{error.code}"
            fault = Fault(code if code in CODES else "chat_error", str(error))
            self._add_event("question.chat.failed", code=fault.code, message=fault.message)
            return fault
        self.chat_retries += reply.retries
        tokens_in, tokens_out = self.answer.tokens_in, self.answer.tokens_out
        self._set(tokens_in=tokens_in + reply.tokens_in, tokens_out=tokens_out + reply.tokens_out)
        return reply

    def _judge(self, reply: Reply, prompt: Prompt) -> Sequence[Fault]:
        """Return the faults of a reply; take its content if there is no fault."""
        settings = self.question.settings
        if reply.finish_reason in _CUT_OFF and len(reply.text) <= settings.max_reply_chars:
            return [Fault("incomplete_reply", _CUT_OFF[reply.finish_reason])]
        parsed = parse_reply(reply.text, settings, analyze_only=prompt.analyze_only)
        if isinstance(parsed, Fault):
            return [parsed]
        if parsed.outcome == "contract_error_reply":
            self._set(outcome=parsed.outcome, codes=(parsed.outcome,), text=parsed.text)
            return []
        is_answered = parsed.outcome == "answered"
        checked = judge(
            parsed.text,
            parsed.citations,
            prompt.evidence,
            refusal_to=None if is_answered else self.question.text,
            cross_section_allowed=settings.cross_section_allowed,
        )
        if checked.faults or not checked.text:
            return checked.faults or [Fault("empty_answer", "there is nothing but citations.")]
        is_bare = parsed.outcome == "not_found" and not parsed.verdict
        answer = dataclasses.replace(
            self.answer,
            outcome=parsed.outcome,
            text=NOT_FOUND if is_bare else checked.text,
            verdict=parsed.verdict,
            citations=checked.citations,
            delta_s=parsed.delta_s,
            lambda_state=parsed.lambda_state,
        )
        if is_answered:
            return self._accept(parsed.text, answer)
        self.answer = answer
        return []


# ---- The run over all questions

MAX_NAMED = 20


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerRun:
    """Answers in the order of the questions, with preflights, event lines and counts.

    Preflights of reruns come last. `counts` has attempts, schema_retries and adaptive_reruns,
    `findings` the number of findings by <postprocessor>.<kind>.
    """

    answers: tuple[Answer, ...]
    preflights: tuple[PreflightRecord, ...]
    rejected: tuple[Rejected, ...]
    events: tuple[str, ...]
    counts: dict[str, int]
    findings: dict[str, int]


class AbortedError(InputError):
    """The run ended before an answer; `events` are its event lines."""

    events: Sequence[str] = ()


def _check_tools(questions: Sequence[Question], tools: Tools) -> None:
    """Raise InputError `mode_not_available` if a question's mode lacks its input."""
    made = {"deterministic": tools.extract, "llm": tools.chat, "recorded": tools.recorded}
    available = [mode for mode, tool in made.items() if tool is not None]
    for question in questions:
        if question.settings.mode not in available:
            raise InputError.of(
                "mode_not_available",
                f"question {quoted(question.query_id)} has a mode that nothing is configured for",
                field="answer_mode",
                found=question.settings.mode,
                accepted=", ".join(available) or "none",
            )


def _check_evidence(cases: Sequence[_Case], events: Events) -> None:
    """Raise AbortedError `empty_evidence` if a question has no evidence."""
    without = (case for case in cases if not case.gathered.evidence and not case.gathered.fault)
    if empty := [quoted(case.question.query_id) for case in without]:
        more = f" and {len(empty) - MAX_NAMED} more" if len(empty) > MAX_NAMED else ""
        named, field = ", ".join(empty[:MAX_NAMED]), "answers.strict_fail_on_empty_evidence"
        message = f"no evidence for {format_count(len(empty), 'question')}: {named}{more}"
        message += f"; fix the corpus or the preflights, or switch {field} off"
        events.add("run.abort", code="empty_evidence", questions=len(empty))
        error = AbortedError(Problem("empty_evidence", message, field=field))
        error.events = events.lines
        raise error


def _finish(
    cases: Sequence[_Case], due: Sequence[_Case], tools: Tools, on_end: Callable[[], None]
) -> None:
    """Ask the model, several questions at a time; record ends in the questions' order."""
    pool = ThreadPoolExecutor(max(1, tools.concurrency), thread_name_prefix="answers")
    try:
        pending = {case: pool.submit(case.converse, tools.chat) for case in due if tools.chat}
        for case in cases:
            if case in pending:
                pending[case].result()
            answer = case.answer
            case.log.add(
                "question.done",
                query_id=answer.query_id,
                mode=answer.mode,
                outcome=answer.outcome,
                codes=",".join(answer.codes) or None,
                citations=len(answer.citations),
                attempts=answer.attempts,
                top_k=answer.top_k,
                chat_retries=case.chat_retries,
            )
            on_end()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def answer_questions(
    questions: Sequence[Question],
    config: Answers,
    tools: Tools,
    on_end: Callable[[], None] = lambda: None,
) -> AnswerRun:
    """Answer all questions; a question that fails does not stop the other questions.

    The result does not depend on the order in which a model answers. `on_end` is called at the end
    of each question. Raises InputError if a validator, its options or a mode cannot be used,
    and AbortedError, with strict_fail_on_empty_evidence, if a question has no evidence.
    """
    _check_tools(questions, tools)
    preflights = Preflights(tools.library, tools.retrieve, tools.passes)
    plugins, events = load_plugins(config), Events()
    cases = [_Case(question, preflights, plugins) for question in questions]
    modes = Counter(question.settings.mode for question in questions)
    events.add("run.start", questions=len(questions), **dict(sorted(modes.items())))
    gathering = [case for case in cases if case.question.settings.mode != "recorded"]
    for case in gathering:
        case.gather()
        events.lines += case.log.lines
        case.log.lines.clear()
    if config.strict_fail_on_empty_evidence:
        _check_evidence(gathering, events)
    to_ask = []
    for case in cases:
        query_id, mode = case.question.query_id, case.question.settings.mode
        if mode == "recorded":
            missing = Answer(query_id, "recorded", "failed", ("no_output",))
            case.end_with((tools.recorded or {}).get(query_id, missing))
        elif not case.gathered.evidence:
            continue  # a question without evidence ends NOT FOUND
        elif mode == "llm":
            to_ask.append(case)
        elif tools.extract is not None:
            case.quote(tools.extract, tools.library)
    _finish(cases, to_ask, tools, on_end)
    outcomes = Counter(case.answer.outcome for case in cases)
    extracted = itertools.chain.from_iterable(case.answer.findings for case in cases)
    findings = Counter(f"{finding.source}.{finding.kind}" for finding in extracted)
    counts = Counter(attempts=0, schema_retries=0, adaptive_reruns=0)
    for case in cases:
        counts.update(case.counts, attempts=case.answer.attempts)
        events.lines += case.log.lines
    ends = {name: outcomes[name] for name in ("answered", "failed")}
    events.add("run.done", questions=len(questions), **ends, attempts=counts["attempts"])
    records = [record for case in cases for record in case.gathered.records]
    return AnswerRun(
        tuple(case.answer for case in cases),
        (*records, *(record for case in cases for record in case.reruns)),
        tuple(row for case in cases for row in case.rejected),
        tuple(events.lines),
        dict(counts),
        dict(sorted(findings.items())),
    )
