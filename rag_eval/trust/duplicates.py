"""Find floods: many documents of one source that are near copies, begin alike or are similar.

The check `flood` runs when the index is made. It blocks sources that neither the allowlist nor a
signature vouches for.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray, expand_ranges
from rag_eval.core.config import FINDINGS
from rag_eval.core.frames import make_frame
from rag_eval.corpus.chunking import front_matter
from rag_eval.trust.sentences import asks, place
from rag_eval.trust.wording import Streams, Vocabulary, word_spans

_Hashes = npt.NDArray[np.uint64]
_SEED = 20
_BLOCK = 500

# ---- Near duplicates

SHINGLE, LEAST_SHINGLES = 3, 6
"""Number of words of a shingle, and least number of shingles of a compared text."""
NEAR_DUPLICATE = 0.8
BANDS, ROWS = 16, 4
"""Bands of minimum hashes, and hashes of a band. Two texts of resemblance 0.8 agree in a band with
probability 1 - (1 - 0.8**4)**16 > 0.999."""


def _draw_factors(seed: int, shape: tuple[int, ...]) -> _Hashes:
    numbers = np.random.default_rng(seed).integers(1, 2**63, shape, dtype=np.uint64)
    return numbers | np.uint64(1)


def _count_near_duplicates(streams: Streams, sources: IntArray) -> IntArray:
    """Count the documents in the group of each document [n], itself included.

    Chains of near copies in one source form a group. The sets of shingles of near copies have a
    Jaccard resemblance of `NEAR_DUPLICATE` or more (Broder 1997, On the resemblance and containment
    of documents). Time is linear, because each member of a bucket is compared with the first and
    the previous member only.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = len(sources)
    if not n:
        return np.zeros(0, dtype=np.int64)
    lengths = np.maximum(np.diff(streams.bounds) - (SHINGLE - 1), 0)
    text, at = expand_ranges(streams.bounds[:-1], lengths)
    pieces = np.zeros(len(at), dtype=np.uint64)
    for offset, factor in enumerate(_draw_factors(_SEED, (SHINGLE,))):
        pieces += (streams.words[at + offset].astype(np.uint64) + np.uint64(1)) * factor
    pieces ^= pieces >> np.uint64(29)
    one, other = _find_meetings(pieces, lengths, sources)
    alike = _compare(pieces, text, one, other, n) >= NEAR_DUPLICATE
    pairs = coo_array((np.ones(alike.sum()), (one[alike], other[alike])), shape=(n, n))
    label = connected_components(pairs, directed=False)[1]
    counts: IntArray = np.bincount(label)[label]
    return counts


def _find_meetings(
    pieces: _Hashes, lengths: IntArray, sources: IntArray
) -> tuple[IntArray, IntArray]:
    """Return pairs of texts of one source whose minimum hashes agree in a band."""
    long = lengths >= LEAST_SHINGLES
    texts = np.flatnonzero(long)
    flat = pieces[np.repeat(long, lengths)]
    starts = np.cumsum(lengths[texts]) - lengths[texts]
    found = [np.zeros(0, dtype=np.int64)]
    for band in _draw_factors(_SEED + 1, (BANDS, ROWS, 2)) if len(texts) > 1 else ():
        key = sources[texts].astype(np.uint64)
        for factor, offset in band:
            least = np.minimum.reduceat((flat * factor + offset) >> np.uint64(11), starts)
            key = (key ^ least) * factor
            key ^= key >> np.uint64(31)
        order = np.argsort(key, kind="stable")
        opens = np.concatenate([[True], key[order[1:]] != key[order[:-1]]])
        head = np.maximum.accumulate(np.where(opens, np.arange(len(order)), 0))
        again = np.flatnonzero(~opens)
        partners = (head[again], again - 1)
        found += [texts[order[one]] * len(sources) + texts[order[again]] for one in partners]
    one, other = np.divmod(np.unique(np.concatenate(found)), len(sources))
    same = sources[one] == sources[other]  # compare the hashes, because keys can collide
    return one[same], other[same]


def _compare(pieces: _Hashes, text: IntArray, one: IntArray, other: IntArray, n: int) -> FloatArray:
    """Return the Jaccard resemblance of pairs of texts, from all their pieces."""
    from scipy.sparse import csr_array

    known, column = np.unique(pieces, return_inverse=True)
    held = csr_array((np.ones(len(text), dtype=np.int32), (text, column)), shape=(n, len(known)))
    held.data[:] = 1
    size = np.diff(held.indptr)
    shared = np.zeros(len(one))
    for low in range(0, len(one), _BLOCK):
        rows = slice(low, low + _BLOCK)
        shared[rows] = held[one[rows]].multiply(held[other[rows]]).sum(axis=1).ravel()
    resemblance: FloatArray = shared / (size[one] + size[other] - shared)
    return resemblance


# ---- Passages about the same matter

SAME_MATTER = 0.3
"""Least cosine of similar passages. At most 0.3 % of clean paragraphs have three of them."""
PASSAGE_WORDS = 100
"""Most words of a compared passage, because longer texts share the words of their field."""
_LEAST_WORDS = 8
_SLICE = 5_000
_COMMON, _MANY = 0.1, 1_000


