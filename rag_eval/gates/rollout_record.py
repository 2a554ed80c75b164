"""The record of a rollout: what was planned and decided, in order; events are only ever added.

Belongs here: the shape of the file and where a rollout stands by it. Reading and writing it is `rag_eval.evaluation.rollouts`.
"""

import dataclasses
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from rag_eval.gates.rollout_assignment import STAGES
from rag_eval.gates.rollout_decision import Action
from rag_eval.records.configuration_parts import Name
from rag_eval.records.gold_set import Level

Text = Annotated[str, Field(max_length=2000)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
At = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StagePlan(_Part):
    """One stage: how many questions it needs, and what the gold set has for it.

    `needed` counts independent questions that are new at this stage; `traffic` is how many distinct questions must be asked until so many of
    them are. `detects` is the smallest relative degradation that the gold set's questions at this stage tell from zero, None where
    not even a loss of everything would be.
    """

    share: float = Field(gt=0, le=1)
    needed: int = Field(ge=1)
    traffic: int = Field(ge=1)
    gold_questions: int = Field(ge=0)
    gold_new_groups: int = Field(ge=0)
    gold_groups: int = Field(ge=0)
    detects: float | None


class Basis(_Part):
    """What the numbers of a plan rest on: the differences of a kept run, or the most that they can be."""

    run_id: str | None = Field(default=None, max_length=100)
    base: float
    spread: float
    n_groups: int
    sentence: Text


class Planned(_Part):
    """A rollout was planned: from here on questions are assigned by `plan_id`."""

    event: Literal["planned"] = "planned"
    plan_id: Hash
    at: At
    gold_hash: str = Field(max_length=64)
    current: Name
    candidate: Name
    measure: str = Field(max_length=64)
    level: Level
    higher_is_better: bool
    detect: float
    power: float
    max_degradation: float
    rolled_back: float | None = Field(
        description="smallest relative degradation that rolls back with this power at the needed number"
    )
    basis: Basis
    index_hashes: dict[str, str | None]
    stages: tuple[StagePlan, ...]


class Source(_Part):
    """Where evidence came from; equal fingerprints are the same evidence."""

    kind: Literal["run", "file"]
    name: Text
    fingerprint: Hash
    n_questions: int = Field(ge=0)


class Decided(_Part):
    """A decision was made at a stage; `next_share` is the stage that follows a promotion, None after the last and otherwise."""

    event: Literal["decided"] = "decided"
    plan_id: Hash
    at: At
    share: float
    look: int = Field(
        ge=1, description="which decision it is at this stage that had enough questions to err"
    )
    action: Action
    next_share: float | None
    reasons: tuple[tuple[str, Text], ...]
    figures: dict[str, float | int | None]
    evidence: Source
    notes: tuple[Text, ...]


class Abandoned(_Part):
    """A running rollout was given up for a new plan."""

    event: Literal["abandoned"] = "abandoned"
    plan_id: Hash
    at: At


class RolloutRecord(_Part):
    """The file: one for each gold set and candidate."""

    schema_version: Literal[1] = 1
    gold_set: Name
    candidate: Name
    events: tuple[Annotated[Planned | Decided | Abandoned, Field(discriminator="event")], ...]


@dataclasses.dataclass(frozen=True)
class Standing:
    """Where the latest plan of a record stands.

    Parameters
    ----------
    plan
        The plan.
    share
        Share of the questions that the candidate answers now; None when the rollout has ended.
    ended
        promoted, rolled_back or abandoned; None while it runs.
    decisions
        Its decisions, oldest first.
    """

    plan: Planned
    share: float | None
    ended: Literal["promoted", "rolled_back", "abandoned"] | None
    decisions: tuple[Decided, ...]

    @property
    def look(self) -> int:
        """Which decision the next one is at the present stage, of those that had enough questions to err."""
        return 1 + sum(
            decision.share == self.share and decision.reasons[0][0] != "too_few_questions"
            for decision in self.decisions
        )

    def promoted_by(self, source: Source) -> float | None:
        """Stage that this evidence has promoted from already; None where it has not. What one run gives is the same evidence, however an earlier version wrote its fingerprint."""

        def same(other: Source) -> bool:
            return other.fingerprint == source.fingerprint or (
                other.kind == source.kind == "run" and other.name == source.name
            )

        return next(
            (one.share for one in self.decisions if one.action == "promote" and same(one.evidence)),
            None,
        )


def standing(record: RolloutRecord) -> Standing | None:
    """Tell where the latest plan stands; None where the record has none."""
    plan = next((event for event in reversed(record.events) if isinstance(event, Planned)), None)
    if plan is None:
        return None
    after = [event for event in record.events if event.plan_id == plan.plan_id]
    decisions = tuple(event for event in after if isinstance(event, Decided))
    if any(isinstance(event, Abandoned) for event in after):
        return Standing(plan, None, "abandoned", decisions)
    if any(decision.action == "roll_back" for decision in decisions):
        return Standing(plan, None, "rolled_back", decisions)
    promotions = sum(decision.action == "promote" for decision in decisions)
    if promotions >= len(STAGES):
        return Standing(plan, None, "promoted", decisions)
    return Standing(plan, STAGES[promotions], None, decisions)
