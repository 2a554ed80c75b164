"""The chunks of a corpus and their embedding, with cached vectors; new texts are embedded."""

import dataclasses
import functools
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.core.arrays import Float32Array, Int32Array, IntArray, find_rows
from rag_eval.core.parts import Embedding
from rag_eval.corpus.analyzer import ANALYZER, Analyzer, TermRows, find_pairs
from rag_eval.retrieval.embedding.embedders import (
    KEPT_SHARE,
    Advance,
    Embedder,
    FileEmbedder,
    LsaEmbedder,
    LsaFit,
    MiniLmEmbedder,
    choose_sample,
    fit_lsa,
    lsa_hash,
    lsa_parameters,
    no_advance,
)
from rag_eval.storage.artifacts import ARTIFACTS, Artifact, ArtifactStore, Parts, make_scratch_array
from rag_eval.storage.hashing import canonical_json, digest, file_hash, lines_hash, text_hash
from rag_eval.storage.home import Home, atomic_path

# ---- The chunks as engines see them, and the name of an embedding model.

BLOCK = 8192
"""Number of texts that are read, or embedded between two writes, at a time."""


class ChunkTable:
    """The chunks of one corpus revision under one chunker.

    `chunks` are in the order (section_id, chunk_id), because row numbers break ties. With a `home`,
    the large arrays about the chunks are stored and memory-mapped.
    """

    def __init__(
        self,
        chunks: pd.DataFrame,
        chunks_hash: str,
        home: Home | None = None,
        analyzer: str = ANALYZER,
    ) -> None:
        self.frame = chunks
        self.chunks_hash = chunks_hash
        self.analyzer_name = analyzer
        self.home = home
        self.made_from: set[tuple[str, str]] = set()
        """Stored arrays that were used, as (kind, key)."""

    def __len__(self) -> int:
        return len(self.frame)

    @functools.cached_property
    def chunk_ids(self) -> list[str]:
        """Id of each chunk."""
        return list(self.frame["chunk_id"])

    @functools.cached_property
    def doc_ids(self) -> list[str]:
        """Document of each chunk."""
        return list(self.frame["doc_id"])

    @property
    def owners(self) -> dict[str, str]:
        """Document of each chunk id, in the order of the chunks."""
        return dict(zip(self.chunk_ids, self.doc_ids, strict=True))

    @property
    def text_hashes(self) -> list[str]:
        """Hash of the indexed text of each chunk."""
        hashes: list[str] = self.frame["text_hash"].tolist()
        return hashes

    @functools.cached_property
    def texts(self) -> list[str]:
        """Indexed text of each chunk: title and text."""
        return self.texts_of(slice(None))

    def texts_of(self, rows: "slice | npt.NDArray[Any]") -> list[str]:
        """Return the indexed texts of some chunks."""
        titles, texts = (self.frame[name].iloc[rows].tolist() for name in ("title", "text"))
        return [f"{title} {text}".strip() for title, text in zip(titles, texts, strict=True)]

    def keep(self, kind: str, parameters: Sequence[object], make: Callable[[], Parts]) -> Parts:
        """Return stored parts about these texts, or make and store them. Arrays are mapped."""
        if self.home is None:
            return make()
        key = digest([kind, self._texts_hash, *parameters])
        stored = ArtifactStore(self.home).memo(kind, key, make)
        self.made_from.add((kind, key))
        return _open_parts(stored)

    @functools.cached_property
    def _texts_hash(self) -> str:
        return lines_hash(self.text_hashes)

    @property
    def scratch(self) -> Path | None:
        """Folder of scratch arrays; None for the folder of temporary files."""
        return None if self.home is None else self.home.folder

    # ---- Terms, with the vocabulary of the corpus.

    @functools.cached_property
    def _terms(self) -> Parts:
        return self.keep("terms", [self.analyzer_name], self._analyse)

    @functools.cached_property
    def terms(self) -> TermRows:
        """Term ids of each chunk. The first use builds the vocabulary of the corpus."""
        return TermRows(self._terms["indptr"], self._terms["ids"])

    @property
    def n_terms(self) -> int:
        """Number of terms in the corpus vocabulary."""
        return len(self.vocabulary)

    @property
    def vocabulary(self) -> list[str]:
        """Corpus terms by id, in the order of their first place in the corpus."""
        names: list[str] = self._terms["vocabulary"]
        return names

    @functools.cached_property
    def _analyzer(self) -> Analyzer:
        analyzer = Analyzer()
        analyzer.vocabulary.update(zip(self.vocabulary, range(self.n_terms), strict=True))
        return analyzer

    def query_terms(self, queries: list[str]) -> list[list[int]]:
        """Return the term ids of queries; the corpus lacks terms with ids at or above `n_terms`."""
        return self._analyzer.index(queries)

    @functools.cached_property
    def _pairs(self) -> dict[str, list[int]]:
        return {} if self.analyzer_name == ANALYZER else find_pairs(self.vocabulary)

    def search_terms(self, queries: list[str]) -> list[list[int]]:
        """Return the term ids of queries; a query of single characters also asks for their pairs.

        The corpus holds 猫 mostly inside of pairs. Beside other terms, the many rare pairs of a
        particle would outweigh the rest of the query.
        """
        rows, ids = self.query_terms(queries), self._analyzer.vocabulary
        single = {ids[name]: pairs for name, pairs in self._pairs.items() if name in ids}
        return [
            [pair for term in row for pair in (term, *single[term])]
            if all(term in single for term in row)
            else row
            for row in rows
        ]

    def _analyse(self) -> Parts:
        analyzer = Analyzer()
        blocks = (slice(start, start + BLOCK) for start in range(0, len(self), BLOCK))
        terms = TermRows.join(
            [TermRows.of(analyzer.index(self.texts_of(block))) for block in blocks]
        )
        return {"indptr": terms.indptr, "ids": terms.ids, "vocabulary": list(analyzer.vocabulary)}

    @functools.cached_property
    def row_of(self) -> dict[str, int]:
        """Row of each chunk id."""
        return {chunk: row for row, chunk in enumerate(self.chunk_ids)}


