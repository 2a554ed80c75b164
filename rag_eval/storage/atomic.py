"""Files that are whole or not there: written beside their place, flushed to disk, then renamed over it."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Give a temporary path in the same folder; on success rename it to `path`, on failure remove it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".partial-", suffix=path.suffix)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        partial.chmod(0o644)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def sweep(folder: Path, *patterns: str, older_than_s: float = 0.0) -> int:
    """Remove what killed processes left half-written in the folders that the patterns choose; returns how much went.

    Parameters
    ----------
    folder, patterns
        `""` is the folder itself, `*` each folder in it.
    older_than_s
        Leave what is younger: where others may be writing.
    """
    before = time.time() - older_than_s
    left = [
        path
        for pattern in patterns
        for path in folder.glob(f"{pattern}/.partial-*".lstrip("/"))
        if path.stat().st_mtime <= before
    ]
    for path in left:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return len(left)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text with LF line ends, atomically."""
    with atomic_path(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes, atomically."""
    with atomic_path(path) as partial:
        partial.write_bytes(data)
