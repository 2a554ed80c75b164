"""Addresses of services without what opens them, and messages of others that may repeat it.

Belongs here: what of a configured address may be shown. Addresses of documents are `rag_eval.corpus.addresses`.
"""

import re
import urllib.parse

HIDDEN = "***"
_USER = re.compile(r"(?<=//)[^/?#\\\s]*@")
_SECRET = re.compile(r"pass|pwd|token|secret|key|sig|auth", re.IGNORECASE)
_FILES = ("sqlite:", "file:")
"""Schemes of addresses without a user; an @ belongs to the path there."""
_MIN_CHARS = 3
"""A shorter secret stands in many words, and hides nothing."""


def shown_service(address: str) -> str:
    """Address of a service without user and password, and without the values of what is named like a secret in its query.

    Examples
    --------
    >>> shown_service("postgresql://bob:S3cret@db:5432/runs?sslpassword=other&x=1")
    'postgresql://***@db:5432/runs?sslpassword=***&x=1'
    """
    return without_secrets(address, address)


def without_secrets(text: str, address: str) -> str:
    """Text of an error or a log about an address, without anything of it that opens the service.

    Parameters
    ----------
    text
        Whatever a library says; it may repeat the address, or a part of it, encoded or not.
    address
        As it is configured.
    """
    text = _USER.sub(f"{HIDDEN}@", text)
    for secret in sorted(_secrets(address), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _secrets(address: str) -> set[str]:
    """Password, user and password together, and secret values of the query, each as it stands and decoded; all before the last @ where no parser reads it."""
    scheme, found, rest = address.partition("//")
    rest = rest if found else address  # the scheme may have been forgotten
    first = re.split("[/?#]", rest, maxsplit=1)[0]
    user = "" if scheme.startswith(_FILES) else (first if "@" in first else rest).rpartition("@")[0]
    values, query = {user, user.partition(":")[2]}, rest.partition("?")[2]
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
