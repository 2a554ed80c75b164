"""The llm mode for one question: prompt, reply, judgement, and again with what was wrong, or with more evidence, or failed.

Belongs here: the loop and its limits. Forms, gates and validators have modules of their own.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rag_eval.answers.codes import NOT_RETRIED, PROVENANCE, Fault, chat_code
from rag_eval.answers.events import Events
from rag_eval.answers.gates import Judged, judge
from rag_eval.answers.preflights import Gathered, Preflights, depends_on_top_k
from rag_eval.answers.prompts import Prompt, PromptTooLongError, build_prompt, correction
from rag_eval.answers.questions import Plan
from rag_eval.answers.replies import Parsed, Terms, parse_reply
from rag_eval.answers.validators import Candidate, Validator, validate
from rag_eval.records.answers import NOT_FOUND, Answer, Chat, ChatError, Evidence, Message, Reply

MAX_KEPT_CHARS = 2000
"""Of each rejected reply, so that a person can see what was rejected."""

_CUT_OFF = {
    "length": "it was cut off for its length; answer shorter.",
    "content_filter": "the endpoint's filter cut it off.",
}


@dataclasses.dataclass(frozen=True, slots=True)
class ModelTools:
    """What the llm mode works with; `adaptive_top_k` and `cross_section_allowed` as in `Answers`."""

    chat: Chat
    preflights: Preflights
    validators: tuple[Validator, ...]
    adaptive_top_k: tuple[int, ...]
    cross_section_allowed: tuple[tuple[str, str], ...]


@dataclasses.dataclass(slots=True)
class Ended:
    """How one question ended.

    Parameters
    ----------
    answer
        The answer.
    rejected
        One row for each reply that was rejected: {query_id, attempt, top_k, codes, messages, reply (its beginning)}.
    artifacts
        Preflight artifacts of reruns.
    counts
        schema_retries, adaptive_reruns, chat_retries, cached_replies, validator_failed.<name>, validator_error.<name>.
    """

    answer: Answer
    rejected: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    artifacts: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    counts: Counter[str] = dataclasses.field(default_factory=Counter)


class _Conversation:
    """The state of one question while it is answered."""

    def __init__(
        self, plan: Plan, evidence: tuple[Evidence, ...], tools: ModelTools, log: Events
    ) -> None:
        self.plan, self.evidence, self.tools, self.log = plan, evidence, tools, log
        self.query_id = plan.question.query_id
        self.top_k = plan.top_k
        self.ladder = (
            [top_k for top_k in tools.adaptive_top_k if top_k > plan.top_k]
            if depends_on_top_k(plan.preflights)
            else []
        )
        self.retries = plan.schema_retry_attempts
        self.correcting: tuple[Message, ...] = ()
        self.retried = False
        self.ended = Ended(
            Answer(self.query_id, "llm", "failed", evidence=evidence, attempts=0, top_k=plan.top_k)
        )

    def finish(self, **values: Any) -> Ended:
        """Set the answer's fields."""
        self.ended.answer = dataclasses.replace(self.ended.answer, **values)
        return self.ended

    def fail(self, faults: Sequence[Fault]) -> Ended:
        """End as failed; the rejected text is kept apart from the answer."""
        return self.finish(
            outcome="failed", codes=tuple(dict.fromkeys(fault.code for fault in faults))
        )

    def ask(self, prompt: Prompt) -> Reply | Fault:
        """Send the prompt; what it cost is added up whether or not the reply is of use."""
        answer = self.ended.answer
        self.finish(attempts=answer.attempts + 1, evidence=prompt.evidence)
        try:
            reply = self.tools.chat.ask(prompt.messages)
        except ChatError as error:
            self.ended.counts["chat_retries"] += error.retries
            return Fault(chat_code(error.code), str(error))
        self.ended.counts["chat_retries"] += reply.retries
        self.ended.counts["cached_replies"] += reply.cached
        self.finish(
            tokens_in=answer.tokens_in + reply.tokens_in,
            tokens_out=answer.tokens_out + reply.tokens_out,
            seconds=answer.seconds + reply.seconds,
        )
        return reply

    def judged(
        self, reply: Reply, prompt: Prompt
    ) -> tuple[Parsed | None, Judged | None, list[Fault]]:
        """What a reply says, where it points, and what is wrong with it."""
        plan = self.plan
        terms = Terms(
            plan.response_schema, plan.verdicts, prompt.analyze_only, plan.max_reply_chars
        )
        if reply.finish_reason in _CUT_OFF and len(reply.text) <= plan.max_reply_chars:
            return None, None, [Fault("incomplete_reply", _CUT_OFF[reply.finish_reason])]
        parsed = parse_reply(reply.text, terms)
        if isinstance(parsed, Fault):
            return None, None, [parsed]
        if parsed.outcome == "contract_error_reply":
            return parsed, None, []
        refusal_to = None if parsed.outcome == "answered" else plan.question.text
        judged = judge(
            parsed.text,
            parsed.citations,
            prompt.evidence,
            refusal_to=refusal_to,
            cross_section_allowed=self.tools.cross_section_allowed,
        )
        faults = list(judged.faults)
        if not faults and not judged.text:
            faults = [Fault("empty_answer", "there is nothing but citations.")]
        if not faults and parsed.outcome == "answered":
            candidate = Candidate(
                self.query_id,
                plan.question.text,
                "llm",
                parsed.text,
                judged.text,
                parsed.verdict,
                judged.citations,
                prompt.evidence,
            )
            for name, fault in validate(candidate, self.tools.validators):
                self.ended.counts[f"{fault.code}.{name}"] += 1
                faults.append(fault)
        return parsed, judged, faults

    def accept(self, parsed: Parsed, judged: Judged | None) -> Ended:
        """End with what a reply says."""
        if self.retried:
            self.log.add(
                "question.chat.schema_retry.satisfied",
                query_id=self.query_id,
                attempt=self.ended.answer.attempts,
            )
        if judged is None:
            return self.finish(
                outcome="contract_error_reply", codes=("contract_error_reply",), text=parsed.text
            )
        text = NOT_FOUND if parsed.outcome == "not_found" and not parsed.verdict else judged.text
        return self.finish(
            outcome=parsed.outcome,
            text=text,
            verdict=parsed.verdict,
            citations=judged.citations,
            delta_s=parsed.delta_s,
            lambda_state=parsed.lambda_state,
        )

    def reject(self, reply: Reply, faults: Sequence[Fault]) -> None:
        """Keep what was wrong, for the record and for the next attempt."""
        codes = list(dict.fromkeys(fault.code for fault in faults))
        messages = [fault.message for fault in faults]
        self.ended.rejected.append(
            {
                "query_id": self.query_id,
                "attempt": self.ended.answer.attempts,
                "top_k": self.top_k,
                "codes": codes,
                "messages": messages,
                "reply": reply.text[:MAX_KEPT_CHARS].encode("utf-8", "backslashreplace").decode(),
            }
        )
        self.log.add(
            "question.chat.rejected",
            query_id=self.query_id,
            attempt=self.ended.answer.attempts,
            codes=",".join(codes),
            message=messages[0],
        )
        self.correcting = correction(reply.text, messages)

    def rerun(self) -> Fault | None:
        """Gather again with the next larger top_k."""
        self.top_k = self.ladder.pop(0)
        self.ladder = [top_k for top_k in self.ladder if top_k > self.top_k]
        self.ended.counts["adaptive_reruns"] += 1
        self.log.add("question.chat.adaptive_rerun", query_id=self.query_id, top_k=self.top_k)
        (again,) = self.tools.preflights.gather([self.plan], [self.log], self.top_k)
        self.ended.artifacts.extend(again.artifacts)
        self.finish(top_k=self.top_k)
        self.evidence = again.evidence
        return again.fault

    def retry(self, faults: Sequence[Fault]) -> Ended | None:
        """Prepare the next attempt; how it ended where there is none."""
        codes = {fault.code for fault in faults}
        if codes & NOT_RETRIED:
            return self.fail(faults)
        if codes & PROVENANCE:
            if not self.ladder:
                return self.fail(faults)
            broken = self.rerun()
            return self.fail([broken]) if broken else None
        if not self.retries:
            return self.fail(faults)
        self.retries -= 1
        self.retried = True
        self.ended.counts["schema_retries"] += 1
        self.log.add(
            "question.chat.schema_retry",
            query_id=self.query_id,
            attempt=self.ended.answer.attempts + 1,
            left=self.retries,
        )
        return None


