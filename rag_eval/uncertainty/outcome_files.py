"""Read claims and outcomes from files of JSON lines.

A file is read completely, or refused with a list of all faults. A person may leave out fields that
follow from the claim, the question or the draw.
"""

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
)

from rag_eval.core import types as record
from rag_eval.core.config import BinaryTarget, GoldSource
from rag_eval.core.errors import InputError, Problem, ProblemList, quoted
from rag_eval.core.rows import parse_object, split_lines
from rag_eval.core.types import (
    AUDITS,
    MAX_NOTE,
    MAX_RETRIEVED,
    MISSED_BY_FEEDBACK,
    Claim,
    OutcomeOutcomes,
)
from rag_eval.corpus.masking import mask, mask_snippet
from rag_eval.storage.hashing import digest
from rag_eval.storage.sql import SqlStore
from rag_eval.uncertainty.audits import AuditStore, ClaimStore, Drawn, KnownClaim
from rag_eval.uncertainty.outcomes import (
    claim_id_of,
    has_own_id,
    outcome_id_of,
    question_id,
    utc_text,
)

MAX_LINE_BYTES: Final = 1_000_000
MAX_FILE_BYTES: Final = 256_000_000
MAX_LINES: Final = 100_000
MAX_TEXT: Final = 20_000
"""Largest number of characters of a text in a line, before the text is masked and cut."""
DEFAULT_K: Final = 10
AHEAD: Final = dt.timedelta(days=1)
"""Largest accepted lead of another machine's clock over the local clock."""
CLAIM_LINE: Final = (
    '{"query": "...", "retrieved": [{"id": "...", "score": number or null}, ...]}, optionally'
    " query_id, group_id, k, at, strategy, strategy_fingerprint, miss_rate"
)
OUTCOME_LINE: Final = (
    'a line of an audit that was drawn here, or {"query" or "query_id" or "claim_id": "...",'
    ' "strategy": "...", "strategy_fingerprint": "...", "target": "miss_any", "k": 10,'
    ' "missed": true or false, "gold_source": "human"}'
)

_CODES: Final = {"missing": "missing_field", "extra_forbidden": "unknown_key"}
Line = dict[str, object]
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Source:
    """Source of lines, with the time of reading and the list that collects faults.

    `file` is None for typed values. `defaults` are values for fields that a line leaves out.
    """

    now: dt.datetime
    problems: ProblemList
    file: str | None = None
    defaults: Line = field(default_factory=dict)

    def objects(self, path: Path, *, accepted: str) -> Iterator[tuple[int, Line]]:
        """Yield the number and the object of each line; blank lines are skipped."""
        if not path.is_file():
            raise InputError(
                Problem("file_missing", "no such file", file=str(path), accepted=accepted)
            )
        count = size = 0
        with path.open("rb") as stream:
            for number, line in split_lines(stream, MAX_LINE_BYTES):
                size += MAX_LINE_BYTES if line is None else len(line)
                if line is not None and not line.strip():
                    continue
                count += 1
                if count > MAX_LINES or size > MAX_FILE_BYTES:
                    limits = f"at most {MAX_LINES} lines and {MAX_FILE_BYTES} bytes"
                    self.refuse(number, "too_large", "the file is too large", accepted=limits)
                    return
                row = parse_object(line)
                if isinstance(row, tuple):
                    self.refuse(number, row[0], row[1], accepted=accepted)
                else:
                    yield number, row

    def refuse(
        self,
        number: int | None,
        code: str,
        message: str,
        field: str | None = None,
        *,
        found: str | None = None,
        accepted: str | None = None,
    ) -> None:
        """Add a problem of one line to the list of problems."""
        self.problems.add(
            code, message, file=self.file, line=number, field=field, found=found, accepted=accepted
        )

    def read(self, kind: type[Model], row: Line, number: int | None) -> Model | None:
        """Make a record of a line's object; None if the line has faults, which are collected."""
        try:
            return kind.model_validate(row, context=self.now)
        except ValidationError as error:
            for item in error.errors(include_url=False):
                place, code = item["loc"], _CODES.get(item["type"], "bad_value")
                name = quoted(".".join(map(str, place))) if place else None
                message = item["msg"].removeprefix("Value error, ")
                if code == "unknown_key":
                    fields = ", ".join(kind.model_fields)
                    self.refuse(number, code, "no such key", name, accepted=fields)
                    continue
                known = kind.model_fields.get(str(place[0])) if place else None
                found = quoted(item["input"]) if place and code == "bad_value" else None
                accepted = known.description if known else None
                self.refuse(number, code, message, name, found=found, accepted=accepted)
            return None


