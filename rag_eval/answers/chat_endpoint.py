"""Where a chat endpoint is and what opens it.

Belongs here: reading and checking address and key. Both may hold secrets: no message quotes them.
"""

import ipaddress
import os
import urllib.parse

from rag_eval.records.problems import InputError, Problem
from rag_eval.settings import Endpoint

NO_KEY = "none"
"""Sent to servers that want no key; the header is never empty."""
_MAX_ASCII = 0x7E


def loopback(base_url: str) -> bool:
    """Whether an address is this machine's own, for which no proxy is asked."""
    host = urllib.parse.urlsplit(base_url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def address_of(base_url: str) -> str:
    """`host:port/path` of an endpoint."""
    accepted = "http(s)://host[:port][/path] in ASCII, without user name, query and fragment"
    try:
        parts = urllib.parse.urlsplit(base_url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        parts, port = urllib.parse.urlsplit(""), 0
    if (
        not parts.hostname
        or "@" in parts.netloc
        or parts.query
        or parts.fragment
        or not (base_url.isascii() and base_url.isprintable())
    ):
        # what was found is not quoted: it may carry a password
        problem = Problem(
            "bad_base_url",
            "not the address of a chat endpoint; a key belongs in api_key or api_key_env",
            field="base_url",
            accepted=accepted,
        )
        raise InputError(problem)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}{parts.path.rstrip('/')}"


def key_of(endpoint: Endpoint) -> str:
    """The key to send: the endpoint's own, that in the environment variable it names, or the word "none"."""
    key = (
        endpoint.api_key.get_secret_value()
        if endpoint.api_key is not None
        else os.environ.get(endpoint.api_key_env or "", "")
    )
    key = key.strip() or NO_KEY  # a key read from a file often ends with a line end
    if any(not "!" <= character <= chr(_MAX_ASCII) for character in key):
        raise InputError(
            Problem(
                "bad_api_key",
                "the key cannot be sent in a header",
                field="api_key",
                accepted="printable ASCII without spaces",
            )
        )
    return key
