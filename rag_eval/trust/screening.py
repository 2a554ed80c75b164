"""Everything that can be told of a text by itself: forbidden patterns, hidden and encoded text, sentences that speak to a model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rag_eval.records.trust import FINDINGS
from rag_eval.trust.addressing import addressing
from rag_eval.trust.patterns import RuleSet
from rag_eval.trust.scanning import scan_texts

if TYPE_CHECKING:
    import pandas as pd


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
    import pandas as pd

    parts = [scan_texts(texts, rules), addressing(texts)]
    return FINDINGS.check(pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True))
