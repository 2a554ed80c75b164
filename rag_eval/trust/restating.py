"""Find passages that restate a query in order to be retrieved; the check `restates_query`.

A restatement has the exact words of the query in order, four words or more. A window of five terms
or more is also a restatement if the window meets four conditions:

- Its terms have a Jaccard resemblance of 0.8 or more with the terms of the query.
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

A separate line counts as a heading even without the mark of a heading. A question with a question
mark counts as a heading in a text that asks and answers three questions or more. A stricter rule
would not help, because an attacker can write the mark. `repeated` limits the gain of planted
headings. For `repeated`, a heading of a query that asks nothing needs six words or more. Scripts
without spaces are not checked.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, IntArray
from rag_eval.trust.reading import plain, readings
from rag_eval.trust.sentences import WH_WORDS, Place, asks, page_of_questions, place
from rag_eval.trust.wording import (
    EXACT,
    RESEMBLANCE,
    NearWording,
    Vocabulary,
    find_exact,
    join_windows,
    split_blocks,
    word_spans,
)

# ---- Sightings: each pair of query and chunk with its gravest restatement

_LONG_WORDS, _LEAD_WORDS = 6, 3
_NOTHING, _NAME, _HEADING, _FIRST_WORDS, _RUNNING = range(5)
"""Grades of a restatement, rising: none, a heading or title of a query that asks nothing, a heading
or title of a query that asks, the first words of a text, running text."""


class _Sighting(NamedTuple):
    """The gravest restatement of one query in one chunk; a title has start and end -1."""

    query: int
    chunk: int
    start: int
    end: int
    grade: int
    typed: bool
    """The text begins with the exact words of a question, six or more, and has no mark."""


class _Chunk(NamedTuple):
    text: str
    title: str
    doc_id: str
    source: str


class _Text(NamedTuple):
    """A text with the spans of its words, and whether the text is a page of questions."""

    text: str
    spans: list[tuple[int, int]]
    page: bool


class _Queries:
    """Distinct queries, prepared for the search."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.vocabulary = Vocabulary()
        self.streams = self.vocabulary.read(texts)
        words = [[text[low:high].lower() for low, high in word_spans(text)] for text in texts]
        self.how = [asks(each, text) for each, text in zip(words, texts, strict=True)]
        """Whether and how each query asks."""
        asked = ([word for word in each if word in WH_WORDS] for each in words)
        must = [self.vocabulary.term(found[0]) if found else -1 for found in asked]
        self.must: IntArray = np.array(must, dtype=np.int64)
        """Term of each query's question word, -1 for none."""
        wanted = np.array([asking != "" for asking in self.how], dtype=bool)
        self._near = NearWording(self.streams, self.vocabulary.n_terms, self.must, wanted)

    def find(self, texts: Sequence[str]) -> Iterator[tuple[int, int, list[tuple[int, int, float]]]]:
        """Yield text, query and (start, end, likeness) of the windows of each pair, in order.

        Of windows that overlap, the most similar window counts, then the shortest.
        """
        streams = self.vocabulary.read(texts)
        windows = join_windows([find_exact(self.streams, streams), self._near.find(streams)])
        length = windows.end - windows.start
        order = np.lexsort((windows.start, length, -windows.likeness, windows.query, windows.text))
        columns = (windows.text, windows.query, windows.start, windows.end, windows.likeness)
        rows = zip(*(column[order].tolist() for column in columns), strict=True)
        for (at, query), group in itertools.groupby(rows, key=lambda row: row[:2]):
            kept: list[tuple[int, int, float]] = []
            taken = set[int]()
            for _, _, first, last, likeness in group:
                if taken.isdisjoint(range(first, last)):
                    taken.update(range(first, last))
                    kept.append((first, last, likeness))
            yield at, query, sorted(kept)

    def says_the_same(
        self, query: int, text: str, spans: list[tuple[int, int]], stands: Place
    ) -> bool:
        """Tell whether a window that resembles a query asks the same question.

        An answer does not ask the question. A window over two paragraphs does not count.
        """
        if "\n\n" in text[spans[0][0] : spans[-1][1]]:
            return False
        if not (stands.marked or (stands.begins and self.must[query] >= 0)):
            return False
        bounds = self.streams.term_bounds
        wanted = self.streams.terms[bounds[query] : bounds[query + 1]].tolist()
        terms = (self.vocabulary.term(text[low:high].lower()) for low, high in spans)
        in_order = _measure_common([term for term in terms if term >= 0], wanted)
        return in_order >= RESEMBLANCE * len(wanted)


def _measure_common(one: list[int], other: list[int]) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(other) + 1)
    for term in one:
        above, row = row, [0]
        for at, found in enumerate(other):
            row.append(above[at] + 1 if term == found else max(above[at + 1], row[at]))
    return row[-1]


