"""Hosts that imitate an allowed one: which, and by what.

Belongs here: the rules of resemblance and their index. Which hosts are allowed is `domains`.

A host is compared by what is registered (`wikipedia` of `en.wikipedia.org`), so hosts below an allowed registration are nobody's imitation.
Rules are tried in this order, the first that holds is named:

1. the same name after look-alike letters, hyphens and the suffix are set aside, from 4 letters: `wikipedla.org`, `wiki-pedia.org`, `wikipedia.com`;
   names with letters of other scripts at any length;
2. the name and the suffix, `www` or a host below it written without their dots, from 5 letters: `wikipediaorg.net`, `docspython.org`;
3. the allowed registration as a run of labels or hyphen parts: `wikipedia.org.evil.com`, `en-wikipedia-org.net`, `wikipedia-org.net`;
4. doubled or undoubled letters, from 5: `wikkipedia.org`, `gogle.com`;
5. one edit (insertion, deletion, substitution or swap of neighbours) from 5 letters, two from 10;
6. the name as a label, or as hyphen parts of one, of a host of others, from 5 letters and not for everyday words: `wikipedia.evil.com`, `arxiv-vanity.com`.

Two of the rules also meet honest neighbours, which then have to be listed: sister sites under another suffix, and projects that carry the
name of what they serve (`arxiv-vanity.com`, `python.langchain.com`). A few that everybody cites are known here. Suffixes that are given out
after a check (`gov`, `edu`, `ac.uk`) are only looked at by rule 3, in what stands below the registered name.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from rag_eval.trust.host_names import HostName, decoded, folded, is_address, skeleton, split_host

MIN_SAME, MIN_NEAR, MIN_FAR, MAX_FAR = 4, 5, 10, 24
"""Letters from which names are compared for being the same, one edit away, and two edits away; and up to which two edits are looked for."""
_MAX_PARTS = 8
_EVERYDAY = frozenset(
    "archive blogs books cloud community course courses dataset developer digital docs education example forum guide health history learn learning "
    "library local market media model music nature network online open paper papers portal research review school science search server shared social "
    "software start static status store study support systems technology today training video world".split()
)
_ESTABLISHED = frozenset("github.blog nature.com nature.org wikimedia.org wikipedia.org".split())
"""Registrations that stand for themselves, though a rule would take them for somebody else's."""
_SEPARATORS = re.compile(r"[.-]+")


class Imitation(NamedTuple):
    """The registration that a host imitates, and by what."""

    of: str
    by: str


