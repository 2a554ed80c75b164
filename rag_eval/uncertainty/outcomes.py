"""Keep outcomes, the judged misses of retrievals, in an append-only table.

Nothing in the table is updated or deleted. A correction is a new row that supersedes the old one.
Claims of production traffic and audits are in `traffic`, imported files in `outcome_files`.
"""

import dataclasses
import datetime as dt
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pandas as pd

from rag_eval.core.errors import quoted
from rag_eval.gold.loading import group_ids
from rag_eval.storage.hashing import digest
from rag_eval.storage.sql import ColumnSpec, Kind, Row, SqlStore, TableSpec, Transaction
from rag_eval.uncertainty.outcome_records import MAX_NOTE, RETRIEVAL_OUTCOMES, RetrievalOutcome

# ---- Identities: hashes of the content, so that recording a thing twice adds nothing


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
    """Make an outcome with its id of 32 hex digits.

    Two corrections of one outcome have the same id. So only one of them is recorded, and a chain
    of corrections never forks. Raises pydantic.ValidationError for fields that do not fit.
    """
    key = [fields[name] for name in ("claim_id", "target", "k", "gold_source")]
    name = digest(["outcome", *key, fields.get("supersedes") or ""])
    return RetrievalOutcome.model_validate({**fields, "outcome_id": name})


# ---- Outcomes as rows of the table and as a frame.

_KINDS: Final[dict[str, Kind]] = {"str": "text", "int": "integer", "float": "float", "list": "json"}
_NULLABLE_KINDS: Final[dict[str, Kind]] = {
    "missed": "boolean",
    "agent_success": "boolean",
    "audit_depth": "integer",
}
"""Kinds in the table of columns that are floats in the frame, where NaN stands for null."""
_REQUIRED: Final = frozenset(
    "outcome_id claim_id query_id group_id strategy strategy_fingerprint target k gold_source "
    "shown_status supersedes at".split()
)
OUTCOMES_TABLE: Final = TableSpec(
    "retrieval_outcomes",
    tuple(
        ColumnSpec(name, _NULLABLE_KINDS.get(name, _KINDS[column.kind]), required=name in _REQUIRED)
        for name, column in RETRIEVAL_OUTCOMES.columns.items()
    ),
    indexes=(("strategy_fingerprint", "target", "k"), ("strategy",)),
    unique=(("outcome_id",), ("claim_id", "target", "k", "gold_source", "supersedes")),
)
OF_GOLD: Final = r"gold [0-9a-f]{16}(: instead of [0-9a-f]+)?"
"""Pattern of the notes of outcomes by gold. A correction by a person has another note."""
BATCH: Final = 10_000
"""Largest number of names in one query, because databases limit statement parameters."""

Columns = dict[str, list[Any]]


def utc_text(at: dt.datetime) -> str:
    """Write a time as UTC text with microseconds, so that texts sort like times."""
    return f"{at.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


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


def of_frame(frame: pd.DataFrame) -> list[RetrievalOutcome]:
    """Read outcomes from a frame, in the order of the frame."""
    outcomes = []
    for row in frame.to_dict("records"):
        fields: dict[Any, Any] = {"missed": None}
        fields |= {name: value for name, value in row.items() if not _stands_for_null(value)}
        names = [name for name in fields if name.startswith("shown_")]
        shown = {name.removeprefix("shown_"): fields.pop(name) for name in names}
        # The frame has floats for booleans, so the strict model reads it leniently.
        outcomes.append(RetrievalOutcome.model_validate({**fields, "shown": shown}, strict=False))
    return outcomes


def _stands_for_null(value: object) -> bool:
    return value == "" or (isinstance(value, float) and math.isnan(value))


# ---- Which outcomes serve which purpose.

_THOROUGH: Final = {"deep_audit": 0, "human": 1, "qrels": 2, "llm_judge": 3}
"""Gold sources that can fit a calibrator, the most thorough first."""