def _open_parts(stored: Artifact) -> Parts:
    """Open the parts of an artifact: arrays mapped, and JSON."""
    names = {Path(name) for name in stored.files}
    return {
        name.stem: stored.mapped(name.stem) if name.suffix == ".npy" else stored.json(name.stem)
        for name in names
    }


def pack_hashes(hashes: Sequence[str]) -> npt.NDArray[Any]:
    """Pack text hashes, 64 hex digits each, in an array of bytes [n]."""
    return np.array(hashes, dtype="S64")


def embed_model(embedding: Embedding, lsa_fit: Callable[[int], str], base: Path) -> str:
    """Name the model and everything that changes its vectors, without loading it.

    `lsa_fit` gives the id of the LSA model of a number of dimensions. Relative paths start from
    `base`.
    """
    if embedding.vectors is not None:
        path = base / embedding.vectors
        return f"vectors-file@{file_hash(path)[:16]}" if path.is_file() else "vectors-file@missing"
    model = embedding.model or ""
    if model.startswith("lsa-"):
        return f"{model}@{lsa_fit(int(model.removeprefix('lsa-')))}"
    if model.startswith("chroma:"):
        return f"{model}@{digest(dict(embedding.config), 16)}"
    return model


LSA = "lsa"
"""Kind of the artifact with a fitted LSA model."""


def find_lsa_fit(
    home: Home, keys: npt.NDArray[Any], dimensions: int, analyzer: str = ANALYZER
) -> str:
    """Return the id of the LSA model for a corpus, which may not be fitted yet.

    `keys` are the hashes of the texts, bytes [n]. A small corpus has the model that is fitted on
    all of its texts. For a large corpus, the home may have a model that is fitted on a sample of
    which the corpus has `KEPT_SHARE`. The model with the largest share is used, because a new model
    would embed all texts again. Without one, a sample of the corpus is fitted. The id is a hash of
    the sample, so it tells the models apart.
    """
    sample = keys[choose_sample(keys)]
    own_fit = lsa_hash(sample.astype(str).tolist(), dimensions, analyzer)
    if len(sample) == len(keys):
        return own_fit
    shares, store = {own_fit: KEPT_SHARE}, ArtifactStore(home)
    names = {name.split("/")[2] for name in home.names(f"{ARTIFACTS}/{LSA}")}
    for key in names:
        stored = store.whole(LSA, key)
        if stored is None or "sample.npy" not in stored.files:
            continue
        if stored.json("parameters") == lsa_parameters(dimensions, analyzer):
            shares[key] = float((find_rows(keys, stored.array("sample")) >= 0).mean())
    return max(shares, key=lambda key: (shares[key], key == own_fit, key))


