"""Find where a sentence says otherwise than the evidence: negations, opposites, names, numbers.

Groundedness counts shared words, so "is not" and "is" look alike. Here each detail of a sentence is
held against the place of the evidence whose surrounding words fit best. Only rules and word lists
(`contradiction_words.json`, English) decide. The constants and the lists were chosen on the
development half of `benchmarks/perturbations.py`, which measures what is noticed and what is not.
"""

import functools
import itertools
import json
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from rag_eval.corpus.analyzer import STOP_WORDS, Analyzer

Kind = Literal["negation", "number", "antonym", "name", "role", "unit", "date"]


class Conflict(NamedTuple):
    """A detail of a sentence, and what the evidence says in its place; empty if it says nothing."""

    kind: Kind
    sentence: str
    evidence: str


# ---- Word lists

NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()
"""Words for 0 to 20. In evidence such a word matches the number in the answer."""
_LISTS: dict[str, Any] = json.loads(
    files("rag_eval.measures").joinpath("contradiction_words.json").read_text("utf-8")
)
_SETS = {name: frozenset(words.split()) for name, words in _LISTS.items() if type(words) is str}
_NEGATIONS, _MONTHS, _JOINING = _SETS["negations"], _SETS["months"], _SETS["joining"]
_DENIALS = _NEGATIONS | _SETS["denials"]
"""Words of the evidence that may deny what the sentence negates with "not"."""
_FUNCTION_WORDS = STOP_WORDS | _SETS["function_words"]
_NUMBER_WORDS: dict[str, str] = _LISTS["number_words"] | {
    word: f"n{number}" for number, word in enumerate(NUMBER_WORDS) if number > 1
}
_SCALES: dict[str, float] = _LISTS["scales"]
_UNITS = {
    word: (dimension, unit)
    for dimension, line in enumerate(_LISTS["units"])
    for unit, spellings in enumerate(line.split("|"))
    for word in spellings.split()
}


_analyzer = functools.lru_cache(maxsize=1)(Analyzer)


@functools.lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    return str(_analyzer().stem(word))


@functools.lru_cache(maxsize=1)
def _listed_opposites() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for pair in _LISTS["opposites"]:
        sides = [[_stem(word) for word in side.split()] for side in pair.split("|")]
        for one, other in itertools.product(*sides):
            found.setdefault(one, set()).add(other)
            found.setdefault(other, set()).add(one)
    return found


_SHORTEST_ROOT = 4
"""Least length of a word that an affix can turn into its opposite."""


@functools.lru_cache(maxsize=65_536)
def _opposites(word: str) -> set[str]:
    """Return the stems of the opposites of a word, from the list or by an affix, such as "un-"."""
    found = set(_listed_opposites().get(_stem(word), ()))
    for pair in _LISTS["affixes"]:
        for one, other in itertools.permutations(pair.split("|")):
            (prefix, suffix), (other_prefix, other_suffix) = one.split("-"), other.split("-")
            root = word[len(prefix) : len(word) - len(suffix)]
            if len(root) >= _SHORTEST_ROOT and word == prefix + root + suffix:
                found.add(_stem(other_prefix + root + other_suffix))
    return found


# ---- Words of a text with their places, numbers and names

_TOKEN = re.compile(
    r"(?P<number>(?<![^\W_])(?<![^\W\d_]-)\d+(?:[.,]\d+)*(?P<suffix>st|nd|rd|th|s)?(?![^\W_]))"
    r"|(?P<word>[^\W_]+(?:['’][^\W_]+)*)|(?P<stop>[.;:!?](?=\s))|(?P<pause>[,()\"“”`]|\s[-–—]\s)"
)
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:[.,]\d{3})+")
_GAP = 20
"""Distance that the end of a sentence adds, so that words of other sentences count for little."""