def _keep_fitting(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep judged outcomes with a known inclusion probability, without user feedback."""
    can_fit = frame["missed"].notna() & frame["inclusion_probability"].notna()
    return frame[can_fit & (frame["gold_source"] != "user_feedback")]


def fit_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the outcomes that may fit a calibrator, one for each claim, target and K.

    Of several gold sources the most thorough source judges. The largest of their inclusion
    probabilities counts, because each source would have led to a judgement. Adds `weight`,
    1 / inclusion probability, and makes `missed` bool.
    """
    fitting = _keep_fitting(frame)
    key = ["claim_id", "target", "k"]
    largest = fitting.groupby(key, sort=False)["inclusion_probability"].transform("max")
    order = fitting["gold_source"].map(_THOROUGH).sort_values(kind="stable").index
    fitting = fitting.assign(
        inclusion_probability=largest, weight=1 / largest, missed=fitting["missed"].astype(bool)
    )
    return fitting.loc[order].drop_duplicates(key).sort_index().reset_index(drop=True)


def explain_own_gold(frame: pd.DataFrame, strategy: str) -> str:
    """Say why a strategy cannot be calibrated on gold that only its own retrieval found.

    Chunks that the strategy never retrieves could not become gold, so its misses cannot show.
    Empty where the gold comes from elsewhere too. `frame` has current outcomes.
    """
    own_rows = frame[(frame["strategy"] == strategy) | (frame["strategy_fingerprint"] == strategy)]
    aliases = {strategy, *own_rows["strategy"], *own_rows["strategy_fingerprint"]}
    judged_from = set(map(tuple, own_rows["gold_strategies"]))
    if not judged_from or not all(names and aliases.issuperset(names) for names in judged_from):
        return ""
    name = quoted(strategy)
    return (
        f"the gold of all {len(own_rows)} outcomes of {name} was judged from what {name} itself"
        " retrieved, so its misses are invisible; accepted: outcomes whose gold_strategies are"
        " empty (qrels, a search of the corpus by hand), or name other strategies too"
    )


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
        offered = {
            outcome.outcome_id: outcome if because is None else _give_reason(outcome, because)
            for outcome in outcomes
        }
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
                standing = last[_Judgement.of(outcome).key]
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
        """Return the current outcomes: the last row of each chain, oldest first.

        The filters are those of `history`. Groups that share a question or a known gold document
        are joined under their smallest name.
        """
        return select_current(self.history(**where))

    def history(self, *, claim_ids: Iterable[str] | None = None, **where: Any) -> pd.DataFrame:
        """Return every row as RETRIEVAL_OUTCOMES, oldest first, with the recorded groups.

        `where` gives the accepted value of a column, or several accepted values. A filter of None
        keeps all rows.
        """
        chosen = {name: value for name, value in where.items() if value is not None}
        names = OUTCOMES_TABLE.column_names
        with self.sql.reading() as transaction:
            if claim_ids is None:
                return _read_frame(transaction.columns(OUTCOMES_TABLE, chosen))
            return _read_frame(
                look_up(transaction, OUTCOMES_TABLE, "claim_id", claim_ids, names, where=chosen)
            )


def select_current(history: pd.DataFrame) -> pd.DataFrame:
    """Select the current outcomes of a history, as `OutcomeStore.current` returns them."""
    last = history[~history["outcome_id"].isin(history["supersedes"])].reset_index(drop=True)
    documents = last[["group_id", "gold_documents"]].explode("gold_documents").dropna()
    ties = [
        *zip(last["group_id"], "query " + last["query_id"], strict=True),
        *zip(documents["group_id"], "document " + documents["gold_documents"], strict=True),
    ]
    groups = _join_groups(last["group_id"], ties)
    return last.assign(group_id=last["group_id"].map(groups).astype(str))


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

    @classmethod
    def of(cls, outcome: RetrievalOutcome) -> "_Judgement":
        """Take the fields of an outcome."""
        return cls(*(getattr(outcome, name) for name in cls._fields))

    @property
    def key(self) -> tuple[str, str, int, str]:
        """Claim, target, K and gold source of the judgement."""
        return self.claim_id, self.target, self.k, self.gold_source

    def differs(self, outcome: RetrievalOutcome) -> bool:
        """Tell whether an outcome judges otherwise, or knows its inclusion probability first."""
        return self.missed is not outcome.missed or (
            self.inclusion_probability is None and outcome.inclusion_probability is not None
        )


def _give_reason(outcome: RetrievalOutcome, because: str) -> RetrievalOutcome:
    note = f"{because}: {outcome.note}" if outcome.note else because
    return outcome.model_copy(update={"note": note[:MAX_NOTE]})


def _join_groups(names: Iterable[str], ties: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Join names that share a tie; each name is mapped to the smallest name of its component."""
    ordered = sorted(set(names))
    joined = group_ids(ordered, [name for name, _ in ties], [tie for _, tie in ties])
    return dict(zip(ordered, joined, strict=True))
