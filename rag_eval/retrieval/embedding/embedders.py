"""Sources of vectors: LSA fitted on the corpus, all-MiniLM-L6-v2, and a file that a user made."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rag_eval.core.arrays import Float32Array, Int32Array
from rag_eval.core.errors import InputError, quoted
from rag_eval.corpus.analyzer import ANALYZER, Analyzer, Rows, TermRows, count_matrix
from rag_eval.storage.hashing import digest, file_hash, library_versions, text_hash

Advance = Callable[[int], None]
"""Callback for progress; its argument is the number of texts just embedded."""


def no_advance(count: int) -> None:
    """Ignore the progress."""


class Embedder(Protocol):
    """Embeds texts. `embed_queries` is optional, for models that embed questions differently."""

    model: str
    """Name of the model with everything that changes its vectors, such as the hash of a fit."""

    def embed(self, texts: Sequence[str], advance: Advance = no_advance) -> Float32Array:
        """Return float32 [n, d], rows of unit norm; zero without a known word."""
        ...


def row_norms(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Compute the norms of rows, [n], in float64; squares in float32 could overflow or vanish."""
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)))


def unit(vectors: npt.NDArray[np.floating]) -> Float32Array:
    """Scale rows to unit norm; zero rows stay zero."""
    norms = row_norms(vectors)[:, None]
    return np.asarray(vectors / np.where(norms > 0, norms, 1.0), dtype=np.float32)


# ---- Latent semantic analysis: TF-IDF and a truncated SVD fitted on the corpus, no download.
#
# Source: Deerwester et al., JASIS 1990. tf is 1 + ln(tf), and idf is smoothed as in scikit-learn.
# Vectors are projections onto the right singular vectors.

SVD_SEED = 0
SVD_ITERATIONS = 5
BLOCK = 8192
SAMPLE = 50_000
"""Least number of texts of a corpus of which LSA is fitted on a sample, of about this size."""
KEPT_SHARE = 0.9
"""A fit on a sample stays in use while the corpus has this share of the texts of the sample."""


def lsa_hash(text_hashes: Sequence[str], dimensions: int, analyzer: str = ANALYZER) -> str:
    """Hash the inputs of a fit: texts in order, analyzer, dimensions, seed and library version."""
    return digest([list(text_hashes), *lsa_parameters(dimensions, analyzer)], 16)


def lsa_parameters(dimensions: int, analyzer: str) -> list[str | int]:
    """List the inputs of a fit besides the texts."""
    return [analyzer, dimensions, library_versions()["scikit-learn"], SVD_SEED]


def choose_sample(keys: npt.NDArray[np.bytes_]) -> npt.NDArray[np.int64]:
    """Choose the rows of the texts that LSA is fitted on, by the hashes of all texts, bytes [n].

    A large corpus gives the texts with the lowest hashes, in the order of the hashes. So equal
    corpora have equal samples, and a corpus that changed keeps most of its sample.
    """
    if len(keys) <= SAMPLE:
        return np.arange(len(keys))
    limit = f"{int(SAMPLE / len(keys) * 16**8):08x}".encode()
    rows = np.flatnonzero(keys.astype("S8") < limit)
    return rows[np.argsort(keys[rows], kind="stable")]


@dataclasses.dataclass(frozen=True)
class LsaFit:
    """Result of a fit. Column j of the TF-IDF matrix is `terms[j]`."""

    terms: tuple[str, ...]
    idf: npt.NDArray[np.float64]
    components: Float32Array
    """[d, n_terms]; d is the least of wanted size, number of texts and number of terms."""


