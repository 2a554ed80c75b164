"""Forbidden patterns: the shipped rules, compiled to automata in linear time (RE2).

`re2.Filter` names the rules whose literal words stand in a text, and only these rules run.
`re2.Set` over whole rules would need 512 MB of memory and six times the time.
"""

import functools
import itertools
import json
import tomllib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

import re2

from rag_eval.core.errors import Part
from rag_eval.trust.phrases import compile_phrases

Severity = Literal["hint", "warning", "blocked"]
"""Severity of a finding. A hint alone does not change the verdict."""
ViewKind = Literal["visible", "hidden", "decoded"]

_MAX_MEM = 32 << 20
"""Most bytes for the automaton of a pattern; beyond them, RE2 uses a slower linear engine."""
_WINDOW, _OVERLAP, _PER_WINDOW = 1 << 16, 1 << 12, 100
"""A rule reports at most _PER_WINDOW places in each _WINDOW bytes.

The last place reaches past the window's end, so that no match is lost. The limit bounds the cost of
patterns that look far ahead."""

# ---- Patterns


def _options() -> Any:
    options = re2.Options()
    options.max_mem = _MAX_MEM
    options.log_errors = False
    return options


def _list_characters(data: bytes, offsets: Iterable[int]) -> dict[int, int]:
    """Return byte offset -> character offset, in one pass."""
    ordered = sorted(set(offsets))
    if data.isascii():
        return {offset: offset for offset in ordered}
    places, before, counted = {}, 0, 0
    for offset in ordered:
        counted += len(data[before:offset].decode("utf-8", "replace"))
        places[offset], before = counted, offset
    return places


