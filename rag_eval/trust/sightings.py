"""How chunks restate queries: each pair of query and chunk with its gravest restatement.

Belongs here: the joining of windows of words (`wording`) with the way they stand in their text (`question_forms`). What follows from it
is decided in `restating`.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rag_eval.trust.near_wording import RESEMBLANCE, NearWording
from rag_eval.trust.question_forms import WH_WORDS, Asking, Place, asks, page_of_questions, place
from rag_eval.trust.token_stream import Ints, Streams, Vocabulary, blocks, word_spans
from rag_eval.trust.wording import EXACT, Windows, exact, joined

LONG_WORDS = 6
NOTHING, NAME, HEADING, FIRST_WORDS, RUNNING = range(5)
"""Grades: a heading or title with the words of a query that asks nothing; one that asks; the first words of a text; running text."""

_LEAD_WORDS = 3
_BREAK = "\n\n"


class Sighting(NamedTuple):
    """The gravest way in which one chunk restates one query; a higher grade is graver. A title has start and end -1.

    `typed`: the text begins with the very words of a query that asks, six or more, without a question mark, and goes on.
    """

    query: int
    chunk: int
    start: int
    end: int
    grade: int
    typed: bool


class _Asked(NamedTuple):
    """Distinct queries: their streams, how each asks, and the term of its question word (-1 where it has none)."""

    streams: Streams
    how: list[Asking]
    must: Ints
    near: NearWording
    vocabulary: Vocabulary


class _Text(NamedTuple):
    """One text with what all windows in it ask for: where its words are, whether it is a page of questions."""

    text: str
    spans: list[tuple[int, int]]
    page: bool


def _ask(distinct: Sequence[str]) -> _Asked:
    vocabulary = Vocabulary()
    streams = vocabulary.read(distinct)
    spelled = [[text[low:high].lower() for low, high in word_spans(text)] for text in distinct]
    how = [asks(words, text) for words, text in zip(spelled, distinct, strict=True)]
    must = np.array(
        [
            next((vocabulary.term(word) for word in words if word in WH_WORDS), -1)
            for words in spelled
        ],
        dtype=np.int64,
    )
    near = NearWording(
        streams, vocabulary.n_terms, must, np.array([asking != "" for asking in how], dtype=bool)
    )
    return _Asked(streams, how, must, near, vocabulary)


def sightings(
    distinct: Sequence[str], texts: Sequence[str], titles: Sequence[str], doubtful: list[int]
) -> Iterator[Sighting]:
    """Look through the doubtful chunks block by block, and through their titles once each; one sighting a query and chunk."""
    asked = _ask(distinct)
    seen = set[tuple[int, int]]()
    for part in blocks([texts[chunk] for chunk in doubtful]):
        chunks = doubtful[part]
        its, last = _Text("", [], page=False), -1
        for at, query, windows in _by_pair(_search(asked, [texts[chunk] for chunk in chunks])):
            if at != last:
                text, last = texts[chunks[at]], at
                its = _Text(text, word_spans(text), page_of_questions(text))
            found = _gravest((query, chunks[at]), its, windows, asked)
            if found is not None:
                seen.add((query, chunks[at]))
                yield found
    by_title: dict[str, list[int]] = {}
    for chunk in doubtful:
        by_title.setdefault(titles[chunk], []).append(chunk)
    names = [title for title in by_title if title]
    for part in blocks(names):
        for at, query, windows in _by_pair(_search(asked, names[part])):
            if asked.how[query] or max(last - first for first, last, _ in windows) >= LONG_WORDS:
                grade = HEADING if asked.how[query] else NAME
                yield from (
                    Sighting(query, chunk, -1, -1, grade, typed=False)
                    for chunk in by_title[names[part][at]]
                    if (query, chunk) not in seen
                )


def _search(asked: _Asked, texts: Sequence[str]) -> Windows:
    streams = asked.vocabulary.read(texts)
    return joined([exact(asked.streams, streams), asked.near.windows(streams)])


def _by_pair(windows: Windows) -> Iterator[tuple[int, int, list[tuple[int, int, float]]]]:
    """Text, query and windows of each pair, in their order; of windows that overlap only the likest, then the shortest is kept."""
    windows = windows[
        np.lexsort(
            (
                windows.start,
                windows.end - windows.start,
                -windows.likeness,
                windows.query,
                windows.text,
            )
        )
    ]
    columns = (windows.text, windows.query, windows.start, windows.end, windows.likeness)
    for (at, asked), its in itertools.groupby(
        zip(*(column.tolist() for column in columns), strict=True), key=lambda row: row[:2]
    ):
        kept: list[tuple[int, int, float]] = []
        taken = set[int]()
        for _, _, first, last, likeness in its:
            if taken.isdisjoint(range(first, last)):
                taken.update(range(first, last))
                kept.append((first, last, likeness))
        yield at, asked, sorted(kept)


def _gravest(
    pair: tuple[int, int], its: _Text, windows: list[tuple[int, int, float]], asked: _Asked
) -> Sighting | None:
    """Judge the windows of one pair, one by one."""
    query = pair[0]
    best: Sighting | None = None
    for first, last, likeness in windows:
        start, end = its.spans[first][0], its.spans[last - 1][1]
        word_for_word, lead, long = (
            likeness == EXACT,
            first <= _LEAD_WORDS,
            last - first >= LONG_WORDS,
        )
        if best is not None and best.grade == RUNNING and not lead:
            break  # nothing graver can follow
        stands = place(its.text, start, end)
        if not word_for_word and not _says_the_same(
            query, its.text, its.spans[first:last], stands, asked
        ):
            continue
        if asked.how[query] == "wording" or (asked.how[query] == "mark" and stands.marked):
            grade = HEADING if stands.form == "heading" or (its.page and stands.marked) else RUNNING
        elif stands.form == "heading":
            grade = NAME if long else NOTHING
        else:
            grade = FIRST_WORDS if lead else NOTHING
        typed = (
            grade == RUNNING
            and word_for_word
            and lead
            and long
            and stands.followed
            and not stands.marked
        )
        if grade and (best is None or (grade, typed) > (best.grade, best.typed)):
            best = Sighting(*pair, start, end, grade, typed)
    return best


def _says_the_same(
    query: int, text: str, spans: list[tuple[int, int]], stands: Place, asked: _Asked
) -> bool:
    """Whether a window that resembles a query asks the same: not the end of one paragraph and the beginning of the next, not an answer."""
    if _BREAK in text[spans[0][0] : spans[-1][1]] or not (
        stands.marked or (stands.begins and asked.must[query] >= 0)
    ):
        return False
    bounds = asked.streams.term_bounds
    wanted = asked.streams.terms[bounds[query] : bounds[query + 1]].tolist()
    window = [
        term for low, high in spans if (term := asked.vocabulary.term(text[low:high].lower())) >= 0
    ]
    return _in_order(wanted, window) >= RESEMBLANCE * len(wanted)


def _in_order(one: list[int], other: list[int]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(other) + 1)
    for term in one:
        above = row
        row = [0]
        for at, found in enumerate(other):
            row.append(above[at] + 1 if term == found else max(above[at + 1], row[at]))
    return row[-1]
