"""Every figure of the page equals its value in the report."""

import json
import re
from html.parser import HTMLParser

import panel_reports
import pytest
from panel_pages import unfolded_words

from rag_eval.reporting import page as pages
from rag_eval.reporting.elements import _absent, environment, interval, number
from rag_eval.reporting.page import build
from rag_eval.reporting.tables import Cursor, format_number

FREE = set(
    "h2 h3 button summary code caption figcaption thead abbr style script title desc pre dt nav "
    "header footer option label".split()
)
"""Elements that hold words, such as names of measures, hashes and definitions.

Every other element holds digits only in a figure or a text of the report.
"""
VOID = {"meta", "br", "link", "input", "hr", "img", "col"}
WORDS = {"prose", "label", "absent"}
NAME = re.compile(r"\b[A-Za-z]\w*(?:@\d+)?|\b95 %")
"""Names that hold digits (heuristic_v0, R@10, p95), and the level of every interval."""
FIGURE = re.compile(r"[+−-]?\d[\d,]*(?:\.\d+)?")


class Walk(HTMLParser):
    """Collects figures and texts of the report with their places, and all other digits."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.figures, self.texts, self.stray = [], [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if any(name == tag for name, _ in self.open):
            while self.open.pop()[0] != tag:
                pass

    def handle_data(self, data):
        place = next((attrs for tag, attrs in reversed(self.open) if "data-at" in attrs), None)
        if place is not None:
            (self.figures if "value" in place else self.texts).append((place, data))
        elif re.search(r"\d", NAME.sub("", data)) and not any(
            tag in FREE or tag == "svg" or WORDS & set((attrs.get("class") or "").split())
            for tag, attrs in self.open
        ):
            self.stray.append((self.open[-1][0], data.strip()[:120]))


def at(report, pointer):
    found = report
    for key in filter(None, pointer.split("/")):
        name = key.replace("~1", "/").replace("~0", "~")
        found = found[int(name)] if isinstance(found, list) else found[name]
    return found


def plain_number(text):
    return float(FIGURE.search(text.replace("−", "-").replace("+", ""))[0].replace(",", ""))


@pytest.fixture(scope="module")
def walked(first_night):
    """Return a report with every part, its walked page and the HTML."""
    made = panel_reports.full(("bm25", "vector", "rounds"))
    report = first_night | {"previous": made["previous"]}
    html = build(report)
    walk = Walk()
    walk.feed(html)
    return report, walk, html


def test_every_figure_is_the_one_in_the_report(walked):
    report, walk, _ = walked
    assert len(walk.figures) > 150
    for place, text in walk.figures:
        value = at(report, place["data-at"])
        assert json.loads(place["value"]) == value, place
        digits = len(text.split(".")[1].split()[0]) if "." in text else 0
        shown, scale = plain_number(text.replace(" %", "")), 100 if "%" in text else 1
        assert shown == pytest.approx(
            abs(value) * scale if "−" in text and shown > 0 else value * scale,
            abs=0.5001 * 10**-digits,
        ), (place, text)


def test_every_text_of_the_report_is_the_one_in_the_report(walked):
    report, walk, _ = walked
    assert len(walk.texts) > 50
    for place, text in walk.texts:
        assert str(at(report, place["data-at"])) == text, place


def test_no_figure_stands_on_the_page_without_its_place(walked):
    assert walked[1].stray == []


def test_a_reader_meets_few_words_before_unfolding(walked):
    words = unfolded_words(walked[2])
    assert {"Verdict", "Stability", "Methods"} < set(words)  # also headings of folded panels
    assert len(words) <= 1_500
    assert "Kantor" not in words  # a definition, which is folded


def test_a_template_escapes_texts_and_refuses_bare_numbers():
    assert environment().from_string("{{ text }}").render(text="<b>") == "&lt;b&gt;"
    with pytest.raises(TypeError, match="bare int"):
        environment().from_string("{{ n }}").render(n=3)


def test_how_figures_are_written():
    assert format_number(1234, 3) == "1,234"
    assert format_number(-0.0004, 3) == "0.000"
    assert format_number(-0.126, 3) == "−0.126"
    assert format_number(0.1234, 3, percent=True) == "12.3 %"
    cursor = Cursor(
        {
            "a": [{"value": 0.5, "ci_low": 0.25, "ci_high": None, "b/c~": 2}],
            "x": None,
            "x_reason": "off <b>",
        }
    )
    assert str(number(cursor["a"][0]["b/c~"])) == '<data value="2" data-at="/a/0/b~1c~0">2</data>'
    assert "[" not in str(interval(cursor["a"][0]))
    assert "off &lt;b&gt;" in str(number(cursor["x"]))
    assert "nothing" in str(_absent("nothing"))


def test_the_policy_names_what_the_page_runs(walked):
    html = walked[2]
    assert f"<script>{pages.asset(pages.SCRIPT)}</script>" in html
    assert " style=" not in html
    assert not re.search(r"<[^>]+ on[a-z]+=", html)
    assert "default-src &#39;none&#39;" in html
    assert not re.search(r"(?:src|href)=\"https?:", html)
