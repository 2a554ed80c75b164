"""Questions -> answers: overrides, preflights, then the mode of each question, validators, outcomes and counts. It fails closed.

Belongs here: the order of the steps over all questions. What one question does in the llm mode is `llm_mode`.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rag_eval.answers.codes import Fault
from rag_eval.answers.ending import extracted, failed, not_found, validated
from rag_eval.answers.events import Events
from rag_eval.answers.llm_mode import Ended, ModelTools, answer_by_model
from rag_eval.answers.preflights import Gathered, Preflights, check_patterns
from rag_eval.answers.questions import Plan, Question, plan
from rag_eval.answers.tools import Tools
from rag_eval.answers.validators import load_validators
from rag_eval.records.answer_settings import Answers
from rag_eval.records.answers import OUTCOMES, Answer, Mode
from rag_eval.records.problems import InputError, Problem, quoted

MAX_NAMED = 20
_ALWAYS_COUNTED = (
    "attempts",
    "schema_retries",
    "adaptive_reruns",
    "chat_retries",
    "cached_replies",
    "tokens_in",
    "tokens_out",
)


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerRun:
    """Answers in the order of the questions, and how they came about.

    Parameters
    ----------
    answers
        One a question.
    preflights
        Artifacts, in the order of the questions and steps, those of reruns after all others.
    rejected
        Rows about rejected replies (`llm_mode.Ended.rejected`).
    events
        Event lines.
    counts
        questions, outcome.<outcome>, attempts, schema_retries, adaptive_reruns, chat_retries, cached_replies, tokens_in and tokens_out, 0 where
        there is none; code.<code>, validator_failed.<name> and validator_error.<name> where there is one. Keys sorted.
    """

    answers: tuple[Answer, ...]
    preflights: tuple[dict[str, Any], ...]
    rejected: tuple[dict[str, Any], ...]
    events: tuple[str, ...]
    counts: dict[str, int]


class EmptyEvidenceError(Exception):
    """strict_fail_on_empty_evidence is on and some questions have no evidence; nothing was asked of any model."""

    def __init__(self, query_ids: Sequence[str]) -> None:
        named = ", ".join(quoted(query_id) for query_id in query_ids[:MAX_NAMED])
        more = f" and {len(query_ids) - MAX_NAMED} more" if len(query_ids) > MAX_NAMED else ""
        super().__init__(
            f"no evidence for {len(query_ids)} questions: {named}{more}; mend the corpus or the preflights, or switch answers.strict_fail_on_empty_evidence off"
        )
        self.query_ids = tuple(query_ids)


def _check_tools(plans: Sequence[Plan], tools: Tools) -> None:
    present: dict[Mode, bool] = {
        "deterministic": tools.extract is not None,
        "llm": tools.chat is not None,
        "recorded": tools.recorded is not None,
    }
    needs = {
        "deterministic": "an extractive answerer",
        "llm": "answers.endpoint",
        "recorded": "answers.recorded",
    }
    problems = []
    for mode, here in present.items():
        wanting = [plan.question.query_id for plan in plans if plan.mode == mode]
        if wanting and not here:
            accepted = ", ".join(name for name, there in present.items() if there) or needs[mode]
            problems.append(
                Problem(
                    "mode_not_available",
                    f"{len(wanting)} questions are answered in mode {mode}, which needs {needs[mode]}; the first is {quoted(wanting[0])}",
                    field="answer_mode",
                    found=mode,
                    accepted=accepted,
                )
            )
    if problems:
        raise InputError(problems)


def _guarded(plan: Plan, gathered: Gathered, tools: ModelTools, log: Events) -> Ended:
    """One question's error never stops the others."""
    try:
        return answer_by_model(plan, gathered, tools, log)
    except Exception as error:  # noqa: BLE001 - an endpoint adapter may be anybody's code; the question fails, and the log says why
        log.add(
            "question.error",
            query_id=plan.question.query_id,
            error=type(error).__name__,
            message=str(error),
        )
        return failed(plan, Fault("internal_error", str(error)), gathered.evidence)


def _counts(ended: Sequence[Ended]) -> dict[str, int]:
    names = (*_ALWAYS_COUNTED, *(f"outcome.{outcome}" for outcome in OUTCOMES))
    counts: Counter[str] = Counter(dict.fromkeys(names, 0) | {"questions": len(ended)})
    for one in ended:
        answer = one.answer
        counts.update(one.counts)
        counts[f"outcome.{answer.outcome}"] += 1
        counts.update(f"code.{code}" for code in answer.codes)
        counts.update(
            attempts=answer.attempts, tokens_in=answer.tokens_in, tokens_out=answer.tokens_out
        )
    return dict(sorted(counts.items()))


