"""The artifact store: what a stage made, kept under the hash of everything it was made from.

One folder an artifact, `<root>/<stage>/<key>/`, holding Parquet frames, `.npy` arrays and JSON. A folder appears by one rename, so it is
whole or absent; two writers of one key write the same content and the first wins. Nothing here knows what the stages mean.
"""

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.storage.hashing import canonical_json

Parts = Mapping[str, Any]
"""Name -> DataFrame (Parquet), numpy array (.npy), bytes (a file of that name), an iterator of bytes (the same, written as they come), a Path (a file of another
artifact, shared under that name and not copied) or any JSON value."""

_META = "artifact.json"


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A stored artifact; parts are read when asked for.

    Parameters
    ----------
    stage, key
        Where it stands in the store.
    folder
        Its folder.
    reused
        Whether it was there already when it was asked for.
    """

    stage: str
    key: str
    folder: Path
    reused: bool

    def frame(self, name: str) -> pd.DataFrame:
        """Read a Parquet part."""
        return pd.read_parquet(self.folder / f"{name}.parquet")

    def array(self, name: str, *, mapped: bool = False) -> np.ndarray:
        """Read a .npy part, memory-mapped read-only where asked."""
        array: np.ndarray = np.load(
            self.folder / f"{name}.npy", mmap_mode="r" if mapped else None, allow_pickle=False
        )
        return array

    def json(self, name: str) -> Any:
        """Read a JSON part."""
        return json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))

    def path(self, name: str) -> Path:
        """Path of a part with its file ending."""
        return self.folder / name


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
        else:
            (folder / f"{name}.json").write_text(canonical_json(part), encoding="utf-8")


def _share(source: Path, target: Path) -> None:
    """Give a stored file a second place; artifacts are never written again, so both may be one file on disk."""
    try:
        target.hardlink_to(source)
    except OSError:  # a file system without hard links, or with too many of this one
        shutil.copyfile(source, target)


def _fsync_tree(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class ArtifactStore:
    """Content-addressed folders below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, stage: str, key: str) -> Artifact | None:
        """Return the artifact when it is there and whole, else None."""
        folder = self.root / stage / key
        return Artifact(stage, key, folder, reused=True) if (folder / _META).is_file() else None

    def memo(self, stage: str, key: str, make: Callable[[], Parts]) -> Artifact:
        """Return the stored artifact, or make, store and return it.

        Parameters
        ----------
        stage, key
            Stage name and the hash of all inputs, configuration and code version.
        make
            Called only when the artifact is absent. What it raises is passed on and nothing is stored.
        """
        found = self.get(stage, key)
        if found is not None:
            return found
        parts = make()
        if _META.removesuffix(".json") in parts:
            raise ValueError(f"part {_META.removesuffix('.json')!r}: the store's own name")
        final = self.root / stage / key
        final.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=final.parent, prefix=".partial-"))
        partial.chmod(0o755)  # mkdtemp keeps others out; a team reads one store
        try:
            _write(partial, parts)
            (partial / _META).write_text(
                canonical_json({"stage": stage, "key": key, "parts": sorted(parts)}),
                encoding="utf-8",
            )
            _fsync_tree(partial)
            try:
                partial.rename(final)
            except OSError:
                if (
                    self.get(stage, key) is None
                ):  # not another writer's whole artifact: a real failure
                    raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return Artifact(stage, key, final, reused=False)

    def sweep(self) -> int:
        """Remove what killed runs left half-written; call it only while holding the home's lock. Returns how many folders went."""
        left = list(self.root.glob("*/.partial-*"))
        for folder in left:
            shutil.rmtree(folder, ignore_errors=True)
        return len(left)
