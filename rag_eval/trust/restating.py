"""Find passages that restate a query in order to be retrieved; the check `restates_query`.

A restatement has the exact words of the query in order, four words or more. A window of five terms
or more is also a restatement if the window meets four conditions:

- Its distinct terms have a Jaccard resemblance of 0.8 or more with those of the query.
- It has the question word of the query.
- It has four fifths of the query's terms in order.
- It begins a sentence or ends with a question mark.

So "the bridge is located" answers "where is the bridge located" and does not restate the query.
Sources that the allowlist or a signature vouches for are not checked. This table judges the others:

===========================  =======================  ============================================
place of the restatement     with an allowlist        if nothing is configured to trust
===========================  =======================  ============================================
running text, if the query   blocked                  warning; blocked (`typed_query`) if the text
asks something               (`running_text`)         begins with six or more exact words without
                                                      a question mark
heading, FAQ label or title  warning (`heading`)      nothing
first words, if the query    warning                  warning
asks nothing                 (`first_words`)
other places, if the query   nothing: honest texts    nothing
asks nothing                 have such words too
any of these in 3 documents  blocked (`repeated`)     blocked; headings of unknown sources: warning
of one source
===========================  =======================  ============================================

A warning blocks if the chunk has another warning about itself, such as an unlisted domain.
A separate line counts as a heading even without the mark of a heading. A question with a question
mark counts as a heading in a text that asks and answers three questions or more. A stricter rule
would not help, because an attacker can write the mark. `repeated` limits the gain of planted
headings. For `repeated`, a heading of a query that asks nothing needs six words or more. Scripts
without spaces and queries of stop words alone are not checked.
"""

import functools
import itertools
import math
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray
from rag_eval.corpus.analyzer import WORD, Analyzer
from rag_eval.trust.reading import plain, readings
from rag_eval.trust.sentences import WH_WORDS, Asking, asks, page_of_questions, place

LEAST_WORDS, LEAST_TERMS = 4, 5
"""Least words of a query that is found exactly, and least terms of one that is found nearly."""
RESEMBLANCE = 0.8
_EXACT = 2.0
_TOLERANCE = 1e-9

# ---- Words and terms of queries and texts


class _Vocabulary:
    """Numbers the stems of words; stop words and the rest of a possessive have none."""

    def __init__(self) -> None:
        self._analyzer = Analyzer()
        self._terms: dict[str, int | None] = {"s": None}

    def terms_of(self, words: Iterable[str]) -> list[int | None]:
        """Return the term of each word in lower case, None for a stop word."""
        words = list(words)
        for word in dict.fromkeys(words):
            if word not in self._terms:
                term = self._analyzer.learn(word)
                self._terms[word] = None if term < 0 else term
        return [self._terms[word] for word in words]


class _Query(NamedTuple):
    """A query; `terms` are its distinct terms, `ordered` all of them in order."""

    words: list[str]
    ordered: list[int]
    terms: frozenset[int]
    how: Asking
    must: int | None
    """Term of the question word, which a window must hold."""

    @property
    def nearly(self) -> bool:
        """Whether windows that only resemble the query count."""
        return self.how != "" and len(self.terms) >= LEAST_TERMS

    @property
    def need(self) -> int:
        """Number of terms that a text with a window must hold; 0 if no text can have one."""
        if self.nearly:
            return math.ceil(RESEMBLANCE * len(self.terms) - _TOLERANCE)
        return len(self.terms) if len(self.words) >= LEAST_WORDS else 0


def _read_query(text: str, vocabulary: _Vocabulary) -> _Query:
    words = [word.lower() for word in WORD.findall(text)]
    ordered = [term for term in vocabulary.terms_of(words) if term is not None]
    asked = vocabulary.terms_of(word for word in words if word in WH_WORDS)
    must = asked[0] if asked else None
    return _Query(words, ordered, frozenset(ordered), asks(words, text), must)


class _Text:
    """A text that may restate a query, with its words and terms."""

    def __init__(self, text: str, vocabulary: _Vocabulary) -> None:
        self.text = text
        self.spans = [match.span() for match in WORD.finditer(text)]
        self.words = [text[low:high].lower() for low, high in self.spans]
        terms = vocabulary.terms_of(self.words)
        self.word_of = [at for at, term in enumerate(terms) if term is not None]
        self.terms = np.array([term for term in terms if term is not None], dtype=np.int64)

    @functools.cached_property
    def joined(self) -> str:
        """The words between blanks."""
        return f" {' '.join(self.words)} "

    @functools.cached_property
    def is_page_of_questions(self) -> bool:
        """Whether the text asks and answers three questions or more."""
        return page_of_questions(self.text)


