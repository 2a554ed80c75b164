"""Events of a run as log lines `event=<name> key=value ...` that no value can break or forge.

Belongs here: the line's form and who collects the lines. Not here: what happens.
"""

import json
import re
from collections.abc import Callable, Mapping

from rag_eval.corpus.masking import mask
from rag_eval.records.snippets import SNIPPET_CHARS

Value = str | int | float | bool | None
_MAX_MASKED_CHARS = 20_000
_ID = "_id"
"""Keys with this end name something: ids are never masked, so that lines can be found by them."""
_PLAIN = re.compile(r"[A-Za-z0-9_.:/@+,#%-]+")
_NAME = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*")


def _shown(key: str, text: str) -> str:
    """Personal data masked, then at most a snippet: a message may repeat what a source says."""
    masked = text if key.endswith(_ID) else mask(text[:_MAX_MASKED_CHARS]).text
    return masked if len(masked) <= SNIPPET_CHARS else f"{masked[: SNIPPET_CHARS - 3]}..."


def _rendered(key: str, value: Value) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    text = _shown(key, value)
    return (
        text
        if _PLAIN.fullmatch(text)
        else json.dumps(text).replace("=", "\\u003d").replace("\x7f", "\\u007f")
    )


def event_line(name: str, fields: Mapping[str, Value]) -> str:
    r"""One line of ASCII. Plain values stand as they are, all others as JSON strings in which `=` is escaped too; personal data is masked.

    Raises
    ------
    ValueError
        A name or key is not made of lower-case words: names are ours, never data.

    Examples
    --------
    >>> event_line("question.done", {"query_id": "q 1", "message": "a\nevent=run.start"})
    'event=question.done query_id="q 1" message="a\\nevent\\u003drun.start"'
    """
    wrong = next((word for word in (name, *fields) if not _NAME.fullmatch(word)), None)
    if wrong is not None:
        raise ValueError(f"event {name!r}: {wrong!r} is not a name of an event or a key")
    return " ".join(
        [f"event={name}", *(f"{key}={_rendered(key, value)}" for key, value in fields.items())]
    )


class Events:
    """Collects event lines in order and passes each on.

    Parameters
    ----------
    write
        Called with each line, without a line end; for example a logger's `info`.
    """

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self.lines: list[str] = []
        self._write = write

    def add(self, name: str, **fields: Value) -> None:
        """Record one event."""
        self.take(event_line(name, fields))

    def take(self, line: str) -> None:
        """Record a line made by `event_line`: how the lines of questions answered side by side come together in the order of the questions."""
        self.lines.append(line)
        if self._write is not None:
            self._write(line)
