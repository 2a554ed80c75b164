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
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from rag_eval.corpus.analyzer import STOP_WORDS

Kind = Literal["negation", "number", "antonym", "name", "role", "unit", "date"]


class Conflict(NamedTuple):
    """A detail of a sentence, and what the evidence says in its place; empty if it says nothing."""

    kind: Kind
    sentence: str
    evidence: str


# ---- Word lists

_LISTS = json.loads(
    files("rag_eval.measures").joinpath("contradiction_words.json").read_text("utf-8")
)
_NEGATIONS = frozenset(_LISTS["negations"].split())
"""Words that negate a sentence."""
_DENIALS = _NEGATIONS | frozenset(_LISTS["denials"].split())
"""Words that may negate in the evidence what the sentence negates with "not"."""
_NO_NEGATION = frozenset(_LISTS["after_not"].split())
"""Words that follow "not" where it negates nothing, as in "not only"."""
_FUNCTION_WORDS = STOP_WORDS | frozenset(_LISTS["function_words"].split())
_MONTHS = frozenset(_LISTS["months"].split())
_SCALES: dict[str, float] = _LISTS["scales"]
_CARDINALS = {
    **{word: float(at) for at, word in enumerate(_LISTS["numbers"].split(), start=2)},
    **{word: 10.0 * at for at, word in enumerate(_LISTS["tens"].split(), start=2)},
}
_ORDINALS = {word: at for at, word in enumerate(_LISTS["ordinals"].split(), start=2)}
_FRACTION = frozenset(("a", "one", "two"))
"""Words before "third" where it is a fraction."""
_UNITS = {
    word: (dimension, unit)
    for dimension, line in enumerate(_LISTS["units"])
    for unit, spellings in enumerate(line.split("|"))
    for word in spellings.split()
}
_PREFIXES: list[str] = _LISTS["prefixes"].split()
_ORDERING = frozenset(_LISTS["ordering"].split())
"""Words between two names that decide which of them acts, as "by" in the passive."""
_JOINING = frozenset(_LISTS["joining"].split())
"""Words between two names that may change places."""


def _read_opposites() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for pair in _LISTS["opposites"]:
        one, other = (side.split() for side in pair.split("|"))
        for word, opposite in itertools.product(one, other):
            found.setdefault(word, set()).add(opposite)
            found.setdefault(opposite, set()).add(word)
    return {word: frozenset(opposites) for word, opposites in found.items()}


_OPPOSITES = _read_opposites()


# ---- Words of a text with their places, numbers and names

MOST_SENTENCE, MOST_WINDOW = 2000, 8000
"""Largest number of characters read of a sentence and of a window, so that time stays linear."""
_TOKEN = re.compile(
    r"(?P<number>(?<![^\W_])(?<![^\W\d_]-)\d+(?:[.,]\d+)*(?P<suffix>st|nd|rd|th|s)?(?![^\W_]))"
    r"|(?P<word>[^\W_]+(?:['’][^\W_]+)*)|(?P<stop>[.;:!?](?=\s))|(?P<pause>[,()\"“”`]|\s[-–—]\s)"
)
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+")
_GAP = 20
"""Distance that the end of a sentence adds, so that words of other sentences count for little."""
_REACH = 8
"""Number of words before and behind a detail that are compared."""
_MOST_PLACES = 24
"""Largest number of places in the evidence that are compared with a detail."""


@functools.lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    return str(_stemmer().stemWord(word))


@functools.lru_cache(maxsize=1)
def _stemmer() -> Any:
    import Stemmer

    return Stemmer.Stemmer("porter")


