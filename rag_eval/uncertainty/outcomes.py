"""Outcomes, the judged misses of retrievals, in an append-only table.

Nothing in the table is updated or deleted. A correction is a new row that supersedes the old one.
Every text and number of an outcome is bounded, so that no file can fill the store with one row.
"""

import dataclasses
import datetime as dt
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, Self

import pandas as pd
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from rag_eval.core.frames import schema
from rag_eval.core.types import SNIPPET_CHARS, BinaryTarget, GoldSource, Id, Status
from rag_eval.gold.loading import group_ids
from rag_eval.storage.hashing import digest
from rag_eval.storage.sql import ColumnSpec, Kind, Row, SqlStore, TableSpec, Transaction
from rag_eval.uncertainty.confidence import StrictRecord, UnitInterval

MAX_QUERY, MAX_NOTE = 10_000, 500
MAX_SIGNALS, MAX_NAMES, MAX_NUMBER = 200, 100, 1e15
AUDITS: Final[frozenset[GoldSource]] = frozenset({"human", "deep_audit"})
"""Gold sources of which a person judged the claim itself."""


def _storable(text: str) -> str:
    if "\x00" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("a text with NUL or a lone surrogate, which no database keeps")
    return text


def _moment(value: Any) -> Any:
    if isinstance(value, str):  # JSON has times only as text, which strict records refuse
        try:
            return dt.datetime.fromisoformat(value)
        except ValueError:
            raise ValueError("no ISO 8601 time such as 2026-01-31T12:00:00Z") from None
    return value


def _utc(value: dt.datetime) -> dt.datetime:
    if value.tzinfo is None:
        raise ValueError("a time without its zone; write 2026-01-31T12:00:00Z")
    if not 1 < value.year < dt.MAXYEAR:  # so that UTC stays within the years of datetime
        raise ValueError("a year outside 2 to 9998")
    return value.astimezone(dt.UTC)


def _tuple(value: Any) -> Any:
    """Turn the lists of JSON into tuples, because strict records take no lists."""
    return tuple(value) if isinstance(value, list) else value


Storable = Annotated[str, AfterValidator(_storable)]
Query = Annotated[Storable, Field(min_length=1, max_length=MAX_QUERY)]
Hash = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
Number = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Probability = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Moment = Annotated[dt.datetime, BeforeValidator(_moment), AfterValidator(_utc)]
SignalName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@/-]{1,64}$")]
Names = Annotated[tuple[Id, ...], Field(max_length=MAX_NAMES), BeforeValidator(_tuple)]


class Shown(StrictRecord):
    """The miss rate that was shown when the claim was made."""

    value: UnitInterval | None = None
    status: Status = "absent"
    calibrator: Annotated[Query, Field(max_length=200)] | None = None


class RetrievalOutcome(StrictRecord):
    """One judgement of one claim under one target, K and gold source; never changed.

    A correction is another outcome that `supersedes` this one; `missed` is null if it takes the
    judgement back. `missed_content` is masked. `gold_strategies` are the strategies whose results
    were judged to make the gold. An outcome without `inclusion_probability`, that of being drawn
    for judging, never fits a calibrator. Questions that share one of `gold_documents` are one
    group.
    """

    outcome_id: Hash
    claim_id: Hash
    query_id: Id
    group_id: Id
    strategy: Id
    strategy_fingerprint: Id
    target: BinaryTarget
    k: Count
    missed: bool | None
    missed_content: Annotated[Query, Field(max_length=SNIPPET_CHARS)] | None = None
    agent_success: bool | None = None
    gold_source: GoldSource
    gold_strategies: Names = ()
    gold_documents: Names = ()
    audit_depth: Count | None = None
    inclusion_probability: Probability | None = None
    signals: Annotated[Mapping[SignalName, Number | None], Field(max_length=MAX_SIGNALS)] = {}
    shown: Shown = Shown()
    supersedes: Hash | None = None
    note: Annotated[Storable, Field(max_length=MAX_NOTE)] = ""
    at: Moment

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.missed is None and self.supersedes is None:
            raise ValueError("missed is needed, except where a judgement is withdrawn")
        if self.missed_content is not None and self.missed is not True:
            raise ValueError("missed_content belongs to a miss")
        return self