def _judge(
    queries: _Queries,
    query: int,
    chunk: int,
    text: _Text,
    windows: list[tuple[int, int, float]],
) -> _Sighting | None:
    """Return the gravest restatement among the windows of one pair."""
    how = queries.how[query]
    best: _Sighting | None = None
    for first, last, likeness in windows:
        lead, long = first <= _LEAD_WORDS, last - first >= _LONG_WORDS
        if best is not None and best.grade == _RUNNING and not lead:
            break  # no later window can be graver
        spans = text.spans[first:last]
        start, end = spans[0][0], spans[-1][1]
        stands = place(text.text, start, end)
        exact = likeness == EXACT
        if not exact and not queries.says_the_same(query, text.text, spans, stands):
            continue
        heading = stands.form == "heading"
        if how == "wording" or (how == "mark" and stands.marked):
            grade = _HEADING if heading or (text.page and stands.marked) else _RUNNING
        elif heading:
            grade = _NAME if long else _NOTHING
        else:
            grade = _FIRST_WORDS if lead else _NOTHING
        sentence = stands.marked or not stands.followed
        typed = grade == _RUNNING and exact and lead and long and not sentence
        if grade and (best is None or (grade, typed) > (best.grade, best.typed)):
            best = _Sighting(query, chunk, start, end, grade, typed)
    return best


def _find_sightings(queries: _Queries, chunks: Sequence[_Chunk]) -> Iterator[_Sighting]:
    """Search the texts block by block, then the titles."""
    seen = set[tuple[int, int]]()
    for part in split_blocks([chunk.text for chunk in chunks]):
        texts = [chunk.text for chunk in chunks[part]]
        pairs = itertools.groupby(queries.find(texts), key=lambda pair: pair[0])
        for at, group in pairs:
            text = _Text(texts[at], word_spans(texts[at]), page_of_questions(texts[at]))
            for _, query, windows in group:
                found = _judge(queries, query, part.start + at, text, windows)
                if found is not None:
                    seen.add((query, found.chunk))
                    yield found
    yield from _find_titles(queries, chunks, seen)


def _find_titles(
    queries: _Queries, chunks: Sequence[_Chunk], seen: set[tuple[int, int]]
) -> Iterator[_Sighting]:
    """Search each distinct title once; skip the pairs of query and chunk in `seen`."""
    by_title: dict[str, list[int]] = {}
    for row, chunk in enumerate(chunks):
        by_title.setdefault(chunk.title, []).append(row)
    titles = [title for title in by_title if title]
    for part in split_blocks(titles):
        for at, query, windows in queries.find(titles[part]):
            longest = max(last - first for first, last, _ in windows)
            if queries.how[query] or longest >= _LONG_WORDS:
                grade = _HEADING if queries.how[query] else _NAME
                for row in by_title[titles[part][at]]:
                    if (query, row) not in seen:
                        yield _Sighting(query, row, -1, -1, grade, typed=False)


# ---- Restatements

DOCUMENTS = 3
"""Least number of documents of one source that make the restatement of a query `repeated`."""
_COLUMNS = ("query", "chunk", "start", "end", "rule", "severity")


def _apply_table(it: _Sighting, *, known: bool, allowlist: bool, repeated: bool) -> tuple[str, str]:
    """Return rule and severity by the table above, both empty for "nothing".

    `known` says that the source of the chunk is known.
    """
    if repeated:
        blocked = allowlist or known or it.grade > _HEADING
        return "repeated", "blocked" if blocked else "warning"
    if it.grade == _RUNNING and it.typed and not allowlist:
        return "typed_query", "blocked"
    if it.grade == _RUNNING:
        return "running_text", "blocked" if allowlist else "warning"
    if it.grade == _FIRST_WORDS:
        return "first_words", "warning"
    return ("heading", "warning") if it.grade == _HEADING and allowlist else ("", "")


def _find_restated(
    queries: Sequence[str], chunks: Sequence[_Chunk], *, allowlist: bool
) -> pd.DataFrame:
    """Find the chunks whose unchanged texts restate a query; a row for each pair."""
    numbers = {query: row for row, query in enumerate(dict.fromkeys(queries))}
    found = list(_find_sightings(_Queries(list(numbers)), chunks))
    holders: dict[tuple[int, str], set[str]] = {}
    for it in found:
        chunk = chunks[it.chunk]
        holders.setdefault((it.query, chunk.source), set()).add(chunk.doc_id)
    rows: list[list[tuple[int, int, int, str, str]]] = [[] for _ in numbers]
    for it in found:
        source = chunks[it.chunk].source
        repeated = len(holders[it.query, source]) >= DOCUMENTS
        rule, severity = _apply_table(
            it, known=bool(source), allowlist=allowlist, repeated=repeated
        )
        if rule:
            rows[it.query].append((it.chunk, it.start, it.end, rule, severity))
    pairs = [
        (query, *row) for query, text in enumerate(queries) for row in sorted(rows[numbers[text]])
    ]
    kinds = dict.fromkeys(_COLUMNS[:4], "int64") | dict.fromkeys(_COLUMNS[4:], "str")
    return pd.DataFrame(pairs, columns=list(_COLUMNS)).astype(kinds)


