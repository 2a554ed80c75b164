"""Intervals and paired tests on simulated runs, beside the reference.

A line for each bar: the figure, the goal, whether it is met, and the figure of the reference
implementation on the same draws. The outcomes of questions are drawn with the correlation ``icc``
times the cosine of their gold, in a Gaussian copula, so that the true mean is known. Gold is that
of SciFact, XQuAD and NPL, and generated gold of 25 to 50 relevant documents a question: `topics`
of ten questions that overlap their neighbours, `few` large topics, and `broad`, where popular
documents are shared by all.
"""

import importlib.util
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.special import ndtr
from scipy.stats import beta
from timing import data_folder, emit, skipped

from rag_eval.measures.intervals import paired_comparison
from rag_eval.measures.overlap import SharedGold, mean_interval

DRAWS, PAIRED_DRAWS = 1000, 600
ICCS, RATES = (0.0, 0.3, 0.6), (0.1, 0.3, 0.7, 0.95)
SIZES = dict.fromkeys(("scifact", "xquad", "topics", "few", "broad"), (30, 100, 300))
SIZES["npl"] = (30, 90)
LEVELS = (np.arange(20_000) + 0.5) / 20_000
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Outcome = Callable[[Floats], Floats]
"""Value of a question from its uniform rank in [0, 1], 0 = the easiest."""

# ---- Gold: pairs of a question and a relevant document.


def judged_gold(folder: Path, name: str) -> tuple[Ints, Ints]:
    """Read the relevant pairs of a BEIR folder."""
    parts = [
        pd.read_csv(path, sep="\t", dtype=str)
        for path in sorted((folder / name / "qrels").glob("*"))
    ]
    frame = pd.concat(parts)
    frame = frame[frame["score"].astype(int) > 0]
    return pd.factorize(frame["query-id"])[0], pd.factorize(frame["corpus-id"])[0]


def generated_gold(name: str, n: int = 300) -> tuple[Ints, Ints]:
    """Draw 25 to 50 relevant documents for each question."""
    rng = np.random.default_rng(17)
    popular = 1 / np.sqrt(1 + np.arange(1500))
    rows, documents = [], []
    for at in range(n):
        size = rng.integers(25, 51)
        if name == "broad":
            drawn = rng.choice(1500, size, replace=False, p=popular / popular.sum())
        elif name == "few":
            drawn = rng.choice(70, size, replace=False) + rng.integers(6) * 70
        else:
            drawn = rng.choice(80, size, replace=False) + at % 30 * 60
        rows.append(np.full(size, at))
        documents.append(drawn)
    return np.concatenate(rows), np.concatenate(documents)


class Gold(NamedTuple):
    """Questions of a collection: their gold, its kernel [n, n], and the model of the reference."""

    name: str
    n: int
    shared: SharedGold
    kernel: Floats
    reference: object

    def draw(self, icc: float, draws: int, seed: int, base: Floats | None = None) -> Floats:
        """Draw normal values [n, draws]; with `base`, half of their variance is that of `base`."""
        rng = np.random.default_rng([seed, self.n, round(icc * 10)])
        covariance = (1 - icc + 1e-9) * np.eye(self.n) + icc * self.kernel
        latent = np.linalg.cholesky(covariance) @ rng.normal(size=(self.n, draws))
        return latent if base is None else (latent + base) / np.sqrt(2)


def golds(folder: Path, reference: ModuleType) -> Iterator[Gold]:
    """Yield each gold structure at each size; the questions of a chain stay together."""
    for name, sizes in SIZES.items():
        judged = (folder / name).is_dir()
        question, document = judged_gold(folder, name) if judged else generated_gold(name)
        total = int(question.max()) + 1
        matrix = coo_array((np.ones(len(question)), (question, document))).tocsr()
        _, chain = connected_components(matrix @ matrix.T)
        for n in sizes:
            place = np.random.default_rng(n).permutation(total)
            order = np.lexsort((place, np.random.default_rng(n).permutation(total)[chain]))
            kept = np.sort(order[:n])
            inside = np.isin(question, kept)
            pairs = np.searchsorted(kept, question[inside]), document[inside]
            kernel = reference.overlap_kernel(*pairs, n)
            shared = SharedGold.of_pairs(*pairs, n)
            yield Gold(name, n, shared, kernel, reference.Overlap(kernel))


# ---- Outcomes of a question: hit, recall of eight documents, reciprocal rank within ten.


def outcome(kind: str, rate: float) -> Outcome:
    """Make values of a question from its latent rank."""
    if kind == "hit":
        return lambda rank: (rank < rate).astype(np.float64)
    if kind == "recall":
        quantiles = np.round(beta(1.2 * rate, 1.2 * (1 - rate)).ppf(1 - LEVELS) * 8) / 8
        return lambda rank: quantiles[np.minimum((rank * len(LEVELS)).astype(int), len(LEVELS) - 1)]
    ends = np.cumsum(rate * (1 - rate) ** np.arange(10))
    values = np.append(1 / np.arange(1, 11), 0.0)
    return lambda rank: values[np.searchsorted(ends, rank)]


