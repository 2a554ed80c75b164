"""Find where a sentence says otherwise than the evidence: another number, another name, a negation.

The score of support counts shared words, so "is not" and "is" look alike. Here each detail of a
sentence is held against the place of the evidence whose surrounding words fit best. Only rules and
English word lists decide. Opposites, units, exchanged roles and other languages are not noticed.
"""

import functools
import itertools
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from rag_eval.corpus.analyzer import NUMBER_WORDS, STOP_WORDS, Analyzer, spell_number

_WITHOUT_WEIGHT = """
about above across after again against all along also although always am among any anyone anything
around away back because been before being below between both came can cannot come could did do
does doing done down during each either else enough etc ever every few from further get gets
getting give given go goes going got had has have having he her here hers herself him himself his
how however i its itself just least less let like likely made mainly make makes making many may me
might more most much must my myself neither never next none nor now off often once one only other
others otherwise our ours ourselves out over own per perhaps please quite rather really same see
seem several shall she should since so some someone something still than themselves though through
thus together too toward under until up upon us use used uses using various very via want was we
well were what whatever when where whereas whether which while who whole whom whose why within
without would yet you your yours yourself according regarding overall furthermore moreover
therefore hence
"""
FUNCTION_WORDS = frozenset(_WITHOUT_WEIGHT.split()) - STOP_WORDS
"""English words without weight in a comparison, besides the analyzer's stop words."""
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
_WEIGHTLESS = (STOP_WORDS | FUNCTION_WORDS | _NEGATIONS) - {"only"}
_AFTER_NOT = frozenset("only just merely simply necessarily solely doubt question wonder".split())
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
MOST_SENTENCE, MOST_WINDOW = 2000, 8000
"""Largest number of characters read of a sentence and of a window, so that time stays linear."""
_Span = tuple[int, int]
"""First and last word of a detail."""
_analyzer = functools.cache(Analyzer)
"""Made at the first stem: its packages are not in the core, which reads reports."""


class Conflict(NamedTuple):
    """A detail of a sentence, and what the evidence says in its place; empty if it says nothing."""

    kind: Literal["negation", "number", "name"]
    sentence: str
    evidence: str

    def __str__(self) -> str:
        instead = f'says "{self.evidence}"' if self.evidence else "does not say so"
        return f'"{self.sentence}", the evidence {instead}'


@functools.lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    stem: str = _analyzer().stem(word)
    return stem


class _Word(NamedTuple):
    shown: str
    lower: str
    stem: str
    sentence: int
    place: int
    """Position, which grows by _GAP at the end of a sentence."""
    number: str
    """Value of a number, else empty."""
    is_name: bool
    """Whether it is capitalised inside a sentence, or has capitals or digits inside."""
    has_content: bool


class _Text:
    """The words of a text, and the positions of each stem."""

    def __init__(self, text: str) -> None:
        self.words: list[_Word] = []
        place, sentence, is_start = 0, 0, True
        for match in _TOKEN.finditer(text):
            if match["stop"]:
                place, sentence, is_start = place + _GAP, sentence + 1, True
                continue
            shown = match[0]
            word = shown.lower().replace("’", "'").removesuffix("'s")
            word = "n't" if word.endswith("n't") else word
            number = _VALUES.get(word, "")
            if match["number"]:
                number = spell_number(word.rstrip("stndrh")) + ("th" if match["th"] else "")
            if word in _SCALES and self.words and self.words[-1].number.replace(".", "").isdigit():
                scaled = float(self.words[-1].number) * _SCALES[word]
                self.words[-1] = self.words[-1]._replace(number=spell_number(f"{scaled:.1f}"))
            has_content = word not in _WEIGHTLESS
            inside = shown[1:] if is_start or not shown.isalpha() else shown
            is_odd = inside != inside.lower() or any(map(str.isdigit, shown[is_start:]))
            is_name = is_odd and has_content and not number and len(shown) > 1
            facts = (sentence, place, number, is_name, has_content)
            self.words.append(_Word(shown, word, _stem(word), *facts))
            place, is_start = place + 1, False
        self.spots: dict[str, list[int]] = {}
        for at, entry in enumerate(self.words):
            self.spots.setdefault(entry.stem, []).append(at)

    def phrase(self, first: int, last: int) -> str:
        """Return the words from one to another, as they are spelled."""
        return " ".join(word.shown for word in self.words[max(first, 0) : last + 1])

    def find(self, stem: str) -> list[_Span]:
        """Return the words with a stem."""
        return [(at, at) for at in self.spots.get(stem, ())]

    def content(self, first: int, last: int) -> list[int]:
        """Return the content words from one to another, in the text."""
        inside = range(max(first, 0), min(last + 1, len(self.words)))
        return [at for at in inside if self.words[at].has_content]


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
        (text.spots.get(sentence.words[at].stem, []), 1 / max(low - at, at - high))
        for at in sentence.content(low - _REACH, high + _REACH)
        if not low <= at <= high
    ]
    total = sum(weight for _, weight in around) or 1.0
    best: tuple[float, _Span | None] = -1.0, None
    for first, last in itertools.islice(spans, _MOST_PLACES):
        agreement = 0.0
        for spots, weight in around:
            middle = bisect_left(spots, first)
            near = spots[max(middle - 1, 0) : middle + 2]
            ends = ((at, first if at < first else last) for at in near if not first <= at <= last)
            away = (abs(text.words[at].place - text.words[end].place) for at, end in ends)
            agreement += min(weight, 1 / min(away, default=1e9))
        best = max(best, (agreement / total, (first, last)), key=lambda pair: pair[0])
    return max(best[0], 0.0), best[1]


