"""Scanning texts: every rule on every reading of a text, and what is hidden or encoded in it, as findings.

Belongs here: how readings, rules and severities meet. Not here: what is done with findings.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rag_eval.records.trust import FINDINGS
from rag_eval.trust.addressing import addressed
from rag_eval.trust.patterns import RuleSet
from rag_eval.trust.views import View, read

if TYPE_CHECKING:
    import pandas as pd

SPEAKS = "speaks_to_model"
"""Rule of the model over sentences."""

Finding = tuple[int, int, int, str, str, str, str]


def _severity(severity: str, view: View) -> str:
    """Text that was put out of sight has no excuse: what would be a warning is blocked there."""
    return "blocked" if severity == "warning" and view.kind != "visible" else severity


def _by_rules(row: int, view: View, rules: RuleSet) -> list[Finding]:
    return [
        (row, *view.back(found.start, found.end), "pattern", found.rule.id, _severity(found.rule.severity, view), f"rule {found.rule.id} found in {view.kind} text ({view.source})")
        for found in rules.matches(view.text, view.kind)
    ]


def findings_of(row: int, text: str, rules: RuleSet, *, sentences: bool = False) -> list[Finding]:
    """Findings in one text, as rows of `FINDINGS`; with `sentences` also of the model over sentences."""
    reading = read(text)
    found: list[Finding] = [(row, *trick) for trick in reading.tricks]
    for view in reading.views:
        found.extend(_by_rules(row, view, rules))
        if sentences:
            found.extend((row, start, end, "pattern", SPEAKS, _severity("warning", view), detail) for start, end, detail in addressed(view))
    return found


def scan_texts(texts: Sequence[str], rules: RuleSet | None = None, *, sentences: bool = False) -> "pd.DataFrame":
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
    found = [finding for row, text in enumerate(texts) for finding in findings_of(row, text, rules, sentences=sentences)]
    frame = pd.DataFrame(found, columns=list(FINDINGS.columns))
    return FINDINGS.check(frame.astype(dict.fromkeys(("row", "start", "end"), "int64") | dict.fromkeys(("check", "rule", "severity", "detail"), "str")))