_BLOCK = 2_000
"""Number of texts that are searched together, to bound the memory."""


def _find_candidates(
    queries: Sequence[_Query], texts: Sequence[str], vocabulary: _Vocabulary
) -> Iterator[tuple[int, list[int]]]:
    """Yield each text, and the queries of which the text holds as many terms as a window needs.

    This is prefix filtering (Chaudhuri, Ganti & Kaushik, ICDE 2006). A text with `need` of the
    `count` terms of a query has at least one of the `count - need + 1` rarest terms.
    """
    for low in range(0, len(texts), _BLOCK):
        block = texts[low : low + _BLOCK]
        held = [
            set(vocabulary.terms_of({word.lower() for word in WORD.findall(text)}))
            for text in block
        ]
        frequency = Counter(itertools.chain.from_iterable(held))
        by_term: dict[int | None, list[int]] = {}
        for row, query in enumerate(queries):
            rarest = sorted(query.terms, key=lambda term: (frequency[term], term))
            for term in rarest[: len(rarest) - query.need + 1] if query.need else ():
                by_term.setdefault(term, []).append(row)
        for at, terms in enumerate(held, start=low):
            near = {row for term in terms for row in by_term.get(term, ())}
            found = [row for row in near if len(queries[row].terms & terms) >= queries[row].need]
            if found:
                yield at, sorted(found)


# ---- Windows of words that are those of a query, or resemble them


class _Window(NamedTuple):
    """Words [first, last) of a text; `likeness` is a Jaccard resemblance or `_EXACT`."""

    likeness: float
    first: int
    last: int


def _find_exact(query: _Query, text: _Text) -> Iterator[_Window]:
    if len(query.words) < LEAST_WORDS:
        return
    wanted = f" {' '.join(query.words)} "
    counted = word = 0
    at = text.joined.find(wanted)
    while at >= 0:
        word += text.joined.count(" ", counted, at)
        yield _Window(_EXACT, word, word + len(query.words))
        counted = at
        at = text.joined.find(wanted, at + len(wanted) - 1)


def _find_near(query: _Query, text: _Text) -> Iterator[_Window]:
    """Find the shortest windows that reach `RESEMBLANCE`, for each number of shared terms.

    The first and the last term of such a window occur once in it. So each term of the text lies in
    at most `count` windows of each number, and the cost is linear in the length of the text.
    """
    count, terms = len(query.terms), text.terms
    begin = np.flatnonzero(np.isin(terms, list(query.terms)))
    places = [np.flatnonzero(terms == term) for term in query.terms]
    ends = np.sort([np.append(at, len(terms))[np.searchsorted(at, begin)] for at in places], axis=0)
    for shared in range(query.need, count + 1):
        # A window that ends where the next one ends is longer and shares the same terms.
        rows = np.flatnonzero(np.diff(ends[shared - 1], append=len(terms)))
        for low, last in zip(begin[rows].tolist(), ends[shared - 1, rows].tolist(), strict=True):
            window = set(terms[low : last + 1].tolist())
            likeness = shared / len(window | query.terms)
            if likeness >= RESEMBLANCE - _TOLERANCE and query.must in {None, *window}:
                yield _Window(likeness, text.word_of[low], text.word_of[last] + 1)


def _find_windows(query: _Query, text: _Text) -> list[_Window]:
    """Return the windows, which may overlap: the most similar first, then the shortest."""
    found = [*_find_exact(query, text), *(_find_near(query, text) if query.nearly else ())]
    return sorted(found, key=lambda one: (-one.likeness, one.last - one.first, one.first))


def _count_common(one: list[int], other: list[int]) -> int:
    """Return the length of the longest common subsequence, by Hyyrö's bit-parallel method (2004).

    A cleared bit of `row` marks a term of `other` that makes the subsequence longer.
    """
    places: dict[int, int] = defaultdict(int)
    for at, term in enumerate(other):
        places[term] |= 1 << at
    row = full = (1 << len(other)) - 1
    for term in one:
        hit = row & places[term]
        row = ((row + hit) | (row - hit)) & full
    return (full ^ row).bit_count()


# ---- Sightings: each pair of query and chunk, with the gravest restatement in each reading

_LONG_WORDS, _LEAD_WORDS = 6, 3
_NOTHING, _NAME, HEADING, _FIRST_WORDS, _RUNNING = range(5)
"""Grades of a restatement, rising: none, a heading or title of a query that asks nothing, a heading
or title of a query that asks, the first words of a text, running text."""


