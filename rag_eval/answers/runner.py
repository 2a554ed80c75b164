"""Answer questions: preflights, the mode of each question, prompts and replies, validators, counts.

It fails closed. A rejected reply of a model is asked for again with the reasons, or over more
evidence. The texts of the prompts are in `prompts.json`.
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

from rag_eval.answers.codes import CODES, NOT_RETRIED, PROVENANCE, Events, Fault
from rag_eval.answers.contract import (
    Candidate,
    Judged,
    Parsed,
    judge,
    load_validators,
    parse_reply,
    validate,
)
from rag_eval.answers.evidence import (
    Gathered,
    Library,
    PreflightRecord,
    Preflights,
    Question,
    Retriever,
    Withheld,
    asks_for_ranking,
    check_patterns,
)
from rag_eval.answers.extractive import Extract, Extractive, Passage
from rag_eval.core.config import Answers
from rag_eval.core.errors import InputError, Problem, quoted
from rag_eval.core.types import (
    INSUFFICIENT_EVIDENCE,
    NOT_FOUND,
    OUTCOMES,
    Answer,
    Chat,
    ChatError,
    CitedSpan,
    Evidence,
    Message,
    Mode,
    Reply,
)
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
    """Messages for the model: system and user message, then those of a correction.

    The answer may cite `evidence` only; `left_out` pieces had no room. Where `analyze_only`, the
    model refuses with INSUFFICIENT EVIDENCE, else with NOT FOUND.
    """

    messages: tuple[Message, ...]
    evidence: tuple[Evidence, ...]
    left_out: int
    analyze_only: bool

    @property
    def chars(self) -> int:
        """Length of all messages."""
        return sum(len(message.content) for message in self.messages)


class PromptTooLongError(Exception):
    """Not even one piece of evidence fits within max_prompt_chars."""


def _is_analyze_only(question: Question, evidence: Sequence[Evidence]) -> bool:
    """Tell whether the prompt is analyze-only; `auto` is where there is evidence."""
    return question.settings.quote_bypass == "on" or (
        question.settings.quote_bypass == "auto" and bool(evidence)
    )


def make_plain(text: str) -> str:
    """Remove what could be taken for a line end or a command; line feeds stay."""
    return _UNSAFE.sub("\ufffd", _BREAKS.sub(" ", text))


def _format_evidence(item: Evidence) -> str:
    first, *others = make_plain(item.chunk.text.replace("\r\n", "\n")).split("\n")
    numbered = [f"{number}| {line}" for number, line in enumerate(others, item.first_line + 1)]
    return "\n".join([f"[{quoted(item.token, 4000)}] {first}", *numbered])


def _system(question: Question, *, analyze_only: bool, nonce: str) -> str:
    gaps = f"{INSUFFICIENT_EVIDENCE}: <what is missing>"
    if question.settings.response_schema == "json":
        refusal = f'"{gaps if analyze_only else NOT_FOUND}"'
        form = _TEXTS["json_form"].format(refusal=refusal)
    else:
        form = _TEXTS["verdict_form"].format(
            verdicts=", ".join(question.settings.verdicts),
            refusal_verdict=INSUFFICIENT_EVIDENCE if analyze_only else NOT_FOUND,
            refusal_text="then the missing pieces by name" if analyze_only else "nothing after it",
        )
    task = _TEXTS["analyze" if analyze_only else "ground"]
    return "\n".join([task, form, _TEXTS["rules"].format(nonce=nonce)])


def _user(question: Question, shown: Sequence[str], nonce: str) -> str:
    block = shown or ["(no evidence was found)"]
    asked = make_plain(question.text).replace("\n", " ")
    lines = [f"<<<EVIDENCE {nonce}>>>", *block, f"<<<END {nonce}>>>", f"Question: {asked}"]
    return "\n".join(lines)


def correct(reply: str, faults: Sequence[str]) -> tuple[Message, Message]:
    """Make the messages after a rejected reply: its beginning, and what was wrong with it."""
    reasons = " ".join(make_plain(fault)[:MAX_CORRECTION_CHARS] for fault in faults)
    reasons = reasons[: 2 * MAX_CORRECTION_CHARS]
    again = "Reply again, to the same question and in the same form."
    return (
        Message("assistant", make_plain(reply[:MAX_REJECTED_CHARS]) or "(empty)"),
        Message("user", f"This reply was rejected: {reasons} {again}"),
    )


def build_prompt(
    question: Question, evidence: Sequence[Evidence], correcting: Sequence[Message] = ()
) -> Prompt:
    """Make the messages for one question, at most question.settings.max_prompt_chars long.

    Whole pieces of evidence are left out from the end until they fit. Raises PromptTooLongError
    where there is evidence and none fits, or the question itself does not fit.
    """
    analyze_only = _is_analyze_only(question, evidence)
    texts = [_format_evidence(item) for item in evidence]
    nonce = lines_hash([question.query_id, question.text, *texts], NONCE_DIGITS)
    system = _system(question, analyze_only=analyze_only, nonce=nonce)
    room = question.settings.max_prompt_chars - len(system) - len(_user(question, [], nonce))
    room -= sum(len(message.content) for message in correcting)
    used = list(itertools.accumulate(len(text) + 1 for text in texts))
    n = bisect.bisect_right(used, room)
    if n == 0 and (evidence or room < 0):
        raise PromptTooLongError(
            f"the prompt of question {quoted(question.query_id)} has more than "
            f"{question.settings.max_prompt_chars} characters with one piece of evidence"
        )
    user = _user(question, texts[:n], nonce)
    messages = (Message("system", system), Message("user", user), *correcting)
    return Prompt(messages, tuple(evidence[:n]), len(texts) - n, analyze_only)


# ---- Inputs of answering, and the end of a question

MAX_KEPT_CHARS = 2000
"""Characters of each rejected reply that are kept, so that a person can see it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tools:
    """Inputs of answering.

    Parameters
    ----------
    retrieve
        The ranking of the strategy whose evidence is used.
    withheld
        Chunks that preflights leave out of what they find without the ranking.
    extract, chat, recorded
        What the modes deterministic, llm and recorded need; None where no question uses the mode.
    concurrency
        Questions asked of the model at a time.
    """

    library: Library
    retrieve: Retriever
    withheld: Withheld
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