class _Text:
    """The words of a text; each list has an entry for each word.

    `values` marks numbers ("n5"), ordinals ("o5") and months ("mmay"). `pauses` says whether a
    comma, bracket or end of a sentence stands before the word. `spots` lists the words of a stem.
    """

    def __init__(self, text: str) -> None:
        self.shown: list[str] = []
        self.words: list[str] = []
        self.places: list[int] = []
        self.values: list[str] = []
        self.is_name: list[bool] = []
        self.pauses: list[bool] = []
        place, is_start, pauses = 0, True, False
        for match in _TOKEN.finditer(text):
            if match["stop"] or match["pause"]:
                place, is_start = (
                    place + _GAP * bool(match["stop"]),
                    is_start or bool(match["stop"]),
                )
                pauses = True
                continue
            shown = match[0]
            word = shown.lower().replace("’", "'").removesuffix("'s")
            word = "n't" if word.endswith("n't") else word
            self.values.append(self._read_value(match, word))
            self.is_name.append(_is_name(shown, word, is_start=is_start) and not match["number"])
            self.shown.append(shown)
            self.words.append(word)
            self.places.append(place)
            self.pauses.append(pauses)
            place, is_start, pauses = place + 1, False, False
        self.stems = [_stem(word) for word in self.words]
        self.spots: dict[str, list[int]] = {}
        for at, stem in enumerate(self.stems):
            self.spots.setdefault(stem, []).append(at)

    def _read_value(self, match: re.Match[str], word: str) -> str:
        if match["number"]:
            suffix = match["suffix"] or ""
            kind = "n" if suffix in ("", "s") else "o"
            return kind + spell_number(match[0].removesuffix(suffix))
        if word in _MONTHS:
            return f"m{word}" if match[0][0].isupper() else ""
        if word == "third" and self.words and self.words[-1] in _SETS["before_fraction"]:
            return ""
        if word in _SCALES:
            counted = self.values[-1][1:] if self.values and self.values[-1][:1] == "n" else ""
            if not counted.replace(".", "").isdigit():
                return "n" + spell_number(f"{_SCALES[word]:.1f}")
            number = spell_number(f"{float(counted) * _SCALES[word]:.1f}")
            self.values[-1] = f"n{number}"  # "2 million" is one number
        return _NUMBER_WORDS.get(word, "")

    def phrase(self, first: int, last: int) -> str:
        """Return the words from one to another, as they are spelled."""
        return " ".join(self.shown[max(first, 0) : last + 1])

    def is_content(self, at: int) -> bool:
        """Tell whether a word is neither a function word nor a negation."""
        return self.words[at] not in _FUNCTION_WORDS and self.words[at] not in _NEGATIONS

    def follows(self, at: int) -> str:
        """Return the word behind a word, or an empty text."""
        return self.words[at + 1] if at + 1 < len(self.words) else ""

    def find(self, stems: Iterable[str]) -> "list[_Span]":
        """Return the words with one of the stems."""
        return [(at, at) for at in sorted(at for stem in stems for at in self.spots.get(stem, ()))]


# The sentences of one answer share windows and evidence. More entries would hold whole corpora.
_read = functools.lru_cache(maxsize=128)(_Text)


@functools.lru_cache(maxsize=4096)
def spell_number(number: str) -> str:
    """Spell a number with a decimal point, without separators of thousands and idle zeros."""
    if not number.isascii():
        number = "".join(char if char in ".," else str(unicodedata.digit(char)) for char in number)
    if _GROUPED.fullmatch(number):
        return re.sub(r"[.,]", "", number)
    whole, point, rest = number.replace(",", ".").partition(".")
    whole = whole.lstrip("0") or "0"
    rest = rest if "." in rest else rest.rstrip("0")
    return f"{whole}.{rest}" if point and rest else whole


def _is_name(shown: str, word: str, *, is_start: bool) -> bool:
    """Tell whether a word is capitalised inside a sentence, or has capitals or digits inside."""
    if word in _FUNCTION_WORDS or word in _MONTHS or word in _NUMBER_WORDS:
        return False
    has_odd = any(char.isupper() or char.isdigit() for char in shown[1:])
    return has_odd or (len(shown) > 1 and shown[0].isupper() and not is_start)


# ---- Agreement of the words around two places

_Span = tuple[int, int]
"""First and last word of a detail."""
_REACH = 8
"""Number of words before and behind a detail that are compared."""
_MOST_PLACES = 24
"""Largest number of places in a text that are compared with a detail."""
_FUNCTION_WEIGHT = 0.3
_OTHER_SIDE = 0.5
"""Factor for a word that stands before the detail in one text and behind it in the other."""


