"""Find floods: many documents of one source that are near copies, begin alike or are similar.

The check `flood` runs when the index is made. It blocks sources that neither the allowlist nor a
signature vouches for.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, IntArray, expand_ranges
from rag_eval.core.config import FINDINGS
from rag_eval.core.frames import make_frame
from rag_eval.corpus.analyzer import WORD, Analyzer, count_matrix, word_spans
from rag_eval.corpus.markdown import front_matter
from rag_eval.trust.sentences import asks, place

_BLOCK = 500
"""Rows of a matrix that are multiplied together, to bound the memory."""

# ---- Near duplicates

_SHINGLE, _LEAST_SHINGLES = 3, 6
"""Number of words of a shingle, and least number of shingles of a compared text."""
_NEAR_DUPLICATE = 0.8
_PARTNERS = 4
"""Number of previous texts with the same hash that a text is compared with."""


def _count_near_duplicates(texts: Sequence[str], sources: IntArray) -> IntArray:
    """Count the documents in the group of each document [n], itself included.

    Chains of near copies in one source form a group. The sets of shingles of near copies have a
    Jaccard resemblance of `_NEAR_DUPLICATE` or more (Broder 1997, On the resemblance and
    containment of documents). The hashes of shingles are in random order, and two near copies share
    one of the first fifth of their hashes (prefix filtering; Chaudhuri, Ganti & Kaushik, ICDE
    2006). Time is linear, because each text with a hash is compared with the first text and a few
    previous texts only.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from sklearn.feature_extraction.text import HashingVectorizer

    n = len(texts)
    vectorizer = HashingVectorizer(
        token_pattern=WORD.pattern,
        ngram_range=(_SHINGLE, _SHINGLE),
        n_features=2**31 - 1,
        norm=None,
        alternate_sign=False,
        binary=True,
        dtype=np.float32,
    )
    held = vectorizer.transform(texts)
    held.sort_indices()
    size = np.diff(held.indptr).astype(np.int64)
    prefix = size - np.ceil(_NEAR_DUPLICATE * size).astype(np.int64) + 1
    row, at = expand_ranges(
        held.indptr[:-1].astype(np.int64), np.where(size >= _LEAST_SHINGLES, prefix, 0)
    )
    table = pd.DataFrame({"source": sources[row], "shingle": held.indices[at], "row": row})
    rows = table.groupby(["source", "shingle"])["row"]
    partners = [rows.transform("first"), *(rows.shift(n) for n in range(1, _PARTNERS + 1))]
    pairs = pd.concat([table.assign(partner=partner) for partner in partners])
    pairs = pairs.loc[pairs["partner"] < pairs["row"], ["partner", "row"]].drop_duplicates()
    one, other = pairs.to_numpy(dtype=np.int64).T
    shared = np.zeros(len(one))
    for low in range(0, len(one), _BLOCK):
        part = slice(low, low + _BLOCK)
        shared[part] = held[one[part]].multiply(held[other[part]]).sum(axis=1).ravel()
    alike = shared >= _NEAR_DUPLICATE * (size[one] + size[other] - shared)
    graph = coo_array((np.ones(alike.sum()), (one[alike], other[alike])), shape=(n, n))
    label = connected_components(graph, directed=False)[1]
    counts: IntArray = np.bincount(label)[label]
    return counts


# ---- Passages about the same matter

_SAME_MATTER = 0.3
"""Least cosine of similar passages. At most 0.3 % of clean paragraphs have three of them."""
_LEAST_WORDS, _PASSAGE_WORDS = 8, 100
"""Least and most words of a compared passage, because longer texts share the words of their
field."""
_SLICE = 5_000
_COMMON, _MANY = 0.1, 1_000


