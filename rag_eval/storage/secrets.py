"""Hide the credentials of service addresses, in the address and in messages of libraries.

`rag_eval.corpus.masking` hides credentials in addresses of documents.
"""

import re
import urllib.parse

HIDDEN = "***"
_USER = re.compile(r"(?<=//)[^/?#\\\s]*@")
_SECRET = re.compile(r"pass|pwd|token|secret|key|sig|auth", re.IGNORECASE)
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

    The text of a library may repeat the configured address, or a part of it, encoded or decoded.
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
    first, query = re.split("[/?#]", tail, maxsplit=1)[0], tail.partition("?")[2]
    user = (first if "@" in first else tail).rpartition("@")[0]
    if scheme in {"sqlite:", "file:"}:  # an @ belongs to the path
        user = ""
    pairs = (pair.partition("=") for pair in query.partition("#")[0].split("&"))
    values = {user, user.partition(":")[2], *(pair[2] for pair in pairs if _SECRET.search(pair[0]))}
    decoders = (str, urllib.parse.unquote, urllib.parse.unquote_plus)
    decoded = {decode(value) for value in values for decode in decoders}
    return {value for value in decoded if len(value) >= _MIN_CHARS}
