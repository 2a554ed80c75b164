"""Pictures of miss rates: written for one and many strategies, with figures that are absent and names that are no markup."""

import numpy as np
import pytest

from rag_eval.reporting.miss_rate_plots import learning_curves, reliability_diagrams
from rag_eval.uncertainty.labelled import Labelled
from rag_eval.uncertainty.learning import learning_curve
from rag_eval.uncertainty.validation import validate


@pytest.fixture(scope="module")
def validations():
    rng = np.random.default_rng(1)
    true = rng.beta(1, 4, 120)
    missed = rng.random(120) < true

    def found(outcomes):
        data = Labelled(
            ("x",), true[:, None], outcomes, np.arange(120), np.ones(120), np.arange(120)
        )
        return validate(data, true[None, :], checked_together=1, seed=1, resamples=50).to_json()

    return {"bm25": found(missed), r"odd $\frac{ name _": found(np.zeros(120, dtype=bool))}


def size(path):
    with path.open("rb") as file:
        head = file.read(24)
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])


def test_panels_stand_three_a_row(validations, tmp_path):
    one = size(
        reliability_diagrams(
            {"bm25": validations["bm25"]}, tmp_path / "one.png", target="miss_any@10"
        )
    )
    two = size(reliability_diagrams(validations, tmp_path / "two.png", target="miss_any@10"))
    four = size(
        reliability_diagrams(
            {f"s{at}": validations["bm25"] for at in range(4)},
            tmp_path / "four.png",
            target="miss_any@10",
        )
    )
    assert one[0] < two[0] < four[0]
    assert four[1] > 1.7 * two[1] == 1.7 * one[1]
    with pytest.raises(ValueError, match="no strategy"):
        reliability_diagrams({}, tmp_path / "none.png", target="miss_any@10")
    assert not (tmp_path / "none.png").exists()


def test_the_same_figures_give_the_same_file(validations, tmp_path):
    first, second = (
        reliability_diagrams(validations, tmp_path / name, target="miss_any@10").read_bytes()
        for name in ("a.png", "b.png")
    )
    assert first == second


def test_a_learning_curve_leaves_out_what_could_not_be_trained(tmp_path):
    rng = np.random.default_rng(2)
    data = Labelled(
        ("x",),
        rng.random((100, 1)),
        rng.random(100) < 0.4,
        np.arange(100),
        np.ones(100),
        np.arange(100),
    )
    points = [
        point.to_json()
        for point in learning_curve(
            data,
            lambda train, test: np.full(len(test), train.missed.mean()),
            [10, 50, 900],
            repeats=3,
            seed=1,
        )
    ]
    some = learning_curves(
        {"a $b": points, "c": points[2:]}, tmp_path / "some.png", target="miss_any@10"
    )
    none = learning_curves({"c": points[2:]}, tmp_path / "none.png", target="miss_any@10")
    assert size(some) == size(none)
    assert some.read_bytes() != none.read_bytes()
