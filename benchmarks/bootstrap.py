"""10,000 clustered resamples of 20 measures x 300 queries, against one vectorised numpy reference.

The reference is what a numpy user would write: all resamples drawn as multinomial counts, multiplied with the values in one matrix
product, two percentiles. `indexed_s` is the other usual way (an index matrix and `values[index].mean(axis=1)`, in blocks). Both
resample queries; ours resamples groups (here 240 groups of 1 or 2 queries). Prints one JSON line; the bar is a ratio of 2.
"""

import json
import statistics
import time

import numpy as np

from rag_eval.measures.intervals import clustered_interval

QUERIES, MEASURES, RESAMPLES, REPEATS, BAR = 300, 20, 10_000, 7, 2.0


def multinomial(values: np.ndarray, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(QUERIES, np.full(QUERIES, 1 / QUERIES), size=RESAMPLES)
    return np.percentile(weights @ values / QUERIES, [2.5, 97.5], axis=0)


def indexed(values: np.ndarray, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    means = [
        values[rng.integers(QUERIES, size=(1_000, QUERIES))].mean(axis=1)
        for _ in range(RESAMPLES // 1_000)
    ]
    return np.percentile(np.concatenate(means), [2.5, 97.5], axis=0)


def main() -> None:
    rng = np.random.default_rng(13)
    values = (
        rng.binomial(6, rng.beta(2, 1, size=(QUERIES, MEASURES))) / 6
    )  # means of 0.67: no measure takes the closed form
    groups = np.concatenate([np.arange(240), np.arange(60)])
    seconds: dict[str, list[float]] = {"ours": [], "reference": [], "indexed": []}
    for repeat in range(REPEATS):
        for name, run in (
            ("ours", lambda: clustered_interval(values, groups, repeat, RESAMPLES)),
            ("reference", lambda: multinomial(values, repeat)),
            ("indexed", lambda: indexed(values, repeat)),
        ):  # noqa: B023 - called in the same turn
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    median = {name: statistics.median(taken) for name, taken in seconds.items()}
    figures = {f"{name}_s": round(value, 4) for name, value in median.items()}
    print(
        json.dumps(
            {
                "bench": "bootstrap",
                **figures,
                "ratio": round(median["ours"] / median["reference"], 3),
                "bar": BAR,
            }
        )
    )


if __name__ == "__main__":
    main()