def bar(name: str, figure: float, goal: str, *, met: bool, **more: object) -> None:
    emit(name, figure=round(figure, 3), goal=goal, met=bool(met), **more)


# ---- The bars.


def measure_coverage(found: list[Gold]) -> None:
    rows = []
    kinds = itertools.cycle(("hit", "recall", "rr", "hit"))
    for gold, icc, rate in itertools.product(found, ICCS, RATES):
        kind = next(kinds) if rate < 0.9 else "hit"
        value = outcome(kind, rate)
        values, truth = value(ndtr(gold.draw(icc, DRAWS, 1))), value(LEVELS).mean()
        ours = mean_interval(values, gold.shared)
        _, low, high, _ = gold.reference.mean(values)
        rows.append(
            {"gold": gold.name, "n": gold.n, "icc": icc, "rate": rate}
            | {"covered": ((ours.low <= truth) & (truth <= ours.high)).mean()}
            | {"theirs": ((low <= truth) & (truth <= high)).mean()}
            | {"width": (ours.high - ours.low).mean(), "their_width": (high - low).mean()}
        )
    cells = pd.DataFrame(rows)

    def within(column: str) -> float:
        return float(cells[column].between(0.93, 0.97).mean())

    n, covered = len(cells), cells["covered"]
    bar("coverage_93_to_97", within("covered"), ">= 0.60", met=within("covered") >= 0.6, cells=n,
        reference=round(within("theirs"), 3), mean=round(covered.mean(), 4),
        reference_mean=round(cells["theirs"].mean(), 4))  # fmt: skip
    under = float((covered < 0.93).mean())
    bar("coverage_under_93", under, "<= 0.02", met=under <= 0.02, lowest=round(covered.min(), 3),
        reference=round(float((cells["theirs"] < 0.93).mean()), 3))  # fmt: skip
    width = float(cells["width"].mean() / cells["their_width"].mean())
    bar("mean_width", width, "<= 1.05", met=width <= 1.05, ours=round(cells["width"].mean(), 4))
    for name, part in cells.groupby("gold", sort=False):
        emit("coverage_by_gold", gold=name, mean=round(part["covered"].mean(), 4),
             lowest=round(part["covered"].min(), 3), reference=round(part["theirs"].mean(), 4),
             width=round(float(part["width"].mean() / part["their_width"].mean()), 3))  # fmt: skip


def paired_draws(gold: Gold, icc: float, rates: tuple[float, float], seed: int) -> Floats:
    """Draw differences of hits of two strategies that agree on what is hard, [n, draws]."""
    common = gold.draw(icc, PAIRED_DRAWS, seed)
    a, b = (gold.draw(icc, PAIRED_DRAWS, seed + side, common) for side in (1, 2))
    return (ndtr(a) < rates[0]).astype(float) - (ndtr(b) < rates[1])


def measure_paired(found: list[Gold]) -> None:
    errors, theirs, powers = [], [], []
    for gold, icc, rate in itertools.product(found, ICCS, (0.5, 0.8)):
        difference = paired_draws(gold, icc, (rate, rate), 3)
        compared = paired_comparison(difference, np.zeros_like(difference), gold.shared)
        errors.append(float((compared.p <= 0.05).mean()))
        theirs.append(float((gold.reference.paired(difference)[3] <= 0.05).mean()))
        least = float(np.nanmedian(compared.minimum_detectable))
        if rate - least > 0.05:
            shifted = paired_draws(gold, icc, (rate, rate - least), 3)
            again = paired_comparison(shifted, np.zeros_like(shifted), gold.shared)
            powers.append(float((again.p <= 0.05).mean()))
    mean, most = float(np.mean(errors)), max(errors)
    bar("type_I_error", mean, "<= 0.055", met=mean <= 0.055, cells=len(errors),
        reference=round(float(np.mean(theirs)), 3))  # fmt: skip
    bar("type_I_error_of_a_cell", most, "<= 0.09", met=most <= 0.09, reference=max(theirs))
    power = float(np.mean(powers))
    inside = float(np.mean([0.75 <= one <= 0.9 for one in powers]))
    bar("power_at_the_smallest_detectable", power, "0.75 to 0.90", met=0.75 <= power <= 0.9,
        cells=len(powers), cells_inside=round(inside, 3), least=min(powers),
        most=max(powers))  # fmt: skip


def main() -> None:
    folder = data_folder()
    path = None if folder is None else folder.parent / "tools" / "overlap_interval.py"
    if folder is None or path is None or not path.is_file():
        skipped("coverage", "no public data, or no tools/overlap_interval.py beside it")
        return
    spec = importlib.util.spec_from_file_location("overlap_interval", path)
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    found = list(golds(folder, reference))
    measure_coverage(found)
    measure_paired(found)


if __name__ == "__main__":
    main()