class _Text:
    """The words of a text; each list has an entry for each word.

    `value` marks numbers ("n5"), ordinals ("o5") and months ("m" and the month). `pauses` says
    whether a comma, bracket or end of a sentence stands before the word. `spots` and `values` list
    the words with a stem or a value.
    """

    def __init__(self, text: str) -> None:
        self.shown: list[str] = []
        self.words: list[str] = []
        self.place: list[int] = []
        self.value: list[str] = []
        self.is_name: list[bool] = []
        self.pauses: list[bool] = []
        place, is_start, pauses = 0, True, False
        for match in _TOKEN.finditer(text):
            if match["stop"] or match["pause"]:
                pauses = True
                is_start |= bool(match["stop"])
                place += _GAP if match["stop"] else 0
                continue
            shown = match[0]
            word = _normal(shown)
            self.value.append(self._read_value(match, word, place))
            self.shown.append(shown)
            self.words.append(word)
            self.place.append(place)
            self.is_name.append(
                not match["number"] and _looks_like_name(shown, word, is_start=is_start)
            )
            self.pauses.append(pauses)
            place, is_start, pauses = place + 1, False, False
        self.stems = [_stem(word) for word in self.words]
        self.spots = _positions(self.stems)
        self.values = _positions(self.value)
        self.where = _positions(self.words)

    def _read_value(self, match: re.Match[str], word: str, place: int) -> str:
        if match["number"]:
            suffix = match["suffix"] or ""
            ordinal = suffix not in ("", "s")
            return ("o" if ordinal else "n") + _spell(match[0].removesuffix(suffix))
        if word in _MONTHS:
            return f"m{word}" if match[0][0].isupper() else ""
        before = self.words[-1] if self.words and self.place[-1] == place - 1 else ""
        if word in _ORDINALS:
            return "" if word == "third" and before in _FRACTION else f"o{_ORDINALS[word]}"
        if word in _SCALES:
            counted = self.value[-1][1:] if before and self.value[-1].startswith("n") else ""
            if not counted.replace(".", "").isdigit():
                return f"n{_SCALES[word]:g}"
            self.value[-1] = f"n{float(counted) * _SCALES[word]:g}"  # "2 million" is one number
            return ""
        return f"n{_CARDINALS[word]:g}" if word in _CARDINALS else ""

    def phrase(self, first: int, last: int) -> str:
        """Return the words from one to another, as they are spelled."""
        return " ".join(self.shown[max(first, 0) : last + 1])

    def is_content(self, at: int) -> bool:
        return self.words[at] not in _FUNCTION_WORDS and self.words[at] not in _NEGATIONS

    def follows(self, at: int) -> str:
        """Return the word behind a word, or an empty text."""
        return self.words[at + 1] if at + 1 < len(self.words) else ""