@dataclasses.dataclass(slots=True)
class _Ended:
    """How one question ended, with the preflights of its reruns and its part of the counts."""

    answer: Answer
    rejected: list[Rejected] = dataclasses.field(default_factory=list)
    reruns: list[PreflightRecord] = dataclasses.field(default_factory=list)
    counts: Counter[str] = dataclasses.field(default_factory=Counter)

    def fail(self, faults: Sequence[Fault], **values: Any) -> "_Ended":
        """End as failed; a rejected text is kept apart from the answer."""
        codes = tuple(dict.fromkeys(fault.code for fault in faults))
        self.answer = dataclasses.replace(self.answer, outcome="failed", codes=codes, **values)
        return self

    def reject(self, reply: str, faults: Sequence[Fault], top_k: int) -> tuple[str, ...]:
        """Keep a rejected reply and return its codes."""
        codes = tuple(dict.fromkeys(fault.code for fault in faults))
        messages = tuple(fault.message for fault in faults)
        cut = reply[:MAX_KEPT_CHARS].encode("utf-8", "backslashreplace").decode()
        answer = self.answer
        rejected = Rejected(answer.query_id, answer.attempts, top_k, codes, messages, cut)
        self.rejected.append(rejected)
        return codes


def _start(question: Question, evidence: tuple[Evidence, ...] = ()) -> Answer:
    """Make the answer of a question before anything is asked."""
    return Answer(
        question.query_id,
        question.settings.mode,
        "not_found",
        text=NOT_FOUND,
        evidence=evidence,
        attempts=0,
        top_k=question.settings.top_k,
    )


def _fail(question: Question, fault: Fault, evidence: tuple[Evidence, ...] = ()) -> _Ended:
    """End a question that failed before anything was asked."""
    return _Ended(_start(question, evidence)).fail([fault], text="")


# ---- The conversation about one question

_CUT_OFF = {
    "length": "it was cut off for its length; answer shorter.",
    "content_filter": "the endpoint's filter cut it off.",
}


