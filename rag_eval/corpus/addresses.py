"""Addresses of documents: the domain that one names, and what of one may be shown.

Belongs here: reading an address that nobody has vouched for. Who is on an allowlist is `rag_eval.trust`.
"""

import ipaddress
import re
from typing import NamedTuple

from rag_eval.corpus import masking

MAX_DOMAIN_CHARS = 253
"""The longest host name that the domain name system has (RFC 1035, section 2.3.4, without the root's dot)."""

_WEB = re.compile(r"(?:https?|ftp)://([^/?#]*)", re.IGNORECASE)
_DOCSTRING = re.compile(r"(python:[A-Za-z_][A-Za-z0-9_]*)(?:\.|\Z)")
_USER_INFO = re.compile(r"(?P<before>(?:[A-Za-z][A-Za-z0-9+.-]*+:)?//)(?P<authority>[^/?#\\]*+)")
_PORT = re.compile(r"(?::[0-9]{0,5})?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# programs disagree about where such an authority leads: a browser ends the host at a backslash, and drops tabs and line ends
_AMBIGUOUS = re.compile(r"[\s\\\x00-\x1f\x7f]")
# IDNA 2003, which Python has, and IDNA 2008, which browsers have, make different names of these (RFC 5894, section 7.2)
_DEVIATING = re.compile("[\u00df\u1e9e\u03c2\u200c\u200d]")
_ENCODED = re.compile(
    r"%(?:[2-6][0-9A-Fa-f]|7[0-9A-Ea-e])"
)  # printable ASCII: no line end comes out of a decoded address


class MaskedAddress(NamedTuple):
    """An address without personal data, and how many pieces were masked, by pattern name."""

    address: str
    counts: dict[str, int]


def _host_of(name: str) -> str:
    """Host name in lower case and xn-- form; empty if it is none, or not the same one to every program."""
    name = name.removesuffix(".")
    if not name or len(name) > MAX_DOMAIN_CHARS or _DEVIATING.search(name):
        return ""
    try:
        host = name.encode("idna").decode("ascii").lower()
    except UnicodeError:
        return ""
    # what the encoding makes of look-alikes of / and : is no host name either
    return (
        host
        if len(host) <= MAX_DOMAIN_CHARS
        and all(_LABEL.fullmatch(label) for label in host.split("."))
        else ""
    )


def _numeric(literal: str) -> str:
    """IPv6 address in its shortest form; empty if it is none."""
    try:
        return ipaddress.IPv6Address(literal).compressed
    except ValueError:
        return ""


def domain_of(source_url: str) -> str:
    """Domain of an address: whom a reader of the document would ask.

    Parameters
    ----------
    source_url
        Any text.

    Returns
    -------
    str
        Of http, https and ftp addresses the host in lower case, other letters in xn-- form (RFC 3490), without user, port and final dot; of
        `python:<package>.<name>` the part `python:<package>`; else empty: files, other schemes, what is no host name, and hosts that one
        program reads otherwise than another (a backslash, white space or % in them, letters that the versions of IDNA disagree about), since
        an allowlist must not be passed by way of that.

    Examples
    --------
    >>> domain_of("https://user@Docs.Example.ORG:8443/a"), domain_of("python:pandas.DataFrame.merge"), domain_of("guide/a.md")
    ('docs.example.org', 'python:pandas', '')
    """
    address = source_url.strip()
    docstring = _DOCSTRING.match(address)
    if docstring:
        return docstring[1]
    web = _WEB.match(address)
    if web is None or _AMBIGUOUS.search(web[1]):
        return ""
    host = web[1].rpartition("@")[2]
    if "%" in host:  # which a browser would decode
        return ""
    if host.startswith("["):
        literal, closed, port = host[1:].partition("]")
        return _numeric(literal) if closed and _PORT.fullmatch(port) else ""
    name, colon, port = host.partition(":")
    return _host_of(name) if _PORT.fullmatch(colon + port) else ""


def without_user(source_url: str) -> str:
    """Address without `user:password@`: a credential is no part of where a document stands.

    Examples
    --------
    >>> without_user("https://jane:secret@example.org/a@b")
    'https://example.org/a@b'
    """
    found = _USER_INFO.match(source_url)
    if found is None or "@" not in found["authority"]:
        return source_url
    return found["before"] + found["authority"].rpartition("@")[2] + source_url[found.end() :]


def masked(source_url: str) -> MaskedAddress:
    """Mask e-mail addresses, phone, card and account numbers, and keys in an address, percent-encoded ones too.

    Where only the decoded address shows them, it is the decoded one that is masked and returned.
    """
    shown, counts = masking.mask(source_url)
    decoded = (
        masking.mask(_ENCODED.sub(lambda match: chr(int(match[0][1:], 16)), shown))
        if "%" in shown
        else None
    )
    if decoded is None or not decoded.counts:
        return MaskedAddress(shown, counts)
    names = counts.keys() | decoded.counts.keys()
    return MaskedAddress(
        decoded.text,
        {name: counts.get(name, 0) + decoded.counts.get(name, 0) for name in sorted(names)},
    )
