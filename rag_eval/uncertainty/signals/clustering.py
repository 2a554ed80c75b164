"""Signals of how the list is spread over documents: one that stays in a document has found the place, or nothing but that place."""

import numpy as np

from rag_eval.uncertainty.signals.evidence import Evidence, FloatArray


def clustering(evidence: Evidence) -> dict[str, FloatArray]:
    """`same_document`: share of the retrieved first K chunks that stand in the document of the first one, itself included.

    NaN where nothing was retrieved, where documents are not known, and where no document has several chunks: then it would only count the list.
    """
    document, rows = evidence.batch.document, evidence.batch.rows[:, : evidence.k]
    undefined = np.full(evidence.n, np.nan)
    if (
        document is None
        or not rows.shape[1]
        or len(document) == 0
        or int(document.max()) + 1 == len(document)
    ):
        return {"same_document": undefined}
    held = rows >= 0
    of = np.where(held, document[np.maximum(rows, 0)], -1)
    count = held.sum(axis=1)
    same = ((of == of[:, :1]) & held).sum(axis=1)
    return {"same_document": np.where(count > 0, same / np.maximum(count, 1), undefined)}
