"""Find sentences unlike their document.

The check guesses from words and form, so every finding is a warning. It finds a plain question or
task in a document about something else, but no planted statement in a text about related things.
"""

import dataclasses
import functools
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, Float32Array, FloatArray, IntArray
from rag_eval.core.config import FINDINGS
from rag_eval.core.frames import make_frame
from rag_eval.corpus.analyzer import Analyzer, count_matrix
from rag_eval.trust.sentences import CLOSED_CLASS, SentenceForm, form_of, sentences_of

# ---- Terms of documents and sentences in one vocabulary, and a latent space

_FITTED, _DIMENSIONS, _SEED, _ITERATIONS = 2_048, 100, 0, 3
_TINY = 1e-9


@dataclasses.dataclass(frozen=True)
class Space:
    """Terms of documents [n] and of their sentences [m]."""

    documents: Any
    """CSR matrix [n, terms] of counts, without closed-class words."""
    sentences: Any
    """CSR matrix [m, terms] of counts, without closed-class words."""
    document_of: IntArray
    """Document of each sentence [m], rising."""
    starts: IntArray
    ends: IntArray
    forms: FloatArray
    """Whether each sentence asks, orders, addresses its reader, introduces code [m, 4], 0 or 1."""
    idf: FloatArray
    """ln((1 + n) / (1 + document frequency)) + 1 of each term [terms]."""
    projection: Float32Array
    """Axes of the latent space times idf [terms, dimensions]."""


def _project(documents: Any, idf: FloatArray) -> Float32Array:
    from scipy.sparse import csr_matrix, diags_array
    from sklearn.preprocessing import normalize
    from sklearn.utils.extmath import randomized_svd

    n, n_terms = documents.shape
    sample = documents[:: -(-n // _FITTED)]
    weights = normalize(csr_matrix(sample @ diags_array(idf), dtype=np.float32), copy=False)
    size = min(_DIMENSIONS, *weights.shape)
    if weights.nnz == 0 or size < 1:
        return np.zeros((n_terms, 1), dtype=np.float32)
    right = randomized_svd(weights, size, n_iter=_ITERATIONS, random_state=_SEED)[2]
    return np.ascontiguousarray((right * idf).T, dtype=np.float32)


def space_of(texts: Sequence[str]) -> Space:
    """Count the terms of documents and of their sentences, and fit the latent space."""
    from scipy.sparse import csr_array

    of_texts = [sentences_of(text) for text in texts]
    spans = [sentence for sentences in of_texts for sentence in sentences]
    document_of = np.repeat(np.arange(len(texts)), [len(sentences) for sentences in of_texts])
    wordings = [
        texts[document][sentence.start : sentence.end]
        for document, sentence in zip(document_of.tolist(), spans, strict=True)
    ]
    forms = [
        (*form_of(wording), sentence.introduces_code)
        for wording, sentence in zip(wordings, spans, strict=True)
    ]
    analyzer = Analyzer()
    closed = set(analyzer.index([" ".join(sorted(CLOSED_CLASS))])[0])
    rows = [
        [[term for term in row if term not in closed] for row in analyzer.index(part)]
        for part in (texts, wordings)
    ]
    n_terms = len(analyzer.vocabulary)
    documents, sentences = (
        csr_array(count_matrix(part, n_terms), shape=(len(part), n_terms)) for part in rows
    )
    frequency = np.bincount(documents.indices, minlength=n_terms)
    idf = np.log((1.0 + len(texts)) / (1.0 + frequency)) + 1.0
    return Space(
        documents,
        sentences,
        document_of.astype(np.int64),
        np.array([sentence.start for sentence in spans], dtype=np.int64),
        np.array([sentence.end for sentence in spans], dtype=np.int64),
        np.array(forms, dtype=np.float64).reshape(-1, len(SentenceForm._fields) + 1),
        idf,
        _project(documents, idf),
    )


# ---- Features of a sentence

FORMS = ("asks", "orders", "addresses", "introduces_code")
FEATURES = (
    "uncovered",
    "uncovered_beyond_document",
    "unknown_to_group",
    "unknown_beyond_document",
    "dissimilar",
    "dissimilar_beyond_document",
    "dissimilar_neighbours",
    "terms",
    *FORMS,
    *(f"{form}_surprise" for form in FORMS),
    "formed_unknown",
    "formed_uncovered",
)
BLOCK = 16_384
_PRIOR_RATES, _PRIOR_SENTENCES = np.array([0.01, 0.01, 0.01, 0.002]), 100.0
"""Prior share of sentences with each form, and the number of sentences that the prior weighs."""


def _look_up(keys: IntArray, values: FloatArray, wanted: IntArray) -> FloatArray:
    """Return the values at the wanted keys, 0 for a missing key; keys must rise."""
    if not len(keys):
        return np.zeros(len(wanted))
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0.0)


def _rows_of(matrix: Any) -> IntArray:
    """Return the row of each entry of a CSR matrix."""
    rows: IntArray = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))
    return rows