# ---- Stored vectors by (text hash, model), so that no text is embedded twice.

EMBEDDINGS, MODEL_FILE = "embeddings", "model.json"
EmbedBlocks = Callable[[list[IntArray]], Iterator[tuple[IntArray, Float32Array]]]
"""Embeds texts in blocks of their places, and yields each block with its vectors in any order."""


def _read_segment(path: Path) -> tuple[npt.NDArray[Any], Float32Array]:
    """Read the keys, bytes [n], and the vectors [n, d] of a segment, which has checksums."""
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        keys, vectors = archive["keys"], archive["vectors"]
    if vectors.ndim != 2 or len(keys) != len(vectors):  # noqa: PLR2004 - rows and columns
        raise ValueError(f"{len(keys)} texts, vectors {vectors.shape}")
    return keys, vectors


class EmbeddingCache:
    """The vectors of one model in a home.

    Its folder has immutable segments, which are written atomically. Concurrent writers add segments
    and lose nothing. A damaged segment is set aside, and its texts are embedded again. The vectors
    of one segment at a time are in memory.
    """

    def __init__(self, home: Home, model: str) -> None:
        self.home = home
        self.folder = f"{EMBEDDINGS}/{digest(model)}"
        """Name of the folder in the home."""
        self.n_embedded = 0
        """Number of texts that were not in the cache and that `rows` embedded."""
        self._keys: list[npt.NDArray[Any]] = []
        self._segments: list[tuple[Path, tuple[int, ...]]] = []
        """File and shape of each segment."""
        if not home.has(f"{self.folder}/{MODEL_FILE}"):
            home.write(f"{self.folder}/{MODEL_FILE}", canonical_json({"model": model}).encode())
        for name in home.names(self.folder):
            if not name.endswith(".npz"):
                continue
            try:
                self._take(home.fetch(name))
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as bad:
                home.set_aside(name, f"{type(bad).__name__}: {bad}")

    def _take(self, path: Path) -> None:
        keys, vectors = _read_segment(path)
        self._keys.append(keys)
        self._segments.append((path, vectors.shape))

    def find(self, keys: npt.NDArray[Any]) -> IntArray:
        """Return the row of each text hash (bytes [n]) for `vectors`; -1 for an unknown text."""
        if len(self._keys) > 1:
            self._keys = [np.concatenate(self._keys)]
        return find_rows(self._keys[0] if self._keys else keys[:0], keys)

    def vectors(self, rows: IntArray) -> Float32Array:
        """Return the vectors of rows, float32 [n, d]."""
        ends = np.cumsum([shape[0] for _, shape in self._segments])
        segment = np.searchsorted(ends, rows, side="right")
        vectors = np.zeros((len(rows), self._segments[0][1][1]), dtype=np.float32)
        for number in np.unique(segment).tolist():
            place = np.flatnonzero(segment == number)
            path, shape = self._segments[number]
            vectors[place] = _read_segment(path)[1][rows[place] - (ends[number] - shape[0])]
        return vectors

    def add(self, keys: npt.NDArray[Any], vectors: Float32Array) -> None:
        """Store vectors under new text hashes."""
        name = f"{self.folder}/segment-{lines_hash(keys.astype(str).tolist())}.npz"
        path = self.home.folder / name
        with atomic_path(path) as partial, partial.open("wb") as stream:
            np.savez(stream, keys=keys, vectors=vectors)
        if self.home.is_remote:
            self.home.put(name, path)
        self._take(path)

    def rows(self, keys: npt.NDArray[Any], embed: EmbedBlocks, advance: Advance) -> IntArray:
        """Return the rows of all texts; each distinct text that the cache lacks is embedded once.

        `embed` gives the vectors of texts by their places. A killed run keeps the finished blocks.
        """
        first = find_rows(keys, keys) == np.arange(len(keys))
        new = np.flatnonzero(first & (self.find(keys) < 0))
        blocks = [new[start : start + BLOCK] for start in range(0, len(new), BLOCK)]
        for block, vectors in embed(blocks):
            self.add(keys[block], vectors)
        advance(len(keys) - len(new))
        self.n_embedded += len(new)
        return self.find(keys)

    def embed(
        self, texts: Sequence[str], embed: Callable[[list[str]], Float32Array]
    ) -> Float32Array:
        """Return float32 [n, d] vectors of texts, and embed each distinct new text once."""
        if not texts:
            return np.zeros((0, 1), dtype=np.float32)

        def embed_blocks(blocks: list[IntArray]) -> Iterator[tuple[IntArray, Float32Array]]:
            return ((rows, embed([texts[row] for row in rows.tolist()])) for rows in blocks)

        keys = pack_hashes([text_hash(text) for text in texts])
        return self.vectors(self.rows(keys, embed_blocks, no_advance))