def fit_lsa(documents: Rows, terms: Sequence[str], dimensions: int) -> LsaFit:
    """Fit on the term ids of each text; `terms` are the terms by id."""
    from scipy.sparse import csr_array, csr_matrix
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.utils.extmath import randomized_svd, svd_flip

    counts = csr_array(count_matrix(documents, len(terms)), shape=(len(documents), len(terms)))
    if counts.nnz == 0:  # only stop words: all vectors are zero and retrieve nothing
        blank = np.zeros((1, len(terms)), dtype=np.float32)
        return LsaFit(tuple(terms), np.ones(len(terms)), blank)
    transformer = TfidfTransformer(sublinear_tf=True)
    weights = csr_matrix(transformer.fit_transform(csr_matrix(counts)), dtype=np.float32)
    size = min(dimensions, *weights.shape)
    # Repeats TruncatedSVD, which refuses a single term and divides 0 by 0 on a single text.
    left, _, right = randomized_svd(
        weights, size, n_iter=SVD_ITERATIONS, random_state=SVD_SEED, flip_sign=False
    )
    components = svd_flip(left, right, u_based_decision=False)[1]
    return LsaFit(
        tuple(terms),
        np.asarray(transformer.idf_, dtype=np.float64),
        np.ascontiguousarray(components, dtype=np.float32),
    )


class LsaEmbedder:
    """Embeds texts with a fit. Its model name holds the `lsa_hash` and the wanted dimensions."""

    def __init__(self, fitted: LsaFit, fit_id: str, dimensions: int) -> None:
        self.model = f"lsa-{dimensions}@{fit_id}"
        self._fit = fitted
        # A product with a transposed view would copy the view for every query.
        self._projection = np.ascontiguousarray(fitted.components.T)
        self._analyzer = Analyzer()
        self._analyzer.vocabulary.update({term: i for i, term in enumerate(fitted.terms)})

    def embed(self, texts: Sequence[str], advance: Advance = no_advance) -> Float32Array:
        """Project texts; words outside the corpus are ignored."""
        return self.embed_terms(self._analyzer.index(texts), advance)

    def columns(self, terms: Sequence[str]) -> Int32Array:
        """Return the id of each term in `embed_terms`; terms that the fit lacks have high ids."""
        column_of, unknown = self._analyzer.vocabulary, len(self._fit.terms)
        return np.array([column_of.get(term, unknown) for term in terms], dtype=np.int32)

    def embed_terms(self, documents: Rows, advance: Advance = no_advance) -> Float32Array:
        """Project term ids in blocks, float32 [n, dimensions]."""
        from scipy.sparse import csr_array

        n_terms, start = len(self._fit.terms), 0
        vectors = np.zeros((len(documents), self._projection.shape[1]), dtype=np.float32)
        for part in TermRows.of(documents).blocks(BLOCK):
            data, indices, indptr = count_matrix(part, n_terms)
            weights = (1.0 + np.log(data)) * self._fit.idf[indices]
            lengths = np.sqrt(
                np.add.reduceat(np.append(weights**2, 0.0), np.minimum(indptr[:-1], len(weights)))
            )
            weights /= np.repeat(np.where(lengths > 0, lengths, 1.0), np.diff(indptr))
            matrix = csr_array(
                (weights.astype(np.float32), indices, indptr), shape=(len(part), n_terms)
            )
            vectors[start : start + len(part)] = unit(matrix @ self._projection)
            start += len(part)
            advance(len(part))
        return vectors


# ---- all-MiniLM-L6-v2 through onnxruntime, from the model file that Chroma uses.

