"""Documents -> chunks: spans of at most `max_tokens` tokens with exact character offsets.

The module also finds the borders of sections and sentences.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pandas as pd

from rag_eval.core.frames import CHUNKS
from rag_eval.core.loader import Chunker
from rag_eval.corpus.analyzer import ANALYZER, BLANKLESS, count_tokens, token_spans
from rag_eval.corpus.markdown import Heading, headings, line_starts, parse_blocks
from rag_eval.storage.hashing import SHORT, canonical_json, digest, text_hash

# ---- Sections: text under one heading, with ids that people can write into a gold set

_UNDERLINED = re.compile(
    r"^(?P<title>[^\s=>.|+-][^\r\n]{0,79}+)\r?\n(?P<rule>-{3,80}+)[ \t]*+\r?$", re.MULTILINE
)
_NOT_SLUG = re.compile(r"[^\w\s-]+")
_RULE_SLACK = 2
"""Allowed difference of length between a heading and the underline, seen in docstrings."""
_TWO_LINE_ENDS = 4
"""Characters of two line ends, each at most CRLF."""


class Section(NamedTuple):
    """One row of the SECTIONS frame."""

    section_id: str
    title: str
    start: int
    end: int


def slug(heading: str) -> str:
    """Make the anchor of a heading as the usual renderers do: lower case, joined by hyphens.

    Examples
    --------
    >>> slug("See Also"), slug("C++ & Python!"), slug("???")
    ('see-also', 'c-python', 'section')
    """
    return "-".join(_NOT_SLUG.sub("", heading.lower()).split()) or "section"


def _unused(path: str, taken: set[str]) -> str:
    number, candidate = 1, path
    while candidate in taken:
        number += 1
        candidate = f"{path}-{number}"
    taken.add(candidate)
    return candidate


def numpydoc_sections(doc_id: str, title: str, text: str) -> list[Section]:
    """Split a docstring at its underlined headings; text before them is `#summary`."""
    heads = [
        (match["title"].rstrip(), match.start())
        for match in _UNDERLINED.finditer(text)
        if abs(len(match["title"].rstrip()) - len(match["rule"])) <= _RULE_SLACK
        and _follows_blank(text, match.start())
    ]
    first = heads[0][1] if heads else len(text)
    taken: set[str] = set()
    sections = (
        [Section(f"{doc_id}#{_unused('summary', taken)}", title, 0, first)]
        if not heads or text[:first].strip()
        else []
    )
    for (heading, start), end in zip(
        heads, [*(start for _, start in heads), len(text)][1:], strict=True
    ):
        sections.append(Section(f"{doc_id}#{_unused(slug(heading), taken)}", heading, start, end))
    return sections


def _follows_blank(text: str, start: int) -> bool:
    before = text[max(start - _TWO_LINE_ENDS, 0) : start]
    return not before or before.replace("\r", "").endswith("\n\n") or not before.strip()


def markdown_sections(doc_id: str, title: str, text: str, body_start: int = 0) -> list[Section]:
    """Split a Markdown document at the headings, as `heading_sections` does."""
    return heading_sections(doc_id, title, text, headings(text, body_start), body_start)


def page_sections(doc_id: str, title: str, text: str) -> list[Section]:
    """Split a document at its form feeds into pages, the sections `<doc_id>#page-1` and so on."""
    pages = text.split("\f")
    starts = itertools.accumulate(map(len, pages), lambda at, size: at + size + 1, initial=0)
    return [
        Section(f"{doc_id}#page-{number}", title, start, start + len(page))
        for number, (start, page) in enumerate(zip(starts, pages, strict=False), 1)
    ]


def heading_sections(
    doc_id: str, title: str, text: str, heads: Sequence[Heading], body_start: int = 0
) -> list[Section]:
    """Split a document at headings.

    The id of a section is a path of headings, such as `<doc_id>#guide/installing`. Equal paths get
    `-2`, `-3`. Text before the first heading is the section `<doc_id>`. Front matter lies in no
    section.
    """
    first = heads[0].start if heads else len(text)
    sections = (
        [Section(doc_id, title, body_start, first)]
        if not heads or text[body_start:first].strip()
        else []
    )
    taken: set[str] = set()
    above: list[tuple[int, str]] = []  # level and path of each heading above
    ends = [*(head.start for head in heads), len(text)][1:]
    for head, end in zip(heads, ends, strict=True):
        above = [(level, path) for level, path in above if level < head.level]
        path = _unused(f"{above[-1][1]}/{slug(head.title)}" if above else slug(head.title), taken)
        above.append((head.level, path))
        sections.append(Section(f"{doc_id}#{path}", head.title, head.start, end))
    return sections


# ---- Sentences

# Full stops and question marks of scripts that need no space behind them: Armenian, Arabic, Urdu,
# Syriac, N'Ko, Devanagari, Tibetan, Burmese, Ethiopic, Khmer, Mongolian, CJK and others. A danda or
# a wide dot before a digit numbers a verse or is a decimal point.
_STOP = (
    r"(?:[\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0df4\u0f0d\u0f0e\u104b\u1362\u1367\u1368\u17d4"
    r"\u17d5\u1803\u1809\u203c\u203d\u2047-\u2049\u3002\ua4ff\ua92f\ua9c8\ua9c9\uabeb\uff01\uff1f\uff61]"
    r"|[\u0964\u0965\uff0e](?!\d))"
)
# A run of terminal marks counts once (look-behind, possessive), so a long run of dots is read once.
# A semicolon behind a Greek word is a question mark; "TNF-α;" is none.
_END = re.compile(
    r"(?:(?:(?<![.!?…])[.!?…]++|(?<=[\u0370-\u03ff\u1f00-\u1fff]{3})[;\u037e])"
    r"(?:[\"'”’“»«›)\]]|[ \u00a0\u202f]»(?!\w))*+[*_]{0,3}+(?=\s)"
    rf"|{_STOP}++[.!?…]*+[\"”’»」』）】》]*+)\s*+"
    r"|(?:\r\n?+|\n)(?:[^\S\r\n]*+(?:\r\n?+|\n))++\s*+"
)
_NUMBER = r"(?:\d{1,3}(?:\.\d{1,3}){0,4}|[a-z]|[ivx]{2,5})"
_ITEM_NUMBER = re.compile(rf"[\r\n][^\w\r\n]{{0,20}}{_NUMBER}$")
ITEM = (
    rf"(?:(?:[-*+•‣◦●▪■–—→➤✓✔✅❌]|[*_]{{0,3}}(?:{_NUMBER}\.|\(?(?:{_NUMBER}|[A-Z])\)))[^\S\r\n]"
    r"|\||[・①-⑳]|\d{1,3}[、．])"
)
"""Pattern of the bullet or number of a list item, or of the border of a table's row."""
_ITEM_LINE = re.compile(rf"(?:^|(?<=[\r\n]))[^\S\r\n]*+(?:>[^\S\r\n]*+)*+{ITEM}[^\S\r\n]*+")
_HEADING_LINE = re.compile(
    r"^[^\S\r\n]*+(?:#{1,6}[^\S\r\n][^\r\n]*+|\*\*[^*\r\n]++\*\*:?[^\S\r\n]*+$)", re.MULTILINE
)
_RULE_OF_TABLE = re.compile(r"[|:\s-]*")
_BEFORE = re.compile(r"[^\s(\[\"'“‘]*$")
_OPENERS = "\"'“‘«([¿¡"
_LOOK_BACK = 40