# ---- The vectors of one corpus.


@dataclasses.dataclass(frozen=True)
class Places:
    """Places that an embedding uses."""

    base: Path
    """Folder that relative paths of the configuration start from."""
    home: Home
    """Home of cached vectors, of fitted models, and of models that were made from packages."""


def _open_network(spec: Embedding, home: Home) -> Embedder:
    """Open a neural embedder: a Chroma function, else MiniLM."""
    from rag_eval.retrieval.chroma import ChromaFunctionEmbedder, model_folder

    model = spec.model or ""
    if model.startswith("chroma:"):
        return ChromaFunctionEmbedder(model.removeprefix("chroma:"), spec.config)
    return MiniLmEmbedder(model_folder(home.folder / "models"))


class Block(NamedTuple):
    """A block of texts for a worker, which opens the embedder itself."""

    number: int
    texts: list[str]
    spec: Embedding
    home: Home


_opened: dict[tuple[str, str], Embedder] = {}
"""Embedders of this worker by configuration and home."""


def _embed_block(block: Block) -> tuple[int, Float32Array]:
    """Embed a block in any process; return its number and vectors, float32 [n, d]."""
    key = block.spec.model_dump_json(), block.home.url
    if key not in _opened:
        _opened[key] = _open_network(block.spec, block.home)
    return block.number, _opened[key].embed(block.texts)


Spread = Callable[
    [Callable[[Block], tuple[int, Float32Array]], Iterable[Block]],
    Iterator[tuple[int, Float32Array]],
]
"""Runs a function over blocks on other machines, and yields the results in any order."""


