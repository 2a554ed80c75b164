"""A large corpus in shards, which several processes or Ray read, mask, cut and screen.

A shard holds consecutive documents of the input. Each step of a shard is an artifact under the
digest of its documents and the version of the stage, so a restart finds the finished shards. A
later run leaves unchanged documents where they are, and makes shards of the new and changed ones.
The frames of a divided corpus name their shards, and equal those of an undivided corpus.
"""

import contextlib
import hashlib
import itertools
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.feather as pf

from rag_eval.core.arrays import BoolArray
from rag_eval.core.errors import InputError, ProblemList
from rag_eval.core.loader import Chunker, ShardedLoader
from rag_eval.corpus.chunking import chunk_documents
from rag_eval.corpus.loading import mask_documents
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.runner import Work
from rag_eval.storage.artifacts import ArtifactStore, Parts, ShardedFrame
from rag_eval.storage.hashing import digest
from rag_eval.storage.home import PARTIAL
from rag_eval.trust.guard import find_across_titles, screen

Digests = npt.NDArray[np.uint64]
"""Digests of documents, [n, 2]: 128 bits each."""
T = TypeVar("T")
R = TypeVar("R")

READ: Final = "shard_documents"
CUT: Final = "shard_chunks"
SCREENED: Final = "shard_findings"
_ORDER: Final[Mapping[str, tuple[str, ...]]] = {
    "documents": ("doc_id",),
    "sections": ("doc_id", "start"),
    "sources": ("doc_id",),
    "masked": ("doc_id",),
    "chunks": ("section_id", "chunk_id"),
    "findings": ("in_title", "doc_id"),
}
"""Columns that order each frame, as in an undivided corpus."""
_MOST_SHARDS: Final = 3
"""A corpus is divided anew when small shards of changes make this many times the usual number."""


class Shard(NamedTuple):
    """A shard of a corpus: its key in the store, and what became of its documents."""

    key: str
    n_documents: int
    gone: list[str]
    """Ids of the documents that changed or went after the shard was made."""


class Layout(NamedTuple):
    """The shards of a corpus, and the digest of the version and configuration that made them."""

    made_by: str
    shards: list[Shard]
    content: str
    """Hash of the documents without regard to their order and shards."""


# ---- Division: one pass over the input writes the rows of new and changed documents to files.


def _digest_rows(batch: pa.RecordBatch) -> Digests:
    """Hash the rows of a batch of `ShardedLoader.batches` without their files and lines."""
    text = pa.large_string()
    parts = []
    for name in batch.schema.names[:-2]:
        column = batch[name].cast(text)
        # The length makes the border between two values certain.
        sizes = pc.binary_length(column).cast(text)
        joined = pc.binary_join_element_wise(sizes, column, pa.scalar(":", text))
        parts.append(pc.fill_null(joined, pa.scalar("-", text)))
    rows = pc.binary_join_element_wise(*parts, pa.scalar("|", text))
    _, places, data = rows.buffers()
    offsets = np.frombuffer(places, np.int64)[rows.offset : rows.offset + len(rows) + 1].tolist()
    view = memoryview(data)
    hashes = (hashlib.sha256(view[low:high]).digest() for low, high in itertools.pairwise(offsets))
    return np.frombuffer(b"".join(hashes), np.uint64).reshape(-1, 4)[:, :2]


def _hash_content(digests: Digests) -> str:
    ordered = digests[np.lexsort((digests[:, 1], digests[:, 0]))]
    return hashlib.sha256(ordered.tobytes()).hexdigest()


class _StoredDocuments:
    """The documents of stored shards, which are looked up by their digests."""

    def __init__(self, store: ArtifactStore, shards: Sequence[Shard]) -> None:
        self._shards = shards
        self._ids: list[pa.ChunkedArray] = []
        digests = [np.zeros((0, 2), dtype=np.uint64)]
        for shard in shards:
            read = store.need(READ, shard.key)
            ids = read.table("documents", ["doc_id"])["doc_id"]
            is_left = pc.invert(pc.is_in(ids, pa.array(shard.gone, ids.type)))
            self._ids.append(ids.filter(is_left))
            digests.append(read.array("digests")[is_left.to_numpy()])
        every: Digests = np.concatenate(digests)
        self._order = np.argsort(every[:, 0], kind="stable")
        self._sorted = every[self._order]
        self._is_in_input = np.zeros(len(every), dtype=bool)

    def look_up(self, digests: Digests) -> BoolArray:
        """Tell which documents are stored, and note that the input still has them."""
        if not len(self._sorted):
            return np.zeros(len(digests), dtype=bool)
        at = np.searchsorted(self._sorted[:, 0], digests[:, 0])
        at = np.minimum(at, len(self._sorted) - 1)
        same: BoolArray = (self._sorted[at] == digests).all(axis=1)
        self._is_in_input[self._order[at[same]]] = True
        return same

    def shards_left(self) -> list[Shard]:
        """Return the shards with documents that the input still has, and note what is gone."""
        left, start = list[Shard](), 0
        for shard, ids in zip(self._shards, self._ids, strict=True):
            is_gone = ~self._is_in_input[start : start + len(ids)]
            start += len(ids)
            if not is_gone.all():
                gone = ids.filter(pa.array(is_gone)).to_pylist()
                left.append(shard._replace(gone=sorted([*shard.gone, *gone])))
        return left


