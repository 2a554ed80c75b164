"""Claims of production traffic: questions and what was retrieved for them, without gold, from a file into the store.

Belongs here: the lines' form, masking, the table. They feed z-scores and prediction-powered estimates, and audits are drawn from them.
"""

import dataclasses
import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from rag_eval.corpus.masking import mask
from rag_eval.gold.problem_list import ProblemList
from rag_eval.records.confidence import Unit
from rag_eval.records.outcomes import MAX_RETRIEVED, Claim, Id, Moment, Number, Query
from rag_eval.storage.sql import SqlStore
from rag_eval.storage.sql_tables import ColumnSpec, TableSpec
from rag_eval.uncertainty.line_files import objects, record_of
from rag_eval.uncertainty.naming import question_id, traffic_claim_id
from rag_eval.uncertainty.outcome_rows import utc_text

ACCEPTED: Final = '{"query": "...", "retrieved": [{"id": "...", "score": number or null}, ...]}, optionally query_id, group_id, k, at, strategy, strategy_fingerprint, miss_rate'
LOCK: Final = "production_claims"
DEFAULT_K: Final = 10
LOOKED_UP: Final = 10_000
"""Names looked up at once: databases bound the parameters of a statement."""
AHEAD: Final = dt.timedelta(days=1)
"""How far a clock elsewhere may be ahead of ours."""

TABLE: Final = TableSpec(
    "production_claims",
    (
        ColumnSpec("claim_id", "text", required=True),
        ColumnSpec("query_id", "text", required=True),
        ColumnSpec("group_id", "text", required=True),
        ColumnSpec("strategy", "text", required=True),
        ColumnSpec("strategy_fingerprint", "text", required=True),
        ColumnSpec("query", "text", required=True),
        ColumnSpec("retrieved", "json", required=True),
        ColumnSpec("k", "integer", required=True),
        ColumnSpec("miss_rate", "float"),
        ColumnSpec("at", "text"),
        ColumnSpec("batch", "integer", required=True),
        ColumnSpec("imported_at", "text", required=True),
    ),
    indexes=(("strategy_fingerprint",),),
    unique=(("claim_id",),),
)
"""`batch` counts imports, so that a draw knows which claims were there when it was made."""


