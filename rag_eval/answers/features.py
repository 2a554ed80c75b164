"""What is measured of each citable unit against its question: one matrix for all units of all questions.

Belongs here: the measurements, each with its definition. Not here: how they are weighed (`coefficients`).
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_eval.answers.pool import Floats, Ints, Pool
from rag_eval.answers.terms import PoolTerms

Embed = Callable[[Sequence[str]], npt.NDArray[np.float32]]
"""Texts -> float32 [n, d], rows of unit norm (or zero)."""

LEXICAL = (
    "unit_coverage",
    "titled_coverage",
    "passage_coverage",
    "evidence_coverage",
    "local_coverage",
    "frequency",
    "pairs",
    "missing",
    "number_fits",
    "number_lacks",
    "name_fits",
    "first",
    "position",
    "length",
)
DENSE = ("similarity", "window_similarity", "passage_similarity")

LONGEST_EMBEDDED = 2000
"""Characters of a text that are embedded; sentence models read fewer."""

_BLOCK = 65_536
_WANTS_NUMBER = re.compile(
    r"\b(?:when|what (?:year|date|day|time|age|percentage|number)|which year|how (?:many|much|long|old|far|often|tall|big|large|high|fast))\b",
    re.IGNORECASE,
)
_WANTS_NAME = re.compile(
    r"\b(?:who|whom|whose|where|(?:which|what) (?:country|city|state|team|person|company|name))\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|hundred|thousand|million|billion|dozen|half|twice|percent)\b",
    re.IGNORECASE,
)
_NAME = re.compile(r"[a-z0-9,;:] [A-Z][a-z]+")


def _flags(pattern: re.Pattern[str], texts: Sequence[str]) -> npt.NDArray[np.bool_]:
    return np.fromiter(
        (pattern.search(text) is not None for text in texts), dtype=bool, count=len(texts)
    )


def lexical(pool: Pool, terms: PoolTerms) -> Floats:
    """Measure words.

    Returns
    -------
    float64 [n_candidates, len(LEXICAL)]
        Coverages are shares of the question's term weight, a synonym counting in part where `terms` has any: found in the unit; in it or the passage's title; in the passage or title; in
        all of the question's evidence. `local_coverage` weighs terms by how few of the question's own candidates have them. `frequency`
        is the first with counts saturated as in BM25. `pairs`: share of the question's neighbouring terms that are neighbours in the
        unit. `missing`: the heaviest term that neither passage nor title has, as a share of the heaviest of all. `number_*`, `name_fits`:
        the question asks for a number or a name and the unit has or lacks one. `position`: 1 / (1 + place in the passage); `length`:
        ln(1 + terms).
    """
    q, pair, unit = pool.question_of, pool.pair_of, pool.unit_of
    asker = pool.question_of_pair
    asked, weights = terms.questions, terms.weights
    total = np.maximum(asked @ weights, 1e-12)
    in_unit = terms.units[unit].multiply(asked[q]).tocsr()
    in_title = terms.titles[pool.title_of_pair].multiply(asked[asker]).tocsr()
    in_passage = (
        terms.passages[pool.text_of_pair].multiply(asked[asker]).tocsr().maximum(in_title).tocsr()
    )
    in_evidence = _strongest(in_passage, pool)
    missing = (
        _heaviest((asked[asker] - in_passage).tocsr(), weights)
        / np.maximum(_heaviest(asked, weights), 1e-12)[asker]
    )
    wants_number, has_number = (
        _flags(_WANTS_NUMBER, pool.questions)[q],
        _flags(_NUMBER, pool.unit_texts)[unit],
    )
    columns = {
        "unit_coverage": (in_unit @ weights) / total[q],
        "titled_coverage": (in_unit.maximum(in_title[pair]) @ weights) / total[q],
        "passage_coverage": ((in_passage @ weights) / total[asker])[pair],
        "evidence_coverage": ((in_evidence @ weights) / total)[q],
        "local_coverage": _local(in_unit, pool),
        "frequency": (terms.saturated[unit].multiply(asked[q]).tocsr() @ weights) / total[q],
        "pairs": terms.pair_share(q, unit),
        "missing": missing[pair],
        "number_fits": wants_number & has_number,
        "number_lacks": wants_number & ~has_number,
        "name_fits": _flags(_WANTS_NAME, pool.questions)[q] & _flags(_NAME, pool.unit_texts)[unit],
        "first": pool.place == 0,
        "position": 1.0 / (1.0 + pool.place),
        "length": np.log1p(terms.unit_lengths[unit]),
    }
    return np.column_stack([np.asarray(columns[name], dtype=np.float64) for name in LEXICAL])


def _gather(owner: Ints, n_owners: int) -> Any:
    """CSR [n_owners, len(owner)] of ones: sums rows by owner."""
    from scipy.sparse import csr_array

    return csr_array(
        (np.ones(len(owner)), (owner, np.arange(len(owner)))), shape=(n_owners, len(owner))
    )


def _strongest(in_passage: Any, pool: Pool) -> Any:
    """Largest value over the passages of each question, CSR [n_questions, n_terms]."""
    n_questions = len(pool.questions)
    if (in_passage.data == 1).all():
        return ((_gather(pool.question_of_pair, n_questions) @ in_passage) > 0).astype(np.float64)
    from scipy.sparse import csr_array

    found = csr_array((n_questions, in_passage.shape[1]))
    for place in range(
        int(pool.passage_of_pair.max()) + 1
    ):  # the n-th passages of all questions at once
        rows = np.flatnonzero(pool.passage_of_pair == place)
        nth = csr_array(
            (np.ones(len(rows)), (pool.question_of_pair[rows], rows)),
            shape=(n_questions, in_passage.shape[0]),
        )
        found = found.maximum(nth @ in_passage)
    return found


def _heaviest(matrix: Any, weights: Floats) -> Floats:
    """Largest weight among the terms of each row, 0 where it has none."""
    weighed = matrix.copy()
    weighed.data = weighed.data * weights[weighed.indices]
    return np.asarray(weighed.max(axis=1).toarray(), dtype=np.float64).ravel()


def _local(in_unit: Any, pool: Pool) -> Floats:
    """Coverage with each term weighed by how few of the question's own candidates have it, among the terms that any has."""
    n_questions = len(pool.questions)
    frequency = (_gather(pool.question_of, n_questions) @ in_unit).tocsr()
    counts = np.bincount(pool.question_of, minlength=n_questions).astype(np.float64)
    rows = np.repeat(np.arange(n_questions), np.diff(frequency.indptr))
    frequency.data = np.log1p((counts[rows] - frequency.data + 0.5) / (frequency.data + 0.5))
    total = np.maximum(frequency.sum(axis=1), 1e-12)
    return np.asarray(
        in_unit.multiply(frequency[pool.question_of]).sum(axis=1) / total[pool.question_of]
    )


