"""Two-retriever capture-recapture: how many relevant documents both retrievers missed at least.

Belongs here: Chapman's estimate as a lower bound and the warning that goes with it. It is never turned into a recall: on a collection whose
recall was 0.25 it said 0.86, because two retrievers find and miss the same documents.
"""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

WARNING = (
    "A lower bound, not an estimate of recall: retrievers tend to find and to miss the same documents, and then far more is missed than this number says. "
    "No number of missed documents, 0 included, shows that retrieval is complete."
)
_Z = 1.645  # one-sided 95 %


@dataclasses.dataclass(frozen=True)
class Capture:
    """What two retrievers found of the relevant documents, and how many both missed at least.

    Parameters
    ----------
    found_by_first, found_by_second, found_by_both
        Numbers of relevant documents.
    at_least_missed
        One-sided 95 % lower bound of the number that both missed.
    """

    found_by_first: int
    found_by_second: int
    found_by_both: int
    at_least_missed: int

    @property
    def text(self) -> str:
        """The only form in which it is shown."""
        union = self.found_by_first + self.found_by_second - self.found_by_both
        return f"At least {self.at_least_missed:,} relevant documents were missed by both retrievers, which found {union:,}. {WARNING}"

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON values, the warning with it."""
        return {**dataclasses.asdict(self), "text": self.text}


def capture(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]) -> Capture:
    """Bound what two retrievers missed.

    Parameters
    ----------
    first, second
        bool [n] whether each retriever found each known relevant document (judged without regard to who found it).

    Raises
    ------
    ValueError
        Parts of different lengths.

    Notes
    -----
    Chapman's estimate of all is ``(a + 1)(b + 1) / (c + 1) - 1``, its variance ``(a + 1)(b + 1)(a - c)(b - c) / ((c + 1)^2 (c + 2))``, with a, b
    and c found by the first, the second and both; the bound takes 1.645 standard errors off it and what was found, and rounds down. Where
    detections depend on each other positively, the estimate itself lies under the truth.

    References
    ----------
    Chapman (1951), Univ. Calif. Publ. Stat. 1:131-160. Seber (1970), Biometrics 26:13-22.
    """
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"first {first.shape}, second {second.shape}; accepted: one of each a document")
    a, b, c = int(first.sum()), int(second.sum()), int((first & second).sum())
    everything = (a + 1) * (b + 1) / (c + 1) - 1
    variance = (a + 1) * (b + 1) * (a - c) * (b - c) / ((c + 1) ** 2 * (c + 2))
    missed = everything - _Z * variance**0.5 - (a + b - c)
    return Capture(a, b, c, max(0, int(np.floor(missed + 1e-9))))