class _Retrieved(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: Id = Field(description="a text of 1 to 500 characters")
    score: Number | None = Field(description="a number, or null where the retriever gives none")


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    query: Query = Field(description="the question as it was asked, 1 to 10,000 characters")
    retrieved: Annotated[
        tuple[_Retrieved, ...],
        Field(max_length=MAX_RETRIEVED),
        BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
    ] = Field(
        description=f'a list of at most {MAX_RETRIEVED} of {{"id": "...", "score": number or null}}, best first'
    )
    query_id: Id | None = Field(
        default=None, description="a text of 1 to 500 characters; default: named by its words"
    )
    group_id: Id | None = Field(
        default=None,
        description="what ties questions together, a text of 1 to 500 characters; default: equal words",
    )
    k: Annotated[int, Field(ge=1, le=MAX_RETRIEVED)] | None = Field(
        default=None, description=f"a whole number from 1 to {MAX_RETRIEVED}"
    )
    at: Moment | None = Field(
        default=None, description="ISO 8601 with its zone, such as 2026-01-31T12:00:00Z"
    )
    strategy: Id | None = Field(
        default=None, description="name of the strategy, a text of 1 to 500 characters"
    )
    strategy_fingerprint: Id | None = Field(
        default=None,
        description="identity of everything that decides its rankings, a text of 1 to 500 characters",
    )
    miss_rate: Unit | None = Field(
        default=None,
        description="the miss rate that was predicted when it was retrieved, from 0 to 1",
    )


@dataclasses.dataclass(frozen=True)
class Imported:
    """How many claims were added and how many were there already (or twice in the file), and what was masked in them, by kind."""

    added: int
    already_there: int
    masked: dict[str, int]


def read_claims(
    path: Path,
    *,
    strategy: str | None = None,
    fingerprint: str | None = None,
    k: int = DEFAULT_K,
    now: dt.datetime,
) -> tuple[list[Claim], dict[str, int]]:
    """Read and check a file of production traffic; personal data in the questions is masked.

    Parameters
    ----------
    path
        JSON lines, see `ACCEPTED`.
    strategy, fingerprint, k
        For the lines that do not say.
    now
        The current time; a line from later is a fault.

    Returns
    -------
    tuple
        The claims in the order of the lines, and how many values were masked, by pattern name.

    Raises
    ------
    InputError
        No such file, or every fault of it with line, field, what was found and what is accepted.
    """
    problems, claims, masked = ProblemList(), [], dict[str, int]()
    for number, row in objects(path, problems, accepted=ACCEPTED, field="traffic"):
        line = record_of(_Line, row, problems, file=str(path), line=number)
        if line is None:
            continue
        line = line.model_copy(
            update={
                "strategy": line.strategy or strategy,
                "strategy_fingerprint": line.strategy_fingerprint or fingerprint,
                "k": line.k or k,
            }
        )
        if not _in_order(line, now, problems, {"file": str(path), "line": number}):
            continue
        text, counts = mask(line.query)
        for name, count in counts.items():
            masked[name] = masked.get(name, 0) + count
        claims.append(_claim(line, text))
    if not claims and not problems.n_errors:
        problems.add("no_claims", "the file has no line", file=str(path), accepted=ACCEPTED)
    problems.raise_errors()
    return claims, masked


def _in_order(line: _Line, now: dt.datetime, problems: ProblemList, place: dict[str, Any]) -> bool:
    before = problems.n_errors
    if not line.query.strip():
        problems.add(
            "bad_value",
            "the question is blank",
            **place,
            field="query",
            accepted="the question as it was asked",
        )
    for name in ("strategy", "strategy_fingerprint"):
        if not getattr(line, name):
            problems.add(
                "missing_field",
                "neither the line nor an option says which strategy retrieved this",
                **place,
                field=name,
                accepted="the field, or --strategy and --fingerprint",
            )
    twice = [
        name for name, count in Counter(item.id for item in line.retrieved).items() if count > 1
    ]
    if twice:
        problems.add(
            "duplicate_id",
            "one document or chunk stands twice in the list",
            **place,
            field="retrieved",
            found=twice[0],
            accepted="each id once, at its best rank",
        )
    if line.at is not None and line.at > now + AHEAD:
        problems.add(
            "bad_value",
            "a time that has not come yet",
            **place,
            field="at",
            found=utc_text(line.at),
            accepted=f"at most {utc_text(now)}",
        )
    return problems.n_errors == before


def _claim(line: _Line, query: str) -> Claim:
    fingerprint = line.strategy_fingerprint or ""  # never empty: `_in_order` refuses that
    words, retrieved = question_id(query), tuple((item.id, item.score) for item in line.retrieved)
    query_id = line.query_id or words
    return Claim(
        claim_id=traffic_claim_id(fingerprint, query_id, query, retrieved, line.at),
        query_id=query_id,
        group_id=line.group_id or words,
        strategy=line.strategy or "",
        strategy_fingerprint=fingerprint,
        query=query,
        retrieved=retrieved,
        k=line.k or DEFAULT_K,
        miss_rate=line.miss_rate,
        at=line.at,
    )


class ClaimStore:
    """Claims in a SQL store. Nothing in it is ever updated or deleted.

    Raises
    ------
    InputError
        The store cannot be used, or its table has other columns.
    """

    def __init__(self, store: SqlStore) -> None:
        self.sql = store
        store.create(TABLE)

    def add(
        self, claims: list[Claim], masked: dict[str, int] | None = None, *, now: dt.datetime
    ) -> Imported:
        """Add claims in one transaction; those that are there already are not added again."""
        stamp = utc_text(now)
        with self.sql.transaction(LOCK) as transaction:
            batch = max(transaction.columns(TABLE, None, ["batch"])["batch"], default=0) + 1
            rows = (
                [*_values(claim), batch, stamp]
                for claim in sorted(claims, key=lambda claim: claim.claim_id)
            )
            added = len(transaction.insert_new(TABLE, rows, "claim_id"))
        return Imported(added, len(claims) - added, masked or {})

    def claims(
        self,
        *,
        strategy: str | None = None,
        fingerprint: str | None = None,
        claim_ids: list[str] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the rows of claims in the order of import; None keeps all."""
        given = {"strategy": strategy, "strategy_fingerprint": fingerprint, "claim_id": claim_ids}
        with self.sql.reading() as transaction:
            rows = transaction.select(
                TABLE, {name: value for name, value in given.items() if value is not None}
            )
        return sorted(rows, key=lambda row: (row["batch"], row["at"] or "", row["claim_id"]))

    def by_id(self, claim_ids: set[str]) -> dict[str, dict[str, Any]]:
        """Return what names the claims among some ids: claim, question and its words, group, strategy and K."""
        names, wanted = (
            ["claim_id", "query_id", "group_id", "strategy", "strategy_fingerprint", "k", "query"],
            sorted(claim_ids),
        )
        found: dict[str, dict[str, Any]] = {}
        with self.sql.reading() as transaction:
            for start in range(0, len(wanted), LOOKED_UP):
                columns = transaction.columns(
                    TABLE, {"claim_id": wanted[start : start + LOOKED_UP]}, names
                )
                found |= {
                    row[0]: dict(zip(names, row, strict=True))
                    for row in zip(*columns.values(), strict=True)
                }
        return found


def _values(claim: Claim) -> list[Any]:
    values = {**dict(claim), "at": None if claim.at is None else utc_text(claim.at)}
    return [values[name] for name in TABLE.column_names[:-2]]
