"""Stated miss rates as arrays: by strategy, seed and wording."""

import dataclasses

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.evaluation.claim_steps import miss_rate_claims, of_strategy
from rag_eval.evaluation.explorer_rankings import FloatArray, Top
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.records.uncertainty import STATUSES


@dataclasses.dataclass(frozen=True)
class Stated:
    """What was stated for one strategy.

    Parameters
    ----------
    figures
        float [n_seeds, n_variants, 3]: miss rate, low, high; NaN where nothing is known.
    status
        int [n_seeds, n_variants]: place in STATUSES; `absent` where nothing was stated.
    calibrator
        Text of the same shape; empty where nothing was stated.
    """

    figures: FloatArray
    status: npt.NDArray[np.int64]
    calibrator: npt.NDArray[np.object_]


def stated(runs: Runs, tops: list[Top]) -> list[Stated]:
    """Read the claims of every strategy."""
    columns = [
        "strategy",
        "query_id",
        "paraphrase_id",
        "seed",
        "miss_rate",
        "ci_low",
        "ci_high",
        "status",
        "calibrator",
    ]
    claims = pd.read_parquet(miss_rate_claims(runs).path("claims.parquet"), columns=columns)
    wordings = pd.MultiIndex.from_frame(runs.gold.variants[["query_id", "paraphrase_id"]])
    found = []
    for name, top in zip(runs.names, tops, strict=True):
        part = of_strategy(claims, name)
        variant = wordings.get_indexer(
            pd.MultiIndex.from_frame(part[["query_id", "paraphrase_id"]])
        )
        place = (np.searchsorted(top.seeds, part["seed"].to_numpy()), variant)
        shape = top.units.shape[:2]
        figures = np.full((*shape, 3), np.nan)
        figures[place] = part[["miss_rate", "ci_low", "ci_high"]].to_numpy(dtype=np.float64)
        status = np.full(shape, STATUSES.index("absent"), dtype=np.int64)
        status[place] = pd.Index(STATUSES).get_indexer(pd.Index(part["status"]))
        calibrator = np.full(shape, "", dtype=object)
        calibrator[place] = part["calibrator"].to_numpy(dtype=object)
        found.append(Stated(figures, status, calibrator))
    return found
