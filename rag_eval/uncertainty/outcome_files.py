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

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from rag_eval.core.errors import ProblemList, quoted
from rag_eval.core.rows import check_row, read_objects, report_faults
from rag_eval.core.types import BinaryTarget, Id
from rag_eval.corpus.loaders.foreign import LeftOut, find_kind
from rag_eval.corpus.loaders.recorded import RecordedOutput, read_outputs
from rag_eval.corpus.masking import mask, mask_snippet
from rag_eval.storage.hashing import digest
from rag_eval.storage.sql import SqlStore
from rag_eval.uncertainty import outcome_records as record
from rag_eval.uncertainty.confidence_values import UnitInterval
from rag_eval.uncertainty.outcome_records import AUDITS, MAX_NOTE, RetrievalOutcome
from rag_eval.uncertainty.outcomes import (
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
CLAIM_LINE: Final = (
    '{"query": "...", "retrieved": [{"id": "...", "score": number or null}, ...]}, optionally'
    " query_id, group_id, k, at, strategy, strategy_fingerprint, miss_rate"
)
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
    defaults = _drop_nulls({"strategy": strategy, "strategy_fingerprint": fingerprint, "k": k})
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
    """Yield lines of claims with their places, and the recorded output that a line is made of.

    Of a document that occurs twice, a line keeps the best rank. The words of the question name it,
    so that equal questions of a day are one question.
    """
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
    moment = None if line.at is None else line.at.isoformat()
    ids = [item.id for item in line.retrieved]
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
LongText = Annotated[str, Field(max_length=MAX_TEXT)]


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


class _OutcomeReader:
    """Makes outcomes of lines. Faults become problems, and a line with a fault gives None.

    `file` is None for typed values.
    """

    def __init__(
        self,
        sql: SqlStore,
        rows: Sequence[Line],
        now: dt.datetime,
        problems: ProblemList,
        file: str | None = None,
    ) -> None:
        ids = {name for row in rows if isinstance(name := row.get("claim_id"), str)}
        traffic = TrafficStore(sql)
        self.claims, self.drawn = traffic.by_id(ids), traffic.find_drawn(ids)
        self.now, self.problems, self.file = now, problems, file

    def report(self, line: int | None, row: Line, field: str, message: str, accepted: str) -> None:
        """Add a problem with one field of a line."""
        value = None if row.get(field) is None else quoted(row[field])
        add = partial(self.problems.add, "bad_value", message, file=self.file, line=line)
        add(field=field, found=value, accepted=accepted)

    def make(self, row: Line, defaults: Line, number: int | None = None) -> RetrievalOutcome | None:
        """Complete a line from its claim, its draw and the default values."""
        before = self.problems.n_errors
        claim = self.claims.get(str(row.get("claim_id")))
        drawn = self.drawn.get((str(row.get("claim_id")), str(row.get("target", "miss_any"))))
        if "draw_id" in row and (drawn is None or drawn.draw_id != row["draw_id"]):
            accepted = "a line of a file that rag-eval audit draw wrote for this store"
            message = "this store has no such draw of this claim"
            self.report(number, row, "draw_id", message, accepted)
            return None
        of_claim = {} if claim is None else {name: getattr(claim, name) for name in _OF_CLAIM}
        ignored = _OF_DRAW if "draw_id" in row else frozenset[str]()
        typed = {name: value for name, value in _drop_nulls(row).items() if name not in ignored}
        values = {**defaults, **of_claim, **typed}
        line = check_row(values, OutcomeLine, self.problems, self.file, number)
        if line is None:
            return None
        for rule in _broken_rules(line, claim, drawn, is_audit="draw_id" in row):
            self.report(number, row, *rule)
        if self.problems.n_errors > before:
            return None
        try:
            return _complete(line, drawn, self.now)
        except ValidationError as error:
            report_faults(error, RetrievalOutcome, self.problems, self.file, number)
            return None


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
    line: OutcomeLine, claim: Claim | None, drawn: Drawn | None, *, is_audit: bool
) -> Iterator[tuple[str, str, str]]:
    """Yield field, message and accepted values of each rule that a line breaks."""
    if is_audit and drawn is not None and line.k != drawn.k:
        yield "k", "the claim was drawn for another K", str(drawn.k)
    if is_audit and line.gold_source not in AUDITS:
        accepted = "human (looked at what was retrieved), deep_audit (searched the corpus)"
        yield "gold_source", "a person judges an audit", accepted
    if line.query_id is None and line.query is None:
        accepted = "query, query_id, or the claim_id of production traffic"
        yield "query_id", "the question is not named", accepted
    for name in ("strategy", "strategy_fingerprint"):
        if claim is not None and getattr(line, name) != getattr(claim, name):
            yield name, "the claim is of another strategy", getattr(claim, name)


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
    defaults = _drop_nulls({"strategy": strategy, "strategy_fingerprint": fingerprint})
    problems = ProblemList()
    rows = _read_objects(path, problems, OUTCOME_LINE)
    reader = _OutcomeReader(sql, [row for _, row in rows], now, problems, str(path))
    outcomes: list[RetrievalOutcome] = []
    lines: dict[str, int] = {}
    not_judged = 0
    for number, row in rows:
        if "draw_id" in row and all(row.get(name) in (None, "") for name in _UNFILLED):
            not_judged += 1
            continue
        outcome = reader.make(row, defaults, number)
        if outcome is None:
            continue
        first = lines.setdefault(outcome.outcome_id, number)
        if first != number:
            message = f"line {first} judges the same claim, target, K and gold source"
            reader.report(number, row, "claim_id", message, "one line each")
        outcomes.append(outcome)
    problems.raise_errors()
    return outcomes, not_judged


def read_outcome(typed: Line, sql: SqlStore, *, now: dt.datetime) -> RetrievalOutcome:
    """Make an outcome from typed values, with the keys of a line.

    Raises InputError with every fault.
    """
    problems = ProblemList()
    outcome = _OutcomeReader(sql, [typed], now, problems).make(typed, {})
    problems.raise_errors()
    if outcome is None:
        raise AssertionError("a line without an outcome and without a problem")
    return outcome
