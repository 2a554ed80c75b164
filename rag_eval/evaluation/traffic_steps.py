"""Claims of production traffic: their signals over this corpus, so that they feed z-scores, audits' outcomes and prediction-powered estimates."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.evaluation.batches import batch_of, can_be_asked
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.outcome_store import outcome_store
from rag_eval.evaluation.signal_steps import fingerprint_of
from rag_eval.records.gold_set import External
from rag_eval.records.problems import InputError
from rag_eval.retrieval.ranking import Ranking, scale_by_top
from rag_eval.uncertainty.claims import ClaimStore
from rag_eval.uncertainty.labelled import FloatArray
from rag_eval.uncertainty.signals import SIGNALS, signals


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Claims of production traffic of one strategy fingerprint.

    Parameters
    ----------
    frame
        claim_id, query_id, group_id; one row a claim that retrieved something this corpus knows.
    signals
        float64 [n, p] in the order of SIGNALS.
    n_unknown
        Claims that retrieved nothing this corpus knows, or whose words a file of vectors does not have: they say nothing here.
    """

    frame: pd.DataFrame
    signals: FloatArray
    n_unknown: int

    def known(self) -> dict[str, FloatArray]:
        """Signals by claim id."""
        return dict(zip(self.frame["claim_id"], self.signals, strict=True))


def traffic(runs: Runs, name: str) -> Traffic:
    """Read the imported claims of a strategy as it stands now; a strategy that has changed since has none."""
    return runs.evaluation.once(f"traffic {name}", lambda: _traffic(runs, name))


def _traffic(runs: Runs, name: str) -> Traffic:
    empty = Traffic(pd.DataFrame({column: pd.Series(dtype="str") for column in ("claim_id", "query_id", "group_id")}), np.zeros((0, len(SIGNALS))), 0)
    opened_store = outcome_store(runs.evaluation)
    if isinstance(runs.spec(name), External) or isinstance(opened_store, InputError):
        return empty
    claims = ClaimStore(opened_store.sql).claims(fingerprint=fingerprint_of(runs, name))
    if not claims:
        return empty
    opened = runs.opened()
    first_of = {doc_id: row for row, doc_id in reversed(list(enumerate(opened.table.doc_ids)))}
    found = _ranking(claims, opened.table.row_of, first_of)
    asked = [can_be_asked(runs.evaluation, opened, runs.spec(name), claim["query"]) for claim in claims]
    there = np.asarray(found.found.any(axis=1)) & np.array(asked, dtype=bool)
    kept = [claim for claim, known in zip(claims, there.tolist(), strict=True) if known]
    if not kept:
        return dataclasses.replace(empty, n_unknown=len(claims))
    parts = {field: getattr(found, field)[there] for field in ("rows", "raw", "norm", "k_pos", "rerank", "candidates")}
    batch = batch_of(runs.evaluation, opened, runs.spec(name), [claim["query"] for claim in kept], Ranking(**parts))
    frame = pd.DataFrame([{column: claim[column] for column in ("claim_id", "query_id", "group_id")} for claim in kept])
    return Traffic(frame, signals(batch, runs.evaluation.config.uncertainty.k), len(claims) - len(kept))


def _ranking(claims: list[dict[str, Any]], row_of: dict[str, int], first_of: dict[str, int]) -> Ranking:
    """Lists of claims over the chunks: an id is a chunk's, or a document's, which stands for its first chunk; what nobody knows is left out."""
    depth = max((len(claim["retrieved"]) for claim in claims), default=1)
    rows, raw = np.full((len(claims), depth), -1, dtype=np.int32), np.zeros((len(claims), depth))
    for at, claim in enumerate(claims):
        known = [(row_of.get(name, first_of.get(name, -1)), score) for name, score in claim["retrieved"]]
        kept = [(row, 0.0 if score is None else float(score)) for row, score in known if row >= 0]
        rows[at, : len(kept)], raw[at, : len(kept)] = [row for row, _ in kept], [score for _, score in kept]
    k_pos = np.where(rows >= 0, np.arange(1, depth + 1, dtype=np.int32), np.int32(0)).astype(np.int32)
    return Ranking(rows, raw, scale_by_top(np.maximum(raw, 0.0)), k_pos, np.full(rows.shape, np.nan), (rows >= 0).sum(axis=1).astype(np.int64))
