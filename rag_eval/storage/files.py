"""Atomic files: written beside the target, flushed to disk, then renamed over it."""

import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

PARTIAL = ".partial-"
"""Prefix of the names of half-written files and folders."""
DAMAGED = ".damaged-"
"""Prefix of the names of damaged files and folders that were set aside."""
HOME_FOLDERS = ("", "artifacts/*", "runs", "record/*", "embeddings/*")
"""Glob patterns of the folders of a home in which such names occur."""
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def atomic_path(path: Path, mode: int = 0o644) -> Iterator[Path]:
    """Give a temporary path in the same folder, and rename it to `path` on success.

    A failure removes the temporary file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=PARTIAL, suffix=path.suffix)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        partial.chmod(mode)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def file_states(paths: Iterable[Path]) -> list[list[object]]:
    """Identify files by name, size and time of the last change, as JSON; absent ones are left out.

    A change of a file is a change of its state, so equal states need no look at the content.
    """
    states = ((path, path.stat()) for path in paths if path.is_file())
    return [[path.name, state.st_size, state.st_mtime_ns] for path, state in states]


def sweep(folder: Path, *patterns: str, older_than_s: float = 0.0) -> int:
    """Remove half-written files and folders of killed processes and return their number.

    `patterns` are glob patterns of the searched folders, `""` for `folder` itself. Files younger
    than `older_than_s` seconds stay, because other processes may still be writing them.
    """
    before = time.time() - older_than_s
    left = [
        path
        for pattern in patterns
        for path in folder.glob(f"{pattern}/{PARTIAL}*".lstrip("/"))
        if path.stat().st_mtime <= before
    ]
    for path in left:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return len(left)


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Write UTF-8 text with LF line ends, atomically."""
    with atomic_path(path, mode) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes, atomically."""
    with atomic_path(path) as partial:
        partial.write_bytes(data)


def set_aside(path: Path, damage: str) -> None:
    """Rename a damaged file or folder so that nothing reads it again, and name it in the log."""
    place = path.with_name(f"{DAMAGED}{path.name}")
    number = 1
    while place.exists():
        number += 1
        place = path.with_name(f"{DAMAGED}{path.name}-{number}")
    try:
        path.rename(place)
    except FileNotFoundError:  # another process has renamed the file already
        return
    except OSError as error:  # for example, this user may only read the store
        _log.warning("%s is damaged (%s) and cannot be set aside: %s", path, damage, error.strerror)
        return
    _log.warning(
        "%s was damaged (%s); it is set aside as %s and made again when it is needed",
        path,
        damage,
        place.name,
    )
