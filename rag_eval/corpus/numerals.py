"""Numbers of a text, spelled alike, so that those of two texts can be compared."""

import functools
import re
import unicodedata

NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()
"""Words for 0 to 20."""
_SPELLED = {word: str(number) for number, word in enumerate(NUMBER_WORDS) if word != "one"}
_SPELLED_WORD = re.compile(rf"\b(?:{'|'.join(_SPELLED)})\b", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![^\W_])\d+(?:[.,]\d+)*")
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:[.,]\d{3})+")


@functools.lru_cache(maxsize=4096)
def spell_number(number: str) -> str:
    """Spell a number with a decimal point, without separators of thousands and idle zeros."""
    if not number.isascii():
        number = "".join(char if char in ".," else str(unicodedata.digit(char)) for char in number)
    if _GROUPED.fullmatch(number):
        return re.sub(r"[.,]", "", number)
    whole, point, decimals = number.replace(",", ".").partition(".")
    whole = whole.lstrip("0") or "0"
    decimals = decimals if "." in decimals else decimals.rstrip("0")
    return f"{whole}.{decimals}" if point and decimals else whole


def numbers(text: str) -> list[str]:
    """Find numbers and spell them alike, with a decimal point and without idle zeros.

    A point or comma before three digits separates thousands, so `3.125` is 3125. A number that
    starts with 0 has no thousands. The rule holds for answers and for evidence.

    Examples
    --------
    >>> numbers("In 1889, 1,000 of 2.50 kg; 3,5 % of int64.")
    ['1889', '1000', '2.5', '3.5']
    """
    return [spell_number(number) for number in _NUMBER.findall(text)]


def spell_alike(text: str) -> str:
    """Write the numbers of a text alike, number words in digits; "one" seldom counts, and stays.

    Examples
    --------
    >>> spell_alike("Seven halls seat 12,500 people, one of them 2.50 in a row.")
    '7 halls seat 12500 people, one of them 2.5 in a row.'
    """
    digits = _SPELLED_WORD.sub(lambda word: _SPELLED[word[0].lower()], text)
    return _NUMBER.sub(lambda number: spell_number(number[0]), digits)
