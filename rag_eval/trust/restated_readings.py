"""The check `restates_query` over every reading of a passage: as it stands, without its dress, and together with its title.

Belongs here: which readings are compared, and that the gravest counts. What a restatement means is `restating`.
"""

import itertools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rag_eval.trust.plain_text import plain, readings
from rag_eval.trust.restating import restates

if TYPE_CHECKING:
    import pandas as pd

_HEAD_CHARACTERS = 2_000
"""Beginning of a text that is read on from its title, or twice the longest query: a restatement that begins in the title ends there."""
_ENDED = re.compile(r"[.!?:…。？！؟][\s*_\"'”’»)\]]*\Z")


def restated_pairs(
    queries: Sequence[str],
    texts: Sequence[str],
    *,
    titles: Sequence[str],
    doc_ids: Sequence[str],
    sources: Sequence[str],
    vouched: npt.NDArray[np.bool_] | None,
) -> "pd.DataFrame":
    """Find the chunks that restate a query in any reading.

    Parameters
    ----------
    queries, texts, titles, doc_ids, sources, vouched
        As `restates` takes them. A title is indexed with its text, and so a question may begin in the one and end in the other.

    Returns
    -------
    pandas.DataFrame
        `query`, `chunk`, `start`, `end`, `rule`, `severity`; one row for each pair, its gravest. `start` and `end` are characters of the
        text as it stands; of another reading the whole text, of a title or of title and text together -1.
    """
    import pandas as pd

    doubtful = (
        np.arange(len(texts))
        if vouched is None
        else np.flatnonzero(~np.asarray(vouched, dtype=bool))
    )
    said = [(chunk, texts[chunk], titles[chunk]) for chunk in doubtful.tolist()]
    dressed = [
        (chunk, *pair)
        for chunk, text, title in said
        for pair in list(itertools.zip_longest(readings(text), readings(title), fillvalue=""))[1:]
    ]
    of = np.array([chunk for chunk, *_ in said + dressed], dtype=np.int64)
    nobody = None if vouched is None else np.zeros(len(of), dtype=bool)
    owners = {
        "doc_ids": [doc_ids[chunk] for chunk in of.tolist()],
        "sources": [sources[chunk] for chunk in of.tolist()],
    }
    found = restates(
        queries,
        [text for _, text, _ in said + dressed],
        titles=[title for *_, title in said + dressed],
        vouched=nobody,
        **owners,
    ).pairs
    other = (found["chunk"] >= len(said)).to_numpy() & (found["start"] >= 0).to_numpy()
    found["chunk"] = of[found["chunk"].to_numpy(dtype=np.int64)]
    found.loc[other, "start"] = 0
    found.loc[other, "end"] = np.array([len(text) for text in texts], dtype=np.int64)[
        found["chunk"].to_numpy(dtype=np.int64)[other]
    ]
    together = _with_titles(queries, said, configured=vouched is not None)
    both = pd.concat(
        [part for part in (found, together) if len(part)] or [found], ignore_index=True
    )
    both = both.sort_values("severity", kind="stable")  # "blocked" comes before "warning"
    return both.drop_duplicates(["query", "chunk"]).sort_values(
        ["query", "chunk"], ignore_index=True
    )


def _with_titles(
    queries: Sequence[str], said: Sequence[tuple[int, str, str]], *, configured: bool
) -> "pd.DataFrame":
    """Restatements that begin in a title without an end mark and go on in the text; one wholly in either was seen there."""
    length = max([_HEAD_CHARACTERS, *(2 * len(query) for query in queries)])
    joined = [
        (chunk, name.strip(), text)
        for chunk, text, title in said
        if title
        for name, text in dict.fromkeys(
            (plain(title, gap), plain(text[:length], gap)) for gap in ("", " ")
        )
    ]
    joined = [
        (chunk, title, text) for chunk, title, text in joined if title and not _ENDED.search(title)
    ]
    # each stands for a source of its own: titles that say the same are counted where they are looked at as titles
    alone = [str(at) for at in range(len(joined))]
    nobody = np.zeros(len(joined), dtype=bool) if configured else None
    found = restates(
        queries,
        [f"{title} {text}" for _, title, text in joined],
        titles=[""] * len(joined),
        doc_ids=alone,
        sources=alone,
        vouched=nobody,
    ).pairs
    at = found["chunk"].to_numpy(dtype=np.int64)
    border = np.array([len(title) for _, title, _ in joined], dtype=np.int64)[at]
    across = (found["start"].to_numpy() < border) & (found["end"].to_numpy() > border)
    owner = np.array([chunk for chunk, *_ in joined], dtype=np.int64)[at[across]]
    met: pd.DataFrame = found[across].assign(chunk=owner, start=-1, end=-1)
    return met