_ALWAYS = frozenset(
    """
e.g i.e cf vs viz approx ca resp eq eqs fig figs tab ref refs dr mr mrs ms prof st mt dept univ
gen col sgt capt lt rev hon gov sen rep
""".split()
)
_MAY_END = frozenset("al etc jr sr inc ltd co corp a.m p.m u.s u.k ph.d m.d b.sc m.sc".split())
_BEFORE_NUMBERS = frozenset(
    """
no nos nr p pp vol vols ch chap sec secs ed eds jan feb mar apr jun jul aug sep sept oct nov dec
mon tue wed thu fri sat sun
""".split()
)


def _is_abbreviation(before: str, following: str) -> bool:
    """Tell whether the dot after `before` belongs to the word."""
    word = before.lower()
    if word in _ALWAYS:
        return True
    if word in _MAY_END:
        return not following.isupper()
    if word in _BEFORE_NUMBERS:
        return following.isdigit()
    return len(before) == 1 and before.isupper() and before != "I"  # initials: J. Smith


def borders(text: str, start: int = 0, end: int | None = None) -> list[int]:
    """Return the offsets in text[start:end] where a sentence begins, except the first sentence.

    A sentence ends at a blank line. A sentence also ends at `.`, `!`, `?` or `…` (with closing
    quotes and brackets) before white space, or at a full stop of another script. In the same
    paragraph, a dot of an abbreviation, an initial or a list item's number ends no sentence, and
    no mark before a lower-case letter does.
    """
    end = len(text) if end is None else end
    offsets = []
    for match in _END.finditer(text, start, end):
        at = match.end()
        if at >= end:
            break
        mark = text[match.start()]
        following = text[at : at + 2].lstrip(_OPENERS)[:1]
        if mark in ".．…!?;" and not _PARAGRAPH.search(match[0]):
            if following.islower():
                continue
            low = match.start() - _LOOK_BACK
            before = (
                text[low : match.start()] if low > start else f"\n{text[start : match.start()]}"
            )
            single_dot = mark in ".．" and text[match.start() + 1 : match.start() + 2] != "."
            word = _BEFORE.search(before)
            if single_dot and (
                (word and _is_abbreviation(word[0], following)) or _ITEM_NUMBER.search(before)
            ):
                continue
        offsets.append(at)
    return offsets


