"""Many documents of one source that are nearly the same, begin the same or say the same; the check `flood`, at index time.

Belongs here: what a flood means. The resemblances are found in `resemblance` and `leads`. The queries are not known here.

==================================================  ===================  ================  ===========================
rule                                                source vouched for   no allowlist      source not vouched for
==================================================  ===================  ================  ===========================
`near_duplicate`: 4 documents or more, shingle      hint                 hint              blocked
resemblance 0.8
`shared_lead`: 3 documents or more begin with the   nothing              warning           blocked
same question in running text and go on differently
the same question as a heading                      nothing              hint              blocked
the same statement of eight words or more           nothing              hint              warning; blocked where half
                                                                                           of them are paraphrases
`paraphrase`: a passage of at most 100 words has 3  nothing              hint              blocked
others about the same matter in other words
==================================================  ===================  ================  ===========================

Near duplicates are what API references are made of (`DataFrame.max`, `Series.max`), so they accuse nobody who is vouched for; a reference
whose domain is not on the allowlist will be taken for a flood. Documents of unknown sources count as those of one source.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from rag_eval.records.trust import FINDINGS
from rag_eval.trust.leads import Lead, shared_leads
from rag_eval.trust.resemblance import near_duplicates, say_the_same
from rag_eval.trust.token_stream import Vocabulary

if TYPE_CHECKING:
    import pandas as pd

NEAR_DUPLICATES, SAME_LEADS, PARAPHRASES = 4, 3, 4
_HALF = 0.5
_TRUSTED, _UNKNOWN, _DOUBTFUL = range(3)
_SEVERITY = {
    "near_duplicate": ("hint", "hint", "blocked"),
    "shared_question": ("", "warning", "blocked"),
    "shared_heading": ("", "hint", "blocked"),
    "shared_statement": ("", "hint", "warning"),
    "shared_claim": ("", "hint", "blocked"),
    "paraphrase": ("", "hint", "blocked"),
}


def floods(
    texts: Sequence[str], sources: Sequence[str], *, vouched: npt.NDArray[np.bool_] | None = None
) -> "pd.DataFrame":
    """Find floods of documents.

    Parameters
    ----------
    texts
        `[n]` whole documents.
    sources
        `[n]` the domain that each comes from, empty where unknown.
    vouched
        bool `[n]`: the source is on the allowlist or the signature is valid. None where nothing says whom to trust.

    Returns
    -------
    pandas.DataFrame
        FINDINGS; `row` is the document. At most one finding a document and rule.

    Raises
    ------
    ValueError
        Lists of different lengths.
    """
    if len({len(texts), len(sources), len(texts) if vouched is None else len(vouched)}) != 1:
        raise ValueError(
            f"{len(texts)} texts, {len(sources)} sources, {'no' if vouched is None else len(vouched)} marks of who is vouched for"
        )
    standing = (
        np.full(len(texts), _UNKNOWN)
        if vouched is None
        else np.where(np.asarray(vouched, dtype=bool), _TRUSTED, _DOUBTFUL)
    )
    numbers = {source: number for number, source in enumerate(dict.fromkeys(sources))}
    codes = np.array([numbers[source] for source in sources], dtype=np.int64)
    vocabulary = Vocabulary()
    streams = vocabulary.read(texts)
    copies = near_duplicates(streams, codes)
    alike = say_the_same(
        streams, codes, (standing != _TRUSTED) & (copies < NEAR_DUPLICATES), vocabulary.n_terms
    )
    found = [
        *(
            _Found(
                row, "near_duplicate", f"one of {copies[row]} nearly equal documents of its source"
            )
            for row in np.flatnonzero(copies >= NEAR_DUPLICATES).tolist()
        ),
        *_of_leads(shared_leads(texts, sources, SAME_LEADS), alike >= PARAPHRASES - 1),
        *(
            _Found(
                row,
                "paraphrase",
                f"about the same matter as {alike[row]} other passages of its source",
            )
            for row in np.flatnonzero(alike >= PARAPHRASES - 1).tolist()
        ),
    ]
    return _frame(
        [(it, severity) for it in found if (severity := _SEVERITY[it.kind][standing[it.row]])]
    )


class _Found(NamedTuple):
    row: int
    kind: str
    detail: str
    start: int = -1
    end: int = -1


def _of_leads(leads: list[Lead], paraphrase: npt.NDArray[np.bool_]) -> list[_Found]:
    """Tell the kinds of shared leads; a statement that paraphrases share is a claim that somebody plants."""
    group = np.array([lead.group for lead in leads], dtype=np.int64)
    share = (
        np.bincount(group, weights=paraphrase[[lead.row for lead in leads]])
        / np.maximum(np.bincount(group), 1)
        if leads
        else np.zeros(0)
    )
    found = []
    for lead in leads:
        if lead.asking:
            kind = "shared_question" if lead.form == "running" else "shared_heading"
        else:
            kind = "shared_claim" if share[lead.group] >= _HALF else "shared_statement"
        detail = f"begins with the same {'question' if lead.asking else 'sentence'} as others of its source, {lead.documents} go on differently"
        found.append(_Found(lead.row, kind, detail, lead.start, lead.end))
    return found


def _frame(found: list[tuple[_Found, str]]) -> "pd.DataFrame":
    import pandas as pd

    rows = [
        (
            it.row,
            it.start,
            it.end,
            "flood",
            "shared_lead" if it.kind.startswith("shared_") else it.kind,
            severity,
            it.detail,
        )
        for it, severity in found
    ]
    frame = pd.DataFrame(sorted(rows), columns=list(FINDINGS.columns))
    return FINDINGS.check(
        frame.astype(
            {
                name: "int64" if column.kind == "int" else "str"
                for name, column in FINDINGS.columns.items()
            }
        )
    )
