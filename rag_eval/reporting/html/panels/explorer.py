"""Panel of the explorer of questions; a script draws the explorer from data in the page."""

from rag_eval.reporting.html.panel import Page, Panel


def panel(page: Page) -> Panel:
    """Make the panel of the explorer."""
    return Panel("Questions", "explorer.html", {"summary": page.summary})
