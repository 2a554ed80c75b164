"""Claims of production traffic: their signals over this corpus, so that they feed z-scores, audits' outcomes and prediction-powered estimates.

A fingerprint is the identity of everything that decides a strategy's rankings, so its claims are retrieved again and signals come from what comes
back: lists of production are shorter than the configured depth, and signals of a cut list are other numbers than those of a whole one.
"""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.evaluation.batches import batch_of, can_be_asked
from rag_eval.evaluation.guard_steps import trust_mask
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.outcome_store import outcome_store
from rag_eval.evaluation.signal_steps import fingerprint_of
from rag_eval.records.gold_set import External
from rag_eval.records.problems import InputError
from rag_eval.retrieval.chunk_table import ChunkTable
from rag_eval.uncertainty.claims import ClaimStore
from rag_eval.uncertainty.labelled import FloatArray
from rag_eval.uncertainty.signals import SIGNALS, signals

AT_ONCE = 2000
"""Questions retrieved at once: imports may be large, and lists of all of them at the configured depth need not be in memory together."""
COLUMNS = ("claim_id", "query_id", "group_id")


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Claims of production traffic of one strategy fingerprint.

    Parameters
    ----------
    frame
        claim_id, query_id, group_id; one row a claim that is counted in.
    signals
        float64 [n, p] in the order of SIGNALS, of the lists that the strategy retrieves for the questions now, to the configured depth.
    n_unknown
        Claims that say nothing here, see `reason`.
    n_differing
        Claims among whose first K ids this corpus knows some, none of which comes back: whatever retrieved them, it was not this strategy.
    reason
        Why claims are unknown, or why there are none at all; empty where there is nothing to say.
    """

    frame: pd.DataFrame
    signals: FloatArray
    n_unknown: int = 0
    n_differing: int = 0
    reason: str = ""

    def known(self) -> dict[str, FloatArray]:
        """Signals by claim id."""
        return dict(zip(self.frame["claim_id"], self.signals, strict=True))


@dataclasses.dataclass(frozen=True)
class _Again:
    """What a question retrieves now: rows of chunks, best first, and their signals; None where the retrieval failed."""

    rows: tuple[int, ...]
    signals: FloatArray | None


def traffic(runs: Runs, name: str) -> Traffic:
    """Retrieve the imported claims of a strategy as it stands now once more; a strategy that has changed since has none."""
    return runs.evaluation.once(f"traffic {name}", lambda: _traffic(runs, name))


def _traffic(runs: Runs, name: str) -> Traffic:
    store = outcome_store(runs.evaluation)
    if isinstance(runs.spec(name), External):
        return _made([], [], reason="an external retriever is not asked again")
    if isinstance(store, InputError):
        return _made([], [], reason="the table of claims cannot be read")
    claims = ClaimStore(store.sql).claims(fingerprint=fingerprint_of(runs, name))
    if not claims:
        return _made([], [], reason="no claim was imported for the strategy as it stands now")
    again = _retrieved(runs, name, list(dict.fromkeys(claim["query"] for claim in claims)))
    states = _states(claims, again, runs.opened().table, runs.evaluation.config.uncertainty.k)
    kept = [claim for claim, state in zip(claims, states, strict=True) if state == "kept"]
    unknown = [f"{states.count(state)} {why}" for state, why in _WHY.items() if state in states]
    values = [
        found.signals
        for claim in kept
        if (found := again[claim["query"]]) is not None and found.signals is not None
    ]
    n_differing = states.count("differing")
    return _made(
        kept,
        values,
        n_unknown=len(claims) - len(kept) - n_differing,
        n_differing=n_differing,
        reason="; ".join(unknown),
    )


_WHY = {
    "no_vector": "with questions that the file of vectors has none for",
    "failed": "whose retrieval failed here",
    "no_id": "whose first K ids are neither chunks nor documents of this corpus",
}


def _states(
    claims: list[dict[str, Any]], again: dict[str, _Again | None], table: ChunkTable, k: int
) -> list[str]:
    """Say of each claim whether it is kept, differing, or a key of _WHY."""
    known = table.row_of.keys() | set(table.doc_ids)
    states = []
    for claim in claims:
        found, stated = (
            again[claim["query"]],
            {name for name, _ in claim["retrieved"][: claim["k"]]},
        )
        if found is None or found.signals is None:
            states.append("no_vector" if found is None else "failed")
        elif stated and not stated & known:
            states.append("no_id")
        else:
            top = found.rows[: max(claim["k"], k)]
            same = (
                stated
                & {name for row in top for name in (table.chunk_ids[row], table.doc_ids[row])}
                if stated
                else not top
            )
            states.append("kept" if same else "differing")
    return states


def _retrieved(runs: Runs, name: str, texts: list[str]) -> dict[str, _Again | None]:
    """Ask the strategy each question; None where a file of vectors has none for it.

    The trust filter is in force as it is for the gold set. Passages that restate a question are looked for among the gold set's own wordings only.
    """
    evaluation, opened, spec = runs.evaluation, runs.opened(), runs.spec(name)
    config, strategy = evaluation.config, opened.strategies[name]
    asked = [text for text in texts if can_be_asked(evaluation, opened, spec, text)]
    allowed = trust_mask(evaluation) if config.trust.filter else None
    again: dict[str, _Again | None] = dict.fromkeys(texts)
    for start in range(0, len(asked), AT_ONCE):
        part = asked[start : start + AT_ONCE]
        found = strategy.search(part, config.depth, config.seeds[0], allowed=allowed, strict=False)
        values = signals(batch_of(evaluation, opened, spec, part, found), config.uncertainty.k)
        failed = np.zeros(len(part), dtype=bool) if found.failed is None else found.failed
        for at, text in enumerate(part):
            rows = found.rows[at]
            again[text] = _Again(
                tuple(rows[rows >= 0].tolist()), None if failed[at] else values[at]
            )
    return again


def _made(
    kept: list[dict[str, Any]],
    values: list[FloatArray],
    *,
    n_unknown: int = 0,
    n_differing: int = 0,
    reason: str = "",
) -> Traffic:
    frame = pd.DataFrame(
        {column: pd.Series([claim[column] for claim in kept], dtype="str") for column in COLUMNS}
    )
    return Traffic(
        frame,
        np.array(values, dtype=np.float64).reshape(len(kept), len(SIGNALS)),
        n_unknown,
        n_differing,
        reason,
    )
