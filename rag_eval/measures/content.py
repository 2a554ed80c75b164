"""What a sentence says, for comparing answers with evidence: its sentences, words in any script, numbers and names.

Belongs here: rules on text. Not here: what the pieces weigh (`groundedness`). The analyzer stays the one place that knows what a term is;
this prepares text for it where a term as the analyzer sees it is no unit of meaning.
"""

import functools
import itertools
import re
import sys
import unicodedata

from rag_eval.corpus import sentences
from rag_eval.corpus.analyzer import STOP_WORDS

_FUNCTION_WORDS = """
about above across after again against all along also although always am among any anyone anything around away back because been before being
below between both came can cannot come could did do does doing done down during each either else enough etc ever every few from further get
gets getting give given go goes going got had has have having he her here hers herself him himself his how however i its itself just least less let
like likely made mainly make makes making many may me might more most much must my myself neither never next none nor now off often once one only
other others otherwise our ours ourselves out over own per perhaps please quite rather really same see seem several shall she should since so some
someone something still than themselves though through thus together too toward under until up upon us use used uses using various very via
want was we well were what whatever when where whereas whether which while who whole whom whose why within without would yet you your yours
yourself according regarding overall furthermore moreover therefore hence
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split()) - STOP_WORDS
"""English words beside the analyzer's stop words that say nothing about the matter; they weigh nothing in a comparison."""

# Scripts whose words are not set apart by spaces, one run a script: hiragana (mostly endings and particles, so that only long runs count),
# katakana and bopomofo, Han, Hangul (particles are glued to words), Thai and Lao, Burmese, Khmer.
_HIRAGANA = "\u3041-\u309f"
_UNSPACED = re.compile(
    rf"(?P<endings>[{_HIRAGANA}]+)|[\u30a0-\u312f\u31a0-\u31bf\u31f0-\u31ff]+|[\u3005-\u3007\u3400-\u9fff\uf900-\ufaff\U00020000-\U000323af]+"
    r"|[\u1100-\u11ff\uac00-\ud7af]+|[\u0e00-\u0eff]+|[\u1000-\u109f]+|[\u1780-\u17ff]+"
)
_LONG_ENDING = 4
# a run of white space is tried once, from its beginning (look-behind, possessive): long runs are read in linear time
_CITATION = re.compile(
    r"(?<!\s)\s*+\[\^?(?:(?:source|doc|document|ref)\s*+)?\d{1,3}(?:\s*+[,;–-]\s*+\^?\d{1,3})*\](?:\([^()\s]*+\))?",
    re.IGNORECASE,
)
_ITEM = re.compile(r"(?<!\s)[^\S\r\n]*+[\r\n]\s*+(?=(?:[-*•‣–]|\d{1,3}[.)])\s)")
_BULLET = re.compile(r"\s*+(?:[-*•‣–]|\d{1,3}[.)])\s++")
_NUMBER = re.compile(r"(?<![^\W_])\d+(?:[.,]\d+)*")
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:[.,]\d{3})+")
_WORD = re.compile(r"[^\W_]+")
_TITLE_CASE = 0.6  # share of capitalised words from which capitals say nothing about names
_FEW_WORDS = 4
_SHORTEST_PART = 3  # shorter parts of identifiers are aliases that everybody chooses: df, ax, np

NUMBER_WORDS = tuple(
    """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty
""".split()
)
"""What evidence may spell out where the answer has digits, from 0."""


@functools.lru_cache(maxsize=1)
def _marks() -> dict[int, None]:
    """Vowel signs and accents that stand alone after canonical composition; the analyzer would break words at them."""
    return {
        code: None
        for code in range(0x300, min(0x1B00, sys.maxunicode))
        if unicodedata.category(chr(code)) in {"Mn", "Mc"}
    }


def _pairs(match: re.Match[str]) -> str:
    run = match[0]
    if match["endings"] and len(run) < _LONG_ENDING:
        return " "
    return (
        f" {run} " if len(run) == 1 else " " + " ".join(map("".join, itertools.pairwise(run))) + " "
    )


