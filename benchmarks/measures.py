"""Scoring 10,000 rankings of 100 documents under 8 labels, against the bare ir-measures call on frames that are already made.

Prints one JSON line; `ratio` is ours / reference, the bar is 1.3. `ratio_to_dicts` compares with ir-measures on dictionaries that
are already made, which skips its conversion of frames. Every ranking has its own query with ten graded judgements.
"""

import json
import statistics
import time

import ir_measures
import numpy as np
import pandas as pd

from rag_eval.measures.ranking import Qrels, score_rankings

N, DEPTH, REPEATS, BAR = 10_000, 100, 5, 1.3
LABELS = ("R@10", "R@20", "Success@5", "RR", "nDCG@10", "P@5", "P@10", "Judged@10")


def main() -> None:
    rng = np.random.default_rng(13)
    pool = rng.integers(0, 40_000, size=(N, 1)) + np.argsort(
        rng.random((N, 200)), axis=1
    )  # 200 candidates a query, each once
    items = pool[:, :DEPTH].copy()
    judged = np.take_along_axis(pool, np.argsort(rng.random((N, 200)), axis=1)[:, :10], axis=1)
    gains = rng.integers(0, 4, size=judged.shape)
    gains[:, 0] = 1
    query = np.arange(N)
    qrels = Qrels.from_rows(np.repeat(query, 10), judged.ravel(), gains.ravel(), N)
    measures = [
        getattr(ir_measures, name) @ int(k) if k else getattr(ir_measures, name)
        for name, _, k in (label.partition("@") for label in LABELS)
    ]
    names = query.astype(str)
    qrels_frame = pd.DataFrame(
        {
            "query_id": np.repeat(names, 10),
            "doc_id": judged.ravel().astype(str),
            "relevance": gains.ravel(),
        }
    )
    run_frame = pd.DataFrame(
        {
            "query_id": np.repeat(names, DEPTH),
            "doc_id": items.ravel().astype(str),
            "score": np.tile(np.arange(DEPTH, 0, -1.0), N),
        }
    )
    qrels_dict, run_dict = (
        ir_measures.util.QrelsConverter(qrels_frame).as_dict_of_dict(),
        ir_measures.util.RunConverter(run_frame).as_dict_of_dict(),
    )

    seconds: dict[str, list[float]] = {"ours": [], "reference": [], "dicts": []}
    for _ in range(REPEATS):
        start = time.perf_counter()
        ours = score_rankings(items, qrels, query, LABELS)
        seconds["ours"].append(time.perf_counter() - start)
        start = time.perf_counter()
        reference = ir_measures.calc_aggregate(measures, qrels_frame, run_frame)
        seconds["reference"].append(time.perf_counter() - start)
        start = time.perf_counter()
        ir_measures.calc_aggregate(measures, qrels_dict, run_dict)
        seconds["dicts"].append(time.perf_counter() - start)
    np.testing.assert_allclose(
        ours.mean(axis=0), [reference[measure] for measure in measures], atol=1e-9
    )
    median = {name: statistics.median(values) for name, values in seconds.items()}
    figures = {f"{name}_s": round(value, 4) for name, value in median.items()}
    print(
        json.dumps(
            {
                "bench": "measures",
                **figures,
                "ratio": round(median["ours"] / median["reference"], 3),
                "bar": BAR,
                "ratio_to_dicts": round(median["ours"] / median["dicts"], 3),
            }
        )
    )


if __name__ == "__main__":
    main()