def answer_by_model(plan: Plan, gathered: Gathered, tools: ModelTools, log: Events) -> Ended:
    """Answer one question, within 1 + schema_retry_attempts + len(adaptive_top_k) replies.

    A reply that breaks the form, the quotes, gate B or a domain validator is asked for again with the message; one that cites or names what the
    evidence lacks is asked for again over more evidence. What still fails ends as `failed` with its codes and no text.
    """
    talk = _Conversation(plan, gathered.evidence, tools, log)
    while True:
        try:
            prompt = build_prompt(plan, talk.evidence, talk.correcting)
        except PromptTooLongError as error:
            return talk.fail([Fault("prompt_too_long", str(error))])
        log.add(
            "question.chat.prepare",
            query_id=talk.query_id,
            attempt=talk.ended.answer.attempts + 1,
            mode="analyze_only" if prompt.analyze_only else "grounding",
            schema=plan.response_schema,
            evidence=len(prompt.evidence),
            left_out=prompt.left_out,
            chars=prompt.chars,
            top_k=talk.top_k,
        )
        reply = talk.ask(prompt)
        if isinstance(reply, Fault):
            log.add(
                "question.chat.failed",
                query_id=talk.query_id,
                code=reply.code,
                message=reply.message,
            )
            return talk.fail([reply])
        parsed, judged, faults = talk.judged(reply, prompt)
        if parsed is not None and not faults:
            return talk.accept(parsed, judged)
        talk.reject(reply, faults)
        if ended := talk.retry(faults):
            return ended