RETRIEVAL_OUTCOMES: Final = schema(
    "retrieval_outcomes",
    outcome_id=("str", "unique"),
    claim_id=("str", "what was judged"),
    query_id=("str", "its question"),
    group_id=("str", "unit of inference, joined over shared gold documents"),
    strategy=("str", "name of the strategy"),
    strategy_fingerprint=("str", "identity of everything that decides its rankings"),
    target=("str", "miss_any | miss_some"),
    k=("int", "cutoff of the target"),
    missed=("float", "1 missed, 0 not, NaN where it is not known"),
    missed_content=("str", "what was missed; empty where unknown"),
    agent_success=("float", "1 the agent succeeded, 0 not, NaN unknown"),
    gold_source=("str", "qrels | human | llm_judge | deep_audit | user_feedback"),
    gold_strategies=("list", "strategies whose retrieval the gold was judged from"),
    gold_documents=("list", "documents known to be gold"),
    audit_depth=("float", "depth to which the auditor looked; NaN without an auditor"),
    inclusion_probability=("float", "of being drawn for judgement; NaN where unknown"),
    signals=("list", "name -> number or None"),
    shown_value=("float", "miss rate that was shown; NaN where none was"),
    shown_status=("str", "what it had earned"),
    shown_calibrator=("str", "id of the calibrator that gave it; empty where none did"),
    supersedes=("str", "the outcome that this one corrects; empty for none"),
    note=("str", "why, for a person"),
    at=("str", "UTC, ISO 8601"),
)
_KINDS: Final[Mapping[str, Kind]] = {
    "str": "text",
    "int": "integer",
    "float": "float",
    "list": "json",
    "missed": "boolean",
    "agent_success": "boolean",
    "audit_depth": "integer",
}
"""Kinds in the table by kind in the frame, or by name where NaN stands for null."""
_REQUIRED: Final = frozenset(
    "outcome_id claim_id query_id group_id strategy strategy_fingerprint target k gold_source "
    "shown_status supersedes at".split()
)
OUTCOMES_TABLE: Final = TableSpec(
    "retrieval_outcomes",
    tuple(
        ColumnSpec(name, _KINDS.get(name, _KINDS[column.kind]), required=name in _REQUIRED)
        for name, column in RETRIEVAL_OUTCOMES.columns.items()
    ),
    indexes=(("strategy_fingerprint", "target", "k"), ("strategy",)),
    unique=(("outcome_id",), ("claim_id", "target", "k", "gold_source", "supersedes")),
)
OF_GOLD: Final = r"gold [0-9a-f]{16}(: instead of [0-9a-f]+)?"
"""Pattern of the notes of outcomes by gold. A correction by a person has another note."""


# ---- Identities: hashes of the content, so that recording a thing twice adds nothing.


def claim_id_of(
    strategy_fingerprint: str, query_id: str, paraphrase_id: str, seed: int, text: str
) -> str:
    """Identify the retrieval of a question by 32 hex digits that are equal in every run."""
    return digest(["claim", strategy_fingerprint, query_id, paraphrase_id, seed, text])


def question_id(text: str) -> str:
    """Identify a question by its words, without regard to case, width and spacing.

    Returns `q-` and 32 hex digits.

    >>> question_id("What is  NaN?") == question_id("what is nan?")
    True
    """
    return f"q-{digest(' '.join(unicodedata.normalize('NFKC', text).casefold().split()))}"


def new_outcome(**fields: Any) -> RetrievalOutcome:
    """Make an outcome; its id follows from claim, target, k, gold source and `supersedes`.

    So recording twice adds nothing, and a chain of corrections never forks. Raises ValidationError.
    """
    key = [fields[name] for name in ("claim_id", "target", "k", "gold_source")]
    name = digest(["outcome", *key, fields.get("supersedes") or ""])
    return RetrievalOutcome.model_validate({**fields, "outcome_id": name})


def utc_text(at: dt.datetime) -> str:
    """Write a time as UTC text with microseconds, so that texts sort like times."""
    return f"{at.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


# ---- Rows of the table, and frames of them.

Columns = dict[str, list[Any]]
BATCH: Final = 10_000
"""Largest number of names in one query, because databases limit statement parameters."""


