"""Pictures draw every value at its place, treat names as data and need no other file."""

import re
from xml.etree import ElementTree as ET

import pytest

from rag_eval.reporting.elements import Chart, Row, forest
from rag_eval.reporting.tables import Cursor


def test_values_stand_at_their_places():
    chart = Chart("t", y=(0, 2), height=100)
    assert chart.y(0) - chart.y(2) == pytest.approx(100)
    assert chart.y(1) == pytest.approx((chart.y(0) + chart.y(2)) / 2)
    assert chart.x(0.5) == pytest.approx((chart.x(0) + chart.x(1)) / 2)
    assert chart.x(7) == chart.x(1)  # a value beyond the axis stays at its end
    assert Chart.of_rows("t", ["a", "b"]).y(0) < Chart.of_rows("t", ["a", "b"]).y(1)


def test_an_interval_is_drawn_from_its_low_to_its_high_end():
    estimate = Cursor({"value": 0.5, "ci_low": 0.25, "ci_high": 0.75})
    chart = Chart.of_rows("t", ["a"])
    markup = str(forest([Row("a", estimate, "s1")], "t", "t", "t"))
    ends = re.search(
        r'points="([\d.]+),[\d.]+ ([\d.]+),[\d.]+" fill="none" stroke="var\(--s1\)"', markup
    )
    places = [*ends.groups(), re.search(r'cx="([\d.]+)"', markup)[1]]
    wanted = [chart.x(0.25), chart.x(0.75), chart.x(0.5)]
    assert list(map(float, places)) == pytest.approx(wanted, abs=0.06)


def test_texts_of_a_picture_are_data():
    hostile = "</svg><script>alert(1)</script>"
    chart = Chart.of_rows(hostile, [hostile])
    chart.key(hostile, "s1")
    markup = str(chart.figure("t", hostile, hostile, hostile))
    ET.fromstring(markup)  # noqa: S314 - our own output
    assert "<script" not in markup