def divide(work: Work, spec: ShardedLoader, n_shards: int, before: Layout | None) -> Layout:
    """Divide a corpus into shards, and read and mask the new and changed documents.

    `before` are the shards of the run before. Raises InputError with the problems of a shard.
    """
    made_by = digest(
        [READ, work.version, spec.model_dump(mode="json", exclude={"chunker", "shards"})]
    )
    store, home = _shared_store(work), work.evaluation.home
    size = max(1, math.ceil(spec.n_rows(work.base) / n_shards))
    shards = before.shards if before is not None and before.made_by == made_by else []
    stored = _StoredDocuments(store, shards if len(shards) < _MOST_SHARDS * n_shards else [])
    ids, digests = list[pa.Array](), [np.zeros((0, 2), dtype=np.uint64)]

    def new_rows() -> Iterator[pa.RecordBatch]:
        for batch in spec.batches(work.base):
            rows = _digest_rows(batch)
            digests.append(rows)
            ids.append(batch["id"])
            raw = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(16), len(rows), [None, pa.py_buffer(rows.tobytes())]
            )
            yield batch.append_column("digest", raw).filter(pa.array(~stored.look_up(rows)))

    home.folder.mkdir(parents=True, exist_ok=True)
    # The name lets a later run remove what a killed run left.
    with tempfile.TemporaryDirectory(dir=home.folder, prefix=PARTIAL) as scratch:
        with work.progress.step("Dividing the corpus into shards"):
            batches = new_rows()
            first = next(batches, None)
            if first is not None:
                ds.write_dataset(
                    itertools.chain([first], batches),
                    scratch,
                    basename_template="{i}.arrow",
                    format="feather",
                    schema=first.schema,
                    use_threads=False,
                    max_rows_per_file=size,
                    max_rows_per_group=size,
                    existing_data_behavior="overwrite_or_ignore",
                )
            _refuse_repeated_ids(work, spec, pa.chunked_array(ids, pa.large_string()))
        tasks, new = list[_Task](), list[Shard]()
        for path in sorted(Path(scratch).iterdir(), key=lambda path: int(path.stem)):
            column = pf.read_table(path, ["digest"])["digest"]
            rows = np.frombuffer(b"".join(column.to_pylist()), np.uint64).reshape(-1, 2)
            if len(rows):
                new.append(Shard(digest([made_by, _hash_content(rows)]), len(rows), []))
                name = f"{path.parent.name}/{path.name}"
                tasks.append(_Task(store, READ, new[-1].key, name, spec))
                if home.is_remote:  # every worker finds the file there
                    home.write(name, path.read_bytes())
        try:
            _run_all(work, tasks)
        finally:
            for task in tasks if home.is_remote else ():
                home.delete(task.source)
    left = stored.shards_left()
    work.made_from += [(READ, shard.key) for shard in left]
    return Layout(made_by, [*left, *new], _hash_content(np.concatenate(digests)))


def _refuse_repeated_ids(work: Work, spec: ShardedLoader, ids: pa.ChunkedArray) -> None:
    """Raise InputError with the places of the documents that share an id."""
    if len(ids.unique()) == len(ids):
        return
    counts = ids.value_counts()
    repeated = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
    rows = (batch.filter(pc.is_in(batch["id"], repeated)) for batch in spec.batches(work.base))
    problems = ProblemList()
    for _ in spec.documents_of(rows, problems):
        pass
    problems.raise_errors()


# ---- Steps of a shard, as pure functions of its artifacts.


class _Task(NamedTuple):
    """One step of one shard: small enough to be sent, because it names artifacts."""

    store: ArtifactStore
    kind: str
    key: str
    source: str
    """Key of the documents that the step reads; for `READ`, the name of the rows."""
    options: Any


def _shared_store(work: Work) -> ArtifactStore:
    return ArtifactStore(work.evaluation.home.for_workers())


def _read(task: _Task) -> Parts:
    spec: ShardedLoader = task.options
    table = pf.read_table(pa.BufferReader(task.store.home.read(task.source)))
    problems = ProblemList()
    documents = list(spec.documents_of(table.drop_columns("digest").to_batches(), problems))
    problems.raise_errors()
    masked = mask_documents(documents, spec)
    digests = dict(zip(*(table[name].to_pylist() for name in ("id", "digest")), strict=True))
    in_order = b"".join(digests[doc_id] for doc_id in masked.frames.documents["doc_id"].tolist())
    rows = np.frombuffer(in_order, np.uint64).reshape(-1, 2)
    return {**masked.frames._asdict(), "masked": masked.masked, "digests": rows}


def _cut(task: _Task) -> Parts:
    source = task.store.need(READ, task.source)
    chunks = chunk_documents(source.frame("documents"), source.frame("sections"), task.options)
    across = find_across_titles(chunks)
    ids = ["doc_id", "section_id", "chunk_id"]
    names = chunks[ids].iloc[across["row"].to_numpy(dtype=np.int64)]
    return {"chunks": chunks, "across": across.assign(**names.reset_index(drop=True))}


