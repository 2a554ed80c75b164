"""What keeps requests in bounds: their rate, and the time each may take.

Belongs here: clocks and waiting; nothing of what is sent.
"""

import contextlib
import random
import socket
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

MAX_WAIT_S = 60.0
"""A server that asks for a longer pause is not waited for, and no wait of ours is longer."""
_RANDOM = random.SystemRandom()


class RateLimit:
    """Evenly spaced starts: no request starts sooner than `60 / per_minute` seconds after the one before, whichever threads they come from.

    Parameters
    ----------
    per_minute
        0 sets no limit; pauses are still kept.
    """

    def __init__(self, per_minute: int) -> None:
        self._interval = 60.0 / per_minute if per_minute else 0.0
        self._lock = threading.Lock()
        self._next = 0.0

    def wait(self) -> None:
        """Return when the next request may start. A start is claimed on waking, so that a pause holds for those who sleep already."""
        while (left := self._claim()) > 0:
            time.sleep(left)

    def _claim(self) -> float:
        with self._lock:
            now = time.monotonic()
            if now >= self._next:
                self._next = now + self._interval
                return 0.0
            return self._next - now

    def pause(self, seconds: float) -> None:
        """Let no request start for this long: the server asked one of them to wait, and that holds for all."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)


def backoff(first_s: float, retry: int) -> float:
    """Seconds before retry number `retry` (from 0): doubling, at most a minute, shortened by up to a quarter so that threads do not march in step."""
    return float(min(first_s * 2.0 ** min(retry, 30), MAX_WAIT_S)) * _RANDOM.uniform(0.75, 1.0)


class Deadline:
    """Cuts one request's connection when its time is over, however slowly the other side trickles.

    A time-out of the HTTP library bounds each single read; a server that sends a byte now and then never meets it. `trace` is given to the library as
    its trace extension and so learns which socket to shut down. Looking up a name is left to the system's own time-out.

    Parameters
    ----------
    seconds
        From entering to leaving.
    """

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._lock = threading.Lock()
        self._stream: Any = None
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._timer.cancel()

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Take note of a connection made, first bare and then perhaps encrypted."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            with self._lock:
                self._stream = info.get("return_value")
                if self.passed:
                    self._cut()

    def _end(self) -> None:
        with self._lock:
            self.passed = True
            self._cut()

    def _cut(self) -> None:
        connection = self._stream.get_extra_info("socket") if self._stream is not None else None
        if isinstance(connection, socket.socket):
            # the plain system call: an encrypted socket's own shutdown would change its state under the reading thread
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
