"""Read claims and outcomes from files of JSON lines.

A file is read completely, or refused with a list of all faults. A person may leave out fields that
follow from the claim, the question or the draw.
"""

import datetime as dt
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from rag_eval.core.errors import ProblemList, quoted
from rag_eval.core.rows import check_row, read_objects
from rag_eval.core.types import BinaryTarget, Id
from rag_eval.corpus.loaders.foreign import LeftOut, find_kind
from rag_eval.corpus.loaders.recorded import RecordedOutput, read_outputs
from rag_eval.corpus.masking import mask, mask_snippet
from rag_eval.storage.hashing import digest
from rag_eval.storage.sql import SqlStore
from rag_eval.uncertainty import outcomes as record
from rag_eval.uncertainty.confidence import UnitInterval
from rag_eval.uncertainty.outcomes import (
    AUDITS,
    MAX_NOTE,
    RetrievalOutcome,
    claim_id_of,
    new_outcome,
    question_id,
    utc_text,
)
from rag_eval.uncertainty.traffic import Claim, Drawn, TrafficStore

MAX_FILE_BYTES: Final = 256_000_000
MAX_LINES: Final = 100_000
MAX_RETRIEVED: Final = 1000
MAX_TEXT: Final = 20_000
"""Largest number of characters of a text in a line, before the text is masked and cut."""
DEFAULT_K: Final = 10
AHEAD: Final = dt.timedelta(days=1)
"""Largest accepted lead of another machine's clock over the local clock."""
CLAIM_LINE: Final = '{"query": "...", "retrieved": [{"id": "...", "score": number or null}, ...]}'
OUTCOME_LINE: Final = (
    'a line of an audit that was drawn here, or {"query" or "query_id" or "claim_id": "...",'
    ' "strategy": "...", "strategy_fingerprint": "...", "target": "miss_any", "k": 10,'
    ' "missed": true or false, "gold_source": "human"}'
)

Line = dict[str, object]


def _refuse_future(at: dt.datetime) -> dt.datetime:
    if at > dt.datetime.now(dt.UTC) + AHEAD:
        raise ValueError("the time is in the future")
    return at


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    query_id: Id | None = Field(default=None, description="default: named by its words")
    group_id: Id | None = Field(default=None, description="ties questions together")
    strategy: Id = Field(description="name; or --strategy")
    strategy_fingerprint: Id = Field(
        description="identity of all that decides its rankings; or --fingerprint"
    )
    at: Annotated[record.Moment, AfterValidator(_refuse_future)] | None = Field(
        default=None, description="ISO 8601 with its zone, such as 2026-01-31T12:00:00Z"
    )


def _read_objects(path: Path, problems: ProblemList, accepted: str) -> list[tuple[int, Line]]:
    """Read the objects of a file with their line numbers; faults become problems."""
    objects = read_objects(path, problems, accepted, MAX_FILE_BYTES)
    rows = list(itertools.islice(objects, MAX_LINES + 1))
    file, limit = str(path), f"at most {MAX_LINES} lines"
    if len(rows) > MAX_LINES:
        problems.add("too_large", "the file has too many lines", file=file, accepted=limit)
    elif not rows and not problems.n_errors:
        problems.add("empty_file", "the file has no line", file=file, accepted=accepted)
    return rows


def _defaults(strategy: str | None, fingerprint: str | None) -> Line:
    return _drop_nulls({"strategy": strategy, "strategy_fingerprint": fingerprint})


def _drop_nulls(row: Line) -> Line:
    return {name: value for name, value in row.items() if value is not None}


# ---- Claims of production traffic.