class _Run:
    """The steps over all questions; `ended` is filled mode by mode."""

    def __init__(self, plans: Sequence[Plan], config: Answers, tools: Tools, sink: Events) -> None:
        self.plans, self.config, self.tools, self.sink = plans, config, tools, sink
        self.validators = load_validators(config.validators)
        self.preflights = Preflights(tools.library, tools.retrieve, tools.withheld)
        self.logs = [Events() for _ in plans]
        self.gathered: dict[int, Gathered] = {}
        self.artifacts: list[dict[str, Any]] = []
        self.ended: dict[int, Ended] = {}

    def flush(self, number: int) -> None:
        """Pass a question's events on."""
        for line in self.logs[number].lines:
            self.sink.take(line)
        self.logs[number] = Events()

    def keep(self, artifacts: Sequence[dict[str, Any]]) -> None:
        """Keep and store artifacts."""
        self.artifacts.extend(artifacts)
        if self.tools.store is not None:
            for artifact in artifacts:
                self.tools.store(artifact)

    def gather(self) -> None:
        """Preflights of all questions that are answered here; the end of those that have none to answer from."""
        numbers = [number for number, plan in enumerate(self.plans) if plan.mode != "recorded"]
        found = self.preflights.gather(
            [self.plans[number] for number in numbers], [self.logs[number] for number in numbers]
        )
        self.gathered = dict(zip(numbers, found, strict=True))
        for number, gathered in self.gathered.items():
            self.flush(number)
            self.keep(gathered.artifacts)
        empty = [
            number
            for number, gathered in self.gathered.items()
            if gathered.fault is None and not gathered.evidence
        ]
        if empty and self.config.strict_fail_on_empty_evidence:
            self.sink.add("run.aborted", reason="empty_evidence", questions=len(empty))
            raise EmptyEvidenceError([self.plans[number].question.query_id for number in empty])
        self.ended.update({number: not_found(self.plans[number]) for number in empty})
        self.ended.update(
            {
                number: failed(self.plans[number], gathered.fault)
                for number, gathered in self.gathered.items()
                if gathered.fault
            }
        )

    def due(self, mode: Mode) -> list[int]:
        """Questions of a mode that have not ended."""
        return [
            number
            for number, plan in enumerate(self.plans)
            if plan.mode == mode and number not in self.ended
        ]

    def recorded(self) -> None:
        """Answers of the user's own system."""
        for number in self.due("recorded"):
            plan = self.plans[number]
            answer = (self.tools.recorded or {}).get(plan.question.query_id)
            self.ended[number] = (
                failed(plan, Fault("no_output", ""))
                if answer is None
                else validated(answer, plan, self.validators)
            )

    def deterministic(self) -> None:
        """Extractive answers."""
        numbers = self.due("deterministic")
        if numbers and self.tools.extract is not None:
            plans, gathered = (
                [self.plans[number] for number in numbers],
                [self.gathered[number] for number in numbers],
            )
            self.ended.update(
                zip(
                    numbers,
                    extracted(
                        plans, gathered, self.tools.extract, self.tools.library, self.validators
                    ),
                    strict=True,
                )
            )

    def model(self) -> None:
        """Answers of a model, several at a time; events and artifacts in the order of the questions."""
        numbers = self.due("llm")
        if not numbers or self.tools.chat is None:
            self.finish(range(len(self.plans)))
            return
        tools = ModelTools(
            self.tools.chat,
            self.preflights,
            self.validators,
            self.config.adaptive_top_k,
            self.config.cross_section_allowed,
        )
        pool = ThreadPoolExecutor(
            max_workers=max(1, self.tools.concurrency), thread_name_prefix="answers"
        )
        try:
            asked = {
                number: pool.submit(
                    _guarded, self.plans[number], self.gathered[number], tools, self.logs[number]
                )
                for number in numbers
            }
            for number in range(len(self.plans)):
                if number in asked:
                    self.ended[number] = asked[number].result()
                self.finish([number])
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def finish(self, numbers: Sequence[int]) -> None:
        """Say how questions ended."""
        for number in numbers:
            one = self.ended[number]
            self.keep(one.artifacts)
            answer = one.answer
            self.logs[number].add(
                "question.done",
                query_id=answer.query_id,
                mode=answer.mode,
                outcome=answer.outcome,
                codes=",".join(answer.codes) or None,
                citations=len(answer.citations),
                attempts=answer.attempts,
                top_k=answer.top_k,
                chat_retries=one.counts["chat_retries"],
            )
            self.flush(number)


def answer_questions(
    questions: Sequence[Question], config: Answers, tools: Tools, sink: Events | None = None
) -> AnswerRun:
    """Answer all questions; each ends with an outcome, and no question's failure stops another.

    Parameters
    ----------
    questions
        With their overrides; query ids differ.
    config
        `answers` of the gold set.
    tools
        The corpus, the ranking and the answerers.
    sink
        Collects the events; the default keeps them in the result only.

    Returns
    -------
    AnswerRun
        Answers in the order of the questions. The same whatever the order in which a model answers.

    Raises
    ------
    InputError
        A validator, its options, a pattern or a mode cannot be used; every problem at once for each kind.
    EmptyEvidenceError
        strict_fail_on_empty_evidence is on and a question has no evidence; raised before any model is asked.
    """
    sink = Events() if sink is None else sink
    before = len(sink.lines)
    plans = [plan(question, config) for question in questions]
    _check_tools(plans, tools)
    check_patterns(plans)
    run = _Run(plans, config, tools, sink)
    modes = Counter(plan.mode for plan in plans)
    sink.add("run.start", questions=len(plans), **{mode: modes[mode] for mode in sorted(modes)})
    run.gather()
    run.recorded()
    run.deterministic()
    run.model()
    ended = [run.ended[number] for number in range(len(plans))]
    counts = _counts(ended)
    sink.add(
        "run.done",
        questions=len(plans),
        answered=counts["outcome.answered"],
        failed=counts["outcome.failed"],
        attempts=counts["attempts"],
    )
    rejected = tuple(row for one in ended for row in one.rejected)
    return AnswerRun(
        tuple(one.answer for one in ended),
        tuple(run.artifacts),
        rejected,
        tuple(sink.lines[before:]),
        counts,
    )
