"""Hide the credentials of service addresses, in the address and in messages of libraries.

`rag_eval.corpus.masking` hides credentials in addresses of documents.
"""

import re
import urllib.parse

HIDDEN = "***"
_USER = re.compile(r"(?<=//)[^/?#\\\s]*@")
_SECRET = re.compile(r"pass|pwd|token|secret|key|sig|auth", re.IGNORECASE)
_FILES = ("sqlite:", "file:")
"""Schemes of addresses without a user, where an @ belongs to the path."""
_MIN_CHARS = 3
"""Least length of a hidden secret, because many words hold a shorter text."""


def shown_service(address: str) -> str:
    """Hide user, password and secret query values in the address of a service.

    Examples
    --------
    >>> shown_service("postgresql://bob:S3cret@db:5432/runs?sslpassword=other&x=1")
    'postgresql://***@db:5432/runs?sslpassword=***&x=1'
    """
    return without_secrets(address, address)


def without_secrets(text: str, address: str) -> str:
    """Hide the credentials of an address in the text of an error or a log.

    Parameters
    ----------
    text
        Text of a library. It may repeat the address, or a part of it, encoded or decoded.
    address
        The configured address.
    """
    text = _USER.sub(f"{HIDDEN}@", text)
    for secret in sorted(_secrets(address), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _secrets(address: str) -> set[str]:
    """Collect password, user with password, and secret query values, raw and decoded.

    If the host part holds no @, all text before the last @ of the address counts as the user.
    """
    scheme, separator, tail = address.partition("//")
    tail = tail if separator else address  # an address may lack its scheme
    first = re.split("[/?#]", tail, maxsplit=1)[0]
    user = "" if scheme.startswith(_FILES) else (first if "@" in first else tail).rpartition("@")[0]
    values, query = {user, user.partition(":")[2]}, tail.partition("?")[2]
    for pair in query.partition("#")[0].split("&"):
        name, _, value = pair.partition("=")
        if _SECRET.search(name):
            values.add(value)
    values |= {
        decode(value)
        for value in tuple(values)
        for decode in (urllib.parse.unquote, urllib.parse.unquote_plus)
    }
    return {value for value in values if len(value) >= _MIN_CHARS}
