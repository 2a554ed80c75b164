"""The guard at retrieval time: passages that restate a question, left out of what strategies return for it; and the trust filter."""

from typing import Any

import numpy as np
import numpy.typing as npt

from rag_eval.answers.withheld import Withheld
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.index_steps import IndexOpener
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.evaluation.trust_steps import admitted_chunks, admitted_trust
from rag_eval.retrieval.guarding import QueryGuard
from rag_eval.retrieval.ranking import Ranking
from rag_eval.storage.artifacts import Artifact
from rag_eval.trust.restated_readings import restated_pairs
from rag_eval.trust.verdicts import vouched_for

Pairs = npt.NDArray[np.int64]


def guarded(evaluation: Evaluation) -> dict[str, Any]:
    """Trust, guard and threshold of a `RetrievalService` over the admitted chunks."""
    facts, frame = admitted_trust(evaluation), admitted_chunks(evaluation).frame("chunks")
    vouched = vouched_for(facts["domain_state"].tolist(), facts["signature_state"].tolist())
    guard = QueryGuard(
        frame, facts["domain"].tolist(), vouched, (facts["allowed_by"] != "").to_numpy(dtype=bool)
    )
    spec = evaluation.config.trust
    return {
        "trust": facts["trust"].to_numpy() if spec.configured else None,
        "guard": guard if spec.quarantine else None,
        "default_threshold": spec.threshold if spec.filter else None,
    }


def restated(evaluation: Evaluation) -> Artifact:
    """Find the chunks that restate a wording of the gold set. Parts: pairs (query = variant, chunk, start, end, rule, severity), about (pairs and chunks that are blocked, pairs that are warned about)."""
    return evaluation.once("restated", lambda: _restated(evaluation))


def _restated(evaluation: Evaluation) -> Artifact:
    gold, chunks, facts = (
        gold_variants(evaluation),
        admitted_chunks(evaluation),
        admitted_trust(evaluation),
    )
    # of all facts those that are read here: documents that grew a day older are no reason to retrieve anew
    key = evaluation.key(
        "restated",
        gold.key,
        chunks.key,
        *(
            facts[name].tolist()
            for name in ("domain", "domain_state", "signature_state", "allowed_by")
        ),
    )

    def make() -> dict[str, Any]:
        frame = chunks.frame("chunks")
        with evaluation.progress.step("Looking for passages that restate a question"):
            vouched = vouched_for(facts["domain_state"].tolist(), facts["signature_state"].tolist())
            found = restated_pairs(
                gold.frame("variants")["text"].tolist(),
                frame["text"].tolist(),
                titles=frame["title"].tolist(),
                doc_ids=frame["doc_id"].tolist(),
                sources=facts["domain"].tolist(),
                vouched=vouched,
            )
        pairs = found[
            ~facts["allowed_by"].to_numpy(dtype=object)[found["chunk"].to_numpy()].astype(bool)
        ].reset_index(drop=True)
        blocked = pairs[pairs["severity"] == "blocked"]
        about = {
            "n_blocked_pairs": len(blocked),
            "n_blocked_chunks": int(blocked["chunk"].nunique()),
            "n_warned_pairs": int((pairs["severity"] == "warning").sum()),
        }
        return {"pairs": pairs, "about": about}

    return evaluation.memo("restated", key, make)


def blocked_pairs(evaluation: Evaluation, n_chunks: int) -> Pairs:
    """`variant * n_chunks + chunk` of every blocked pair."""
    pairs = restated(evaluation).frame("pairs")
    pairs = pairs[pairs["severity"] == "blocked"]
    codes: Pairs = pairs["query"].to_numpy(dtype=np.int64) * n_chunks + pairs["chunk"].to_numpy(
        dtype=np.int64
    )
    return codes


def trust_mask(evaluation: Evaluation) -> npt.NDArray[np.bool_] | None:
    """Which chunks the configured threshold lets through; None without a threshold."""
    threshold = evaluation.config.trust.threshold
    return (
        None
        if threshold is None
        else np.asarray(admitted_trust(evaluation)["trust"].to_numpy() >= threshold)
    )


def withheld(evaluation: Evaluation) -> tuple[Withheld, list[Any]]:
    """Work out what retrieval leaves out for each question, for evidence that is found without it.

    Returns
    -------
    Withheld, list
        The chunks: with quarantine on those that restate any wording of a question, with the filter on those under the threshold; and the
        part of a memo key that stands for them.
    """
    return evaluation.once("withheld", lambda: _withheld(evaluation))


def _withheld(evaluation: Evaluation) -> tuple[Withheld, list[Any]]:
    spec, of_question, parts = evaluation.config.trust, {}, list[Any]([None, None])
    if spec.quarantine:
        pairs = restated(evaluation).frame("pairs")
        pairs = pairs[pairs["severity"] == "blocked"]
        owners = (
            gold_variants(evaluation)
            .frame("variants")["query_id"]
            .to_numpy(dtype=object)[pairs["query"].to_numpy(dtype=np.int64)]
        )
        of_question = {
            str(query_id): frozenset(part.tolist())
            for query_id, part in pairs["chunk"].groupby(owners)
        }
        parts[0] = restated(evaluation).key
    allowed = trust_mask(evaluation) if spec.filter else None
    if (
        allowed is not None
    ):  # the mask and not the trust: documents that grew a day older are no reason to answer anew
        parts[1] = [spec.threshold, len(allowed), np.packbits(allowed).tobytes().hex()]
    return Withheld(of_question, allowed), parts


def guarded_search(
    evaluation: Evaluation, opened: IndexOpener, name: str, seed: int, *, filtered: bool
) -> tuple[Ranking, int]:
    """Search every wording with one strategy as a caller behind the guard would.

    Returns
    -------
    Ranking, int
        The ranking to the configured depth, and how many chunks the guard took out of it.
    """
    texts, depth = (
        gold_variants(evaluation).frame("variants")["text"].tolist(),
        evaluation.config.depth,
    )
    strategy, n_chunks = opened().strategies[name], len(opened().table)
    allowed = trust_mask(evaluation) if filtered else None
    pairs = (
        blocked_pairs(evaluation, n_chunks)
        if evaluation.config.trust.quarantine
        else np.zeros(0, dtype=np.int64)
    )
    spare = int(np.bincount(pairs // n_chunks).max()) if len(pairs) else 0
    found = strategy.search(texts, depth + spare, seed, allowed=allowed, strict=False)
    codes = np.arange(len(found.rows), dtype=np.int64)[:, None] * n_chunks + found.rows
    dropped = int((np.isin(codes, pairs) & found.found)[:, :depth].sum())
    return found.without(pairs, n_chunks).cut(depth), dropped
