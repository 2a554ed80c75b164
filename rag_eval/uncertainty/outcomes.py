"""The append-only table of outcomes: recording, correcting, reading what stands now, and which rows may fit a calibrator.

Belongs here: the store. Nothing in it is ever updated or deleted. Which of its rows may fit a calibrator is `outcome_use`; files that come
in are `outcome_lines` and `claims`, samples to be judged `audits`.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pandas as pd

from rag_eval.records.outcomes import MAX_NOTE, Outcome
from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.storage.sql import SqlStore, Transaction
from rag_eval.uncertainty.inclusion import pooled
from rag_eval.uncertainty.naming import is_named, new_outcome
from rag_eval.uncertainty.outcome_rows import TABLE, as_frame, joined, of_row, row_of

LOOKED_UP: Final = 10_000
"""Names looked up at once: databases bound the parameters of a statement."""
_JUDGEMENT: Final = (
    "outcome_id",
    "claim_id",
    "strategy_fingerprint",
    "target",
    "k",
    "gold_source",
    "missed",
    "inclusion_probability",
    "supersedes",
    "note",
)


@dataclasses.dataclass(frozen=True)
class Recorded:
    """What became of recorded outcomes. All that is named in `added` and `already_there` is kept, whatever happens next.

    Parameters
    ----------
    added
        Names of new rows, corrections that were made among them.
    already_there
        Names of offered outcomes that were there before.
    differing
        Those of `already_there` of which something else stands now and was left standing -> the name of what stands.
    """

    added: tuple[str, ...] = ()
    already_there: tuple[str, ...] = ()
    differing: Mapping[str, str] = dataclasses.field(default_factory=dict)


class OutcomeStore:
    """Outcomes in a SQL store; several processes may write at once.

    Parameters
    ----------
    store
        SQLite or PostgreSQL; the table is made where it is absent.

    Raises
    ------
    InputError
        The store cannot be used, or its table has other columns.
    """

    def __init__(self, store: SqlStore) -> None:
        self.sql = store
        store.create(TABLE)

    def record(self, outcomes: Iterable[Outcome], *, because: str | None = None) -> Recorded:
        """Add outcomes in one transaction: all that are new, or none when it fails. What is there already is not added again.

        Parameters
        ----------
        outcomes
            A correction names what it supersedes, which must be there or among them.
        because
            What the judgements rest on, such as the version of the gold; stands before their note. Where something else stands for an offered
            outcome, a row that supersedes it is added, once for each reason: what a person corrected after that is left alone. Without
            it a difference is only reported.

        Raises
        ------
        InputError
            `unknown_outcome`: what a correction supersedes is not there or is another claim's.
        ValueError
            An outcome does not have the name that follows from what it is.
        """
        offered = {
            outcome.outcome_id: outcome if because is None else _for_reason(outcome, because)
            for outcome in outcomes
        }
        if any(not is_named(outcome) for outcome in offered.values()):
            raise ValueError(
                "an outcome_id does not follow from claim_id, target, k, gold_source and supersedes"
            )
        with self.sql.transaction() as transaction:
            self._check_superseded(transaction, offered)
            added = _add(transaction, offered.values())
            there = [outcome for name, outcome in offered.items() if name not in added]
            chains = _Chains(transaction, there)
            differing = [outcome for outcome in there if chains.differs(outcome)]
            if because is not None and differing:
                mended = {
                    outcome.outcome_id: chains.correction(outcome)
                    for outcome in differing
                    if not chains.was_said(outcome)
                }
                added |= _add(transaction, mended.values())
                differing = [
                    outcome
                    for outcome in differing
                    if outcome.outcome_id not in mended
                    or mended[outcome.outcome_id].outcome_id not in added
                ]
        named = [name for name in offered if name in added]
        return Recorded(
            (*named, *sorted(added.difference(named))),
            tuple(outcome.outcome_id for outcome in there),
            {outcome.outcome_id: chains.last(outcome) for outcome in differing},
        )

    def _check_superseded(self, transaction: Transaction, offered: dict[str, Outcome]) -> None:
        wanted = {
            outcome.supersedes: outcome
            for outcome in offered.values()
            if outcome.supersedes is not None
        }
        found = {
            name: (*_key(outcome), outcome.strategy_fingerprint)
            for name, outcome in offered.items()
        }
        for row in _rows(_look_up(transaction, "outcome_id", wanted.keys() - found.keys())):
            found[row["outcome_id"]] = (*_row_key(row), row["strategy_fingerprint"])
        wrong = [
            outcome
            for name, outcome in wanted.items()
            if found.get(name) != (*_key(outcome), outcome.strategy_fingerprint)
        ]
        if wrong:
            accepted = "the outcome_id of an outcome of the same claim, target, k, gold source and strategy"
            raise InputError(
                [
                    Problem(
                        "unknown_outcome",
                        "there is no such outcome to correct",
                        field="supersedes",
                        found=quoted(outcome.supersedes),
                        accepted=accepted,
                    )
                    for outcome in wrong[:100]
                ]
            )

    def current(
        self,
        *,
        strategy: str | None = None,
        strategy_fingerprint: str | None = None,
        target: str | None = None,
        k: int | None = None,
        gold_sources: Sequence[str] | None = None,
        claim_ids: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Return what stands now: the last row of each chain, oldest first, with the columns of `RETRIEVAL_OUTCOMES`.

        Groups whose questions share a known gold document are joined; the group is then the smallest of its names. The inclusion probability of
        an audit is that of being judged by any draw that could have taken the claim, see `inclusion`.

        Parameters
        ----------
        strategy, strategy_fingerprint, target, k, gold_sources, claim_ids
            Keep these only; None keeps all.
        """
        frame = self.history(
            strategy=strategy,
            strategy_fingerprint=strategy_fingerprint,
            target=target,
            k=k,
            gold_sources=gold_sources,
            claim_ids=claim_ids,
        )
        return pooled(
            self.sql,
            joined(frame[~frame["outcome_id"].isin(frame["supersedes"])].reset_index(drop=True)),
        )

    def as_recorded(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a frame as they were recorded, with those that they supersede and so on to the first of each chain, oldest first: they can be recorded anew."""
        rows = self.history(claim_ids=sorted(set(frame["claim_id"])))
        superseded = dict(zip(rows["outcome_id"], rows["supersedes"], strict=True))
        wanted: set[str] = set()
        for name in frame["outcome_id"]:
            while name and name not in wanted:
                wanted.add(name)
                name = superseded[name]  # noqa: PLW2901 - along the chain
        return rows[rows["outcome_id"].isin(wanted)].reset_index(drop=True)

    def history(
        self,
        *,
        claim_ids: Sequence[str] | None = None,
        gold_sources: Sequence[str] | None = None,
        **equal: Any,
    ) -> pd.DataFrame:
        """Return every row, superseded ones too, oldest first, groups and probabilities as they were recorded; the parameters are those of `current`."""
        where: dict[str, Any] = {name: value for name, value in equal.items() if value is not None}
        if gold_sources is not None:
            where["gold_source"] = list(gold_sources)
        with self.sql.reading() as transaction:
            return as_frame(
                transaction.columns(TABLE, where)
                if claim_ids is None
                else _look_up(transaction, "claim_id", set(claim_ids), where, TABLE.column_names)
            )

    def outcome(self, outcome_id: str) -> Outcome:
        """Return one outcome by its name or the start of it.

        Raises
        ------
        InputError
            `unknown_outcome`: none or more than one begins so.
        """
        with self.sql.reading() as transaction:
            found = transaction.select(TABLE, {"outcome_id": outcome_id})
            if not found and outcome_id:
                names = [
                    name
                    for name in transaction.columns(TABLE, None, ["outcome_id"])["outcome_id"]
                    if name.startswith(outcome_id)
                ]
                found = transaction.select(TABLE, {"outcome_id": names[:2]})
        if len(found) != 1:
            message = (
                "no outcome has this name"
                if not found
                else "several outcomes have names that begin so"
            )
            raise InputError(
                Problem(
                    "unknown_outcome",
                    message,
                    field="outcome_id",
                    found=quoted(outcome_id),
                    accepted="an outcome_id as rag-eval outcome list shows it, or its start",
                )
            )
        return of_row(found[0])


def _key(outcome: Outcome) -> tuple[str, str, int, str]:
    return outcome.claim_id, outcome.target, outcome.k, outcome.gold_source


def _row_key(row: dict[str, Any]) -> tuple[str, str, int, str]:
    return row["claim_id"], row["target"], row["k"], row["gold_source"]


class _Chains:
    """Rows of some outcomes' claims as they are in the table, by claim, target, k and gold source."""

    def __init__(self, transaction: Transaction, outcomes: Sequence[Outcome]) -> None:
        rows = _rows(_look_up(transaction, "claim_id", {outcome.claim_id for outcome in outcomes}))
        superseded = {row["supersedes"] for row in rows}
        self._last = {_row_key(row): row for row in rows if row["outcome_id"] not in superseded}
        self._notes = {(_row_key(row), row["note"]) for row in rows}

    def differs(self, offered: Outcome) -> bool:
        """Whether a judgement is not the one that stands; one whose inclusion probability is only known now differs too."""
        last = self._last[_key(offered)]
        return last["missed"] is not offered.missed or (
            last["inclusion_probability"] is None and offered.inclusion_probability is not None
        )

    def was_said(self, offered: Outcome) -> bool:
        """Whether the table already has what this reason led to."""
        return (_key(offered), offered.note) in self._notes

    def correction(self, offered: Outcome) -> Outcome:
        """Supersede what stands by an outcome."""
        return new_outcome(**{**dict(offered), "supersedes": self.last(offered)})

    def last(self, offered: Outcome) -> str:
        """Name of what stands."""
        return str(self._last[_key(offered)]["outcome_id"])


def _for_reason(outcome: Outcome, because: str) -> Outcome:
    return outcome.model_copy(
        update={"note": (f"{because}: {outcome.note}" if outcome.note else because)[:MAX_NOTE]}
    )


def _add(transaction: Transaction, outcomes: Iterable[Outcome]) -> set[str]:
    # one order for all writers, so that no two wait for each other
    ordered = sorted(
        outcomes,
        key=lambda outcome: (
            outcome.claim_id,
            outcome.target,
            outcome.k,
            outcome.gold_source,
            outcome.outcome_id,
        ),
    )
    return transaction.insert_new(TABLE, map(row_of, ordered), "outcome_id")


def _look_up(
    transaction: Transaction,
    column: str,
    names: Iterable[str],
    where: dict[str, Any] | None = None,
    wanted: Sequence[str] = _JUDGEMENT,
) -> dict[str, list[Any]]:
    """Columns of the rows that have one of some names."""
    ordered = sorted(names)
    found: dict[str, list[Any]] = {name: [] for name in wanted}
    for start in range(0, len(ordered), LOOKED_UP):
        for name, values in transaction.columns(
            TABLE, {**(where or {}), column: ordered[start : start + LOOKED_UP]}, wanted
        ).items():
            found[name] += values
    return found


def _rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
