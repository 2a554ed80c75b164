"""One line of outcomes: what a person wrote, completed by what is known of the claim and how it was drawn.

Belongs here: the form of a line and what it leaves unsaid. What is recorded is `rag_eval.records.outcomes.Outcome`.
"""

import datetime as dt
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from rag_eval.corpus.masking import mask
from rag_eval.corpus.outgoing import shown
from rag_eval.gold.problem_list import ProblemList
from rag_eval.records import outcomes as record
from rag_eval.records.outcomes import AUDITS, MAX_NOTE, MISSED_BY_FEEDBACK, Outcome
from rag_eval.records.uncertainty import BinaryTarget, GoldSource
from rag_eval.uncertainty.audits import AuditStore
from rag_eval.uncertainty.claims import AHEAD, DEFAULT_K, ClaimStore
from rag_eval.uncertainty.line_files import record_of
from rag_eval.uncertainty.naming import claim_id_of, is_named, outcome_id_of, question_id
from rag_eval.uncertainty.outcome_rows import utc_text

MAX_TEXT: Final = 20_000
"""Characters of a text that a line may hold before it is masked and cut."""
_AUDIT_ONLY: Final = frozenset({"draw_id", "retrieved", "depth"})

LongText = Annotated[str, Field(max_length=MAX_TEXT)]


