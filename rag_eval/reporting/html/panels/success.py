"""Success criteria of the project: met, not met, or why they are not judged."""

from collections import Counter

from rag_eval.reporting.html.panel import Page, Panel


def panel(page: Page) -> Panel:
    """Make the panel of success criteria."""
    criteria = list(page.report.get("success") or ())
    counts = Counter(str(criterion["verdict"].value) for criterion in criteria)
    context = {"counts": ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items()))}
    return Panel(
        "Success criteria",
        "success.html",
        context,
        {"criteria": page.optional_table("success", criteria)},
    )
