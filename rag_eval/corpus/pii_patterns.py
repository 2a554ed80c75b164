"""What counts as personal data or a secret: one named pattern each, with the reason for its shape.

Belongs here: the expressions. Check digits and entropy are `pii_checks`; how text is searched and overwritten is `masking`.
"""

import dataclasses
import re
from collections.abc import Callable

from rag_eval.corpus.pii_checks import has_digit, iban_regex, is_card, is_iban, is_phone, is_random


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


_LABEL = r"[^\W_][\w-]{0,62}+"
_SECRET_NAMES = (
    "secret",
    "token",
    "passwd",
    "password",
    "api_key",
    "api-key",
    "apikey",
    "access_key",
    "access-key",
    "accesskey",
    "private_key",
)

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
        anchors=(
            "ghp_",
            "gho_",
            "ghu_",
            "ghs_",
            "ghr_",
            "github_pat_",
            "glpat-",
            "xox",
            "sk-",
            "sk_",
            "rk_",
            "hf_",
            "npm_",
            "aiza",
        ),
        check=has_digit,
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
        check=is_random,
    ),
    Pattern(
        "email",
        re.compile(
            rf"(?<![\w.+%-])[\w+%-][\w.+%-]{{0,63}}+@(?:{_LABEL}\.){{1,8}}[^\W\d_]{{2,24}}(?![^\W_])"
        ),
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
        check=is_iban,
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
        check=is_card,
    ),
    Pattern(
        "phone",
        re.compile(
            r"(?=[+(0-9tpfm])(?<![\w./+-])(?<![0-9],)(?:"
            r"(?P<labelled>(?:tel|telephone|phone|fax|mobile)(?:\.:?|:| no\.?:?| number:?) {0,2}(?P<value>[+(]{0,2}[0-9][0-9 ()./-]{5,20}[0-9]))"
            r"|\+[1-9][0-9]{8,14}"
            r"|\+[1-9][0-9]{0,2}[ .-]?(?:\([0-9]{1,4}\)[ .-]?)?[0-9]{2,4}(?:[ .-][0-9]{2,8}){1,4}"
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
        check=is_phone,
    ),
)