class _Conversation:
    """The state of one question while a model answers it."""

    def __init__(self, question: Question, gathered: Gathered, run: "_Run", log: Events) -> None:
        self.question, self.run, self.log = question, run, log
        self.evidence, self.top_k = gathered.evidence, question.settings.top_k
        self.ladder: list[int] = []
        if any(map(asks_for_ranking, question.settings.preflights)):
            for top_k in run.config.adaptive_top_k:
                if top_k > max(self.top_k, *self.ladder, 0):
                    self.ladder.append(top_k)
        self.retries = question.settings.schema_retry_attempts
        self.correcting: tuple[Message, ...] = ()
        self.retried = False
        self.ended = _Ended(
            dataclasses.replace(_start(question, self.evidence), outcome="failed", text="")
        )

    def add_event(self, name: str, **fields: str | int) -> None:
        """Record an event of this question."""
        self.log.add(name, query_id=self.question.query_id, **fields)

    def set(self, **values: Any) -> _Ended:
        """Set fields of the answer."""
        self.ended.answer = dataclasses.replace(self.ended.answer, **values)
        return self.ended

    def ask(self, chat: Chat, prompt: Prompt) -> Reply | Fault:
        """Send the prompt and add its cost, even if the reply is useless."""
        answer, counts = self.ended.answer, self.ended.counts
        self.set(attempts=answer.attempts + 1, evidence=prompt.evidence)
        try:
            reply = chat.ask(prompt.messages)
        except ChatError as error:
            counts["chat_retries"] += error.retries
            code = f"chat_{error.code}"
            fault = Fault(code if code in CODES else "chat_error", str(error))
            self.add_event("question.chat.failed", code=fault.code, message=fault.message)
            return fault
        counts["chat_retries"] += reply.retries
        counts["cached_replies"] += reply.cached
        self.set(
            tokens_in=answer.tokens_in + reply.tokens_in,
            tokens_out=answer.tokens_out + reply.tokens_out,
            seconds=answer.seconds + reply.seconds,
        )
        return reply

    def judge(self, reply: Reply, prompt: Prompt) -> _Ended | list[Fault]:
        """End with the content of a reply, or return its faults."""
        question, settings = self.question, self.question.settings
        if reply.finish_reason in _CUT_OFF and len(reply.text) <= settings.max_reply_chars:
            return [Fault("incomplete_reply", _CUT_OFF[reply.finish_reason])]
        parsed = parse_reply(reply.text, settings, analyze_only=prompt.analyze_only)
        if isinstance(parsed, Fault):
            return [parsed]
        if parsed.outcome == "contract_error_reply":
            return self.accept(parsed, None)
        answered = parsed.outcome == "answered"
        judged = judge(
            parsed.text,
            parsed.citations,
            prompt.evidence,
            refusal_to=None if answered else question.text,
            cross_section_allowed=settings.cross_section_allowed,
        )
        faults = list(judged.faults)
        if not faults and not judged.text:
            faults = [Fault("empty_answer", "there is nothing but citations.")]
        if not faults and answered:
            candidate = Candidate(
                question.query_id,
                question.text,
                "llm",
                parsed.text,
                judged.text,
                parsed.verdict,
                judged.citations,
                prompt.evidence,
            )
            faults = self.run.ask_validators(candidate, self.ended)
        return faults or self.accept(parsed, judged)

    def accept(self, parsed: Parsed, judged: Judged | None) -> _Ended:
        """End with the content of a reply."""
        if self.retried:
            attempt = self.ended.answer.attempts
            self.add_event("question.chat.schema_retry.satisfied", attempt=attempt)
        if judged is None:
            codes = ("contract_error_reply",)
            return self.set(outcome="contract_error_reply", codes=codes, text=parsed.text)
        bare = parsed.outcome == "not_found" and not parsed.verdict
        return self.set(
            outcome=parsed.outcome,
            text=NOT_FOUND if bare else judged.text,
            verdict=parsed.verdict,
            citations=judged.citations,
            delta_s=parsed.delta_s,
            lambda_state=parsed.lambda_state,
        )

    def rerun(self) -> Fault | None:
        """Gather again with the next larger top_k."""
        self.top_k = self.ladder.pop(0)
        self.ended.counts["adaptive_reruns"] += 1
        self.add_event("question.chat.adaptive_rerun", top_k=self.top_k)
        (again,) = self.run.preflights.gather([self.question], [self.log], self.top_k)
        self.ended.reruns.extend(again.records)
        self.set(top_k=self.top_k)
        self.evidence = again.evidence
        return again.fault

    def reject(self, reply: Reply, faults: Sequence[Fault]) -> _Ended | None:
        """Keep a rejected reply and prepare the next attempt; end after the last attempt."""
        codes = self.ended.reject(reply.text, faults, self.top_k)
        attempt, message = self.ended.answer.attempts, faults[0].message
        self.add_event(
            "question.chat.rejected", attempt=attempt, codes=",".join(codes), message=message
        )
        self.correcting = correct(reply.text, [fault.message for fault in faults])
        if PROVENANCE.intersection(codes) and not NOT_RETRIED.intersection(codes) and self.ladder:
            fault = self.rerun()
            return self.ended.fail([fault]) if fault else None
        if not self.retries or (NOT_RETRIED | PROVENANCE).intersection(codes):
            return self.ended.fail(faults)
        self.retries -= 1
        self.retried = True
        self.ended.counts["schema_retries"] += 1
        self.add_event("question.chat.schema_retry", attempt=attempt + 1, left=self.retries)
        return None


