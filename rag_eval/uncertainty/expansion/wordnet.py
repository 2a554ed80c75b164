"""WordNet through nltk as a thesaurus, where both are installed; nothing is ever downloaded."""

import importlib
from typing import Any

MOST = 20


class WordNet:
    """Nouns of WordNet (Miller, CACM 1995).

    Parameters
    ----------
    reader
        nltk's WordNet corpus reader.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def wider(self, word: str) -> list[str]:
        """Hypernyms of a word's first sense, nearest first."""
        return self._names(word, "hypernyms")

    def narrower(self, word: str) -> list[str]:
        """Hyponyms of a word's first sense, in WordNet's order."""
        return self._names(word, "hyponyms")

    def _names(self, word: str, relation: str) -> list[str]:
        senses = self._reader.synsets(word, pos="n")[:1]
        names = [
            name.replace("_", " ")
            for sense in senses
            for other in getattr(sense, relation)()
            for name in other.lemma_names()
        ]
        return list(dict.fromkeys(names))[:MOST]


def installed_wordnet() -> WordNet | None:
    """WordNet as installed; None where nltk or its data is not."""
    try:
        reader: Any = importlib.import_module("nltk.corpus").wordnet
        reader.ensure_loaded()
    except (ImportError, LookupError):
        return None
    return WordNet(reader)
