"""Find where a sentence says otherwise than the evidence: another number, another name, a negation.

The score of support counts shared words, so "is not" and "is" look alike. Here each detail of a
sentence is held against the place of the evidence whose surrounding words fit best. Only rules and
English word lists decide. Opposites, units, exchanged roles and other languages are not noticed.
"""

import functools
import itertools
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from rag_eval.corpus.analyzer import NUMBER_WORDS, STOP_WORDS, Analyzer, spell_number

Kind = Literal["negation", "number", "name"]


class Conflict(NamedTuple):
    """A detail of a sentence, and what the evidence says in its place; empty if it says nothing."""

    kind: Kind
    sentence: str
    evidence: str


_NEGATIONS = frozenset(
    "not n't cannot never no none nor neither without nobody nothing nowhere unable".split()
)
_DENIALS = _NEGATIONS | frozenset(
    "few little rather instead unlike except rarely seldom prevent prevents prevented refuse "
    "refuses refused refusing deny denies denied denying stop stops stopped avoid avoids avoided "
    "unrelated false wrong impossible free exclude excludes excluded neglect ignore ban banned "
    "forbidden prohibited deficient deficiency non undetectable unlikely independent lack lacks "
    "lacked lacking fails failed fail hardly scarcely barely absence absent inability".split()
)
"""Words of the evidence that may deny what the sentence negates with "not"."""
_AFTER_NOT = frozenset("only just merely simply necessarily solely doubt question wonder".split())
_FUNCTION_WORDS = STOP_WORDS | frozenset(
    "he she his him hers i we our us you your my me its it also however although when while after "
    "before since during some many most both each other another one there these those here who "
    "whom which what where why how than about can could would should may might must do does did "
    "has have had been being were was because so just very from into over under up down out off "
    "again once own same between through until more".split()
)
_ORDINALS = "second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
_VALUES = {word: str(number) for number, word in enumerate(NUMBER_WORDS) if number > 1} | {
    word: f"{number}th" for number, word in enumerate(_ORDINALS, 2)
}
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_TOKEN = re.compile(
    r"(?P<number>(?<![^\W_])(?<![^\W\d_]-)\d+(?:[.,]\d+)*(?P<th>st|nd|rd|th)?s?(?![^\W_]))"
    r"|[^\W_]+(?:['’][^\W_]+)*|(?P<stop>[.;:!?](?=\s))"
)
_GAP = 20
"""Distance that the end of a sentence adds, so that words of other sentences count for little."""
_Span = tuple[int, int]
"""First and last word of a detail."""
_analyzer = functools.cache(Analyzer)
"""Made at the first stem: its packages are not in the core, which reads reports."""


@functools.lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    stem: str = _analyzer().stem(word)
    return stem