class _Pair(NamedTuple):
    """A sentence, its window, and all texts of the evidence."""

    sentence: _Text
    window: _Text
    evidence: Sequence[str]

    def best(
        self,
        span: _Span,
        spans: Iterable[_Span],
        *,
        skipped: _Span = (0, -1),
        text: _Text | None = None,
    ) -> tuple[float, _Span | None]:
        """Return the span of the window whose surroundings agree best with those of a detail.

        A word at distance d weighs 1 / (1 + d). In the window it counts with the smaller of the two
        weights. The agreement is in [0, 1]. Without spans the result is 0 and None. `text` stands
        for the window.
        """
        text, (first, last) = text or self.window, span
        around = []
        left_out = {*range(first, last + 1), *range(skipped[0], skipped[1] + 1)}
        for at in range(max(0, first - _REACH), min(len(self.sentence.words), last + _REACH + 1)):
            if at in left_out:
                continue
            weight = _FUNCTION_WEIGHT if self.sentence.words[at] in _FUNCTION_WORDS else 1.0
            distance = 1 + (first - at if at < first else at - last)
            around.append((text.spots.get(self.sentence.stems[at]), at < first, weight, distance))
        total = sum(weight / distance for _, _, weight, distance in around)
        best, found = 0.0, None
        for low, high in itertools.islice(spans, _MOST_PLACES):
            agreement = 0.0
            for spots, is_before, weight, distance in around:
                if spots is None:
                    continue
                nearest = 0.0
                if left := bisect_left(spots, low):
                    side = 1.0 if is_before else _OTHER_SIDE
                    nearest = side / (1 + text.places[low] - text.places[spots[left - 1]])
                if (right := bisect_right(spots, high)) < len(spots):
                    side = _OTHER_SIDE if is_before else 1.0
                    behind = side / (1 + text.places[spots[right]] - text.places[high])
                    nearest = max(nearest, behind)
                agreement += weight * min(nearest, 1 / distance)
            if found is None or agreement > best * total:
                best, found = agreement / total if total else 0.0, (low, high)
        return best, found

    def replacement(
        self,
        span: _Span,
        find: Callable[[_Text], list[_Span]],
        others: list[_Span],
        limits: "_Limits",
    ) -> tuple[bool, _Span | None]:
        """Tell whether the evidence has a detail, and return what the window has in its place.

        The rest of the evidence is read only where the window lacks the detail or fits another one
        better.
        """
        own, place = self.best(span, find(self.window))
        other, rival = self.best(span, others)
        exists, places = place is not None, self.window.places
        if place and rival and abs(places[place[0]] - places[rival[0]]) <= _LISTED:
            return True, None
        if not exists or limits.exceeded(other, own):
            for text in map(_read, self.evidence):
                agreement, found = self.best(span, find(text), text=text)
                own, exists = max(own, agreement), exists or found is not None
        return exists, rival if limits.exceeded(other, own) else None


class _Limits(NamedTuple):
    """When something else of the evidence stands in the place of the sentence's own detail."""

    ratio: float
    least: float

    def exceeded(self, other: float, own: float) -> bool:
        """Tell whether another detail agrees better than the best of the sentence's own."""
        return other > max(self.least, self.ratio * own)


_NUMBER, _DATE, _NAME = _Limits(1.5, 0.2), _Limits(1.3, 0.2), _Limits(1.8, 0.3)
_ROLE, _ANTONYM, _NEGATED = _Limits(1.3, 0.3), _Limits(1.2, 0.35), _Limits(1.1, 0.4)
_LISTED = 4
"""Distance up to which two values of the evidence stand in one list ("in 1983 and 1984")."""


# ---- Numbers, units, months, names, and names that changed places


