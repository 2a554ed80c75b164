"""Tell whether a whole answer says that it cannot answer.

The sentence patterns are in `abstention.json`.
"""

import json
import re
from importlib.resources import files
from typing import Literal

from rag_eval.core.types import INSUFFICIENT_EVIDENCE, NOT_FOUND

Abstention = Literal["not_found", "insufficient_evidence"]

MAX_CHARS = 2000
"""Longest text that can abstain, because a longer text says more than a refusal."""
MAX_GAPS_CHARS = 500
"""Most characters in which a refusal may name the gaps in the evidence."""

_TOKEN = re.compile(
    rf"\W*(?:VERDICT\s*[=:]\W*)?(?P<token>{NOT_FOUND}|{INSUFFICIENT_EVIDENCE})\W*"
    r"(?:$|\n|(?<=[.:;,*_)\]—–-])\s)"
)
_HEADER_LINE = re.compile(r"^\W*CITATIONS\s*[=:].*$", re.MULTILINE)
_MARKUP = re.compile(r"[*_`#>]+|\[\d{1,3}(?:\s*,\s*\d{1,3})*\]")
_CLAUSE = re.compile(r"(?<=[.!?])[\"')\]]*\s+|\s*[;\n]+\s*|\s+[—–-]+\s+|[—]")
_END = r"\s*[.!?…\"')\]]*$"

_DATA = json.loads(files("rag_eval.answers").joinpath("abstention.json").read_text("utf-8"))


def _pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """Compile a pattern in which `<name>` stands for a fragment."""
    while names := set(re.findall(r"<([a-z_]+)>", text)) & _DATA["fragments"].keys():
        for name in names:
            text = text.replace(f"<{name}>", _DATA["fragments"][name])
    return re.compile(text, re.IGNORECASE | flags)


_STATES, _LEAD, _CONTRAST, _CLOSING = (
    _pattern(_DATA[name]) for name in ("states_an_answer", "lead", "contrast", "closing")
)
_KINDS: dict[Abstention, re.Pattern[str]] = {
    "not_found": _pattern(f"(?:{'|'.join(_DATA['not_found'])}){_END}", re.DOTALL),
    "insufficient_evidence": _pattern(
        f"(?:{'|'.join(_DATA['insufficient_evidence'])}){_END}", re.DOTALL
    ),
}


def states_an_answer(gaps: str) -> bool:
    """Tell whether a refusal's words about its gaps state the answer, as in "the answer is ...".

    A bare statement ("Paris is the capital") looks like a gap, so only its length is bounded.

    Examples
    --------
    >>> states_an_answer("the answer is Paris")
    True
    """
    return _STATES.search(" ".join(gaps.replace("’", "'").split())) is not None


def abstention(text: str) -> Abstention | None:
    """Tell how an answer abstains; None for an answer, an empty text or a doubtful text.

    The contract's tokens count in capitals at the beginning, before a line's end or punctuation.
    INSUFFICIENT EVIDENCE abstains with short gaps that do not state the answer. NOT FOUND abstains
    alone, or if the rest abstains too. Any other text abstains if each sentence says that nothing
    was found or known, or is a closing courtesy, but not with courtesies alone.

    Examples
    --------
    >>> abstention("I don't have enough information to answer this.")
    'insufficient_evidence'
    >>> abstention("The documents do not mention the opening hours. Please check the website.")
    'not_found'
    >>> abstention("The key was not found in the cache, so it is computed.") is None
    True
    """
    token = _TOKEN.match(text)
    if not token:
        return _acknowledgement(text)
    rest = _HEADER_LINE.sub("", text[token.end("token") :]) if len(text) <= MAX_CHARS else text
    if token["token"] == INSUFFICIENT_EVIDENCE:
        answers = len(rest) > MAX_GAPS_CHARS or states_an_answer(rest)
        return None if answers else "insufficient_evidence"
    alone = not any(map(str.isalnum, rest))
    return "not_found" if alone or _acknowledgement(rest.lstrip(" \t\r\n.:;,*_)]—–-")) else None


def _acknowledgement(text: str) -> Abstention | None:
    """Return how a text without a token abstains, as the first acknowledging sentence says."""
    if len(text) > MAX_CHARS:
        return None
    plain = " ".join(
        _MARKUP.sub("", line).strip() for line in text.replace("’", "'").splitlines(keepends=True)
    )
    first: Abstention | None = None
    for piece in _CLAUSE.split(plain):
        sentence = " ".join(piece.split()).strip(" \"'()")
        if not sentence or _CLOSING.fullmatch(sentence.rstrip(".!?")):
            continue
        while lead := _LEAD.match(sentence):
            sentence = sentence[lead.end() :]
        kinds = [kind for kind, pattern in _KINDS.items() if pattern.match(sentence)]
        if not kinds or _CONTRAST.search(sentence):
            return None
        first = first or kinds[0]
    return first
