"""Documents -> sections, sentences and chunks, all with exact character offsets.

Chunks are spans of at most `max_tokens` tokens.
"""

import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pandas as pd

from rag_eval.core.frames import CHUNKS
from rag_eval.core.loader import Chunker, RawDocument
from rag_eval.corpus.analyzer import ANALYZER, BLANKLESS, count_tokens, token_spans
from rag_eval.storage.hashing import SHORT, canonical_json, digest, text_hash

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

# ---- Headings and front matter

MAX_FRONT_MATTER = 65_536
_LINE = re.compile(r"[^\r\n]*+(?:\r\n?|\n)|[^\r\n]++")
_FRONT = re.compile(r"(?P<fence>---|\+\+\+)[ \t]*(?:\r\n?|\n)")
_RST_RULE = re.compile(r"([!-/:-@\[-`{-~])\1+[ \t]*$")
_UNDERLINED = re.compile(
    r"^(?P<title>[^\s=>.|+-][^\r\n]{0,79}+)\r?\n(?P<rule>-{3,80}+)[ \t]*+\r?$", re.MULTILINE
)
_NOT_SLUG = re.compile(r"[^\w\s-]+")
_RULE_SLACK = 2
"""Allowed difference of length between a heading and the underline, seen in docstrings."""
_TWO_LINE_ENDS = 4
"""Characters of two line ends, each at most CRLF."""


class Heading(NamedTuple):
    """A heading: its level from 1, its plain text and the offset of its line."""

    level: int
    title: str
    start: int


def front_matter(text: str) -> tuple[dict[str, object], int]:
    """Return the YAML (`---`) or TOML (`+++`) front matter of a file, and the end offset.

    A file without front matter gives ({}, 0), even if the file begins with a rule.
    """
    import tomllib

    import yaml

    head = _FRONT.match(text)
    if head is None:
        return {}, 0
    closing = re.compile(rf"^{re.escape(head['fence'])}[ \t]*(?:\r\n?|\n|\Z)", re.MULTILINE)
    end = closing.search(text, head.end(), MAX_FRONT_MATTER)
    if end is None:
        return {}, 0
    block = text[head.end() : end.start()]
    try:
        if head["fence"] == "+++":
            values = tomllib.loads(block.replace("\r\n", "\n"))
        else:
            events = yaml.parse(block, yaml.SafeLoader)
            if any(isinstance(event, yaml.AliasEvent) for event in events):
                return {}, 0  # merged aliases of merged aliases grow without bound
            values = yaml.safe_load(block)
    except (yaml.YAMLError, RecursionError, ValueError):  # a fault of TOML is a ValueError
        return {}, 0
    return (values, end.end()) if isinstance(values, dict) else ({}, 0)


def _line_starts(text: str, start: int = 0) -> list[int]:
    """Return the offset of each line from `start` on, and the end of the text."""
    return [*(match.start() for match in _LINE.finditer(text, start)), len(text)]


@functools.lru_cache(maxsize=4)
def _parser(*disabled: str) -> "MarkdownIt":
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable("table").disable(list(disabled))


def _parse_blocks(text: str) -> "list[Token]":
    """Return the tokens of blocks; parsing no inline text saves most of the time."""
    return _parser("inline", "text_join").parse(text)


def _plain_text(inline: str) -> str:
    """Return the words of inline Markdown without emphasis, links and code marks."""
    tokens = _parser().parseInline(inline)
    children = [child for token in tokens for child in token.children or ()]
    words = (child.content or " " for child in children if child.type != "html_inline")
    return " ".join("".join(words).split())


def headings(text: str, start: int = 0) -> list[Heading]:
    """Return the headings of Markdown, except headings in fences, quotes, lists or HTML."""
    starts = _line_starts(text, start)
    return [
        Heading(int(opening.tag[1:]), _plain_text(inline.content), starts[opening.map[0]])
        for opening, inline in itertools.pairwise(_parse_blocks(text[start:]))
        if opening.type == "heading_open" and opening.level == 0 and opening.map
    ]


