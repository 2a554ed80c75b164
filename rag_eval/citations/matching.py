"""Cited spans against gold spans, for all questions at once: correct citations, gold found, tokens of the anchors covered.

Belongs here: counts and rates per question over integer arrays. Documents are codes; whether a citation validates is decided before. Nothing here loops over
questions, citations or documents; the work grows with the pairs that share a question and a document.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rag_eval.citations.live_index import word_spans

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Spans:
    """Spans of documents that belong to questions.

    Parameters
    ----------
    query
        `[n]` question codes from 0.
    doc
        `[n]` document codes from 0; -1 where the document is unknown: such a span overlaps nothing.
    start, end
        `[n]` characters; a span without end > start >= 0 overlaps nothing.

    Raises
    ------
    ValueError
        The arrays differ in length, or a question code is negative.
    """

    query: Ints
    doc: Ints
    start: Ints
    end: Ints

    def __post_init__(self) -> None:
        """Make int64 arrays of equal length."""
        for name in ("query", "doc", "start", "end"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.int64))
        if (
            len({array.shape for array in (self.query, self.doc, self.start, self.end)}) != 1
            or self.query.ndim != 1
        ):
            raise ValueError(
                "query, doc, start, end: accepted are four arrays of one dimension and one length"
            )
        if self.query.size and self.query.min() < 0:
            raise ValueError(f"query: found {int(self.query.min())}, accepted codes from 0")

    def __len__(self) -> int:
        return len(self.query)

    @property
    def real(self) -> Flags:
        """Which spans hold any text of a known document."""
        return (self.doc >= 0) & (self.start >= 0) & (self.end > self.start)

    def taken(self, keep: Flags) -> "Spans":
        """Return the spans that are kept."""
        return Spans(self.query[keep], self.doc[keep], self.start[keep], self.end[keep])


@dataclasses.dataclass(frozen=True)
class CitationMatch:
    """Counts `[n_queries]`, and what each cited and each gold span came to.

    Parameters
    ----------
    cited_correct
        `[n cited]` valid, and overlapping a gold span of its question by half of the shorter one.
    gold_matched
        `[n gold]` overlapped in that way by a valid cited span.
    n_cited, n_valid, n_correct
        Citations made, those that validate, those that are correct.
    n_due
        Citations made, or 1 where the question was owed one and none was made.
    n_gold, n_gold_matched
        Gold spans, and those matched.
    """

    cited_correct: Flags
    gold_matched: Flags
    n_cited: Ints
    n_valid: Ints
    n_correct: Ints
    n_due: Ints
    n_gold: Ints
    n_gold_matched: Ints

    def _of_gold(self, part: Ints, whole: Ints) -> Floats:
        return np.where(self.n_gold > 0, _ratio(part, whole), np.nan)

    @property
    def precision(self) -> Floats:
        """Correct / cited; NaN where nothing is cited or the question has no gold span."""
        return self._of_gold(self.n_correct, self.n_cited)

    @property
    def recall(self) -> Floats:
        """Gold spans matched / gold spans; NaN where the question has none."""
        return _ratio(self.n_gold_matched, self.n_gold)

    @property
    def match_rate(self) -> Floats:
        """Correct / due; NaN where nothing was due or the question has no gold span."""
        return self._of_gold(self.n_correct, self.n_due)

    @property
    def validity_rate(self) -> Floats:
        """Valid / cited, gold or not; NaN where nothing is cited."""
        return _ratio(self.n_valid, self.n_cited)


def match_citations(
    cited: Spans, valid: npt.ArrayLike, gold: Spans, n_queries: int, owed: npt.ArrayLike
) -> CitationMatch:
    """Match cited spans with the gold spans of the same question and document.

    Parameters
    ----------
    cited
        Every citation made, the fabricated ones too.
    valid
        Bool `[len(cited)]`: its code is `ok`.
    gold
        Gold spans.
    n_queries
        Number of questions.
    owed
        Bool `[n_queries]`: the question should have brought at least one citation. True for every answerable question, whether its answer forgot to cite,
        refused or failed; false only where citing nothing is right (unanswerable questions) or no answer was asked for.

    Returns
    -------
    CitationMatch
        A citation that is fabricated, invalid or wrong counts in `n_cited` and `n_due` and never in `n_correct`; one that is missing counts once in `n_due`.

    Raises
    ------
    ValueError
        Lengths do not fit.
    """
    ok, due = np.asarray(valid, dtype=bool), np.asarray(owed, dtype=bool)
    if ok.shape != (len(cited),) or due.shape != (n_queries,):
        raise ValueError(
            f"valid has shape {ok.shape}, accepted ({len(cited)},); owed has shape {due.shape}, accepted ({n_queries},)"
        )
    of_cited, of_gold = np.flatnonzero(ok & cited.real), np.flatnonzero(gold.real)
    left, right = _pairs(cited.taken(ok & cited.real), gold.taken(gold.real))
    left, right = of_cited[left], of_gold[right]
    overlap = np.minimum(cited.end[left], gold.end[right]) - np.maximum(
        cited.start[left], gold.start[right]
    )
    shorter = np.minimum(cited.end[left] - cited.start[left], gold.end[right] - gold.start[right])
    enough = 2 * overlap >= shorter
    correct, matched = np.zeros(len(cited), dtype=bool), np.zeros(len(gold), dtype=bool)
    correct[left[enough]] = True
    matched[right[enough]] = True

    def count(query: Ints) -> Ints:
        if query.size and query.max() >= n_queries:
            raise ValueError(f"query: found {int(query.max())}, accepted codes below {n_queries}")
        return np.bincount(query, minlength=n_queries).astype(np.int64)

    n_cited = count(cited.query)
    return CitationMatch(
        cited_correct=correct,
        gold_matched=matched,
        n_cited=n_cited,
        n_valid=count(cited.query[ok]),
        n_correct=count(cited.query[correct]),
        n_due=np.maximum(n_cited, due.astype(np.int64)),
        n_gold=count(gold.query),
        n_gold_matched=count(gold.query[matched]),
    )


@dataclasses.dataclass(frozen=True)
class Words:
    """Where the words of documents stand: flat arrays, the words of document d at `first[d]:first[d + 1]`, in order."""

    start: Ints
    end: Ints
    first: Ints

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Words":
        """Find the words that the analyzer counts, of texts in the order of the document codes."""
        spans = [np.asarray(word_spans(text), dtype=np.int64).reshape(-1, 2) for text in texts]
        flat = np.concatenate([np.empty((0, 2), dtype=np.int64), *spans])
        return cls(
            flat[:, 0],
            flat[:, 1],
            np.concatenate([[0], np.cumsum([len(part) for part in spans], dtype=np.int64)]).astype(
                np.int64
            ),
        )

    def ranges(self, spans: Spans) -> tuple[Ints, Ints]:
        """Words `[low, high)`, in flat positions, that overlap each span by at least one character; documents must be known."""
        if spans.doc.size and spans.doc.max() >= len(self.first) - 1:
            raise ValueError(
                f"doc: found {int(spans.doc.max())}, accepted codes below {len(self.first) - 1}"
            )
        widest = 2 + max(int(self.end.max(initial=0)), int(spans.end.max(initial=0)))
        doc = np.repeat(np.arange(len(self.first) - 1, dtype=np.int64), np.diff(self.first))
        low = np.searchsorted(
            doc * widest + self.end, spans.doc * widest + spans.start, side="right"
        )
        high = np.searchsorted(
            doc * widest + self.start, spans.doc * widest + spans.end, side="left"
        )
        return low.astype(np.int64), np.maximum(low, high).astype(np.int64)


def coverage(
    cited: Spans, valid: npt.ArrayLike, gold: Spans, words: Words, n_queries: int
) -> Floats:
    """Tokens of the anchors that valid cited spans overlap / tokens of the anchors.

    Parameters
    ----------
    cited, valid, gold, n_queries
        As for `match_citations`.
    words
        Words of the documents.

    Returns
    -------
    array
        `[n_queries]` in [0, 1]; a token that is cited twice, or lies in two anchors of a question, counts once. 0 where nothing valid is cited; NaN where the
        question has no anchor with a token in it.
    """
    kept = cited.taken(np.asarray(valid, dtype=bool) & cited.real)
    anchors = gold.taken(gold.real)
    covered, anchored = _united(kept, words), _united(anchors, words)
    left, right = _pairs(covered, anchored)
    overlap = np.minimum(covered.end[left], anchored.end[right]) - np.maximum(
        covered.start[left], anchored.start[right]
    )
    shared = np.bincount(anchored.query[right], weights=np.maximum(overlap, 0), minlength=n_queries)
    return _ratio(
        shared,
        np.bincount(anchored.query, weights=anchored.end - anchored.start, minlength=n_queries),
    )


def _united(spans: Spans, words: Words) -> Spans:
    """Disjoint ranges of words, in flat positions, that the spans of each (question, document) cover together."""
    low, high = words.ranges(spans)
    some = high > low
    query, doc, low, high = spans.query[some], spans.doc[some], low[some], high[some]
    if not query.size:
        return Spans(query, doc, low, high)
    order = np.lexsort((low, doc, query))
    query, doc, low, high = query[order], doc[order], low[order], high[order]
    group = np.cumsum(np.concatenate([[0], (np.diff(query) != 0) | (np.diff(doc) != 0)]))
    width = int(high.max()) + 1
    reach = np.maximum.accumulate(
        group * width + high
    )  # furthest end so far; a later group starts beyond every earlier one
    opens = np.concatenate([[True], group[1:] * width + low[1:] > reach[:-1]])
    first = np.flatnonzero(opens)
    last = np.concatenate([first[1:], [len(low)]]) - 1
    return Spans(query[first], doc[first], low[first], reach[last] - group[last] * width)


def _pairs(left: Spans, right: Spans) -> tuple[Ints, Ints]:
    """Places of every pair of a left and a right span of one question and one document."""
    documents = 1 + max(int(left.doc.max(initial=0)), int(right.doc.max(initial=0)))
    wanted, keys = left.query * documents + left.doc, right.query * documents + right.doc
    order = np.argsort(keys, kind="stable")
    low, high = (np.searchsorted(keys[order], wanted, side=side) for side in ("left", "right"))
    counts = high - low
    first = np.repeat(np.arange(len(left), dtype=np.int64), counts)
    within = np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
    return first, order[low[first] + within].astype(np.int64)


def _ratio(part: npt.NDArray[np.int64] | Floats, whole: npt.NDArray[np.int64] | Floats) -> Floats:
    """Part / whole; NaN where the whole is 0."""
    result = np.full(whole.shape, np.nan)
    np.divide(part, whole, out=result, where=whole > 0)
    return result
