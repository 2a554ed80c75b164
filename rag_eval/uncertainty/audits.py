"""Audits: random samples of production claims for a person to judge, each with the probability that it was drawn.

Belongs here: drawing, and looking up what was drawn. The tables and lines of draws are `audit_rows`; `outcome_lines` reads what was filled in.
"""

import dataclasses
import datetime as dt
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.records.uncertainty import BinaryTarget
from rag_eval.storage.atomic import write_text
from rag_eval.storage.hashing import digest
from rag_eval.storage.sql import SqlStore, Transaction
from rag_eval.uncertainty import claims
from rag_eval.uncertainty.audit_rows import DRAWS, FRAMES, left_by, line
from rag_eval.uncertainty.outcome_rows import utc_text
from rag_eval.uncertainty.sampling import FloatArray, Strata, sample

MAX_DRAWN: Final = 10_000
MAX_DEPTH: Final = 1000
MAX_SEED: Final = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Draw:
    """A draw that was made: its name, what it was drawn from, and the file to be filled in."""

    draw_id: str
    strategy: str
    strategy_fingerprint: str
    n: int
    population: int
    strata: Strata
    smallest: float
    largest: float
    path: Path


class AuditStore:
    """Draws in a SQL store. Nothing in it is ever updated or deleted.

    Raises
    ------
    InputError
        The store cannot be used, or a table has other columns.
    """

    def __init__(self, store: SqlStore) -> None:
        self.sql = store
        for table in (claims.TABLE, DRAWS, FRAMES):
            store.create(table)

    def draw(
        self,
        n: int,
        *,
        seed: int,
        depth: int,
        path: Path,
        now: dt.datetime,
        strategy: str | None = None,
        fingerprint: str | None = None,
        target: BinaryTarget = "miss_any",
        stratified: bool = False,
    ) -> Draw:
        """Draw claims that no draw has taken yet, keep the probability of each, and write the file that the auditor fills in.

        The probability is that of not being taken by any earlier draw that could have, times that of being taken by this one: its inverse
        weighs the outcomes of this draw alone so that they stand for all claims there were. Outcomes of several draws are weighted by `inclusion`.

        Parameters
        ----------
        n
            How many; all that are left where there are fewer.
        seed
            Equal seeds draw equal samples from equal stores.
        depth
            How far down the auditor is to look; at least every claim's K.
        path
            File to write; it must not exist.
        now
            The current time.
        strategy, fingerprint
            Whose claims; needed where the store has claims of several fingerprints.
        target
            What is to be judged.
        stratified
            Whether to draw by strata of the miss rate that came with the claims.

        Raises
        ------
        InputError
            `bad_value`, `file_exists`, `no_claims`, `several_strategies`, `depth_too_small`, `no_risk`.
        """
        _check(n, depth, seed, path)
        with self.sql.transaction(claims.LOCK) as transaction:
            rows, left = self._population(transaction, strategy, fingerprint, target)
            risk = np.array(
                [np.nan if row["miss_rate"] is None else row["miss_rate"] for row in left],
                dtype=np.float64,
            )
            _check_population(left, risk, depth, stratified=stratified)
            chosen, strata = sample(risk, n, seed, stratified=stratified)
            frames = transaction.select(
                FRAMES,
                {"strategy_fingerprint": rows[0]["strategy_fingerprint"], "target": target},
                ["number"],
            )
            probability = (strata.probability[strata.of(risk)] * left_by(frames, left, risk))[
                chosen
            ]
            stratum, number = strata.of(risk)[chosen], len(frames) + 1
            taken = [left[at] for at in chosen]
            draw_id = digest(
                [
                    "draw",
                    rows[0]["strategy_fingerprint"],
                    target,
                    number,
                    sorted(row["claim_id"] for row in taken),
                ],
                16,
            )
            stamp = utc_text(now)
            frame = [
                draw_id,
                rows[0]["strategy"],
                rows[0]["strategy_fingerprint"],
                target,
                depth,
                len(taken),
                len(left),
                seed,
                strata.as_json(),
                max(row["batch"] for row in rows),
                number,
                stamp,
            ]
            transaction.insert(FRAMES, [frame])
            transaction.insert(
                DRAWS,
                (
                    [draw_id, row["claim_id"], target, row["k"], int(at), float(p), stamp]
                    for row, at, p in zip(taken, stratum, probability, strict=True)
                ),
            )
            write_text(
                path,
                "".join(
                    f"{json.dumps(line(row, draw_id, target, depth), ensure_ascii=False)}\n"
                    for row in taken
                ),
            )  # before the end: without its file no draw is kept
        return Draw(
            draw_id,
            rows[0]["strategy"],
            rows[0]["strategy_fingerprint"],
            len(taken),
            len(left),
            strata,
            float(probability.min()),
            float(probability.max()),
            path,
        )

    def _population(
        self, transaction: Transaction, strategy: str | None, fingerprint: str | None, target: str
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Claims of the one fingerprint that is meant, and those of them that no draw has taken, by claim_id."""
        where = {
            name: value
            for name, value in (("strategy", strategy), ("strategy_fingerprint", fingerprint))
            if value is not None
        }
        rows = sorted(transaction.select(claims.TABLE, where), key=lambda row: row["claim_id"])
        found = sorted({(row["strategy"], row["strategy_fingerprint"]) for row in rows})
        if len({name for _, name in found}) > 1:
            named = "; ".join(
                f"{quoted(name, 60)} {quoted(identity, 60)}" for name, identity in found[:10]
            )
            raise InputError(
                Problem(
                    "several_strategies",
                    "claims of several fingerprints are there, and a draw is of one",
                    field="--fingerprint",
                    found=named,
                    accepted="one of them",
                )
            )
        taken = set(transaction.columns(DRAWS, {"target": target}, ["claim_id"])["claim_id"])
        return rows, [row for row in rows if row["claim_id"] not in taken]

    def probabilities(self, claim_ids: Iterable[str]) -> dict[tuple[str, str], dict[str, Any]]:
        """Return the row of `audit_draws` of each (claim, target) that was drawn."""
        wanted = set(claim_ids)
        with self.sql.reading() as transaction:
            rows = (
                transaction.select(DRAWS)
                if len(wanted) > 1
                else transaction.select(DRAWS, {"claim_id": sorted(wanted)})
            )
        return {(row["claim_id"], row["target"]): row for row in rows if row["claim_id"] in wanted}

    def frames(self) -> list[dict[str, Any]]:
        """Return every draw, oldest first."""
        with self.sql.reading() as transaction:
            return sorted(transaction.select(FRAMES), key=lambda row: (row["at"], row["number"]))

    def drawn(self) -> list[dict[str, Any]]:
        """Return every drawn claim."""
        with self.sql.reading() as transaction:
            return transaction.select(DRAWS)


def _check(n: int, depth: int, seed: int, path: Path) -> None:
    wrong = [
        Problem(
            "bad_value",
            message,
            field=field,
            found=str(found),
            accepted=f"a whole number from {least} to {most}",
        )
        for message, field, found, least, most in (
            ("how many claims to draw", "--n", n, 1, MAX_DRAWN),
            ("how far down the auditor looks", "--depth", depth, 1, MAX_DEPTH),
            ("what the sample follows from", "--seed", seed, 0, MAX_SEED),
        )
        if not least <= found <= most
    ]
    if path.exists():
        wrong.append(
            Problem(
                "file_exists",
                "the file is there already, and may hold an auditor's work",
                file=str(path),
                field="--out",
                accepted="a file that does not exist",
            )
        )
    if wrong:
        raise InputError(wrong)


def _check_population(
    left: list[dict[str, Any]], risk: FloatArray, depth: int, *, stratified: bool
) -> None:
    if not left:
        raise InputError(
            Problem(
                "no_claims",
                "there is no claim that no draw has taken",
                accepted="claims of production traffic: rag-eval claim import",
            )
        )
    deepest = max(row["k"] for row in left)
    if depth < deepest:
        raise InputError(
            Problem(
                "depth_too_small",
                f"the top {deepest} cannot be judged by looking at {depth}",
                field="--depth",
                found=str(depth),
                accepted=f"{deepest} or more",
            )
        )
    if stratified and np.isnan(risk).all():
        raise InputError(
            Problem(
                "no_risk",
                "no claim came with a predicted miss rate",
                field="--stratify-by",
                accepted="lines of claims with miss_rate; or a draw without --stratify-by",
            )
        )
