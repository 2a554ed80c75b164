"""Corpora in shards: each is read, masked, cut and screened alone, by several processes or by Ray.

A shard holds the documents whose hashed ids lie in one range, so a new document moves no other.
Each step of a shard is an artifact under the digest of the shard's documents and the version of
the stage. A restart finds the finished shards. A changed shard takes the rows of its unchanged
documents from the run before. The results equal those of an undivided corpus.
"""

import concurrent.futures
import contextlib
import hashlib
import itertools
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Final, NamedTuple

import pandas as pd
import pyarrow as pa

from rag_eval.core.errors import InputError, ProblemList
from rag_eval.core.loader import Chunker, ShardedLoader
from rag_eval.core.settings import Settings
from rag_eval.corpus.chunking import chunk_documents
from rag_eval.corpus.loading import mask_documents
from rag_eval.pipeline.runner import Work
from rag_eval.storage.artifacts import PARTIAL, Artifact, ArtifactStore
from rag_eval.storage.hashing import digest, lines_hash
from rag_eval.storage.home import Home
from rag_eval.trust.guard import screen

Frames = dict[str, pd.DataFrame]
READ: Final = "shard_documents"
CUT: Final = "shard_chunks"
SCREENED: Final = "shard_findings"
_ORDER: Final[Mapping[str, tuple[str, ...]]] = {
    "documents": ("doc_id",),
    "sections": ("doc_id", "start"),
    "sources": ("doc_id",),
    "masked": ("doc_id",),
    "rows": ("doc_id",),
    "chunks": ("section_id", "chunk_id"),
    "findings": ("in_title", "doc_id"),
}
"""Columns that order each frame, as in an undivided corpus."""


class Shard(NamedTuple):
    """Keys of the documents of a shard, now and in the run before (empty without one)."""

    key: str
    before: str


# ---- Cutting: one pass over the input writes the rows of each shard to a file.