def _screen(task: _Task) -> Parts:
    documents = task.store.need(READ, task.source).frame("documents")
    return {"findings": screen_documents(documents)}


_STEPS: Final[Mapping[str, Callable[[_Task], Parts]]] = {
    READ: _read,
    CUT: _cut,
    SCREENED: _screen,
}


def screen_documents(documents: pd.DataFrame) -> pd.DataFrame:
    """Screen texts and titles of DOCUMENTS one by one: FINDINGS with `doc_id` and `in_title`."""
    of_texts = screen(documents["text"].tolist())
    of_titles = screen(documents["title"].tolist()).assign(start=-1, end=-1)
    parts = [of_texts.assign(in_title=False), of_titles.assign(in_title=True)]
    findings = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    owners = documents["doc_id"].to_numpy(dtype=object)[findings["row"].to_numpy(dtype="int64")]
    return findings.assign(doc_id=pd.Series(owners, dtype="str"))


def _run(task: _Task) -> None:
    """Make and store one step of a shard, in any process."""
    made_from = [] if task.kind == READ else [(READ, task.source)]
    task.store.put(task.kind, _STEPS[task.kind](task), made_from=made_from, key=task.key)


def run_step(
    work: Work, kind: str, layout: Layout, chunker: Chunker | None = None
) -> dict[str, str]:
    """Run one step over the documents of all shards; return the key of each shard's result.

    Only the step `CUT` has a chunker.
    """
    setting = None if chunker is None else chunker.model_dump(mode="json")
    keys = {shard.key: digest([kind, work.version, shard.key, setting]) for shard in layout.shards}
    store = _shared_store(work)
    _run_all(work, [_Task(store, kind, key, source, chunker) for source, key in keys.items()])
    return keys


def sharded_frame(
    layout: Layout, kind: str, name: str, content: object, keys: Mapping[str, str] | None = None
) -> ShardedFrame:
    """Describe a frame of all shards: those of a step with its `keys`, else those of `READ`.

    `content` identifies everything that decides the rows, besides the documents.
    """
    gone = {shard.key if keys is None else keys[shard.key]: shard.gone for shard in layout.shards}
    return ShardedFrame(kind, gone, _ORDER[name], digest([name, layout.content, content]))


# ---- The executors: this process, processes of this machine, or Ray.

_MOST_TASKS: Final = 100
"""Most tasks that Ray holds at a time; a block of texts to embed has some megabytes."""


def _run_all(work: Work, tasks: Sequence[_Task]) -> None:
    """Run the tasks that no run has finished, and record all as origins of the result."""
    left = [task for task in tasks if task.store.whole(task.kind, task.key) is None]
    if left:
        title = f"Making {left[0].kind.replace('_', ' ')}"
        with work.progress.step(title, len(left), "shards") as advance:
            for _ in _execute(left, work):
                advance(1)
    if any(task.store.get(task.kind, task.key) is None for task in left):
        message = "the workers do not share the home of this process"
        raise InputError.of("shard_not_stored", message, work.evaluation.home.url, field="ray")
    work.made_from += [(task.kind, task.key) for task in tasks]


def _execute(tasks: Sequence[_Task], work: Work) -> Iterator[None]:
    if work.settings.ray is not None:
        return run_on_ray(work.settings.ray, _run, tasks)
    if min(work.evaluation.n_workers, len(tasks)) == 1:
        return map(_run, tasks)
    return _run_in_pool(tasks, work.evaluation)


def _run_in_pool(tasks: Sequence[_Task], evaluation: Evaluation) -> Iterator[None]:
    with contextlib.ExitStack() as on_error:
        on_error.callback(evaluation.close_pool)
        running = [evaluation.pool.submit(_run, task) for task in tasks]
        try:
            for future in as_completed(running):
                yield future.result()
        except BrokenProcessPool as error:
            message = "a worker process ended; run again, which goes on after the finished shards"
            # A spawned worker imports the main script, and starts its work anew without a guard.
            accepted = (
                "fewer shard_workers, if the memory was short; a script that does its work below "
                "`if __name__ == '__main__':`, if one called this"
            )
            raise InputError.of(
                "worker_lost", message, field="shard_workers", accepted=accepted
            ) from error
        on_error.pop_all()  # later steps use the same processes


def run_on_ray(address: str, run: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
    """Run a function over tasks on a Ray cluster, and yield the results in any order.

    Ray repeats the tasks of lost workers.
    """
    import ray

    owned = not ray.is_initialized()
    if owned:
        ray.init(address, include_dashboard=False if address == "local" else None)
    try:
        remote, running, waiting = ray.remote(max_retries=3)(run).remote, list[Any](), iter(tasks)
        while True:
            running += map(remote, itertools.islice(waiting, _MOST_TASKS - len(running)))
            if not running:
                return
            done, running = ray.wait(running)
            yield from ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, InputError) else error from None
    finally:
        if owned:
            ray.shutdown()
