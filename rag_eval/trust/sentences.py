"""Find the sentences of a document: questions, orders, and those that speak to a language model.

Closed word classes and word order decide for English. In other languages only question marks and
question words count.
"""

import functools
import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import NamedTuple

from rag_eval.corpus import chunking
from rag_eval.trust.rules import LinearPattern
from rag_eval.trust.spelling import load_words
from rag_eval.trust.text import View

_LISTS = {name: frozenset(words) for name, words in load_words("sentences").items()}
CLOSED_CLASS, TASK_VERBS = _LISTS["closed"], _LISTS["tasks"]

# ---- Sentences, told from code, tables, parameters and headings

LEAST_WORDS = 3
MOST_CHARACTERS = 2_000
"""Most characters of a sentence; a sentence without an end is cut."""

_LINE = re.compile(r"[^\r\n]*+(?:\r\n?|\n|\Z)")
_PROSE_WORD = re.compile(r"[^\W\d_]{2,}")
_FENCE = ("```", "~~~")
_BULLET = re.compile(r"(?:[-*+•]|\d{1,3}[.)])\s++")
_RULE = re.compile(r"([=\-~^\"'`#*+_.:])\1{2,}+\Z")
_NAME = r"[*`]{0,2}[\w.\[\]]{1,80}+[*`]{0,2}"
_PROMPT = (">>>", "...", "$ ")
_NO_PROSE = re.compile(
    r"#{1,6}\s|\.\.\s|\||\+[-=]|:[\w .-]{1,60}:|In \[\d|Out\[\d|https?://\S++\Z|[=\-]{3,}\s"
    r"|from [\w.]+ import |import \w|(?:def|class|for|if|while|with|return)\b.*[:)]\Z"
)
_PARAMETER = re.compile(rf"{_NAME}(?:, {{0,4}}{_NAME}){{0,12}}\s?:(?:\s|\Z)")
_SENTENCE_ENDS = (".", "?", "!", ":")


class Sentence(NamedTuple):
    """Characters [start, end) of a document; a fenced block of code may follow them."""

    start: int
    end: int
    introduces_code: bool


def _is_prose(line: str, below: str) -> bool:
    """Tell whether a stripped line is no markup, code or parameter, heading or its underline."""
    if _RULE.match(line) or _NO_PROSE.match(line) or line.startswith(_PROMPT):
        return False
    if _PARAMETER.match(line) and not line.endswith("?"):
        return False
    return bool(line) and (not _RULE.match(below) or line.endswith(_SENTENCE_ENDS))


def _find_paragraphs(text: str) -> Iterator[tuple[int, int, bool]]:
    """Yield (start, end, whether a fenced block follows) of runs of prose lines."""
    lines = [(match.start(), match[0]) for match in _LINE.finditer(text)]
    is_fenced = is_output = False
    literal = -1  # indentation of the line above a literal block; -1 outside
    start, end, level = 0, 0, -1  # the present run; level -1 means no run
    for (at, whole), (_, following) in itertools.pairwise([*lines, (len(text), "")]):
        line, below = whole.strip(), following.strip()
        indent = len(whole) - len(whole.lstrip())
        literal = -1 if line and indent <= literal else literal
        is_fence = line.startswith(_FENCE)
        is_output = bool(line) and (is_output or line.startswith(_PROMPT))
        is_code = is_fence or is_fenced or literal >= 0
        is_code = is_code or (is_output and not line.endswith(_SENTENCE_ENDS))
        if is_code or not _is_prose(line, below):
            # a blank line before a fence does not end the run
            if level >= 0 and (line or not below.startswith(_FENCE)):
                yield start, end, is_fence and not is_fenced
                level = -1
        else:
            bullet = _BULLET.match(line)
            here = indent + (bullet.end() if bullet else 0)
            if level >= 0 and (bullet or here != level):
                yield start, end, False
                level = -1
            if level < 0:
                start, level = at + here, here
            end = at + indent + len(line)
        if literal < 0 and (line.endswith("::") or line.startswith(".. code")):
            literal = indent
        is_fenced ^= is_fence
    if level >= 0:
        yield start, end, False


def sentences_of(text: str) -> list[Sentence]:
    """Return the sentences of a document with three words or more, in order."""
    sentences = []
    for start, end, before_code in _find_paragraphs(text):
        spans = chunking.spans(text, start, end)
        for place, (low, high) in enumerate(spans, start=1):
            cut = min(high, low + MOST_CHARACTERS)
            if len(_PROSE_WORD.findall(text, low, cut)) >= LEAST_WORDS:
                sentences.append(Sentence(low, cut, before_code and place == len(spans)))
    return sentences


