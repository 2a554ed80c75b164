"""What grep looks for, and where it stands: default terms of a question, and one pass over the chunks for the terms of all questions.

Case rule: a term with a capital letter is matched as it stands, any other term in any case. An end of a term that is a letter, digit or
underscore must end a word in the text too, so `sort` does not match `sort_values`, but `sort_values` matches `DataFrame.sort_values`.
"""

import re
from collections.abc import Iterable, Sequence

MAX_TERMS = 32
MAX_TERM_CHARS = 200

_QUOTED = re.compile(
    r"`([^`\n]{1,200})`|\"([^\"\n]{1,200})\"|“([^”\n]{1,200})”|«([^»\n]{1,200})»|(?<!\w)'([^'\n]{1,200})'(?!\w)"
)
_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*(?:\(\))?")
_INNER = re.compile(r"_|\.|\(\)|[a-z][A-Z]|[A-Za-z]\d|[A-Z]{2}")
_ABBREVIATION = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]")
_WORD = re.compile(r"\w+")
_SENTENCE_START = re.compile(r"(?:^|[.!?:]\s+)[\"'“«(]*$")


def _names(text: str) -> Iterable[str]:
    """Identifiers, and capitalised words that do not merely begin a sentence."""
    for match in _DOTTED.finditer(text):
        word = match[0]
        bare = word.removesuffix("()")
        if _ABBREVIATION.fullmatch(bare):
            continue
        if _INNER.search(word) or (
            word[0].isupper()
            and len(word) > 1
            and not _SENTENCE_START.search(text[max(0, match.start() - 8) : match.start()])
        ):
            yield bare


def default_terms(question: str) -> tuple[str, ...]:
    """Quoted words and names of a question, in their order, each once, at most 32.

    Examples
    --------
    >>> default_terms("How does DataFrame.sort_values() treat 'na_position' in Paris?")
    ('na_position', 'DataFrame.sort_values', 'Paris')
    """
    quoted = (
        next(group for group in match.groups() if group is not None).strip()
        for match in _QUOTED.finditer(question)
    )
    terms = [term for term in (*quoted, *_names(_QUOTED.sub(" ", question))) if term]
    return tuple(dict.fromkeys(term[:MAX_TERM_CHARS] for term in terms))[:MAX_TERMS]


def _pattern(term: str) -> re.Pattern[str]:
    before = r"(?<!\w)" if term[0].isalnum() or term[0] == "_" else ""
    after = r"(?!\w)" if term[-1].isalnum() or term[-1] == "_" else ""
    return re.compile(
        before + re.escape(term) + after,
        0 if any(letter.isupper() for letter in term) else re.IGNORECASE,
    )


def find_terms(terms: Iterable[str], texts: Sequence[str]) -> dict[str, list[int]]:
    """Term -> places of the texts that have it, rising.

    The texts are read once for the words of all terms; each term is then looked for only where all its words are.
    """
    words = {term: frozenset(_WORD.findall(term.lower())) for term in terms}
    needed = frozenset().union(*words.values()) if words else frozenset()
    having: dict[str, set[int]] = {word: set() for word in needed}
    if needed:
        for place, text in enumerate(texts):
            for word in needed.intersection(_WORD.findall(text.lower())):
                having[word].add(place)
    found = {}
    for term, parts in words.items():
        places = (
            sorted(set.intersection(*(having[part] for part in parts)))
            if parts
            else range(len(texts))
        )
        search = _pattern(term).search
        found[term] = [place for place in places if search(texts[place])]
    return found
