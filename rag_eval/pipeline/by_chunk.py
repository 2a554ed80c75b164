"""Work on single chunks, which a later run does only for new and changed chunks."""

from collections.abc import Callable
from hashlib import sha256

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.core.arrays import IntArray, find_rows
from rag_eval.pipeline.runner import Work
from rag_eval.storage.artifacts import Artifact, Parts
from rag_eval.storage.hashing import SHORT, digest

BLOCK = 20_000
"""Number of chunks that are worked on at a time, which bounds the memory."""


def identify_chunks(chunks: pd.DataFrame) -> npt.NDArray[np.bytes_]:
    """Identify title, text and document of each chunk (CHUNKS): bytes [n_chunks]."""
    hashes = np.array(chunks["text_hash"].tolist(), dtype="S64")
    return np.char.add(hashes, np.array(chunks["chunk_id"].tolist(), dtype=f"S{SHORT}"))


def work_by_chunk(
    work: Work,
    kind: str,
    *,
    identity: object,
    keys: npt.NDArray[np.bytes_],
    make: Callable[[IntArray], pd.DataFrame],
    before: str | None,
) -> Artifact:
    """Return the stored rows about single chunks, and make those of chunks without any.

    Parameters
    ----------
    kind
        Kind of the artifact, which has a frame `rows`. Its column `row` is the row of the chunk.
    identity
        Everything besides a chunk that its rows depend on, as JSON; the stage's version is added.
    keys
        Everything of each chunk that its rows depend on, bytes [n_chunks].
    make
        Makes the frame for the chunks of some rows; its `row` numbers these chunks from 0.
    before
        Key of the artifact of the run before; None without one.
    """
    same = digest([work.version, identity])

    def make_parts() -> Parts:
        parts, done = [make(np.zeros(0, dtype=np.int64))], np.full(len(keys), -1, dtype=np.int64)
        old = work.evaluation.store.whole(kind, before) if before else None
        if old is not None and old.json("identity") == same:
            old_keys = old.mapped("keys")
            done = find_rows(old_keys, keys)
            old_rows, place = old.frame("rows"), find_rows(keys, old_keys)
            old_rows = old_rows.assign(row=place[old_rows["row"].to_numpy(dtype=np.int64)])
            parts.append(old_rows[old_rows["row"] >= 0])
        new = np.flatnonzero(done < 0)
        for start in range(0, len(new), BLOCK):
            block = new[start : start + BLOCK]
            part = make(block)
            parts.append(part.assign(row=block[part["row"].to_numpy(dtype=np.int64)]))
        # Empty frames would change the types of columns.
        rows = pd.concat([part for part in parts if len(part)] or parts[:1])
        rows = rows.sort_values("row", kind="stable", ignore_index=True)
        return {"rows": rows, "keys": keys, "identity": same}

    return work.keep(kind, [same, sha256(keys.tobytes()).hexdigest()], make_parts)
