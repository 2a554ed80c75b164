"""Texts of corpora, gold sets, answers and notes on their way to a page: what would be invisible or would turn the line around is written out.

Belongs here: characters. Escaping is the template's business (autoescape) and, in scripts, that of `textContent`.
"""

import re

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
"""Controls but for tab and line end, zero-width and bidirectional characters, fillers, variation selectors, lone surrogates and tags."""


def visible(text: str) -> str:
    r"""Write out every character that a reader would not see, or that changes the order of what is seen.

    Examples
    --------
    >>> visible("pay\u202eload")
    'pay[U+202E]load'
    """
    return _HIDDEN.sub(lambda match: f"[U+{ord(match[0]):04X}]", text)


def web_address(address: str) -> str:
    """Return the address where a browser may follow it (http and https with a host), else an empty text: no `javascript:`, no `data:`, no file.

    Examples
    --------
    >>> web_address("https://example.org/a"), web_address("javascript:alert(1)"), web_address("python:pandas.concat")
    ('https://example.org/a', '', '')
    """
    return (
        address
        if re.fullmatch(r"https?://[^\s\x00-\x20\\\"'<>`{}|^]{1,2000}", address, re.IGNORECASE)
        and visible(address) == address
        else ""
    )