def _answer_by_model(
    chat: Chat, question: Question, gathered: Gathered, run: "_Run", log: Events
) -> _Ended:
    """Answer one question in at most 1 + schema_retry_attempts + len(adaptive_top_k) replies.

    A reply that breaks the form, the quotes, gate B or a validator is asked for again with the
    reasons. A reply that cites or names what the evidence lacks is asked for again over more
    evidence. What still fails ends as `failed` with its codes and no text.
    """
    talk = _Conversation(question, gathered, run, log)
    while True:
        try:
            prompt = build_prompt(question, talk.evidence, talk.correcting)
        except PromptTooLongError as error:
            return talk.ended.fail([Fault("prompt_too_long", str(error))])
        talk.add_event(
            "question.chat.prepare",
            attempt=talk.ended.answer.attempts + 1,
            mode="analyze_only" if prompt.analyze_only else "grounding",
            schema=question.settings.response_schema,
            evidence=len(prompt.evidence),
            left_out=prompt.left_out,
            chars=prompt.chars,
            top_k=talk.top_k,
        )
        reply = talk.ask(chat, prompt)
        if isinstance(reply, Fault):
            return talk.ended.fail([reply])
        faults = talk.judge(reply, prompt)
        if isinstance(faults, _Ended):
            return faults
        if ended := talk.reject(reply, faults):
            return ended


# ---- The run over all questions

MAX_NAMED = 20


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerRun:
    """Answers in the order of the questions, and how they came about.

    Parameters
    ----------
    preflights
        In the order of the questions and steps, those of reruns after all others.
    events
        Event lines.
    counts
        questions, outcome.<outcome>, attempts, schema_retries, adaptive_reruns, chat_retries,
        cached_replies, tokens_in and tokens_out, 0 where there is none; code.<code>,
        validator_failed.<name> and validator_error.<name> where there is one. Keys sorted.
    """

    answers: tuple[Answer, ...]
    preflights: tuple[PreflightRecord, ...]
    rejected: tuple[Rejected, ...]
    events: tuple[str, ...]
    counts: dict[str, int]


def _check_tools(questions: Sequence[Question], tools: Tools) -> None:
    needs: dict[Mode, tuple[str, object]] = {
        "deterministic": ("an extractive answerer", tools.extract),
        "llm": ("answers.endpoint", tools.chat),
        "recorded": ("answers.recorded", tools.recorded),
    }
    present = ", ".join(mode for mode, (_, tool) in needs.items() if tool is not None)
    problems = []
    for mode, (need, tool) in needs.items():
        wanting = [question.query_id for question in questions if question.settings.mode == mode]
        if wanting and tool is None:
            message = (
                f"{len(wanting)} questions are answered in mode {mode}, which needs {need}; "
                f"the first is {quoted(wanting[0])}"
            )
            field, accepted = "answer_mode", present or need
            problems.append(
                Problem("mode_not_available", message, field=field, found=mode, accepted=accepted)
            )
    if problems:
        raise InputError(problems)