def _count_elsewhere(space: Space, rows: IntArray) -> FloatArray:
    """Count the term of each entry of the sentences' matrix in the rest of its document."""
    n_terms = space.documents.shape[1]
    in_document = _rows_of(space.documents) * n_terms + space.documents.indices
    wanted = space.document_of[rows] * n_terms + space.sentences.indices
    counts: FloatArray = _look_up(in_document, space.documents.data, wanted) - space.sentences.data
    return counts


def _is_known(space: Space, rows: IntArray, group_of: IntArray) -> BoolArray:
    """Tell for each entry whether more documents of the group hold the term than the sentence.

    A sentence that is planted into many documents must not make its own words known.
    """
    n, n_terms = space.documents.shape
    # Compare random sums, because equal sums practically always mean equal terms.
    marks = space.sentences @ np.random.default_rng(0).random(n_terms)
    kind = np.column_stack((group_of[space.document_of], marks))
    sentence = np.unique(kind, axis=0, return_inverse=True)[1].ravel().astype(np.int64)
    holders = np.unique(sentence * n + space.document_of) // n
    alike = np.bincount(holders, minlength=int(sentence.max(initial=-1)) + 1)[sentence]
    entries = group_of[_rows_of(space.documents)] * n_terms + space.documents.indices
    keys, counts = np.unique(entries, return_counts=True)
    wanted = group_of[space.document_of[rows]] * n_terms + space.sentences.indices
    is_known: BoolArray = _look_up(keys, counts.astype(np.float64), wanted) > alike[rows]
    return is_known


def _beyond(values: FloatArray, document_of: IntArray, n: int) -> FloatArray:
    """Return each value less the mean of the document's other sentences; 0 without others."""
    total, count = np.bincount(document_of, values, n), np.bincount(document_of, minlength=n)
    others = count[document_of] - 1
    return np.where(others > 0, values - (total[document_of] - values) / np.maximum(others, 1), 0.0)


def _compare(space: Space) -> tuple[FloatArray, FloatArray]:
    """Return cosines to the rest of the document and to the more similar neighbour."""
    from sklearn.preprocessing import normalize

    m = len(space.document_of)
    to_rest, neighbours = np.zeros(m), np.zeros(m)
    for low in range(0, m, BLOCK):
        high = min(low + BLOCK, m)
        part = slice(max(low - 1, 0), min(high + 1, m))  # include a neighbour on each side
        document_of = space.document_of[part]
        vectors = space.sentences[part].astype(np.float32) @ space.projection
        first, last = int(document_of[0]), int(document_of[-1])
        documents = space.documents[first : last + 1].astype(np.float32) @ space.projection
        units = normalize(vectors)
        remainders = normalize(documents[document_of - first] - vectors)
        inner = slice(low - part.start, high - part.start)
        to_rest[low:high] = np.einsum("ij,ij->i", units, remainders)[inner]
        same = document_of[1:] == document_of[:-1]
        pairs = np.where(same, np.einsum("ij,ij->i", units[1:], units[:-1]), 0.0)
        best = np.maximum(np.append(0.0, pairs), np.append(pairs, 0.0))
        neighbours[low:high] = best[inner]
    return to_rest, neighbours


def _surprise(space: Space, group_of: IntArray) -> FloatArray:
    """Return -ln of the share of each form in the group's other documents [m, 4].

    First and later sentences are compared separately, because docstrings begin with an order.
    """
    first = np.diff(space.document_of, prepend=-1) != 0
    result = np.zeros_like(space.forms)
    for place in (first, ~first):
        rows = np.flatnonzero(place)
        documents = space.document_of[rows]
        groups = group_of[documents]
        for column in range(space.forms.shape[1]):
            flags = space.forms[rows, column]
            in_group, in_own = (np.bincount(of, flags)[of] for of in (groups, documents))
            of_group, of_own = (np.bincount(of)[of] for of in (groups, documents))
            prior = _PRIOR_RATES[column] * _PRIOR_SENTENCES
            share = (in_group - in_own + prior) / (of_group - of_own + _PRIOR_SENTENCES)
            # a form surprises less in a document with other sentences of this form
            others = in_own - flags
            result[rows, column] = flags * -np.log(share) / (1.0 + others)
    return result


