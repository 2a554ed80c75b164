"""Outcomes, which say whether a retrieval missed needed evidence.

Every text and number of an outcome is bounded, so that no file can fill the store with one row.
"""

import datetime as dt
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from rag_eval.core.frames import schema
from rag_eval.core.types import SNIPPET_CHARS, BinaryTarget, GoldSource, Id, Status
from rag_eval.uncertainty.confidence_values import StrictRecord, UnitInterval

MAX_QUERY, MAX_NOTE = 10_000, 500
MAX_SIGNALS, MAX_NAMES, MAX_NUMBER = 200, 100, 1e15
HASH = r"^[A-Za-z0-9_.:-]{1,128}$"

Feedback = Literal["something_missing", "evidence_not_relevant", "nothing_missing"]
AUDITS: Final[frozenset[GoldSource]] = frozenset({"human", "deep_audit"})
"""Gold sources of which a person judged the claim itself."""


def _storable(text: str) -> str:
    if "\x00" in text or (
        not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)
    ):
        raise ValueError("a text with NUL or a lone surrogate, which no database keeps")
    return text


def _moment(value: Any) -> Any:
    if isinstance(value, str):  # JSON has times only as text, which strict records refuse
        try:
            value = dt.datetime.fromisoformat(value)
        except ValueError:
            raise ValueError("no ISO 8601 time such as 2026-01-31T12:00:00Z") from None
    return value


def _frozen(value: Any) -> Any:
    """Turn the lists of JSON into tuples, because strict records take no lists."""
    return tuple([_frozen(item) for item in value]) if isinstance(value, list) else value


def _utc(value: dt.datetime) -> dt.datetime:
    if value.tzinfo is None:
        raise ValueError("a time without its zone; write 2026-01-31T12:00:00Z")
    if not 1 < value.year < dt.MAXYEAR:  # so that UTC stays within the years of datetime
        raise ValueError("a year outside 2 to 9998")
    return value.astimezone(dt.UTC)


Note = Annotated[str, Field(max_length=MAX_NOTE), AfterValidator(_storable)]
Content = Annotated[str, Field(min_length=1, max_length=SNIPPET_CHARS), AfterValidator(_storable)]
Query = Annotated[str, Field(min_length=1, max_length=MAX_QUERY), AfterValidator(_storable)]
Hash = Annotated[str, Field(pattern=HASH)]
Number = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Probability = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Moment = Annotated[dt.datetime, BeforeValidator(_moment), AfterValidator(_utc)]
SignalName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@/-]{1,64}$")]
Names = Annotated[tuple[Id, ...], Field(max_length=MAX_NAMES), BeforeValidator(_frozen)]


class Shown(StrictRecord):
    """The miss rate that was shown when the claim was made."""

    value: UnitInterval | None = None
    status: Status = "absent"
    calibrator: (
        Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_storable)] | None
    ) = None


class RetrievalOutcome(StrictRecord):
    """One judgement of one claim under one target, K and gold source; never changed.

    A correction is another outcome that `supersedes` this one. `outcome_id` follows from claim,
    target, k, gold source and `supersedes`, so recording twice adds nothing. `missed` is null if
    the feedback does not tell, or if a correction takes the judgement back.
    `missed_content` is masked, at most a snippet. `gold_strategies` are the strategies whose
    results were judged to make the gold. `inclusion_probability` is the probability that this claim
    was drawn for judging; an outcome with null there never fits a calibrator. Questions that share
    a document of `gold_documents` are one group.
    """

    outcome_id: Hash
    claim_id: Hash
    query_id: Id
    group_id: Id
    strategy: Id
    strategy_fingerprint: Id
    target: BinaryTarget
    k: Count
    missed: bool | None
    missed_content: Content | None = None
    agent_success: bool | None = None
    gold_source: GoldSource
    gold_strategies: Names = ()
    gold_documents: Names = ()
    audit_depth: Count | None = None
    inclusion_probability: Probability | None = None
    signals: Annotated[Mapping[SignalName, Number | None], Field(max_length=MAX_SIGNALS)] = {}
    shown: Shown = Shown()
    feedback: Feedback | None = None
    supersedes: Hash | None = None
    note: Note = ""
    at: Moment

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.gold_source == "user_feedback") != (self.feedback is not None):
            raise ValueError("feedback belongs to gold_source user_feedback, and to no other")
        if (
            self.feedback is not None
            and self.missed is not MISSED_BY_FEEDBACK[self.feedback]
            and not (self.missed is None and self.supersedes)
        ):
            raise ValueError(
                f"missed must be {MISSED_BY_FEEDBACK[self.feedback]} for feedback {self.feedback}"
            )
        if self.feedback is not None and self.inclusion_probability is not None:
            raise ValueError("feedback has no known inclusion_probability: it must be null")
        if self.missed is None and self.feedback is None and self.supersedes is None:
            raise ValueError(
                "missed is needed, except in feedback and where a judgement is withdrawn"
            )
        if self.missed_content is not None and self.missed is not True:
            raise ValueError("missed_content belongs to a miss")
        return self


MISSED_BY_FEEDBACK: Final[Mapping[Feedback, bool | None]] = {
    "something_missing": True,
    "evidence_not_relevant": None,
    "nothing_missing": False,
}


RETRIEVAL_OUTCOMES = schema(
    "retrieval_outcomes",
    outcome_id=("str", "unique"),
    claim_id=("str", "what was judged"),
    query_id=("str", "its question"),
    group_id=("str", "unit of inference, joined over shared gold documents"),
    strategy=("str", "name of the strategy"),
    strategy_fingerprint=("str", "identity of everything that decides its rankings"),
    target=("str", "miss_any | miss_some"),
    k=("int", "cutoff of the target"),
    missed=("float", "1 missed, 0 not, NaN where it is not known"),
    missed_content=("str", "what was missed; empty where unknown"),
    agent_success=("float", "1 the agent succeeded, 0 not, NaN unknown"),
    gold_source=("str", "qrels | human | llm_judge | deep_audit | user_feedback"),
    gold_strategies=("list", "strategies whose retrieval the gold was judged from"),
    gold_documents=("list", "documents known to be gold"),
    audit_depth=("float", "depth to which the auditor looked; NaN without an auditor"),
    inclusion_probability=(
        "float",
        "probability that the claim was drawn for judgement; NaN where unknown",
    ),
    signals=("list", "name -> number or None"),
    shown_value=("float", "miss rate that was shown; NaN where none was"),
    shown_status=("str", "what it had earned"),
    shown_calibrator=("str", "id of the calibrator that gave it; empty where none did"),
    feedback=("str", "what a user said; empty where none did"),
    supersedes=("str", "the outcome that this one corrects; empty for none"),
    note=("str", "why, for a person"),
    at=("str", "UTC, ISO 8601"),
)
