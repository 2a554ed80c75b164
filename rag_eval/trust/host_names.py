"""Host names taken apart: what is registered, under which suffix, and how its letters look.

Belongs here: suffixes, the decoding of xn-- labels, folding and skeletons. What follows from a resemblance is `lookalikes`.
"""

import unicodedata
from typing import NamedTuple

MAX_LABEL_CHARS = 63
"""Bound of the DNS (RFC 1035, section 2.3.4): a longer label is nobody's."""

_SECOND_LEVEL = frozenset(
    "ac co com edu gen go gob gouv gov govt id ind info ltd me mil mus ne net nhs nom or org plc police sch school web".split()
)
"""Labels that are part of the suffix in front of a country's two letters: co.uk, com.au, or.jp."""
_SHARED = frozenset(
    "appspot.com azurewebsites.net blogspot.com cloudfront.net firebaseapp.com fly.dev github.io gitlab.io herokuapp.com netlify.app neocities.org notion.site "
    "onrender.com pages.dev readthedocs.io readthedocs.org substack.com surge.sh tumblr.com vercel.app web.app weebly.com wixsite.com wordpress.com workers.dev".split()
)
"""Hosts below which anybody registers a name: they are suffixes, so `numpy.github.io` is no neighbour of `github.com`."""
_CONTROLLED = frozenset("ac edu gob gouv gov govt int mil nhs police".split())
"""First labels of suffixes that are given out after a check; `data.gov.uk` does not imitate `data.gov`. Not `go`: `go.to` is anybody's."""

_LOOKS_LIKE = {
    "a": "аαɑаա", "b": "ьвβƅʙ", "c": "сϲᴄⅽ", "d": "ԁđɖⅾժ", "e": "еєεҽ", "f": "ғƒϝ", "g": "ɡցɢ", "h": "һнħհʜ", "i": "іιıɩɪ", "j": "јϳյ",
    "k": "кκӄᴋ", "l": "ӏłⅼʟɫ|", "m": "мⅿᴍ", "n": "пηոռɴ", "o": "оοօσøᴏ", "p": "рρϱᴘ", "q": "ԛգզ", "r": "гʀᴦ", "s": "ѕꜱƽ", "t": "тτŧᴛ",
    "u": "υսᴜц", "v": "νѵᴠ", "w": "ԝωաѡᴡ", "x": "хχⅹ", "y": "уγүʏყ", "z": "ᴢʐȥ", "ae": "æ", "oe": "œ", "th": "þ", "-": "‐‑‒–—−ー", ".": "。．｡",
}  # fmt: skip
_FOLDED = {ord(char): plain for plain, chars in _LOOKS_LIKE.items() for char in chars}
_DIGITS = str.maketrans("0123456789i", "olzeasbtbgl")
_COUNTRY_CHARS = 2
_ADDRESS = frozenset("0123456789abcdef:.[]")
_PAIRS = (("rn", "m"), ("vv", "w"), ("cl", "d"))


class HostName(NamedTuple):
    """A host in three parts: `en.wikipedia.org` is below ("en",), name "wikipedia", suffix "org".

    The name is empty where the host is itself a suffix or has one label.
    """

    below: tuple[str, ...]
    name: str
    suffix: str

    @property
    def registrable(self) -> str:
        """Name and suffix: what somebody registered, the suffix alone where there is no name."""
        return f"{self.name}.{self.suffix}" if self.name else self.suffix

    @property
    def controlled(self) -> bool:
        """Whether names under the suffix are given out after a check."""
        first, _, rest = self.suffix.partition(".")
        return first in _CONTROLLED and (first != "ac" or bool(rest))


def split_host(host: str) -> HostName:
    """Take a host apart by a short list of common suffixes of two labels; every other suffix is one label.

    Examples
    --------
    >>> split_host("news.bbc.co.uk")
    HostName(below=('news',), name='bbc', suffix='co.uk')
    """
    labels = host.split(".")
    two = len(labels) > 1 and (
        ".".join(labels[-2:]) in _SHARED
        or (len(labels[-1]) == _COUNTRY_CHARS and labels[-2] in _SECOND_LEVEL)
    )
    cut = len(labels) - (2 if two else 1)
    return (
        HostName(tuple(labels[: cut - 1]), labels[cut - 1], ".".join(labels[cut:]))
        if cut > 0
        else HostName((), "", host)
    )


def is_address(host: str) -> bool:
    """Whether this is an IP address, in which one more digit is another machine and not an imitation."""
    return host.rpartition(".")[2].isdecimal() or (":" in host and set(host) <= _ADDRESS)


def _decoded_label(label: str) -> str:
    if not label.startswith("xn--") or len(label) > MAX_LABEL_CHARS:
        return label
    try:
        return label[4:].encode("ascii").decode("punycode")
    except UnicodeError:
        return label  # no IDN at all; it is compared as it stands


def decoded(host: str) -> str:
    """The host with its xn-- labels as a person would read them (RFC 3492); labels that decode to nothing stay."""
    return ".".join(map(_decoded_label, host.split("."))) if "xn--" in host else host


def folded(text: str) -> str:
    """Letters of other scripts as the Latin ones they look like, without accents, in lower case.

    Examples
    --------
    >>> folded("wıkipédia")
    'wikipedia'
    """
    if text.isascii():
        return text.lower()
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(
        char
        for char in plain
        if not unicodedata.combining(char) and unicodedata.category(char) != "Cf"
    ).translate(_FOLDED)


def skeleton(text: str) -> str:
    """What is left of a folded name when digits and letter pairs are taken for what they look like; two names with one skeleton look alike.

    The idea is that of Unicode Technical Standard 39, section 4, with a table of our own for what fits into a host name.

    Examples
    --------
    >>> skeleton("wik1ped1a") == skeleton("wikipedia"), skeleton("rnicrosoft") == skeleton("microsoft")
    (True, True)
    """
    shown = text.translate(_DIGITS)
    for pair, letter in _PAIRS:
        shown = shown.replace(pair, letter)
    return shown
