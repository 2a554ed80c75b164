"""Progress of slow steps: a bar on a terminal, plain lines in a log, nothing where nobody looks."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console

LINE_EVERY_S = 5.0


class Advance(Protocol):
    """Called with the number of units just done, and with what there is to say about them so far (how many failed)."""

    def __call__(self, count: int, note: str = "", /) -> None:
        """Show progress."""
        ...


class Progress(Protocol):
    """Where progress is shown."""

    def step(
        self, title: str, total: int | None = None, unit: str = ""
    ) -> contextlib.AbstractContextManager[Advance]:
        """Open a step; the value it gives is called with the number of units just done."""
        ...


class Silent:
    """Shows nothing."""

    @contextlib.contextmanager
    def step(self, title: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:  # noqa: ARG002 - the protocol's signature
        """Run the step."""
        yield lambda _, __="": None


class Lines:
    """Plain lines for a log: one at the start of a step, one every few seconds, one at its end with its duration."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    @contextlib.contextmanager
    def step(self, title: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        """Run the step between its two lines."""
        started = last = time.monotonic()
        done, said = 0, ""

        def advance(count: int, note: str = "", /) -> None:
            nonlocal done, last, said
            done += count
            said = f", {note}" if note else ""
            if time.monotonic() - last > LINE_EVERY_S:
                last = time.monotonic()
                self._write(
                    f"  {title}: {done:,}{f' of {total:,}' if total else ''} {unit}".rstrip() + said
                )

        self._write(f"{title}{f' ({total:,} {unit})' if total else ''} ...")
        yield advance
        self._write(f"  {title}: done in {time.monotonic() - started:.1f} s{said}")


class Bars:
    """A bar a step on a terminal."""

    def __init__(self, console: "Console") -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )
        from rich.progress import Progress as RichProgress

        self._bars = RichProgress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=False,
        )
        self._open = 0

    @contextlib.contextmanager
    def step(self, title: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:  # noqa: ARG002 - bars show counts without their unit
        """Run the step under a bar; nested steps share one display."""
        if self._open == 0:
            self._bars.start()
        self._open += 1
        task = self._bars.add_task(title, total=total or 1)
        try:

            def advance(count: int, note: str = "", /) -> None:
                if total:
                    self._bars.update(
                        task, advance=count, description=f"{title} ({note})" if note else title
                    )

            yield advance
            self._bars.update(task, completed=total or 1)
        finally:
            self._open -= 1
            if self._open == 0:
                self._bars.stop()
                for done in self._bars.task_ids:
                    self._bars.remove_task(done)
