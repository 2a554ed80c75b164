"""Outcomes from files: judged by hand, filled-in audits, and exports of another store.

Belongs here: the forms of the lines and what each leaves unsaid. What is recorded is `rag_eval.records.outcomes.Outcome`.
"""

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from rag_eval.corpus.masking import mask
from rag_eval.corpus.outgoing import shown
from rag_eval.gold.groups import group_ids
from rag_eval.gold.problem_list import ProblemList
from rag_eval.records.outcomes import (
    AUDITS,
    MAX_NOTE,
    MISSED_BY_FEEDBACK,
    Count,
    Feedback,
    Hash,
    Id,
    Moment,
    Names,
    Number,
    Outcome,
    Probability,
    Query,
    SignalName,
)
from rag_eval.records.uncertainty import BinaryTarget, GoldSource
from rag_eval.uncertainty.audits import AuditStore
from rag_eval.uncertainty.claims import AHEAD, DEFAULT_K, ClaimStore
from rag_eval.uncertainty.line_files import objects, record_of
from rag_eval.uncertainty.naming import claim_id_of, is_named, outcome_id_of, question_id
from rag_eval.uncertainty.outcome_rows import utc_text

ACCEPTED: Final = (
    'a line of an audit that was drawn here, or {"query" or "query_id" or "claim_id": "...", "strategy": "...", "strategy_fingerprint": "...", '
    '"target": "miss_any", "k": 10, "missed": true or false, "gold_source": "human"}'
)
MAX_TEXT: Final = 20_000
"""Characters of a text that a line may hold before it is masked and cut."""
_AUDIT_ONLY: Final = frozenset({"draw_id", "retrieved", "depth"})
_EMPTY: Final = (None, "", [])

LongText = Annotated[str, Field(max_length=MAX_TEXT)]


