import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.measures.groups import connected_components


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=20))
@settings(deadline=None)
def test_equals_merging_sets(pairs):
    group = list(range(10))
    for q, item in pairs:
        for r, other in pairs:
            if item == other and group[q] != group[r]:
                old, new = group[r], group[q]
                group = [new if g == old else g for g in group]
    codes = connected_components(
        [q for q, _ in pairs] or np.empty(0, dtype=int),
        [i for _, i in pairs] or np.empty(0, dtype=int),
        10,
    )
    assert [[a == b for b in codes] for a in codes] == [[a == b for b in group] for a in group]
    first_seen = list(dict.fromkeys(codes.tolist()))
    assert first_seen == list(range(len(first_seen)))


def test_size_is_the_highest_code_or_what_is_asked_for():
    assert connected_components([2], [5]).tolist() == [0, 1, 2]
    assert connected_components([0], [5], 3).tolist() == [0, 1, 2]
    assert connected_components(np.empty(0, dtype=int), np.empty(0, dtype=int)).tolist() == []
    with pytest.raises(ValueError, match="item codes"):
        connected_components([0, 1], [0])


def test_scifact_claims_that_share_evidence(shared_data):
    """1,109 claims with relevant documents are far fewer independent units."""
    rows = [
        line.split("\t")
        for name in ("train", "test")
        for line in (shared_data / "scifact" / "qrels" / f"{name}.tsv").read_text().splitlines()[1:]
    ]
    relevant = np.array([[int(query), int(item)] for query, item, gain in rows if int(gain) > 0])
    _, query = np.unique(relevant[:, 0], return_inverse=True)
    groups = connected_components(query, relevant[:, 1])
    assert (len(groups), groups.max() + 1) == (1109, 572)
