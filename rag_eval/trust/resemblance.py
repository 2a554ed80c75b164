"""Which documents of one source are nearly the same text, and which say the same in other words.

Belongs here: resemblance of whole documents within a source. What follows from it is decided in `floods`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from rag_eval.trust.token_stream import Ints, Streams, ragged

SHINGLE = 3
"""Words in a row that count as one piece of a text."""
LEAST_SHINGLES = 6
NEAR_DUPLICATE = 0.8
BANDS, ROWS = 16, 4
"""MinHash bands: two texts of resemblance 0.8 meet in one of them with probability 1 - (1 - 0.8 ** 4) ** 16 > 0.9999."""

SAME_MATTER = 0.3
"""Cosine, by which at most 0.3 % of abstracts and encyclopaedia paragraphs have three others of their corpus about the same matter."""
PASSAGE_WORDS = 100
"""Longer texts share the words of their field whatever they say."""
_LEAST_WORDS = 8
_SLICE = 5_000
_BLOCK = 500
_COMMON, _MANY = 0.1, 1_000
_SEED = 20


def near_duplicates(streams: Streams, sources: Ints) -> Ints:
    """Group the documents of each source whose sets of shingles resemble one another by `NEAR_DUPLICATE` or more (Jaccard).

    Parameters
    ----------
    streams
        `[n]` texts.
    sources
        `[n]` code of each one's source.

    Returns
    -------
    array
        `[n]` how many documents its group has, itself counted; 1 where it resembles none. Groups are chains of pairs.

    References
    ----------
    Broder (1997), On the resemblance and containment of documents. Linear: `BANDS` * `ROWS` hashes a word; a bucket's members are
    compared with its first one and the one before them, however many they are.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = len(sources)
    lengths = np.maximum(np.diff(streams.bounds) - (SHINGLE - 1), 0)
    text, at = ragged(streams.bounds[:-1], lengths)
    factors = np.random.default_rng(_SEED).integers(1, 2**63, SHINGLE, dtype=np.uint64) | np.uint64(
        1
    )
    pieces = np.zeros(len(at), dtype=np.uint64)
    for offset in range(SHINGLE):
        pieces += (streams.words[at + offset].astype(np.uint64) + np.uint64(1)) * factors[offset]
    pieces ^= pieces >> np.uint64(29)
    one, other = _meetings(pieces, lengths, sources)
    alike = _resemblance(pieces, text, one, other, n) >= NEAR_DUPLICATE
    one, other = one[alike], other[alike]
    _, label = (
        connected_components(
            coo_array((np.ones(len(one)), (one, other)), shape=(n, n)), directed=False
        )
        if n
        else (0, np.zeros(0, dtype=np.int64))
    )
    counts: Ints = np.bincount(label)[label] if n else np.zeros(0, dtype=np.int64)
    return counts


def _meetings(pieces: npt.NDArray[np.uint64], lengths: Ints, sources: Ints) -> tuple[Ints, Ints]:
    """Pairs of texts of one source whose least hashes agree in a band; each text with the first of its bucket and the one before it."""
    texts = np.flatnonzero(lengths >= LEAST_SHINGLES)
    flat = pieces[np.repeat(lengths >= LEAST_SHINGLES, lengths)]
    starts = np.cumsum(lengths[texts]) - lengths[texts]
    factors = np.random.default_rng(_SEED + 1).integers(
        1, 2**63, (BANDS, ROWS, 2), dtype=np.uint64
    ) | np.uint64(1)
    found = [np.zeros(0, dtype=np.int64)]
    for band in range(BANDS if len(texts) > 1 else 0):
        key = sources[texts].astype(np.uint64)
        for factor, offset in factors[band]:
            key = (
                key ^ np.minimum.reduceat((flat * factor + offset) >> np.uint64(11), starts)
            ) * factor
            key ^= key >> np.uint64(31)
        order = np.argsort(key, kind="stable")
        opens = np.concatenate([[True], key[order[1:]] != key[order[:-1]]])
        head = np.maximum.accumulate(np.where(opens, np.arange(len(order)), 0))
        again = np.flatnonzero(~opens)
        found += [
            texts[order[partner]] * len(sources) + texts[order[again]]
            for partner in (head[again], again - 1)
        ]
    pairs = np.unique(np.concatenate(found))
    one, other = pairs // max(len(sources), 1), pairs % max(len(sources), 1)
    same = sources[one] == sources[other]  # a key may collide
    return one[same], other[same]