class _Pair(NamedTuple):
    """A sentence, its window, and all texts of the evidence."""

    sentence: _Text
    window: _Text
    evidence: str

    def replacement(
        self, span: _Span, find: Callable[[_Text], list[_Span]], others: list[_Span], ratio: float
    ) -> tuple[bool, _Span | None]:
        """Tell whether the evidence has a detail, and return what the window has in its place.

        The rest of the evidence is read only where the window lacks the detail or fits another one
        better.
        """
        agreement, place = _best(self.sentence, span, self.window, find(self.window))
        other, rival = _best(self.sentence, span, self.window, others)
        words = self.window.words
        if place and rival and abs(words[place[0]].place - words[rival[0]].place) <= _LISTED:
            return True, None
        if not place or other > ratio * agreement:
            text = _read(self.evidence)
            elsewhere, far = _best(self.sentence, span, text, find(text))
            agreement, place = max(agreement, elsewhere), place or far
        return place is not None, rival if other > max(_LEAST, ratio * agreement) else None


def _number_conflicts(pair: _Pair) -> Iterator[Conflict]:
    sentence, window, _ = pair
    values = {word.number for word in sentence.words}
    others = [(at, at) for at, word in enumerate(window.words) if word.number not in values | {""}]
    for at, value in enumerate(word.number for word in sentence.words):
        if not value:
            continue

        def find(text: _Text, value: str = value) -> list[_Span]:
            return [(at, at) for at, word in enumerate(text.words) if word.number == value]

        exists, rival = pair.replacement((at, at), find, others, _NUMBER)
        if rival or not exists:
            instead = window.phrase(rival[0], rival[0] + 1) if rival else ""
            yield Conflict("number", sentence.phrase(at, at + 1), instead)


def _name_spans(text: _Text, window: _Text) -> list[_Span]:
    """Find runs of names; the first word of a sentence is one if it is a name in the window."""
    spans: list[_Span] = []
    for at, word in enumerate(text.words):
        again = (window.words[place].is_name for place in window.spots.get(word.stem, ()))
        if word.is_name or (word.shown[0].isupper() and any(again)):
            is_run = spans and spans[-1][1] == at - 1 and word.place - text.words[at - 1].place == 1
            spans[-1:] = [(spans[-1][0], at)] if is_run else [*spans[-1:], (at, at)]
    return spans


