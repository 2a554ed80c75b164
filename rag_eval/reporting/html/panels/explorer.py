"""The explorer of questions: its data come from the run, a script draws it."""

from rag_eval.reporting.html.panel import Page, Panel


def panel(page: Page) -> Panel:
    """Make the panel of the explorer."""
    return Panel("Questions", "explorer.html", {"summary": page.summary})