def rst_headings(text: str) -> list[Heading]:
    """Return the underlined headings of reStructuredText, perhaps with a line above.

    The first style of rules is level 1, the next new style level 2, and so on.
    """
    starts = _line_starts(text)
    lines = [text[start:end].rstrip("\r\n") for start, end in itertools.pairwise(starts)]
    rules = [match and match[1] for match in map(_RST_RULE.match, lines)]
    heads, levels = [], dict[tuple[str, bool], int]()
    for at, mark in enumerate(rules[1:], 1):
        title = lines[at - 1].rstrip()
        above = at > 1 and rules[at - 2] == mark
        is_first = at == 1 or not lines[at - 2].strip() or above
        if not mark or rules[at - 1] or not is_first or not title.strip():
            continue
        if len(lines[at].rstrip()) >= len(title) and (above or not title[0].isspace()):
            level = levels.setdefault((mark, above), len(levels) + 1)
            heads.append(Heading(level, title.strip(), starts[at - 1 - above]))
    return heads


def _numpydoc_headings(text: str) -> list[Heading]:
    heads = []
    for match in _UNDERLINED.finditer(text):
        title, at = match["title"].rstrip(), match.start()
        before = text[max(at - _TWO_LINE_ENDS, 0) : at].replace("\r", "")
        is_apart = not before.strip() or before.endswith("\n\n")
        if is_apart and abs(len(title) - len(match["rule"])) <= _RULE_SLACK:
            heads.append(Heading(1, title, at))
    return heads


# ---- Sections: text under one heading, with ids that people can write into a gold set


class Section(NamedTuple):
    """One row of the SECTIONS frame."""

    section_id: str
    title: str
    start: int
    end: int


def slug(heading: str) -> str:
    """Make the anchor of a heading as the usual renderers do: lower case, joined by hyphens."""
    return "-".join(_NOT_SLUG.sub("", heading.lower()).split()) or "section"


def document_sections(document: RawDocument, title: str, text: str) -> list[Section]:
    """Split a document, whose title and text may be masked, by its kind."""
    doc_id = document.doc_id
    if document.passages and document.text == text:
        return [Section(section_id, "", start, end) for section_id, start, end in document.passages]
    if document.section_id is None and document.kind == "numpydoc":
        return numpydoc_sections(doc_id, title, text)
    if document.section_id is None and document.kind == "markdown":
        return _markdown_sections(doc_id, title, text, document.body_start)
    if document.section_id is None and document.kind == "rst":
        return _split(doc_id, title, text, rst_headings(text))
    if document.section_id is None and document.kind == "pages":
        ends = [match.start() for match in re.finditer(r"\f|\Z", text)]
        edges = enumerate(zip([0, *(end + 1 for end in ends)], ends, strict=False), 1)
        return [Section(f"{doc_id}#page-{number}", title, *edge) for number, edge in edges]
    return [Section(document.section_id or doc_id, title, 0, len(text))]


def numpydoc_sections(doc_id: str, title: str, text: str) -> list[Section]:
    """Split a docstring at its underlined headings; text before them is `#summary`."""
    return _split(doc_id, title, text, _numpydoc_headings(text), preface="summary")


def _markdown_sections(doc_id: str, title: str, text: str, body_start: int = 0) -> list[Section]:
    """Split a Markdown document at the headings; front matter lies in no section."""
    return _split(doc_id, title, text, headings(text, body_start), body_start)


def _split(
    doc_id: str,
    title: str,
    text: str,
    heads: Sequence[Heading],
    body_start: int = 0,
    *,
    preface: str = "",
) -> list[Section]:
    """Split a document at headings."""
    first = heads[0].start if heads else len(text)
    sections: list[Section] = []
    taken: set[str] = set()
    if not heads or text[body_start:first].strip():
        taken.add(preface)
        name = f"{doc_id}#{preface}" if preface else doc_id
        sections.append(Section(name, title, body_start, first))
    above: list[tuple[int, str]] = []  # level and path of each heading above
    ends = [*(head.start for head in heads), len(text)][1:]
    for head, end in zip(heads, ends, strict=True):
        above = [(level, path) for level, path in above if level < head.level]
        base = f"{above[-1][1]}/{slug(head.title)}" if above else slug(head.title)
        numbered = (f"{base}-{number}" for number in itertools.count(2))
        path = next(it for it in itertools.chain([base], numbered) if it not in taken)
        taken.add(path)
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

    A sentence ends at a blank line, at `.`, `!`, `?` or `…` (with closing quotes and brackets)
    before white space, and at a full stop of another script. In a paragraph, a dot of an
    abbreviation, an initial or a list item's number ends none, and no mark before a lower-case
    letter does.
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
    """Return the sentences of text[start:end] as (start, end), without white space around them."""
    end = len(text) if end is None else end
    edges = [start, *borders(text, start, end), end]
    pairs = itertools.pairwise(edges)
    return [trimmed for low, high in pairs if (trimmed := trim(text, low, high))]


