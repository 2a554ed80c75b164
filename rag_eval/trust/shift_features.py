"""What tells a sentence that was planted from one that belongs: numbers per sentence.

Belongs here: the features and their definitions. How much each weighs is in `shift_coefficients.json`.

Every feature leaves the sentence itself out of what it is compared with, and its document out of what the group is asked.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from rag_eval.trust.shift_space import Floats, Ints, Space

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
PRIOR_RATES, PRIOR_SENTENCES = np.array([0.01, 0.01, 0.01, 0.002]), 100.0
"""What is believed of a group before it is read: the share of its sentences with each form, as if seen in so many sentences."""


def _looked_up(keys: Ints, values: Floats, wanted: Ints) -> Floats:
    """Values at the wanted keys, 0 where there is none; keys rise."""
    if not len(keys):
        return np.zeros(len(wanted))
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0.0)


def _entries(matrix: Any) -> Ints:
    """Row of each entry of a CSR matrix."""
    return np.asarray(
        np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr)),
        dtype=np.int64,
    )


def _counts_elsewhere(space: Space, rows: Ints) -> Floats:
    """How often the term of each entry of the sentences' matrix occurs in the rest of its document."""
    n_terms = space.documents.shape[1]
    held = _entries(space.documents) * n_terms + space.documents.indices
    there = _looked_up(
        held, space.documents.data, space.document_of[rows] * n_terms + space.sentences.indices
    )
    return np.asarray(there - space.sentences.data, dtype=np.float64)


def _documents_alike(space: Space, group_of: Ints) -> Ints:
    """How many documents of its group hold a sentence of the very same terms, its own included [m]."""
    marks = np.random.default_rng(0).random(
        space.documents.shape[1]
    )  # equal rows have equal sums, others practically never
    group = group_of[space.document_of]
    sentence = np.unique(
        np.column_stack((group, space.sentences @ marks)), axis=0, return_inverse=True
    )[1].ravel()
    n = space.documents.shape[0]
    held = np.unique(sentence.astype(np.int64) * n + space.document_of)
    return np.bincount(held // n, minlength=int(sentence.max(initial=-1)) + 1)[sentence].astype(
        np.int64
    )


def _known_to_group(space: Space, rows: Ints, group_of: Ints) -> npt.NDArray[np.bool_]:
    """Whether the term of each entry occurs in more documents of its group than hold the very same sentence.

    So a sentence that is planted into many documents does not make its own words known.
    """
    n_terms = space.documents.shape[1]
    keys, counts = np.unique(
        group_of[_entries(space.documents)] * n_terms + space.documents.indices, return_counts=True
    )
    wanted = group_of[space.document_of[rows]] * n_terms + space.sentences.indices
    return np.asarray(
        _looked_up(keys, counts.astype(np.float64), wanted)
        > _documents_alike(space, group_of)[rows],
        dtype=np.bool_,
    )


def _beyond(values: Floats, document_of: Ints, n: int) -> Floats:
    """How much a value exceeds the mean of its document's other sentences; 0 where there are none."""
    total, count = np.bincount(document_of, values, n), np.bincount(document_of, minlength=n)
    others = count[document_of] - 1
    return np.where(others > 0, values - (total[document_of] - values) / np.maximum(others, 1), 0.0)


def _unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(
        np.where(lengths > 1e-9, vectors / np.maximum(lengths, 1e-9), 0.0), dtype=np.float32
    )  # noqa: PLR2004 - numerically zero


def _similarities(space: Space) -> tuple[Floats, Floats]:
    """Cosine to the rest of the document, and the better of the cosines to both neighbours, in the latent space; in blocks."""
    m = len(space.document_of)
    to_rest, neighbours = np.zeros(m), np.zeros(m)
    for low in range(0, m, BLOCK):
        high = min(low + BLOCK, m)
        part = slice(max(low - 1, 0), min(high + 1, m))  # with a neighbour on each side
        document_of = space.document_of[part]
        vectors = space.sentences[part].astype(np.float32) @ space.projection
        first = int(document_of[0])
        documents = (
            space.documents[first : int(document_of[-1]) + 1].astype(np.float32) @ space.projection
        )
        own = _unit(vectors)
        inner = slice(low - part.start, high - part.start)
        to_rest[low:high] = np.einsum(
            "ij,ij->i", own, _unit(documents[document_of - first] - vectors)
        )[inner]
        pairs = np.where(
            document_of[1:] == document_of[:-1], np.einsum("ij,ij->i", own[1:], own[:-1]), 0.0
        )
        best = np.maximum(np.append(0.0, pairs), np.append(pairs, 0.0))
        neighbours[low:high] = best[inner]
    return to_rest, neighbours


def _surprise(space: Space, group_of: Ints) -> Floats:
    """How rare each form is where the sentence stands: -ln of its share among the group's other documents' sentences of the same place.

    Place: the first sentence of a document, or a later one; docstrings begin with an order and go on without.
    """
    n, m = space.documents.shape[0], len(space.document_of)
    first = np.ones(m, dtype=np.bool_)
    first[1:] = space.document_of[1:] != space.document_of[:-1]
    result = np.zeros_like(space.forms)
    for place in (first, ~first):
        rows = np.flatnonzero(place)
        documents = space.document_of[rows]
        groups = group_of[documents]
        size = int(group_of.max(initial=-1)) + 1
        for column in range(space.forms.shape[1]):
            flags = space.forms[rows, column]
            in_group, of_group = (
                np.bincount(groups, flags, size)[groups],
                np.bincount(groups, minlength=size)[groups],
            )
            in_own, of_own = (
                np.bincount(documents, flags, n)[documents],
                np.bincount(documents, minlength=n)[documents],
            )
            share = (in_group - in_own + PRIOR_RATES[column] * PRIOR_SENTENCES) / (
                of_group - of_own + PRIOR_SENTENCES
            )
            others = in_own - flags  # a form that the same document has elsewhere is its own habit
            result[rows, column] = flags * -np.log(share) / (1.0 + others)
    return result


def features_of(space: Space, group_of: Ints) -> Floats:
    """Features [m, len(FEATURES)] of the space's sentences; `group_of` [n] numbers the documents' groups from 0."""
    m, n = len(space.document_of), space.documents.shape[0]
    if not m:
        return np.zeros((0, len(FEATURES)))
    rows = _entries(space.sentences)
    elsewhere = _counts_elsewhere(space, rows)
    weight = space.idf[space.sentences.indices]
    total = np.maximum(np.bincount(rows, weight, m), 1e-9)
    present = np.bincount(rows, minlength=m)
    # two terms' worth of "perhaps" in every share: a share of one term says little
    mean_weight = float(weight.mean()) if len(weight) else 1.0
    uncovered = (np.bincount(rows, weight * (elsewhere <= 0), m) + mean_weight) / (
        total + 2 * mean_weight
    )
    unknown = np.bincount(rows, weight * ~_known_to_group(space, rows, group_of), m) / (
        total + 2 * mean_weight
    )
    to_rest, neighbours = _similarities(space)
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
        np.log1p(present),
        *space.forms.T,
        *surprise.T,
        formed * unknown,
        formed * uncovered,
    )
    return np.column_stack(columns)