def look_up(
    transaction: Transaction,
    table: TableSpec,
    column: str,
    names: Iterable[str],
    wanted: Sequence[str],
    *,
    where: Mapping[str, Any] | None = None,
) -> Columns:
    """Return the wanted columns of the rows of a table whose `column` is one of many names."""
    ordered = sorted(set(names))
    columns: Columns = {name: [] for name in wanted}
    for start in range(0, len(ordered), BATCH):
        chosen = {**(where or {}), column: ordered[start : start + BATCH]}
        for name, values in transaction.columns(table, chosen, wanted).items():
            columns[name] += values
    return columns


def _row_of(outcome: RetrievalOutcome) -> Row:
    values = dict(outcome) | {f"shown_{name}": value for name, value in outcome.shown}
    values |= {"signals": dict(outcome.signals), "at": utc_text(outcome.at)}
    values["supersedes"] = outcome.supersedes or ""
    return [values[name] for name in OUTCOMES_TABLE.column_names]


def _read_frame(columns: Columns) -> pd.DataFrame:
    """Make a frame of outcomes, oldest first, from the columns of the table."""
    series: dict[str, pd.Series] = {}
    for name, column in RETRIEVAL_OUTCOMES.columns.items():
        values = columns[name]
        if column.kind in {"float", "int"}:  # None becomes NaN
            series[name] = pd.Series(values, dtype=f"{column.kind}64")
            continue
        empty: object = {} if name == "signals" else [] if column.kind == "list" else ""
        filled = pd.Series([empty if value is None else value for value in values], dtype=object)
        series[name] = filled if column.kind == "list" else filled.astype(str)
    # The frame is sorted here, because databases differ in how they sort text.
    return RETRIEVAL_OUTCOMES.check(
        pd.DataFrame(series).sort_values(["at", "outcome_id"], kind="stable", ignore_index=True)
    )


def frame_of(outcomes: Iterable[RetrievalOutcome]) -> pd.DataFrame:
    """Write outcomes as a frame with the columns of `RETRIEVAL_OUTCOMES`, oldest first."""
    rows = list(map(_row_of, outcomes))
    names = OUTCOMES_TABLE.column_names
    return _read_frame({name: [row[at] for row in rows] for at, name in enumerate(names)})


# ---- Which outcomes serve which purpose.

_THOROUGH: Final = {"deep_audit": 0, "human": 1, "qrels": 2, "llm_judge": 3}
"""Gold sources that can fit a calibrator, the most thorough first. User feedback cannot."""


def fit_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the outcomes that may fit a calibrator, one for each claim, target and K.

    They are judged, with a known inclusion probability. Of several gold sources the most thorough
    source judges. The largest of their inclusion probabilities counts, because each source would
    have led to a judgement. Adds `weight`, 1 / inclusion probability, and makes `missed` bool.
    """
    can_fit = frame["missed"].notna() & frame["inclusion_probability"].notna()
    fitting = frame[can_fit & frame["gold_source"].isin(list(_THOROUGH))]
    key = ["claim_id", "target", "k"]
    largest = fitting.groupby(key, sort=False)["inclusion_probability"].transform("max")
    order = fitting["gold_source"].map(_THOROUGH).sort_values(kind="stable").index
    fitting = fitting.assign(
        inclusion_probability=largest, weight=1 / largest, missed=fitting["missed"].astype(bool)
    )
    return fitting.loc[order].drop_duplicates(key).sort_index().reset_index(drop=True)


def select_current(history: pd.DataFrame) -> pd.DataFrame:
    """Select the current outcomes of a history: the last row of each chain, oldest first.

    Groups that share a question or a known gold document are joined under their smallest name.
    """
    last = history[~history["outcome_id"].isin(history["supersedes"])].reset_index(drop=True)
    documents = last[["group_id", "gold_documents"]].explode("gold_documents").dropna()
    names = [*last["group_id"], *documents["group_id"]]
    ties = [*("query " + last["query_id"]), *("document " + documents["gold_documents"])]
    ordered = sorted(set(names))
    joined = dict(zip(ordered, group_ids(ordered, names, ties), strict=True))
    return last.assign(group_id=last["group_id"].map(joined).astype(str))


# ---- The store.


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Results of recording outcomes, by id; a recorded outcome is on disk.

    `added` are new rows, corrections among them. `differing` holds the ids in `already_there` whose
    current judgement is another one, mapped to the id of the current judgement.
    """

    added: tuple[str, ...]
    already_there: tuple[str, ...]
    differing: Mapping[str, str]


