"""The artifact store keeps the results of stages under the hash of all their inputs.

The folder of an artifact, `artifacts/<stage>/<key>/` of the home, is whole or absent: it is written
beside its place and renamed, or published in an object store by the creation of `artifact.json`. Of
two writers of a key the first wins. `artifact.json` holds the size and the SHA-256 of every part,
and reading a part checks both. A stage sets a damaged artifact aside and makes it again.
"""

import dataclasses
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.core.errors import InputError
from rag_eval.storage.hashing import canonical_json, digest, file_hash
from rag_eval.storage.home import PARTIAL, Home

if TYPE_CHECKING:
    import pyarrow as pa

Parts = Mapping[str, Any]
"""Parts by name. The type of a part decides its file.

A DataFrame becomes Parquet, a numpy array `.npy`, and any JSON value `.json`. Bytes and an iterator
of bytes become a file with the name of the part. A Path is a file that another artifact holds; both
artifacts then share the file. A ShardedFrame names the artifacts that hold the rows.
"""

T = TypeVar("T")
ARTIFACTS = "artifacts"
ARTIFACT_FILE = "artifact.json"
SHARDS = ".shards.json"
"""End of the name of the file of a `ShardedFrame`."""
_verified: dict[Path, tuple[int, int, int]] = {}
"""Inode, size and time of each file whose SHA-256 this process has compared."""


@dataclasses.dataclass(frozen=True)
class ShardedFrame:
    """A frame with rows in parts of other artifacts, which have the name of this part.

    An unchanged shard serves many versions of a frame, so a small change writes little.
    """

    stage: str
    """Kind of the artifacts."""
    gone: Mapping[str, Sequence[str]]
    """Key of each artifact -> doc_ids whose rows do not count any more."""
    order: Sequence[str]
    """Columns that order the rows. Rows with equal values keep their order."""
    content: str
    """Identity of the rows. It must not depend on how shards hold them."""
    without: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    """Column -> values whose rows do not count either."""


