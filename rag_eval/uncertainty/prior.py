"""The shipped prior: what signals said of misses on public collections, read from `prior.json`.

Belongs here: reading it and bringing it into a model's order. `benchmarks/fit_miss_prior.py` fits and writes the file, which says from
what, with which signals, and with which result on collections that the fit had not seen.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, Literal, get_args

import numpy as np

from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.labelled import FloatArray

FILE: Final = "prior.json"
Kind = Literal["any", "bm25", "vector", "hybrid"]
"""Kinds of strategies: a signal does not say the same of a lexical list as of a dense one."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclasses.dataclass(frozen=True)
class Prior:
    """Coefficients over z-scored signals, and how much they differ between collections.

    Parameters
    ----------
    names
        p names of the signals.
    coefficients, intercept
        Log-odds of a miss: intercept + z-scored signals @ coefficients.
    spread
        Standard deviation between collections and strategies of the intercept, and of each coefficient [1 + p].
    provenance
        Where it comes from, as it stands in the file.
    """

    names: tuple[str, ...]
    coefficients: tuple[float, ...]
    intercept: float
    spread: tuple[float, ...]
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        """Refuse parts of different lengths and figures that are none."""
        if not len(self.names) == len(self.coefficients) == len(self.spread) - 1:
            raise ValueError(
                f"{len(self.names)} names, {len(self.coefficients)} coefficients, {len(self.spread)} spreads; accepted p, p and p + 1"
            )
        if (
            not np.isfinite([self.intercept, *self.coefficients, *self.spread]).all()
            or min(self.spread) < 0
        ):
            raise ValueError("coefficients, intercept and spread are finite, spreads 0 or more")

    @property
    def id(self) -> str:
        """Identity of its numbers."""
        return digest(
            {
                "coefficients": self.coefficients,
                "intercept": self.intercept,
                "names": self.names,
                "spread": self.spread,
            },
            16,
        )

    def over(self, names: Sequence[str]) -> FloatArray:
        """Coefficients in the order of other names, 0 for a signal that the prior does not know, float64 [len(names)]."""
        known = dict(zip(self.names, self.coefficients, strict=True))
        return np.array([known.get(name, 0.0) for name in names])

    def spread_over(self, names: Sequence[str]) -> FloatArray:
        """Spread of the coefficients in the order of other names; the mean spread for a signal that the prior does not know."""
        known = dict(zip(self.names, self.spread[1:], strict=True))
        usual = float(np.mean(self.spread[1:])) if self.names else 0.0
        return np.array([known.get(name, usual) for name in names])

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON, exactly."""
        rows = zip(self.names, self.coefficients, self.spread[1:], strict=True)
        return {
            "intercept": {"value": self.intercept, "spread": self.spread[0]},
            "coefficients": [
                {"signal": name, "value": value, "spread": spread} for name, value, spread in rows
            ],
            "provenance": dict(self.provenance),
        }


def from_json(document: Mapping[str, Any]) -> Prior:
    """Read what `Prior.to_json` wrote, exactly."""
    rows, intercept = document["coefficients"], document["intercept"]
    return Prior(
        tuple(row["signal"] for row in rows),
        tuple(row["value"] for row in rows),
        intercept["value"],
        (intercept["spread"], *(row["spread"] for row in rows)),
        document["provenance"],
    )


@functools.lru_cache(maxsize=len(KINDS))
def load_prior(kind: Kind = "any") -> Prior:
    """Read the shipped prior of a kind of strategy; `any` was fitted on all three kinds together."""
    document = json.loads((files("rag_eval.uncertainty") / FILE).read_text(encoding="utf-8"))
    return from_json(document[kind] | {"provenance": {**document["provenance"], "kind": kind}})