def spans(text: str, start: int = 0, end: int | None = None) -> list[tuple[int, int]]:
    """Return the sentences of text[start:end] as (start, end), without white space around them.

    Examples
    --------
    >>> text = "Dr. Smith saw 3.5 kg. Why? See Fig. 2."
    >>> [text[a:b] for a, b in spans(text)]
    ['Dr. Smith saw 3.5 kg.', 'Why?', 'See Fig. 2.']
    """
    end = len(text) if end is None else end
    edges = [start, *borders(text, start, end), end]
    pairs = itertools.pairwise(edges)
    return [trimmed for low, high in pairs if (trimmed := trim(text, low, high))]


def segments(text: str) -> list[tuple[int, int]]:
    r"""Return the segments of an answer, which its citations name by number: (start, end) of each.

    A segment is a sentence, a heading, a list item or a row of a table, without bullet, number or
    border.

    Examples
    --------
    >>> text = "Two facts:\n1. Snow is white. It is cold.\n2. Coal is black"
    >>> [text[a:b] for a, b in segments(text)]
    ['Two facts:', 'Snow is white.', 'It is cold.', 'Coal is black']
    """
    contents = {match.start(): match.end() for match in _ITEM_LINE.finditer(text)}
    heads = (edge for match in _HEADING_LINE.finditer(text) for edge in match.span())
    edges = sorted({0, *borders(text), *contents, *heads, len(text)})
    pairs = ((contents.get(low, low), high) for low, high in itertools.pairwise(edges))
    return [
        trimmed
        for low, high in pairs
        if (trimmed := trim(text, low, high)) and not _RULE_OF_TABLE.fullmatch(text, *trimmed)
    ]


