"""Memory of this process that Chroma's graph files would keep: the unused places of those files are set to zero.

Chroma (1.5.9; its issue 7688) allocates room for a hundred vectors without clearing it and writes all of it when a graph is first stored. What the process held
there before, an API key or a passage among it, would stay on disk for good: below a thousand vectors Chroma stores nothing else over it.
"""

import struct
from pathlib import Path

from rag_eval.records.problems import InputError, Problem

_HEADER = struct.Struct(
    "<iQQQQ"
)  # layout, offset of level 0, places there are, places in use, bytes that a place of data_level0.bin takes
_HEADER_BYTES = 100
_LAYOUT = 1
_NORM_BYTES = 4  # a place of length.bin is one float32
_PIECE = 1 << 20


def clear_unused(folder: Path) -> int:
    """Zero what lies beyond the places in use, in every graph below a folder of an embedded Chroma.

    A graph whose header was never written has no place in use. No other process may be writing there.

    Returns
    -------
    int
        Bytes that were not zero before.

    Raises
    ------
    InputError
        A header is of another layout, so what is in use cannot be told.
    """
    return sum(_clear(level0.parent) for level0 in sorted(folder.glob("*/data_level0.bin")))


def _clear(graph: Path) -> int:
    used, size = _in_use(graph / "header.bin")
    return _zero(graph / "data_level0.bin", used * size) + _zero(
        graph / "length.bin", used * _NORM_BYTES
    )


def _in_use(header: Path) -> tuple[int, int]:
    said = header.read_bytes() if header.is_file() else b""
    if not said:
        return 0, 0
    if len(said) == _HEADER_BYTES and int.from_bytes(said[:4], "little") == _LAYOUT:
        _, _, _, used, size = _HEADER.unpack_from(said)
        return used, size
    raise InputError(
        Problem(
            "chroma_layout",
            "a graph of the vector store is damaged, or of a Chroma whose files this version does not know; the folder chroma can be removed, the next run fills it again",
            file=str(header),
            found=f"{len(said)} bytes that begin with {said[:4].hex()}",
            accepted=f"{_HEADER_BYTES} bytes of layout {_LAYOUT}",
        )
    )


def _zero(path: Path, start: int) -> int:
    if not path.is_file() or path.stat().st_size <= start:
        return 0
    cleared = 0
    with path.open("r+b", buffering=0) as stream:
        place = stream.seek(start)
        while piece := stream.read(_PIECE):
            dirty = len(piece) - piece.count(0)
            if dirty:
                stream.seek(place)
                stream.write(bytes(len(piece)))
                cleared += dirty
            place = stream.seek(place + len(piece))
    return cleared
