"""Find sentences that speak to a language model instead of the document's subject.

The model guesses from the wording, so every finding is a warning. It finds English orders to
answer, hide, send or forget something in wordings that no rule foresees.
"""

import functools
import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import NamedTuple

from rag_eval.trust.reading import View
from rag_eval.trust.rules import LinearPattern
from rag_eval.trust.sentences import TASK_VERBS
from rag_eval.trust.spelling import load_texts, load_words

# ---- Features of a sentence

_LISTS = {name: frozenset(words) for name, words in load_words("addressing").items()}
CLASSES: dict[str, list[str]] = {}
"""Word -> classes of the word."""
for _name, _words in load_words("addressing_classes").items():
    for _word in _words:
        CLASSES.setdefault(_word, []).append(_name)
ALIKE = {word: name for name, words in load_words("addressing_alike").items() for word in words}
"""Word -> name that replaces words of one kind in runs of words."""

MOST_TOKENS = 100
_TOKEN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?|\d+|!\[|[\"“”:?]|<(?:url|mail)>")
_URL = re.compile(r"https?://[^\s\"')>]+|\bwww\.[^\s\"')>]+")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+")
_STAND_INS = {"![": "<img>", "“": '"', "”": '"'}
_BEFORE_VERB = _LISTS["openings"] | {":", '"'}
_SHORTEST = 3


def tokens_of(sentence: str) -> list[str]:
    """Return the words of a normalised sentence, with stand-ins for addresses and numbers."""
    if "://" in sentence or "www." in sentence:
        sentence = _URL.sub(" <url> ", sentence)
    if "@" in sentence:
        sentence = _MAIL.sub(" <mail> ", sentence)
    words = _TOKEN.findall(sentence)[:MOST_TOKENS]
    return ["<num>" if word.isdigit() else _STAND_INS.get(word, word) for word in words]


def _begins_order(verb: str, following: str) -> bool:
    """Tell whether a sentence begins with an order, by its first two words."""
    return verb in TASK_VERBS or (
        following in _LISTS["objects"]
        and verb not in CLASSES
        and verb not in _LISTS["objects"]
        and len(verb) >= _SHORTEST
        and not verb.endswith(("s", "ing", "ed"))
    )


def features_of(tokens: list[str], known: frozenset[str] | None = None) -> set[str]:
    """Return the names of a sentence's features, all or only those that are `known`.

    `w:` is a word that is not too common. `t:` are two or three words in a row, where words of one
    kind share a name. `c:` is a class of words. `n:` is the class of the first word after openings
    such as "please". `i:` marks a sentence that begins with an order, and each class in that
    sentence.
    """
    found = {f"w:{token}" for token in tokens if token not in _LISTS["plain"]}
    alike = ["^", *(ALIKE.get(token, token) for token in tokens)]
    pairs = [f"t:{first}_{second}" for first, second in itertools.pairwise(alike)]
    found.update(pairs)
    found.update(f"{pair}_{third}" for pair, third in zip(pairs, alike[2:], strict=False))
    present = {name for token in tokens for name in CLASSES.get(token, ())}
    found.update(f"c:{name}" for name in present)
    at = 0
    while at < len(tokens) - 1 and tokens[at] in _BEFORE_VERB:
        at += 1
    if at < len(tokens):
        found.update(f"n:{name}" for name in CLASSES.get(tokens[at], ()))
        if _begins_order(tokens[at], tokens[at + 1] if at + 1 < len(tokens) else ""):
            found.update(("i:", *(f"i:{name}" for name in present)))
    return found if known is None else found & known


# ---- Candidates: sentences that mention answers, a model or a user

BACK, REACH = 200, 400
"""Most characters of a sentence before, and after, its trigger word."""
_LONG = 100
_BESIDE = (
    r"\b(?:you|your|must|should|shall|ought|please|users?|reader|person|anyone|whoever|do not"
    r"|don't|never|always|whenever|whatever|is to|are to|are required|is required|has to|have to"
    r"|tell|say|says|give|put|add|write|let|ask|https?|ai|assistant|chatbot|ignore|disregard"
    r"|forget|pretend|refuse|secret|confidential|passwords?|credentials|instead|from now|if the"
    r"|if a|when the|when asked|this page|this text|this line|been lifted|been replaced|nothing"
    r"|every)\b"
)
"""Pattern that a sentence with a weak trigger must also match."""
_END = re.compile(r"[.!?。！？][\"'”’»)\]*]{0,5}(?: |$)")


@functools.cache
def _patterns() -> tuple[LinearPattern, LinearPattern]:
    words = load_words("addressing")
    beginnings, triggers = "|".join(words["beginnings"]), "|".join(words["triggers"])
    pattern = rf"(?:^|[.!?:] )(?:{beginnings})\b|\b(?:{triggers})\b"
    return LinearPattern(pattern), LinearPattern(_BESIDE)


def sentences_looked_at(text: str) -> Iterator[tuple[int, int]]:
    """Yield the characters of each sentence with a trigger in a normalised text, in order."""
    triggers, beside = _patterns()
    last = 0
    # One byte for each character keeps places equal; the patterns are ASCII.
    data = text.encode("ascii", "replace")
    for start, end in triggers.find(data):
        # A long span covers all matches up to the end of the window of the pattern.
        for stop in (end - 1,) if end - start < _LONG else range(start, end, REACH // 2):
            if stop < last:
                continue
            low = max(last, stop - BACK)
            for match in _END.finditer(text, low, stop):
                low = match.end()
            furthest = min(len(text), stop + REACH)
            ended = _END.search(text, stop, furthest)
            last = ended.end() if ended else furthest
            if text[start:end] not in _LISTS["weak"] or beside.matches(data, low, last):
                yield low, last


# ---- Scores

FILE = "addressing.json"
ALIKE_SHARE, UNLIKE_SHARE, UNLIKE_LIMIT = 0.25, 0.2, -3.0
"""Shares of a neighbour's score (above zero, below zero) that a sentence gets; lowest score.

Instructions come in several sentences. A score below UNLIKE_LIMIT counts as UNLIKE_LIMIT, so that
harmless neighbours lower the score of an order by 1.2 at most."""
MOST_FINDINGS = 200
"""Most findings in one view of a text; the last finding covers all later places."""
_SHOWN = 4


class AddressingWeights(NamedTuple):
    """Logistic regression: the score is the bias plus the weights of a sentence's features."""

    weights: dict[str, float]
    known: frozenset[str]
    bias: float
    threshold: float

    def score(self, sentence: str) -> float:
        """Score a normalised sentence; `fsum` makes the order of the features irrelevant."""
        features = features_of(tokens_of(sentence), self.known)
        return math.fsum((self.bias, *(self.weights[name] for name in features)))

    def explain(self, sentence: str) -> str:
        """Name the classes of words that raised the score of a sentence most."""
        labels = load_texts("addressing_labels")
        shares: dict[str, float] = {}
        for feature in features_of(tokens_of(sentence), self.known):
            kind, _, name = feature.partition(":")
            if kind in "cin" and name in labels and self.weights[feature] > 0:
                shares[name] = shares.get(name, 0.0) + self.weights[feature]
        ranked = sorted(shares, key=lambda name: (-shares[name], name))[:_SHOWN]
        return ", ".join(labels[name] for name in ranked) or "its words"


@functools.cache
def load_weights() -> AddressingWeights:
    """Read the weights that `benchmarks/fit_addressing.py` fitted."""
    fitted = json.loads((files("rag_eval.trust") / FILE).read_text(encoding="utf-8"))
    weights = fitted["weights"]
    return AddressingWeights(weights, frozenset(weights), fitted["bias"], fitted["threshold"])


def with_neighbours(scores: Sequence[float], beside: Sequence[bool]) -> list[float]:
    """Add shares of the neighbours' scores to the score of each sentence.

    `beside` marks the sentences that directly follow the sentence before.
    """

    def lend(score: float) -> float:
        return ALIKE_SHARE * score if score > 0 else UNLIKE_SHARE * max(score, UNLIKE_LIMIT)

    total = list(scores)
    for at in range(1, len(total)):
        if beside[at]:
            total[at] += lend(scores[at - 1])
            total[at - 1] += lend(scores[at])
    return total


def find_addressing(views: Sequence[View]) -> list[list[tuple[int, int, str]]]:
    """Find the sentences of each view that speak to a model: (start, end, detail).

    `start` and `end` are characters of the original text. The detail never quotes the text.
    """
    # Search all views first, because alternating automata drive each other out of the cache.
    looked_at = [list(sentences_looked_at(view.text)) for view in views]
    return [_find_in(view, spans) for view, spans in zip(views, looked_at, strict=True)]


def _find_in(view: View, spans: list[tuple[int, int]]) -> list[tuple[int, int, str]]:
    """Return the sentences of a view above the threshold; neighbours are one finding."""
    if not spans:
        return []
    fitted = load_weights()
    beside = [False, *(before[1] == after[0] for before, after in itertools.pairwise(spans))]
    own = [fitted.score(view.text[start:end]) for start, end in spans]
    found: list[tuple[int, int, float, int]] = []
    for at, score in enumerate(with_neighbours(own, beside)):
        start, end = spans[at]
        if score <= fitted.threshold:
            continue
        if found and (found[-1][1] == start or len(found) == MOST_FINDINGS):
            low, _, best, where = found[-1]
            found[-1] = (low, end, max(best, score), at if score > best else where)
        else:
            found.append((start, end, score, at))
    result = []
    for start, end, score, at in found:
        text = view.text[start:end].rstrip(" ")
        numbers = f"score {score:.1f}, limit {fitted.threshold:.1f}"
        reasons = fitted.explain(view.text[slice(*spans[at])])
        detail = f"worded as if to whoever answers ({numbers}): {reasons}"
        result.append((*view.back(start, start + len(text)), detail))
    return result
