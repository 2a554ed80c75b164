"""How likely a claim was to be judged by any of the draws that could have taken it: what outcomes of several draws are weighted by together.

Belongs here: from the draws of a fingerprint to one probability a claim. Making a draw is `audits`, what the weights are used for `outcome_use`.

Notes
-----
Draws are disjoint: each takes from what the ones before left. So a claim's chance to be taken by any is the sum over draws of the chance to be left by
those before times that of being taken by this one, which is 1 - the product of the chances to be left; a draw made before the claim came in adds nothing.
Weighing each outcome by the inverse of its own draw's chance instead would count a claim once for every draw it was there for.
"""

import contextlib
from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from rag_eval.records.outcomes import AUDITS
from rag_eval.storage.sql import SqlStore, Transaction
from rag_eval.uncertainty import claims
from rag_eval.uncertainty.audit_rows import DRAWS, FRAMES
from rag_eval.uncertainty.outcome_rows import TABLE
from rag_eval.uncertainty.sampling import from_json

_JUDGED: Final = (
    "outcome_id",
    "claim_id",
    "target",
    "missed",
    "inclusion_probability",
    "supersedes",
)


@contextlib.contextmanager
def _reading(store: SqlStore) -> Iterator[Transaction]:
    for table in (
        claims.TABLE,
        DRAWS,
        FRAMES,
    ):  # only now: whoever has no audits needs none of them
        store.create(table)
    with store.reading() as transaction:
        yield transaction


def chances(store: SqlStore, fingerprint: str, target: str) -> dict[str, float]:
    """Return each claim's probability of being judged by any draw: 0 where no draw could have taken it; nothing where no drawn claim is judged.

    Of a draw that is judged in part the judged claims stand for all it took, so its part counts by the share that is judged, relative to the draw
    of which the largest share is: a draw that nobody has looked at counts for nothing, and where all are judged alike, shares change nothing. That
    holds where what was judged first has nothing to do with the outcome; the lines of a draw are in random order.

    Parameters
    ----------
    store
        With the table of outcomes.
    fingerprint, target
        Whose draws.
    """
    with _reading(store) as transaction:
        return {
            claim: chance
            for claim, (chance, _) in _chances(transaction, fingerprint, target).items()
        }


def pooled(store: SqlStore, frame: pd.DataFrame) -> pd.DataFrame:
    """Give audited outcomes the probability of being judged by any draw, see `chances`; others, and those drawn in another store, keep theirs.

    Parameters
    ----------
    frame
        RETRIEVAL_OUTCOMES.
    """
    audited = frame["gold_source"].isin(AUDITS) & frame["inclusion_probability"].notna()
    if not audited.any():
        return frame
    value = frame["inclusion_probability"].to_numpy(dtype=np.float64).copy()
    with _reading(store) as transaction:
        for (fingerprint, target), part in frame[audited].groupby(
            ["strategy_fingerprint", "target"]
        ):
            found = _chances(transaction, str(fingerprint), str(target))
            for row, claim in zip(part.index, part["claim_id"], strict=True):
                chance, drawn = found.get(claim, (0.0, False))
                value[row] = chance if drawn and chance > 0 else value[row]
    return frame.assign(inclusion_probability=value)


def _chances(
    transaction: Transaction, fingerprint: str, target: str
) -> dict[str, tuple[float, bool]]:
    """Chance of each claim, and whether it was drawn."""
    frames = sorted(
        transaction.select(FRAMES, {"strategy_fingerprint": fingerprint, "target": target}),
        key=lambda row: row["number"],
    )
    if not frames:
        return {}
    drawn = transaction.columns(
        DRAWS, {"draw_id": [row["draw_id"] for row in frames]}, ["claim_id", "draw_id"]
    )
    draw_of = dict(zip(drawn["claim_id"], drawn["draw_id"], strict=True))
    judged = [
        draw_of[claim] for claim in _judged(transaction, fingerprint, target) & draw_of.keys()
    ]
    share = np.array([judged.count(row["draw_id"]) / row["n"] for row in frames], dtype=np.float64)
    if not share.any():
        return {}
    there = transaction.columns(
        claims.TABLE, {"strategy_fingerprint": fingerprint}, ["claim_id", "batch", "miss_rate"]
    )
    batch, risk = (
        np.array(there["batch"], dtype=np.int64),
        np.array(
            [np.nan if value is None else value for value in there["miss_rate"]], dtype=np.float64
        ),
    )
    left, chance = np.ones(len(batch)), np.zeros(len(batch))
    for frame, counted in zip(frames, share / share.max(), strict=True):
        strata = from_json(frame["strata"])
        taken = np.where(batch <= frame["batch"], strata.probability[strata.of(risk)], 0.0)
        chance += left * taken * counted
        left *= 1 - taken
    return {
        claim: (value, claim in draw_of)
        for claim, value in zip(there["claim_id"], np.minimum(chance, 1.0).tolist(), strict=True)
    }


def _judged(transaction: Transaction, fingerprint: str, target: str) -> set[str]:
    """Claims of which an audit's judgement stands that was drawn at random."""
    found = transaction.columns(
        TABLE,
        {"strategy_fingerprint": fingerprint, "target": target, "gold_source": sorted(AUDITS)},
        _JUDGED,
    )
    superseded = set(found["supersedes"])
    rows = zip(*(found[name] for name in _JUDGED), strict=True)
    return {
        claim
        for name, claim, _, missed, probability, _ in rows
        if name not in superseded and missed is not None and probability is not None
    }
