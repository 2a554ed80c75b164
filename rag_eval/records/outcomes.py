"""Outcomes: whether a retrieval missed what was needed, as it was judged, and claims of production traffic that can be judged.

Belongs here: the records with their bounds, and the frame of outcomes. What names them is `rag_eval.uncertainty.naming`, where they are kept
`rag_eval.uncertainty.outcomes`. Every text and number is bounded, so that no file and no caller can fill the store with one row.
"""

import datetime as dt
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from rag_eval.records.confidence import Unit
from rag_eval.records.frames import schema
from rag_eval.records.snippets import SNIPPET_CHARS
from rag_eval.records.uncertainty import BinaryTarget, GoldSource, Status

MAX_ID, MAX_QUERY, MAX_NOTE, MAX_SIGNALS, MAX_NAMES, MAX_RETRIEVED, MAX_NUMBER = (
    500,
    10_000,
    500,
    200,
    100,
    1000,
    1e15,
)
HASH = r"^[A-Za-z0-9_.:-]{1,128}$"

Feedback = Literal["something_missing", "evidence_not_relevant", "nothing_missing"]
AUDITS: Final[frozenset[GoldSource]] = frozenset({"human", "deep_audit"})
"""Gold sources for which a person looked at this very claim."""


def _storable(text: str) -> str:
    if "\x00" in text or (
        not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)
    ):
        raise ValueError("a text with NUL or a lone surrogate, which no database keeps")
    return text


def _moment(value: Any) -> Any:
    if isinstance(value, str):  # strict records take no text for a time, JSON has nothing else
        try:
            value = dt.datetime.fromisoformat(value)
        except ValueError:
            raise ValueError("no ISO 8601 time such as 2026-01-31T12:00:00Z") from None
    return value


def _frozen(value: Any) -> Any:
    """Lists, of which JSON is made, as tuples, which strict records take."""
    return tuple([_frozen(item) for item in value]) if isinstance(value, list) else value


def _utc(value: dt.datetime) -> dt.datetime:
    if value.tzinfo is None:
        raise ValueError("a time without its zone; write 2026-01-31T12:00:00Z")
    if not 1 < value.year < dt.MAXYEAR:  # so that no zone takes it beyond what a year can be
        raise ValueError("a year that no clock shows")
    return value.astimezone(dt.UTC)


Id = Annotated[str, Field(min_length=1, max_length=MAX_ID), AfterValidator(_storable)]
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


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Shown(_Record):
    """What was shown of the miss rate when the claim was made."""

    value: Unit | None = None
    status: Status = "absent"
    calibrator: (
        Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_storable)] | None
    ) = None


class Outcome(_Record):
    """One judgement of one claim under one target, K and gold source. Never changed: a correction is another one that supersedes it.

    Parameters
    ----------
    outcome_id
        Follows from claim, target, k, gold source and what is superseded (`rag_eval.uncertainty.naming`), so that recording twice adds nothing.
    claim_id, query_id, group_id
        What was judged, the question, and the unit of inference.
    strategy, strategy_fingerprint
        What retrieved, by name and by everything that decides its rankings.
    missed
        Whether the retrieval missed; null where nobody can tell (feedback), or where a correction takes the judgement back.
    missed_content
        What was missed, for a person: masked, at most a snippet.
    gold_strategies
        Names or fingerprints of the strategies whose retrieval the gold was judged from; empty for gold that depends on none.
    audit_depth
        How far down the auditor looked.
    inclusion_probability
        Chance with which this claim was chosen to be judged, 1 where all were; null where unknown, which never fits a calibrator.
    feedback
        What a user said; only and always with `user_feedback`. Evidence that is not relevant is no miss.
    gold_documents
        Documents known to be gold; questions that share one are one group.
    supersedes
        The outcome that this one corrects.
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
    def _consistent(self) -> "Outcome":
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
            raise ValueError(
                "nobody knows how likely a user is to give feedback: inclusion_probability must be null"
            )
        if self.missed is None and self.feedback is None and self.supersedes is None:
            raise ValueError(
                "missed is needed, except in feedback and in a correction that takes a judgement back"
            )
        if self.missed_content is not None and self.missed is not True:
            raise ValueError("missed_content belongs to a miss")
        return self


MISSED_BY_FEEDBACK: Final[Mapping[Feedback, bool | None]] = {
    "something_missing": True,
    "evidence_not_relevant": None,
    "nothing_missing": False,
}


class Claim(_Record):
    """One retrieval of production traffic, without gold: its question (masked), what was retrieved, best first, and with which scores."""

    claim_id: Hash
    query_id: Id
    group_id: Id
    strategy: Id
    strategy_fingerprint: Id
    query: Query
    retrieved: Annotated[
        tuple[tuple[Id, Number | None], ...],
        Field(max_length=MAX_RETRIEVED),
        BeforeValidator(_frozen),
    ]
    k: Annotated[int, Field(ge=1, le=MAX_RETRIEVED)]
    miss_rate: Unit | None = None
    at: Moment | None = None


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
    missed=("float", "1 missed, 0 not, NaN where nobody can tell"),
    missed_content=("str", "what was missed; empty where unknown"),
    agent_success=("float", "1 the agent succeeded, 0 not, NaN unknown"),
    gold_source=("str", "qrels | human | llm_judge | deep_audit | user_feedback"),
    gold_strategies=("list", "strategies whose retrieval the gold was judged from"),
    gold_documents=("list", "documents known to be gold"),
    audit_depth=("float", "how far down the auditor looked; NaN where nobody did"),
    inclusion_probability=(
        "float",
        "chance with which the claim was chosen to be judged; NaN where unknown",
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