def _name_conflicts(pair: _Pair) -> Iterator[Conflict]:
    sentence, window, _ = pair
    spans = _name_spans(sentence, window)
    names = {word.stem for low, high in spans for word in sentence.words[low : high + 1]}
    others = [
        (low, high)
        for low, high in _name_spans(window, window)
        if names.isdisjoint(word.stem for word in window.words[low : high + 1])
    ]
    for low, high in spans:
        stems = [word.stem for word in sentence.words[low : high + 1]]

        def find(text: _Text, stems: list[str] = stems) -> list[_Span]:
            return sorted(itertools.chain(*map(text.find, {*stems, "".join(stems)})))

        exists, rival = pair.replacement((low, high), find, others, _NAME)
        if exists and not rival:
            rival = _find_stranger(pair, (low, high), find, others)
        if rival:
            yield Conflict("name", sentence.phrase(low, high), window.phrase(*rival))


_LEAST_OTHERS = 2
"""Least other content words of a sentence with a wrong name."""
_LONGEST = 100
"""Number of words of a sentence that are read on each side of a name."""


def _find_stranger(
    pair: _Pair, span: _Span, find: Callable[[_Text], list[_Span]], others: list[_Span]
) -> _Span | None:
    """Find the name that stands in the place of a name which the evidence has elsewhere.

    A sentence of the window has all other content words of the sentence, and another name in place
    of the name. No sentence of the evidence has the name with all these words.
    """
    around = [*pair.sentence.words[: span[0]], *pair.sentence.words[span[1] + 1 :]]
    stems = {word.stem for word in around if word.has_content}
    if len(stems) < _LEAST_OTHERS:
        return None

    def is_whole(text: _Text, at: int) -> bool:
        near = text.words[max(at - _LONGEST, 0) : at + _LONGEST]
        return stems <= {word.stem for word in near if word.sentence == text.words[at].sentence}

    rival = next((other for other in others if is_whole(pair.window, other[0])), None)
    text = _read(pair.evidence if rival else "")
    return None if any(is_whole(text, at) for at, _ in find(text)) else rival


_DENIED = 0.4
"""Agreement from which a word of the sentence stands in the place of a denied word."""
_BEFORE, _BEHIND, _SCOPE = 5, 2, 6
"""Words before and behind a word in which a cue can negate it; words behind a cue in its scope."""


def _denies(word: _Word) -> bool:
    return word.lower in _DENIALS or word.lower.endswith("less")


def _is_denied(text: _Text, at: int, before: int = _BEFORE) -> bool:
    """Tell whether a word that may deny stands near a word, in the same sentence."""
    near = text.words[max(at - before, 0) : at + _BEHIND + 1]
    return any(_denies(word) and word.sentence == text.words[at].sentence for word in near)


def _negations(text: _Text) -> Iterator[tuple[int, list[int]]]:
    """Yield each word that negates with the first three content words behind it."""
    for at, word in enumerate(text.words):
        is_idle = at and text.words[at - 1].lower == "or"  # as in "whether or not"
        after = text.words[at + 1].lower if at + 1 < len(text.words) else ""
        if word.lower in _NEGATIONS and not is_idle and after not in _AFTER_NOT:
            behind = text.content(at + 1, at + _SCOPE)
            yield at, [place for place in behind if text.words[place].sentence == word.sentence][:3]


def _negation_conflicts(pair: _Pair) -> Iterator[Conflict]:
    """Find what only the sentence negates; without negation in it, what only the window negates."""
    sentence, window, _ = pair
    cues, is_denied = list(_negations(sentence)), any(map(_denies, window.words))
    for cue, scope in cues:
        pairs = ((at, window.find(sentence.words[at].stem)) for at in scope)
        head, spans = next((pair for pair in pairs if pair[1]), (cue, []))
        _, place = _best(sentence, (head, head), window, spans)
        if not (_is_denied(window, place[0], _BEFORE + head - cue) if place else is_denied):
            instead = window.phrase(place[0] - 1, place[0] + 1) if place else ""
            yield Conflict("negation", sentence.phrase(cue, head), instead)
    for _, scope in () if cues else _negations(window):
        for head in scope[:1]:
            spans = window.find(window.words[head].stem)
            for at, _ in sentence.find(window.words[head].stem):
                agreement, place = _best(sentence, (at, at), window, spans)
                if place == (head, head) and agreement > _DENIED and not _is_denied(sentence, at):
                    instead = window.phrase(head - 3, head)
                    yield Conflict("negation", sentence.words[at].shown, instead)
                    return


def find_conflicts(sentence: str, window: str, evidence: str = "") -> list[Conflict]:
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