DIMENSIONS = 384
MAX_TOKENS = 256
BATCH_TOKENS = 512
"""Tokens of one batch with padding. 512 fit the processor caches; 4096 take a quarter longer."""

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""Cores that this process may use."""


class OnnxModel:
    """A transformer in an ONNX file, with `tokenizer.json` in the same folder.

    Three things make it several times faster than one call for each text. Texts are sorted by
    length. A batch is padded only to its longest text. Each core works on a batch of its own.
    `fixed_length` is the number of tokens that a model accepts alone, which texts are padded to;
    None for a model of any length.
    """

    def __init__(self, file: Path) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        # Cores that share a batch wait for each other at every layer, so each core has a batch.
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
        inputs = {each.name: each.shape for each in self._session.get_inputs()}
        self._inputs = inputs.keys()
        length = [*inputs.get("input_ids", ()), None, None][1]
        self.fixed_length = length if isinstance(length, int) else None
        self.tokenizer = Tokenizer.from_file(str(file.with_name("tokenizer.json")))
        padding = self.tokenizer.padding or {}
        pad_ids = map(self.tokenizer.token_to_id, ("[PAD]", "<pad>"))
        self._pad = padding.get("pad_id", next((id_ for id_ in pad_ids if id_ is not None), 0))
        self.tokenizer.no_padding()

    def run(
        self, encoded: Sequence[Any], read: Callable[[Any, npt.NDArray[np.int64]], Any]
    ) -> Iterator[tuple[npt.NDArray[np.int64], Any]]:
        """Yield the rows of each batch, and `read(first output, attention mask)` of the batch.

        `encoded` are encodings of `tokenizer`.
        """
        batches = _make_batches(np.array([len(item) for item in encoded], dtype=np.int64))

        def forward(batch: npt.NDArray[np.int64]) -> Any:
            output, mask = self._forward([encoded[at] for at in batch])
            return read(output, mask)

        with ThreadPoolExecutor(CORES) as pool:
            run = pool.map if len(batches) > 1 else map
            yield from zip(batches, run(forward, batches), strict=True)

    def _forward(self, items: Sequence[Any]) -> tuple[Any, npt.NDArray[np.int64]]:
        shape = len(items), self.fixed_length or max(map(len, items))
        feed = {name: np.zeros(shape, dtype=np.int64) for name in MODEL_INPUTS}
        feed["input_ids"][:] = self._pad
        for row, item in enumerate(items):
            for name, values in zip(MODEL_INPUTS, (item.ids, item.type_ids), strict=False):
                feed[name][row, : len(item)] = values
            feed["attention_mask"][row, : len(item)] = 1
        wanted = {name: values for name, values in feed.items() if name in self._inputs}
        return self._session.run(None, wanted)[0], feed["attention_mask"]


MODEL_INPUTS = ("input_ids", "token_type_ids", "attention_mask")
"""Inputs that an ONNX model may have, int64 [batch, sequence] each."""


def _make_batches(lengths: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Batch texts of similar length: one text, or at most BATCH_TOKENS tokens with padding."""
    place = np.argsort(lengths, kind="stable")
    batches, start = [], 0
    for stop in range(1, len(place) + 1):
        if stop == len(place) or (stop + 1 - start) * lengths[place[stop]] > BATCH_TOKENS:
            batches.append(place[start:stop])
            start = stop
    # Mixed lengths, so that the time left can be told from the number of texts done.
    return [batches[at] for at in np.random.default_rng(0).permutation(len(batches))]


class MiniLmEmbedder:
    """Embeds texts with the ONNX model in `folder` (`model.onnx`, `tokenizer.json`).

    The vectors equal those of Chroma's own function: mean pooling over the attention mask, unit
    norm, at most 256 tokens.
    """

    model = "all-MiniLM-L6-v2"

    def __init__(self, folder: Path) -> None:
        self._model = OnnxModel(folder / "model.onnx")
        self._model.tokenizer.enable_truncation(max_length=MAX_TOKENS)

    def embed(self, texts: Sequence[str], advance: Advance = no_advance) -> Float32Array:
        """Embed texts in batches of similar length; rows follow the order of `texts`."""
        vectors = np.zeros((len(texts), DIMENSIONS), dtype=np.float32)
        encoded = self._model.tokenizer.encode_batch_fast(list(texts))
        for batch, pooled in self._model.run(encoded, _pool):
            vectors[batch] = pooled
            advance(len(batch))
        return vectors


def _pool(hidden: Any, mask: npt.NDArray[np.int64]) -> Float32Array:
    """Average the vectors of the tokens of each text, and scale the mean to unit norm."""
    weights = mask[:, :, None].astype(np.float32)
    return unit((hidden * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-9))


# ---- Vectors that a user made: an .npz file with `sha256` (of the UTF-8 text) and `vectors`.