def features_of(space: Space, group_of: IntArray) -> FloatArray:
    """Return features [m, len(FEATURES)]; `group_of` [n] numbers the documents' groups from 0."""
    m, n = len(space.document_of), space.documents.shape[0]
    if not m:
        return np.zeros((0, len(FEATURES)))
    rows = _rows_of(space.sentences)
    weight = space.idf[space.sentences.indices]
    # Add two mean terms to every share, because a share of one term says little.
    mean = float(weight.mean()) if len(weight) else 1.0
    total = np.maximum(np.bincount(rows, weight, m), _TINY) + 2 * mean
    alone = weight * (_count_elsewhere(space, rows) <= 0)
    uncovered = (np.bincount(rows, alone, m) + mean) / total
    unknown = np.bincount(rows, weight * ~_is_known(space, rows, group_of), m) / total
    to_rest, neighbours = _compare(space)
    surprise = _surprise(space, group_of)
    formed = np.minimum(surprise.sum(axis=1), 8.0) / 4.0
    columns = (
        uncovered,
        _beyond(uncovered, space.document_of, n),
        unknown,
        _beyond(unknown, space.document_of, n),
        1.0 - to_rest,
        _beyond(1.0 - to_rest, space.document_of, n),
        1.0 - neighbours,
        np.log1p(np.bincount(rows, minlength=m)),
        *space.forms.T,
        *surprise.T,
        formed * unknown,
        formed * uncovered,
    )
    return np.column_stack(columns)


# ---- Findings

FILE = "shift_coefficients.json"
_LEAST_SENTENCES = 3
"""Least number of sentences of a document with a topic."""
_VERBS = ("asks", "gives an order", "speaks to its reader", "introduces code")


class ShiftWeights(NamedTuple):
    """A logistic regression: the score is features @ weights + bias."""

    weights: FloatArray
    bias: float
    formed: float
    """Limit for a sentence that asks, orders, addresses its reader or introduces code."""
    plain: float
    """Limit for any other sentence."""


@functools.cache
def load_weights() -> ShiftWeights:
    """Read the weights, which were fitted once; `provenance` in the file says to which texts."""
    document = json.loads((files("rag_eval.trust") / FILE).read_text(encoding="utf-8"))
    fitted, limits = document["weights"], document["thresholds"]
    weights = np.array([fitted[name] for name in FEATURES])
    return ShiftWeights(weights, fitted["bias"], limits["formed"], limits["plain"])


def topic_shift(texts: Sequence[str], groups: Sequence[str]) -> pd.DataFrame:
    """Find sentences unlike their document; neighbouring sentences are one finding.

    `groups` are the sources of the texts, for instance domains, empty if unknown. Returns FINDINGS,
    all warnings, by document and place.

    Examples
    --------
    >>> topic_shift(["Too short to say."], ["example.org"]).empty
    True
    """
    if not texts:
        return make_frame(FINDINGS, [])
    space = space_of(texts)
    group_of = np.asarray(pd.factorize(np.asarray(groups, dtype=object))[0], dtype=np.int64)
    fitted = load_weights()
    scores = features_of(space, group_of) @ fitted.weights + fitted.bias
    limit = np.where(space.forms.any(axis=1), fitted.formed, fitted.plain)
    enough = np.bincount(space.document_of) >= _LEAST_SENTENCES
    rows = np.flatnonzero((scores > limit) & enough[space.document_of])
    breaks = (np.diff(rows) > 1) | (np.diff(space.document_of[rows]) > 0)
    findings = []
    for group in np.split(rows, np.flatnonzero(breaks) + 1) if len(rows) else ():
        best = group[int(np.argmax(scores[group]))]
        verbs = [verb for verb, holds in zip(_VERBS, space.forms[best], strict=True) if holds]
        does = f"{' and '.join(verbs)}, unlike" if verbs else "has little in common with"
        numbers = f"score {scores[best]:.1f}, limit {limit[best]:.1f}"
        detail = f"a sentence {does} the rest of its document ({numbers})"
        place = int(space.starts[group[0]]), int(space.ends[group[-1]])
        rule = "topic_shift", "inside_document", "warning", detail
        findings.append((int(space.document_of[best]), *place, *rule))
    return make_frame(FINDINGS, findings)