def _value_conflicts(pair: _Pair) -> Iterator[Conflict]:
    sentence, window, _ = pair
    for at, value in enumerate(sentence.values):
        if not value:
            continue

        def find(text: _Text, value: str = value) -> list[_Span]:
            return [(at, at) for at, own in enumerate(text.values) if own == value]

        others = [
            (at, at)
            for at, other in enumerate(window.values)
            if other[:1] == value[0] and other not in sentence.values
        ]
        is_month = value.startswith("m")
        exists, rival = pair.replacement((at, at), find, others, _DATE if is_month else _NUMBER)
        said, unit = sentence.phrase(at, at + 1), _UNITS.get(sentence.follows(at))
        if rival or not (exists or is_month):
            found = window.phrase(rival[0], rival[0] + 1) if rival else ""
            yield Conflict("date" if is_month else "number", said, found)
        elif unit and (same := pair.best((at, at), find(window))[1]):
            other_unit = _UNITS.get(window.follows(same[0]), unit)
            if other_unit[0] == unit[0] and other_unit != unit:
                yield Conflict("unit", said, window.phrase(same[0], same[0] + 1))


def _name_spans(text: _Text, known: _Text | None = None) -> list[_Span]:
    """Find runs of names; the first word of a sentence is one if it is a name in `known`."""
    is_name = text.is_name
    if known and text.words and text.shown[0][0].isupper() and text.is_content(0):
        in_run = is_name[1:2] == [True] and not text.pauses[1] and not text.values[0]
        is_known = any(known.is_name[at] for at in known.spots.get(text.stems[0], ()))
        is_name = [is_name[0] or in_run or is_known, *is_name[1:]]
    found: list[_Span] = []
    for at in itertools.compress(range(len(is_name)), is_name):
        if found and found[-1][1] == at - 1 and not text.pauses[at]:
            found[-1] = (found[-1][0], at)
        else:
            found.append((at, at))
    return found


def _sentences(text: _Text) -> list[tuple[int, int]]:
    """Return the first word of each sentence, and the word behind its last word."""
    places = text.places
    ends = [at for at in range(1, len(places)) if places[at] - places[at - 1] > _GAP]
    return list(itertools.pairwise([0, *ends, len(places)]))


_LONGEST_NAME = 4
"""Number of words of the longest name that can replace another; longer runs are titles."""
_SHORTEST_PART, _SHORTEST_CODE = 4, 3


def _find_name(stems: Sequence[str], text: _Text, *, is_code: bool) -> list[_Span]:
    """Find a name: a word of it, or its spelling in one word, with a prefix or an ending.

    A code has capitals only or a digit, as "NSC", which is found in "aNSC".
    """
    if spans := text.find(stems):
        return spans
    name, least = "".join(stems), _SHORTEST_CODE if is_code else _SHORTEST_PART
    for at, stem in enumerate(text.stems):
        short, long = sorted((stem, name), key=len)
        is_part = len(short) >= least and 2 * len(short) >= len(long)
        if (is_part and (long.startswith(short) or long.endswith(short))) or (
            at and text.stems[at - 1] + stem == name
        ):
            spans.append((at, at))
    return spans


def _name_conflicts(pair: _Pair) -> Iterator[Conflict]:
    sentence, window, _ = pair
    spans = _name_spans(sentence, window)
    own = {stem for low, high in spans for stem in sentence.stems[low : high + 1]}
    others = [
        (low, high)
        for low, high in _name_spans(window)
        if high - low < _LONGEST_NAME and own.isdisjoint(window.stems[low : high + 1])
    ]
    for low, high in spans:
        stems = sentence.stems[low : high + 1]
        is_code = sentence.shown[low].isupper() or any(map(str.isdigit, "".join(stems)))
        find = functools.partial(_find_name, stems, is_code=is_code)
        exists, rival = pair.replacement((low, high), find, others, _NAME)
        if exists and not rival:
            rival = _find_stranger(pair, (low, high), find, others)
        if rival:
            yield Conflict("name", sentence.phrase(low, high), window.phrase(*rival))


