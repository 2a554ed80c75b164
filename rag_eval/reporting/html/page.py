"""The page: its panels in order, its policy, and everything it holds in one file.

Belongs here: how panels become a document. What a panel shows is its own module below `panels`; the explorer's data come from the run.
"""

import base64
import dataclasses
import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module, resources
from typing import Any, Final

from markupsafe import Markup

from rag_eval.reporting.html.figures import Cursor, text
from rag_eval.reporting.html.pictures import colour
from rag_eval.reporting.html.tables import SHORT, Series, Table
from rag_eval.reporting.html.templating import environment, render

PANELS: Final = (
    "verdict",
    "denominators",
    "measures",
    "miss_rates",
    "stability",
    "recall",
    "citations",
    "trust",
    "slices",
    "history",
    "cost",
    "methods",
    "explorer",
)
"""Modules of `panels`, in the order of the page; the id of a section has hyphens."""
FRAME_BYTES: Final = 20_000
"""What the page takes around its panels, scripts and data."""
SCRIPTS: Final = ("explorer.js", "downloads.js")
STYLES: Final = ("page.css", "explorer.css")


@dataclasses.dataclass(frozen=True)
class Page:
    """What every panel is made from.

    Parameters
    ----------
    report
        The finished report.
    summary
        The explorer's summary as the page holds it; None where the page has no explorer.
    """

    report: Cursor
    summary: Mapping[str, Any] | None = None

    @property
    def strategies(self) -> list[str]:
        """Names of the strategies, in the order of the report."""
        return [str(entry["name"].value) for entry in self.report["strategies"]]

    @property
    def primary(self) -> str:
        """Name of the strategy that the headline figures are of."""
        return str(self.report["strategy"].value)

    @property
    def level(self) -> str:
        """Level of the headline figures."""
        return str(self.report["evaluation"]["level"].value)

    def strategy(self, name: str) -> Cursor:
        """Return the entry of one strategy."""
        found = self.report["strategies"].where(name=name)
        if found is None:
            raise KeyError(name)
        return found

    def measure(self, name: str, label: str, level: str | None = None) -> Cursor | None:
        """Return a record of a strategy's measure, None where the strategy is not measured so."""
        return self.strategy(name)["measures"].where(label=label, level=level or self.level)

    def colour(self, name: str) -> str:
        """Colour of a strategy in every picture."""
        return colour(self.strategies.index(name))

    def swatch(self, name: str) -> Markup:
        """Write the name of a strategy with its colour; the primary one is marked."""
        mark = (
            Markup(' <abbr title="the primary strategy: the headline figures are its">*</abbr>')
            if name == self.primary
            else Markup()
        )
        return Markup('<span class="series s{}{}"><i></i>{}{}</span>').format(
            str(self.strategies.index(name) % 8 + 1),
            " long" if len(name) > SHORT else "",
            text(self.strategy(name)["name"]),
            mark,
        )

    def series(self, cursor: Cursor) -> Series:
        """Make a cell of a strategy's name, wherever in the report it stands."""
        return Series(cursor, self.swatch(str(cursor.value)))


@dataclasses.dataclass(frozen=True)
class Panel:
    """One part of the page.

    Parameters
    ----------
    title
        Its heading.
    template
        File below `templates`; gets `page` and the context.
    context
        Markup, texts, cursors and tables.
    tables
        Tables that can be exported, those of the context among them.
    """

    title: str
    template: str
    context: Mapping[str, Any]
    tables: tuple[Table, ...] = ()


@dataclasses.dataclass(frozen=True)
class Built:
    """A finished page and the tables it holds."""

    html: str
    tables: tuple[Table, ...]


def asset(name: str) -> str:
    """Read a script or a style sheet of the page."""
    return (
        resources.files("rag_eval.reporting.html")
        .joinpath("assets", name)
        .read_text(encoding="utf-8")
    )


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def policy(script: str, style: str) -> str:
    """Content-Security-Policy of the page: this script and this style, pictures of the page's own, nothing from anywhere."""
    return f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; base-uri 'none'; form-action 'none'"


def block(name: str, content: bytes) -> Markup:
    """Hold gzip bytes in the page, as data that no browser runs."""
    return Markup('<script type="application/octet-stream+base64" id="{}">{}</script>').format(
        name, base64.b64encode(content).decode("ascii")
    )


def _tables_block(tables: Iterable[Table]) -> bytes:
    return gzip.compress(
        json.dumps(
            {table.name: {"csv": table.csv(), "tex": table.tex()} for table in tables},
            sort_keys=True,
        ).encode(),
        mtime=0,
    )


def build(
    report: Mapping[str, Any],
    bundle: Callable[[int], Mapping[str, bytes]] | None = None,
    limit: int = 0,
) -> Built:
    """Build the page.

    Parameters
    ----------
    report
        The finished report, as `retrieval-metrics.json` holds it.
    bundle
        Makes the explorer's parts by file name (`summary.json.gz`, ...) so that they take at most so many bytes of a page; None leaves the
        explorer out, which is said.
    limit
        What the page may take, in bytes; the panels take what they need, the explorer the rest.

    Returns
    -------
    Built
        One HTML document that needs nothing else, and its tables.
    """
    page, script, style = (
        Page(Cursor(dict(report))),
        "\n".join(asset(name) for name in SCRIPTS),
        "\n".join(asset(name) for name in STYLES),
    )
    sections, tables = [], list[Table]()
    for name in PANELS[:-1]:
        section, made = _section(name, page)
        sections.append(section)
        tables += made
    blocks = [block("bundle-tables", _tables_block(tables))]
    if bundle is not None:
        taken = (
            sum(len(str(part).encode()) for section in sections for part in section.values())
            + len(script.encode())
            + len(style.encode())
            + sum(map(len, blocks))
        )
        parts = bundle(limit - taken - FRAME_BYTES)
        page = dataclasses.replace(
            page, summary=json.loads(gzip.decompress(parts["summary.json.gz"]))
        )
        blocks += [
            block("bundle-" + name.removesuffix(".json.gz"), content)
            for name, content in sorted(parts.items())
        ]
    sections.append(_section(PANELS[-1], page)[0])
    html = (
        environment()
        .get_template("page.html")
        .render(
            page=page,
            report=page.report,
            sections=sections,
            policy=policy(script, style),
            script=Markup(script),
            style=Markup(style),
            blocks=Markup("\n").join(blocks),
        )
    )  # noqa: S704 - our own files
    return Built(html, tuple(tables))


def _section(name: str, page: Page) -> tuple[dict[str, str], tuple[Table, ...]]:
    make: Callable[[Page], Panel] = import_module(f"rag_eval.reporting.html.panels.{name}").panel
    panel = make(page)
    return {
        "id": name.replace("_", "-"),
        "title": panel.title,
        "body": render(panel.template, {"page": page, "report": page.report, **panel.context}),
    }, panel.tables
