"""Units of an outside retriever carry spans and can be judged at some levels.

Some wordings were never run.
"""

import numpy as np
import pandas as pd
import pytest

from rag_eval.measures.run_scores import Scores, _carried_by_units
from rag_eval.retrieval.kinds.external import Placed
from rag_eval.retrieval.ranking import ranking

UNITS = {
    **dict.fromkeys(("doc_id", "section_id"), "str"),
    **dict.fromkeys(("start", "end", "chunk"), "int64"),
    "known": "bool",
}
NOWHERE = ("a", "", -1, -1, -1, True)
"""A unit of a document that has no place in it."""


def units(*rows):
    frame = pd.DataFrame(rows, columns=list(UNITS)).astype(UNITS)
    return frame.assign(unit_id=frame["doc_id"], text="")


class Gold:
    """Gold set with the only two frames that these tests read: spans and their chunks."""

    def __init__(self, spans, span_chunks):
        self.spans = pd.DataFrame(spans, columns=["doc_id", "start", "end"])
        self.span_chunks = pd.DataFrame(span_chunks, columns=["span", "chunk"], dtype="int64")


def carried(gold, frame):
    return list(_carried_by_units(gold, frame).itertuples(index=False, name=None))


def test_half_of_the_shorter_carries_and_less_does_not():
    gold = Gold([("a", 100, 200), ("b", 0, 10)], [])
    places = [("a", 150, 400), ("a", 151, 400), ("a", 120, 130), ("b", 0, 900), ("c", 0, 10)]
    frame = units(*((name, "s", *span, -1, True) for name, *span in places), NOWHERE)
    assert carried(gold, frame) == [(0, 0), (0, 2), (1, 3)]


def test_a_unit_that_is_our_chunk_carries_what_the_chunk_carries():
    gold = Gold([("a", 100, 200), ("a", 0, 5)], [(0, 7), (1, 3)])
    places = [(0, 10, 3), (199, 300, 7), (90, 150, -1)]
    frame = units(*(("a", "s", *place, True) for place in places))
    assert carried(gold, frame) == [(0, 1), (0, 2), (1, 0)]


def placed(n_placed, n_without, n_unknown=0):
    frame = units(
        *[("a", "s", 0, 9, -1, True)] * n_placed,
        *[NOWHERE] * n_without,
        *[("x", "", -1, -1, -1, False)] * n_unknown,
    )
    rows = np.arange(len(frame), dtype=np.int32)[None, :]
    raw = np.zeros(rows.shape)
    return Placed(ranking(rows, raw, raw, np.array([len(frame)])), frame, np.ones(1, dtype=bool))


@pytest.mark.parametrize(
    ("n_placed", "n_without", "n_unknown", "measured"),
    [
        (95, 5, 0, True),
        (94, 6, 0, False),
        (19, 1, 80, True),
        (0, 0, 4, False),
    ],
)
def test_levels_need_places_of_nearly_all_that_was_retrieved(
    n_placed, n_without, n_unknown, measured
):
    reasons = placed(n_placed, n_without, n_unknown).unmeasured_levels()
    assert (reasons.keys() >= {"span", "section"}) != measured
    assert ("span" in reasons, "document" in reasons) == ("section" in reasons, False)
    if n_without and not measured:
        assert f"{n_without} of {n_placed + n_without} retrieved" in reasons["span"]


class Queries:
    """Queries of two questions: the first has two wordings, the second has one."""

    queries = ("q0", "q1")
    query_of = np.array([0, 0, 1])


def scores():
    levels = ("document", "section")
    return Scores(
        dict.fromkeys(levels, ("R@10",)),
        dict.fromkeys(levels, np.array([[1.0], [0.0], [0.5]])),
        {"document": np.ones((3, 1))},
        np.zeros((3, 10), dtype=np.int64),
        np.arange(3),
        np.full(3, 13),
        np.array([False, True, False]),
    )


def test_a_wording_that_was_not_run_is_neither_a_miss_nor_a_failure():
    found = scores().limited(np.array([True, False, True]), ["section"])
    assert found.per_query("document", Queries())[:, 0].tolist() == [1.0, 0.5]
    assert found.failed.tolist() == [False, False, False]
    assert np.isnan(found.column("section", "R@10")).all()
    assert found.ineligible("section", Queries()).all()
    assert not found.ineligible("document", Queries()).any()


def test_both_sides_of_a_comparison_are_cut_to_the_wordings_of_both():
    whole = scores()
    assert whole.per_query("document", Queries())[:, 0].tolist() == [0.5, 0.5]
    both = whole.per_query("document", Queries(), np.array([True, False, True]))
    assert both[:, 0].tolist() == [1.0, 0.5]
