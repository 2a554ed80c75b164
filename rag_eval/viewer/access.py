"""Who may ask: host names that are ours, the access token with its cookie, and the token that only our own pages can read.

Belongs here: decisions over what a request says of itself. Refusing it and the headers of answers are `security`.
"""

import dataclasses
import ipaddress
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Literal

from rag_eval.records.problems import InputError, Problem

LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
ACCEPTED: Final = r"[A-Za-z0-9_.~-]{20,200}"
"""What an access token may be: it stands in an address, and must not be guessed in a year of tries."""
WRONG_TRIES, WINDOW_S, ADDRESSES = 10, 60.0, 1024
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9][a-z0-9._-]{0,252})(?::([0-9]{1,5}))?", re.ASCII)
_DEFAULT_PORTS: Final = frozenset({80, 443})


def split_host(host: str) -> tuple[str, int | None] | None:
    """Split a Host header into its name, in lower case, and its port; None where it is neither a name nor an address.

    Examples
    --------
    >>> split_host("LocalHost:7777"), split_host("[::1]"), split_host("a@b:1")
    (('localhost', 7777), ('[::1]', None), None)
    """
    match = _HOST.fullmatch(host.lower())
    return None if match is None else (match[1], None if match[2] is None else int(match[2]))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Host headers that are answered. Any other may be a foreign name that its owner turned to this machine (DNS rebinding).

    Parameters
    ----------
    port
        Where the server listens; names must come with it.
    names
        Names and addresses of this server, beside those of the loopback.
    allowed
        Further hosts that a person named: `name` with any port, for a proxy in front, or `name:port`.
    addresses
        Whether any address written as numbers is answered too: such a one cannot be turned to another machine.
    """

    port: int
    names: frozenset[str] = frozenset()
    allowed: frozenset[tuple[str, int | None]] = frozenset()
    addresses: bool = False

    def accepts(self, host: str) -> bool:
        """Whether a Host header is one of ours."""
        split = split_host(host)
        if split is None:
            return False
        name, port = split
        if (name, None) in self.allowed or (name, port) in self.allowed:
            return True
        if port != self.port and not (port is None and self.port in _DEFAULT_PORTS):
            return False
        return (
            name in LOOPBACK_NAMES or name in self.names or (self.addresses and _is_address(name))
        )


def allowed_hosts(given: Iterable[str]) -> frozenset[tuple[str, int | None]]:
    """Read the hosts that a person allows.

    Raises
    ------
    InputError
        `bad_host`: one is no host name, with or without a port.
    """
    split = {host: split_host(host) for host in given}
    wrong = [
        Problem(
            "bad_host",
            "this is no host name",
            field="--allow-host",
            found=host,
            accepted="a name such as eval.example.org, or with its port: eval.example.org:8443",
        )
        for host in split
        if split[host] is None
    ]
    if wrong:
        raise InputError(wrong)
    return frozenset(value for value in split.values() if value is not None)


def same(left: str, right: str) -> bool:
    """Compare secrets in a time that says nothing of where they differ."""
    return secrets.compare_digest(
        left.encode("utf-8", "surrogatepass"), right.encode("utf-8", "surrogatepass")
    )


class Access:
    """The access token, exchanged once for a cookie that holds for this process.

    Parameters
    ----------
    token
        As `ACCEPTED` says.
    port
        Names the cookie: cookies of one machine are shared by all its ports.
    clock
        Seconds that only rise.

    Raises
    ------
    InputError
        `bad_token`: the token is too short or holds other characters.
    """

    def __init__(self, token: str, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        if not re.fullmatch(ACCEPTED, token):
            raise InputError(
                Problem(
                    "bad_token",
                    "the access token cannot be used",
                    field="RAG_EVAL_VIEW_TOKEN or --token-file",
                    found=f"{len(token)} characters",
                    accepted="20 to 200 letters, digits, - _ . ~",
                )
            )
        self._token, self._clock = token, clock
        self._session = secrets.token_urlsafe(
            32
        )  # not the token: a cookie that is read on the way opens nothing after the next start
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._lock = threading.Lock()
        self.cookie_name = f"rag_eval_view_{port}"

    @property
    def cookie(self) -> str:
        """The Set-Cookie header of who is signed in."""
        return f"{self.cookie_name}={self._session}; HttpOnly; SameSite=Strict; Path=/"

    def signed_in(self, cookies: Iterable[str]) -> bool:
        """Whether one of the Cookie headers holds our cookie."""
        pairs = [pair.strip().partition("=") for header in cookies for pair in header.split(";")]
        return any(
            name == self.cookie_name and same(value, self._session) for name, _, value in pairs
        )

    def judge(self, given: str, address: str) -> Literal["right", "wrong", "wait"]:
        """Compare a token that was given; after `WRONG_TRIES` wrong ones within `WINDOW_S` seconds an address has to wait, whatever it gives."""
        with self._lock:
            count, since = self._wrong.get(address, (0, self._clock()))
            if self._clock() - since > WINDOW_S:
                count, since = 0, self._clock()
            if count >= WRONG_TRIES:
                return "wait"
            if same(given, self._token):
                return "right"
            self._wrong[address] = (count + 1, since)
            self._wrong.move_to_end(address)
            while len(self._wrong) > ADDRESSES:
                self._wrong.popitem(last=False)
        return "wrong"


def network_of(address: str) -> str:
    """Whose tries count together: an IPv4 address, or the /64 of an IPv6 one, of which a single machine has 2**64."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return ""
    return (
        str(found)
        if found.version == 4
        else str(ipaddress.ip_network(f"{found}/64", strict=False).network_address)
    )  # noqa: PLR2004 - the version's number