# ---- The form of a sentence

_INVERTED = _LISTS["inverted"]
_AUXILIARY = _INVERTED | {"'s", "be"}
_FORBIDS = frozenset(("don't", "dont", "never", "let", "let's", "lets"))
_NO_OBJECT = frozenset(("of", "and", "or", ":", "=", "(", ")", ","))
_ADDRESS = frozenset(("you", "your", "yours", "yourself", "me", "my"))
_ASKED_OF_READER = frozenset(("can", "could", "would", "will"))
_BROKEN = frozenset(".,;)]}>")
_TOKEN = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*|[?？¿,:;=()]")
_ENDS_ASKING = re.compile(r"[?？؟][\"'”’»)\]\s!.…]*\Z")
_OPENINGS, _READ, _BEGINNING, _SHORT, _END_CHARACTERS = 8, 600, 8, 14, 12


class SentenceForm(NamedTuple):
    """Whether a sentence asks, orders, and addresses its reader; several may be true."""

    asks: bool
    orders: bool
    addresses: bool


def _orders(words: list[str], lowered: list[str]) -> bool:
    """Tell whether the words of a sentence, without openings, begin like an order."""
    first, following = (*lowered[:2], "")[:2]
    if first in _FORBIDS or (first == "do" and following == "not"):
        return following != "alone"
    # an acronym is a name; "state is" and "use of" mention a thing
    is_mention = words[0].isupper() or following in _AUXILIARY or following in _NO_OBJECT
    if is_mention or first not in TASK_VERBS:
        return False
    is_other = first in _LISTS["nouns_too"] or first in _LISTS["adjectives_too"]
    return not is_other or following in _LISTS["objects"] or first in _LISTS["takes_preposition"]


def _asks(sentence: str, words: list[str], lowered: list[str]) -> bool:
    """Tell whether a sentence asks, by question mark and word order; `words` lack openings."""
    begins = lowered[:_BEGINNING]
    asking = _LISTS["asking"]
    if _ENDS_ASKING.search(sentence[-_END_CHARACTERS:]):
        # A long statement can end with a quoted question, so check the first words too. Only the
        # mark counts in a sentence without an English word.
        return (
            len(words) <= _SHORT
            or not (asking | _INVERTED).isdisjoint(begins)
            or CLOSED_CLASS.isdisjoint(begins)
        )
    if len(lowered) < 3 or not words[0][:1].isupper():  # noqa: PLR2004 - asking word, verb, subject
        return False
    if lowered[0] in asking:
        return lowered[1] in _AUXILIARY and lowered[2] in _LISTS["after_inversion"]
    return lowered[0] in _ASKED_OF_READER and lowered[1] in {"you", "we"}


def form_of(sentence: str) -> SentenceForm:
    """Tell the form of a sentence by its first words, last mark and pronouns."""
    words = [match[0].replace("’", "'") for match in _TOKEN.finditer(sentence[:_READ])]
    lowered = [word.lower() for word in words]
    # a sentence that begins with a mark is the rest of another sentence
    is_whole = sentence[:1] not in _BROKEN
    addresses = is_whole and not _ADDRESS.isdisjoint(lowered)
    openings = _LISTS["openings"]
    at, limit = 0, min(len(words) - 1, _OPENINGS)
    while at < limit and (lowered[at] in openings or lowered[at] in {",", ":"}):
        at += 1
    remaining, small = words[at:], lowered[at:]
    if not remaining:
        return SentenceForm(asks=False, orders=False, addresses=addresses)
    asks = _asks(sentence, remaining, small)
    orders = not asks and is_whole and _orders(remaining, small)
    return SentenceForm(asks, orders, addresses)


# ---- Sentences that speak to a language model: features of a sentence