def _quote_sentences(
    question: Question, evidence: tuple[Evidence, ...], extract: Extract
) -> Answer:
    """Answer with the chosen sentences verbatim, one citation each; NOT FOUND where it abstains."""
    signal = float(extract.signal)
    base = dataclasses.replace(_start(question, evidence), signal=signal, attempts=1)
    if not extract.answered:
        return base
    citations = []
    for segment, sentence in enumerate(extract.sentences):
        chunk = evidence[sentence.passage].chunk
        low, start, end = chunk.offsets.start, int(sentence.start), int(sentence.end)
        quote = chunk.text[start:end]
        citations.append(
            CitedSpan(segment, sentence.passage, chunk.doc_id, low + start, low + end, quote)
        )
    text = " ".join(span.quote for span in citations)
    return dataclasses.replace(base, outcome="answered", text=text, citations=tuple(citations))


class _Run:
    """The steps over all questions; `ended` is filled mode by mode."""

    def __init__(self, questions: Sequence[Question], config: Answers, tools: Tools) -> None:
        self.questions, self.config, self.tools = questions, config, tools
        self.validators = load_validators(config.validators)
        self.preflights = Preflights(tools.library, tools.retrieve, tools.withheld)
        self.logs = [Events() for _ in questions]
        self.gathered: dict[int, Gathered] = {}
        self.ended: dict[int, _Ended] = {}

    def ask_validators(self, candidate: Candidate, ended: _Ended) -> list[Fault]:
        """Return the objections of the domain validators to an answer, and count them."""
        found = validate(candidate, self.validators)
        ended.counts.update(f"{fault.code}.{name}" for name, fault in found)
        return [fault for _, fault in found]

    def check_answer(self, answer: Answer, question: Question) -> _Ended:
        """Fail an answer that a validator rejects; no model can be asked for it again."""
        ended = _Ended(answer)
        if answer.outcome == "answered":
            candidate = Candidate(
                answer.query_id,
                question.text,
                answer.mode,
                answer.text,
                answer.text,
                answer.verdict,
                answer.citations,
                answer.evidence,
            )
            if faults := self.ask_validators(candidate, ended):
                ended.reject(answer.text, faults, answer.top_k)
                ended.fail(faults, text="", citations=())
        return ended

    def gather(self) -> None:
        """Run the preflights; questions without evidence, or whose preflight failed, end here."""
        asked = [
            number
            for number, question in enumerate(self.questions)
            if question.settings.mode != "recorded"
        ]
        questions, logs = [self.questions[n] for n in asked], [self.logs[n] for n in asked]
        found = self.preflights.gather(questions, logs)
        self.gathered = dict(zip(asked, found, strict=True))
        empty = []
        for number, gathered in self.gathered.items():
            question = self.questions[number]
            if gathered.fault:
                self.ended[number] = _fail(question, gathered.fault)
            elif not gathered.evidence:
                empty.append(question.query_id)
                self.ended[number] = _Ended(_start(question))
        if empty and self.config.strict_fail_on_empty_evidence:
            named = ", ".join(quoted(query_id) for query_id in empty[:MAX_NAMED])
            more = f" and {len(empty) - MAX_NAMED} more" if len(empty) > MAX_NAMED else ""
            field = "answers.strict_fail_on_empty_evidence"
            message = (
                f"no evidence for {len(empty)} questions: {named}{more}; mend the corpus or the "
                f"preflights, or switch {field} off"
            )
            found_text = f"{len(empty)} questions"
            raise InputError(Problem("empty_evidence", message, field=field, found=found_text))

    def list_due(self, mode: Mode) -> list[int]:
        """Return the questions of a mode that have not ended."""
        return [
            number
            for number, question in enumerate(self.questions)
            if question.settings.mode == mode and number not in self.ended
        ]

    def answer_recorded(self, recorded: Mapping[str, Answer]) -> None:
        """Take the answers of the user's own system."""
        for number in self.list_due("recorded"):
            question = self.questions[number]
            missing = Answer(question.query_id, "recorded", "failed", ("no_output",))
            answer = recorded.get(question.query_id, missing)
            self.ended[number] = self.check_answer(answer, question)

    def answer_deterministic(self, extract: Extractive) -> None:
        """Answer all questions of the mode with sentences of the evidence, in one call."""
        numbers = self.list_due("deterministic")
        title = self.tools.library.title
        passages = [
            [
                Passage(item.chunk.text, title(item.chunk.doc_id), rank=rank)
                for rank, item in enumerate(self.gathered[number].evidence, 1)
            ]
            for number in numbers
        ]
        extracts = extract.answer([self.questions[number].text for number in numbers], passages)
        for number, chosen in zip(numbers, extracts, strict=True):
            question = self.questions[number]
            answer = _quote_sentences(question, self.gathered[number].evidence, chosen)
            self.ended[number] = self.check_answer(answer, question)

    def answer_by_model(self, chat: Chat, number: int) -> _Ended:
        """Answer by the model; one question's error never stops the others."""
        question, gathered, log = self.questions[number], self.gathered[number], self.logs[number]
        try:
            return _answer_by_model(chat, question, gathered, self, log)
        except Exception as error:  # noqa: BLE001 - the endpoint adapter may be anybody's code
            log.add(
                "question.error",
                query_id=question.query_id,
                error=type(error).__name__,
                message=str(error),
            )
            return _fail(question, Fault("internal_error", str(error)), gathered.evidence)

    def finish(self, on_end: Callable[[], None]) -> None:
        """Ask the model, several questions at a time; record ends in the questions' order."""
        workers = max(1, self.tools.concurrency)
        pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="answers")
        try:
            asked = {}
            if chat := self.tools.chat:
                asked = {
                    number: pool.submit(self.answer_by_model, chat, number)
                    for number in self.list_due("llm")
                }
            for number, log in enumerate(self.logs):
                if number in asked:
                    self.ended[number] = asked[number].result()
                answer = self.ended[number].answer
                log.add(
                    "question.done",
                    query_id=answer.query_id,
                    mode=answer.mode,
                    outcome=answer.outcome,
                    codes=",".join(answer.codes) or None,
                    citations=len(answer.citations),
                    attempts=answer.attempts,
                    top_k=answer.top_k,
                    chat_retries=self.ended[number].counts["chat_retries"],
                )
                on_end()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def count(self) -> dict[str, int]:
        """Sum up the run; see `AnswerRun.counts`."""
        always = (
            *("attempts", "schema_retries", "adaptive_reruns", "chat_retries", "cached_replies"),
            *("tokens_in", "tokens_out", *(f"outcome.{outcome}" for outcome in OUTCOMES)),
        )
        counts = Counter({**dict.fromkeys(always, 0), "questions": len(self.questions)})
        for ended in self.ended.values():
            answer = ended.answer
            counts.update(ended.counts)
            counts.update([f"outcome.{answer.outcome}", *(f"code.{code}" for code in answer.codes)])
            for name in ("attempts", "tokens_in", "tokens_out"):
                counts[name] += getattr(answer, name)
        return dict(sorted(counts.items()))