def trim(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Return the span without white space at its ends; None if nothing is left."""
    piece = text[start:end]
    stripped = piece.strip()
    if not stripped:
        return None
    low = start + len(piece) - len(piece.lstrip())
    return low, low + len(stripped)


# ---- Where a text may be cut: levels of borders from strong to weak, by kind of chunker

_NEWLINE = r"(?:\r\n?+|\n)"
_PARAGRAPH = re.compile(rf"{_NEWLINE}(?:[^\S\r\n]*+{_NEWLINE})++")
_BORDER_LINE = re.compile(_NEWLINE)
_SPACE = re.compile(r"\s++")
_PARAMETER = re.compile(rf"^(?=\S[^\r\n]*+{_NEWLINE}[ \t]++\S)", re.MULTILINE)
_PROMPT = re.compile(r"^(?=>>> )", re.MULTILINE)
_DEFINITION_LISTS = frozenset(
    "parameters|other parameters|returns|yields|receives|raises|warns|warnings|attributes|methods"
    "|see also".split("|")
)

Level = Callable[[str, int, int], list[int]]
"""Text, start, end -> rising offsets between start and end at which a piece may begin."""


class Levels(NamedTuple):
    """Border finders from strong to weak, and the offset after a leading heading.

    Only the weakest two finders cut before `content`, so a heading stays with the text below.
    """

    finders: tuple[Level, ...]
    content: int


def _at(pattern: re.Pattern[str]) -> Level:
    def find(text: str, start: int, end: int) -> list[int]:
        return [match.end() for match in pattern.finditer(text, start, end)]

    return find


def _at_offsets(offsets: list[int]) -> Level:
    def find(_: str, start: int, end: int) -> list[int]:
        return [offset for offset in offsets if start < offset < end]

    return find


_PARAGRAPHS, _LINES = _at(_PARAGRAPH), _at(_BORDER_LINE)


def _at_tokens(text: str, start: int, end: int) -> list[int]:
    return [at for at, _ in token_spans(text, start, end)]


_WEAKEST = (_at(_SPACE), _at_tokens)
"""Borders at white space and before tokens, so that any text can be cut small enough."""


def _numpydoc_levels(text: str, start: int, end: int, heading: str) -> Levels:
    """Cut between parameters, then paragraphs, prompts of examples, lines."""
    parameters = (_at(_PARAMETER),) if heading.lower() in _DEFINITION_LISTS else ()
    finders = (*parameters, _PARAGRAPHS, _at(_PROMPT), _LINES, borders, *_WEAKEST)
    head = _UNDERLINED.match(text, start, end)
    return Levels(finders, head.end() if head else start)


def _markdown_levels(text: str, start: int, end: int, _: str) -> Levels:
    """Cut between blocks of the document, then nested blocks, paragraphs, lines, sentences."""
    starts = [start + offset for offset in line_starts(text[start:end])]
    top: dict[int, str] = {}
    nested: set[int] = set()
    for token in parse_blocks(text[start:end]):
        if token.map and token.nesting >= 0 and token.type != "inline":
            at = starts[token.map[0]]
            if token.level == 0:
                top.setdefault(at, token.type)
            else:
                nested.add(at)
    content = start
    if next(iter(top.values()), "") == "heading_open":
        content = next((at for at, kind in top.items() if kind != "heading_open"), end)
    blocks = (_at_offsets(sorted(top)), _at_offsets(sorted(nested)))
    return Levels((*blocks, _PARAGRAPHS, _LINES, borders, *_WEAKEST), content)


def _text_levels(_: str, start: int, __: int, ___: str) -> Levels:
    """Cut between paragraphs, then sentences."""
    return Levels((_PARAGRAPHS, borders, *_WEAKEST), start)


# ---- Chunks

_RUN = re.compile(rf"(?<!\S)\S|[{BLANKLESS}]")

Span = tuple[int, int]
Piece = tuple[int, int, int]
"""Start, end and number of tokens."""

_LEVELS = {"numpydoc": _numpydoc_levels, "markdown": _markdown_levels, "text": _text_levels}
_OVERLAPPING = frozenset({"text", "markdown"})


def _pieces(text: str, start: int, end: int, levels: Levels, limit: int) -> Iterator[Piece]:
    """Cut at the strongest borders that make every piece fit; a piece of one token always fits."""
    tokens = count_tokens(text[start:end])
    if tokens <= limit:
        yield start, end, tokens
        return
    finder, *weaker = levels.finders
    weak = len(levels.finders) <= len(_WEAKEST)
    low = start if weak else max(start, levels.content)
    cuts = [at for at in finder(text, start, end) if low < at < end]
    below = Levels(tuple(weaker), levels.content)
    for low, high in itertools.pairwise([start, *cuts, end]):
        if weaker:
            yield from _pieces(text, low, high, below, limit)
        else:  # a part of a long word begins at its token and holds no other
            yield low, high, count_tokens(text[low:high]) if low == start else 1


def _packed(pieces: Iterator[Piece], limit: int) -> Iterator[Span]:
    """Join neighbours while they fit."""
    first, last, total = next(pieces)
    for start, end, tokens in pieces:
        if total + tokens <= limit:
            last, total = end, total + tokens
        else:
            yield first, last
            first, last, total = start, end, tokens
    yield first, last


def _reach_back(text: str, previous: int, start: int, overlap: int) -> int:
    """Return the start of a chunk that repeats at most `overlap` tokens of the chunk before."""
    tokens = _at_tokens(text, previous, start)
    if not tokens:
        return start
    earliest = tokens[-overlap] if overlap <= len(tokens) else previous
    run = _RUN.search(text, earliest, start)
    return run.start() if run else start


def _section_spans(
    text: str, start: int, end: int, heading: str, chunker: Chunker
) -> Iterator[Span]:
    most = chunker.max_tokens
    if chunker.kind == "sentence":
        for low, high in spans(text, start, end):
            yield from _packed(_pieces(text, low, high, Levels(_WEAKEST, start), most), most)
        return
    if count_tokens(text[start:end]) <= most:
        yield start, end
        return
    overlap = chunker.overlap if chunker.kind in _OVERLAPPING else 0
    limit = most - overlap
    levels = _LEVELS[chunker.kind](text, start, end, heading)
    previous = None
    for low, high in _packed(_pieces(text, start, end, levels, limit), limit):
        reaches = previous is not None and overlap
        yield (_reach_back(text, previous or 0, low, overlap) if reaches else low), high
        previous = low


def _spans(
    text: str, sections: list[tuple[int, int, str, str]], chunker: Chunker, *, passages: bool
) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and section_id of each chunk of a document, without blank chunks."""
    if chunker.kind == "whole":
        # Keep white space, because the hash must equal the hash of text embedded elsewhere.
        whole = sections if passages else [(0, len(text), "", sections[0][3])]
        yield from ((low, high, name) for low, high, _, name in whole if text[low:high].strip())
        return
    for start, end, heading, section_id in sections:
        for low, high in _section_spans(text, start, end, heading, chunker):
            if trimmed := trim(text, low, high):
                yield *trimmed, section_id


def _sections_of(
    documents: pd.DataFrame, sections: pd.DataFrame
) -> dict[str, list[tuple[int, int, str, str]]]:
    """Return doc_id -> sections; a document without sections is one section, named doc_id."""
    by_document: dict[str, list[tuple[int, int, str, str]]] = {}
    columns = ("doc_id", "start", "end", "title", "section_id")
    for doc_id, *section in zip(*(sections[name].tolist() for name in columns), strict=True):
        by_document.setdefault(doc_id, []).append(tuple(section))
    for parts in by_document.values():
        parts.sort()
    for doc_id, text in zip(documents["doc_id"].tolist(), documents["text"].tolist(), strict=True):
        by_document.setdefault(doc_id, [(0, len(text), "", doc_id)])
    return by_document


MAX_TITLE: Final = 1_000
"""Most characters of a title. Each chunk repeats it, so a megabyte would fill the memory."""


def chunk_documents(
    documents: pd.DataFrame, sections: pd.DataFrame, chunker: Chunker
) -> pd.DataFrame:
    """Cut documents (DOCUMENTS, SECTIONS) into CHUNKS, sorted by (section_id, chunk_id).

    `numpydoc`, `markdown` and `text` cut inside sections only. A section that fits is one chunk.
    `text` packs paragraphs, then sentences. `sentence` makes a chunk of each sentence. `whole`
    keeps a document, or each passage of a document of which only passages are known.

    The order of chunks breaks ties everywhere. The chunks cover all characters of a document except
    white space and front matter. A chunk has at most `max_tokens` tokens, except with `whole`. A
    document without text has one empty chunk, so that its title is found; no answer can cite it.
    Each chunk has the first `MAX_TITLE` characters of the title.
    """
    parameters = chunker.model_dump(mode="json")
    by_document = _sections_of(documents, sections)
    rows: list[tuple[Any, ...]] = []
    names = ("doc_id", "title", "text", "content_hash", "kind")
    columns = (documents[name].tolist() for name in names)
    for doc_id, whole_title, text, content_hash, kind in zip(*columns, strict=True):
        title = whole_title[:MAX_TITLE]
        places = list(_spans(text, by_document[doc_id], chunker, passages=kind == "passages"))
        if not places and title.strip():
            places = [(0, 0, by_document[doc_id][0][3])]
        for start, end, section_id in places:
            piece = text[start:end]
            chunk_id = digest([doc_id, content_hash, parameters, start, end])
            indexed = text_hash((title + " " + piece).strip())
            place = (section_id, chunk_id, doc_id, start, end)
            rows.append((*place, count_tokens(piece), title, piece, indexed))
    # Sort in Python, because the string type of the frame must not change the order.
    rows.sort(key=lambda row: row[:2])
    order = "section_id chunk_id doc_id start end tokens title text text_hash".split()
    types = {name: "int64" if CHUNKS.columns[name].kind == "int" else "str" for name in order}
    return CHUNKS.check(pd.DataFrame(rows, columns=order).astype(types))


_HASHED_AT_ONCE = 65_536


def chunks_hash(chunks: pd.DataFrame, chunker: Chunker, analyzer: str = ANALYZER) -> str:
    """Hash the indexed content: the sorted (chunk_id, text_hash) pairs, the chunker and analyzer.

    The usual analyzer adds nothing, because the hash of an index names it already.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pa.large_string()
    ids, hashes = (pa.array(chunks[name], text) for name in ("chunk_id", "text_hash"))
    # JSON of the pairs, whose hexadecimal digits need no escapes.
    marks = [pa.scalar(mark, text) for mark in ('["', '","', '"]', "")]
    pairs = pc.binary_join_element_wise(marks[0], ids, marks[1], hashes, *marks[2:])
    pairs = pairs.take(pc.sort_indices(pairs)) if len(pairs) else pairs
    state = hashlib.sha256(b"[[")
    for start in range(0, len(pairs), _HASHED_AT_ONCE):
        part = pairs.slice(start, _HASHED_AT_ONCE).to_pylist()
        state.update(f"{',' if start else ''}{','.join(part)}".encode())
    rules = [chunker.model_dump(mode="json"), *([] if analyzer == ANALYZER else [analyzer])]
    state.update(f"],{canonical_json(rules)[1:]}".encode())
    return state.hexdigest()[:SHORT]