def _positions(keys: Sequence[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for at, key in enumerate(keys):
        found.setdefault(key, []).append(at)
    return found


@functools.lru_cache(maxsize=1024)
def _read(text: str) -> _Text:
    return _Text(text)


def _normal(shown: str) -> str:
    word = shown.lower().replace("’", "'")
    if word.endswith("n't"):
        return "n't"
    return word.removesuffix("'s")


def _spell(digits: str) -> str:
    plain = digits.replace(",", "") if _GROUPED.fullmatch(digits) else digits.replace(",", ".")
    whole, _, rest = plain.partition(".")
    whole, rest = whole.lstrip("0") or "0", rest.rstrip("0")
    return f"{whole}.{rest}" if rest else whole


def _looks_like_name(shown: str, word: str, *, is_start: bool) -> bool:
    """Tell whether a word is capitalised inside a sentence, or has capitals or digits inside."""
    if word in _FUNCTION_WORDS or word in _MONTHS or word in _CARDINALS:
        return False
    inside = any(char.isupper() or char.isdigit() for char in shown[1:])
    return inside or (len(shown) > 1 and shown[0].isupper() and not is_start)


# ---- Agreement of the words around two places

_Span = tuple[int, int]
"""First and last word of a detail."""
_FUNCTION_WEIGHT = 0.3
_OTHER_SIDE = 0.5
"""Factor for a word that stands before the detail in one text and behind it in the other."""


def _best(
    sentence: _Text, span: _Span, text: _Text, spans: Iterable[_Span], skipped: Sequence[_Span] = ()
) -> tuple[float, _Span | None]:
    """Return the span of a text whose surroundings agree best with those of a detail, in [0, 1].

    A word at distance d weighs 1 / (1 + d). In the text it counts with the smaller of the two
    weights. Without spans the result is 0 and None.
    """
    first, last = span
    around = []
    left_out = {at for low, high in (span, *skipped) for at in range(low, high + 1)}
    for at in range(max(0, first - _REACH), min(len(sentence.words), last + _REACH + 1)):
        if at in left_out:
            continue
        weight = _FUNCTION_WEIGHT if sentence.words[at] in _FUNCTION_WORDS else 1.0
        distance = first - at if at < first else at - last
        around.append((text.spots.get(sentence.stems[at]), at < first, weight, 1 + distance))
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
                nearest = side / (1 + text.place[low] - text.place[spots[left - 1]])
            if (right := bisect_right(spots, high)) < len(spots):
                side = _OTHER_SIDE if is_before else 1.0
                nearest = max(nearest, side / (1 + text.place[spots[right]] - text.place[high]))
            agreement += weight * min(nearest, 1 / distance)
        if found is None or agreement > best * total:
            best, found = agreement / total if total else 0.0, (low, high)
    return best, found


def _single(positions: Iterable[int]) -> list[_Span]:
    return [(at, at) for at in positions]


class _Limits(NamedTuple):
    """When another detail of the evidence stands in the place of the sentence's own.

    Its agreement is above `least`, and above `ratio` times the best agreement of the own detail.
    """

    ratio: float
    least: float


_NUMBER, _DATE = _Limits(1.5, 0.2), _Limits(1.3, 0.2)
_NAME, _ROLE = _Limits(1.8, 0.3), _Limits(1.3, 0.3)
_ANTONYM, _NEGATED = _Limits(1.2, 0.35), _Limits(1.1, 0.4)
_LISTED = 4
"""Distance up to which two values of the evidence stand in one list ("in 1983 and 1984")."""


class _Detail(NamedTuple):
    """A name or value of a sentence, with the function that finds it in a text."""

    span: _Span
    limits: _Limits
    find: "functools.partial[list[_Span]]"


def _replacement(
    sentence: _Text, detail: _Detail, window: _Text, others: list[_Span], beyond: Sequence[str]
) -> tuple[bool, _Span | None]:
    """Tell whether the evidence has a detail, and return what the window has in its place.

    The window counts first; the rest of the evidence is read only where the window has no such
    detail, or fits another one better.
    """
    own, place = _best(sentence, detail.span, window, detail.find(window))
    other, rival = _best(sentence, detail.span, window, others)
    exists = place is not None
    if place and rival and abs(window.place[place[0]] - window.place[rival[0]]) <= _LISTED:
        return True, None
    if not exists or other > detail.limits.ratio * own:
        for text in map(_read, beyond):
            agreement, found = _best(sentence, detail.span, text, detail.find(text))
            own, exists = max(own, agreement), exists or found is not None
    fits = other > detail.limits.least and other > detail.limits.ratio * own
    return exists, rival if fits else None


# ---- Numbers, units, months and names


def _value_conflicts(sentence: _Text, window: _Text, beyond: Sequence[str]) -> Iterator[Conflict]:
    for at, value in enumerate(sentence.value):
        if not value:
            continue
        others = [
            (place, place)
            for other, places in window.values.items()
            if other[:1] == value[0] and other not in sentence.values
            for place in places
        ]
        is_month = value.startswith("m")
        find = functools.partial(_find_value, value)
        detail = _Detail((at, at), _DATE if is_month else _NUMBER, find)
        exists, rival = _replacement(sentence, detail, window, others, beyond)
        said = sentence.phrase(at, at + 1)
        if rival or not (exists or is_month):
            found = window.phrase(rival[0], rival[0] + 1) if rival else ""
            yield Conflict("date" if is_month else "number", said, found)
        elif (unit := _UNITS.get(sentence.follows(at))) and (places := find(window)):
            _, same = _best(sentence, (at, at), window, places)
            other_unit = _UNITS.get(window.follows(same[0])) if same else None
            if same and other_unit and other_unit != unit and other_unit[0] == unit[0]:
                yield Conflict("unit", said, window.phrase(same[0], same[0] + 1))


def _find_value(value: str, text: _Text) -> list[_Span]:
    return _single(text.values.get(value, ()))


def _name_spans(text: _Text, known: _Text | None = None) -> list[_Span]:
    """Find runs of names; the first word of a sentence is one if it is a name in `known`."""
    is_name = text.is_name
    if known and text.words and not is_name[0] and text.shown[0][0].isupper():
        in_run = len(is_name) > 1 and is_name[1] and not text.pauses[1]
        is_known = any(known.is_name[at] for at in known.spots.get(text.stems[0], ()))
        if text.is_content(0) and not text.value[0] and (in_run or is_known):
            is_name = [True, *is_name[1:]]
    found: list[_Span] = []
    for at in itertools.compress(range(len(is_name)), is_name):
        if found and found[-1][1] == at - 1 and not text.pauses[at]:
            found[-1] = (found[-1][0], at)
        else:
            found.append((at, at))
    return found


_LONGEST_NAME = 4
"""Number of words of the longest name that can replace another; longer runs are titles."""
_SHORTEST_PART, _SHORTEST_CODE, _LONGEST_ACRONYM = 4, 3, 6


def _find_name(stems: tuple[str, ...], text: _Text, *, is_code: bool) -> list[_Span]:
    """Find a name: a word of it, its spelling with a prefix or ending, or its initials.

    A code has capitals only or a digit, as "NSC", which is found in "aNSC".
    """
    spots = sorted(at for stem in stems for at in text.spots.get(stem, ()))
    if spots:
        return _single(spots)
    name = "".join(stems)
    least = _SHORTEST_CODE if is_code else _SHORTEST_PART
    for at, stem in enumerate(text.stems):
        short, long = sorted((stem, name), key=len)
        if len(short) < least or 2 * len(short) < len(long):
            is_alike = False
        else:
            is_alike = long.startswith(short) or long.endswith(short)
        if is_alike or (at and text.stems[at - 1] + stem == name):
            spots.append(at)
    if not spots and is_code and name.isalpha() and len(name) <= _LONGEST_ACRONYM:
        initials = "".join(stem[:1] or " " for stem in text.stems)
        spots = [match.start() for match in re.finditer(re.escape(name), initials)]
    return _single(spots)


def _name_conflicts(sentence: _Text, window: _Text, beyond: Sequence[str]) -> Iterator[Conflict]:
    spans = _name_spans(sentence, window)
    own = {stem for low, high in spans for stem in sentence.stems[low : high + 1]}
    others = [
        (low, high)
        for low, high in _name_spans(window)
        if high - low < _LONGEST_NAME and own.isdisjoint(window.stems[low : high + 1])
    ]
    for low, high in spans:
        stems = tuple(dict.fromkeys(sentence.stems[low : high + 1]))
        is_code = sentence.shown[low].isupper() or any(map(str.isdigit, "".join(stems)))
        find = functools.partial(_find_name, stems, is_code=is_code)
        detail = _Detail((low, high), _NAME, find)
        _, rival = _replacement(sentence, detail, window, others, beyond)
        if rival:
            yield Conflict("name", sentence.phrase(low, high), window.phrase(*rival))


# ---- Swapped roles: who did it to whom

_FARTHEST = 20
"""Largest distance of two names in the evidence that stand in one relation."""
_NEXT_NAMES = 3


def _role_conflict(sentence: _Text, window: _Text) -> Conflict | None:
    return _swapped_names(sentence, window) or _swapped_sides(sentence, window)


def _swapped_names(sentence: _Text, window: _Text) -> Conflict | None:
    """Find two names that each fit the place of the other one better than their own."""
    spans = _name_spans(sentence, window)
    for at, one in enumerate(spans):
        for two in spans[at + 1 : at + 1 + _NEXT_NAMES]:
            between = sentence.words[one[1] + 1 : two[0]]
            stems = [set(sentence.stems[low : high + 1]) for low, high in (one, two)]
            if stems[0] & stems[1] or _JOINING.issuperset(between):
                continue
            places = [
                _single(sorted(at for stem in own for at in window.spots.get(stem, ())))
                for own in stems
            ]
            (own_one, _), (other_one, left) = (
                _best(sentence, one, window, spots, (two,)) for spots in places
            )
            (other_two, right), (own_two, _) = (
                _best(sentence, two, window, spots, (one,)) for spots in places
            )
            if not left or not right:
                continue
            low, high = sorted((left[0], right[0]))
            ordering = _ORDERING.intersection(window.words[low + 1 : high])
            if (
                window.place[high] - window.place[low] <= _FARTHEST
                and ordering == _ORDERING.intersection(between)
                and min(other_one, other_two) > _ROLE.least
                and other_one > _ROLE.ratio * own_one
                and other_two > _ROLE.ratio * own_two
            ):
                return Conflict("role", sentence.phrase(one[0], two[1]), window.phrase(low, high))
    return None


_SIDE, _WIDE_SIDE, _SWAPPED = 6, 8, 0.5
"""Words beside a verb in the sentence and in the evidence; share of them on the other side."""


def _swapped_sides(sentence: _Text, window: _Text) -> Conflict | None:
    """Find a verb whose words before it stand behind it in the evidence, and the other way."""
    for at in range(1, len(sentence.words) - 1):
        word = sentence.words[at]
        is_verb = word in _OPPOSITES or (word.endswith(("s", "ed")) and not word.endswith("ss"))
        if not is_verb or sentence.is_name[at] or not sentence.is_content(at):
            continue
        before, behind = (_beside(sentence, at, step, _SIDE) for step in (-1, 1))
        spots = window.spots.get(sentence.stems[at], [])
        is_single = len(spots) == len(sentence.spots[sentence.stems[at]]) == 1
        if not is_single or not before or not behind or before & behind:
            continue
        for spot in spots:
            left, right = (_beside(window, spot, step, _WIDE_SIDE) for step in (-1, 1))
            is_passive = [
                "by" in text.words[k : k + 3] for text, k in ((sentence, at), (window, spot))
            ]
            if (
                left.isdisjoint(before)
                and right.isdisjoint(behind)
                and len(before & right) >= _SWAPPED * len(before)
                and len(behind & left) >= _SWAPPED * len(behind)
                and is_passive[0] == is_passive[1]
            ):
                said, found = sentence.phrase(at - 2, at + 2), window.phrase(spot - 2, spot + 2)
                return Conflict("role", said, found)
    return None


def _beside(text: _Text, at: int, step: int, reach: int) -> set[str]:
    """Return the stems of content words of the same sentence before or behind a word."""
    found: set[str] = set()
    for other in range(at + step, at + step * (reach + 1), step):
        if not 0 <= other < len(text.words) or abs(text.place[other] - text.place[at]) > reach:
            break
        if text.is_content(other):
            found.add(text.stems[other])
    return found


# ---- Opposites and negations

_CUE_BEFORE, _CUE_BEHIND = 5, 2
"""Number of words before and behind a word in which a cue can negate it."""


def _opposed(word: str, text: _Text) -> list[int]:
    """Return where a text has an opposite of a word, from the list or by a prefix."""
    opposites = set(_OPPOSITES.get(word, ()))
    if len(word) >= _SHORTEST_PART:
        opposites.add(f"{word}less")
        for prefix in _PREFIXES:
            opposites.add(prefix + word)
            if word.startswith(prefix) and len(word) - len(prefix) >= _SHORTEST_PART:
                opposites.add(word.removeprefix(prefix))
    return sorted(at for other in opposites for at in text.where.get(other, ()))


def _is_denied(text: _Text, at: int) -> bool:
    low, high = max(0, at - _CUE_BEFORE), at + _CUE_BEHIND + 1
    return any(
        word in _DENIALS and abs(text.place[low + k] - text.place[at]) <= _CUE_BEFORE
        for k, word in enumerate(text.words[low:high])
    )


def _antonym_conflicts(sentence: _Text, window: _Text) -> Iterator[Conflict]:
    for at, word in enumerate(sentence.words):
        spots = [
            spot for spot in _opposed(word, window) if window.words[spot] not in sentence.where
        ]
        if not spots:
            continue
        own, _ = _best(
            sentence, (at, at), window, _single(window.spots.get(sentence.stems[at], ()))
        )
        other, place = _best(sentence, (at, at), window, _single(spots))
        if not place or other <= _ANTONYM.least or other <= _ANTONYM.ratio * own:
            continue
        if _is_denied(sentence, at) == _is_denied(window, place[0]):
            yield Conflict("antonym", sentence.shown[at], window.shown[place[0]])


def _cues(text: _Text) -> list[int]:
    """Return the words that negate; "not only", "or not" and "No. 5" do not."""
    return [
        at
        for at, word in enumerate(text.words)
        if word in _NEGATIONS
        and text.follows(at) not in _NO_NEGATION
        and not (word == "not" and at and text.words[at - 1] == "or")
        and not (
            word == "no" and (text.follows(at)[:1].isdigit() or (at and text.shown[at] == "No"))
        )
    ]


_SCOPE, _SCOPE_REACH = 3, 6
"""Number of content words that a cue negates, and the words behind it that hold them."""


def _scope(text: _Text, cue: int) -> list[int]:
    found: list[int] = []
    for at in range(cue + 1, min(cue + 1 + _SCOPE_REACH, len(text.words))):
        if text.place[at] - text.place[at - 1] > 1 or len(found) == _SCOPE:
            break
        if text.is_content(at):
            found.append(at)
    return found


def _negation_conflicts(sentence: _Text, window: _Text) -> Iterator[Conflict]:
    cues = _cues(sentence)
    for cue in cues:
        scope = _scope(sentence, cue)
        best, place, head = 0.0, None, cue
        for at in scope:
            spots = _single(window.spots.get(sentence.stems[at], ()))
            agreement, found = _best(sentence, (at, at), window, spots)
            if found and agreement > best:
                best, place, head = agreement, found[0], at
        # a denial that the sentence repeats elsewhere negates something else
        repeated = {sentence.follows(other) for other in cues} - {sentence.follows(cue)}
        denials = [
            at
            for word in _DENIALS & window.where.keys()
            for at in window.where[word]
            if (
                window.follows(at) not in repeated
                if word in _NEGATIONS
                else word not in sentence.where
            )
        ]
        if place is None:
            is_denied = bool(denials)
        else:
            before = _CUE_BEFORE + head - cue
            is_denied = any(
                -before <= at - place <= _CUE_BEHIND
                and abs(window.place[at] - window.place[place]) <= before
                for at in denials
            ) or any(_opposed(sentence.words[at], window) for at in scope)
        if not is_denied:
            found_text = "" if place is None else window.phrase(place - 1, place + 1)
            yield Conflict("negation", sentence.phrase(cue, head), found_text)
    if not cues:
        yield from _missing_negations(sentence, window)


def _missing_negations(sentence: _Text, window: _Text) -> Iterator[Conflict]:
    """Find what the window negates and the sentence states."""
    for cue in _cues(window):
        for at in _scope(window, cue)[:1]:
            stem = window.stems[at]
            elsewhere = _single(spot for spot in window.spots[stem] if spot != at)
            for own in sentence.spots.get(stem, ()):
                agreement, _ = _best(sentence, (own, own), window, [(at, at)])
                stated, _ = _best(sentence, (own, own), window, elsewhere)
                near = range(max(0, own - _SCOPE), min(len(sentence.words), own + _SCOPE + 1))
                if (
                    agreement > max(_NEGATED.least, _NEGATED.ratio * stated)
                    and not _is_denied(sentence, own)
                    and not any(_opposed(sentence.words[k], window) for k in near)
                ):
                    yield Conflict("negation", sentence.shown[own], window.phrase(cue, at))
                    return


def find_conflicts(sentence: str, window: str, evidence: Sequence[str] = ()) -> list[Conflict]:
    """Return what a sentence says otherwise than its best window of the evidence.

    - number: a number that the evidence lacks, or another number in its place in the window.
      Numbers are exact: "about 1,000" is not 998.
    - date: another month in its place in the window.
    - unit: the number of the window with another unit of the same dimension.
    - name: another name in its place in the window. A name that the evidence lacks, without another
      in its place, is no conflict; it lowers the groundedness.
    - role: two names, or the words around a verb, that have changed places.
    - antonym: an opposite in the place of a word, where neither or both are negated.
    - negation: "not" without a denial in the window, or the other way.

    `evidence` has all texts of the answer. A name or a number counts anywhere in it, unless another
    one fits its place in the window much better. Time grows with the length of the texts.

    Examples
    --------
    >>> find_conflicts("The capital of France is Berlin.", "The capital of France is Paris.")
    [Conflict(kind='name', sentence='Berlin', evidence='Paris')]
    >>> find_conflicts("Dodos could not fly.", "Dodos were unable to fly.")
    []
    """
    own, near = _read(sentence[:MOST_SENTENCE]), _read(window[:MOST_WINDOW])
    role = _role_conflict(own, near)
    return [
        *_value_conflicts(own, near, evidence),
        *_name_conflicts(own, near, evidence),
        *([role] if role else []),
        *_antonym_conflicts(own, near),
        *_negation_conflicts(own, near),
    ]
