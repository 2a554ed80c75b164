"""Everything that can be told of a text by itself: forbidden patterns, hidden and encoded text, sentences that speak to a model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rag_eval.records.trust import FINDINGS
from rag_eval.trust.patterns import RuleSet
from rag_eval.trust.scanning import scan_texts

if TYPE_CHECKING:
    import pandas as pd


REACH = 200
"""Characters on either side of the border between a title and its text that are read together."""


def across_titles(
    titles: Sequence[str], texts: Sequence[str], rules: RuleSet | None = None
) -> "pd.DataFrame":
    """Find what begins in a title and ends in the text behind it: the two are indexed and shown together.

    Parameters
    ----------
    titles, texts
        `[n]` title and text of each chunk.
    rules
        Default: the rules that are shipped.

    Returns
    -------
    pandas.DataFrame
        FINDINGS; `row` is the place in the lists, start and end are -1.
    """
    rows = [row for row, title in enumerate(titles) if title]
    heads = [titles[row][-REACH:] for row in rows]
    found = scan_texts(
        [f"{head} {texts[row][:REACH]}" for head, row in zip(heads, rows, strict=True)], rules
    )
    border = [len(heads[place]) for place in found["row"].tolist()]
    over = found[(found["start"] < border) & (found["end"] > [place + 1 for place in border])]
    return FINDINGS.check(
        over.assign(row=[rows[place] for place in over["row"].tolist()], start=-1, end=-1)
        .astype({"row": "int64", "start": "int64", "end": "int64"})
        .reset_index(drop=True)
    )


def screen(texts: Sequence[str], rules: RuleSet | None = None) -> "pd.DataFrame":
    """Screen documents, chunks or passages one by one.

    Parameters
    ----------
    texts
        What is screened.
    rules
        Default: the rules that are shipped.

    Returns
    -------
    pandas.DataFrame
        FINDINGS; `row` is the place in `texts`.
    """
    return scan_texts(texts, rules, sentences=True)