class _Judgement(NamedTuple):
    """Fields of a recorded outcome that identify the claim and the judgement."""

    outcome_id: str
    claim_id: str
    target: str
    k: int
    gold_source: str
    missed: bool | None
    inclusion_probability: float | None
    supersedes: str
    note: str

    @property
    def key(self) -> tuple[str, str, int, str]:
        """Claim, target, K and gold source."""
        return self.claim_id, self.target, self.k, self.gold_source

    def differs(self, outcome: RetrievalOutcome) -> bool:
        """Tell whether an outcome judges otherwise, or knows its inclusion probability first."""
        return self.missed is not outcome.missed or (
            self.inclusion_probability is None and outcome.inclusion_probability is not None
        )


class OutcomeStore:
    """Outcomes in SQLite or PostgreSQL; several processes may write at once.

    Raises InputError where the store cannot be used, or its table has other columns.
    """

    def __init__(self, store: SqlStore) -> None:
        self.sql = store
        store.create(OUTCOMES_TABLE)

    def record(
        self, outcomes: Iterable[RetrievalOutcome], *, because: str | None = None
    ) -> Recorded:
        """Add the outcomes that are new, in one transaction.

        `because` is the reason of the judgements, such as the version of the gold. Their notes
        start with the reason. With a reason, an outcome that differs from the current judgement
        supersedes the current judgement, and takes over its inclusion probability unless it has
        its own. Gold supersedes only gold, so that a correction by a person stays. Without a
        reason a difference is only reported.
        """
        offered = {outcome.outcome_id: _give_reason(outcome, because) for outcome in outcomes}
        by_gold = because is not None and bool(re.fullmatch(OF_GOLD, because))
        # The lock makes writers wait, so that what is read here still holds at the insertion.
        with self.sql.transaction(OUTCOMES_TABLE.name) as transaction:
            claims = (outcome.claim_id for outcome in offered.values())
            columns = look_up(transaction, OUTCOMES_TABLE, "claim_id", claims, _Judgement._fields)
            rows = [_Judgement(*row) for row in zip(*columns.values(), strict=True)]
            recorded = {row.outcome_id for row in rows}
            superseded = {row.supersedes for row in rows}
            last = {row.key: row for row in rows if row.outcome_id not in superseded}
            new = [outcome for name, outcome in offered.items() if name not in recorded]
            there = [outcome for name, outcome in offered.items() if name in recorded]
            differing: dict[str, str] = {}
            for outcome in there:
                standing = last[outcome.claim_id, outcome.target, outcome.k, outcome.gold_source]
                if not standing.differs(outcome):
                    continue
                if because is None or (by_gold and not re.fullmatch(OF_GOLD, standing.note)):
                    differing[outcome.outcome_id] = standing.outcome_id
                    continue
                fields = {**dict(outcome), "supersedes": standing.outcome_id}
                if outcome.inclusion_probability is None:
                    fields["inclusion_probability"] = standing.inclusion_probability
                new.append(new_outcome(**fields))
            added = transaction.insert_new(OUTCOMES_TABLE, map(_row_of, new), "outcome_id")
        return Recorded(
            tuple(outcome.outcome_id for outcome in new if outcome.outcome_id in added),
            tuple(outcome.outcome_id for outcome in there),
            differing,
        )

    def current(self, **where: Any) -> pd.DataFrame:
        """Return the current outcomes (`select_current`), with the filters of `history`."""
        return select_current(self.history(**where))

    def history(self, **where: Any) -> pd.DataFrame:
        """Return every row as RETRIEVAL_OUTCOMES, oldest first, with the recorded groups.

        `where` gives the accepted value of a column, or several accepted values.
        """
        with self.sql.reading() as transaction:
            return _read_frame(transaction.columns(OUTCOMES_TABLE, where))


def _give_reason(outcome: RetrievalOutcome, because: str | None) -> RetrievalOutcome:
    if because is None:
        return outcome
    note = f"{because}: {outcome.note}" if outcome.note else because
    return outcome.model_copy(update={"note": note[:MAX_NOTE]})
