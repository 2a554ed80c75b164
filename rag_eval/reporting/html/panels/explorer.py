"""Explorer of single questions: its place in the page. What it does is `assets/explorer.js`, its data is made by the run."""

from rag_eval.reporting.html.page import Page, Panel


def panel(page: Page) -> Panel:
    """Make the panel."""
    return Panel("Questions", "explorer.html", {"summary": page.summary})