def _say_the_same(streams: Streams, sources: IntArray, chosen: BoolArray, n_terms: int) -> IntArray:
    """Count the similar passages of the same source for each document [n].

    Similar means a cosine of `SAME_MATTER` or more. Terms weigh by their idf over all documents.
    Only `chosen` documents of 8 to `PASSAGE_WORDS` words are compared; other documents count 0.
    Time is linear, because only passages in one slice of 5,000 passages are compared.
    """
    from scipy.sparse import csr_array

    n = len(sources)
    row = np.repeat(np.arange(n), np.diff(streams.term_bounds))
    row, term = np.divmod(np.unique(row * n_terms + streams.terms), max(n_terms, 1))
    held = csr_array((np.ones(len(row)), (row, term)), shape=(n, n_terms))
    idf = np.log((1 + n) / (1 + np.bincount(term, minlength=n_terms))) + 1
    held.data = idf[held.indices]
    norms = np.sqrt(np.bincount(row, weights=held.data**2, minlength=n))
    held.data /= np.repeat(np.maximum(norms, 1e-12), np.diff(held.indptr))
    words = np.diff(streams.bounds)
    passages = np.flatnonzero(chosen & (words >= _LEAST_WORDS) & (words <= PASSAGE_WORDS))
    passages = passages[np.argsort(sources[passages], kind="stable")]
    counts = np.zeros(n, dtype=np.int64)
    for members in np.split(passages, np.flatnonzero(np.diff(sources[passages])) + 1):
        for low in range(0, len(members), _SLICE):
            part = members[low : low + _SLICE]
            counts[part] = _count_neighbours(held[part])
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
        alike = (near.data >= SAME_MATTER) & (near.indices != row + low)
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
    """The first words of a document, and the number of documents with these words."""

    row: int
    start: int
    end: int
    kind: str
    """shared_question, shared_heading (a question as a heading) or shared_statement."""
    documents: int
    group: int


def _find_shared_leads(texts: Sequence[str], sources: Sequence[str], least: int) -> list[_Lead]:
    """Find first sentences that `least` documents of a source share with different continuations.

    Questions count with five words or more, statements with eight. A question without a mark may
    run into the next words ("who wrote it It was ..."). The first seven words of such a question
    also count.
    """
    groups: dict[tuple[str, str], list[tuple[_Lead, str]]] = {}
    for row, (text, source) in enumerate(zip(texts, sources, strict=True)):
        for words, lead, continuation in _find_leads(row, text):
            groups.setdefault((source, words), []).append((lead, continuation))
    found: dict[int, _Lead] = {}
    for group, members in enumerate(groups.values()):
        documents = len({continuation for _, continuation in members})
        if documents >= least:
            for lead, _ in members:
                found.setdefault(lead.row, lead._replace(documents=documents, group=group))
    return [found[row] for row in sorted(found)]


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
        yield " ".join(words[:size]), _Lead(row, start, end, kind, 0, -1), after


# ---- Floods

NEAR_DUPLICATES, SAME_LEADS, PARAPHRASES = 4, 3, 4
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
    codes = np.asarray(pd.factorize(np.asarray(sources, dtype=object))[0], dtype=np.int64)
    vocabulary = Vocabulary()
    streams = vocabulary.read(texts)
    copies = _count_near_duplicates(streams, codes)
    chosen = (standing != _TRUSTED) & (copies < NEAR_DUPLICATES)
    alike = _say_the_same(streams, codes, chosen, vocabulary.n_terms)
    paraphrases = alike >= PARAPHRASES - 1
    rows: list[tuple[int | str, ...]] = []

    def add(row: int, kind: str, detail: str, start: int = -1, end: int = -1) -> None:
        rule = "shared_lead" if kind.startswith("shared_") else kind
        if severity := _SEVERITY[kind][standing[row]]:
            rows.append((row, start, end, "flood", rule, severity, detail))

    for row in np.flatnonzero(copies >= NEAR_DUPLICATES).tolist():
        detail = f"one of {copies[row]} nearly equal documents of its source"
        add(row, "near_duplicate", detail)
    for row in np.flatnonzero(paraphrases).tolist():
        detail = f"about the same matter as {alike[row]} other passages of its source"
        add(row, "paraphrase", detail)
    leads = _find_shared_leads(texts, sources, SAME_LEADS)
    votes: dict[int, list[bool]] = {}
    for lead in leads:
        votes.setdefault(lead.group, []).append(bool(paraphrases[lead.row]))
    for row, start, end, kind, documents, group in leads:
        # A statement that paraphrases share is a planted claim.
        claim = kind == "shared_statement" and 2 * sum(votes[group]) >= len(votes[group])
        sentence = "sentence" if kind == "shared_statement" else "question"
        detail = (
            f"begins with the same {sentence} as others of its source,"
            f" {documents} go on differently"
        )
        add(row, "shared_claim" if claim else kind, detail, start, end)
    return make_frame(FINDINGS, sorted(rows))