def read_shards(
    store: "ArtifactStore", frame: ShardedFrame, name: str, columns: Collection[str] | None = None
) -> "pa.Table":
    """Read the rows of a sharded frame, or some of its columns.

    Raises InputError (`artifact_damaged`) if a shard is absent or damaged.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    read = None
    if columns is not None:
        read = list(dict.fromkeys([*columns, *frame.order, "doc_id", *frame.without]))
    parts = []
    for key, gone in frame.gone.items():
        part = store.need(frame.stage, key).table(name, read)
        for column, values in {"doc_id": gone, **frame.without}.items():
            if values:
                dropped = pa.array(values, part[column].type)
                part = part.filter(pc.invert(pc.is_in(part[column], dropped)))
        parts.append(part)
    table = pa.concat_tables(parts)
    # Arrow compares the bytes of UTF-8, which is the order of strings in Python.
    place = pc.sort_indices(table, [(column, "ascending") for column in frame.order]).to_numpy()
    if (np.diff(place.astype(np.int64)) != 1).any():
        table = table.take(place)
    return table if columns is None else table.select(list(columns))


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A stored artifact; each method reads one part.

    Every reader raises InputError (`artifact_damaged`) if a part differs from the written file.
    """

    home: Home
    stage: str
    key: str
    reused: bool
    """Whether the artifact existed before this request."""
    id: str
    """Hash of the content: equal parts give equal ids."""
    files: Mapping[str, Mapping[str, Any]]
    """Size and SHA-256 of each file."""

    def bytes(self, name: str) -> bytes:
        """Read a part that is a file."""
        return self._read(name, Path.read_bytes)

    def frame(self, name: str, columns: list[str] | None = None) -> pd.DataFrame:
        """Read a Parquet part or a sharded frame, or some of its columns."""
        frame: pd.DataFrame
        if f"{name}{SHARDS}" in self.files:
            frame = self.table(name, columns).to_pandas()
            return frame
        frame = self._read(f"{name}.parquet", lambda path: pd.read_parquet(path, columns=columns))
        return frame

    def table(self, name: str, columns: list[str] | None = None) -> "pa.Table":
        """Read a frame as an Arrow table, which does not decode its texts."""
        import pyarrow.parquet as pq

        sharded = self.sharded(name)
        if sharded is not None:
            return read_shards(ArtifactStore(self.home), sharded, name, columns)
        return self._read(
            f"{name}.parquet", lambda path: pq.read_table(path, columns=columns, memory_map=True)
        )

    def sharded(self, name: str) -> ShardedFrame | None:
        """Describe a sharded frame; None if the artifact itself holds the rows."""
        if f"{name}{SHARDS}" not in self.files:
            return None
        return ShardedFrame(**json.loads(self.bytes(f"{name}{SHARDS}")))

    def array(self, name: str) -> np.ndarray:
        """Read a .npy part."""
        array: np.ndarray = self._read(f"{name}.npy", np.load)
        return array

    def mapped(self, name: str) -> np.ndarray:
        """Map a .npy part, so that its pages take no memory of the process. It is read-only."""
        array: np.ndarray = self._read(f"{name}.npy", lambda path: np.load(path, "r"))
        return array

    def json(self, name: str) -> Any:
        """Read a JSON part."""
        return self._read(f"{name}.json", lambda path: json.loads(path.read_bytes()))

    @property
    def name(self) -> str:
        """Name of the artifact's folder in the home."""
        return _name(self.stage, self.key)

    @property
    def address(self) -> str:
        """Place of the artifact, for people."""
        home = self.home
        return home.address_of(self.name) if home.is_remote else str(self.folder.resolve())

    @property
    def folder(self) -> Path:
        """Local folder of the artifact; in a scratch folder it may lack parts."""
        return self.home.folder / self.name

    def path(self, part: str) -> Path:
        """Return the local path of a part with its file ending; the file is not checked.

        Raises FileNotFoundError if an object store lacks the part.
        """
        if not self.home.is_remote or part not in self.files:
            return self.folder / part
        return self.home.fetch(_uploaded(self.name, part, self.files[part]["sha256"]))

    def input(self, stage: str) -> "Artifact":
        """Open the artifact of another stage that this artifact was made from."""
        record = json.loads(self.home.read(f"{self.name}/{ARTIFACT_FILE}"))
        key = next(key for kind, key in record["made_from"] if kind == stage)
        return ArtifactStore(self.home).need(stage, key)

    def fault(self, part: str) -> str:
        """Describe how a file differs from the written file; empty if it is whole."""
        try:
            fault = _damage(self.path(part), **self.files[part])
            if fault and self.home.is_remote:  # perhaps only the local copy is damaged
                self.path(part).unlink()
                fault = _damage(self.path(part), **self.files[part])
        except FileNotFoundError:
            return "the object store lacks it"
        return fault

    def _read(self, part: str, read: Callable[[Path], T]) -> T:
        fault, cause = self.fault(part) if part in self.files else "", None
        if not fault:
            try:
                return read(self.path(part))
            except (OSError, ValueError, EOFError) as error:
                fault, cause = str(error), error
        message = "a stored part is damaged; run the gold set again to make it again"
        place = self.home.address_of(f"{self.name}/{part}")
        raise InputError.of("artifact_damaged", message, place, found=fault) from cause


def _name(stage: str, key: str) -> str:
    return f"{ARTIFACTS}/{stage}/{key}"


def _uploaded(artifact: str, part: str, sha256: str) -> str:
    """Name a part in an object store by its content.

    Two writers of a key may differ in volatile parts, and the loser may upload after the winner.
    """
    return f"{artifact}/{sha256[:16]}/{part}"


def make_scratch_array(
    shape: tuple[int, ...], dtype: npt.DTypeLike, folder: Path | None = None
) -> npt.NDArray[Any]:
    """Make an array of zeros over an unnamed file in `folder`, which ends with the array.

    The pages of the file can leave the memory, unlike those of an array in memory.
    """
    if 0 in shape:  # an empty file cannot be mapped
        return np.zeros(shape, dtype)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        return np.memmap(file, dtype, "w+", shape=shape)