def _say_the_same(texts: Sequence[str], sources: IntArray, chosen: BoolArray) -> IntArray:
    """Count the similar passages of the same source for each document [n].

    Similar means a cosine of `_SAME_MATTER` or more. Terms weigh by their idf over all documents.
    Only `chosen` documents of 8 to `_PASSAGE_WORDS` words are compared; other documents count 0.
    Time is linear, because only passages in one slice of 5,000 passages are compared.
    """
    from scipy.sparse import csr_array
    from sklearn.feature_extraction.text import TfidfTransformer

    counts = np.zeros(len(texts), dtype=np.int64)
    words = np.array([sum(1 for _ in WORD.finditer(text)) for text in texts], dtype=np.int64)
    passages = np.flatnonzero(chosen & (words >= _LEAST_WORDS) & (words <= _PASSAGE_WORDS))
    if not len(passages):
        return counts
    analyzer = Analyzer()
    rows = analyzer.index(texts)
    shape = (len(texts), len(analyzer.vocabulary))
    held = csr_array(count_matrix(rows, shape[1]), shape=shape)
    held.data[:] = 1.0
    weighed = csr_array(TfidfTransformer().fit_transform(held))
    passages = passages[np.argsort(sources[passages], kind="stable")]
    for members in np.split(passages, np.flatnonzero(np.diff(sources[passages])) + 1):
        for low in range(0, len(members), _SLICE):
            part = members[low : low + _SLICE]
            counts[part] = _count_neighbours(weighed[part])
    return counts


def _count_neighbours(held: Any) -> IntArray:
    n = held.shape[0]
    frequency = np.bincount(held.indices, minlength=held.shape[1])
    rare = held.copy()
    # Ignore common terms, because they distinguish little and take most of the time.
    rare.data[frequency[held.indices] > max(_COMMON * n, _MANY)] = 0
    rare.eliminate_zeros()
    other = rare.T.tocsr()
    counts = np.zeros(n, dtype=np.int64)
    for low in range(0, n, _BLOCK):
        near = rare[low : low + _BLOCK] @ other
        row = np.repeat(np.arange(near.shape[0]), np.diff(near.indptr))
        alike = (near.data >= _SAME_MATTER) & (near.indices != row + low)
        counts[low : low + _BLOCK] = np.bincount(row[alike], minlength=near.shape[0])
    return counts


# ---- Shared leads: equal first words with different continuations

_HEAD = 1_000
"""Characters at the beginning of a document in which the first sentence is searched."""
_QUESTION_WORDS, _TYPED_WORDS, _STATEMENT_WORDS, _MOST_WORDS = 5, 7, 8, 40
_CONTINUATION = 8
_END = re.compile(r"[.!?。？؟](?=\s|\Z)|\n|\Z")
_LABEL = re.compile(r"\s{0,9}(?:q|question)\s?\d{0,3}\s?[:.)]", re.IGNORECASE)


class _Lead(NamedTuple):
    """The first words of a document.

    `kind` is shared_question, shared_heading (a question as a heading) or shared_statement.
    """

    row: int
    start: int
    end: int
    kind: str


def _find_shared_leads(texts: Sequence[str], sources: Sequence[str]) -> Iterator[list[_Lead]]:
    """Find first sentences that `_SAME_LEADS` documents of a source share and continue differently.

    Questions count with five words or more, statements with eight. A question without a mark may
    run into the next words ("who wrote it It was ..."). The first seven words of such a question
    also count. Each document counts in its first group.
    """
    groups: dict[tuple[str, str], list[tuple[_Lead, str]]] = {}
    for row, (text, source) in enumerate(zip(texts, sources, strict=True)):
        for words, lead, continuation in _find_leads(row, text):
            groups.setdefault((source, words), []).append((lead, continuation))
    seen = set[int]()
    for members in groups.values():
        if len({continuation for _, continuation in members}) >= _SAME_LEADS:
            yield [lead for lead, _ in members if lead.row not in seen]
            seen.update(lead.row for lead, _ in members)


