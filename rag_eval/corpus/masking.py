"""Mask personal data and secrets, character for character, so that offsets stay true."""

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from rag_eval.core.types import SNIPPET_CHARS, snippet

# ---- Checks behind the patterns: check digits, lengths and entropy

_CARD_LENGTHS = {"2": (16,), "3": (14, 15, 16), "4": (13, 16), "5": (16,), "6": (16,)}


def _digits_of(text: str) -> str:
    return "".join(character for character in text if "0" <= character <= "9")


def _is_card(match: re.Match[str]) -> bool:
    """Tell whether the length and the Luhn digit (ISO/IEC 7812-1, annex B) fit."""
    number = _digits_of(match[0])
    doubled = [int(digit) * (2 if place % 2 else 1) for place, digit in enumerate(number[::-1])]
    is_checked = sum(sum(divmod(value, 10)) for value in doubled) % 10 == 0
    return is_checked and len(number) in _CARD_LENGTHS[number[0]]


_IBANS = """
NO15 BE16 DK18 FI18 FO18 GL18 NL18 SD18 MK19 SI19 AT20 BA20 EE20 KZ20 LT20 LU20 XK20 CH21 HR21 LI21
LV21 BG22 BH22 CR22 DE22 GB22 GE22 IE22 ME22 RS22 VA22 AE23 GI23 IL23 IQ23 TL23 AD24 CZ24 ES24 MD24
PK24 RO24 SA24 SE24 SK24 TN24 VG24 LY25 PT25 ST25 IS26 TR26 FR27 GR27 IT27 MC27 MR27 SM27 AL28 AZ28
BY28 CY28 DO28 GT28 HU28 LB28 PL28 SV28 BR29 EG29 PS29 QA29 UA29 JO30 KW30 MU30 MT31 SC31 LC32
"""
"""Countries with the length of their numbers (ISO 13616 registry)."""


def _make_iban_regex() -> re.Pattern[str]:
    """Make an alternative for each length, because an open length would match the next word."""
    alternatives = []
    for entry in _IBANS.split():
        blocks, odd = divmod(int(entry[2:]) - 4, 4)
        tail = f"(?: ?[A-Z0-9]{{{odd}}})" if odd else ""
        alternatives.append(f"{entry[:2]}[0-9]{{2}}(?: ?[A-Z0-9]{{4}}){{{blocks}}}{tail}")
    # The first look-ahead lets the search skip quickly.
    return re.compile(
        rf"(?=[A-Z][A-Z][0-9]{{2}})(?<![A-Za-z0-9])(?:{'|'.join(alternatives)})(?![A-Za-z0-9])"
    )


def _is_iban(match: re.Match[str]) -> bool:
    """Tell whether the number is 1 modulo 97 after a move of its head to its end (ISO 13616)."""
    compact = match[0].replace(" ", "")
    moved = compact[4:] + compact[:4]
    return int("".join(str(int(character, 36)) for character in moved)) % 97 == 1


_MIN_LOCAL, _MIN_PHONE, _MAX_PHONE = 6, 8, 15
"""Numbers of digits: least after a label; least and most after a + (15 in ITU-T E.164)."""


def _is_phone(match: re.Match[str]) -> bool:
    """Tell whether a match has the number of digits of a phone number."""
    number = match[0]
    length = len(_digits_of(number))
    if match["labelled"]:
        return length >= _MIN_LOCAL
    # A signed number with one point is a decimal number (+1.2345678), not a grouped one.
    in_range = _MIN_PHONE <= length <= _MAX_PHONE and number.count(".") != 1
    return in_range or not number.startswith("+")


_HEX_BITS, _MIXED_BITS = 2.7, 3.4
"""Least entropy in bits a character: random hex of 16 to 40 digits has 3.0 to 3.8 bits, random
base64 has 3.7 to 5.0 bits."""


