"""Texts on their way out of the user's own store: personal data masked, whatever the corpus was loaded with, then cut to a snippet.

Belongs here: what every output does to a text. What of a source an answer may still hold is `rag_eval.citations.copied`.
"""

import re
import urllib.parse
from collections.abc import Collection, Iterable
from typing import Any

from rag_eval.corpus.masking import FILL, NAMES, mask
from rag_eval.records.snippets import SNIPPET_CHARS, snippet

MAX_READ_CHARS = 40_000
"""How much of a text is masked where only its beginning is shown: more than the longest value that is looked for."""
MIN_CARRIED_CHARS = 6
"""A shorter masked value would be found in other words too; no pattern masks one."""
IDS = frozenset(
    {
        "query_id",
        "doc_id",
        "section_id",
        "snippet_id",
        "token",
        "tokens",
        "evidence",
        "index_hash",
        "rev",
        "sections",
    }
)
"""Keys whose values name something; ids are how a thing is found and are never masked, as in the corpus itself."""

_COVER = re.compile(rf"\[(?:{'|'.join(NAMES)}){FILL}*")
_PARTS = re.compile(r"([/?&=#;,:]+)")
_ENCODED = re.compile(
    r"%(?:[2-6][0-9A-Fa-f]|7[0-9A-Ea-e])"
)  # printable ASCII: no line end comes out of it


def masked_text(text: str) -> str:
    """Mask a text, and in it what shows only once percent signs are read; the length stays.

    Examples
    --------
    >>> masked_text("see https://example.org/?to=jane.doe%40example.org today")
    'see https://example.org/?to=[email████████████████ today'
    """
    masked = mask(text).text
    places = [match.start() for match in _ENCODED.finditer(masked)] if "%" in masked else []
    if not places:
        return masked
    plain = _ENCODED.sub(lambda match: chr(int(match[0][1:], 16)), masked)
    covered = mask(plain).text
    if covered == plain:
        return masked
    pieces: list[str] = []
    done = 0
    for count, place in enumerate(places):
        at = place - 2 * count  # each one before is two characters shorter there
        pieces += (
            covered[done:at],
            masked[place : place + 3] if covered[at] == plain[at] else covered[at] + 2 * FILL,
        )
        done = at + 1
    return "".join(pieces) + covered[done:]


def shown(text: str, limit: int = SNIPPET_CHARS) -> str:
    """A text as a snippet of at most `limit` characters, personal data masked before it is cut."""
    return snippet(masked_text(text[:MAX_READ_CHARS]), limit)


def shown_address(address: str) -> str:
    """An address with personal data masked, character for character: in the whole, in each of its parts, and where it is percent-encoded.

    Examples
    --------
    >>> shown_address("https://example.org/people/jane.doe@example.org?page=2")
    'https://example.org/people/[email██████████████?page=2'
    """
    masked = "".join(
        part if place % 2 else mask(part).text
        for place, part in enumerate(_PARTS.split(mask(address).text))
    )
    plain = urllib.parse.unquote(masked)
    if plain == masked:
        return masked
    again = "".join(
        part if place % 2 else mask(part).text
        for place, part in enumerate(_PARTS.split(mask(plain).text))
    )
    return (
        masked if again == plain else again
    )  # an encoded value has no place of its own, so the whole is written out


def masked_values(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """What masking covers in (text, masked text) -> what stands in its place: a value that one text labels is known in another that does not.

    Of a key over several lines only the first line is known: the others are found by their own looks.
    """
    found: dict[str, str] = {}
    for text, covered in pairs:
        if covered != text:
            found |= {
                text[match.start() : match.end()]: match[0]
                for match in _COVER.finditer(covered)
                if text[match.start()] != "["
            }
    return {value: cover for value, cover in found.items() if len(value) >= MIN_CARRIED_CHARS}


def labelled_values(texts: Iterable[str]) -> dict[str, str]:
    """Of `masked_values` of these texts those that nothing but a label gives away: masking does not find them where they stand alone."""
    return {
        value: cover
        for value, cover in masked_values((text, mask(text).text) for text in texts).items()
        if mask(value).text == value
    }


def masked_with(text: str, known: dict[str, str]) -> str:
    """Mask a text, and in it every value that is known from elsewhere; the length stays."""
    return covered_with(masked_text(text), known)


def covered_with(text: str, known: dict[str, str]) -> str:
    """Cover every value that is known from elsewhere and nothing else; the length stays."""
    for value, cover in known.items():
        if value in text:
            text = text.replace(value, cover)
    return text


def masked_tree(value: Any, keep: Collection[str] = IDS) -> Any:
    """Mask every text of a JSON value; what stands under the keys of `keep` and the keys themselves stay."""
    if isinstance(value, str):
        return masked_text(value)
    if isinstance(value, dict):
        return {
            name: item if name in keep else masked_tree(item, keep) for name, item in value.items()
        }
    return [masked_tree(item, keep) for item in value] if isinstance(value, list | tuple) else value