class LinearPattern:
    r"""A pattern over UTF-8 in RE2 syntax (no look-around, no back references).

    `\b` knows ASCII letters only.
    """

    def __init__(self, pattern: str) -> None:
        self._compiled: Any = re2.compile(pattern, _options())

    def matches(self, data: bytes, start: int = 0, end: int | None = None) -> bool:
        """Tell whether the pattern matches in data[start:end]; other bytes are only context."""
        return self._compiled.search(data, start, end) is not None

    def find(self, data: bytes) -> list[tuple[int, int]]:
        """Return the byte spans of the matches in order, at most `_PER_WINDOW` a window."""
        if len(data) <= _WINDOW and not self.matches(data):  # the usual case
            return []
        found: list[tuple[int, int]] = []
        reached = 0
        for window in range(0, max(len(data), 1), _WINDOW):
            last = min(window + _WINDOW, len(data))
            beyond = min(last + _OVERLAP, len(data))
            matches = self._compiled.finditer(data, max(window, reached), beyond)
            for count, match in enumerate(matches, start=1):
                start, end = match.span(match.lastindex or 0)
                if start >= last:
                    break
                reached = beyond if count == _PER_WINDOW else end
                found.append((start, reached))
                if count == _PER_WINDOW:
                    break
        return found

    def find_all(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the characters of all matches, for patterns that never look far ahead."""
        data = text.encode("utf-8", "replace")
        spans = [match.span() for match in self._compiled.finditer(data)]
        places = _list_characters(data, itertools.chain.from_iterable(spans))
        return ((places[start], places[end]) for start, end in spans)


class Signals:
    """Tries many cheap patterns in one pass over a text; `patterns` is name -> RE2 syntax."""

    def __init__(self, patterns: dict[str, str]) -> None:
        self._patterns = patterns
        self._set = re2.Set.SearchSet(_options())
        # RE2 finds the last pattern in every text, unless memory ran out.
        for pattern in (*patterns.values(), r"\z"):
            self._set.Add(pattern)
        self._set.Compile()

    def find(self, data: bytes) -> set[str]:
        """Return the names of the patterns that match somewhere."""
        found = self._set.Match(data) or []
        if len(self._patterns) in found:
            return {name for index, name in enumerate(self._patterns) if index in found}
        return {name for name, one in self._patterns.items() if LinearPattern(one).matches(data)}


# ---- The rules


class RuleTests(Part):
    """Texts in which the rule finds something, and harmless texts in which it finds nothing."""

    match: tuple[str, ...]
    clean: tuple[str, ...]


class Rule(Part):
    """A forbidden pattern, the searched views of a text, and the reason."""

    id: str
    severity: Severity
    views: tuple[ViewKind, ...] = ("visible", "hidden", "decoded")
    pattern: str
    """RE2 syntax for the normalised lower-case view."""
    rationale: str
    needs: tuple[str, ...] = ()
    """Ids of rules that must also match in this view; their own `views` are ignored."""
    max_gap: int | None = None
    """Most characters between a match and a match of each needed rule; None for no limit."""
    tests: RuleTests


def read_rules() -> list[Rule]:
    """Read the rules of the TOML files, in the order of the files and of the rules in them."""
    paths = sorted(Path(__file__).parent.glob("rules/*.toml"))
    contents = [tomllib.loads(path.read_text(encoding="utf-8")) for path in paths]
    lists: dict[str, dict[str, str | list[str]]] = {}
    for content in contents:
        lists.setdefault(content.get("language", "en"), {}).update(content.get("words", {}))
    rules = []
    for content in contents:
        language = content.get("language", "en")
        for rule in content.get("rule", ()):
            pattern = compile_phrases(rule["phrases"], lists[language], language)
            tests = RuleTests(match=rule["match"], clean=rule["clean"])
            named = {"id": rule["id"], "severity": rule["severity"], "rationale": rule["reason"]}
            rules.append(Rule(**named, pattern=pattern, tests=tests))
    return rules


class RuleMatch(NamedTuple):
    """A match of a rule in characters [start, end) of a view's text."""

    rule: Rule
    start: int
    end: int


_Spans = list[tuple[int, int]]


def _keep_near(spans: _Spans, others: _Spans, gap: int) -> _Spans:
    """Return the spans at most `gap` away from one of `others`; both are sorted and disjoint."""
    starts, ends = [start for start, _ in others], [end for _, end in others]
    return [
        (start, end)
        for start, end in spans
        if bisect_left(ends, start - gap) < bisect_right(starts, end + gap)
    ]


class RuleSet:
    """Compiled rules, which search normalised views of texts."""

    def __init__(self, rules: Iterable[Rule], version: str) -> None:
        self.rules, self.version = tuple(rules), version
        places = {rule.id: place for place, rule in enumerate(self.rules)}
        self._needed = [[places[name] for name in rule.needs] for rule in self.rules]
        self._compiled = [LinearPattern(rule.pattern) for rule in self.rules]
        self._filter = re2.Filter()
        for rule in self.rules:
            self._filter.Add(rule.pattern, _options())
        self._filter.Compile()

    @classmethod
    @functools.cache
    def load(cls) -> "RuleSet":
        """Read and compile the shipped rules, once in a process."""
        content = json.loads((files("rag_eval.trust") / "rules.json").read_bytes())
        old = [Rule(**rule) for rule in content["rules"]]
        return cls([*old, *read_rules()], content["version"])

    def find(self, views: Sequence[tuple[str, ViewKind]]) -> list[list[RuleMatch]]:
        """Return the matches in each view, in the order of the rules and then of the text.

        Each view is a normalised text and its kind. Each rule searches all views before the next
        rule, because alternating automata drive each other out of the processor's cache.
        """
        data = [text.encode("utf-8", "replace") for text, _ in views]
        asked: list[list[int]] = []
        wanted: dict[int, set[int]] = {}
        for at, (_, kind) in enumerate(views):
            literal = set(self._filter.Match(data[at], potential=True) or ())
            asked.append(
                [
                    place
                    for place in sorted(literal)
                    if kind in self.rules[place].views and literal.issuperset(self._needed[place])
                ]
            )
            for place in asked[at]:
                for one in (place, *self._needed[place]):
                    wanted.setdefault(one, set()).add(at)
        spans = {
            (place, at): self._compiled[place].find(data[at])
            for place, texts in sorted(wanted.items())
            for at in sorted(texts)
        }
        result = []
        for at, places in enumerate(asked):
            found: list[tuple[Rule, int, int]] = []
            for place in places:
                rule, kept = self.rules[place], spans[place, at]
                gap = len(data[at]) if rule.max_gap is None else rule.max_gap
                for other in self._needed[place]:
                    kept = _keep_near(kept, spans[other, at], gap)
                found.extend((rule, start, end) for start, end in kept)
            to_characters = _list_characters(
                data[at], (byte for _, *span in found for byte in span)
            )
            result.append(
                [
                    RuleMatch(rule, to_characters[low], to_characters[high])
                    for rule, low, high in found
                ]
            )
        return result