def answer_questions(
    questions: Sequence[Question],
    config: Answers,
    tools: Tools,
    on_end: Callable[[], None] = lambda: None,
) -> AnswerRun:
    """Answer all questions; each ends with an outcome, and no question's failure stops another.

    The result does not depend on the order in which a model answers. `on_end` is called as each
    question has ended.

    Raises
    ------
    InputError
        A validator, its options, a pattern or a mode cannot be used; or `empty_evidence`, where
        strict_fail_on_empty_evidence is on and a question has no evidence.
    """
    _check_tools(questions, tools)
    check_patterns(questions)
    run, events = _Run(questions, config, tools), Events()
    modes = Counter(question.settings.mode for question in questions)
    events.add("run.start", questions=len(questions), **dict(sorted(modes.items())))
    run.gather()
    for log in run.logs:  # first the counts of the evidence, then the ends of the questions
        events.lines += log.lines
        log.lines.clear()
    if tools.recorded is not None:
        run.answer_recorded(tools.recorded)
    if tools.extract is not None:
        run.answer_deterministic(tools.extract)
    run.finish(on_end)
    ended, counts = [run.ended[number] for number in range(len(questions))], run.count()
    for log in run.logs:
        events.lines += log.lines
    events.add(
        "run.done",
        questions=len(questions),
        answered=counts["outcome.answered"],
        failed=counts["outcome.failed"],
        attempts=counts["attempts"],
    )
    gathered = [record for found in run.gathered.values() for record in found.records]
    return AnswerRun(
        tuple(one.answer for one in ended),
        (*gathered, *(record for one in ended for record in one.reruns)),
        tuple(row for one in ended for row in one.rejected),
        tuple(events.lines),
        counts,
    )