def shard_of(doc_id: str, n_shards: int) -> int:
    """Return the shard of a document: the range of its hash.

    Examples
    --------
    >>> [shard_of(name, 4) for name in ("a", "b", "c")]
    [1, 2, 0]
    """
    data = hashlib.blake2b(doc_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(data, "big") * n_shards >> 64


class _Rows(NamedTuple):
    path: Path
    digest: str
    """Hash of the documents without regard to their order and files."""


def _split(batches: Iterator[pa.RecordBatch], n_shards: int, folder: Path) -> list[_Rows]:
    """Write the rows of each shard with their digests; memory is bounded by a batch."""
    paths = [folder / f"{number}.arrow" for number in range(n_shards)]
    digests: list[list[str]] = [[] for _ in paths]
    with contextlib.ExitStack() as stack:
        writers: dict[int, Any] = {}
        for batch in batches:
            values = (batch[name].to_pylist() for name in batch.schema.names[:-2])
            found = [
                lines_hash("-" if value is None else f"+{value}" for value in row)
                for row in zip(*values, strict=True)
            ]
            batch = batch.append_column("digest", pa.array(found, pa.string()))  # noqa: PLW2901 - the same rows
            shards = [shard_of(name or "", n_shards) for name in batch["id"].to_pylist()]
            order = sorted(range(len(shards)), key=shards.__getitem__)
            batch = batch.take(pa.array(order, pa.int64()))  # noqa: PLW2901 - the same rows
            start = 0
            for shard, members in itertools.groupby(sorted(shards)):
                part = batch.slice(start, len(list(members)))
                start += part.num_rows
                if shard not in writers:
                    writer = pa.ipc.new_stream(str(paths[shard]), part.schema)
                    writers[shard] = stack.enter_context(writer)
                writers[shard].write_batch(part)
                digests[shard] += part["digest"].to_pylist()
    return [
        _Rows(path, lines_hash(sorted(found)))
        for path, found in zip(paths, digests, strict=True)
        if found
    ]


def cut_shards(
    work: Work, spec: ShardedLoader, n_shards: int, before: Sequence[Shard]
) -> tuple[list[Shard], list[Artifact]]:
    """Cut a corpus into shards, and read and mask the documents of each.

    `before` are the shards of the run before. Raises InputError with the problems of a shard.
    """
    configured = spec.model_dump(mode="json", exclude={"chunker", "shards"})
    home = work.evaluation.home
    home.folder.mkdir(parents=True, exist_ok=True)
    # The name lets a later run remove what a killed run left.
    with tempfile.TemporaryDirectory(dir=home.folder, prefix=PARTIAL) as scratch:
        with work.progress.step("Cutting the corpus into shards"):
            rows = _split(spec.batches(work.base), n_shards, Path(scratch))
        keys = [digest([READ, work.version, configured, one.digest]) for one in rows]
        # A shard that lost or got its first document changes the number, and all are read again.
        olds = [one.key for one in before] if len(before) == len(rows) else [""] * len(rows)
        shards = [Shard(*pair) for pair in zip(keys, olds, strict=True)]
        with _shared_files(home, [one.path for one in rows]) as names:
            tasks = [
                _Task(_shared_store(work), READ, *shard, name, "", spec)
                for shard, name in zip(shards, names, strict=True)
            ]
            return shards, _run_all(work, tasks)


@contextlib.contextmanager
def _shared_files(home: Home, paths: Sequence[Path]) -> Iterator[list[str]]:
    """Give the names of local files in the home, where every worker finds them."""
    names = [f"{path.parent.name}/{path.name}" for path in paths]
    try:
        if home.is_remote:
            for name, path in zip(names, paths, strict=True):
                home.write(name, path.read_bytes())
        yield names
    finally:
        if home.is_remote:
            for name in names:
                home.delete(name)


# ---- Steps of a shard, as pure functions of its artifacts.


class _Task(NamedTuple):
    """One step of one shard: small enough to be sent, because it names artifacts."""

    store: ArtifactStore
    kind: str
    key: str
    before: str
    """Key of this step in the run before; empty without one."""
    source: str
    """Key of the documents that the step reads; for `READ`, the name of the rows."""
    source_before: str
    """Key of these documents in the run before."""
    options: Any


def _shared_store(work: Work) -> ArtifactStore:
    """Open the store with a path that holds in any working folder."""
    home = work.evaluation.home
    return ArtifactStore(home if home.is_remote else Home(home.folder.resolve()))


def _read(task: _Task) -> tuple[Frames, set[str]]:
    spec: ShardedLoader = task.options
    known = _rows_of(task.store, task.before)
    table = pa.ipc.open_stream(task.store.home.read(task.source)).read_all()
    ids, digests = (table[name].to_pylist() for name in ("id", "digest"))
    rows = pd.DataFrame({"doc_id": ids, "digest": digests})
    # Repeated ids are an error, which only all rows together show.
    same = _unchanged(rows, known) if len(set(ids)) == len(ids) else set()
    problems = ProblemList()
    fresh = table.filter(pa.array([name not in same for name in ids], pa.bool_()))
    documents = list(spec.documents_of(fresh.drop_columns("digest").to_batches(), problems))
    problems.raise_errors()
    made = mask_documents(documents, spec)
    frames = {**made.frames._asdict(), "masked": made.masked, "rows": rows}
    return frames, same


def _documents(task: _Task) -> tuple[Artifact, set[str]]:
    """Open the documents of a shard, with the ids of those that are as they were."""
    source = task.store.get(READ, task.source)
    if source is None:
        raise RuntimeError(f"the shard {task.source} is not stored")
    known = None
    if task.store.get(task.kind, task.before) is not None:
        known = _rows_of(task.store, task.source_before)
    return source, _unchanged(source.frame("rows"), known)


def _cut(task: _Task) -> tuple[Frames, set[str]]:
    source, same = _documents(task)
    documents, sections = (_without(source.frame(name), same) for name in ("documents", "sections"))
    return {"chunks": chunk_documents(documents, sections, task.options)}, same


def _screen(task: _Task) -> tuple[Frames, set[str]]:
    source, same = _documents(task)
    documents = _without(source.frame("documents"), same)
    return {"findings": screen_documents(documents)}, same


_STEPS: Final[Mapping[str, Callable[[_Task], tuple[Frames, set[str]]]]] = {
    READ: _read,
    CUT: _cut,
    SCREENED: _screen,
}


def screen_documents(documents: pd.DataFrame) -> pd.DataFrame:
    """Screen texts and titles of DOCUMENTS one by one: FINDINGS with `doc_id` and `in_title`."""
    markdown = (documents["kind"] == "markdown").tolist()
    parts = [
        screen(documents["text"].tolist(), markdown=markdown).assign(in_title=False),
        screen(documents["title"].tolist()).assign(start=-1, end=-1, in_title=True),
    ]
    findings = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    owners = documents["doc_id"].to_numpy(dtype=object)[findings["row"].to_numpy(dtype="int64")]
    return findings.assign(doc_id=pd.Series(owners, dtype="str"))


def _rows_of(store: ArtifactStore, key: str) -> pd.DataFrame | None:
    """Read ids and digests of the documents of a shard; None without it."""
    found = store.get(READ, key) if key else None
    return None if found is None else found.frame("rows")


def _unchanged(rows: pd.DataFrame, known: pd.DataFrame | None) -> set[str]:
    """Return the ids of the documents that are as they were."""
    if known is None:
        return set()
    pairs = (
        zip(frame["doc_id"].tolist(), frame["digest"].tolist(), strict=True)
        for frame in (rows, known)
    )
    return {doc_id for doc_id, _ in set.intersection(*map(set, pairs))}


def _without(frame: pd.DataFrame, ids: Collection[str]) -> pd.DataFrame:
    return frame[~frame["doc_id"].isin(ids)].reset_index(drop=True)


def join_frames(name: str, frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Join frames of shards in the order of an undivided corpus.

    Sorts in Python, because the string type of a frame must not change the order. Empty frames
    are left out, because they would change the types.
    """
    joined = pd.concat([one for one in frames if len(one)] or frames[:1], ignore_index=True)
    keys = list(zip(*(joined[column].tolist() for column in _ORDER[name]), strict=True))
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return joined.iloc[order].reset_index(drop=True)


def _run(task: _Task) -> None:
    """Make and store one step of a shard, in any process."""
    frames, same = _STEPS[task.kind](task)
    old = task.store.get(task.kind, task.before) if same else None
    if old is not None:
        for name in frames.keys() - {"rows"}:
            kept = old.frame(name)
            kept = kept[kept["doc_id"].isin(same)]
            frames[name] = pd.concat([one for one in (frames[name], kept) if len(one)] or [kept])
    parts = {name: join_frames(name, [frame]) for name, frame in frames.items()}
    made_from = [] if task.kind == READ else [(READ, task.source)]
    task.store.put(task.kind, parts, made_from=made_from, key=task.key)


def run_step(
    work: Work, kind: str, shards: Sequence[Shard], options: Chunker | None = None
) -> list[Artifact]:
    """Run one step over the documents of all shards, and return the artifacts in their order."""
    given = None if options is None else options.model_dump(mode="json")

    def key(documents: str) -> str:
        return digest([kind, work.version, documents, given]) if documents else ""

    return _run_all(
        work,
        [
            _Task(
                _shared_store(work),
                kind,
                key(shard.key),
                key(shard.before),
                *shard,
                options,
            )
            for shard in shards
        ],
    )


# ---- The executors: a loop, processes of this machine, or Ray.


def _run_all(work: Work, tasks: Sequence[_Task]) -> list[Artifact]:
    """Run the tasks that no run has finished, and return all results in order."""
    left = [task for task in tasks if task.store.whole(task.kind, task.key) is None]
    title = f"Making {tasks[0].kind.replace('_', ' ')}" if tasks else "Making shards"
    if left:
        with work.progress.step(title, len(left), "shards") as advance:
            for _ in _execute(left, work.settings):
                advance(1)
    found = [task.store.get(task.kind, task.key) for task in tasks]
    artifacts = [artifact for artifact in found if artifact is not None]
    if len(artifacts) < len(tasks):
        message = "the workers do not share the home of this process"
        raise InputError.of("shard_not_stored", message, work.evaluation.home.url, field="ray")
    work.made_from += [(artifact.stage, artifact.key) for artifact in artifacts]
    return artifacts


def _execute(tasks: Sequence[_Task], settings: Settings) -> Iterator[None]:
    workers = min(settings.shard_workers or os.cpu_count() or 1, len(tasks))
    if settings.ray is not None:
        yield from _run_on_ray(tasks, settings.ray)
    elif workers == 1:
        yield from map(_run, tasks)
    else:
        yield from _run_in_pool(tasks, workers)


def _run_in_pool(tasks: Sequence[_Task], workers: int) -> Iterator[None]:
    spawn = multiprocessing.get_context("spawn")  # a fork would copy the threads of libraries
    with concurrent.futures.ProcessPoolExecutor(workers, spawn) as pool:
        running = [pool.submit(_run, task) for task in tasks]
        try:
            for one in concurrent.futures.as_completed(running):
                yield one.result()
        except BrokenProcessPool as error:
            message = "a worker process ended; run again, which goes on after the finished shards"
            accepted = "fewer shard_workers, if the memory was short"
            raise InputError.of(
                "worker_lost", message, field="shard_workers", accepted=accepted
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _run_on_ray(tasks: Sequence[_Task], address: str) -> Iterator[None]:
    """Run the tasks on a Ray cluster, which repeats those of lost workers."""
    import ray

    owned = not ray.is_initialized()
    if owned:
        ray.init(address, include_dashboard=False if address == "local" else None)
    try:
        left = list(map(ray.remote(max_retries=3)(_run).remote, tasks))
        while left:
            done, left = ray.wait(left)
            yield from ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, InputError) else error from None
    finally:
        if owned:
            ray.shutdown()
