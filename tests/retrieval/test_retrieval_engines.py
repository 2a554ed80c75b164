"""Exact search, bm25s and rank-bm25 agree with the slow reference.

The cases hold ties, duplicates, empty queries, a single chunk, zero vectors and masks.
"""

import bm25s
import numpy as np
import pytest
import reference
from corpora import listed, table
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.corpus import analyzer
from rag_eval.corpus.analyzer import BIGRAM_ANALYZER, STOP_WORDS, TermRows
from rag_eval.retrieval import dense
from rag_eval.retrieval.dense import ExactSearch
from rag_eval.retrieval.embedding.embedders import unit
from rag_eval.retrieval.embedding.source import ChunkTable
from rag_eval.retrieval.lexical import Bm25s, RankBm25, score_postings

ENGINES = [Bm25s, RankBm25]
N_TERMS = 6
FLOAT32 = 2e-5
"""Largest error of float32 sums of BM25's terms."""

TERMS = st.lists(st.integers(0, N_TERMS - 1), max_size=5)
CORPUS = st.lists(TERMS, min_size=1, max_size=40).filter(any)
QUERIES = st.lists(st.lists(st.integers(0, N_TERMS + 2), max_size=5), min_size=1, max_size=4)
PARAMETERS = st.sampled_from(
    [(0.9, 0.4), (1.5, 0.75), (0.0, 0.5), (1.2, 0.0), (1.2, 1.0), (0.0, 1.0)]
)


def ids_of(count):
    return [(f"s{row:04d}", f"c{row:04d}") for row in range(count)]


@st.composite
def vectors_and_queries(draw):
    component = st.sampled_from([-0.5, 0.0, 0.0, 0.25, 0.5])
    width = draw(st.integers(1, 4))
    vector = st.lists(component, min_size=width, max_size=width)
    distinct = draw(st.lists(vector, min_size=1, max_size=6))
    vectors = draw(st.lists(st.sampled_from(distinct), min_size=1, max_size=60))
    queries = draw(st.lists(vector, min_size=1, max_size=4))
    allowed = draw(
        st.none() | st.lists(st.booleans(), min_size=len(vectors), max_size=len(vectors))
    )
    return vectors, queries, allowed


BLOCKS = st.sampled_from([1, 7, 32_768])
"""Sizes of blocks, mostly below those of the drawn corpora."""


@given(vectors_and_queries(), st.integers(1, 80))
def test_exact_search(case, depth):
    vectors, queries, allowed = case
    engine = ExactSearch(np.array(vectors, dtype=np.float32))
    found = engine.search(
        np.array(queries, dtype=np.float32), depth, None if allowed is None else np.array(allowed)
    )
    for query, vector in enumerate(queries):
        scores = reference.cosines(vector, vectors, allowed)
        wanted = reference.best(scores, ids_of(len(vectors)), depth)
        assert listed(found, query) == wanted
        assert [norm for _, norm in listed(found, query, "norm")] == reference.min_max(
            [score for _, score in wanted]
        )
        assert found.candidates[query] == sum(score is not None for score in scores)


def test_exact_search_gives_the_same_in_blocks_of_mapped_vectors(tmp_path, monkeypatch):
    random = np.random.default_rng(4)
    vectors = unit(random.normal(size=(900, 96)).astype(np.float32))
    vectors[700:] = vectors[:200]
    np.save(tmp_path / "vectors.npy", vectors)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    queries, allowed = vectors[::30] + vectors[1::30], random.random(900) < 0.9
    whole = ExactSearch(vectors).search(unit(queries), 50, allowed)
    monkeypatch.setattr(dense, "BLOCK_BYTES", 900 * 4 * 8)
    parts = ExactSearch(mapped).search(unit(queries), 50, allowed)
    for name in ("rows", "raw", "norm", "candidates"):
        assert np.array_equal(getattr(whole, name), getattr(parts, name))


def test_exact_search_ranks_a_query_alone_as_in_a_batch():
    random = np.random.default_rng(3)
    engine = ExactSearch(unit(random.normal(size=(3000, 384)).astype(np.float32)))
    queries = unit(random.normal(size=(150, 384)).astype(np.float32))
    together = engine.search(queries, 100)
    for query in range(len(queries)):
        alone = engine.search(queries[query : query + 1], 100)
        assert np.array_equal(alone.rows[0], together.rows[query])
        assert np.array_equal(alone.raw[0], together.raw[query])
        assert np.array_equal(alone.norm[0], together.norm[query])


def test_exact_search_gives_equal_chunks_equal_scores_wherever_they_stand():
    random = np.random.default_rng(5)
    distinct = unit(random.normal(size=(40, 384)).astype(np.float32))
    places = random.integers(0, 40, size=2011)
    queries = unit(random.normal(size=(9, 384)).astype(np.float32))
    found = ExactSearch(distinct[places]).search(queries, 700)
    for query in range(len(queries)):
        kept = [(-score, row) for row, score in listed(found, query)]
        assert kept == sorted(kept)
        assert len({score for score, _ in kept}) == len({int(places[row]) for _, row in kept})
    assert np.array_equal(
        ExactSearch(distinct[places]).search(queries, 100).rows, found.rows[:, :100]
    )


