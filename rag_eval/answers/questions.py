"""A question as it is to be answered: the gold set's defaults with the question's own overrides applied.

Belongs here: resolving. Not here: answering.
"""

import dataclasses
from typing import Literal

from rag_eval.records.answer_settings import AnswerOverride, Answers, Preflight, ResponseSchema
from rag_eval.records.answers import Mode


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """One gold question: its id, its wording, and what it wants otherwise than the gold set."""

    query_id: str
    text: str
    override: AnswerOverride | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """How one question is answered.

    Parameters
    ----------
    question
        The question.
    mode, preflights, response_schema, verdicts, top_k, schema_retry_attempts
        As in `Answers`; `schema_retry_attempts` is 0 where retry_on_schema_fail is off.
    quote_bypass, max_prompt_chars, max_reply_chars
        As in `Answers`.
    """

    question: Question
    mode: Mode
    preflights: tuple[Preflight, ...]
    response_schema: ResponseSchema
    verdicts: tuple[str, ...]
    top_k: int
    schema_retry_attempts: int
    quote_bypass: Literal["auto", "on", "off"]
    max_prompt_chars: int
    max_reply_chars: int


def plan(question: Question, config: Answers) -> Plan:
    """Apply a question's overrides to the gold set's defaults."""
    own = question.override or AnswerOverride()
    retries = (
        config.schema_retry_attempts
        if own.schema_retry_attempts is None
        else own.schema_retry_attempts
    )
    return Plan(
        question,
        own.answer_mode or config.mode,
        own.preflights or config.preflights,
        own.response_schema or config.response_schema,
        own.verdicts or config.verdicts,
        own.top_k or config.top_k,
        retries if config.retry_on_schema_fail or own.schema_retry_attempts is not None else 0,
        config.quote_bypass,
        config.max_prompt_chars,
        config.max_reply_chars,
    )