def dense(pool: Pool, embed: Embed) -> Floats:
    """Measure nearness of vectors; every text is embedded once, in one call.

    Returns
    -------
    float64 [n_candidates, len(DENSE)]
        Cosine of the question with the unit; with the mean vector of the unit and its neighbours; with that of all units of the passage.
    """
    vectors = np.asarray(
        embed([text[:LONGEST_EMBEDDED] for text in [*pool.questions, *pool.unit_texts]]),
        dtype=np.float32,
    )
    asked, units = vectors[: len(pool.questions)], vectors[len(pool.questions) :]
    near = _rowwise(asked, pool.question_of, units, pool.unit_of)
    around = _rowwise(asked, pool.question_of, _unit(pool.neighbours @ units), pool.unit_of)
    whole = _rowwise(
        asked, pool.question_of_pair, _unit(pool.membership @ units), pool.text_of_pair
    )[pool.pair_of]
    return np.column_stack([near, around, whole])


def _unit(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))[:, None]
    return np.asarray(vectors / np.where(norms > 0, norms, 1.0))


def _rowwise(
    left: npt.NDArray[np.floating],
    left_rows: Ints,
    right: npt.NDArray[np.floating],
    right_rows: Ints,
) -> Floats:
    """Products of chosen rows, in blocks: the vectors of a hundred thousand candidates never stand in memory at once."""
    found = np.zeros(len(left_rows))
    for start in range(0, len(left_rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        found[part] = np.einsum(
            "ij,ij->i", left[left_rows[part]], right[right_rows[part]], dtype=np.float64
        )
    return found
