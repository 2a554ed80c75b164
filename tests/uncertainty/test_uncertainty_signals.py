"""The signals of a miss against a slow reference in plain Python."""

import dataclasses
import math

import numpy as np
import pytest
from signals_reference import signals_of

from rag_eval.uncertainty import signals as module
from rag_eval.uncertainty.signals import SIGNALS, RankedBatch, TermSpace, signals

DIMENSIONS = 6


def lists(rng, n, depth, n_chunks):
    """Draw distinct chunks with falling scores, many equal, and -1 behind shorter lists."""
    rows = np.full((n, depth), -1, dtype=np.int32)
    raw = np.zeros((n, depth))
    for i in range(n):
        most = min(depth, n_chunks)
        count = int(rng.choice([0, 1, most, rng.integers(0, most + 1)]))
        rows[i, :count] = rng.permutation(n_chunks)[:count]
        raw[i, :count] = np.sort(np.round(rng.uniform(0.1, 1, count), 1))[::-1]
    return rows, raw


def batch_of(
    seed,
    *,
    n=24,
    n_chunks=40,
    n_terms=30,
    depth=35,
    vectors=True,
    other=True,
    wordings=True,
    cosine=False,
):
    rng = np.random.default_rng(seed)
    chunks = [rng.integers(0, n_terms, rng.integers(0, 25)).tolist() for _ in range(n_chunks)]
    queries = [rng.integers(0, n_terms + 5, rng.integers(0, 9)).tolist() for _ in range(n)]
    rows, raw = lists(rng, n, depth, n_chunks)
    other_rows, other_raw = lists(rng, n, depth + 3, n_chunks) if other else (None, None)
    asked = held = None
    if vectors:
        asked, held = (
            rng.normal(0.2, 1, (count, DIMENSIONS)).astype(np.float32) for count in (n, n_chunks)
        )
        asked, held = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (asked, held))
        asked[0] = held[0] = 0
    if cosine:
        raw = np.where(rows >= 0, np.einsum("nd,njd->nj", asked, held[rows]), 0).astype(np.float64)
    question = rng.integers(0, n // 3, n).astype(np.int64) if wordings else None
    norm = np.round(raw / np.maximum(raw.max(axis=1, keepdims=True), 1e-9), 2)
    document = None
    if rng.random() >= 0.3:
        owner = rng.integers(0, max(len(chunks) // 2, 1), len(chunks))
        document = np.unique(owner, return_inverse=True)[1].astype(np.int64)
    space, others = TermSpace(chunks, n_terms), (other_rows, other_raw)
    batch = RankedBatch(
        rows, raw, norm, cosine, space, queries, *others, asked, held, question, document
    )
    return chunks, n_terms, batch


def agree(found, chunks, n_terms, batch, k):
    expected = signals_of(batch, chunks, n_terms, k)
    assert set().union(*expected) <= set(SIGNALS)
    for j, name in enumerate(SIGNALS):
        wanted = [row.get(name, math.nan) for row in expected]
        np.testing.assert_allclose(found[:, j], wanted, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"vectors": False},
        {"other": False},
        {"wordings": False},
        {"vectors": False, "other": False},
        {"depth": 5},
        {"n_chunks": 3, "depth": 3},
    ],
)
def test_signals_are_those_of_the_slow_reference(seed, shape):
    chunks, n_terms, batch = batch_of(seed, **shape)
    agree(signals(batch, 4), chunks, n_terms, batch, 4)


@pytest.mark.parametrize(
    ("k", "shape"),
    [
        *((k, {}) for k in (1, 10, 33, 35, 200)),
        (110, {"n": 4, "n_chunks": 150, "depth": 140}),  # k and depth above 100
        (10, {"n_chunks": 1, "depth": 1, "vectors": False}),
    ],
)
def test_any_cutoff(k, shape):
    chunks, n_terms, batch = batch_of(7, **shape)
    agree(signals(batch, k), chunks, n_terms, batch, k)


def test_scores_that_are_cosines():
    chunks, n_terms, batch = batch_of(11, cosine=True)
    found, expected = signals(batch, 4), signals_of(batch, chunks, n_terms, 4)
    # Query 0 has no vector and retrieves nothing by vector, so the comparison leaves it out.
    for name in ("beyond_fused", "tail_ratio", "nqc", "generic"):
        values, wanted = (
            found[1:, SIGNALS.index(name)],
            [row.get(name, math.nan) for row in expected[1:]],
        )
        np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-4, err_msg=name)


def test_blocks_give_what_the_whole_gives(monkeypatch):
    _, _, batch = batch_of(2)
    whole = signals(batch, 4)
    monkeypatch.setattr(module, "BLOCK_PLACES", 20)
    np.testing.assert_allclose(signals(batch, 4), whole, rtol=1e-6, atol=1e-6)


def test_signals_do_not_depend_on_the_scale_of_scores():
    _, _, batch = batch_of(4)
    scaled = signals(dataclasses.replace(batch, raw=batch.raw * 7.5), 4)
    np.testing.assert_allclose(scaled, signals(batch, 4), rtol=1e-9, atol=1e-9)