UNIT_TOLERANCE = 1e-3
MAX_RATIO, MAX_SMALL = 20, 100_000_000
"""Most bytes unpacked for each packed byte, in files that unpack to more than `MAX_SMALL` bytes.
Vectors hardly shrink, and hashes, stored as UTF-32, to about an eighth."""
ACCEPTED = "an .npz with `sha256` (n texts of 64 hex digits) and `vectors` (n x d finite numbers)"
_SHA256 = re.compile(r"[0-9a-f]{64}")


def read_vectors(path: Path) -> tuple[list[str], Float32Array]:
    """Read and check a vectors file. Raises `InputError` (`vectors_unreadable`)."""
    try:
        _check_regular(path)
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            _check_size(sum(member.file_size for member in archive.zip.infolist()), path)
            return _check_vectors(archive["sha256"], archive["vectors"])
    except Exception as error:  # zipfile and NumPy raise many kinds on damaged archives.
        raise InputError.of(
            "vectors_unreadable",
            "this is no file of vectors",
            path,
            found=f"{type(error).__name__}: {error}",
            accepted=ACCEPTED,
        ) from error


def _check_regular(path: Path) -> None:
    if path.exists() and not path.is_file():  # reading a pipe would wait for ever
        raise ValueError("no regular file")


def _check_size(unpacked: int, path: Path) -> None:
    if unpacked > max(MAX_SMALL, MAX_RATIO * path.stat().st_size):
        raise ValueError(f"it unpacks to {unpacked:,} bytes")


def _check_vectors(
    keys: npt.NDArray[Any], vectors: npt.NDArray[Any]
) -> tuple[list[str], Float32Array]:
    names: list[str] = keys.astype(str).tolist()
    if keys.ndim != 1 or vectors.ndim != 2 or len(keys) != len(vectors) or not vectors.shape[1]:  # noqa: PLR2004 - rows and columns
        raise ValueError(f"vectors of shape {vectors.shape} for {keys.shape} hashes")
    wrong = next((name for name in names if not _SHA256.fullmatch(name)), None)
    if wrong is not None:
        raise ValueError(f"{quoted(wrong)} is no SHA-256 in lower case")
    if len(set(names)) != len(names):
        raise ValueError(f"{len(names) - len(set(names))} of {len(names)} hashes occur twice")
    with np.errstate(over="ignore"):  # float64 beyond float32 becomes inf, refused below
        vectors = vectors.astype(np.float32, copy=False)
    is_bad = ~np.isfinite(vectors).all(axis=1)
    if is_bad.any():
        raise ValueError(
            f"{is_bad.sum()} vectors hold NaN or infinity, first row {is_bad.argmax()}"
        )
    return names, vectors


class FileEmbedder:
    """Looks vectors up by text; a text without a vector is an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        names, vectors = read_vectors(path)
        self.model = f"vectors-file@{file_hash(path)[:16]}"
        is_unit = np.allclose(row_norms(vectors), 1.0, atol=UNIT_TOLERANCE)
        self._vectors = vectors if is_unit else unit(vectors)
        self._row = {name: i for i, name in enumerate(names)}

    def knows(self, text: str) -> bool:
        """Return whether a text has a vector."""
        return text_hash(text) in self._row

    def embed(self, texts: Sequence[str], advance: Advance = no_advance) -> Float32Array:
        """Return the stored vectors; raise `InputError` where texts have none."""
        rows = [self._row.get(text_hash(text), -1) for text in texts]
        missing = [text for text, row in zip(texts, rows, strict=True) if row < 0]
        if missing:
            examples = "; ".join(quoted(text, 60) for text in missing[:3])
            raise InputError.of(
                "vectors_incomplete",
                f"no vector for {len(missing)} of {len(texts)} texts",
                self.path,
                found=f"without a vector: {examples}",
                accepted="a vector under the SHA-256 of each indexed text "
                "`(title + ' ' + text).strip()` and of each question and paraphrase",
            )
        advance(len(texts))
        return self._vectors[rows]