class _Text:
    """The words of a text, with an entry in each list for each word.

    `values` holds the numbers, empty for other words, and `sentences` the number of the sentence.
    `spots` lists the words of each stem.
    """

    def __init__(self, text: str) -> None:
        self.shown: list[str] = []
        self.words: list[str] = []
        self.places: list[int] = []
        self.values: list[str] = []
        self.is_name: list[bool] = []
        self.sentences: list[int] = []
        place, is_start, n_stops = 0, True, 0
        for match in _TOKEN.finditer(text):
            if match["stop"]:
                place, is_start, n_stops = place + _GAP, True, n_stops + 1
                continue
            word = match[0].lower().replace("’", "'").removesuffix("'s")
            word = "n't" if word.endswith("n't") else word
            value = _VALUES.get(word, "")
            if match["number"]:
                value = spell_number(word.rstrip("stndrh")) + ("th" if match["th"] else "")
            if word in _SCALES and self.values and self.values[-1].replace(".", "").isdigit():
                self.values[-1] = spell_number(f"{float(self.values[-1]) * _SCALES[word]:.1f}")
            self.shown.append(match[0])
            self.words.append(word)
            self.places.append(place)
            self.values.append(value)
            self.sentences.append(n_stops)
            self.is_name.append(not value and _is_name(match[0], word, is_start=is_start))
            place, is_start = place + 1, False
        self.stems = [_stem(word) for word in self.words]
        self.spots: dict[str, list[int]] = {}
        for at, stem in enumerate(self.stems):
            self.spots.setdefault(stem, []).append(at)

    def phrase(self, first: int, last: int) -> str:
        """Return the words from one to another, as they are spelled."""
        return " ".join(self.shown[max(first, 0) : last + 1])

    def follows(self, at: int) -> str:
        """Return the word behind a word, or an empty text."""
        return self.words[at + 1] if at + 1 < len(self.words) else ""

    def find(self, stems: Iterable[str]) -> list[_Span]:
        """Return the words with one of the stems."""
        return [(at, at) for at in sorted(at for stem in stems for at in self.spots.get(stem, ()))]

    def content(self, first: int, last: int) -> list[int]:
        """Return the content words from one to another, in the text."""
        inside = range(max(first, 0), min(last + 1, len(self.words)))
        return [at for at in inside if _has_content(self.words[at])]


def _has_content(word: str) -> bool:
    return word not in _FUNCTION_WORDS and word not in _NEGATIONS


def _is_name(shown: str, word: str, *, is_start: bool) -> bool:
    """Tell whether a word is capitalised inside a sentence, or has capitals or digits inside."""
    if shown.isalpha() and shown[1:].islower() and (is_start or not shown[0].isupper()):
        return False
    is_odd = any(char.isupper() or char.isdigit() for char in shown[0 if not is_start else 1 :])
    return is_odd and len(shown) > 1 and _has_content(word)


# The sentences of one answer share windows and evidence. More entries would hold whole corpora.
_read = functools.lru_cache(maxsize=128)(_Text)

_REACH = 8
"""Number of words before and behind a detail that are compared."""
_MOST_PLACES = 24
"""Largest number of places in a text that are compared with a detail."""
_LEAST, _NUMBER, _NAME = 0.3, 1.5, 2.0
"""Least agreement of another detail, also as a multiple of that of the sentence's own."""
_LISTED = 4
"""Distance up to which two details of the evidence stand in one list ("in 1983 and 1984")."""


def _best(
    sentence: _Text, span: _Span, text: _Text, spans: Iterable[_Span]
) -> tuple[float, _Span | None]:
    """Return the span of a text whose surroundings agree best with those of a detail.

    A content word at distance d weighs 1 / d. In the text it counts with the smaller of the two
    weights. The agreement is in [0, 1]. Without spans the result is 0 and None.
    """
    low, high = span
    around = [
        (text.spots.get(sentence.stems[at], []), 1 / max(low - at, at - high))
        for at in sentence.content(low - _REACH, high + _REACH)
        if not low <= at <= high
    ]
    total = sum(weight for _, weight in around) or 1.0
    best: tuple[float, _Span | None] = 0.0, None
    for low, high in itertools.islice(spans, _MOST_PLACES):
        agreement = 0.0
        for spots, weight in around:
            middle = bisect_left(spots, low)
            beside = (at for at in spots[max(middle - 1, 0) : middle + 2] if not low <= at <= high)
            away = (abs(text.places[at] - text.places[low if at < low else high]) for at in beside)
            agreement += min(weight, 1 / min(away, default=1e9))
        if best[1] is None or agreement > best[0] * total:
            best = agreement / total, (low, high)
    return best