class _Grade(NamedTuple):
    grade: int
    typed: bool = False
    """The text begins with the exact words of a question, six or more, and has no mark."""


def _grade_window(query: _Query, text: _Text, window: _Window) -> _Grade:
    likeness, first, last = window
    lead, long = first <= _LEAD_WORDS, last - first >= _LONG_WORDS
    start, end = text.spans[first][0], text.spans[last - 1][1]
    if likeness < _EXACT:
        terms = text.terms[bisect_left(text.word_of, first) : bisect_left(text.word_of, last)]
        in_order = _count_common(terms.tolist(), query.ordered) >= RESEMBLANCE * len(query.ordered)
        # A window over two paragraphs does not count.
        if not in_order or "\n\n" in text.text[start:end]:
            return _Grade(_NOTHING)
    stands = place(text.text, start, end)
    # An answer does not ask the question.
    opens = stands.marked or (stands.begins and query.must is not None)
    if likeness < _EXACT and not opens:
        return _Grade(_NOTHING)
    heading = stands.form == "heading"
    if query.how == "wording" or (query.how == "mark" and stands.marked):
        heading = heading or (stands.marked and text.is_page_of_questions)
        grade = HEADING if heading else _RUNNING
    elif heading:
        grade = _NAME if long else _NOTHING
    else:
        grade = _FIRST_WORDS if lead else _NOTHING
    is_sentence = stands.marked or not stands.followed
    typed = grade == _RUNNING and likeness == _EXACT and lead and long and not is_sentence
    return _Grade(grade, typed)


class _Piece(NamedTuple):
    """A reading of a chunk's text or title, or the end of the title joined to the text."""

    chunk: int
    text: str
    form: Literal["text", "title", "joined"]
    border: int = 0
    """Length of the title in a joined text."""


_ENDED = re.compile(r"[.!?:…。？！؟][\s*_\"'”’»)\]]*\Z")


def _list_pieces(chunk: int, text: str, title: str, head: int) -> Iterator[_Piece]:
    """Yield all readings of a chunk; `head` is the length of the text that is joined to a title."""
    for read in readings(text):
        yield _Piece(chunk, read, "text")
    if not title:
        return
    for read in readings(title):
        yield _Piece(chunk, read, "title")
    ways = [(plain(title, gap).strip(), plain(text[:head], gap)) for gap in ("", " ")]
    for name, beginning in dict.fromkeys(ways):
        if name and not _ENDED.search(name):
            yield _Piece(chunk, f"{name} {beginning}", "joined", len(name))


def _judge(query: _Query, piece: _Piece, text: _Text) -> _Grade:
    """Return the gravest restatement of a query in a piece.

    Of overlapping windows, only the most similar one with a grade counts. A window without a grade
    hides no other window.
    """
    windows = _find_windows(query, text)
    if piece.form == "title":
        long = any(one.last - one.first >= _LONG_WORDS for one in windows)
        name = _NAME if long else _NOTHING
        return _Grade(HEADING if query.how and windows else name)
    worst, taken = _Grade(_NOTHING), list[tuple[int, ...]]()
    for window in windows:
        _, first, last = window
        # `taken` is sorted and disjoint: only its last interval before `last` can overlap.
        at = bisect_left(taken, (last,))
        if at and taken[at - 1][1] > first:
            continue
        grade = _grade_window(query, text, window)
        if not grade.grade:
            continue
        taken.insert(at, (first, last))
        if piece.form != "joined" or text.spans[first][0] < piece.border < text.spans[last - 1][1]:
            worst = max(worst, grade)
    return worst


# ---- Restatements

DOCUMENTS = 3
"""Least number of documents of one source that make the restatement of a query `repeated`."""
_HEAD_CHARACTERS = 2_000
"""Characters of a text that are read together with the title, or twice the longest query."""
_COLUMNS = {"query": "int64", "chunk": "int64", "rule": "str", "severity": "str"}


def _apply_table(it: _Grade, *, known: bool, allowlist: bool, repeated: bool) -> tuple[str, str]:
    """Return rule and severity by the table above, both empty for "nothing".

    `known` says that the source of the chunk is known.
    """
    if repeated:
        blocked = allowlist or known or it.grade > HEADING
        return "repeated", "blocked" if blocked else "warning"
    if it.grade == _RUNNING and it.typed and not allowlist:
        return "typed_query", "blocked"
    if it.grade == _RUNNING:
        return "running_text", "blocked" if allowlist else "warning"
    if it.grade == _FIRST_WORDS:
        return "first_words", "warning"
    return ("heading", "warning") if it.grade == HEADING and allowlist else ("", "")