def _write(folder: Path, parts: Parts) -> None:
    for name, part in parts.items():
        if isinstance(part, pd.DataFrame):
            part.to_parquet(folder / f"{name}.parquet", index=False)
        elif isinstance(part, np.ndarray):
            np.save(folder / f"{name}.npy", part, allow_pickle=False)
        elif isinstance(part, bytes):
            (folder / name).write_bytes(part)
        elif isinstance(part, Iterator):
            with (folder / name).open("wb") as stream:
                stream.writelines(part)
        elif isinstance(part, Path):
            _share(part, folder / name)
        elif isinstance(part, ShardedFrame):
            text = canonical_json(dataclasses.asdict(part))
            (folder / f"{name}{SHARDS}").write_text(text, encoding="utf-8")
        else:
            (folder / f"{name}.json").write_text(canonical_json(part), encoding="utf-8")


def _share(source: Path, target: Path) -> None:
    """Link a stored file to a second path, or copy it if links are impossible.

    A shared file is safe because nothing writes to an artifact again.
    """
    try:
        target.hardlink_to(source)
    except OSError:  # the file system has no hard links, or the file has too many
        shutil.copyfile(source, target)


def _fsync_tree(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


_UNREADABLE = (OSError, ValueError, KeyError, TypeError)
"""Errors of a record that is absent or damaged."""


def _state(path: Path) -> tuple[int, int, int]:
    state = path.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns


def _damage(path: Path, size: int, sha256: str) -> str:
    """Describe how a file differs from the written file; empty if both are equal.

    A process hashes a file once, and again only if its inode, size or time has changed.
    """
    try:
        state = _state(path)
        if state[1] == size and _verified.get(path) == state:
            return ""
        now = file_hash(path)
    except OSError as error:
        return error.strerror or type(error).__name__
    if now != sha256:
        return f"{state[1]:,} bytes and SHA-256 {now[:12]}, {size:,} and {sha256[:12]} were written"
    _verified[path] = state
    return ""


class ArtifactStore:
    """Store of artifacts in content-addressed folders of a home."""

    def __init__(self, home: Home) -> None:
        self.home, self.root = home, home.folder / ARTIFACTS

    def get(self, stage: str, key: str) -> Artifact | None:
        """Return the artifact if it exists and has a readable record. Reading a part checks it."""
        try:
            return self._open(stage, key)
        except _UNREADABLE:
            return None

    def whole(self, stage: str, key: str) -> Artifact | None:
        """Return the artifact if it is undamaged, else None. Sets a damaged artifact aside."""
        record = f"{_name(stage, key)}/{ARTIFACT_FILE}"
        folder = self.root / stage / key
        if not (self.home.has(record) if self.home.is_remote else folder.is_dir()):
            return None
        try:
            artifact = self._open(stage, key)
            fault = self._find_faults(artifact)
        except _UNREADABLE as error:
            fault = f"{ARTIFACT_FILE}: {error}"
        if not fault:
            return artifact
        self.home.set_aside(record if self.home.is_remote else _name(stage, key), fault)
        return None

    def need(self, stage: str, key: str) -> Artifact:
        """Return an artifact that must exist. Raises InputError (`artifact_damaged`) without it."""
        artifact = self.get(stage, key)
        if artifact is None:
            message = "a stored part is absent; run the gold set again to make it again"
            place = self.home.address_of(_name(stage, key))
            raise InputError.of("artifact_damaged", message, place)
        return artifact

    def _find_faults(self, artifact: Artifact) -> str:
        """Describe the damaged files, and the first shard that a sharded frame lacks, if any."""
        fault_of = {part: artifact.fault(part) for part in artifact.files}
        faults = [f"{part}: {fault}" for part, fault in fault_of.items() if fault]
        frames = (artifact.sharded(part.removesuffix(SHARDS)) for part in artifact.files)
        for frame in filter(None, frames if not faults else ()):
            for key in frame.gone:
                if self.whole(frame.stage, key) is None:
                    return f"it lacks {_name(frame.stage, key)}"
        return "; ".join(faults)

    def _open(self, stage: str, key: str) -> Artifact:
        """Open an artifact by its record; raise an error of `_UNREADABLE` if that is damaged."""
        record = json.loads(self.home.read(f"{_name(stage, key)}/{ARTIFACT_FILE}"))
        files, identity = dict(record["parts"]), str(record["id"])
        return Artifact(self.home, stage, key, reused=True, id=identity, files=files)

    def memo(self, stage: str, key: str, make: Callable[[], Parts]) -> Artifact:
        """Return the stored artifact, or store the parts that `make` returns.

        If `make` raises, the exception passes on and nothing is stored.
        """
        stored = self.whole(stage, key)
        return self.put(stage, make(), key=key) if stored is None else stored

    def put(
        self,
        stage: str,
        parts: Parts,
        volatile: Collection[str] = (),
        made_from: Sequence[tuple[str, str]] = (),
        key: str = "",
    ) -> Artifact:
        """Store parts under a key, or under the hash of their content.

        `volatile` names parts that do not count for the artifact's id, such as durations.
        `made_from` lists the input artifacts as (stage, key).
        """
        (self.root / stage).mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=self.root / stage, prefix=PARTIAL))
        partial.chmod(0o755)  # mkdtemp denies access to others, but a team shares the store
        try:
            _write(partial, parts)
            files = {
                path.name: {"size": path.stat().st_size, "sha256": file_hash(path)}
                for path in sorted(partial.iterdir())
            }
            identities: dict[str, object] = {
                name: facts["sha256"]
                for name, facts in files.items()
                if name.split(".")[0] not in volatile
            }
            for name, part in parts.items():
                if isinstance(part, ShardedFrame):
                    identities[f"{name}{SHARDS}"] = part.content
            identity = digest(identities)
            key = key or digest([stage, files])
            record = {"stage": stage, "key": key, "id": identity, "parts": files}
            text = canonical_json({**record, "made_from": [list(pair) for pair in made_from]})
            (partial / ARTIFACT_FILE).write_text(text, encoding="utf-8")
            publish = self._upload if self.home.is_remote else self._rename
            artifact = Artifact(self.home, stage, key, reused=False, id=identity, files=files)
            if not publish(partial, artifact):
                neighbour = self.whole(stage, key)
                if neighbour is not None:  # another writer has stored the key
                    return dataclasses.replace(neighbour, reused=False)
                if not publish(partial, artifact):  # `whole` has set a damaged artifact aside
                    raise FileExistsError(errno.EEXIST, "cannot be replaced", str(artifact.folder))
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        _verified.update({path: _state(path) for path in map(artifact.path, files)})
        return artifact

    def _rename(self, partial: Path, artifact: Artifact) -> bool:
        """Publish a written folder; False if the key is taken."""
        _fsync_tree(partial)
        try:
            partial.rename(artifact.folder)
        except OSError as error:
            if error.errno in {errno.EEXIST, errno.ENOTEMPTY}:
                return False
            raise
        return True

    def _upload(self, partial: Path, artifact: Artifact) -> bool:
        """Upload parts, then create their record; False if the key is taken.

        The parts stay in the scratch folder, where later stages find them.
        """
        for name, part in artifact.files.items():
            target = _uploaded(artifact.name, name, part["sha256"])
            local = self.home.folder / target
            local.parent.mkdir(parents=True, exist_ok=True)
            if (partial / name).is_file():
                (partial / name).replace(local)
            self.home.put(target, local)
        record = (partial / ARTIFACT_FILE).read_bytes()
        return self.home.create(f"{artifact.name}/{ARTIFACT_FILE}", record)