MOST_TOKENS, _SHORT_FEATURES = 100, 16
_ALIKE = {word: name for name, words in load_words("addressing_alike").items() for word in words}
_WORD_OR_MARK = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?|\d+|!\[|[\"“”:?]|<(?:url|mail)>")
_URL = re.compile(r"https?://[^\s\"')>]+|\bwww\.[^\s\"')>]+")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+")
_STAND_INS = {"![": "<img>", "“": '"', "”": '"'}


def _tokens_of(sentence: str) -> list[str]:
    """Return the words of a normalised sentence, with stand-ins for addresses and numbers."""
    if "://" in sentence or "www." in sentence:
        sentence = _URL.sub(" <url> ", sentence)
    if "@" in sentence:
        sentence = _MAIL.sub(" <mail> ", sentence)
    words = _WORD_OR_MARK.findall(sentence)[:MOST_TOKENS]
    return ["<num>" if word.isdigit() else _STAND_INS.get(word, word) for word in words]


def _features_of(sentence: str) -> set[str]:
    """Return words and pairs of words, in which words of one kind share a name."""
    words = _tokens_of(sentence)
    alike = ["^", *(_ALIKE.get(word, word) for word in words)]
    return {*words, *map(" ".join, itertools.pairwise(alike))}


def _scale_of(features: set[str]) -> float:
    """Return the factor of a sentence's weights: long sentences collect them by chance."""
    return math.sqrt(_SHORT_FEATURES / max(len(features), _SHORT_FEATURES))


# ---- Candidates: sentences with a word that orders to a model seldom lack

BACK, REACH = 200, 400
"""Most characters of a sentence before, and after, its trigger word."""
_END = re.compile(r"[.!?。！？][\"'”’»)\]*]{0,5}(?: |$)")


@functools.cache
def _triggers() -> LinearPattern:
    verbs, words = "|".join(sorted(TASK_VERBS)), "|".join(load_words("addressing")["triggers"])
    return LinearPattern(rf"(?:^|[.!?:] )(?:{verbs})\b|\b(?:{words})\b")


def _sentences_looked_at(text: str) -> Iterator[tuple[int, int]]:
    """Yield the characters of each sentence with a trigger in a normalised text, in order."""
    last = 0
    # One byte for each character keeps places equal; the pattern is ASCII.
    for _, end in _triggers().find(text.encode("ascii", "replace")):
        stop = end - 1
        if stop < last:
            continue
        low = max(last, stop - BACK)
        for match in _END.finditer(text, low, stop):
            low = match.end()
        furthest = min(len(text), stop + REACH)
        ended = _END.search(text, stop, furthest)
        last = ended.end() if ended else furthest
        yield low, last


# ---- Scores

FILE = "addressing.json"
SHARE, LOWEST = 0.25, -3.0
"""Share of a neighbour's score that a sentence gets, and the lowest score that counts.

Instructions come in several sentences. Two harmless neighbours lower the score of an order by 1.5
at most."""
MOST_FINDINGS = 200
"""Most findings in one view of a text; the last finding covers all later places."""


class AddressingWeights(NamedTuple):
    """Logistic regression on the features of a sentence."""

    weights: dict[str, float]
    bias: float
    threshold: float

    def score(self, features: set[str]) -> float:
        """Score a sentence by its features; `fsum` makes their order irrelevant."""
        weighed = self.weights.keys() & features
        return self.bias + _scale_of(features) * math.fsum(self.weights[name] for name in weighed)


@functools.cache
def load_weights() -> AddressingWeights:
    """Read the weights, which were fitted once; `provenance` in the file says to which texts."""
    fitted = json.loads((files("rag_eval.trust") / FILE).read_text(encoding="utf-8"))
    return AddressingWeights(fitted["weights"], fitted["bias"], fitted["threshold"])


def find_addressing(views: Sequence[View]) -> list[list[tuple[int, int, str]]]:
    """Find the sentences of each view that speak to a model: (start, end, detail).

    Places are characters of the original text, which the detail never quotes. Neighbouring
    sentences are one finding.
    """
    # Search all views first, because alternating automata drive each other out of the cache.
    looked_at = [list(_sentences_looked_at(view.text)) for view in views]
    return [_find_in(view, spans) for view, spans in zip(views, looked_at, strict=True)]


def _find_in(view: View, spans: list[tuple[int, int]]) -> list[tuple[int, int, str]]:
    if not spans:
        return []
    fitted = load_weights()
    scores = [fitted.score(_features_of(view.text[start:end])) for start, end in spans]
    total = list(scores)
    for at, (before, after) in enumerate(itertools.pairwise(spans), 1):
        if before[1] == after[0]:
            total[at] += SHARE * max(scores[at - 1], LOWEST)
            total[at - 1] += SHARE * max(scores[at], LOWEST)
    spoken: list[tuple[int, int, float]] = []
    for (start, end), score in zip(spans, total, strict=True):
        if score <= fitted.threshold:
            continue
        if spoken and (spoken[-1][1] == start or len(spoken) == MOST_FINDINGS):
            low, _, best = spoken.pop()
            spoken.append((low, end, max(best, score)))
        else:
            spoken.append((start, end, score))
    detail = f"worded as if to an answering model (score {{:.1f}}, limit {fitted.threshold:.1f})"
    return [
        (*view.back(start, len(view.text[:end].rstrip(" "))), detail.format(score))
        for start, end, score in spoken
    ]