def _refuse_future(value: dt.datetime | None, info: ValidationInfo) -> dt.datetime | None:
    now: dt.datetime = info.context  # type: ignore[assignment]  # set by the caller
    if value is not None and value > now + AHEAD:
        raise ValueError(f"a time in the future; now it is {utc_text(now)}")
    return value


def _refuse_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("the question is blank")
    return value


PastMoment = Annotated[
    record.Moment | None,
    AfterValidator(_refuse_future),
    Field(description="ISO 8601 with its zone, such as 2026-01-31T12:00:00Z; not in the future"),
]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    query_id: record.Id | None = Field(
        default=None, description="a text of 1 to 500 characters; default: named by its words"
    )
    group_id: record.Id | None = Field(
        default=None, description="what ties questions together; default: equal words"
    )
    strategy: record.Id = Field(
        description="name of the strategy: the field, or --strategy and --fingerprint"
    )
    strategy_fingerprint: record.Id = Field(
        description="identity of everything that decides its rankings: the field, or --fingerprint"
    )
    at: PastMoment = None


# ---- Claims of production traffic.


class _Retrieved(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: record.Id
    score: record.Number | None


def _refuse_repeated(value: tuple[_Retrieved, ...]) -> tuple[_Retrieved, ...]:
    twice = [name for name, count in Counter(item.id for item in value).items() if count > 1]
    if twice:
        raise ValueError(f"{quoted(twice[0])} occurs twice in the list")
    return value


class ClaimLine(_Line):
    """A line of a file with one retrieval of production traffic."""

    query: Annotated[record.Query, AfterValidator(_refuse_blank)] = Field(
        description="the question as it was asked, 1 to 10,000 characters"
    )
    retrieved: Annotated[
        tuple[_Retrieved, ...],
        Field(max_length=MAX_RETRIEVED),
        BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
        AfterValidator(_refuse_repeated),
    ] = Field(
        description=f'at most {MAX_RETRIEVED} of {{"id": "...", "score": number or null}}, best'
        " first, each id once"
    )
    k: int = Field(
        default=DEFAULT_K,
        ge=1,
        le=MAX_RETRIEVED,
        description=f"a whole number from 1 to {MAX_RETRIEVED}",
    )
    miss_rate: record.UnitInterval | None = Field(
        default=None, description="the miss rate that was predicted, from 0 to 1"
    )


def read_claims(
    path: Path,
    *,
    now: dt.datetime,
    strategy: str | None = None,
    fingerprint: str | None = None,
    k: int = DEFAULT_K,
) -> tuple[list[Claim], Counter[str]]:
    """Read and check a file of production traffic; personal data in the questions is masked.

    Strategy, fingerprint and k are defaults for lines without these fields. Returns the claims and
    the number of masked values by kind. Raises InputError with every fault of the file.
    """
    given = {"strategy": strategy, "strategy_fingerprint": fingerprint, "k": k}
    source = Source(now, ProblemList(), str(path))
    claims: list[Claim] = []
    masked: Counter[str] = Counter()
    for number, row in source.objects(path, accepted=CLAIM_LINE):
        line = source.read(ClaimLine, _drop_nulls(given) | _drop_nulls(row), number)
        if line is not None:
            text, counts = mask(line.query)
            masked.update(counts)
            claims.append(_make_claim(line, text))
    if not claims and not source.problems.n_errors:
        source.refuse(None, "no_claims", "the file has no line", accepted=CLAIM_LINE)
    source.problems.raise_errors()
    return claims, masked


def _drop_nulls(row: Mapping[str, object]) -> Line:
    return {name: value for name, value in row.items() if value is not None}


def _make_claim(line: ClaimLine, query: str) -> Claim:
    words = question_id(query)
    query_id = line.query_id or words
    moment = None if line.at is None else line.at.isoformat()
    ids = [item.id for item in line.retrieved]
    fields = {
        **dict(line),
        "claim_id": digest(["traffic", line.strategy_fingerprint, query_id, query, ids, moment]),
        "query_id": query_id,
        "group_id": line.group_id or words,
        "query": query,
        "retrieved": tuple((item.id, item.score) for item in line.retrieved),
    }
    return Claim(**fields)


# ---- Outcomes: judged by hand, filled-in audits, exports of another store, and corrections.

_UNFILLED: Final = ("missed", "missed_content", "gold_source", "audit_depth")
_AUDIT_ONLY: Final = frozenset({"draw_id", "retrieved", "depth"})
LongText = Annotated[str, Field(max_length=MAX_TEXT)]


class OutcomeLine(_Line):
    """A line of a file with one outcome, as a person writes it."""

    claim_id: record.Hash | None = Field(
        default=None, description="what was judged; default: follows from the question"
    )
    query: record.Query | None = Field(default=None, description="the question as it was asked")
    paraphrase_id: record.Id = Field(
        default="original", description="which wording of the question"
    )
    seed: int = Field(default=0, ge=-(2**63), lt=2**63, description="the retriever's seed")
    target: BinaryTarget = Field(default="miss_any", description="miss_any or miss_some")
    k: record.Count = Field(default=DEFAULT_K, description="a whole number, cutoff of the target")
    missed: bool | None = Field(default=None, description="true where it missed, else false")
    missed_content: LongText | None = Field(default=None, description="what was missed; masked")
    agent_success: bool | None = Field(default=None, description="true, false or null")
    gold_source: GoldSource = Field(
        description="qrels, human, llm_judge, deep_audit or user_feedback"
    )
    gold_strategies: record.Names | None = Field(
        default=None,
        description="names or fingerprints of the strategies whose retrieval the gold was judged"
        " from, [] for none; default: [] for qrels, else this strategy",
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


@dataclass(frozen=True)
class Read:
    """The outcomes of a file, and the number of audit lines that are not filled in yet."""

    outcomes: list[OutcomeOutcomes]
    not_judged: int


def read_outcomes(
    path: Path,
    sql: SqlStore,
    *,
    now: dt.datetime,
    strategy: str | None = None,
    fingerprint: str | None = None,
    restore: bool = False,
) -> Read:
    """Read and check a file of outcomes.

    Claims and draws are looked up in `sql`. Strategy and fingerprint are defaults for lines without
    these fields and with an unknown claim. With `restore` the file is an export of this tool. Then
    every field is kept unchanged, inclusion probabilities too. Raises InputError with every fault
    of the file.
    """
    given = {"strategy": strategy, "strategy_fingerprint": fingerprint}
    source = Source(now, ProblemList(), str(path), _drop_nulls(given))
    rows = list(source.objects(path, accepted=OUTCOME_LINE))
    ids = {name for _, row in rows if isinstance(name := row.get("claim_id"), str)}
    claims, drawn = ClaimStore(sql).by_id(ids), AuditStore(sql).find_drawn(ids)
    outcomes: list[OutcomeOutcomes] = []
    lines: dict[str, int] = {}
    not_judged = 0
    for number, row in rows:
        if restore:
            outcome = _restore(source, row, number)
        elif "draw_id" in row and all(row.get(name) in (None, "") for name in _UNFILLED):
            not_judged += 1
            continue
        else:
            outcome = _make_outcome(source, row, number, claims, drawn)
        if outcome is None:
            continue
        first = lines.setdefault(outcome.outcome_id, number)
        if first != number:
            message = f"line {first} judges the same claim, target, K and gold source"
            where = {"found": outcome.claim_id, "accepted": "one line each"}
            source.refuse(number, "duplicate_id", message, "claim_id", **where)
        outcomes.append(outcome)
    if not rows and not source.problems.n_errors:
        source.refuse(None, "no_outcomes", "the file has no line", accepted=OUTCOME_LINE)
    source.problems.raise_errors()
    return Read(outcomes, not_judged)


def _restore(source: Source, row: Line, number: int) -> OutcomeOutcomes | None:
    outcome = source.read(OutcomeOutcomes, row, number)
    if outcome is None or has_own_id(outcome):
        return outcome
    message = "the id does not follow from claim_id, target, k, gold_source and supersedes"
    where = {
        "found": outcome.outcome_id,
        "accepted": "a line of rag-eval outcome export, unchanged",
    }
    source.refuse(number, "bad_value", message, "outcome_id", **where)
    return None


def read_outcome(given: Line, sql: SqlStore, *, now: dt.datetime) -> OutcomeOutcomes:
    """Make an outcome from typed values, with the keys of a line.

    Raises InputError with every fault.
    """
    source = Source(now, ProblemList())
    ids = [str(given["claim_id"])] if "claim_id" in given else []
    claims, drawn = ClaimStore(sql).by_id(ids), AuditStore(sql).find_drawn(ids)
    return _require(source, _make_outcome(source, given, None, claims, drawn))


def _require(source: Source, outcome: OutcomeOutcomes | None) -> OutcomeOutcomes:
    source.problems.raise_errors()
    if outcome is None:
        raise AssertionError("a line without an outcome and without a problem")
    return outcome


def correct_outcome(
    old: OutcomeOutcomes,
    *,
    missed: bool | None,
    now: dt.datetime,
    missed_content: str | None = None,
    agent_success: bool | None = None,
    note: str = "",
) -> OutcomeOutcomes:
    """Make an outcome that supersedes `old`, with another judgement of the same claim.

    `missed` None takes the judgement back. Fields that are not given keep their old value, except
    that only a miss has content. Personal data is masked. Raises InputError for an impossible
    judgement, such as a miss that the feedback contradicts.
    """
    changes = {
        "missed": missed,
        "missed_content": old.missed_content if missed else None,
        "agent_success": old.agent_success if agent_success is None else agent_success,
        "note": mask_snippet(note, MAX_NOTE) if note else "",
        "at": now,
        "supersedes": old.outcome_id,
        "outcome_id": outcome_id_of(
            old.claim_id, old.target, old.k, old.gold_source, old.outcome_id
        ),
    }
    if missed_content:
        changes["missed_content"] = mask_snippet(missed_content)
    source = Source(now, ProblemList())
    return _require(source, source.read(OutcomeOutcomes, {**dict(old), **changes}, None))


def _make_outcome(
    source: Source,
    row: Line,
    number: int | None,
    claims: Mapping[str, KnownClaim],
    draws: Mapping[tuple[str, str], Drawn],
) -> OutcomeOutcomes | None:
    """Complete a line from its claim and its draw; None if the line has a fault."""
    before = source.problems.n_errors
    claim = claims.get(str(row.get("claim_id")))
    drawn = draws.get((str(row.get("claim_id")), str(row.get("target", "miss_any"))))
    if "draw_id" in row:
        _check_audit(source, row, number, drawn)
        row = {name: value for name, value in row.items() if name not in _AUDIT_ONLY}
    known = {} if claim is None else claim._asdict()
    known.pop("query", None)
    line = source.read(OutcomeLine, {**source.defaults, **known, **_drop_nulls(row)}, number)
    if line is not None:
        _check_line(source, line, number, claim, drawn)
    if line is None or source.problems.n_errors > before:
        return None
    text = None if line.query is None else mask(line.query).text
    query_id = line.query_id or question_id(text or "")
    claim_id = line.claim_id or claim_id_of(
        line.strategy_fingerprint, query_id, line.paraphrase_id, line.seed, text or query_id
    )
    fields = {
        name: value for name, value in dict(line).items() if name in OutcomeOutcomes.model_fields
    }
    if line.gold_strategies is None:
        own = () if line.gold_source == "qrels" else (line.strategy_fingerprint,)
        fields["gold_strategies"] = own
    if line.missed is None and line.feedback is not None:
        fields["missed"] = MISSED_BY_FEEDBACK[line.feedback]
    if drawn is not None and drawn.k == line.k and line.gold_source in AUDITS:
        fields["inclusion_probability"] = drawn.inclusion_probability
    fields |= {
        "claim_id": claim_id,
        "query_id": query_id,
        "group_id": line.group_id or query_id,
        "outcome_id": outcome_id_of(
            claim_id, line.target, line.k, line.gold_source, line.supersedes
        ),
        "missed_content": mask_snippet(line.missed_content or "") or None,
        "note": mask_snippet(line.note, MAX_NOTE),
        "at": line.at or source.now,
    }
    return source.read(OutcomeOutcomes, fields, number)


def _check_audit(source: Source, row: Line, number: int | None, drawn: Drawn | None) -> None:
    """Refuse an audit without a draw in this store, an altered audit and an unfinished audit."""
    refuse = partial(source.refuse, number)
    if drawn is None or drawn.draw_id != row["draw_id"]:
        accepted = "a line of a file that rag-eval audit draw wrote for this store"
        message, found = "this store has no such draw of this claim", quoted(row["draw_id"])
        refuse("unknown_draw", message, "draw_id", found=found, accepted=accepted)
        return
    if row.get("k") != drawn.k:
        message, found = "the claim was drawn for another K", quoted(row.get("k"))
        refuse("bad_value", message, "k", found=found, accepted=str(drawn.k))
    if row.get("gold_source") not in AUDITS:
        accepted = "human (looked at what was retrieved), deep_audit (searched the corpus)"
        message, found = "how the auditor judged", quoted(row.get("gold_source"))
        refuse("bad_value", message, "gold_source", found=found, accepted=accepted)
    if row.get("missed") is None:
        unfilled = "missed, missed_content, gold_source and audit_depth"
        accepted = f"true, false; or leave {unfilled} null"
        message = "the line is filled in only in part"
        refuse("missing_field", message, "missed", accepted=accepted)


def _check_line(
    source: Source,
    line: OutcomeLine,
    number: int | None,
    claim: KnownClaim | None,
    drawn: Drawn | None,
) -> None:
    """Refuse values that contradict the claim or make a judgement impossible."""
    refuse = partial(source.refuse, number)
    if line.query_id is None and line.query is None:
        accepted = "query, query_id, or the claim_id of production traffic"
        refuse("missing_field", "the question is not named", "query_id", accepted=accepted)
    for name in ("strategy", "strategy_fingerprint"):
        found = getattr(line, name)
        if claim is not None and found != (accepted := getattr(claim, name)):
            message = "the claim is of another strategy"
            refuse("bad_value", message, name, found=found, accepted=accepted)
    deep = f"{line.k} or more"
    if line.audit_depth is not None and line.audit_depth < line.k:
        message, found = f"the top {line.k} cannot be judged by looking at fewer", line.audit_depth
        refuse("bad_value", message, "audit_depth", found=str(found), accepted=deep)
    if line.gold_source == "deep_audit" and line.audit_depth is None:
        message = "a deep audit needs its depth"
        refuse("missing_field", message, "audit_depth", accepted=deep)
    if line.inclusion_probability is not None and (line.gold_source in AUDITS or drawn is not None):
        refuse(
            "unknown_key",
            "a file must not state the probability of an audit",
            "inclusion_probability",
            found=str(line.inclusion_probability),
            accepted="no such key: the store knows with which probability it drew a claim"
            " (--restore imports an export unchanged)",
        )