def _is_random(match: re.Match[str]) -> bool:
    """Tell whether the value has digits and letters, and the entropy of random hex or base64."""
    value = match["value"]
    shares = [count / len(value) for count in Counter(value).values()]
    least = _HEX_BITS if re.fullmatch(r"[0-9a-fA-F]+", value) else _MIXED_BITS
    has_both = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    return has_both and -sum(share * math.log2(share) for share in shares) >= least


# ---- Patterns of personal data and secrets


@dataclasses.dataclass(frozen=True, slots=True)
class Pattern:
    """Pattern of one kind of text to mask: the group `value` if matched, else the whole match.

    Every repetition is bounded, possessive or behind a look-behind, so that the search is linear.
    """

    name: str
    """The name that counts and masks show."""
    regex: re.Pattern[str]
    anchors: tuple[str, ...] = ()
    """Lower-case texts; each match holds one of them. Without anchors, it holds a run of digits."""
    check: Callable[[re.Match[str]], bool] = bool


_LABEL = r"[^\W_][\w-]{0,62}+"
_ASSIGNED_NAMES = (
    "secret|token|passwd|password|api_key|api-key|apikey|access_key|access-key|accesskey"
    "|private_key"
)
_PREFIXES = "ghp_|gho_|ghu_|ghs_|ghr_|github_pat_|glpat-|xox|sk-|sk_|rk_|hf_|npm_|aiza|eyj"

