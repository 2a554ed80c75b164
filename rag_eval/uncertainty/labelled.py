"""Judged retrievals: signals with the outcome of each, what estimators are fitted to and validated on."""

import dataclasses

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Labelled:
    """n judged retrievals of one strategy, for one target and K.

    Parameters
    ----------
    names
        p names of the signals.
    signals
        float64 [n, p], not z-scored; NaN where a signal is not defined for a retrieval.
    missed
        bool [n] the outcome.
    group
        int64 [n] unit of inference: folds never split a group, intervals resample groups.
    weight
        float64 [n] 1 / inclusion probability, at least 1.
    question
        int64 [n] code of the question that a wording belongs to; wordings of a question share a group.
    """

    names: tuple[str, ...]
    signals: FloatArray
    missed: npt.NDArray[np.bool_]
    group: IntArray
    weight: FloatArray
    question: IntArray

    def __post_init__(self) -> None:
        """Refuse parts of different lengths, and weights that are no inverse probabilities."""
        lengths = {
            "signals": len(self.signals),
            "missed": len(self.missed),
            "group": len(self.group),
            "weight": len(self.weight),
            "question": len(self.question),
        }
        if len(set(lengths.values())) != 1 or self.signals.shape != (
            len(self.missed),
            len(self.names),
        ):
            raise ValueError(
                f"parts differ in length: {lengths}, signals {self.signals.shape}, names {len(self.names)}"
            )
        if len(self.weight) and not (np.isfinite(self.weight) & (self.weight >= 1)).all():
            raise ValueError(
                "weights must be finite and at least 1: they are inverse inclusion probabilities"
            )

    def __len__(self) -> int:
        return len(self.missed)

    def take(self, rows: npt.NDArray[np.bool_] | IntArray) -> "Labelled":
        """Keep some rows, by mask or index."""
        return Labelled(
            self.names,
            self.signals[rows],
            self.missed[rows],
            self.group[rows],
            self.weight[rows],
            self.question[rows],
        )
