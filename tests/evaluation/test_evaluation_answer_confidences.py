"""The share of right answers over missed retrievals: no answer vouches for itself."""

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.evaluation.answer_confidences import left_out

SEEN = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=40).filter(
    lambda rows: len({group for group, _ in rows}) > 1
)


@given(SEEN)
def test_every_group_is_measured_on_all_others(rows):
    seen = pd.DataFrame(
        {
            "right": np.array([right for _, right in rows], dtype=np.float64),
            "group": [group for group, _ in rows],
        }
    )
    found = left_out(seen, lambda others: others["right"].mean())
    assert found.keys() == {group for group, _ in rows}
    for group, share in found.items():
        others = [right for other, right in rows if other != group]
        assert abs(share - sum(others) / len(others)) < 1e-12


def test_equal_groups_are_computed_once():
    asked = []
    seen = pd.DataFrame({"right": [1.0, 0.0] * 50, "group": range(100)})
    assert set(
        left_out(seen, lambda others: asked.append(len(others)) or others["right"].sum()).values()
    ) == {49.0, 50.0}
    assert asked == [99, 99]