def _find_stranger(
    pair: _Pair, span: _Span, find: Callable[[_Text], list[_Span]], others: list[_Span]
) -> _Span | None:
    """Find the name that stands in the place of a name which the evidence has elsewhere.

    A sentence of the window has all other content words of the sentence, and another name in place
    of the name. No sentence of the evidence has the name with all these words.
    """
    sentence, window, _ = pair
    own = range(span[0], span[1] + 1)
    rest = {
        stem for at, stem in enumerate(sentence.stems) if at not in own and sentence.is_content(at)
    }
    if len(rest) < _LEAST_REST:
        return None

    def holding(text: _Text) -> list[tuple[int, int]]:
        return [part for part in _sentences(text) if rest <= {*text.stems[part[0] : part[1]]}]

    parts = holding(window)
    inside = [one for one in others if any(low <= one[0] < high for low, high in parts)]
    agreement, rival = pair.best(span, inside)
    if agreement <= _STRANGER:
        return None
    for text in (window, *map(_read, pair.evidence)):
        names = find(text)
        if any(low <= at < high for low, high in holding(text) for at, _ in names):
            return None
    return rival


_LEAST_REST, _STRANGER = 2, 0.6
"""Least other content words of a sentence with a wrong name, and least agreement of the right one.
"""
_FARTHEST, _NEXT_NAMES = 20, 3
"""Largest distance of two related names in the evidence; names behind a name that are compared."""


def _role_conflicts(pair: _Pair) -> Iterator[Conflict]:
    """Find two names that each fit the place of the other one better than their own.

    A word such as "by" between the names must stand between them in both texts.
    """
    sentence, window, _ = pair
    spans = _name_spans(sentence, window)
    for at, one in enumerate(spans):
        for two in spans[at + 1 : at + 1 + _NEXT_NAMES]:
            between = sentence.words[one[1] + 1 : two[0]]
            first, second = (sentence.stems[low : high + 1] for low, high in (one, two))
            if not set(first).isdisjoint(second) or _JOINING.issuperset(between):
                continue
            own_one, _ = pair.best(one, window.find(first), skipped=two)
            own_two, _ = pair.best(two, window.find(second), skipped=one)
            other_one, left = pair.best(one, window.find(second), skipped=two)
            other_two, right = pair.best(two, window.find(first), skipped=one)
            if not (left and right and _ROLE.exceeded(other_one, own_one)):
                continue
            low, high = sorted((left[0], right[0]))
            ordering = _SETS["ordering"].intersection
            if (
                _ROLE.exceeded(other_two, own_two)
                and window.places[high] - window.places[low] <= _FARTHEST
                and ordering(window.words[low + 1 : high]) == ordering(between)
            ):
                yield Conflict("role", sentence.phrase(one[0], two[1]), window.phrase(low, high))
                return


# ---- Opposites and negations

_BEFORE, _BEHIND = 5, 2
"""Number of words before and behind a word in which a cue can negate it."""
_SCOPE, _SCOPE_REACH = 3, 6
"""Number of content words that a cue negates, and the words behind it that hold them."""


def _is_near(text: _Text, cues: Iterable[int], at: int, before: int = _BEFORE) -> bool:
    """Tell whether a cue stands near a word, in the same sentence."""
    place = text.places
    return any(
        -before <= cue - at <= _BEHIND and abs(place[cue] - place[at]) <= before for cue in cues
    )


def _denials(text: _Text) -> list[int]:
    return [at for at, word in enumerate(text.words) if word in _DENIALS]


def _antonym_conflicts(pair: _Pair) -> Iterator[Conflict]:
    sentence, window, _ = pair
    denials, window_denials = _denials(sentence), _denials(window)
    for at, word in enumerate(sentence.words):
        others = window.find(_opposites(word) - sentence.spots.keys())
        if not others:
            continue
        own, _ = pair.best((at, at), window.find([sentence.stems[at]]))
        other, place = pair.best((at, at), others)
        if not place or not _ANTONYM.exceeded(other, own):
            continue
        if _is_near(sentence, denials, at) == _is_near(window, window_denials, place[0]):
            yield Conflict("antonym", sentence.shown[at], window.shown[place[0]])


def _cues(text: _Text) -> list[int]:
    """Return the words that negate; "not only", "or not", "No. 5" and a quoted "No" do not."""
    return [
        at
        for at, word in enumerate(text.words)
        if word in _NEGATIONS
        and text.follows(at) not in _SETS["after_not"]
        and text.words[at - 1 : at] != ["or"]
        and not (word == "no" and text.follows(at)[:1].isdigit())
        and not (text.shown[at] == "No" and text.places[at] - 1 in text.places[at - 1 : at])
    ]


