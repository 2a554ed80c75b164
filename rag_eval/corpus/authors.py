"""Names of authors: taken out of metadata, hashed to be compared, and made fit to be shown.

Belongs here: what an author's name is. Which authors are known is `rag_eval.trust`.
"""

import unicodedata
from collections.abc import Mapping, Sequence

from rag_eval.storage.hashing import text_hash

MAX_NAMES = 100
MAX_CHARS = 10_000
"""Of all names together, before they are hashed."""
MAX_SHOWN_CHARS = 200


def _name(value: object) -> str:
    """One name: a text, or the `name` of an object."""
    named = value.get("name") if isinstance(value, Mapping) else value
    return named.strip() if isinstance(named, str) else ""


def named(value: object) -> str:
    """Author that a metadata value names, several joined by `, `; empty where it names none.

    Parameters
    ----------
    value
        A text, an object with a `name`, or a list of these, of which the first hundred count. Anything else names nobody.
    """
    several = value[:MAX_NAMES] if isinstance(value, list | tuple) else [value]
    return ", ".join(name for name in map(_name, several) if name)[:MAX_CHARS]


def author_of(values: Mapping[str, object], keys: Sequence[str]) -> str:
    """Author of the first of these keys that names one; empty where none does."""
    return next((author for key in keys if (author := named(values.get(key)))), "")


def author_hash(author: str) -> str:
    """SHA-256 of a name without regard to case and runs of white space, 64 hex digits; empty for an empty name.

    Examples
    --------
    >>> author_hash("Jane  Doe ") == author_hash("jane doe"), author_hash(" ")
    (True, '')
    """
    compared = " ".join(author.casefold().split())
    return text_hash(compared) if compared else ""


def one_line(author: str) -> str:
    """Name on one line: white space and control characters as single spaces, invisible characters left out."""
    if author.isprintable():
        return " ".join(author.split())
    spaced = (
        " " if unicodedata.category(character) in {"Cc", "Zl", "Zp"} else character
        for character in author
    )
    return " ".join(
        "".join(
            character for character in spaced if not unicodedata.category(character).startswith("C")
        ).split()
    )
