"""Forbidden patterns: rules compiled to automata whose time grows with the text and nothing else (RE2).

Belongs here: everything that touches `re2`. Rules run on normalised views (`views`); one prefilter decides which rules look closer. It looks for
the words that a match of each rule must hold (`literals`), all at once and each set of words as one pattern: an automaton of whole rules would
need memory that grows with their gaps, and one that tells every single word apart needs a state for every set of words that texts happen to hold.
"""

import functools
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import re2

from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.trust.literals import necessary_words
from rag_eval.trust.rule_file import RULES, Rule, ViewKind, read_rules

_MAX_MEM = 32 << 20
"""Bytes that the automaton of one pattern may take; RE2 allocates them as needed and goes on with a slower linear engine beyond."""
_WINDOW, _OVERLAP, _PER_WINDOW = 1 << 16, 1 << 12, 100
"""A rule reports at most _PER_WINDOW places in each _WINDOW bytes, the last of them reaching past the window's end.

This bounds what a pattern costs whose every match looks far ahead; and no place is lost, since the last one covers the rest."""


def _options() -> Any:
    options = re2.Options()
    options.max_mem = _MAX_MEM
    options.log_errors = False
    return options


class PatternError(ValueError):
    """A pattern is not RE2 syntax, or its automaton would be too large."""


class LinearPattern:
    r"""A pattern over UTF-8, found in time linear in the text.

    Parameters
    ----------
    pattern
        RE2 syntax (no look-around, no back references; `\b` knows ASCII letters only).

    Raises
    ------
    PatternError
        It does not compile.
    """

    def __init__(self, pattern: str) -> None:
        try:
            self._compiled: Any = re2.compile(pattern, _options())
        except re2.error as error:
            message = error.args[0] if error.args else ""
            raise PatternError(
                message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
            ) from None

    def found_in(self, data: bytes, start: int = 0, end: int | None = None) -> bool:
        """Whether it matches anywhere between two places; what stands outside counts as context only."""
        return self._compiled.search(data, start, end) is not None

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """Byte spans of its matches, in order; bounded per window of 64 KiB as `_PER_WINDOW` says."""
        if len(data) <= _WINDOW and not self.found_in(data):  # what most texts come to
            return []
        found: list[tuple[int, int]] = []
        reached = 0
        for window in range(0, max(len(data), 1), _WINDOW):
            last, beyond = (
                min(window + _WINDOW, len(data)),
                min(window + _WINDOW + _OVERLAP, len(data)),
            )
            for here, match in enumerate(
                self._compiled.finditer(data, max(window, reached), beyond), start=1
            ):
                start, end = match.span()
                if start >= last:
                    break
                reached = beyond if here == _PER_WINDOW else end
                found.append((start, reached))
                if here == _PER_WINDOW:
                    break
        return found

    def every(self, text: str) -> Iterator[tuple[int, int]]:
        """Characters of each of its matches, in order and however many there are: for patterns whose matches cost no more than they are long."""
        data = text.encode("utf-8", "replace")
        spans = [match.span() for match in self._compiled.finditer(data)]
        places = _characters(data, itertools.chain.from_iterable(spans))
        return ((places[start], places[end]) for start, end in spans)


def _set(patterns: Iterable[str]) -> Any:
    r"""All patterns as one automaton; the last is `\z`, which is always found unless the automaton ran out of memory."""
    found = re2.Set.SearchSet(_options())
    for pattern in (*patterns, r"\z"):
        found.Add(pattern)
    found.Compile()
    return found


def _gates(pattern: str) -> list[str]:
    """Patterns of the words that a match must hold, all of which must be found; the pattern itself where no words can be told."""
    gates = []
    for words in necessary_words(pattern):
        shortest = [
            word
            for word in sorted(words)
            if not any(other in word and other != word for other in words)
        ]
        gates.append("|".join(re2.escape(word) for word in shortest))
    return gates or [pattern]


class Signals:
    """Many cheap patterns over one text in one pass: which of them are there at all.

    Parameters
    ----------
    patterns
        Name -> RE2 syntax.
    """

    def __init__(self, patterns: dict[str, str]) -> None:
        self._names = tuple(patterns)
        self._single = tuple(LinearPattern(pattern) for pattern in patterns.values())
        self._set = _set(patterns.values())

    def names(self, data: bytes) -> set[str]:
        """Names of the patterns that match somewhere."""
        found = self._set.Match(data) or []
        if len(self._names) in found:
            return {self._names[index] for index in found if index < len(self._names)}
        return {
            name
            for name, pattern in zip(self._names, self._single, strict=True)
            if pattern.found_in(data)
        }


class RuleMatch(NamedTuple):
    """A rule found in a view: characters of the view's text, start first and one past the last."""

    rule: Rule
    start: int
    end: int


def _near(
    spans: list[tuple[int, int]], others: list[tuple[int, int]], gap: int
) -> list[tuple[int, int]]:
    """Those of `spans` with one of `others` at most `gap` away; both in order of their starts and without overlap among themselves."""
    starts, ends = [start for start, _ in others], [end for _, end in others]
    return [
        (start, end)
        for start, end in spans
        if bisect_left(ends, start - gap) < bisect_right(starts, end + gap)
    ]


def _characters(data: bytes, offsets: Iterable[int]) -> dict[int, int]:
    """Byte offset -> character offset; one pass."""
    ordered = sorted(set(offsets))
    if data.isascii():
        return {offset: offset for offset in ordered}
    places, before, counted = {}, 0, 0
    for offset in ordered:
        counted += len(data[before:offset].decode("utf-8", "replace"))
        places[offset], before = counted, offset
    return places