def restated_pairs(
    queries: Sequence[str],
    texts: Sequence[str],
    *,
    titles: Sequence[str],
    doc_ids: Sequence[str],
    sources: Sequence[str],
    vouched: BoolArray | None,
    warned: BoolArray | None = None,
) -> pd.DataFrame:
    """Find the chunks [n_chunks] that restate a query in any reading.

    `titles` and `sources` (domains) are empty if unknown. `vouched` marks the chunks whose source
    the allowlist or a signature vouches for; None means that nothing is configured to trust.
    `warned` marks the chunks with a warning about themselves, default none.
    Returns `query`, `chunk`, `rule`, `severity`: for each pair the gravest restatement.

    Examples
    --------
    >>> found = restated_pairs(["how deep is lake blue"], ["how deep is lake blue. It is 9 km."],
    ...     titles=[""], doc_ids=["d"], sources=["x.org"], vouched=np.array([False]))
    >>> found["rule"].tolist()
    ['running_text']
    """
    seen = find_sightings(queries, texts, titles=titles, vouched=vouched)
    owners = {"doc_ids": doc_ids, "sources": sources}
    return judge_sightings(queries, seen, **owners, vouched=vouched, warned=warned)


_SIGHTING = {"query": "int64", "chunk": "int64", "grade": "int64", "typed": "bool"}


def find_sightings(
    queries: Sequence[str],
    texts: Sequence[str],
    *,
    titles: Sequence[str],
    vouched: BoolArray | None,
) -> pd.DataFrame:
    """Find where chunks restate a query; arguments as in `restated_pairs`.

    The sightings of a chunk depend on no other chunk. Returns `query` (number among the distinct
    queries), `chunk`, `grade` and `typed`, in the order of the chunks.
    """
    vocabulary = _Vocabulary()
    asked = [_read_query(query, vocabulary) for query in dict.fromkeys(queries)]
    head = max([_HEAD_CHARACTERS, *(2 * len(query) for query in queries)])
    doubtful = range(len(texts)) if vouched is None else np.flatnonzero(~vouched).tolist()
    found: list[tuple[int, int, int, bool]] = []
    for start in range(0, len(doubtful), _BLOCK):
        block = doubtful[start : start + _BLOCK]
        pieces = [
            piece for row in block for piece in _list_pieces(row, texts[row], titles[row], head)
        ]
        for at, rows in _find_candidates(asked, [piece.text for piece in pieces], vocabulary):
            text, chunk = _Text(pieces[at].text, vocabulary), pieces[at].chunk
            worst = ((row, _judge(asked[row], pieces[at], text)) for row in rows)
            found += [(row, chunk, *one) for row, one in worst if one.grade]
    return pd.DataFrame(found, columns=list(_SIGHTING)).astype(_SIGHTING)


def judge_sightings(
    queries: Sequence[str],
    sightings: pd.DataFrame,
    *,
    doc_ids: Sequence[str],
    sources: Sequence[str],
    vouched: BoolArray | None,
    warned: BoolArray | None = None,
) -> pd.DataFrame:
    """Judge the sightings of all chunks; arguments and result as in `restated_pairs`."""
    numbers = {query: row for row, query in enumerate(dict.fromkeys(queries))}
    seen = list(sightings.itertuples(index=False, name=None))
    holders: dict[tuple[int, str], set[str]] = defaultdict(set)
    for row, chunk, *_ in seen:
        holders[row, sources[chunk]].add(doc_ids[chunk])
    gravest: dict[int, dict[int, tuple[str, str]]] = defaultdict(dict)
    for row, chunk, grade, typed in seen:
        source = sources[chunk]
        rule, severity = _apply_table(
            _Grade(grade, typed),
            known=bool(source),
            allowlist=vouched is not None,
            repeated=len(holders[row, source]) >= DOCUMENTS,
        )
        if severity == "warning" and warned is not None and warned[chunk]:
            severity = "blocked"
        _, before = gravest[row].get(chunk, ("", ""))
        if severity and (not before or (before, severity) == ("warning", "blocked")):
            gravest[row][chunk] = (rule, severity)
    pairs = [
        (query, chunk, *found)
        for query, text in enumerate(queries)
        for chunk, found in sorted(gravest[numbers[text]].items())
    ]
    return pd.DataFrame(pairs, columns=list(_COLUMNS)).astype(_COLUMNS)
