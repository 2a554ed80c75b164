"""Passages that restate a query in order to be retrieved for it; the check `restates_query`, at retrieval time.

Belongs here: what a restatement means. Where and how one stands in a chunk is found in `sightings`.

A restatement is the query's words in their order (four words or more), or a window of terms that resembles the query's by a Jaccard
coefficient of 0.8 or more (five terms or more), holds its question word, has four fifths of its terms in their order, and begins a
sentence or ends with a question mark: "the bridge is located" answers "where is the bridge located" and does not restate it. Sources that
are vouched for are not looked at. For the others:

==============================================  ================================  ===================================================
how the query is restated                       with an allowlist                 without one (nobody can be vouched for)
==============================================  ================================  ===================================================
in running text, the query asks something       blocked (`running_text`)          warning; blocked (`typed_query`) where the text begins
                                                                                  with its six or more very words, without the question
                                                                                  mark that a person's sentence would have
as a heading, FAQ label or title                warning (`heading`)               nothing
its very words first, the query asks nothing    warning (`first_words`)           warning
otherwise, where the query asks nothing         nothing: a text may say so        nothing
any of these in 3 documents of one source       blocked (`repeated`)              blocked; headings of unknown sources: warning
==============================================  ================================  ===================================================

A line of its own counts as a heading also without a mark, and so does a question with its mark in a text that asks and answers three or
more (a FAQ page that lost its line ends): strictness there would buy nothing, an attacker can write the heading's mark. What a planted
heading gains by it is bounded by `repeated`, for which queries that ask nothing count with six words or more, as headings too. Scripts
without spaces between words have no words to compare and are not checked.

Cost: linear in the words of the chunks that nobody vouches for, once for each distinct length of query (`wording`); and for tolerance the
postings of each query's rarest terms (`near_wording`). Memory is bounded by reading the chunks in blocks.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rag_eval.trust.sightings import FIRST_WORDS, HEADING, NAME, RUNNING, Sighting, sightings
from rag_eval.trust.token_stream import ragged

if TYPE_CHECKING:
    import pandas as pd

DOCUMENTS = 3
"""So many documents of one source that restate the same query were made for it."""


class Restated(NamedTuple):
    """Pairs of queries and chunks in which the chunk restates the query.

    `blocked` and `warned` are sparse bool [n_queries, n_chunks] (scipy csr_array), never both. `pairs` has a row for each of them: `query`,
    `chunk`, `start`, `end` (characters in the chunk's text, -1 for its title), `rule`, `severity`.
    """

    blocked: Any
    warned: Any
    pairs: "pd.DataFrame"


def restates(
    queries: Sequence[str],
    texts: Sequence[str],
    *,
    titles: Sequence[str],
    doc_ids: Sequence[str],
    sources: Sequence[str],
    vouched: npt.NDArray[np.bool_] | None,
) -> Restated:
    """Find the chunks that restate a query.

    Parameters
    ----------
    queries
        Any texts; those of fewer than four words restate nothing.
    texts, titles, doc_ids, sources
        `[n_chunks]` each: what the chunk says, its document's title (empty where it has none), its document and the domain that this comes
        from (empty where unknown).
    vouched
        bool `[n_chunks]`: the source is on the allowlist or the signature is valid. None where nothing says whom to trust.

    Returns
    -------
    Restated
        By the table at the head of this module.

    Raises
    ------
    ValueError
        Lists of different lengths.

    Examples
    --------
    >>> found = restates(["how deep is lake blue"], ["how deep is lake blue. It is 9 km deep."], titles=[""], doc_ids=["d"], sources=["x"], vouched=np.array([False]))
    >>> found.blocked.toarray().tolist(), found.pairs["rule"].tolist()
    ([[True]], ['running_text'])
    """
    lengths = {
        len(texts),
        len(titles),
        len(doc_ids),
        len(sources),
        len(texts) if vouched is None else len(vouched),
    }
    if len(lengths) != 1:
        raise ValueError(
            f"texts, titles, doc_ids, sources and vouched have different lengths: {sorted(lengths)}"
        )
    distinct = list(dict.fromkeys(queries))
    doubtful = (
        np.arange(len(texts))
        if vouched is None
        else np.flatnonzero(~np.asarray(vouched, dtype=bool))
    )
    found = list(sightings(distinct, texts, titles, doubtful.tolist()))
    repeated = _repeated(found, doc_ids, sources)
    rules = [
        _rule(it, sources[it.chunk], configured=vouched is not None, repeated=again)
        for it, again in zip(found, repeated, strict=True)
    ]
    return _spread(found, rules, queries, distinct, len(texts))


def _repeated(
    found: Sequence[Sighting], doc_ids: Sequence[str], sources: Sequence[str]
) -> list[bool]:
    """Whether the source of each sighting restates its query in `DOCUMENTS` documents or more."""
    holders: dict[tuple[int, str], set[str]] = {}
    for it in found:
        holders.setdefault((it.query, sources[it.chunk]), set()).add(doc_ids[it.chunk])
    return [len(holders[it.query, sources[it.chunk]]) >= DOCUMENTS for it in found]


def _rule(it: Sighting, source: str, *, configured: bool, repeated: bool) -> tuple[str, str]:
    """Rule and severity; empty where the table says nothing."""
    if repeated:
        return "repeated", "blocked" if configured or source or it.grade > HEADING else "warning"
    if it.grade == NAME:
        return "", ""
    if it.grade == RUNNING:
        return (
            ("typed_query", "blocked")
            if it.typed and not configured
            else ("running_text", "blocked" if configured else "warning")
        )
    if it.grade == FIRST_WORDS:
        return "first_words", "warning"
    return ("heading", "warning") if configured else ("", "")


def _spread(
    found: Sequence[Sighting],
    rules: Sequence[tuple[str, str]],
    queries: Sequence[str],
    distinct: Sequence[str],
    n_chunks: int,
) -> Restated:
    """Pairs of distinct queries -> pairs of all queries, as a frame and as two matrices."""
    import pandas as pd
    from scipy.sparse import csr_array

    row_of = {query: row for row, query in enumerate(distinct)}
    asked = np.array([row_of[query] for query in queries], dtype=np.int64)
    order = np.argsort(asked, kind="stable")
    counts = np.bincount(asked, minlength=len(distinct))
    told = [(it, rule) for it, rule in zip(found, rules, strict=True) if rule[0]]
    which = np.array([it.query for it, _ in told], dtype=np.int64)
    entry, place_of = ragged((np.cumsum(counts) - counts)[which], counts[which])
    names = ("query", "chunk", "start", "end")
    numbers = np.array(
        [(it.query, it.chunk, it.start, it.end) for it, _ in told], dtype=np.int64
    ).reshape(len(told), len(names))[entry]
    pairs = pd.DataFrame(numbers, columns=list(names))
    pairs["query"] = order[place_of]
    for column, name in enumerate(("rule", "severity")):
        pairs[name] = pd.Series([told[at][1][column] for at in entry.tolist()], dtype="str")
    pairs = pairs.sort_values(["query", "chunk"], ignore_index=True)
    shape = (len(queries), n_chunks)

    def of(severity: str) -> Any:
        chosen = pairs[pairs["severity"] == severity]
        return csr_array(
            (
                np.ones(len(chosen), dtype=bool),
                (chosen["query"].to_numpy(), chosen["chunk"].to_numpy()),
            ),
            shape=shape,
        )

    return Restated(of("blocked"), of("warning"), pairs)