class _Pair(NamedTuple):
    """A sentence, its window, and all texts of the evidence."""

    sentence: _Text
    window: _Text
    evidence: Sequence[str]

    def replacement(
        self,
        span: _Span,
        find: Callable[[_Text], list[_Span]],
        others: list[_Span],
        ratio: float,
    ) -> tuple[bool, _Span | None]:
        """Tell whether the evidence has a detail, and return what the window has in its place.

        The rest of the evidence is read only where the window lacks the detail or fits another one
        better.
        """
        own, place = _best(self.sentence, span, self.window, find(self.window))
        other, rival = _best(self.sentence, span, self.window, others)
        places, exists = self.window.places, place is not None
        if place and rival and abs(places[place[0]] - places[rival[0]]) <= _LISTED:
            return True, None
        for text in map(_read, self.evidence if not exists or other > ratio * own else ()):
            agreement, elsewhere = _best(self.sentence, span, text, find(text))
            own, exists = max(own, agreement), exists or elsewhere is not None
        return exists, rival if other > max(_LEAST, ratio * own) else None


def _number_conflicts(pair: _Pair) -> Iterator[Conflict]:
    sentence, window, _ = pair

    def find(text: _Text, value: str) -> list[_Span]:
        return [(at, at) for at, other in enumerate(text.values) if other == value]

    others = [
        (at, at) for at, other in enumerate(window.values) if other and other not in sentence.values
    ]
    for at, value in enumerate(sentence.values):
        if value:
            find_value = functools.partial(find, value=value)
            exists, rival = pair.replacement((at, at), find_value, others, _NUMBER)
            if rival or not exists:
                instead = window.phrase(rival[0], rival[0] + 1) if rival else ""
                yield Conflict("number", sentence.phrase(at, at + 1), instead)


def _name_spans(text: _Text, window: _Text) -> list[_Span]:
    """Find runs of names; the first word of a sentence is one if it is a name in the window."""
    spans: list[_Span] = []
    for at, stem in enumerate(text.stems):
        in_window = text.shown[at][0].isupper() and any(
            window.is_name[place] for place in window.spots.get(stem, ())
        )
        if text.is_name[at] or in_window:
            is_run = spans and spans[-1][1] == at - 1 and text.places[at] - text.places[at - 1] == 1
            spans[-1:] = [(spans[-1][0], at)] if is_run else [*spans[-1:], (at, at)]
    return spans


def _find_name(text: _Text, stems: Sequence[str]) -> list[_Span]:
    """Find a word of a name, or its spelling in one word or in two."""
    name = "".join(stems)
    joined = (at for at in range(1, len(text.stems)) if text.stems[at - 1] + text.stems[at] == name)
    return text.find([*stems, name]) or [(at, at) for at in joined]


def _name_conflicts(pair: _Pair) -> Iterator[Conflict]:
    sentence, window, _ = pair
    spans = _name_spans(sentence, window)
    names = {stem for low, high in spans for stem in sentence.stems[low : high + 1]}
    others = [
        (low, high)
        for low, high in _name_spans(window, window)
        if names.isdisjoint(window.stems[low : high + 1])
    ]
    for low, high in spans:
        find = functools.partial(_find_name, stems=sentence.stems[low : high + 1])
        exists, rival = pair.replacement((low, high), find, others, _NAME)
        if exists and not rival:
            rival = _find_stranger(pair, (low, high), find, others)
        if rival:
            yield Conflict("name", sentence.phrase(low, high), window.phrase(*rival))


_LEAST_REST, _LONGEST = 2, 100
"""Least other content words of a sentence with a wrong name; words of a sentence that are read."""


def _find_stranger(
    pair: _Pair, span: _Span, find: Callable[[_Text], list[_Span]], others: list[_Span]
) -> _Span | None:
    """Find the name that stands in the place of a name which the evidence has elsewhere.

    A sentence of the window has all other content words of the sentence, and another name in place
    of the name. No sentence of the evidence has the name with all these words.
    """
    sentence, window, _ = pair
    beside = (at for at in sentence.content(0, len(sentence.words)) if not span[0] <= at <= span[1])
    rest = {sentence.stems[at] for at in beside}
    if len(rest) < _LEAST_REST:
        return None

    def is_whole(text: _Text, place: int) -> bool:
        near = range(max(place - _LONGEST, 0), min(place + _LONGEST, len(text.words)))
        same = {text.stems[at] for at in near if text.sentences[at] == text.sentences[place]}
        return rest <= same

    rival = next((other for other in others if is_whole(window, other[0])), None)
    texts = map(_read, pair.evidence) if rival else ()
    return None if any(is_whole(text, at) for text in texts for at, _ in find(text)) else rival


