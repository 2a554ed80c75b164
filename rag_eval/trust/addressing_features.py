"""What a sentence is made of for the addressing check: words, pairs of words, and classes of words in their order.

Belongs here: from a sentence to the names of its features. Which sentences are looked at is `addressing_sentences`, what the features weigh
is `addressing.json`.
"""

import itertools
import re
from collections.abc import Iterable

from rag_eval.trust.addressing_words import ALIKE, CLASSES, OBJECTS, OPENING, PLAIN
from rag_eval.trust.sentence_form import TASK_VERBS

MOST_TOKENS = 100
_TOKEN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?|\d+|!\[|[\"“”:?]|<(?:url|mail)>")
_URL = re.compile(r"https?://[^\s\"')>]+|\bwww\.[^\s\"')>]+")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+")
_STAND_INS = {"![": "<img>", "“": '"', "”": '"'}
_MARKS = frozenset({":", '"'})
_SHORTEST = 3


def tokens_of(sentence: str) -> list[str]:
    """Words of a normalised sentence; addresses, numbers and marks by what they are."""
    if "://" in sentence or "www." in sentence:
        sentence = _URL.sub(" <url> ", sentence)
    if "@" in sentence:
        sentence = _MAIL.sub(" <mail> ", sentence)
    return [
        "<num>" if word.isdigit() else _STAND_INS.get(word, word)
        for word in _TOKEN.findall(sentence)[:MOST_TOKENS]
    ]


def features_of(tokens: list[str]) -> set[str]:
    """Names of a sentence's features.

    `w:` a word that is not too common; `t:` two or three words in a row, words of one kind under one name; `c:` a class of words; `n:` the class
    of the word that the sentence begins with, openings such as "please" left out; `i:` that it begins with an order, and each class in it.
    """
    alike = ["^", *(ALIKE.get(token, token) for token in tokens)]
    found = {f"w:{token}" for token in tokens if token not in PLAIN}
    found.update(f"t:{first}_{second}" for first, second in itertools.pairwise(alike))
    found.update(
        f"t:{first}_{second}_{third}"
        for first, second, third in zip(alike, alike[1:], alike[2:], strict=False)
    )
    return found | _classes_of(tokens)


def _classes_of(tokens: list[str]) -> set[str]:
    """Names of the features that are about classes of words: `c:`, `n:` and `i:`."""
    present = {name for token in tokens if token in CLASSES for name in CLASSES[token]}
    found = {f"c:{name}" for name in present}
    at = 0
    while at < len(tokens) - 1 and (tokens[at] in OPENING or tokens[at] in _MARKS):
        at += 1
    if at < len(tokens):
        found.update(f"n:{name}" for name in CLASSES.get(tokens[at], ()))
        if _orders(tokens[at], tokens[at + 1] if at + 1 < len(tokens) else ""):
            found.add("i:")
            found.update(f"i:{name}" for name in present)
    return found


class KnownFeatures:
    """Features of a closed collection, found in a sentence without a name being made of any other: nearly all runs of words are in no collection.

    Parameters
    ----------
    names
        The collection, as `features_of` names them. Words hold no underscore, so the words of a run can be told from its name.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._words = {
            name.removeprefix("w:"): name for name in self._names if name.startswith("w:")
        }
        self._runs: dict[str, dict[str, tuple[list[str], dict[str, str]]]] = {}
        for name in self._names:
            if name.startswith("t:"):
                first, second, *third = name.removeprefix("t:").split("_")
                pair, triples = self._runs.setdefault(first, {}).setdefault(second, ([], {}))
                if third:
                    triples[third[0]] = name
                else:
                    pair.append(name)

    def of(self, tokens: list[str]) -> set[str]:
        """Return the features of a sentence that the collection holds."""
        found = {self._words[token] for token in self._words.keys() & tokens}
        alike = ["^", *[ALIKE.get(token, token) for token in tokens], ""]
        for first, second, third in zip(alike, alike[1:], alike[2:], strict=False):
            if (seconds := self._runs.get(first)) and (runs := seconds.get(second)):
                found.update(runs[0])
                if third in runs[1]:
                    found.add(runs[1][third])
        return found | (self._names & _classes_of(tokens))


def _orders(verb: str, following: str) -> bool:
    """Whether a sentence begins with an order, by its first word and the one after it."""
    if verb in TASK_VERBS:
        return True
    return (
        following in OBJECTS
        and verb not in CLASSES
        and verb not in OBJECTS
        and len(verb) >= _SHORTEST
        and not verb.endswith(("s", "ing", "ed"))
    )
