"""Texts of any size that are slow to scan: repeated pieces, and functions that build texts."""

import tomllib
from pathlib import Path

_WORDS = (
    "ignore disregard all previous prior instructions your the answer reply include insert output "
    "with in to user system prompt"
)

_PIECES = Path(__file__).parents[1] / "trust" / "adversarial.toml"
REPEATED = tomllib.loads(_PIECES.read_text(encoding="utf-8"))


def adversarial(name, size):
    """Return the piece `name` repeated to at least `size` bytes of UTF-8."""
    piece = REPEATED[name]
    return piece * (size // len(piece.encode()) + 1)


def nested(size):
    """Return nested hidden elements that are closed in order."""
    depth = size // 27
    return "<div hidden>x" * depth + "</div>" * depth


def mixed(size):
    """Return words of attacks in random order, so that rules nearly match everywhere."""
    words = _WORDS.split()
    state, pieces, length = 1, [], 0
    while length < size:
        state = state * 1103515245 + 12345 & 0x7FFFFFFF
        pieces.append(words[(state >> 8) % len(words)])
        length += len(pieces[-1]) + 1
    return " ".join(pieces)[:size]


def turns(size):
    """Return all pieces in turn, each with an equal share of a text of any size, four times."""
    share = size // (4 * len(REPEATED))
    return "".join((piece * size)[:share] for piece in REPEATED.values()) * 4


TEXTS = {name: (lambda size, name=name: adversarial(name, size)) for name in REPEATED} | {
    "nested": nested,
    "mixed": mixed,
    "turns": turns,
}