class _Retrieved(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: Id
    score: record.Number | None


def _refuse_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("the question is blank")
    return value


def _refuse_repeated(value: list[_Retrieved]) -> list[_Retrieved]:
    twice = [name for name, count in Counter(item.id for item in value).items() if count > 1]
    if twice:
        raise ValueError(f"{quoted(twice[0])} occurs twice in the list")
    return value


class ClaimLine(_Line):
    """A line of a file with one retrieval of production traffic."""

    query: Annotated[record.Query, AfterValidator(_refuse_blank)]
    retrieved: Annotated[
        list[_Retrieved], Field(max_length=MAX_RETRIEVED), AfterValidator(_refuse_repeated)
    ] = Field(description="best first")
    k: int = Field(default=DEFAULT_K, ge=1, le=MAX_RETRIEVED)
    miss_rate: UnitInterval | None = Field(default=None, description="as it was predicted")


class Traffic(NamedTuple):
    """Claims of files of production traffic; `masked` counts the masked values by kind."""

    claims: list[Claim]
    masked: Counter[str]


def read_claims(
    paths: Sequence[Path],
    warnings: ProblemList,
    *,
    strategy: str | None = None,
    fingerprint: str | None = None,
    k: int = DEFAULT_K,
) -> Traffic:
    """Read and check files of production traffic; personal data in the questions is masked.

    The lines are claims, or a file has a format of another tool. Files of spans are read as one,
    because a trace may be cut over files. Strategy, fingerprint and k are defaults for lines
    without these fields. Adds what the reader of a format leaves out to `warnings`. Raises
    InputError with every fault of the files.
    """
    defaults = {**_defaults(strategy, fingerprint), "k": k}
    problems, left_out = ProblemList(), LeftOut()
    traffic, again = Traffic([], Counter()), Counter[str]()
    for file, number, row, output in _read_traffic(paths, problems, warnings):
        trace = output.query_id if output is not None and output.is_trace else None
        faults = ProblemList()
        line = check_row(defaults | _drop_nulls(row), ClaimLine, faults, str(file), number)
        if trace is None:
            problems.extend(faults.listed())
        else:
            left_out.add(trace, faults.listed())
        if line is not None:
            text, counts = mask(line.query)
            traffic.masked.update(counts)
            traffic.claims.append(_make_claim(line, text, trace, again))
    left_out.report(len(traffic.claims), problems, warnings)
    problems.raise_errors()
    return traffic


def _read_traffic(
    paths: Sequence[Path], problems: ProblemList, warnings: ProblemList
) -> Iterator[tuple[Path, int, Line, RecordedOutput | None]]:
    """Yield lines of claims with their places, and the recorded output that a line is made of."""
    together: dict[str, list[Path]] = {}
    for path in paths:
        kind = find_kind(path)
        if kind == "own":
            yield from ((path, *row, None) for row in _read_objects(path, problems, CLAIM_LINE))
        else:
            together.setdefault(kind if kind == "spans" else str(path), []).append(path)
    for first, *more in together.values():
        for output in read_outputs(first, warnings, *more):
            best: dict[str, float | None] = {}
            for context in output.contexts:
                best.setdefault(context.document, context.score)
            retrieved = [{"id": name, "score": score} for name, score in best.items()]
            line: Line = {"query": output.question, "retrieved": retrieved, "at": output.at or None}
            yield Path(output.file), output.line, line, output


def _make_claim(line: ClaimLine, query: str, trace: str | None, again: Counter[str]) -> Claim:
    """Make the claim of a line.

    A trace has one claim, whatever part of it was imported before. Other lines are told apart by
    their content; equal lines of an import without a time by their number, which `again` counts.
    """
    words, fingerprint = question_id(query), line.strategy_fingerprint
    query_id = line.query_id or words
    ids = [item.id for item in line.retrieved]
    moment = None if line.at is None else line.at.isoformat()
    content = ["traffic", fingerprint, query_id, query, ids, moment]
    claim_id = digest(content if trace is None else ["trace", fingerprint, trace])
    if trace is None and moment is None:
        again[claim_id] += 1
        claim_id = digest([*content, again[claim_id]]) if again[claim_id] > 1 else claim_id
    return Claim(
        claim_id=claim_id,
        query_id=query_id,
        group_id=line.group_id or words,
        strategy=line.strategy,
        strategy_fingerprint=fingerprint,
        query=query,
        retrieved=[(item.id, item.score) for item in line.retrieved],
        k=line.k,
        miss_rate=line.miss_rate,
        at=None if line.at is None else utc_text(line.at),
    )


# ---- Outcomes: judged by hand, and filled-in audits.

_UNFILLED: Final = ("missed", "missed_content", "gold_source")
_OF_DRAW: Final = frozenset({"draw_id", "retrieved"})
_OF_CLAIM: Final = ("query_id", "group_id", "strategy", "strategy_fingerprint", "k")
LongText = Annotated[record.Storable, Field(max_length=MAX_TEXT)]


class OutcomeLine(_Line):
    """A line of a file with one outcome, as a person writes it."""

    claim_id: record.Hash | None = Field(
        default=None, description="what was judged; default: follows from the question"
    )
    query: record.Query | None = None
    target: BinaryTarget = "miss_any"
    k: record.Count = DEFAULT_K
    missed: bool
    missed_content: LongText | None = None
    agent_success: bool | None = None
    gold_source: Literal["qrels", "human", "llm_judge", "deep_audit"]
    gold_strategies: record.Names | None = Field(
        default=None,
        description="strategies whose retrieval the gold was judged from, [] for none; default: []"
        " for qrels, else this strategy",
    )
    gold_documents: record.Names = ()
    audit_depth: record.Count | None = Field(
        default=None, description="how far down the auditor looked"
    )
    note: LongText = ""


def read_outcomes(
    path: Path,
    sql: SqlStore,
    *,
    now: dt.datetime,
    strategy: str | None = None,
    fingerprint: str | None = None,
) -> tuple[list[RetrievalOutcome], int]:
    """Read and check a file of outcomes; returns them and the number of lines not judged yet.

    Claims and draws are looked up in `sql`. The strategy and fingerprint serve lines without these
    fields and with an unknown claim. Raises InputError with every fault of the file.
    """
    problems, defaults = ProblemList(), _defaults(strategy, fingerprint)
    rows = _read_objects(path, problems, OUTCOME_LINE)
    judged = [
        (number, row)
        for number, row in rows
        if "draw_id" not in row or any(row.get(name) not in (None, "") for name in _UNFILLED)
    ]
    outcomes = _make_outcomes(judged, sql, problems, now=now, defaults=defaults, file=str(path))
    problems.raise_errors()
    return outcomes, len(rows) - len(judged)


def read_outcome(typed: Line, sql: SqlStore, *, now: dt.datetime) -> RetrievalOutcome:
    """Make an outcome from typed values, with the keys of a line.

    Raises InputError with every fault.
    """
    problems = ProblemList()
    outcomes = _make_outcomes([(None, typed)], sql, problems, now=now)
    problems.raise_errors()
    return outcomes[0]


def _make_outcomes(
    rows: Sequence[tuple[int | None, Line]],
    sql: SqlStore,
    problems: ProblemList,
    *,
    now: dt.datetime,
    defaults: Line | None = None,
    file: str | None = None,
) -> list[RetrievalOutcome]:
    """Complete lines from their claims, their draws and the default values."""
    ids = {name for _, row in rows if isinstance(name := row.get("claim_id"), str)}
    traffic = TrafficStore(sql)
    claims, draws = traffic.by_id(ids), traffic.find_drawn(ids)
    outcomes: dict[str, RetrievalOutcome] = {}
    lines: dict[str, int | None] = {}
    for number, row in rows:
        claim = claims.get(str(row.get("claim_id")))
        drawn = draws.get((str(row.get("claim_id")), str(row.get("target", "miss_any"))))
        is_audit, typed, broken = "draw_id" in row, _drop_nulls(row), list[tuple[str, str, str]]()
        if is_audit:
            typed = {name: value for name, value in typed.items() if name not in _OF_DRAW}
        of_claim = {} if claim is None else {name: getattr(claim, name) for name in _OF_CLAIM}
        if is_audit and (drawn is None or drawn.draw_id != row["draw_id"]):
            accepted = "a line of a file that rag-eval audit draw wrote for this store"
            broken = [("draw_id", "this store has no such draw of this claim", accepted)]
        elif line := check_row(
            {**(defaults or {}), **of_claim, **typed}, OutcomeLine, problems, file, number
        ):
            broken = list(_broken_rules(line, claim, drawn if is_audit else None))
            if not broken:
                outcome = _complete(line, drawn, now)
                if outcome.outcome_id in outcomes:
                    first = f"line {lines[outcome.outcome_id]} judges"
                    message = f"{first} the same claim, target, K and gold source"
                    broken = [("claim_id", message, "one line each")]
                outcomes[outcome.outcome_id], lines[outcome.outcome_id] = outcome, number
        for field, message, accepted in broken:
            value = None if row.get(field) is None else quoted(row[field])
            add = partial(problems.add, "bad_value", message, file, line=number)
            add(field=field, found=value, accepted=accepted)
    return list(outcomes.values())


def _complete(line: OutcomeLine, drawn: Drawn | None, now: dt.datetime) -> RetrievalOutcome:
    """Make the outcome of a line, with defaults for what the line leaves out."""
    query = None if line.query is None else mask(line.query).text
    query_id = line.query_id or question_id(query or "")
    fingerprint = line.strategy_fingerprint
    fields = {name: value for name, value in line if name in RetrievalOutcome.model_fields}
    if line.claim_id is None:
        wording = "original", 0, query or query_id
        fields["claim_id"] = claim_id_of(fingerprint, query_id, *wording)
    if line.gold_strategies is None:
        fields["gold_strategies"] = () if line.gold_source == "qrels" else (fingerprint,)
    if drawn is not None and drawn.k == line.k and line.gold_source in AUDITS:
        fields["inclusion_probability"] = drawn.inclusion_probability
    fields |= {
        "query_id": query_id,
        "group_id": line.group_id or query_id,
        "missed_content": mask_snippet(line.missed_content or "") or None,
        "note": mask_snippet(line.note, MAX_NOTE),
        "at": line.at or now,
    }
    return new_outcome(**fields)


def _broken_rules(
    line: OutcomeLine, claim: Claim | None, audit: Drawn | None
) -> Iterator[tuple[str, str, str]]:
    """Yield field, message and accepted values of each rule that a line breaks."""
    if audit is not None and line.k != audit.k:
        yield "k", "the claim was drawn for another K", str(audit.k)
    if audit is not None and line.gold_source not in AUDITS:
        accepted = "human (looked at what was retrieved), deep_audit (searched the corpus)"
        yield "gold_source", "a person judges an audit", accepted
    if line.query_id is None and line.query is None:
        accepted = "query, query_id, or the claim_id of production traffic"
        yield "query_id", "the question is not named", accepted
    if line.missed_content and not line.missed:
        yield "missed_content", "missed_content belongs to a miss", "missed: true"
    for name in ("strategy", "strategy_fingerprint"):
        if claim is not None and getattr(line, name) != getattr(claim, name):
            yield name, "the claim is of another strategy", getattr(claim, name)
