"""Figures of a report on their way to a page: each remembers where in the report it stands, and none is written without that.

Belongs here: the cursor that walks a report, and how a figure, an interval and an absent figure look. A bare number in a template is an error
(`rag_eval.reporting.html.templating`), so that no figure of the page can differ from the file.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from rag_eval.reporting.html.untrusted import visible

LOWS, HIGHS = ("ci_low", "low"), ("ci_high", "high")
DENOMINATORS = ("n_scored", "n")
NOT_SAID = "not computed"
_ABSENT = re.compile(r'<span class="absent" title="([^"]*)">–')
"""What `absent` writes; no text of a report can look like it, for it is escaped."""


class Cursor:
    """A place in a report.

    Parameters
    ----------
    value
        What stands there: any JSON value.
    path
        Keys and positions from the top of the report to here.
    parent
        The place above, None at the top.
    """

    __slots__ = ("parent", "path", "value")

    def __init__(
        self, value: Any, path: tuple[str | int, ...] = (), parent: "Cursor | None" = None
    ) -> None:
        self.value, self.path, self.parent = value, path, parent

    def __getitem__(self, key: str | int) -> "Cursor":
        return Cursor(self.value[key], (*self.path, key), self)

    def __iter__(self) -> Iterator["Cursor"]:
        if not isinstance(self.value, list):
            raise TypeError(f"{self.pointer} is no list")
        return (self[at] for at in range(len(self.value)))

    def __len__(self) -> int:
        return len(self.value)

    def __contains__(self, key: object) -> bool:
        return isinstance(self.value, dict) and key in self.value

    def __bool__(self) -> bool:
        return bool(self.value)

    def get(self, *keys: str | int) -> "Cursor | None":
        """Walk down; None where the way ends early or ends at null."""
        found = self
        for key in keys:
            inside = (
                isinstance(found.value, dict) and key in found.value
                if isinstance(key, str)
                else isinstance(found.value, list) and -1 < key < len(found.value)
            )
            if not inside:
                return None
            found = found[key]
        return None if found.value is None else found

    def items(self) -> list[tuple[str, "Cursor"]]:
        """Names and places below an object, in the file's order."""
        return [(name, self[name]) for name in self.value]

    def where(self, **equal: Any) -> "Cursor | None":
        """Return the first entry of a list of objects whose keys have these values."""
        return next(
            (
                entry
                for entry in self
                if all(entry.value.get(key) == wanted for key, wanted in equal.items())
            ),
            None,
        )

    @property
    def pointer(self) -> str:
        """Where this is, as a JSON pointer (RFC 6901)."""
        return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in self.path)

    @property
    def reason(self) -> str:
        """Why this is null: what the report says beside it, or above it."""
        key, place = (str(self.path[-1]) if self.path else ""), self.parent
        while place is not None:
            if isinstance(place.value, Mapping):
                for name in (f"{key}_reason", "value_reason", "reason"):
                    if isinstance(place.value.get(name), str) and place.value[name]:
                        return str(place.value[name])
            key, place = (str(place.path[-1]) if place.path else ""), place.parent
        return NOT_SAID


def written(value: float, digits: int, *, percent: bool = False) -> str:
    """Write a number as the page does: whole numbers with thousands separated, others with so many decimals; minus is the sign for minus."""
    if isinstance(value, int) and not percent:
        return f"{value:,}".replace("-", "−")
    text = f"{value * 100:,.{max(digits - 2, 0)}f} %" if percent else f"{value:,.{digits}f}"
    if not text.strip("-0., %"):
        text = text.removeprefix("-")
    return text.replace("-", "−")


def absent(reason: str) -> Markup:
    """Write what is not there, and why."""
    said = visible(reason)
    return Markup(
        '<span class="absent" title="{0}">–<span class="sr"> not available: {0}</span></span>'
    ).format(said)


def letters(at: int) -> str:
    """Name a footnote: a to z, then aa, ab, ...

    Examples
    --------
    >>> letters(0), letters(25), letters(26)
    ('a', 'z', 'aa')
    """
    before, last = divmod(at, 26)
    return (letters(before - 1) if before else "") + chr(ord("a") + last)