class EmbeddingSource:
    """Vectors of the chunks and of queries under one embedding."""

    spread: Spread | None = None
    """Runs neural embedders elsewhere; None embeds in this process, with a thread for each core."""

    def __init__(self, spec: Embedding, table: ChunkTable, places: Places) -> None:
        self.spec, self.table, self.places = spec, table, places
        self._name = spec.model or ""
        self.model = embed_model(spec, self._find_fit, places.base)
        self._caches: dict[str, EmbeddingCache] = {}
        self._chunks: Float32Array | None = None

    @functools.cached_property
    def embedder(self) -> Embedder:
        """The embedder, opened or fitted when first needed."""
        if self.spec.vectors is not None:
            return FileEmbedder(self.places.base / self.spec.vectors)
        return self._lsa or _open_network(self.spec, self.places.home)

    def _find_fit(self, dimensions: int) -> str:
        table = self.table
        hashes = pack_hashes(table.text_hashes)
        return find_lsa_fit(self.places.home, hashes, dimensions, table.analyzer_name)

    @functools.cached_property
    def _lsa(self) -> LsaEmbedder | None:
        """The LSA model, fitted where the home lacks it; None for another embedding."""
        if not self._name.startswith("lsa-"):
            return None
        dimensions, identity = int(self._name.removeprefix("lsa-")), self.model.partition("@")[2]
        learn = functools.partial(self._learn, dimensions, identity)
        stored = ArtifactStore(self.places.home).memo(LSA, identity, learn)
        fit = LsaFit(tuple(stored.json("terms")), stored.array("idf"), stored.array("components"))
        return LsaEmbedder(fit, identity, dimensions)

    def _learn(self, dimensions: int, identity: str) -> Parts:
        table = self.table
        keys = pack_hashes(table.text_hashes)
        rows = choose_sample(keys)
        terms, names, more = table.terms, table.vocabulary, dict[str, object]()
        if len(rows) < len(keys):
            hashes, analyzer_name = keys[rows].astype(str).tolist(), table.analyzer_name
            if identity != lsa_hash(hashes, dimensions, analyzer_name):
                raise RuntimeError(f"the LSA model {identity} is no longer in the home")
            # The order of the terms must not depend on texts outside of the sample.
            analyzer = Analyzer()
            terms = TermRows.of(analyzer.index(table.texts_of(rows)))
            names = list(analyzer.vocabulary)
            more = {"sample": keys[rows], "parameters": lsa_parameters(dimensions, analyzer_name)}
        fitted = fit_lsa(terms, names, dimensions)
        arrays = {"idf": fitted.idf, "components": fitted.components}
        return {"terms": list(fitted.terms), **arrays, **more}

    def _cache(self, model: str) -> EmbeddingCache:
        if model not in self._caches:
            self._caches[model] = EmbeddingCache(self.places.home, model)
        return self._caches[model]

    @property
    def n_embedded(self) -> int:
        """Number of texts, chunks and queries, that were embedded and not in the cache."""
        return sum(cache.n_embedded for cache in self._caches.values())

    def chunk_vectors(self, advance: Advance = no_advance) -> Float32Array:
        """Embed all chunks, float32 [n_chunks, d] in chunk order, rows of unit norm or zero."""
        if self._chunks is None:
            parts = self.table.keep("chunk_vectors", [self.model], lambda: self._gather(advance))
            self._chunks = parts["vectors"]
        return self._chunks

    def _gather(self, advance: Advance) -> Parts:
        """Embed the texts that the cache lacks, and copy the vectors of all chunks to one array."""
        table, cache = self.table, self._cache(self.model)
        embed = functools.partial(self._embed_chunks, advance)
        rows = cache.rows(pack_hashes(table.text_hashes), embed, advance)
        width = cache.vectors(rows[:1]).shape[1]
        vectors = make_scratch_array((len(rows), width), np.float32, table.scratch)
        for start in range(0, len(rows), BLOCK):
            vectors[start : start + BLOCK] = cache.vectors(rows[start : start + BLOCK])
        return {"vectors": vectors}

    def _embed_chunks(
        self, advance: Advance, blocks: list[IntArray]
    ) -> Iterator[tuple[IntArray, Float32Array]]:
        table, lsa = self.table, self._lsa
        if lsa is not None:
            columns: Int32Array = lsa.columns(table.vocabulary) if blocks else np.zeros(0, np.int32)
            for rows in blocks:
                terms = table.terms.take(rows)
                yield rows, lsa.embed_terms(TermRows(terms.indptr, columns[terms.ids]), advance)
        elif self.spread is None or self.spec.vectors is not None:
            for rows in blocks:
                yield rows, self.embedder.embed(table.texts_of(rows), advance)
        else:
            home = self.places.home.for_workers()
            tasks = (
                Block(number, table.texts_of(rows), self.spec, home)
                for number, rows in enumerate(blocks)
            )
            for number, vectors in self.spread(_embed_block, tasks):
                advance(len(vectors))
                yield blocks[number], vectors

    def can_embed(self, query: str) -> bool:
        """Check whether a question can be embedded. A file of vectors only has its own texts."""
        embedder = self.embedder
        return not isinstance(embedder, FileEmbedder) or embedder.knows(query)

    def query_vectors(self, queries: list[str], *, cached: bool = True) -> Float32Array:
        """Embed queries, float32 [n, d]. `cached=False` embeds again, as for a live query."""

        def embed(texts: list[str]) -> Float32Array:
            vectors: Float32Array = getattr(self.embedder, "embed_queries", self.embedder.embed)(
                texts
            )
            return vectors

        if not cached:
            return embed(queries)
        # A Chroma function may embed questions differently from documents.
        name = f"{self.model} questions" if self._name.startswith("chroma:") else self.model
        return self._cache(name).embed(queries, embed)