class OutcomeLine(BaseModel):
    """An outcome as a person writes it; what is left out follows from the claim or the question."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    claim_id: record.Hash | None = Field(
        default=None,
        description="what was judged; default: named by strategy fingerprint, question, wording and seed",
    )
    query: record.Query | None = Field(default=None, description="the question as it was asked")
    query_id: record.Id | None = Field(
        default=None, description="the question's id; default: named by its words"
    )
    paraphrase_id: record.Id = Field(
        default="original", description="which wording of the question"
    )
    seed: int = Field(
        default=0, ge=-(2**63), lt=2**63, description="the seed that the retriever was given"
    )
    group_id: record.Id | None = Field(
        default=None,
        description="what ties questions together; default: the question, joined over shared gold documents",
    )
    strategy: record.Id | None = Field(default=None, description="name of the strategy")
    strategy_fingerprint: record.Id | None = Field(
        default=None, description="identity of everything that decides its rankings"
    )
    target: BinaryTarget = Field(default="miss_any", description="miss_any or miss_some")
    k: record.Count | None = Field(default=None, description="a whole number, cutoff of the target")
    missed: bool | None = Field(
        default=None, description="true where the retrieval missed, else false"
    )
    missed_content: LongText | None = Field(
        default=None, description="what was missed; masked and cut to a snippet"
    )
    agent_success: bool | None = Field(
        default=None, description="whether the agent that used it succeeded: true, false or null"
    )
    gold_source: GoldSource = Field(
        description="qrels, human, llm_judge, deep_audit or user_feedback"
    )
    gold_strategies: record.Names | None = Field(
        default=None,
        description="names or fingerprints of the strategies whose retrieval the gold was judged from, [] for a judgement that depends on none; default: [] for qrels, else this strategy",
    )
    gold_documents: record.Names = Field(
        default=(), description="ids of documents known to be gold"
    )
    audit_depth: record.Count | None = Field(
        default=None, description="a whole number, how far down the auditor looked"
    )
    inclusion_probability: record.Probability | None = Field(
        default=None, description="a number over 0, at most 1"
    )
    signals: dict[record.SignalName, record.Number | None] = Field(
        default={}, description="name -> number or null"
    )
    feedback: record.Feedback | None = Field(
        default=None, description="something_missing, evidence_not_relevant or nothing_missing"
    )
    supersedes: record.Hash | None = Field(
        default=None, description="outcome_id of the outcome that this one corrects"
    )
    note: LongText = Field(default="", description="why, for a person; masked")
    at: record.Moment | None = Field(
        default=None,
        description="ISO 8601 with its zone, such as 2026-01-31T12:00:00Z; default: now",
    )


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
        self,
        claims: ClaimStore,
        audits: AuditStore,
        claim_ids: set[str],
        problems: ProblemList,
        *,
        now: dt.datetime,
        file: str | None,
        strategy: str | None = None,
        fingerprint: str | None = None,
    ) -> None:
        self._claims = claims.by_id(claim_ids)
        self._drawn = audits.probabilities(claim_ids)
        self._problems, self._now, self._file = problems, now, file
        self._given = {"strategy": strategy, "strategy_fingerprint": fingerprint}
        self.own_group: set[str] = set()
        """Outcomes whose group follows from their question and its gold documents."""

    def _add(
        self, code: str, message: str, number: int | None, field: str, found: object, accepted: str
    ) -> None:  # noqa: PLR0917 - the parts of a problem, in their order
        self._problems.add(
            code,
            message,
            file=self._file,
            line=number,
            field=field,
            found=None if found is None else str(found),
            accepted=accepted,
        )

    def restored(self, row: dict[str, Any], number: int) -> Outcome | None:
        """Take a line of an export as it stands."""
        outcome = record_of(Outcome, row, self._problems, file=self._file, line=number)
        if outcome is not None and not is_named(outcome):
            self._add(
                "bad_value",
                "the name does not follow from claim_id, target, k, gold_source and supersedes",
                number,
                "outcome_id",
                outcome.outcome_id,
                "a line of rag-eval outcome export, unchanged",
            )
            return None
        return outcome

    def outcome(self, row: dict[str, Any], number: int | None = None) -> Outcome | None:
        """Make an outcome of a line, completed by what is known of its claim."""
        before = self._problems.n_errors
        drawn = self._drawn.get((str(row.get("claim_id")), str(row.get("target", "miss_any"))))
        if "draw_id" in row:
            self._check_audit(row, drawn, number)
            row = {
                name: value
                for name, value in row.items()
                if name not in _AUDIT_ONLY and not (value is None and name != "missed")
            }
        if self._problems.n_errors > before:
            return None
        line = record_of(OutcomeLine, row, self._problems, file=self._file, line=number)
        if line is None:
            return None
        claim = self._claims.get(line.claim_id or "")
        known = {
            name: getattr(line, name) or (claim or {}).get(name) or self._given.get(name)
            for name in ("strategy", "strategy_fingerprint", "query_id", "k", "group_id")
        }
        known["k"] = known["k"] or DEFAULT_K
        known["query_id"] = known["query_id"] or (
            None if line.query is None else question_id(mask(line.query).text)
        )
        self._check(line, claim, known, drawn, number)
        return self._made(line, known, drawn, number) if self._problems.n_errors == before else None

    def _check_audit(
        self, row: dict[str, Any], drawn: dict[str, Any] | None, number: int | None
    ) -> None:
        if drawn is None or drawn["draw_id"] != row["draw_id"]:
            self._add(
                "unknown_draw",
                "this store has no such draw of this claim",
                number,
                "draw_id",
                row["draw_id"],
                "a line of a file that rag-eval audit draw wrote for this store",
            )
            return
        if row.get("k") != drawn["k"]:
            self._add(
                "bad_value",
                "the claim was drawn for another K",
                number,
                "k",
                row.get("k"),
                str(drawn["k"]),
            )
        if "inclusion_probability" in row:
            self._add(
                "unknown_key",
                "the store knows with which probability this claim was drawn",
                number,
                "inclusion_probability",
                row["inclusion_probability"],
                "no such key",
            )
        if row.get("gold_source") not in AUDITS:
            self._add(
                "bad_value",
                "how the auditor judged",
                number,
                "gold_source",
                row.get("gold_source"),
                "human (looked at what was retrieved), deep_audit (searched the corpus)",
            )
        if row.get("missed") is None:
            self._add(
                "missing_field",
                "the line is begun and not finished",
                number,
                "missed",
                None,
                "true, false; or leave missed, missed_content, gold_source and audit_depth null",
            )

    def _check(
        self,
        line: OutcomeLine,
        claim: dict[str, Any] | None,
        known: dict[str, Any],
        drawn: dict[str, Any] | None,
        number: int | None,
    ) -> None:
        for name in ("strategy", "strategy_fingerprint", "query_id"):
            if not known[name]:
                self._add(
                    "missing_field",
                    "what was judged is not named",
                    number,
                    name,
                    None,
                    "the field, a claim_id of production traffic, or --strategy and --fingerprint",
                )
            elif claim is not None and name != "query_id" and known[name] != claim[name]:
                self._add(
                    "bad_value",
                    "the claim is of another strategy",
                    number,
                    name,
                    known[name],
                    claim[name],
                )
        if (
            line.feedback is not None
            and line.missed is not None
            and line.missed is not MISSED_BY_FEEDBACK[line.feedback]
        ):
            self._add(
                "bad_value",
                f"what {line.feedback} says of a miss",
                number,
                "missed",
                line.missed,
                str(MISSED_BY_FEEDBACK[line.feedback]).lower().replace("none", "null"),
            )
        if line.audit_depth is not None and line.audit_depth < known["k"]:
            self._add(
                "bad_value",
                f"the top {known['k']} cannot be judged by looking at fewer",
                number,
                "audit_depth",
                line.audit_depth,
                f"{known['k']} or more",
            )
        if line.gold_source == "deep_audit" and line.audit_depth is None:
            self._add(
                "missing_field",
                "a deep audit says how far down it looked",
                number,
                "audit_depth",
                None,
                f"{known['k']} or more",
            )
        if line.inclusion_probability is not None and (
            line.gold_source in AUDITS or drawn is not None
        ):
            accepted = "no such key: an audit's probability is what the store drew it with, and unknown where it did not (--restore takes an export as it stands)"
            self._add(
                "unknown_key",
                "a file cannot say how likely a claim was to be audited",
                number,
                "inclusion_probability",
                line.inclusion_probability,
                accepted,
            )
        if line.at is not None and line.at > self._now + AHEAD:
            self._add(
                "bad_value",
                "a time that has not come yet",
                number,
                "at",
                utc_text(line.at),
                f"at most {utc_text(self._now)}",
            )

    def _made(
        self,
        line: OutcomeLine,
        known: dict[str, Any],
        drawn: dict[str, Any] | None,
        number: int | None,
    ) -> Outcome | None:
        fingerprint, query_id = known["strategy_fingerprint"], known["query_id"]
        text = query_id if line.query is None else mask(line.query).text
        claim_id = line.claim_id or claim_id_of(
            fingerprint, query_id, line.paraphrase_id, line.seed, text
        )
        kept = {name: value for name, value in dict(line).items() if name in Outcome.model_fields}
        judged_from = (
            line.gold_strategies
            if line.gold_strategies is not None
            else (() if line.gold_source == "qrels" else (fingerprint,))
        )
        missed = line.missed if line.feedback is None else MISSED_BY_FEEDBACK[line.feedback]
        probability = (
            drawn["inclusion_probability"]
            if drawn is not None and drawn["k"] == known["k"] and line.gold_source in AUDITS
            else line.inclusion_probability
        )
        kept |= {
            **known,
            "claim_id": claim_id,
            "group_id": known["group_id"] or query_id,
            "outcome_id": outcome_id_of(
                claim_id, line.target, known["k"], line.gold_source, line.supersedes
            ),
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