def edit_distance(a: str, b: str, limit: int) -> int:
    """Edits between two strings, swaps of neighbours counted once (optimal string alignment); `limit + 1` for more than `limit`."""
    if abs(len(a) - len(b)) > limit:
        return limit + 1
    before, row = [0] * (len(b) + 1), list(range(len(b) + 1))
    for i, letter in enumerate(a, start=1):
        last, before, row = before, row, [i, *[0] * len(b)]
        for j, other in enumerate(b, start=1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                row[j] = min(row[j], last[j - 2] + 1)
        if min(row) > limit and min(before) > limit:
            return limit + 1
    return min(row[-1], limit + 1)


def _shortened(name: str, depth: int) -> set[str]:
    """The name with up to `depth` letters left out; names within `depth` edits of each other share one of these."""
    found = step = {name}
    for _ in range(depth):
        step = {one[:i] + one[i + 1 :] for one in step for i in range(len(one))}
        found = found | step
    return found


def _undoubled(name: str) -> str:
    return "".join(letter for letter, _ in groupby(name))


def _runs(parts: list[str], joint: str, longest: int) -> Iterator[str]:
    for start in range(len(parts)):
        for end in range(start + 1, min(start + longest, len(parts)) + 1):
            yield joint.join(parts[start:end])


def _parts(text: str) -> list[str]:
    return [skeleton(part) for part in _SEPARATORS.split(text) if part]


def _plain(name: str) -> str:
    return name.replace("-", "")


class Lookalikes:
    """An index of allowed hosts, asked for each host that is not allowed.

    Parameters
    ----------
    hosts
        Allowed hosts without `*.`; addresses and hosts of one label are nobody to imitate.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        self._registered: set[str] = set()
        self._chains: dict[str, str] = {}
        self._names: dict[str, list[tuple[str, str]]] = {}
        self._joined: dict[str, str] = {}
        self._undoubled: dict[str, str] = {}
        self._near: dict[int, dict[str, list[tuple[str, str]]]] = {1: {}, 2: {}}
        self._lengths: dict[int, set[int]] = {1: set(), 2: set()}
        self._compared: dict[str, Imitation | None] = {}
        for host in sorted({host for host in hosts if "." in host and not is_address(host)}):
            self._add(split_host(folded(decoded(host))), split_host(host).registrable)

    def _add(self, host: HostName, of: str) -> None:
        known = of in self._registered
        self._registered.add(of)
        name = _plain(host.name)
        if len(name) >= MIN_NEAR:
            for joined in (
                f"{name}{host.suffix.replace('.', '')}",
                f"www{name}",
                *(f"{below}{name}" for below in map(_plain, host.below)),
            ):
                self._joined.setdefault(skeleton(joined), of)
        if known:
            return
        self._chains.setdefault(".".join(_parts(host.registrable)), of)
        if not name:
            return
        self._names.setdefault(skeleton(name), []).append((of, host.name))
        if len(name) >= MIN_NEAR:
            self._undoubled.setdefault(_undoubled(skeleton(name)), of)
            depth = 2 if MIN_FAR <= len(name) <= MAX_FAR else 1
            self._lengths[depth].add(len(name))
            for key in _shortened(name, depth):
                self._near[depth].setdefault(key, []).append((name, of))

    def find(self, host: str) -> Imitation | None:
        """What a host that is not allowed imitates, None where it imitates nothing.

        Parameters
        ----------
        host
            In lower case, at most 253 characters, international labels in their xn-- form.
        """
        whole = split_host(host)
        if (
            is_address(host)
            or whole.registrable in self._registered
            or whole.registrable in _ESTABLISHED
        ):
            return None
        read = decoded(host)
        shown = whole if read == host and host.isascii() else split_host(folded(read))
        if whole.controlled:
            return self._chain(shown, controlled=True)
        return (
            self._same(shown, foreign=shown is not whole and not split_host(read).name.isascii())
            or self._chain(shown, controlled=False)
            or self._close(_plain(shown.name))
            or self._held(shown)
        )

    def _chain(self, host: HostName, *, controlled: bool) -> Imitation | None:
        parts = [part for label in host.below for part in _parts(label)]
        if not controlled:
            # `t.co.uk` is not `t.co` with something behind it
            parts += _parts(host.registrable if len(host.name) >= MIN_SAME else host.name)
        return next(
            (
                Imitation(self._chains[run], "its whole name within another")
                for run in _runs(parts, ".", _MAX_PARTS)
                if run in self._chains
            ),
            None,
        )

    def _same(self, host: HostName, *, foreign: bool) -> Imitation | None:
        name = _plain(host.name)
        same = self._names.get(skeleton(name), []) if len(name) >= MIN_SAME or foreign else []
        for by, holds in (
            ("letters of another script", lambda _: foreign),
            ("the same name under another suffix", lambda other: other == host.name),
            ("hyphens added or removed", lambda other: _plain(other) == name),
            ("letters that look alike", lambda _: True),
        ):
            found = next((of for of, other in same if holds(other)), None)
            if found:
                return Imitation(found, by)
        joined = self._joined.get(skeleton(name))
        return Imitation(joined, "its name without the dots") if joined else None

    def _close(self, name: str) -> Imitation | None:
        if name not in self._compared:  # many hosts lie below one registration
            self._compared[name] = self._nearest(name)
        return self._compared[name]

    def _nearest(self, name: str) -> Imitation | None:
        doubled = self._undoubled.get(_undoubled(skeleton(name))) if name else None
        if doubled:
            return Imitation(doubled, "letters doubled or undoubled")
        for depth, lengths in self._lengths.items():
            if not lengths.intersection(range(len(name) - depth, len(name) + depth + 1)):
                continue
            found = sorted(
                {pair for key in _shortened(name, depth) for pair in self._near[depth].get(key, ())}
            )
            for most, by in ((1, "one letter changed"), (2, "two letters changed"))[:depth]:
                near = next(
                    (of for allowed, of in found if edit_distance(name, allowed, most) <= most),
                    None,
                )
                if near:
                    return Imitation(near, by)
        return None

    def _held(self, host: HostName) -> Imitation | None:
        for label in (host.name, *host.below):
            for run in _runs(label.split("-"), "", _MAX_PARTS):
                for of, other in self._names.get(skeleton(run), ()):
                    if len(_plain(other)) >= MIN_NEAR and other not in _EVERYDAY:
                        return Imitation(of, "its name as a part of another")
        return None
