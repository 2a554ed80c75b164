"""What a sentence is made of for the addressing check: words, pairs of words, and classes of words in their order.

Belongs here: from a sentence to the names of its features. Which sentences are looked at is `addressing_sentences`, what the features weigh
is `addressing.json`.
"""

import re

from rag_eval.trust.addressing_words import CLASSES, OBJECTS, OPENING
from rag_eval.trust.sentence_form import TASK_VERBS

MOST_TOKENS = 100
_NEAR = 8
_TOKEN = re.compile(r"https?://[^\s\"')>]+|www\.[^\s\"')>]+|[\w.+-]+@[\w-]+\.[\w.-]*\w|!\[|`+|[^\W\d_]+(?:['’][^\W\d_]+)?|\d+|[\"“”:?]")
_EXAMPLE_TAIL = re.compile(r"\.(?:com|net|org|io)\b")
_STAND_INS = {"![": "<img>", "“": '"', "”": '"'}


def tokens_of(sentence: str) -> list[str]:
    """Words of a normalised sentence; addresses, numbers and marks by what they are."""
    found = []
    for token in _TOKEN.findall(sentence):
        first = token[0]
        if first.isdigit():
            token = "<num>"  # noqa: PLW2901 - its stand-in
        elif first == "`":
            token = "<code>"  # noqa: PLW2901
        elif len(token) > 5:  # noqa: PLR2004 - no address is shorter
            if token.startswith(("http", "www.")) and ("/" in token or "." in token):
                token = "<url>"  # noqa: PLW2901
            elif "@" in token:
                token = "<mail>"  # noqa: PLW2901
        found.append(_STAND_INS.get(token, token.replace("’", "'")))
        if len(found) == MOST_TOKENS:
            break
    return found


def features_of(tokens: list[str]) -> set[str]:
    """Names of a sentence's features.

    `w:` a word, `b:` two words in a row, `c:` a class, `d:` two classes in their order at most eight words apart, `i:` a sentence that begins
    with an order, and the classes in it, `n:` the class of the word that it begins with.
    """
    found = {f"w:{token}" for token in tokens}
    found.update(f"b:{first}_{second}" for first, second in zip(["^", *tokens], tokens, strict=False))
    classed = [(at, classes) for at, token in enumerate(tokens) if (classes := CLASSES.get(token))]
    present = {name for _, classes in classed for name in classes}
    found.update(f"c:{name}" for name in present)
    for place, (at, classes) in enumerate(classed):
        for beyond, others in classed[place + 1 : place + 1 + _NEAR]:
            if beyond - at > _NEAR:
                break
            found.update(f"d:{one}>{other}" for one in classes for other in others)
    at = 0
    while at < len(tokens) - 1 and (tokens[at] in OPENING or tokens[at] in {":", '"'}):
        at += 1
    if at < len(tokens):
        verb, following = tokens[at], tokens[at + 1] if at + 1 < len(tokens) else ""
        found.update(f"n:{name}" for name in CLASSES.get(verb, ()))
        if verb in TASK_VERBS or (following in OBJECTS and verb not in CLASSES and len(verb) > 2 and verb not in OBJECTS and not verb.endswith(("s", "ing", "ed"))):  # noqa: PLR2004
            found.add("i:")
            found.update(f"i:{name}" for name in present)
    return found