def assert_like(found, query, wanted, documents, depth):
    """Check that both rankings agree, except where scores are too close for float32.

    Equal chunks are always in the order of their rows.
    """
    pairs = listed(found, query)
    candidates = {row for row, score in enumerate(wanted) if score is not None}
    assert len(pairs) == min(depth, len(candidates))
    chosen = {row for row, _ in pairs}
    assert chosen <= candidates
    for row, score in pairs:
        assert score == pytest.approx(wanted[row], abs=FLOAT32)
    assert [(-score, row) for row, score in pairs] == sorted((-score, row) for row, score in pairs)
    for row in candidates - chosen:
        assert wanted[row] <= pairs[-1][1] + FLOAT32
        assert not any(documents[row] == documents[other] and row < other for other in chosen)


@st.composite
def searches(draw):
    """Draw documents, queries, parameters, a depth and a mask."""
    documents = draw(CORPUS)
    n = len(documents)
    allowed = draw(st.none() | st.lists(st.booleans(), min_size=n, max_size=n))
    return documents, draw(QUERIES), draw(PARAMETERS), draw(st.integers(1, 60)), allowed


def search(engine, drawn):
    documents, queries, (k1, b), depth, allowed = drawn
    mask = None if allowed is None else np.array(allowed)
    return engine(documents, N_TERMS, k1=k1, b=b).search(queries, depth, mask)


@given(searches())
def test_bm25s_is_lucene_bm25(drawn):
    documents, queries, (k1, b), depth, allowed = drawn
    found = search(Bm25s, drawn)
    for query, terms in enumerate(queries):
        wanted = reference.lucene_bm25(terms, documents, k1, b, allowed)
        assert_like(found, query, wanted, documents, depth)
        norms = [norm for _, norm in listed(found, query, "norm")]
        assert norms == reference.by_top([score for _, score in listed(found, query)])


@given(CORPUS, PARAMETERS, BLOCKS)
def test_scores_are_those_of_bm25s_to_the_bit(documents, parameters, block):
    k1, b = parameters
    library = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy")
    library.index((documents, {str(i): i for i in range(N_TERMS)}), show_progress=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analyzer, "BLOCK", block)
        found = score_postings(TermRows.of(documents), N_TERMS, k1=k1, b=b)
    for name, array in found.items():
        assert array.dtype == library.scores[name].dtype
        assert np.array_equal(array, library.scores[name])


@given(searches())
def test_rank_bm25_is_its_formula(drawn):
    documents, queries, (k1, b), depth, allowed = drawn
    found = search(RankBm25, drawn)
    for query, terms in enumerate(queries):
        scores = reference.okapi_bm25(terms, documents, max(k1, 1e-9), b)
        sure = [
            None if score <= 1e-9 or (allowed is not None and not allowed[row]) else score
            for row, score in enumerate(scores)
        ]
        assert_like(found, query, sure, documents, depth)


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_known_in_the_query_gives_an_empty_ranking(engine):
    chunks = table(["alpha beta", "beta gamma", "delta epsilon zeta", "eta theta", "iota kappa"])
    index = engine(chunks.terms, chunks.n_terms, k1=0.9, b=0.4)
    queries = ["", "   ", "the and of", "unheard words", "?!", "\x00", " ".join(STOP_WORDS)]
    found = index.search(chunks.query_terms(queries), 10)
    assert found.rows.tolist() == [[-1] * 5] * len(queries)
    assert found.candidates.tolist() == [0] * len(queries)
    assert index.search([], 10).rows.shape == (0, 5)
    assert listed(index.search(chunks.query_terms(["unheard gamma the"]), 10), 0)[0][0] == 1


FOUND = {
    "日本の首都": 0,
    "กรุงเทพ": 1,
    "서울": 2,
    "三峡": 3,
    "ຫຼວງ": 4,
    "峡": 3,
    "크": 2,
    "は 東": 0,
    "plain は": 5,
}


@pytest.mark.parametrize("engine", ENGINES)
def test_words_are_found_in_texts_without_blanks(engine):
    texts = ["東京は日本の首都です", "ไปกรุงเทพกัน", "서울은 크다", "长江三峡大坝", "ນະຄອນຫຼວງວຽງຈັນ"]
    chunks = ChunkTable(table([*texts, "plain words"]).frame, "hash", analyzer=BIGRAM_ANALYZER)
    index = engine(chunks.terms, chunks.n_terms, k1=0.9, b=0.4)
    ranked = index.search(chunks.search_terms(list(FOUND)), 5)
    rows = [[row for row, _ in listed(ranked, query)] for query in range(len(FOUND))]
    assert rows == [[row] for row in FOUND.values()]


TIED_IDS = (
    "Z:1 a:10 a:9 é:0 a:B a:b a#x:2 a-b:3 ab: 𝒳:4 \uffee:5"  # section:id, unsorted
).split(" ")


@given(st.permutations([tuple(name.split(":")) for name in TIED_IDS]))
def test_ties_are_broken_by_the_ids_as_strings(ids):
    chunks = table(["alpha"] * len(ids), ids)
    lexical = Bm25s(chunks.terms, chunks.n_terms, k1=0.9, b=0.4)
    exact = ExactSearch(np.ones((len(ids), 1), dtype=np.float32))
    for found in (
        lexical.search(chunks.query_terms(["alpha"]), 20),
        exact.search(np.ones((1, 1), dtype=np.float32), 20),
    ):
        ranked = chunks.frame.iloc[[row for row, _ in listed(found, 0)]]
        assert list(zip(ranked["section_id"], ranked["chunk_id"], strict=True)) == sorted(ids)