class OutcomeLine(BaseModel):
    """An outcome as a person writes it; what is left out follows from the claim or the question."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    claim_id: Hash | None = Field(default=None, description="what was judged; default: named by strategy fingerprint, question, wording and seed")
    query: Query | None = Field(default=None, description="the question as it was asked")
    query_id: Id | None = Field(default=None, description="the question's id; default: named by its words")
    paraphrase_id: Id = Field(default="original", description="which wording of the question")
    seed: int = Field(default=0, ge=-(2**63), lt=2**63, description="the seed that the retriever was given")
    group_id: Id | None = Field(default=None, description="what ties questions together; default: the question, joined over shared gold documents")
    strategy: Id | None = Field(default=None, description="name of the strategy")
    strategy_fingerprint: Id | None = Field(default=None, description="identity of everything that decides its rankings")
    target: BinaryTarget = Field(default="miss_any", description="miss_any or miss_some")
    k: Count | None = Field(default=None, description="a whole number, cutoff of the target")
    missed: bool | None = Field(default=None, description="true where the retrieval missed, else false")
    missed_content: LongText | None = Field(default=None, description="what was missed; masked and cut to a snippet")
    agent_success: bool | None = Field(default=None, description="whether the agent that used it succeeded: true, false or null")
    gold_source: GoldSource = Field(description="qrels, human, llm_judge, deep_audit or user_feedback")
    gold_strategies: Names | None = Field(
        default=None, description="names or fingerprints of the strategies whose retrieval the gold was judged from, [] for a judgement that depends on none; default: [] for qrels, else this strategy"
    )
    gold_documents: Names = Field(default=(), description="ids of documents known to be gold")
    audit_depth: Count | None = Field(default=None, description="a whole number, how far down the auditor looked")
    inclusion_probability: Probability | None = Field(default=None, description="a number over 0, at most 1")
    signals: dict[SignalName, Number | None] = Field(default={}, description="name -> number or null")
    feedback: Feedback | None = Field(default=None, description="something_missing, evidence_not_relevant or nothing_missing")
    supersedes: Hash | None = Field(default=None, description="outcome_id of the outcome that this one corrects")
    note: LongText = Field(default="", description="why, for a person; masked")
    at: Moment | None = Field(default=None, description="ISO 8601 with its zone, such as 2026-01-31T12:00:00Z; default: now")


@dataclasses.dataclass(frozen=True)
class Read:
    """What a file held: outcomes to be recorded, and how many lines of an audit nobody has filled in yet."""

    outcomes: list[Outcome]
    not_judged: int


def read_outcomes(
    path: Path, claims: ClaimStore, audits: AuditStore, *, now: dt.datetime, strategy: str | None = None, fingerprint: str | None = None, restore: bool = False
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
    rows: list[tuple[int, dict[str, Any]]] = list(objects(path, problems, accepted=ACCEPTED, field="outcomes"))
    named = {row["claim_id"] for _, row in rows if isinstance(row.get("claim_id"), str)}
    reader = LineReader(claims, audits, named, problems, now=now, file=str(path), strategy=strategy, fingerprint=fingerprint)
    found: list[tuple[int, Outcome]] = []
    for number, row in rows:
        if not restore and "draw_id" in row and all(row.get(name) in _EMPTY for name in ("missed", "missed_content", "gold_source", "audit_depth")):
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


class LineReader:
    """Makes outcomes of lines; faults go to `problems`.

    Parameters
    ----------
    claims, audits
        Where claims and draws are looked up.
    claim_ids
        The claims that may be asked for.
    problems
        Takes every fault.
    now, file, strategy, fingerprint
        As in `read_outcomes`; `file` is None for what was not read from one.
    """

    def __init__(
        self, claims: ClaimStore, audits: AuditStore, claim_ids: set[str], problems: ProblemList, *, now: dt.datetime, file: str | None, strategy: str | None = None, fingerprint: str | None = None
    ) -> None:
        self._claims = claims.by_id(claim_ids)
        self._drawn = audits.probabilities(claim_ids)
        self._problems, self._now, self._file = problems, now, file
        self._given = {"strategy": strategy, "strategy_fingerprint": fingerprint}
        self.own_group: set[str] = set()
        """Outcomes whose group follows from their question and its gold documents."""

    def _add(self, code: str, message: str, number: int | None, field: str, found: object, accepted: str) -> None:
        self._problems.add(code, message, file=self._file, line=number, field=field, found=None if found is None else str(found), accepted=accepted)

    def restored(self, row: dict[str, Any], number: int) -> Outcome | None:
        """Take a line of an export as it stands."""
        outcome = record_of(Outcome, row, self._problems, file=self._file, line=number)
        if outcome is not None and not is_named(outcome):
            self._add("bad_value", "the name does not follow from claim_id, target, k, gold_source and supersedes", number, "outcome_id", outcome.outcome_id, "a line of rag-eval outcome export, unchanged")
            return None
        return outcome

    def outcome(self, row: dict[str, Any], number: int | None = None) -> Outcome | None:
        """Make an outcome of a line, completed by what is known of its claim."""
        before = self._problems.n_errors
        drawn = self._drawn.get((str(row.get("claim_id")), str(row.get("target", "miss_any"))))
        if "draw_id" in row:
            self._check_audit(row, drawn, number)
            row = {name: value for name, value in row.items() if name not in _AUDIT_ONLY and not (value is None and name != "missed")}
        if self._problems.n_errors > before:
            return None
        line = record_of(OutcomeLine, row, self._problems, file=self._file, line=number)
        if line is None:
            return None
        claim = self._claims.get(line.claim_id or "")
        known = {name: getattr(line, name) or (claim or {}).get(name) or self._given.get(name) for name in ("strategy", "strategy_fingerprint", "query_id", "k", "group_id")}
        known["k"] = known["k"] or DEFAULT_K
        known["query_id"] = known["query_id"] or (None if line.query is None else question_id(mask(line.query).text))
        self._check(line, claim, known, drawn, number)
        return self._made(line, known, drawn, number) if self._problems.n_errors == before else None

    def _check_audit(self, row: dict[str, Any], drawn: dict[str, Any] | None, number: int | None) -> None:
        if drawn is None or drawn["draw_id"] != row["draw_id"]:
            self._add("unknown_draw", "this store has no such draw of this claim", number, "draw_id", row["draw_id"], "a line of a file that rag-eval audit draw wrote for this store")
            return
        if row.get("k") != drawn["k"]:
            self._add("bad_value", "the claim was drawn for another K", number, "k", row.get("k"), str(drawn["k"]))
        if "inclusion_probability" in row:
            self._add("unknown_key", "the store knows with which probability this claim was drawn", number, "inclusion_probability", row["inclusion_probability"], "no such key")
        if row.get("gold_source") not in AUDITS:
            self._add("bad_value", "how the auditor judged", number, "gold_source", row.get("gold_source"), "human (looked at what was retrieved), deep_audit (searched the corpus)")
        if row.get("missed") is None:
            self._add("missing_field", "the line is begun and not finished", number, "missed", None, "true, false; or leave missed, missed_content, gold_source and audit_depth null")

    def _check(self, line: OutcomeLine, claim: dict[str, Any] | None, known: dict[str, Any], drawn: dict[str, Any] | None, number: int | None) -> None:
        for name in ("strategy", "strategy_fingerprint", "query_id"):
            if not known[name]:
                self._add("missing_field", "what was judged is not named", number, name, None, "the field, a claim_id of production traffic, or --strategy and --fingerprint")
            elif claim is not None and name != "query_id" and known[name] != claim[name]:
                self._add("bad_value", "the claim is of another strategy", number, name, known[name], claim[name])
        if line.feedback is not None and line.missed is not None and line.missed is not MISSED_BY_FEEDBACK[line.feedback]:
            self._add("bad_value", f"what {line.feedback} says of a miss", number, "missed", line.missed, str(MISSED_BY_FEEDBACK[line.feedback]).lower().replace("none", "null"))
        if line.audit_depth is not None and line.audit_depth < known["k"]:
            self._add("bad_value", f"the top {known['k']} cannot be judged by looking at fewer", number, "audit_depth", line.audit_depth, f"{known['k']} or more")
        if line.gold_source == "deep_audit" and line.audit_depth is None:
            self._add("missing_field", "a deep audit says how far down it looked", number, "audit_depth", None, f"{known['k']} or more")
        if line.inclusion_probability is not None and (line.gold_source in AUDITS or drawn is not None):
            accepted = "no such key: an audit's probability is what the store drew it with, and unknown where it did not (--restore takes an export as it stands)"
            self._add("unknown_key", "a file cannot say how likely a claim was to be audited", number, "inclusion_probability", line.inclusion_probability, accepted)
        if line.at is not None and line.at > self._now + AHEAD:
            self._add("bad_value", "a time that has not come yet", number, "at", utc_text(line.at), f"at most {utc_text(self._now)}")

    def _made(self, line: OutcomeLine, known: dict[str, Any], drawn: dict[str, Any] | None, number: int | None) -> Outcome | None:
        fingerprint, query_id = known["strategy_fingerprint"], known["query_id"]
        text = query_id if line.query is None else mask(line.query).text
        claim_id = line.claim_id or claim_id_of(fingerprint, query_id, line.paraphrase_id, line.seed, text)
        kept = {name: value for name, value in dict(line).items() if name in Outcome.model_fields}
        judged_from = line.gold_strategies if line.gold_strategies is not None else (() if line.gold_source == "qrels" else (fingerprint,))
        missed = line.missed if line.feedback is None else MISSED_BY_FEEDBACK[line.feedback]
        probability = drawn["inclusion_probability"] if drawn is not None and drawn["k"] == known["k"] and line.gold_source in AUDITS else line.inclusion_probability
        kept |= {
            **known,
            "claim_id": claim_id,
            "group_id": known["group_id"] or query_id,
            "outcome_id": outcome_id_of(claim_id, line.target, known["k"], line.gold_source, line.supersedes),
            "missed": missed,
            "missed_content": shown(line.missed_content) or None if line.missed_content else None,
            "gold_strategies": judged_from,
            "inclusion_probability": probability,
            "note": shown(line.note, MAX_NOTE),
            "at": line.at or self._now,
        }
        outcome = record_of(Outcome, kept, self._problems, file=self._file, line=number)
        if outcome is not None and not known["group_id"]:
            self.own_group.add(outcome.outcome_id)
        return outcome


def _once(found: list[tuple[int, Outcome]], problems: ProblemList, file: str) -> None:
    first: dict[str, int] = {}
    for number, outcome in found:
        if outcome.outcome_id in first:
            problems.add(
                "duplicate_id", f"line {first[outcome.outcome_id]} judges the same claim, target, K and gold source", file=file, line=number, field="claim_id", found=outcome.claim_id, accepted="one line each"
            )
        first.setdefault(outcome.outcome_id, number)


def _grouped(outcomes: list[Outcome], own: set[str]) -> list[Outcome]:
    """Outcomes of whose group nothing was said, grouped over shared gold documents."""
    pairs = [(outcome.query_id, document) for outcome in outcomes if outcome.outcome_id in own for document in outcome.gold_documents]
    if not pairs:
        return outcomes
    queries = sorted({query for query, _ in pairs})
    groups = dict(zip(queries, group_ids(queries, [query for query, _ in pairs], [document for _, document in pairs]), strict=True))
    return [outcome.model_copy(update={"group_id": groups.get(outcome.query_id, outcome.group_id)}) if outcome.outcome_id in own else outcome for outcome in outcomes]