PATTERNS: tuple[Pattern, ...] = (
    # PEM private keys, header to footer; without a footer the base64 that follows the header.
    Pattern(
        "key",
        re.compile(
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"
            r"(?:(?:[^-]++|-(?!----))*+-----END [A-Z ]{0,40}PRIVATE KEY-----|[A-Za-z0-9+/=\s]*+)"
        ),
        anchors=("-----begin ",),
    ),
    # AWS access key ids: a prefix that says the kind, then 16 capitals and digits.
    Pattern(
        "key",
        re.compile(r"(?<![A-Za-z0-9])A(?:KIA|SIA|ROA|IDA|GPA|NPA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
        anchors=("akia", "asia", "aroa", "aida", "agpa", "anpa"),
    ),
    # Tokens of services, known by their prefix; hyphenated words after `sk-` have no digit. In JSON
    # Web Tokens `eyJ` is base64url of `{"`; dots part the header, the claims and the signature.
    Pattern(
        "key",
        re.compile(
            r"(?<![\w-])(?:gh[opusr]_[A-Za-z0-9]{36,255}+|github_pat_\w{22,255}+"
            r"|glpat-[\w-]{20,255}+|xox[abeoprs]-[A-Za-z0-9-]{10,255}+|sk-[\w-]{20,255}+"
            r"|[rs]k_(?:live|test)_[A-Za-z0-9]{16,255}+|hf_[A-Za-z0-9]{30,255}+"
            r"|npm_[A-Za-z0-9]{36}|AIza[\w-]{35}"
            r"|eyJ[\w-]{8,8192}+\.[\w-]{8,16384}+\.[\w-]{0,4096}+)",
            re.ASCII,
        ),
        anchors=tuple(_PREFIXES.split("|")),
        check=lambda match: any(map(str.isdigit, match[0])),
    ),
    # A long random value assigned to a name such as password; the name stays.
    Pattern(
        "key",
        re.compile(
            r"(?:secret|token|passwd|password|api[_-]?key|access[_-]?key|private_key)[\w-]{0,24}+"
            r"[\"']?\s{0,4}(?::=|=>|[:=])\s{0,4}[\"']?(?P<value>[A-Za-z0-9+/_=.~-]{16,4096}+)",
            re.ASCII | re.IGNORECASE,
        ),
        anchors=tuple(_ASSIGNED_NAMES.split("|")),
        check=_is_random,
    ),
    # A local part of at most 64 characters (RFC 5321), and a domain with a dot and a top level of
    # letters. Decorators, matrix products and handles lack one of these parts.
    Pattern(
        "email",
        re.compile(
            rf"(?<![\w.+%-])[\w+%-][\w.+%-]{{0,63}}+@(?:{_LABEL}\.){{1,8}}[^\W\d_]{{2,24}}(?![^\W_])"
        ),
        anchors=("@",),
    ),
    Pattern("iban", _make_iban_regex(), check=_is_iban),
    # Digits with the first digits of an issuer, in one piece or grouped as on a card.
    Pattern(
        "card",
        re.compile(
            r"(?<![\w.+-])(?:4[0-9]{3}|5[1-5][0-9]{2}|2[2-7][0-9]{2}|3[0-9]{3}|6[0-9]{3})"
            r"(?:([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{4}|([ -])[0-9]{6}\2[0-9]{4,5}|[0-9]{9,12})"
            r"(?![\w-]|\.[0-9])",
            re.ASCII,
        ),
        check=_is_card,
    ),
    # Only with structure: a country code, an area code in parentheses, North American groups, a
    # national number with separators, or a label. Ranges, DOIs and signed decimals have none.
    Pattern(
        "phone",
        re.compile(
            r"(?=[+(0-9tpfm])(?<![\w./+-])(?<![0-9],)(?:"
            r"(?P<labelled>(?:tel|telephone|phone|fax|mobile)(?:\.:?|:| no\.?:?| number:?) {0,2}"
            r"(?P<value>[+(]{0,2}[0-9][0-9 ()./-]{5,20}[0-9]))"
            r"|\+[1-9][0-9]{8,14}"
            r"|\+[1-9][0-9]{0,2}[ .-]?(?:\([0-9]{1,4}\)[ .-]?)?[0-9]{2,4}(?:[ .-][0-9]{2,8}){1,4}"
            r"|(?:1[ .-])?\([2-9][0-9]{2}\) ?[2-9][0-9]{2}[ .-][0-9]{4}"
            r"|(?:1[-.])?[2-9][0-9]{2}([-.])[2-9][0-9]{2}\3[0-9]{4}"
            r"|\(0[1-9][0-9]{1,4}\) ?[0-9]{3,4}[ -]?[0-9]{3,5}"
            r"|0[1-9][0-9]{1,3}([ -])[0-9]{3,4}\4[0-9]{3,4}"
            r")(?![\w%]|[.,-][0-9])",
            re.ASCII | re.IGNORECASE,
        ),
        check=_is_phone,
    ),
)


# ---- Masking

FILL = "█"
NAMES: tuple[str, ...] = tuple(sorted({pattern.name for pattern in PATTERNS}))
_DIGITS = re.compile(r"[0-9][0-9 .()/-]{6,}+")
"""Runs of seven characters or more, because no phone, card or account number is shorter."""


class MaskedText(NamedTuple):
    """A masked text of unchanged length, and the numbers of masked pieces by pattern name."""

    text: str
    counts: dict[str, int]


def _cover(piece: str, name: str) -> str:
    """Return a cover of equal length that begins with `[name`; line ends stay."""
    label = f"[{name}"[: len(piece)]
    if re.search(r"[\r\n]", piece[: len(label)]):
        label = ""
    return label + re.sub(r"[^\r\n]", FILL, piece[len(label) :])


def _apply(text: str, pattern: Pattern) -> tuple[str, int]:
    group = "value" if "value" in pattern.regex.groupindex else 0
    pieces: list[str] = []
    done = 0
    for match in filter(pattern.check, pattern.regex.finditer(text)):
        start, end = match.span(group) if match[group] is not None else match.span()
        pieces += (text[done:start], _cover(text[start:end], pattern.name))
        done = end
    return "".join(pieces) + text[done:] if pieces else text, len(pieces) // 2


def mask(text: str) -> MaskedText:
    """Overwrite e-mail addresses, phone, card and account numbers, and keys.

    The text keeps its length: each hit reads `[email████`. `counts` maps each pattern name with a
    hit to the number of hits. Lone surrogates and all line ends are kept. Time is linear.

    Examples
    --------
    >>> mask("write to jane.doe@example.org today")
    MaskedText(text='write to [email██████████████ today', counts={'email': 1})
    """
    counts: dict[str, int] = {}
    lowered, has_digits = text.lower(), _DIGITS.search(text) is not None
    for pattern in PATTERNS:
        if any(map(lowered.__contains__, pattern.anchors)) if pattern.anchors else has_digits:
            text, hits = _apply(text, pattern)
            if hits:
                counts[pattern.name] = counts.get(pattern.name, 0) + hits
    return MaskedText(text, counts)


# ---- Shown texts: always masked, even from an unmasked corpus, then cut to a snippet

MAX_READ_CHARS = 40_000
"""Characters that are masked before a snippet is cut: more than the longest masked value."""
_MIN_CARRIED_CHARS = 6
"""Least length of a masked value that is searched in other texts; shorter values could be words."""
IDS = frozenset(
    "query_id doc_id section_id snippet_id token tokens evidence index_hash rev sections".split()
)
"""Keys whose values are never masked, because people find things by ids."""

_COVER = re.compile(rf"\[(?:{'|'.join(NAMES)}){FILL}*")
_ENCODED = re.compile(r"%(?:[2-6][0-9A-Fa-f]|7[0-9A-Ea-e])")
"""Escapes of printable ASCII only, so that a decoded address gains no line end."""
_UNIT = re.compile(rf"{_ENCODED.pattern}|[\s\S]")
_PARTS = re.compile("((?:[/?&=#;,:]|%(?:2[36CF]|3[ABDF]))+)", re.IGNORECASE)
"""Separators of the parts of an address, percent-encoded or not."""


def mask_decoded(text: str) -> MaskedText:
    """Mask a text, percent-encoded data too; the length stays."""
    if not _ENCODED.search(text):
        return mask(text)
    units = _UNIT.findall(text)
    plain = "".join(unit if len(unit) == 1 else chr(int(unit[1:], 16)) for unit in units)
    masked, counts = mask(plain)
    # A unit that masking left is shown as it was; a masked escape is covered to its length.
    shown = (
        unit if new == old else new + FILL * (len(unit) - 1)
        for unit, old, new in zip(units, plain, masked, strict=True)
    )
    return MaskedText("".join(shown), counts)


def masked_text(text: str) -> str:
    """Mask a text, percent-encoded data too; the length stays."""
    return mask_decoded(text).text


def mask_snippet(text: str, limit: int = SNIPPET_CHARS) -> str:
    """Mask personal data, then cut the text to a snippet of at most `limit` characters."""
    return snippet(masked_text(text[:MAX_READ_CHARS]), limit)


mask_name = functools.lru_cache(maxsize=100_000)(mask_snippet)
"""`mask_snippet` of short texts that recur, such as ids."""


def mask_shown_address(address: str) -> str:
    """Mask an address as a whole, then each of its parts, percent-encoded data too."""
    parts = _PARTS.split(masked_text(address))
    return "".join(part if place % 2 else masked_text(part) for place, part in enumerate(parts))


def labelled_values(texts: Iterable[str]) -> dict[str, str]:
    """Return value -> cover for the values of texts that `mask` finds only beside a label.

    The values can then be covered in texts that lack the label. A key over several lines gives
    only its first line.
    """
    covers: dict[str, str] = {}
    for text in texts:
        for match in _COVER.finditer(mask(text).text):
            value = text[match.start() : match.end()]
            if len(value) >= _MIN_CARRIED_CHARS and not value.startswith("["):
                covers[value] = match[0]
    return {value: cover for value, cover in covers.items() if mask(value).text == value}


def covered_with(text: str, covers: dict[str, str]) -> str:
    """Cover every known value in a text and nothing else; the length stays."""
    for value, cover in covers.items():
        text = text.replace(value, cover)
    return text


def masked_tree(value: Any, keep: Collection[str] = IDS) -> Any:
    """Mask every text of a JSON value, except keys and the values under the keys in `keep`."""
    if isinstance(value, str):
        return masked_text(value)
    if isinstance(value, dict):
        return {
            name: item if name in keep else masked_tree(item, keep) for name, item in value.items()
        }
    return [masked_tree(item, keep) for item in value] if isinstance(value, list | tuple) else value
