"""Recognise texts that the analyzer does not serve: another script, or a language but English.

The words of such a text are found only as they are written, and its stop words count.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

from rag_eval.corpus.analyzer import BLANKLESS, words

_READ_CHARS = 1000
_FEWEST = 2
"""Fewest different function words that name a language."""
_FUNCTION_WORDS = {
    "English": "the of and to in is that for it on with as was are what how which does by from",
    "German": "der die das und ist nicht ein eine mit für auf wie wird werden von zu sich auch den",
    "French": "le la les des et est une dans pour que qui sur par au avec il ne pas quelle du",
    "Spanish": "el la los las es una en por que con para del se no como su al más cuál",
    "Italian": "il la che di è una per con del della sono non gli nel alla come più quale si dei",
    "Portuguese": "uma em por que com para não como mais dos ao qual são é foi pelo pela",
    "Dutch": "de het een van en dat niet met voor zijn aan wordt hoe welke ook naar",
    "Polish": "się nie jest że jak od przez dla oraz są który jakie ich być może",
    "Turkish": "ve bir bu için ile olarak daha çok gibi nasıl hangi olan değil kadar",
    "Swedish": "och att det som är på av för med till den inte ett har om hur vilken från kan",
    "Vietnamese": "là của và các có được cho trong một với những không để này khi từ người đã",
    "Indonesian": "yang dan di dengan untuk dari ini itu pada adalah tidak dalam ke apa oleh",
}
_WORDS = {name: frozenset(listed.split()) for name, listed in _FUNCTION_WORDS.items()}
_SERVED = re.compile(f"[a-zA-Zªºµ{BLANKLESS}]")


def find_language(text: str) -> str:
    """Name the script or the language of a text that the analyzer does not serve; empty if served.

    Examples
    --------
    >>> find_language("Где находится насос?"), find_language("Wie wird die Pumpe entlüftet?")
    ('Cyrillic', 'German')
    >>> find_language("ポンプはどこですか"), find_language("Where is the pump?")
    ('', '')
    """
    text = text[:_READ_CHARS]
    letters = [letter for letter in text if letter.isalpha()]
    if not text.isascii():
        scripts = Counter(
            "" if _SERVED.match(letter) else unicodedata.name(letter, "LATIN").split()[0]
            for letter in letters
        )
        latin = scripts.pop("", 0) + scripts.pop("LATIN", 0)
        script, count = max(scripts.items(), key=lambda item: item[1], default=("", 0))
        if count > latin:
            return script.capitalize()
    text_words = set(words(text))
    counts = {name: len(text_words & listed) for name, listed in _WORDS.items()}
    best = max(counts, key=lambda name: counts[name])
    is_clear = counts[best] >= max(_FEWEST, 1 + 2 * counts["English"])
    return best if is_clear else ""


def count_languages(texts: Iterable[str]) -> Counter[str]:
    """Count the texts in each language that the analyzer does not serve."""
    return Counter(filter(None, map(find_language, texts)))
