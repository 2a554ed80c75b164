"""What counts as personal data or a secret: one named pattern each, with the reason for its shape.

Belongs here: the expressions and the checks behind them. How text is searched and overwritten is `masking`.
"""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable


def anything(_: re.Match[str]) -> bool:
    """Accept every match: the check of patterns whose expression says it all."""
    return True


@dataclasses.dataclass(frozen=True, slots=True)
class Pattern:
    """One thing to mask.

    Parameters
    ----------
    name
        The name that counts and masks show.
    regex
        What is masked; the group `value` where there is one, else the whole match. Every repetition is bounded, possessive or guarded by
        a look-behind, so that the search is linear in the text.
    rationale
        Why it looks so, for a person who wonders about a hit or a miss.
    anchors
        Literal strings, lower case, one of which every match holds. Empty: anchored at runs of digits.
    before, after
        How far a match may reach to the left and the right of its anchor, in characters. 0 before: a match begins at its anchor.
    check
        Further condition on a match.
    """

    name: str
    regex: re.Pattern[str]
    rationale: str
    anchors: tuple[str, ...] = ()
    before: int = 0
    after: int = 0
    check: Callable[[re.Match[str]], bool] = anything


def _value(match: re.Match[str]) -> str:
    return match["value"] if "value" in match.re.groupindex else match[0]


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


def _is_card(match: re.Match[str]) -> bool:
    number = digits_of(match[0])
    return len(number) in _CARD_LENGTHS[number[0]] and luhn(number)


_IBAN_LENGTHS = dict(
    pair.split(":")
    for pair in (
        "AD:24 AE:23 AL:28 AT:20 AZ:28 BA:20 BE:16 BG:22 BH:22 BR:29 BY:28 CH:21 CR:22 CY:28 CZ:24 DE:22 DK:18 DO:28 EE:20 EG:29 ES:24 "
        "FI:18 FO:18 FR:27 GB:22 GE:22 GI:23 GL:18 GR:27 GT:28 HR:21 HU:28 IE:22 IL:23 IQ:23 IS:26 IT:27 JO:30 KW:30 KZ:20 LB:28 LC:32 "
        "LI:21 LT:20 LU:20 LV:21 LY:25 MC:27 MD:24 ME:22 MK:19 MR:27 MT:31 MU:30 NL:18 NO:15 PK:24 PL:28 PS:29 PT:25 QA:29 RO:24 RS:22 "
        "SA:24 SC:31 SD:18 SE:24 SI:19 SK:24 SM:27 ST:25 SV:28 TL:23 TN:24 TR:26 UA:29 VA:22 VG:24 XK:20"
    ).split()
)


def iban_regex() -> re.Pattern[str]:
    """One alternative for each length, so that a capitalised word after the number is not swallowed."""
    by_length: dict[int, list[str]] = {}
    for country, length in _IBAN_LENGTHS.items():
        by_length.setdefault(int(length), []).append(country)
    tails = []
    for length, countries in sorted(by_length.items()):
        blocks, rest = divmod(length - 4, 4)
        tail = f"(?: ?[A-Z0-9]{{{rest}}})" if rest else ""
        tails.append(f"(?:{'|'.join(countries)})[0-9]{{2}}(?: ?[A-Z0-9]{{4}}){{{blocks}}}{tail}")
    # the first look-ahead lets the search skip quickly
    return re.compile(rf"(?=[A-Z][A-Z][0-9]{{2}})(?<![A-Za-z0-9])(?:{'|'.join(tails)})(?![A-Za-z0-9])")


def _is_iban(match: re.Match[str]) -> bool:
    compact = match[0].replace(" ", "")
    return int("".join(str(int(character, 36)) for character in compact[4:] + compact[:4])) % 97 == 1


_MIN_LOCAL, _MIN_PHONE, _MAX_PHONE = 6, 8, 15  # digits; 15 is the most that ITU-T E.164 allows


def _is_phone(match: re.Match[str]) -> bool:
    number = match[0]
    length = len(digits_of(number))
    if match["labelled"]:
        return length >= _MIN_LOCAL
    # one decimal point after a sign is a number (+1.2345678), not a grouping
    return not number.startswith("+") or (_MIN_PHONE <= length <= _MAX_PHONE and number.count(".") != 1)


def entropy(text: str) -> float:
    """Shannon entropy of the characters of a text, in bits a character."""
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values()) if text else 0.0


_HEX_BITS, _MIXED_BITS = 2.7, 3.4  # random hex of 16 to 40 digits has 3.0-3.8 bits, random base64 3.7-5.0; words and padding have less


def _is_random(match: re.Match[str]) -> bool:
    value = _value(match)
    has_both = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    least = _HEX_BITS if re.fullmatch(r"[0-9a-fA-F]+", value) else _MIXED_BITS
    return has_both and entropy(value) >= least


def _has_digit(match: re.Match[str]) -> bool:
    return any(map(str.isdigit, match[0]))


