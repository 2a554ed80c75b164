"""Outcomes from files: judged by hand, filled-in audits, and exports of another store; and corrections of what is there.

Belongs here: whole files. What one line means is `outcome_reader`.
"""

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Any, Final

from rag_eval.corpus.outgoing import shown
from rag_eval.gold.groups import group_ids
from rag_eval.gold.problem_list import ProblemList
from rag_eval.records.outcomes import MAX_NOTE, Outcome
from rag_eval.uncertainty.audits import AuditStore
from rag_eval.uncertainty.claims import ClaimStore
from rag_eval.uncertainty.line_files import objects, record_of
from rag_eval.uncertainty.naming import outcome_id_of
from rag_eval.uncertainty.outcome_reader import LineReader

ACCEPTED: Final = (
    'a line of an audit that was drawn here, or {"query" or "query_id" or "claim_id": "...", "strategy": "...", "strategy_fingerprint": "...", '
    '"target": "miss_any", "k": 10, "missed": true or false, "gold_source": "human"}'
)
_UNFILLED: Final = ("missed", "missed_content", "gold_source", "audit_depth")


@dataclasses.dataclass(frozen=True)
class Read:
    """What a file held: outcomes to be recorded, and how many lines of an audit nobody has filled in yet."""

    outcomes: list[Outcome]
    not_judged: int


def read_outcomes(
    path: Path,
    claims: ClaimStore,
    audits: AuditStore,
    *,
    now: dt.datetime,
    strategy: str | None = None,
    fingerprint: str | None = None,
    restore: bool = False,
) -> Read:
    """Read and check a file of outcomes.

    Parameters
    ----------
    path
        JSON lines, see `ACCEPTED`.
    claims, audits
        Where claims of production traffic and the probabilities of drawn ones are looked up.
    now
        The current time; a line from later is a fault.
    strategy, fingerprint
        For lines that do not say and whose claim is not of production traffic.
    restore
        Whether the file is an export of this tool's own and taken as it stands, inclusion probabilities too.

    Raises
    ------
    InputError
        No such file, or every fault of it with line, field, what was found and what is accepted.
    """
    problems, skipped = ProblemList(), 0
    rows: list[tuple[int, dict[str, Any]]] = list(
        objects(path, problems, accepted=ACCEPTED, field="outcomes")
    )
    named = {row["claim_id"] for _, row in rows if isinstance(row.get("claim_id"), str)}
    reader = LineReader(
        claims,
        audits,
        named,
        problems,
        now=now,
        file=str(path),
        strategy=strategy,
        fingerprint=fingerprint,
    )
    found: list[tuple[int, Outcome]] = []
    for number, row in rows:
        if (
            not restore
            and "draw_id" in row
            and all(row.get(name) is None or row[name] == "" for name in _UNFILLED)
        ):
            skipped += 1
            continue
        outcome = reader.restored(row, number) if restore else reader.outcome(row, number)
        if outcome is not None:
            found.append((number, outcome))
    _once(found, problems, str(path))
    if not rows and not problems.n_errors:
        problems.add("no_outcomes", "the file has no line", file=str(path), accepted=ACCEPTED)
    problems.raise_errors()
    return Read(_grouped([outcome for _, outcome in found], reader.own_group), skipped)


def one_outcome(
    given: dict[str, Any], claims: ClaimStore, audits: AuditStore, *, now: dt.datetime
) -> Outcome:
    """Make an outcome of what a person said on the command line; the keys are those of a line.

    Raises
    ------
    InputError
        Every fault with its field, what was found and what is accepted.
    """
    problems = ProblemList()
    reader = LineReader(
        claims,
        audits,
        {given["claim_id"]} if "claim_id" in given else set(),
        problems,
        now=now,
        file=None,
    )
    made = reader.outcome(given)
    problems.raise_errors()
    if made is None:
        raise ValueError("a line without an outcome and without a problem")
    return made


def correction(
    old: Outcome,
    *,
    missed: bool | None,
    now: dt.datetime,
    missed_content: str | None = None,
    agent_success: bool | None = None,
    note: str = "",
) -> Outcome:
    """Make what supersedes an outcome: the same claim with another judgement.

    Parameters
    ----------
    old
        What is corrected; the inclusion probability and everything else that is not given stays.
    missed
        The judgement that holds; None takes it back without another.
    now
        When it was corrected.
    missed_content, agent_success, note
        None and an empty text keep what was there, except that only a miss has content. Personal data is masked.

    Raises
    ------
    InputError
        The judgement cannot be: content of what was not missed, a miss that the feedback contradicts.
    """
    content = shown(missed_content) if missed_content else old.missed_content if missed else None
    success = old.agent_success if agent_success is None else agent_success
    changes = {
        "missed": missed,
        "missed_content": content,
        "agent_success": success,
        "note": shown(note, MAX_NOTE) if note else "",
        "at": now,
        "supersedes": old.outcome_id,
    }
    problems = ProblemList()
    name = outcome_id_of(old.claim_id, old.target, old.k, old.gold_source, old.outcome_id)
    made = record_of(
        Outcome, {**dict(old), **changes, "outcome_id": name}, problems, file=None, line=None
    )
    problems.raise_errors()
    if made is None:
        raise ValueError("a correction without an outcome and without a problem")
    return made


def _once(found: list[tuple[int, Outcome]], problems: ProblemList, file: str) -> None:
    first: dict[str, int] = {}
    for number, outcome in found:
        if outcome.outcome_id in first:
            problems.add(
                "duplicate_id",
                f"line {first[outcome.outcome_id]} judges the same claim, target, K and gold source",
                file=file,
                line=number,
                field="claim_id",
                found=outcome.claim_id,
                accepted="one line each",
            )
        first.setdefault(outcome.outcome_id, number)


def _grouped(outcomes: list[Outcome], own: set[str]) -> list[Outcome]:
    """Outcomes of whose group nothing was said, grouped over shared gold documents."""
    pairs = [
        (outcome.query_id, document)
        for outcome in outcomes
        if outcome.outcome_id in own
        for document in outcome.gold_documents
    ]
    if not pairs:
        return outcomes
    queries = sorted({query for query, _ in pairs})
    groups = dict(
        zip(
            queries,
            group_ids(queries, [query for query, _ in pairs], [document for _, document in pairs]),
            strict=True,
        )
    )
    return [
        outcome.model_copy(update={"group_id": groups.get(outcome.query_id, outcome.group_id)})
        if outcome.outcome_id in own
        else outcome
        for outcome in outcomes
    ]