def _resemblance(
    pieces: npt.NDArray[np.uint64], text: Ints, one: Ints, other: Ints, n: int
) -> npt.NDArray[np.float64]:
    """Jaccard resemblance of pairs of texts, from all their pieces."""
    from scipy.sparse import csr_array

    if not len(one):
        return np.zeros(0)
    known, column = np.unique(pieces, return_inverse=True)
    held = csr_array((np.ones(len(text), dtype=np.int32), (text, column)), shape=(n, len(known)))
    held.data[:] = 1
    size = np.diff(held.indptr)
    steps = range(0, len(one), _BLOCK)
    shared = np.concatenate(
        [
            held[one[low : low + _BLOCK]]
            .multiply(held[other[low : low + _BLOCK]])
            .sum(axis=1)
            .ravel()
            for low in steps
        ]
    )
    resemblance: npt.NDArray[np.float64] = shared / (size[one] + size[other] - shared)
    return resemblance


def say_the_same(
    streams: Streams, sources: Ints, chosen: npt.NDArray[np.bool_], n_terms: int
) -> Ints:
    """Count the passages of a document's own source that are about the same matter, as far as their words tell.

    Parameters
    ----------
    streams, sources
        As for `near_duplicates`; all documents, for they say how rare a term is.
    chosen
        bool `[n]`: which documents are compared, those of 8 to `PASSAGE_WORDS` words among them.
    n_terms
        Size of the vocabulary.

    Returns
    -------
    array
        `[n]` other passages of the source with a cosine of `SAME_MATTER` or more; 0 for what was not compared.

    Notes
    -----
    Terms weigh by their idf, however often a passage has them. Within a source the cost is the sum of squared document frequencies of
    its rarer terms; a source is compared in slices of 5,000 passages in the order of the corpus, so that the whole stays linear. Passages of
    one flood that lie in different slices are not compared.
    """
    from scipy.sparse import csr_array

    n = len(sources)
    row = np.repeat(np.arange(n), np.diff(streams.term_bounds))
    keys = np.unique(row * n_terms + streams.terms)
    held = csr_array((np.ones(len(keys)), (keys // n_terms, keys % n_terms)), shape=(n, n_terms))
    idf = np.log((1 + n) / (1 + np.bincount(keys % n_terms, minlength=n_terms))) + 1
    held.data = idf[held.indices]
    norms = np.sqrt(np.bincount(keys // n_terms, weights=held.data**2, minlength=n))
    held.data /= np.repeat(np.maximum(norms, 1e-12), np.diff(held.indptr))
    words = np.diff(streams.bounds)
    passages = np.flatnonzero(chosen & (words >= _LEAST_WORDS) & (words <= PASSAGE_WORDS))
    passages = passages[np.argsort(sources[passages], kind="stable")]
    counts = np.zeros(n, dtype=np.int64)
    edges = np.flatnonzero(np.diff(sources[passages])) + 1
    for its in np.split(passages, edges):
        for low in range(0, len(its), _SLICE):
            counts[its[low : low + _SLICE]] = _neighbours(held[its[low : low + _SLICE]])
    return counts


def _neighbours(held: Any) -> Ints:
    n = held.shape[0]
    frequency = np.bincount(held.indices, minlength=held.shape[1])
    rare = held.copy()
    rare.data[frequency[held.indices] > max(_COMMON * n, _MANY)] = (
        0  # what so many have, tells nothing and costs most
    )
    rare.eliminate_zeros()
    other = rare.T.tocsr()
    counts = np.zeros(n, dtype=np.int64)
    for low in range(0, n, _BLOCK):
        near = rare[low : low + _BLOCK] @ other
        row = np.repeat(np.arange(near.shape[0]), np.diff(near.indptr))
        alike = (near.data >= SAME_MATTER) & (near.indices != row + low)
        counts[low : low + _BLOCK] = np.bincount(row[alike], minlength=near.shape[0])
    return counts