_DENIED = 0.4
"""Agreement from which a word of the sentence stands in the place of a denied word."""
_BEFORE, _BEHIND, _SCOPE = 5, 2, 6
"""Words before and behind a word in which a cue can negate it; words behind a cue in its scope."""


def _is_near(text: _Text, cues: Iterable[int], at: int, before: int = _BEFORE) -> bool:
    """Tell whether a cue stands near a word, in the same sentence."""
    away = (text.places[at] - text.places[cue] for cue in cues)
    return any(-_BEHIND <= distance <= before for distance in away)


def _cues(text: _Text) -> list[int]:
    """Return the words that negate; "not only", "or not", "No. 5" and a quoted "No" do not."""
    return [
        at
        for at, word in enumerate(text.words)
        if word in _NEGATIONS
        and text.follows(at) not in _AFTER_NOT
        and text.words[at - 1 : at] != ["or"]
        and not (word == "no" and text.follows(at)[:1].isdigit())
        and not (text.shown[at] == "No" and text.places[at] - 1 in text.places[at - 1 : at])
    ]


def _scope(text: _Text, cue: int) -> list[int]:
    """Return the first three content words behind a cue, up to the end of the sentence."""
    behind = text.content(cue + 1, cue + _SCOPE)
    return [at for at in behind if text.places[at] - text.places[cue] <= _SCOPE][:3]


def _negation_conflicts(pair: _Pair) -> Iterator[Conflict]:
    """Find what only the sentence negates; without negation in it, what only the window negates."""
    sentence, window, _ = pair
    denials, own_denials = (
        [at for at, word in enumerate(text.words) if word in _DENIALS or word.endswith("less")]
        for text in (window, sentence)
    )
    for cue in (cues := _cues(sentence)):
        matches = (
            (_best(sentence, (at, at), window, window.find([sentence.stems[at]]))[1], at)
            for at in _scope(sentence, cue)
        )
        place, head = next((match for match in matches if match[0]), (None, cue))
        if not (_is_near(window, denials, place[0], _BEFORE + head - cue) if place else denials):
            instead = window.phrase(place[0] - 1, place[0] + 1) if place else ""
            yield Conflict("negation", sentence.phrase(cue, head), instead)
    heads = [at for cue in _cues(window) for at in _scope(window, cue)[:1]]
    for head in heads if not cues else ():
        spans = window.find([window.stems[head]])
        for span in sentence.find([window.stems[head]]):
            agreement, place = _best(sentence, span, window, spans)
            is_denied = place == (head, head) and agreement > _DENIED
            if is_denied and not _is_near(sentence, own_denials, span[0]):
                yield Conflict("negation", sentence.shown[span[0]], window.phrase(head - 3, head))
                return


MOST_SENTENCE, MOST_WINDOW = 2000, 8000
"""Largest number of characters read of a sentence and of a window, so that time stays linear."""


def find_conflicts(sentence: str, window: str, evidence: Sequence[str] = ()) -> list[Conflict]:
    """Return what a sentence says otherwise than its best window of the evidence.

    - number: a number that the evidence lacks, or another number in its place in the window.
      Numbers are exact: "about 1,000" is not 998.
    - name: another name in its place in the window. A name that the evidence lacks, without another
      in its place, is no conflict; it lowers the score of support.
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
    return [*_number_conflicts(pair), *_name_conflicts(pair), *_negation_conflicts(pair)]