def segments(text: str) -> list[tuple[int, int]]:
    r"""Return the segments of an answer, which its citations name by number: (start, end) of each.

    A segment is a sentence, a heading, a list item or a row of a table, without bullet, number or
    border.
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
_SPACE = re.compile(r"\s++")
_PARAMETER = re.compile(rf"^(?=\S[^\r\n]*+{_NEWLINE}[ \t]++\S)", re.MULTILINE)
_PROMPT = re.compile(r"^(?=>>> )", re.MULTILINE)
_DEFINITION_LISTS = frozenset(
    "parameters|other parameters|returns|yields|receives|raises|warns|warnings|attributes|methods"
    "|see also".split("|")
)

_Finder = Callable[[str, int, int], list[int]]
"""Text, start, end -> rising offsets between start and end at which a piece may begin."""


class _Levels(NamedTuple):
    """Border finders from strong to weak, and the offset after a leading heading."""

    finders: tuple[_Finder, ...]
    content: int


def _at(pattern: re.Pattern[str]) -> _Finder:
    return lambda text, start, end: [match.end() for match in pattern.finditer(text, start, end)]


def _at_tokens(text: str, start: int, end: int) -> list[int]:
    return [at for at, _ in token_spans(text, start, end)]


_PARAGRAPHS, _LINES = _at(_PARAGRAPH), _at(re.compile(_NEWLINE))
_WEAKEST: tuple[_Finder, ...] = (_at(_SPACE), _at_tokens)
"""Borders at white space and before tokens, so that any text can be cut small enough."""


def _find_levels(kind: str, text: str, start: int, end: int, heading: str) -> _Levels:
    """Return the borders of a section by kind of chunker."""
    if kind == "text":
        return _Levels((_PARAGRAPHS, borders, *_WEAKEST), start)
    if kind == "numpydoc":
        parameters = (_at(_PARAMETER),) if heading.lower() in _DEFINITION_LISTS else ()
        head = _UNDERLINED.match(text, start, end)
        finders = (*parameters, _PARAGRAPHS, _at(_PROMPT), _LINES, borders, *_WEAKEST)
        return _Levels(finders, head.end() if head else start)
    starts = [start + offset for offset in _line_starts(text[start:end])]
    top: dict[int, str] = {}
    nested: set[int] = set()
    for token in _parse_blocks(text[start:end]):
        if token.map and token.nesting >= 0 and token.type != "inline":
            at = starts[token.map[0]]
            if token.level == 0:
                top.setdefault(at, token.type)
            else:
                nested.add(at)
    content = start
    if next(iter(top.values()), "") == "heading_open":
        content = next((at for at, block in top.items() if block != "heading_open"), end)

    def within(offsets: Sequence[int]) -> _Finder:
        return lambda _, low, high: [at for at in offsets if low < at < high]

    blocks = (within(sorted(top)), within(sorted(nested)))
    return _Levels((*blocks, _PARAGRAPHS, _LINES, borders, *_WEAKEST), content)


# ---- Chunks

_RUN = re.compile(rf"(?<!\S)\S|[{BLANKLESS}]")

Span = tuple[int, int]
Piece = tuple[int, int, int]
"""Start, end and number of tokens."""

_OVERLAPPING = frozenset({"text", "markdown"})


def _pieces(text: str, start: int, end: int, levels: _Levels, limit: int) -> Iterator[Piece]:
    """Cut at the strongest borders that make every piece fit; a piece of one token always fits."""
    tokens = count_tokens(text[start:end])
    if tokens <= limit:
        yield start, end, tokens
        return
    finder, *weaker = levels.finders
    weak = len(levels.finders) <= len(_WEAKEST)
    low = start if weak else max(start, levels.content)
    cuts = [at for at in finder(text, start, end) if low < at < end]
    below = _Levels(tuple(weaker), levels.content)
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
            yield from _packed(_pieces(text, low, high, _Levels(_WEAKEST, start), most), most)
        return
    if count_tokens(text[start:end]) <= most:
        yield start, end
        return
    overlap = chunker.overlap if chunker.kind in _OVERLAPPING else 0
    limit = most - overlap
    levels = _find_levels(chunker.kind, text, start, end, heading)
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
