"""Scanning texts: every rule on every reading of a text, and what is hidden or encoded in it, as findings.

Belongs here: how readings, rules and severities meet. Not here: what is done with findings.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rag_eval.records.trust import FINDINGS
from rag_eval.trust.addressing import addressed
from rag_eval.trust.patterns import RuleSet
from rag_eval.trust.views import View, read

if TYPE_CHECKING:
    import pandas as pd

SPEAKS = "speaks_to_model"
"""Rule of the model over sentences."""
_BATCH_CHARS = 1_000_000

Finding = tuple[int, int, int, str, str, str, str]


def _severity(severity: str, view: View) -> str:
    """Text that was put out of sight has no excuse: what would be a warning is blocked there."""
    return "blocked" if severity == "warning" and view.kind != "visible" else severity


def findings_of(row: int, text: str, rules: RuleSet, *, sentences: bool = False) -> list[Finding]:
    """Findings in one text, as rows of `FINDINGS`; with `sentences` also of the model over sentences."""
    return list(_findings([(row, text)], rules, sentences=sentences))


def _findings(
    texts: Sequence[tuple[int, str]], rules: RuleSet, *, sentences: bool
) -> Iterator[Finding]:
    """Findings text by text: of each its tricks, and of each of its views what rules and what the model over sentences found."""
    readings = [read(text) for _, text in texts]
    views = [view for reading in readings for view in reading.views]
    ruled = iter(rules.matches_of([(view.text, view.kind) for view in views]))
    spoken = iter(addressed(views) if sentences else [[] for _ in views])
    for (row, _), reading in zip(texts, readings, strict=True):
        yield from ((row, *trick) for trick in reading.tricks)
        for view in reading.views:
            for rule, start, end in next(ruled):
                yield (
                    row,
                    *view.back(start, end),
                    "pattern",
                    rule.id,
                    _severity(rule.severity, view),
                    f"rule {rule.id} found in {view.kind} text ({view.source})",
                )
            for start, end, detail in next(spoken):
                yield row, start, end, "pattern", SPEAKS, _severity("warning", view), detail


def _batches(texts: Sequence[str]) -> Iterator[list[tuple[int, str]]]:
    """Rows and texts, as many at once as are worth it and still small beside a large text's own readings."""
    batch: list[tuple[int, str]] = []
    size = 0
    for row, text in enumerate(texts):
        batch.append((row, text))
        size += len(text)
        if size >= _BATCH_CHARS:
            yield batch
            batch, size = [], 0
    yield batch


def scan_texts(
    texts: Sequence[str], rules: RuleSet | None = None, *, sentences: bool = False
) -> "pd.DataFrame":
    """Look for forbidden patterns, hidden text and encoded text.

    Parameters
    ----------
    texts
        Documents, chunks or passages.
    rules
        Default: the rules that are shipped.
    sentences
        Whether the model over sentences (`addressing`) reads them too, for what no rule knows.

    Returns
    -------
    pandas.DataFrame
        Schema `FINDINGS`; `row` is the place in `texts`, rows in its order. Checks are `pattern` (rule: the rule's id), `hidden` and `encoded`
        (rule: the trick). Time is linear in the length of each text.

    Raises
    ------
    InputError
        The shipped rule file cannot be used.
    """
    import pandas as pd

    rules = rules or RuleSet.load()
    found = [
        finding
        for batch in _batches(texts)
        for finding in _findings(batch, rules, sentences=sentences)
    ]
    frame = pd.DataFrame(found, columns=list(FINDINGS.columns))
    return FINDINGS.check(
        frame.astype(
            dict.fromkeys(("row", "start", "end"), "int64")
            | dict.fromkeys(("check", "rule", "severity", "detail"), "str")
        )
    )