def _find_leads(row: int, text: str) -> Iterator[tuple[str, _Lead, str]]:
    """Yield the words of a lead, the lead, and the words after it."""
    begin = front_matter(text)[1] if text.startswith(("---", "+++")) else 0
    label = _LABEL.match(text, begin)
    begin = label.end() if label else begin
    head = text[begin : begin + _HEAD]
    spans = word_spans(head)
    if not spans:
        return
    stop = next(match.start() for match in _END.finditer(head, spans[0][1]))
    length = sum(high <= stop for _, high in spans)
    words = [head[low:high].lower() for low, high in spans]
    asking = asks(words[:length], head[: stop + 1])
    sizes = []
    if (_QUESTION_WORDS if asking else _STATEMENT_WORDS) <= length <= _MOST_WORDS:
        sizes.append(length)
    marked = head[stop : stop + 1] in {"?", "？", "؟"}
    if asking == "wording" and length > _TYPED_WORDS and not marked:
        sizes.append(_TYPED_WORDS)
    for size in sizes:
        start, end = begin + spans[0][0], begin + spans[size - 1][1]
        kind = "shared_statement"
        if asking:
            running = place(text, start, end).form == "running"
            kind = "shared_question" if running else "shared_heading"
        after = " ".join(words[size : size + _CONTINUATION])
        yield " ".join(words[:size]), _Lead(row, start, end, kind), after


# ---- Floods

_COPIES, _SAME_LEADS, _PARAPHRASES = 4, 3, 4
"""Least number of documents of a flood of each kind."""
_TRUSTED, _UNKNOWN, _DOUBTFUL = range(3)
_SEVERITY = {
    "near_duplicate": ("hint", "hint", "blocked"),
    "shared_question": ("", "warning", "blocked"),
    "shared_heading": ("", "hint", "blocked"),
    "shared_statement": ("", "hint", "warning"),
    "shared_claim": ("", "hint", "blocked"),
    "paraphrase": ("", "hint", "blocked"),
}
"""Rule -> severities for trusted, unknown (nothing is configured to trust) and doubtful sources."""


def floods(
    texts: Sequence[str], sources: Sequence[str], *, vouched: BoolArray | None = None
) -> pd.DataFrame:
    """Find floods among documents [n].

    `sources` are the domains of the documents, empty if unknown. `vouched` marks the documents that
    the allowlist or a signature vouches for; None means that nothing is configured to trust.
    Returns FINDINGS, at most one for a document and rule.
    """
    standing = np.full(len(texts), _UNKNOWN)
    if vouched is not None:
        standing = np.where(np.asarray(vouched, dtype=bool), _TRUSTED, _DOUBTFUL)
    codes = pd.factorize(np.asarray(sources, dtype=object))[0].astype(np.int64)
    copies = _count_near_duplicates(texts, codes)
    alike = _say_the_same(texts, codes, (standing != _TRUSTED) & (copies < _COPIES))
    paraphrases = alike >= _PARAPHRASES - 1
    rows: list[tuple[int | str, ...]] = []

    def add(row: int, kind: str, detail: str, start: int = -1, end: int = -1) -> None:
        rule = "shared_lead" if kind.startswith("shared_") else kind
        if severity := _SEVERITY[kind][standing[row]]:
            rows.append((row, start, end, "flood", rule, severity, detail))

    for row in np.flatnonzero(copies >= _COPIES).tolist():
        detail = f"one of {copies[row]} nearly equal documents of its source"
        add(row, "near_duplicate", detail)
    for row in np.flatnonzero(paraphrases).tolist():
        detail = f"about the same matter as {alike[row]} other passages of its source"
        add(row, "paraphrase", detail)
    for group in _find_shared_leads(texts, sources):
        votes = [bool(paraphrases[lead.row]) for lead in group]
        for lead in group:
            # A statement that paraphrases share is a planted claim.
            claim = lead.kind == "shared_statement" and 2 * sum(votes) >= len(votes)
            sentence = "sentence" if lead.kind == "shared_statement" else "question"
            detail = f"begins with the same {sentence} as others of its source"
            kind = "shared_claim" if claim else lead.kind
            add(lead.row, kind, detail, lead.start, lead.end)
    return make_frame(FINDINGS, sorted(rows))
