"""Feedback of a reader on one retrieval, recorded as an outcome before it is answered.

Belongs here: what may be said, of which claim, and what becomes of it. Nothing that was said is lost: another opinion or another note supersedes
what stands and is a row of its own. Feedback fits no calibrator; it calls for audits (`rag-eval audit list --feedback`).
"""

import dataclasses
import datetime as dt
import json
import math
import time
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rag_eval.corpus.outgoing import shown
from rag_eval.records.outcomes import (
    MAX_NOTE,
    MISSED_BY_FEEDBACK,
    Feedback,
    Id,
    Note,
    Outcome,
    Shown,
)
from rag_eval.records.uncertainty import GoldSource
from rag_eval.reporting.html.untrusted import visible
from rag_eval.settings import Settings
from rag_eval.storage.sql import FILE_NAME, SqlStore
from rag_eval.uncertainty.naming import new_outcome
from rag_eval.uncertainty.outcome_rows import of_frame
from rag_eval.uncertainty.outcomes import OutcomeStore
from rag_eval.viewer.runs import CLAIMS, RUN_ID, KeptRuns

SOURCE: Final[GoldSource] = "user_feedback"
TRY_SECONDS: Final = 60.0
"""How long others may be faster in correcting the same claim; in each round one of them is done."""
_ACCEPTED: Final = {
    "run_id": "the id of a kept run",
    "query_id": "the id of a question, 1 to 500 characters",
    "paraphrase_id": "the id of a wording, 1 to 500 characters",
    "seed": "a whole number",
    "strategy": "the name of a strategy, 1 to 500 characters",
    "feedback": "something_missing, evidence_not_relevant or nothing_missing",
    "note": f"at most {MAX_NOTE} characters, no NUL, no half of a character",
}


class Said(BaseModel):
    """What a reader says of one retrieval."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    run_id: Annotated[str, Field(pattern=f"^{RUN_ID.pattern}$", max_length=64)]
    query_id: Id
    paraphrase_id: Id
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    strategy: Id
    feedback: Feedback
    note: Note = ""


class Refused(Exception):  # noqa: N818 - an answer, not an error of the program
    """Why nothing was recorded: an HTTP status and a sentence without anything of what was sent."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclasses.dataclass(frozen=True)
class Given:
    """What became of feedback: its row, and whether it is new or says what stands already."""

    outcome_id: str
    standing: Literal["recorded", "already_there"]


def read_said(body: bytes) -> Said:
    """Read a request's body.

    Raises
    ------
    Refused
        400, naming the fields that are wrong and what is accepted.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):  # an undecodable text is a ValueError too
        raise Refused(400, "The body is not JSON.") from None
    if not isinstance(value, dict):
        raise Refused(400, "The body must be a JSON object.")
    try:
        return Said.model_validate(value)
    except ValidationError as error:
        named = {
            str(fault["loc"][0]) if fault["loc"] else ""
            for fault in error.errors(include_input=False, include_context=False, include_url=False)
        }
        faults = [f"{name}: {accepted}" for name, accepted in _ACCEPTED.items() if name in named]
        other = (
            [] if named <= _ACCEPTED.keys() else [f"no other fields than {', '.join(_ACCEPTED)}"]
        )
        raise Refused(400, f"Accepted is {'; '.join(faults + other)}.") from None


def open_outcomes(settings: Settings) -> OutcomeStore:
    """Open the table of outcomes of the settings.

    Raises
    ------
    InputError
        The database cannot be used; no password is shown.
    """
    return OutcomeStore(
        SqlStore(
            settings.home / FILE_NAME
            if settings.database_url is None
            else settings.database_url.get_secret_value()
        )
    )


class FeedbackDesk:
    """Takes feedback on claims of kept runs.

    Parameters
    ----------
    runs, store
        Where claims are looked up and outcomes recorded.
    clock
        The time of an outcome.
    """

    def __init__(
        self,
        runs: KeptRuns,
        store: OutcomeStore,
        clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        self._runs, self._store, self._clock = runs, store, clock

    def take(self, said: Said) -> Given:
        """Record feedback; when this returns, it is kept.

        Raises
        ------
        Refused
            There is no such claim (404), the run keeps no claims (409), others were faster all the time (503).
        InputError
            The database, or the kept run, cannot be used.
        """
        claim = self._claim(said)
        until = time.monotonic() + TRY_SECONDS
        while True:
            made = self._outcome(said, claim)
            standing = self._standing(made)
            if standing is not None:
                if (standing.feedback, standing.note, standing.missed) == (
                    made.feedback,
                    made.note,
                    made.missed,
                ):
                    return Given(standing.outcome_id, "already_there")
                made = new_outcome(**{**dict(made), "supersedes": standing.outcome_id})
            if made.outcome_id in self._store.record([made]).added:
                return Given(made.outcome_id, "recorded")
            if (
                time.monotonic() > until
            ):  # a row of this name is there now: somebody else superseded the same one first
                raise Refused(
                    503,
                    "Too many others say something of this retrieval; nothing was recorded, try again.",
                )

    def _standing(self, made: Outcome) -> Outcome | None:
        """What readers' last word on the claim is."""
        frame = self._store.history(
            target=made.target, k=made.k, gold_sources=[SOURCE], claim_ids=[made.claim_id]
        )
        last = of_frame(frame[~frame["outcome_id"].isin(frame["supersedes"])])
        return last[0] if last else None

    def _claim(self, said: Said) -> dict[str, Any]:
        run = self._runs.run(said.run_id)
        if run is None:
            raise Refused(404, "There is no such run.")
        artifact = self._runs.artifact(run, CLAIMS)
        if artifact is None:
            raise Refused(
                409,
                "This run keeps no claims, so feedback on it cannot be recorded; run the gold set again.",
            )
        # pages write out what cannot be seen in an id, and say it back so
        frame = pd.read_parquet(
            artifact.path("claims.parquet"),
            filters=[(name, "==", getattr(said, name)) for name in ("seed", "strategy")],
        )
        wanted = frame["query_id"].map(visible).eq(said.query_id) & frame["paraphrase_id"].map(
            visible
        ).eq(said.paraphrase_id)
        rows: list[dict[str, Any]] = frame[wanted].to_dict("records")  # type: ignore[assignment]
        if len(rows) != 1:
            raise Refused(404, "The run has no such retrieval.")
        return rows[0]

    def _outcome(self, said: Said, claim: dict[str, Any]) -> Outcome:
        stated = claim["miss_rate"]
        return new_outcome(
            **{
                name: claim[name]
                for name in (
                    "claim_id",
                    "query_id",
                    "group_id",
                    "strategy",
                    "strategy_fingerprint",
                    "target",
                    "k",
                )
            },
            missed=MISSED_BY_FEEDBACK[said.feedback],
            gold_source=SOURCE,
            gold_strategies=(said.strategy,),
            shown=Shown(
                value=None if math.isnan(stated) else stated,
                status=claim["status"],
                calibrator=claim["calibrator"] or None,
            ),
            feedback=said.feedback,
            note=shown(said.note, MAX_NOTE) if said.note.strip() else "",
            at=self._clock(),
        )
