"""Build the page: one HTML file with its panels, scripts, styles, data and security policy."""

import base64
import hashlib
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, Final

from markupsafe import Markup

from rag_eval.reporting import retrieval_panels, run_panels
from rag_eval.reporting.elements import Page, Panel, environment
from rag_eval.reporting.tables import Cursor, Table

SECTIONS: Final = (
    "verdict",
    "explorer",
    "measures",
    "miss-rates",
    "citations",
    "stability",
    "slices",
    "trust",
    "cost",
    "methods",
)
"""Ids of the sections, in the order of the page."""
_PANELS: Final = {**run_panels.PANELS, **retrieval_panels.PANELS}
FOLDED: Final = frozenset(SECTIONS[SECTIONS.index("citations") :])
"""Panels that a reader unfolds: all after the first that is no answer to the first questions."""
FRAME_BYTES: Final = 20_000
"""Bytes reserved for the page around its panels, scripts and data."""
SCRIPT: Final = "explorer.js"
STYLES: Final = ("page.css", "explorer.css")


def asset(name: str) -> str:
    """Read a script or a style sheet of the page."""
    path = resources.files("rag_eval.reporting").joinpath("assets", name)
    return path.read_text(encoding="utf-8")


def _policy(script: str, style: str) -> str:
    """Write the Content-Security-Policy: only this script, this style, and inline pictures."""
    allowed = [
        "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
        for text in (script, style)
    ]
    return (
        f"default-src 'none'; script-src {allowed[0]}; style-src {allowed[1]}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _block(name: str, content: bytes) -> Markup:
    """Write gzip bytes as base64 data in a script element that browsers do not run."""
    return Markup(
        '<script type="application/octet-stream+base64" id="bundle-{}">{}</script>'
    ).format(name, base64.b64encode(content).decode("ascii"))


def build(
    report: Mapping[str, Any],
    bundle: Callable[[int], Mapping[str, bytes]] | None = None,
    limit: int = 0,
) -> str:
    """Build the page of a report, as `retrieval-metrics.json` holds it: one HTML document.

    `bundle` gets a number of bytes and makes the explorer's parts by file name (`summary.json.gz`,
    ...) within this size. With None the page says that the explorer is left out. `limit` is the
    largest size of the page in bytes. The explorer gets the bytes that the panels leave.
    """
    page = Page(Cursor(dict(report)), has_questions=bundle is not None)
    script = asset(SCRIPT)
    style = "\n".join(asset(name) for name in STYLES)
    sections = list[dict[str, Any]]()
    for name in SECTIONS:
        panel, body = _render_panel(name, page)
        sections.append({"id": name, "title": panel.title, "body": body, "folded": name in FOLDED})
    blocks = dict[str, bytes]()
    if bundle is not None:
        texts = [script, style, *(section["body"] for section in sections)]
        taken = sum(len(text.encode()) for text in texts)
        parts = bundle(limit - taken - FRAME_BYTES)
        blocks = {name.removesuffix(".json.gz"): part for name, part in parts.items()}
    context = {
        "page": page,
        "report": page.report,
        "sections": sections,
        "policy": _policy(script, style),
        "script": Markup(script),  # noqa: S704 - our own files
        "style": Markup(style),  # noqa: S704 - our own files
        "blocks": Markup("\n").join(_block(*block) for block in blocks.items()),
    }
    return environment().get_template("page.html").render(context)


def page_tables(report: Mapping[str, Any]) -> list[Table]:
    """Make the tables of all panels that have rows, in the order of the page."""
    page = Page(Cursor(dict(report)))
    return [table for name in SECTIONS for table in _PANELS[name](page).tables.values() if table]


def _render_panel(name: str, page: Page) -> tuple[Panel, Markup]:
    """Make the section of one panel, and its tables."""
    panel = _PANELS[name](page)
    context = {"page": page, "report": page.report, "tables": panel.tables, **panel.context}
    body = environment().get_template(panel.template).render(**context)
    return panel, Markup(body)  # noqa: S704 - escaped by the environment
