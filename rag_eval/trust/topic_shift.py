"""Topic shift: sentences that do not belong to their document, and documents that do not belong to their source.

Belongs here: the check, its options and its findings. It is a guess from words and form, never a ground to block: every finding is a
warning. It sees what no list of wordings can, a plain question or task that stands in a document about something else; it does not see
a planted statement of fact in a text about related things.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.records.trust import FINDINGS
from rag_eval.trust import shift_coefficients
from rag_eval.trust.shift_features import features_of
from rag_eval.trust.shift_space import Floats, Ints, Space, space_of
from rag_eval.trust.source_outliers import unlikeness

_WHAT = ("asks", "gives an order", "speaks to its reader", "introduces code")


@dataclasses.dataclass(frozen=True)
class ShiftOptions:
    """What counts as a shift.

    Parameters
    ----------
    formed, plain
        Scores above which a sentence is reported, for one that asks, orders, addresses its reader or introduces code, and for any other;
        None takes what was fitted.
    least_sentences
        Documents of fewer sentences have no topic of their own to shift from.
    least_group
        Groups of fewer documents say nothing of what is usual there.
    unlike
        Robust standard deviations by which a document must be unlike its group.
    """

    formed: float | None = None
    plain: float | None = None
    least_sentences: int = 3
    least_group: int = 20
    unlike: float = 3.3


DEFAULT = ShiftOptions()


def _groups(groups: Sequence[str]) -> Ints:
    return np.asarray(pd.factorize(np.asarray(groups, dtype=object))[0], dtype=np.int64)


def scores_of(space: Space, group_of: Ints) -> Floats:
    """Log-odds that each sentence was planted, as in the sets that the weights were fitted on [m]."""
    fitted = shift_coefficients.load()
    return np.asarray(features_of(space, group_of) @ fitted.weights + fitted.bias, dtype=np.float64)


def _inside(space: Space, group_of: Ints, options: ShiftOptions) -> pd.DataFrame:
    """Findings of rule inside_document; neighbouring sentences are one finding."""
    fitted = shift_coefficients.load()
    scores = scores_of(space, group_of)
    formed = space.forms.any(axis=1)
    limit = np.where(
        formed,
        fitted.formed if options.formed is None else options.formed,
        fitted.plain if options.plain is None else options.plain,
    )
    enough = (
        np.bincount(space.document_of, minlength=space.documents.shape[0])
        >= options.least_sentences
    )
    found: npt.NDArray[np.bool_] = (scores > limit) & enough[space.document_of]
    rows = np.flatnonzero(found)
    new = np.ones(len(rows), dtype=np.bool_)
    new[1:] = (np.diff(rows) > 1) | (np.diff(space.document_of[rows]) > 0)
    firsts = np.flatnonzero(new)
    lasts = np.append(firsts[1:], len(rows))[: len(firsts)] - 1
    details = []
    for low, high in zip(firsts, lasts, strict=True):
        best = rows[low] + int(np.argmax(scores[rows[low : high + 1]]))
        marks = [what for what, holds in zip(_WHAT, space.forms[best], strict=True) if holds]
        does = f"{' and '.join(marks)}, unlike" if marks else "has little in common with"
        details.append(
            f"a sentence {does} the rest of its document (score {scores[best]:.1f}, limit {limit[best]:.1f})"
        )
    return pd.DataFrame(
        {
            "row": space.document_of[rows[firsts]],
            "start": space.starts[rows[firsts]],
            "end": space.ends[rows[lasts]],
            "rule": pd.Series(["inside_document"] * len(firsts), dtype="str"),
            "detail": pd.Series(details, dtype="str"),
        }
    )


def _against(space: Space, group_of: Ints, options: ShiftOptions) -> pd.DataFrame:
    """Findings of rule against_source."""
    far = unlikeness(space, group_of, options.least_group)
    rows = np.flatnonzero(far > options.unlike)
    details = [
        f"unlike the other documents of its source: {far[row]:.1f} robust standard deviations (limit {options.unlike:.1f})"
        for row in rows
    ]
    whole = np.full(len(rows), -1, dtype=np.int64)
    return pd.DataFrame(
        {
            "row": rows,
            "start": whole,
            "end": whole,
            "rule": pd.Series(["against_source"] * len(rows), dtype="str"),
            "detail": pd.Series(details, dtype="str"),
        }
    )


def topic_shift(
    texts: Sequence[str], groups: Sequence[str], *, options: ShiftOptions = DEFAULT
) -> pd.DataFrame:
    """Find sentences unlike their document and documents unlike their source.

    Parameters
    ----------
    texts
        Whole documents.
    groups
        The source of each, its domain for instance; empty where it is unknown: such documents say together what is usual, but are not
        compared as a source.
    options
        What counts as a shift.

    Returns
    -------
    DataFrame
        FINDINGS, all warnings of check "topic_shift", by document and place; `row` is the document. Rule inside_document: the
        sentences from start to end. Rule against_source: the whole document, start and end -1.

    Raises
    ------
    ValueError
        Texts and groups are not of the same number.

    Examples
    --------
    >>> topic_shift(["Too short to say."], ["example.org"]).empty
    True
    """
    if len(texts) != len(groups):
        raise ValueError(f"topic_shift: {len(texts)} texts, but {len(groups)} groups")
    if not texts:
        texts, groups = [""], [""]
    space, group_of = space_of(texts), _groups(groups)
    known = np.array([bool(group) for group in groups], dtype=np.bool_)
    against = _against(space, group_of, options)
    frame = pd.concat(
        [
            against[known[against["row"].to_numpy(dtype=np.int64)]],
            _inside(space, group_of, options),
        ],
        ignore_index=True,
    )
    frame = frame.assign(check="topic_shift", severity="warning").sort_values(
        ["row", "start"], kind="stable", ignore_index=True
    )
    return FINDINGS.check(
        frame.astype(
            {"row": "int64", "start": "int64", "end": "int64", "check": "str", "severity": "str"}
        )
    )
