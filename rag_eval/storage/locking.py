"""One writer for a home: embedded Chroma and SQLite take no second one. The lock dies with its process, so a killed run leaves none."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from rag_eval.records.problems import InputError, Problem


@contextlib.contextmanager
def home_lock(home: Path) -> Iterator[None]:
    """Hold the home for writing.

    Raises
    ------
    InputError
        Another process holds it; the message names its process id.
    """
    home.mkdir(parents=True, exist_ok=True)
    path = home / "lock"
    with path.open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            holder = stream.read(40).strip() or "unknown"
            raise InputError(
                Problem(
                    "home_busy",
                    "another run is writing here; wait for it, or give this run its own --home",
                    file=str(home),
                    found=f"held by process {holder}",
                )
            ) from None
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        yield
