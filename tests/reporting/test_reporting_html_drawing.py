"""Pictures draw every value at its place, treat names as data and need no other file."""

import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from rag_eval.reporting.html.drawing import (
    WIDTH,
    Chart,
    Row,
    forest,
    label,
    round_ticks,
    text_width,
)
from rag_eval.reporting.html.elements import Cursor
from rag_eval.reporting.html.panels.miss_rates import reliability_sheet
from rag_eval.uncertainty.scores import Labelled
from rag_eval.uncertainty.validation import validate

LONG = ["a_strategy_of_two_parts", "n" * 40, "rrf", "another_of_three_parts"]


def labelled(missed, true):
    return Labelled(("x",), true[:, None], missed, np.arange(120), np.ones(120), np.arange(120))


@pytest.fixture(scope="module")
def validations():
    rng = np.random.default_rng(1)
    true = rng.beta(1, 4, 120)
    missed = rng.random(120) < true

    def check(outcomes):
        data = labelled(outcomes, true)
        found = validate(data, true[None, :], checked_together=1, seed=1)
        return found.dump()

    return {"bm25": check(missed), "</svg><b>": check(np.zeros(120, dtype=bool))}


def parse(text):
    return ET.fromstring(text)  # noqa: S314 - our own output


def size(text):
    root = parse(text)
    return float(root.attrib["width"]), float(root.attrib["height"])


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0, 1, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0, 60, ["0", "20", "40", "60"]),
        (-0.05, 0.05, ["−0.04", "−0.02", "0.00", "0.02", "0.04"]),
        (3, 3.000001, None),
    ],
)
def test_ticks_are_round_and_within_the_axis(low, high, wanted):
    found = round_ticks(low, high)
    assert all(low - 1e-9 <= value <= high + 1e-9 for value, _ in found)
    assert wanted is None or [words for _, words in found] == wanted


def test_values_stand_at_their_places():
    chart = Chart("t", y=(0, 2), height=100)
    assert chart.y(0) - chart.y(2) == pytest.approx(100)
    assert chart.y(1) == pytest.approx((chart.y(0) + chart.y(2)) / 2)
    assert chart.x(0.5) == pytest.approx((chart.x(0) + chart.x(1)) / 2)
    assert chart.x(7) == chart.x(1)  # a value beyond the axis stays at its end
    log = Chart("t", x=(1, 100), log=True, x_ticks=[])
    assert log.x(10) == pytest.approx((log.x(1) + log.x(100)) / 2)
    assert Chart.of_rows("t", ["a", "b"]).y(0) < Chart.of_rows("t", ["a", "b"]).y(1)


def test_an_interval_is_drawn_from_its_low_to_its_high_end():
    estimate = Cursor({"value": 0.5, "ci_low": 0.25, "ci_high": 0.75})
    chart = Chart.of_rows("t", ["a"])
    chart.estimate(estimate, 0, "var(--s1)")
    markup = str(chart.svg("t", "t", "t"))
    ends = re.search(
        r'points="([\d.]+),[\d.]+ ([\d.]+),[\d.]+" fill="none" stroke="var\(--s1\)"', markup
    )
    assert [float(end) for end in ends.groups()] == pytest.approx(
        [chart.x(0.25), chart.x(0.75)], abs=0.06
    )
    middle = float(re.search(r"translate\(([\d.]+) [\d.]+\) scale", markup)[1])
    assert middle == pytest.approx(chart.x(0.5), abs=0.06)


def test_a_key_is_no_wider_than_its_picture():
    chart = Chart.of_rows("t", ["a"])
    for name in LONG:
        chart.key(name, "var(--s1)", "#")
    markup = str(chart.svg("t", "t", "t"))
    starts = re.findall(r"<g transform=\"translate\(([\d.]+) ([\d.]+)\)", markup)
    assert len({top for _, top in starts}) > 1
    for (left, top), name in zip(starts, LONG, strict=True):
        assert float(left) + 12 + text_width(label(name, 40)) <= WIDTH + 1
        assert float(top) < chart.height


def test_a_forest_without_values_is_no_picture():
    none = Cursor({"value": None})
    assert not forest([Row("a", none, "var(--s1)"), Row("b", None, "var(--s2)")], "t", "t")
    some = forest([Row("a", none, "var(--s1)"), Row("b", Cursor({"value": 0.5}), "x")], "t", "t")
    assert "a: none; b: 0.500" in some


def test_texts_of_a_picture_are_data():
    hostile = "</svg><script>alert(1)</script>"
    chart = Chart.of_rows(hostile, [hostile])
    chart.key(hostile, "var(--s1)")
    markup = str(chart.figure("t", hostile, hostile, hostile))
    parse(markup)
    assert "<script" not in markup


def test_files_of_pictures_stand_three_a_row(validations):
    one = size(reliability_sheet({"bm25": validations["bm25"]}, "miss_any@10"))
    two = size(reliability_sheet(validations, "miss_any@10"))
    four = size(reliability_sheet({f"s{at}": validations["bm25"] for at in range(4)}, "x"))
    assert one[0] < two[0] < four[0]
    assert four[1] > 1.7 * two[1] == 1.7 * one[1]
    assert "http" not in reliability_sheet(validations, "x").replace(
        "http://www.w3.org/2000/svg", ""
    )