def _scope(text: _Text, cue: int) -> list[int]:
    """Return the content words behind a cue up to the end of the sentence."""
    last = min(cue + _SCOPE_REACH, len(text.words) - 1)
    found = [at for at in range(cue + 1, last + 1) if text.is_content(at)]
    return [at for at in found if text.places[at] - text.places[cue] <= _SCOPE_REACH][:_SCOPE]


def _negation_conflicts(pair: _Pair) -> Iterator[Conflict]:
    """Find what only the sentence negates; without negation in it, what only the window negates."""
    sentence, window, _ = pair
    cues = _cues(sentence)
    for cue in cues:
        # a denial that the sentence repeats elsewhere negates something else
        repeated = {sentence.follows(other) for other in cues} - {sentence.follows(cue)}
        found = [
            (*pair.best((at, at), window.find([sentence.stems[at]])), at)
            for at in _scope(sentence, cue)
        ]
        _, place, head = next((one for one in found if one[1]), (0.0, None, cue))
        opposites = set().union(*(_opposites(sentence.words[at]) for *_, at in found))
        denials = [
            at
            for at, word in enumerate(window.words)
            if window.stems[at] in opposites
            or (word in _NEGATIONS and window.follows(at) not in repeated)
            or (word in _DENIALS - _NEGATIONS and word not in sentence.words)
        ]
        said = sentence.phrase(cue, head)
        if place and not _is_near(window, denials, place[0], _BEFORE + head - cue):
            yield Conflict("negation", said, window.phrase(place[0] - 1, place[0] + 1))
        elif not place and not denials:
            yield Conflict("negation", said, "")
    for at in [] if cues else [at for cue in _cues(window) for at in _scope(window, cue)[:1]]:
        elsewhere = [span for span in window.find([window.stems[at]]) if span != (at, at)]
        for own, _ in sentence.find([window.stems[at]]):
            denied, _ = pair.best((own, own), [(at, at)])
            stated, _ = pair.best((own, own), elsewhere)
            near = sentence.words[max(0, own - _SCOPE) : own + _SCOPE + 1]
            if (
                _NEGATED.exceeded(denied, stated)
                and not _is_near(sentence, _denials(sentence), own)
                and not any(window.find(_opposites(word)) for word in near)
            ):
                yield Conflict("negation", sentence.shown[own], window.phrase(at - _SCOPE, at))
                return


MOST_SENTENCE, MOST_WINDOW = 2000, 8000
"""Largest number of characters read of a sentence and of a window, so that time stays linear."""


def find_conflicts(sentence: str, window: str, evidence: Sequence[str] = ()) -> list[Conflict]:
    """Return what a sentence says otherwise than its best window of the evidence.

    - number: a number that the evidence lacks, or another number in its place in the window.
      Numbers are exact: "about 1,000" is not 998.
    - date: another month in its place in the window.
    - unit: the number of the window with another unit of the same dimension.
    - name: another name in its place in the window. A name that the evidence lacks, without another
      in its place, is no conflict; it lowers the groundedness.
    - role: two names that have changed places.
    - antonym: an opposite in the place of a word, where neither or both are negated.
    - negation: "not" without a denial in the window, or the other way.

    `evidence` has all texts of the answer. A name or a number counts anywhere in it, unless another
    one fits its place in the window much better.

    Examples
    --------
    >>> find_conflicts("The capital of France is Berlin.", "The capital of France is Paris.")
    [Conflict(kind='name', sentence='Berlin', evidence='Paris')]
    >>> find_conflicts("Dodos could not fly.", "Dodos were unable to fly.")
    []
    """
    pair = _Pair(_read(sentence[:MOST_SENTENCE]), _read(window[:MOST_WINDOW]), evidence)
    return [
        *_value_conflicts(pair),
        *_name_conflicts(pair),
        *_role_conflicts(pair),
        *_antonym_conflicts(pair),
        *_negation_conflicts(pair),
    ]