# ---- All readings of a passage: unchanged, without markup, and together with its title

_HEAD_CHARACTERS = 2_000
"""Characters of a text that are read together with the title, or twice the longest query."""
_ENDED = re.compile(r"[.!?:…。？！؟][\s*_\"'”’»)\]]*\Z")


def restated_pairs(
    queries: Sequence[str],
    texts: Sequence[str],
    *,
    titles: Sequence[str],
    doc_ids: Sequence[str],
    sources: Sequence[str],
    vouched: BoolArray | None,
) -> pd.DataFrame:
    """Find the chunks [n_chunks] that restate a query in any reading.

    `titles` and `sources` (domains) are empty if unknown. `vouched` marks the chunks whose source
    the allowlist or a signature vouches for; None means that nothing is configured to trust.
    Returns `query`, `chunk`, `start`, `end`, `rule`, `severity`: for each pair the gravest
    restatement. `start` and `end` are characters of the unchanged text. They cover the whole text
    for another reading, and are -1 for a title and for title and text together.

    Examples
    --------
    >>> found = restated_pairs(["how deep is lake blue"], ["how deep is lake blue. It is 9 km."],
    ...     titles=[""], doc_ids=["d"], sources=["x.org"], vouched=np.array([False]))
    >>> found["rule"].tolist()
    ['running_text']
    """
    trusted = np.zeros(len(texts), dtype=bool) if vouched is None else np.asarray(vouched, bool)
    doubtful = np.flatnonzero(~trusted).tolist()
    allowlist = vouched is not None
    chunks = [_Chunk(texts[at], titles[at], doc_ids[at], sources[at]) for at in doubtful]
    owners = list(range(len(chunks)))
    dressed = []
    for owner, chunk in enumerate(chunks):
        both = itertools.zip_longest(readings(chunk.text), readings(chunk.title), fillvalue="")
        for text, title in list(both)[1:]:
            owners.append(owner)
            dressed.append(chunk._replace(text=text, title=title))
    found = _find_restated(queries, [*chunks, *dressed], allowlist=allowlist)
    other = (found["chunk"] >= len(chunks)).to_numpy() & (found["start"] >= 0).to_numpy()
    found["chunk"] = np.array(owners, dtype=np.int64)[found["chunk"].to_numpy()]
    whole = np.array([len(chunk.text) for chunk in chunks], dtype=np.int64)
    found.loc[other, "start"] = 0
    found.loc[other, "end"] = whole[found["chunk"].to_numpy()[other]]
    together = _find_across_titles(queries, chunks, allowlist=allowlist)
    parts = [part for part in (found, together) if len(part)] or [found]
    both_frames = pd.concat(parts, ignore_index=True)
    gravest = both_frames.sort_values("severity", kind="stable")  # "blocked" before "warning"
    pairs = gravest.drop_duplicates(["query", "chunk"])
    pairs = pairs.assign(chunk=np.array(doubtful, dtype=np.int64)[pairs["chunk"].to_numpy()])
    return pairs.sort_values(["query", "chunk"], ignore_index=True)


def _find_across_titles(
    queries: Sequence[str], chunks: Sequence[_Chunk], *, allowlist: bool
) -> pd.DataFrame:
    """Find restatements that begin in a title without an end mark and continue in the text."""
    length = max([_HEAD_CHARACTERS, *(2 * len(query) for query in queries)])
    owners: list[int] = []
    borders: list[int] = []
    joined: list[_Chunk] = []
    for owner, chunk in enumerate(chunks):
        ways = [(plain(chunk.title, gap), plain(chunk.text[:length], gap)) for gap in ("", " ")]
        for title, text in dict.fromkeys(ways) if chunk.title else ():
            name = title.strip()
            if name and not _ENDED.search(name):
                # Give each pair its own source, because `_find_titles` counts equal titles.
                alone = str(len(joined))
                joined.append(_Chunk(f"{name} {text}", "", alone, alone))
                owners.append(owner)
                borders.append(len(name))
    found = _find_restated(queries, joined, allowlist=allowlist)
    at = found["chunk"].to_numpy()
    border = np.array(borders, dtype=np.int64)[at]
    across = (found["start"].to_numpy() < border) & (found["end"].to_numpy() > border)
    owner_of = np.array(owners, dtype=np.int64)[at[across]]
    met: pd.DataFrame = found[across].assign(chunk=owner_of, start=-1, end=-1)
    return met
