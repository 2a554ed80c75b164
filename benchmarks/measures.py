"""Time measures against the underlying libraries in one run.

measures: 10,000 rankings of 100 documents under 8 labels, against ir-measures on ready frames.
api: `rag_eval.evaluate` of 5 runs of 10,000 questions, 100 documents each, with intervals, against
ir-measures on the same frames without intervals.
"""

import ir_measures
import numpy as np
import pandas as pd
from timing import alternate, report

import rag_eval
from rag_eval.measures.ranking import Qrels, score_rankings

N, DEPTH, JUDGED = 10_000, 100, 10
LABELS = ("R@10", "R@20", "Success@5", "RR", "nDCG@10", "P@5", "P@10", "Judged@10")
SHORTEST = 100
STRATEGIES, API_LABELS = 5, ("nDCG@10", "R@10", "R@100", "RR", "AP")


def measure_rankings() -> None:
    rng = np.random.default_rng(13)
    # Each query has 200 distinct candidates.
    pool = rng.integers(0, 40_000, size=(N, 1)) + np.argsort(rng.random((N, 200)), axis=1)
    items = pool[:, :DEPTH].copy()
    places = np.argsort(rng.random((N, 200)), axis=1)[:, :JUDGED]
    judged = np.take_along_axis(pool, places, axis=1)
    gains = rng.integers(0, 4, size=judged.shape)
    gains[:, 0] = 1
    query, names = np.arange(N), np.arange(N).astype(str)
    qrels = Qrels.from_rows(np.repeat(query, JUDGED), judged.ravel(), gains.ravel(), N)
    measures = [
        getattr(ir_measures, name) @ int(k) if k else getattr(ir_measures, name)
        for name, _, k in (label.partition("@") for label in LABELS)
    ]
    qrels_frame = pd.DataFrame(
        {
            "query_id": np.repeat(names, JUDGED),
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
    runs = {
        "ours": lambda: score_rankings(items, qrels, query, LABELS),
        "reference": lambda: ir_measures.calc_aggregate(measures, qrels_frame, run_frame),
    }
    seconds = alternate(runs, repeats=3)
    theirs = ir_measures.calc_aggregate(measures, qrels_frame, run_frame)
    ours = score_rankings(items, qrels, query, LABELS).mean(axis=0)
    np.testing.assert_allclose(ours, [theirs[measure] for measure in measures], atol=1e-9)
    report("measures", seconds["ours"], seconds["reference"], 1.3)


def measure_api() -> None:
    rng = np.random.default_rng(13)
    # Questions share no relevant document, so there are as many groups as questions.
    names = np.char.add("q", np.arange(N).astype(str))
    pool = np.char.add("d", np.arange(N * 2 * JUDGED).astype(str)).reshape(N, 2 * JUDGED)
    others = np.char.add("x", np.arange(40_000).astype(str))
    qrels = pd.DataFrame(
        {
            "query_id": np.repeat(names, JUDGED),
            "doc_id": pool[:, :JUDGED].ravel(),
            "relevance": np.maximum(
                rng.integers(-1, 3, N * JUDGED), np.arange(N * JUDGED) % JUDGED == 0
            ),
        }
    )
    offsets = rng.integers(0, 40_000, size=(N, 1)) + np.arange(DEPTH - 2 * JUDGED)
    items = np.hstack([pool, others[offsets % 40_000]])
    runs = {
        f"strategy-{i}": pd.DataFrame(
            {
                "query_id": np.repeat(names, DEPTH),
                "doc_id": items.ravel(),
                "score": rng.random(N * DEPTH).round(3),
            }
        )
        for i in range(STRATEGIES)
    }
    measures = [
        getattr(ir_measures, name) @ int(k) if k else getattr(ir_measures, name)
        for name, _, k in (label.partition("@") for label in API_LABELS)
    ]
    calls = {
        "ours": lambda: rag_eval.evaluate(runs, qrels, API_LABELS),
        "reference": lambda: [
            ir_measures.calc_aggregate(measures, qrels, run) for run in runs.values()
        ],
    }
    seconds = alternate(calls, repeats=1)
    ours, theirs = calls["ours"]().table["value"], calls["reference"]()
    for name, found in zip(runs, theirs, strict=True):
        expected = [found[measure] for measure in measures]
        np.testing.assert_allclose(ours[name], expected, rtol=0, atol=1e-12)
    report("api", seconds["ours"], seconds["reference"], 2.0)


def main() -> None:
    measure_rankings()
    measure_api()


if __name__ == "__main__":
    main()