def comparable(text: str) -> str:
    """Text whose words the analyzer finds: composed, without free-standing marks, scripts without spaces as overlapping character pairs.

    Examples
    --------
    >>> comparable("巴黎是首都 in France")
    ' 巴黎 黎是 是首 首都  in France'
    """
    if text.isascii():
        return text
    composed = unicodedata.normalize("NFKC", text).translate(_marks())
    return _UNSPACED.sub(_pairs, composed)


def answer_sentences(text: str) -> list[str]:
    r"""Sentences of an answer without citation marks and bullets; each item of a list is a sentence of its own.

    Examples
    --------
    >>> answer_sentences("Two facts [1]:\n- Snow is white [2].\n- Coal is black.")
    ['Two facts:', 'Snow is white.', 'Coal is black.']
    """
    plain = _CITATION.sub("", text) if "[" in text else text
    found = []
    for item in _ITEM.split(plain) if "\n" in plain or "\r" in plain else [plain]:
        body = item[marked.end() :] if (marked := _BULLET.match(item)) else item
        found += [body[start:end] for start, end in sentences.spans(body)]
    return [sentence for sentence in found if _WORD.search(sentence)]


def numbers(text: str) -> list[str]:
    """Numbers of a text in one spelling: no thousands separators, a point before decimals, no zeros that say nothing.

    `3.125` is read as 3125, as in half of the world; what counts is that answer and evidence are read alike.

    Examples
    --------
    >>> numbers("In 1889, 1,000 of 2.50 kg; 3,5 % of int64.")
    ['1889', '1000', '2.5', '3.5']
    """
    return [_one_spelling(found) for found in _NUMBER.findall(text)]


@functools.lru_cache(maxsize=4096)
def _one_spelling(number: str) -> str:
    if not number.isascii():
        number = "".join(
            character if character in ".," else str(unicodedata.digit(character))
            for character in number
        )
    if _GROUPED.fullmatch(number):
        return re.sub(r"[.,]", "", number)
    whole, point, rest = number.replace(",", ".").partition(".")
    whole = whole.lstrip("0") or "0"
    rest = rest if "." in rest else rest.rstrip("0")
    return f"{whole}.{rest}" if point and rest else whole


def names(sentence: str) -> list[str]:
    """Words of a sentence that name something: capitalised ones but the first, acronyms, words with digits, parts of code identifiers.

    A sentence in which most words are capitalised (a title) has only identifiers.

    Examples
    --------
    >>> names("The tower of Gustave Eiffel is drawn by `ax.plot_wireframe`.")
    ['Gustave', 'Eiffel', 'plot', 'wireframe']
    """
    tokens = sentence.split()
    odd = [token for token in tokens if not token.islower()]
    named = [
        word
        for token in odd
        for word in _WORD.findall(token)
        if len(word) > 1 and not word.islower() and not word.isdigit()
    ]
    identifiers = [word for word in named if not word[1:].islower() and not word.isupper()]
    if "_" in sentence or "()" in sentence or "." in sentence[:-1]:
        dotted = [token for token in tokens if "_" in token or "()" in token or "." in token[1:-1]]
        identifiers += [
            part
            for token in dotted
            for part in _WORD.findall(token)
            if len(part) >= _SHORTEST_PART and not part.isdigit()
        ]
    capitals = [word for word in named if word[0].isupper()]
    if len(tokens) >= _FEW_WORDS and len(capitals) > _TITLE_CASE * len(tokens):
        return identifiers
    if capitals and not capitals[0].isupper() and _WORD.findall(tokens[0])[:1] == capitals[:1]:
        del capitals[0]
    return list(dict.fromkeys([*filter(_names_something, capitals), *identifiers]))


def _names_something(word: str) -> bool:
    lowered = word.lower()
    return lowered not in STOP_WORDS and lowered not in FUNCTION_WORDS
