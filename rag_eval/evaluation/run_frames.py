"""Rankings <-> frames as they are stored: RUN, and the retrievals that failed."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.records.frames import RUN
from rag_eval.retrieval.ranking import Ranking


def run_frame(rankings: Mapping[int, Ranking]) -> pd.DataFrame:
    """Write rankings in long form: RUN schema, one row a retrieved chunk.

    Parameters
    ----------
    rankings
        Seed -> ranking of all variants.
    """
    parts = []
    for seed, found in rankings.items():
        variant, place = np.nonzero(found.found)
        parts.append(
            pd.DataFrame(
                {
                    "variant": variant.astype(np.int64),
                    "seed": np.full(len(variant), seed, dtype=np.int64),
                    "chunk": found.rows[variant, place].astype(np.int64),
                    "k_pos": found.k_pos[variant, place].astype(np.int64),
                    "k_final": (place + 1).astype(np.int64),
                    "score_raw": found.raw[variant, place],
                    "score_norm": found.norm[variant, place],
                    "rerank_score": found.rerank[variant, place],
                }
            )
        )
    return RUN.check(pd.concat(parts, ignore_index=True))


def failed_frame(rankings: Mapping[int, Ranking]) -> pd.DataFrame:
    """List the retrievals that ended in an error: variant, seed."""
    rows = [
        (row, seed)
        for seed, found in rankings.items()
        if found.failed is not None
        for row in np.flatnonzero(found.failed).tolist()
    ]
    return pd.DataFrame(rows, columns=["variant", "seed"], dtype="int64")


def run_rows(
    frame: pd.DataFrame, seeds: Sequence[int], n_variants: int, depth: int
) -> dict[int, npt.NDArray[np.int64]]:
    """Read a RUN frame back as chunk rows by seed, int64 [n_variants, depth], -1 padded. A seed under which nothing was retrieved has no row in the frame."""
    result = {}
    for seed in sorted(seeds):
        part = frame[frame["seed"] == seed]
        rows = np.full((n_variants, depth), -1, dtype=np.int64)
        rows[part["variant"].to_numpy(), part["k_final"].to_numpy() - 1] = part["chunk"].to_numpy()
        result[seed] = rows
    return result
