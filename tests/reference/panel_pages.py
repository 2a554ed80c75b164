"""Render a panel by itself and read its parts."""

import csv
import html as markup
import io
import json
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree as ET

from rag_eval.reporting.elements import Page
from rag_eval.reporting.page import _render_panel
from rag_eval.reporting.tables import Cursor

HOSTILE = (
    *("<script>alert(1)</script>", "$x$ & \\frac{1}{2}", "</svg><img src=x onerror=y>"),
    *("=SUM(A1)", "n" * 1000),
)
HIDDEN = "a\u202eb\x00c"
_FIGURE = re.compile(r'<data value="([^"]*)" data-at="([^"]*)">')
_TEXT = re.compile(r'<bdi data-at="([^"]*)">')


def exports(panel: Any) -> list[Any]:
    """Return the tables of a panel that have rows, in order."""
    return [table for table in panel.tables.values() if table]


def rendered(name: str, report: dict[str, Any]):
    """Return a panel of a report and its HTML after the checks that hold for every panel."""
    panel, body = _render_panel(name, Page(Cursor(report)))
    html = str(body)
    for value, pointer in figures(html):
        assert value == at(report, pointer), pointer
    assert all(at(report, markup.unescape(pointer)) is not None for pointer in _TEXT.findall(html))
    tags = re.sub(r'"[^"]*"', '""', html)
    assert not re.search(r"<(?:script|iframe|img|image|object|style)\b", html)
    assert not re.search(r"<[^>]+\s(?:on[a-z]+|style)\s*=", tags)
    assert not re.search(r"\bNaN\b|\bNone\b(?! where)", html)  # prose may say "None where"
    pictures = re.findall(r'<svg class="plot".*?</svg>', html, re.DOTALL)
    for picture in pictures:
        ET.fromstring(picture)  # noqa: S314 - our own output
        assert len(picture.encode()) < 40_000
    names = [table.name for table in exports(panel)]
    assert len(set(names)) == len(names)
    for table in exports(panel):
        assert table.csv().startswith(table.columns[0].key)
        assert table.csv().count("\n") >= len(table.rows)
        assert f'data-table="{table.name}"' in html
        assert r"\toprule" in table.tex()
        assert table.tex().count(r"\\") >= 1 + len(table.rows)
    return panel, html


class _Unfolded(HTMLParser):
    """Collects the words of a page that a reader sees before unfolding anything."""

    HIDDEN = frozenset({"script", "style", "title", "desc", "noscript"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.words: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        is_folded = tag == "details" and "open" not in dict(attrs)
        if is_folded or tag in {"details", "summary"} | self.HIDDEN:
            self._open.append("folded" if is_folded else tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in {"details", "summary"} | self.HIDDEN:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        folds = [at for at, tag in enumerate(self._open) if tag == "folded"]
        in_summary = len(folds) == 1 and self._open[folds[0] + 1 :][:1] == ["summary"]
        if not self.HIDDEN & {*self._open} and (not folds or in_summary):
            self.words += data.split()


def unfolded_words(html: str) -> list[str]:
    """Return the words of a page that stand in no closed fold; a summary stands outside."""
    parser = _Unfolded()
    parser.feed(html)
    return parser.words


def figures(html: str) -> list[tuple[Any, str]]:
    """Return (value, place) of every figure."""
    pairs = _FIGURE.findall(markup.unescape(html))
    return [(json.loads(value), place) for value, place in pairs]


def rows(panel: Any, name: str) -> list[dict[str, str]]:
    """Return the rows of a table's CSV."""
    table = next(table for table in exports(panel) if table.name == name)
    return list(csv.DictReader(io.StringIO(table.csv())))


def at(report: Any, pointer: str) -> Any:
    """Return the value at a JSON pointer."""
    for key in filter(None, pointer.split("/")):
        name = key.replace("~1", "/").replace("~0", "~")
        report = report[int(name)] if isinstance(report, list) else report[name]
    return report


def absent(reason: str) -> dict[str, Any]:
    """Return the fields of an estimate that has no value."""
    return {"value": None, "ci_low": None, "ci_high": None, "value_reason": reason}


def titles(html: str) -> list[str]:
    """Return the titles of the pictures."""
    return re.findall(r'<title id="[^"]*">([^<]*)</title>', html)


def renamed(value: Any, old: str, new: str) -> Any:
    """Return a copy of the report in which the strategy `old` has the name `new` everywhere."""
    if isinstance(value, dict):
        return {new if key == old else key: renamed(part, old, new) for key, part in value.items()}
    if isinstance(value, list):
        return [renamed(part, old, new) for part in value]
    return new if value == old else value
