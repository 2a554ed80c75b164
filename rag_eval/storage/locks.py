"""The right to write: in the whole home, or in one gold set of a home that several machines share.

Embedded Chroma and SQLite accept one writer, so with either of them one run at a time holds the
home, by a lock of a file. With servers for all three stores (SQL, Chroma, MLflow) a run holds its
gold set, by an advisory lock of PostgreSQL. Workers that share an object store always hold that,
and with embedded Chroma their own folder too. Both kinds end with the process that holds them.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.storage.home import open_home
from rag_eval.storage.sql import Ask, ColumnSpec, SqlStore, TableSpec, open_store

POLL_S: Final = 0.5
SAY_EVERY_S: Final = 60.0
OTHERS_LEFTOVERS_S: Final = 3600.0
"""Age in seconds from which a half-written file is a leftover although other runs may write."""

TURNS: Final = TableSpec(
    "write_turns",
    (ColumnSpec("lock", "text", required=True), ColumnSpec("turn", "text", required=True)),
    unique=(("lock",),),
)
"""The last turn of each lock. A run that lost its connection finds out whether it was the last."""
_HOLDERS: Final = """
    SELECT DISTINCT activity.application_name, activity.pid = pg_backend_pid()
    FROM pg_locks AS locks JOIN pg_stat_activity AS activity USING (pid)
    WHERE locks.locktype = 'advisory' AND locks.granted AND locks.objsubid = 1
      AND activity.datname = current_database()
      AND (CAST(locks.classid AS bigint) << 32) | CAST(locks.objid AS bigint) = :number
    ORDER BY 1"""
"""Names of the processes that hold a lock, and whether it is this one."""
_log = logging.getLogger(__name__)


class WriteLock:
    """The lock that a run needs by its settings; a context manager that waits for its turn.

    Results of `gold_set` are written; without a name the whole home is locked. `say` shows a line
    for a person: at once when another run holds the lock, then every minute. Entering raises
    InputError `home_busy`, which names the holder, after `wait_s` of the settings.
    """

    def __init__(
        self, settings: Settings, gold_set: str = "", say: Callable[[str], object] = _log.warning
    ) -> None:
        self._settings, self._gold_set, self._say = settings, gold_set, say
        self._stack = contextlib.ExitStack()
        self._label = _label_of(gold_set)
        self._turn = ""
        self._ask: Ask | None = None

    @property
    def leftover_age_s(self) -> float:
        """Age in seconds from which no run writes to a half-written file of the home any more."""
        return 0.0 if _is_local(self._settings) else OTHERS_LEFTOVERS_S

    def __enter__(self) -> Self:
        until = time.monotonic() + self._settings.wait_s
        with contextlib.ExitStack() as stack:
            if _is_local(self._settings):
                stack.enter_context(self._hold_folder(open_home(self._settings).folder, until))
            if is_shared(self._settings):
                self._hold_gold_set(stack, open_store(self._settings), until)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._turn, self._ask = "", None
        self._stack.close()

    def check(self) -> None:
        """Make sure, before results are published, that the lock is still held.

        A lock of PostgreSQL is lost with its connection. It is taken again if no other run had a
        turn meanwhile, else InputError `lock_lost` is raised. Does nothing outside of the block.
        """
        if not self._turn or (self._ask is not None and self._is_held(self._ask)):
            return
        self._ask = None
        self._stack.close()
        with contextlib.ExitStack() as stack:
            self._hold_gold_set(stack, open_store(self._settings), time.monotonic())
            self._stack = stack.pop_all()
        _log.warning("the lock of %s was lost with its connection and taken again", self._key)

    @property
    def _key(self) -> str:
        return f"{home_name(self._settings)} {self._gold_set}".strip()

    @contextlib.contextmanager
    def _hold_folder(self, home: Path, until: float) -> Iterator[None]:
        home.mkdir(parents=True, exist_ok=True)
        with (home / "lock").open("a+", encoding="utf-8") as stream:

            def attempt() -> str:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    stream.seek(0)
                    return stream.read(400).strip() or "another process"
                return ""

            self._wait(attempt, until)
            stream.truncate(0)
            stream.write(self._label)
            stream.flush()
            yield

    def _hold_gold_set(self, stack: contextlib.ExitStack, store: SqlStore, until: float) -> None:
        """Take the locks in a connection of their own; again, only if no other run had a turn."""
        store.create(TURNS)
        ask = stack.enter_context(store.session(self._label))
        home = _number(home_name(self._settings))
        if not self._gold_set:
            self._wait(lambda: _try(ask, "pg_try_advisory_lock", home), until)
        else:
            # Runs share the home, so that whoever cleans it up waits for all of them.
            self._wait(lambda: _try(ask, "pg_try_advisory_lock_shared", home), until)
            self._wait(lambda: _try(ask, "pg_try_advisory_lock", _number(self._key)), until)
        with store.transaction() as transaction:
            last = transaction.columns(TURNS, {"lock": self._key})["turn"]
            if self._turn and last != [self._turn]:
                raise self._lost()
            self._turn = self._turn or secrets.token_hex(8)
            transaction.delete(TURNS, {"lock": self._key})
            transaction.insert(TURNS, [(self._key, self._turn)])
        self._ask = ask

    def _is_held(self, ask: Ask) -> bool:
        try:
            holders = ask(_HOLDERS, {"number": _number(self._key)})
        except InputError:  # the connection broke; a new one shows whether the server can be used
            return False
        return any(is_own for _, is_own in holders)

    def _wait(self, attempt: Callable[[], str], until: float) -> None:
        """Try until `attempt` finds no holder or the time is up."""
        home, started, next_notice = home_name(self._settings), time.monotonic(), 0.0
        while holder := attempt():
            now = time.monotonic()
            if now >= until and self._turn:
                raise self._lost()
            if now >= until:
                raise InputError.of(
                    "home_busy",
                    f"another run writes here; this one has waited {self._settings.wait_s:g} s for "
                    "it. Try again later, wait longer (wait_s), or give this run its own --home",
                    home,
                    found=f"held by {holder}",
                )
            if now >= next_notice:
                next_notice = now + SAY_EVERY_S
                self._say(
                    f"waiting for {holder}, which writes to {home}: "
                    f"{now - started:.0f} s so far, at most {until - now:.0f} s more"
                )
            time.sleep(min(POLL_S, until - now))

    def _lost(self) -> InputError:
        return InputError.of(
            "lock_lost",
            "the connection that held the lock broke, and another run has written meanwhile; "
            "nothing of this run was published. Run it again: finished stages are kept",
            home_name(self._settings),
            found=self._label,
        )


def _is_local(settings: Settings) -> bool:
    """Tell whether a store of the home accepts one writer: embedded Chroma, or SQLite."""
    address = settings.database_url
    database = address.get_secret_value() if address else "sqlite"
    addresses = (settings.chroma_url or "sqlite", settings.tracking_uri or "sqlite", database)
    return any(each.startswith("sqlite") for each in addresses)


def is_shared(settings: Settings) -> bool:
    """Tell whether workers share the home, so that PostgreSQL holds the lock of a gold set."""
    return "://" in settings.home or not _is_local(settings)


def home_name(settings: Settings) -> str:
    """Name the home as every worker that shares it does."""
    home = settings.home
    return home.rstrip("/") if "://" in home else str(Path(home).absolute())


def _label_of(gold_set: str) -> str:
    """Describe this process to others that wait, in the 63 ASCII characters of PostgreSQL."""
    host = re.sub(r"[^\w.-]", "?", socket.gethostname(), flags=re.ASCII)[:24]
    return f"process {os.getpid()} on {host} for {gold_set or 'the whole home'}"[:63]


def _number(name: str) -> int:
    digest = hashlib.sha256(f"rag_eval.writes {name}".encode()).digest()
    return int.from_bytes(digest[:8], signed=True)


def _try(ask: Ask, function: str, number: int) -> str:
    """Take an advisory lock; return who holds it if that fails."""
    if ask(f"SELECT {function}(:number)", {"number": number}) == [(True,)]:
        return ""
    holders = [str(name) for name, is_own in ask(_HOLDERS, {"number": number}) if not is_own]
    return ", ".join(holders) or "another process"