_LABEL = r"[^\W_][\w-]{0,62}+"
_SECRET_NAMES = ("secret", "token", "passwd", "password", "api_key", "api-key", "apikey", "access_key", "access-key", "accesskey", "private_key")

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        "key",
        re.compile(
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"
            r"(?:(?:[^-]++|-(?!----))*+-----END [A-Z ]{0,40}PRIVATE KEY-----|[A-Za-z0-9+/=\s]*+)"
        ),
        "PEM private key blocks, header to footer; without a footer the base64 that follows the header. The body stops at the next five dashes.",
        anchors=("-----begin ",),
    ),
    Pattern(
        "key",
        re.compile(r"(?<![A-Za-z0-9])A(?:KIA|SIA|ROA|IDA|GPA|NPA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
        "AWS access key ids: a four-letter prefix that says the kind, then 16 capitals and digits.",
        anchors=("akia", "asia", "aroa", "aida", "agpa", "anpa"),
    ),
    Pattern(
        "key",
        re.compile(
            r"(?<![\w-])(?:gh[opusr]_[A-Za-z0-9]{36,255}+|github_pat_\w{22,255}+|glpat-[\w-]{20,255}+|xox[abeoprs]-[A-Za-z0-9-]{10,255}+"
            r"|sk-[\w-]{20,255}+|[rs]k_(?:live|test)_[A-Za-z0-9]{16,255}+|hf_[A-Za-z0-9]{30,255}+|npm_[A-Za-z0-9]{36}|AIza[\w-]{35})",
            re.ASCII,
        ),
        "Tokens of GitHub, GitLab, Slack, OpenAI-style services, Stripe, Hugging Face, npm and Google, known by their prefix. A digit is "
        "required: hyphenated words after `sk-` have none.",
        anchors=("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "sk-", "sk_", "rk_", "hf_", "npm_", "aiza"),
        check=_has_digit,
    ),
    Pattern(
        "key",
        re.compile(r"(?<![\w-])eyJ[\w-]{8,8192}+\.[\w-]{8,16384}+\.[\w-]{0,4096}+", re.ASCII),
        'JSON Web Tokens: base64url of `{"` is `eyJ`; header, claims and signature parted by dots.',
        anchors=("eyj",),
    ),
    Pattern(
        "key",
        re.compile(
            r"(?:secret|token|passwd|password|api[_-]?key|access[_-]?key|private_key)[\w-]{0,24}+[\"']?\s{0,4}(?::=|=>|[:=])\s{0,4}[\"']?"
            r"(?P<value>[A-Za-z0-9+/_=.~-]{16,4096}+)",
            re.ASCII | re.IGNORECASE,
        ),
        "A long random value assigned to a name such as secret, token, password or api_key; the value is masked, the name stays. Random: "
        "digits and letters, and the entropy of random hex or base64.",
        anchors=_SECRET_NAMES,
        check=_is_random,
    ),
    Pattern(
        "email",
        re.compile(rf"(?<![\w.+%-])[\w+%-][\w.+%-]{{0,63}}+@(?:{_LABEL}\.){{1,8}}[^\W\d_]{{2,24}}(?![^\W_])"),
        "One @ between a local part of at most 64 characters (RFC 5321) and a domain with at least one dot and a top level of letters. "
        "Decorators, matrix products and handles have no local part or no dotted domain.",
        anchors=("@",),
        before=66,
        after=620,
    ),
    Pattern(
        "iban",
        iban_regex(),
        "Country, two check digits and the country's own length (ISO 13616), in one piece or in groups of four; mod-97 must be 1.",
        before=44,
        after=44,
        check=_is_iban,
    ),
    Pattern(
        "card",
        re.compile(
            r"(?<![\w.+-])(?:4[0-9]{3}|5[1-5][0-9]{2}|2[2-7][0-9]{2}|3[0-9]{3}|6[0-9]{3})"
            r"(?:([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{4}|([ -])[0-9]{6}\2[0-9]{4,5}|[0-9]{9,12})(?![\w-]|\.[0-9])",
            re.ASCII,
        ),
        "13 to 16 digits that begin as Visa, Mastercard, American Express, Diners, JCB, Discover or UnionPay numbers do, in one piece or "
        "grouped as on a card; the Luhn digit must fit. Nanosecond timestamps have 19 digits and begin with 1.",
        before=24,
        after=24,
        check=_is_card,
    ),
    Pattern(
        "phone",
        re.compile(
            r"(?=[+(0-9tpfm])(?<![\w./+-])(?<![0-9],)(?:"
            r"(?P<labelled>(?:tel|telephone|phone|fax|mobile)(?:\.:?|:| no\.?:?| number:?) {0,2}(?P<value>[+(]{0,2}[0-9][0-9 ()./-]{5,20}[0-9]))"
            r"|\+[1-9][0-9]{8,14}"
            r"|\+[1-9][0-9]{0,2}[ .-]?(?:\([0-9]{1,4}\)[ .-]?)?[0-9]{2,4}(?:[ .-][0-9]{2,5}){1,4}"
            r"|(?:1[ .-])?\([2-9][0-9]{2}\) ?[2-9][0-9]{2}[ .-][0-9]{4}"
            r"|(?:1[-.])?[2-9][0-9]{2}([-.])[2-9][0-9]{2}\3[0-9]{4}"
            r"|\(0[1-9][0-9]{1,4}\) ?[0-9]{3,4}[ -]?[0-9]{3,5}"
            r"|0[1-9][0-9]{1,3}([ -])[0-9]{3,4}\4[0-9]{3,4}"
            r")(?![\w%]|[.,-][0-9])",
            re.ASCII | re.IGNORECASE,
        ),
        "Only with structure: + and a country code, an area code in parentheses, North American 3-3-4 groups, a national number with 0 in "
        "front and two separators, or a label such as `Tel.:`. Ranges (1990-2000), DOIs (10.1234/56-789) and signed decimals have none.",
        before=28,
        after=40,
        check=_is_phone,
    ),
)
