"""Checks behind the patterns: check digits, lengths and entropy.

Belongs here: what an expression alone cannot say.
"""

import math
import re
from collections import Counter


def digits_of(text: str) -> str:
    """Return the ASCII digits of a text, in order."""
    return "".join(character for character in text if "0" <= character <= "9")


def luhn(number: str) -> bool:
    """Whether the last of these digits is their Luhn check digit (ISO/IEC 7812-1, annex B).

    Examples
    --------
    >>> luhn("4111111111111111"), luhn("4111111111111112")
    (True, False)
    """
    doubled = [int(digit) * (2 if place % 2 else 1) for place, digit in enumerate(reversed(number))]
    return sum(value - 9 if value > 9 else value for value in doubled) % 10 == 0  # noqa: PLR2004 - the rule of the standard


_CARD_LENGTHS = {"2": (16,), "3": (14, 15, 16), "4": (13, 16), "5": (16,), "6": (16,)}


def is_card(match: re.Match[str]) -> bool:
    """Whether the digits have a length that the issuer uses, and a fitting Luhn digit."""
    number = digits_of(match[0])
    return len(number) in _CARD_LENGTHS[number[0]] and luhn(number)


_IBAN_COUNTRIES = {
    15: "NO",
    16: "BE",
    18: "DK|FI|FO|GL|NL|SD",
    19: "MK|SI",
    20: "AT|BA|EE|KZ|LT|LU|XK",
    21: "CH|HR|LI|LV",
    22: "BG|BH|CR|DE|GB|GE|IE|ME|RS|VA",
    23: "AE|GI|IL|IQ|TL",
    24: "AD|CZ|ES|MD|PK|RO|SA|SE|SK|TN|VG",
    25: "LY|PT|ST",
    26: "IS|TR",
    27: "FR|GR|IT|MC|MR|SM",
    28: "AL|AZ|BY|CY|DO|GT|HU|LB|PL|SV",
    29: "BR|EG|PS|QA|UA",
    30: "JO|KW|MU",
    31: "MT|SC",
    32: "LC",
}
"""Countries by the length of their numbers (ISO 13616 registry)."""


def iban_regex() -> re.Pattern[str]:
    """One alternative for each length, so that a capitalised word after the number is not swallowed."""
    alternatives = []
    for length, countries in _IBAN_COUNTRIES.items():
        blocks, rest = divmod(length - 4, 4)
        tail = f"(?: ?[A-Z0-9]{{{rest}}})" if rest else ""
        alternatives.append(f"(?:{countries})[0-9]{{2}}(?: ?[A-Z0-9]{{4}}){{{blocks}}}{tail}")
    # the first look-ahead lets the search skip quickly
    return re.compile(
        rf"(?=[A-Z][A-Z][0-9]{{2}})(?<![A-Za-z0-9])(?:{'|'.join(alternatives)})(?![A-Za-z0-9])"
    )


def is_iban(match: re.Match[str]) -> bool:
    """Whether the number is 1 modulo 97 with its country and check digits behind it (ISO 13616)."""
    compact = match[0].replace(" ", "")
    return (
        int("".join(str(int(character, 36)) for character in compact[4:] + compact[:4])) % 97 == 1
    )


_MIN_LOCAL, _MIN_PHONE, _MAX_PHONE = 6, 8, 15  # digits; 15 is the most that ITU-T E.164 allows


def is_phone(match: re.Match[str]) -> bool:
    """Whether there are as many digits as phone numbers have."""
    number = match[0]
    length = len(digits_of(number))
    if match["labelled"]:
        return length >= _MIN_LOCAL
    # one decimal point after a sign is a number (+1.2345678), not a grouping
    return not number.startswith("+") or (
        _MIN_PHONE <= length <= _MAX_PHONE and number.count(".") != 1
    )


def entropy(text: str) -> float:
    """Shannon entropy of the characters of a text, in bits a character."""
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values()) if text else 0.0


_HEX_BITS, _MIXED_BITS = (
    2.7,
    3.4,
)  # random hex of 16 to 40 digits has 3.0-3.8 bits, random base64 3.7-5.0; words and padding have less


def is_random(match: re.Match[str]) -> bool:
    """Whether the value has digits and letters, and the entropy of random hex or base64."""
    value = match["value"]
    has_both = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    least = _HEX_BITS if re.fullmatch(r"[0-9a-fA-F]+", value) else _MIXED_BITS
    return has_both and entropy(value) >= least


def has_digit(match: re.Match[str]) -> bool:
    """Whether there is a digit in it."""
    return any(map(str.isdigit, match[0]))