class RuleSet:
    """The rules of one file, ready to be looked for.

    Parameters
    ----------
    rules
        As the file gives them.
    version
        The file's.
    file
        Its path, for error messages.

    Raises
    ------
    InputError
        A pattern does not compile, or matches the empty text; names the rule.
    """

    def __init__(self, rules: Iterable[Rule], version: str, file: str | None = None) -> None:
        self.rules, self.version = tuple(rules), version
        self._places = {rule.id: place for place, rule in enumerate(self.rules)}
        self._compiled: list[LinearPattern] = []
        problems = []
        for rule in self.rules:
            field = f"rules.{rule.id}.pattern"
            try:
                pattern = LinearPattern(rule.pattern)
            except PatternError as error:
                problems.append(
                    Problem(
                        "bad_pattern",
                        f"The pattern does not compile: {quoted(str(error))}.",
                        file=file,
                        field=field,
                        found=quoted(rule.pattern),
                        accepted="RE2 syntax",
                    )
                )
                continue
            if pattern.found_in(b""):
                problems.append(
                    Problem(
                        "empty_pattern",
                        "The pattern matches the empty text.",
                        file=file,
                        field=field,
                        found=quoted(rule.pattern),
                        accepted="patterns that need a character",
                    )
                )
            self._compiled.append(pattern)
        if problems:
            raise InputError(problems)
        gates = [
            (gate, place) for place, rule in enumerate(self.rules) for gate in _gates(rule.pattern)
        ]
        patterns = {
            gate: number for number, gate in enumerate(dict.fromkeys(gate for gate, _ in gates))
        }
        self._gates = [
            {patterns[gate] for gate, at in gates if at == place}
            for place in range(len(self.rules))
        ]
        self._first: dict[int, list[int]] = {}
        for place, numbers in enumerate(self._gates):
            self._first.setdefault(min(numbers), []).append(place)
        self._n_gates = len(patterns)
        self._filter = _set(patterns)

    @classmethod
    def load(cls, path: Path | None = None) -> "RuleSet":
        """Read and compile a rule file, by default the one that is shipped (compiled once).

        Raises
        ------
        InputError
            The file cannot be read, or a rule in it cannot be used.
        """
        return _shipped() if path is None else cls._read(path)

    @classmethod
    def _read(cls, path: Path) -> "RuleSet":
        found = read_rules(path)
        return cls(found.rules, found.version, str(path))

    def candidates(self, data: bytes) -> list[int]:
        """Places of the rules whose necessary words the text holds; all rules where the prefilter failed."""
        found = frozenset(self._filter.Match(data) or ())
        if self._n_gates not in found:
            return list(range(len(self.rules)))
        if len(found) == 1:
            return []
        return sorted(
            place
            for gate in found
            for place in self._first.get(gate, ())
            if self._gates[place] <= found
        )

    def matches(self, text: str, kind: ViewKind = "visible") -> list[RuleMatch]:
        """Rules found in the text of a view, in the order of the file and then of the text; see `matches_of`."""
        return self.matches_of([(text, kind)])[0]

    def matches_of(self, views: Sequence[tuple[str, ViewKind]]) -> list[list[RuleMatch]]:
        """Rules found in each of several views, in the order of the file and then of the text.

        Each rule goes over all views before the next one does: automata that take turns drive each other's states out of the processor's cache.

        Parameters
        ----------
        views
            Text, normalised as `views.View.text` is, and kind; rules that do not name this kind of view are left out.
        """
        data = [text.encode("utf-8", "replace") for text, _ in views]
        rows: dict[int, list[int]] = {}
        for at, (_, kind) in enumerate(views):
            candidates = self.candidates(data[at])
            for place in candidates:
                rule = self.rules[place]
                if kind in rule.views and all(
                    self._places[needed] in candidates for needed in rule.needs
                ):
                    rows.setdefault(place, []).append(at)
        spans = self._spans(rows, data)
        beside = self._spans(self._needed(spans), data)
        found: list[list[tuple[Rule, int, int]]] = [[] for _ in views]
        for (place, at), kept in sorted(spans.items()):
            rule = self.rules[place]
            for needed in rule.needs:
                kept = _near(
                    kept,
                    beside.get((self._places[needed], at), []),
                    len(data[at]) if rule.max_gap is None else rule.max_gap,
                )  # noqa: PLW2901 - fewer and fewer
            found[at].extend((rule, start, end) for start, end in kept)
        return [_in_characters(each, text) for each, text in zip(found, data, strict=True)]

    def _spans(
        self, rows: dict[int, list[int]], data: list[bytes]
    ) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Where the rules at some places match in some texts, by place and text; those that do not are left out."""
        return {
            (place, at): found
            for place, texts in rows.items()
            for at in texts
            if (found := self._compiled[place].spans(data[at]))
        }

    def _needed(self, spans: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
        """Rules that others need which match, and the texts in which they do."""
        pairs = sorted(
            {
                (self._places[needed], at)
                for place, at in spans
                for needed in self.rules[place].needs
            }
        )
        return {
            place: [at for _, at in group]
            for place, group in itertools.groupby(pairs, key=lambda pair: pair[0])
        }


def _in_characters(found: list[tuple[Rule, int, int]], data: bytes) -> list[RuleMatch]:
    if not found:
        return []
    places = _characters(data, (offset for _, start, end in found for offset in (start, end)))
    return [RuleMatch(rule, places[start], places[end]) for rule, start, end in found]


@functools.lru_cache(maxsize=1)
def _shipped() -> RuleSet:
    return RuleSet._read(RULES)  # noqa: SLF001 - its own class