def with_marks(markup: Markup) -> tuple[Markup, list[Markup]]:
    """Mark the dashes of a piece of the page by the letter of their reason, and return the reasons in the order of the letters; a single reason needs no letter."""
    reasons = list(dict.fromkeys(_ABSENT.findall(str(markup))))
    place = {reason: letters(at) for at, reason in enumerate(reasons)}
    if len(reasons) > 1:
        markup = Markup(
            _ABSENT.sub(
                lambda match: f'{match[0]}<sup aria-hidden="true">{place[match[1]]}</sup>',
                str(markup),
            )
        )  # noqa: S704 - markup before, and a letter
    return markup, [Markup(reason) for reason in reasons]  # noqa: S704 - escaped when the dash was written


def number(
    cursor: Cursor | None, digits: int = 3, *, percent: bool = False, signed: bool = False
) -> Markup:
    """Write one figure with where it stands; a dash with its reason where it is null."""
    if cursor is None:
        return absent(NOT_SAID)
    if cursor.value is None:
        return absent(cursor.reason)
    if isinstance(cursor.value, bool) or not isinstance(cursor.value, (int, float)):
        raise TypeError(f"{cursor.pointer} is no number")
    text = written(cursor.value, digits, percent=percent)
    if signed and cursor.value > 0:
        text = f"+{text}"
    return Markup('<data value="{}" data-at="{}">{}</data>').format(
        json.dumps(cursor.value), cursor.pointer, text
    )


def bounds(cursor: Cursor) -> tuple[Cursor, Cursor] | None:
    """Find the two ends of an estimate's interval; None where it states none."""
    for low, high in zip(LOWS, HIGHS, strict=True):
        if (
            low in cursor
            and high in cursor
            and cursor[low].value is not None
            and cursor[high].value is not None
        ):
            return cursor[low], cursor[high]
    return None


def interval(
    cursor: Cursor | None,
    digits: int = 3,
    *,
    percent: bool = False,
    signed: bool = False,
    key: str = "value",
) -> Markup:
    """Write an estimate with its interval: value [low, high]."""
    if cursor is None or cursor.value is None:
        return absent(NOT_SAID if cursor is None else cursor.reason)
    ends, middle = bounds(cursor), number(cursor[key], digits, percent=percent, signed=signed)
    if ends is None:
        return Markup('<span class="est">{}</span>').format(middle)
    low, high = (number(end, digits, percent=percent, signed=signed) for end in ends)
    return Markup('<span class="est">{} <span class="ci">[{}, {}]</span></span>').format(
        middle, low, high
    )


def denominator(cursor: Cursor | None) -> Markup:
    """Write over how many questions an estimate is, of how many that were tried, and in how many independent groups."""
    parts: list[Markup] = []
    if cursor is None or cursor.value is None:
        return Markup()
    scored = next((cursor[name] for name in DENOMINATORS if name in cursor), None)
    if scored is not None:
        of = (
            cursor["n_attempted"]
            if "n_attempted" in cursor and cursor["n_attempted"].value != scored.value
            else None
        )
        parts.append(
            Markup("n = {}").format(number(scored))
            if of is None
            else Markup("n = {} of {}").format(number(scored), number(of))
        )
    if "n_groups" in cursor and cursor["n_groups"].value is not None:
        parts.append(Markup("{} groups").format(number(cursor["n_groups"])))
    return (
        Markup('<span class="n">{}</span>').format(Markup(", ").join(parts)) if parts else Markup()
    )


def estimate(
    cursor: Cursor | None, digits: int = 3, *, percent: bool = False, signed: bool = False
) -> Markup:
    """Write an estimate with its interval and its denominator."""
    return Markup("{} {}").format(
        interval(cursor, digits, percent=percent, signed=signed), denominator(cursor)
    )


def text(cursor: Cursor | str | None) -> Markup:
    """Write a text of the report, with what is invisible made visible; a dash with its reason where it is null."""
    if isinstance(cursor, str):
        return escape(visible(cursor))
    if cursor is None or cursor.value is None:
        return absent(NOT_SAID if cursor is None else cursor.reason)
    return Markup('<bdi data-at="{}">{}</bdi>').format(cursor.pointer, visible(str(cursor.value)))


def texts(cursors: Sequence[Cursor]) -> Markup:
    """Write several texts, comma-separated."""
    return Markup(", ").join(text(cursor) for cursor in cursors)
