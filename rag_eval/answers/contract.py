"""Hold a reply against its evidence: provenance, quotes, sections, and the two path gates.

A reply that breaks a rule fails. `paths.json` has the word lists that tell paths from words.
"""

import bisect
import dataclasses
import itertools
import json
import re
from collections.abc import Collection, Iterable, Sequence
from importlib.resources import files

from rag_eval.answers.evidence import cite_token, line_starts
from rag_eval.answers.replies import (
    Citation,
    CitedSnippet,
    Fault,
    Place,
    has_content,
    read_token,
    visible,
)
from rag_eval.core.errors import quoted
from rag_eval.core.types import CitedSpan, Evidence
from rag_eval.corpus.chunking import segments, trim

MAX_PATHS = 500
MIN_QUOTE = 2
"""Least number of letters and digits of a quote, because any text has a shorter quote."""
MAX_NAMED = 5
"""Most paths or sections that one message names; the message counts the others."""

# match a run of blanks only from its beginning, so that long runs take linear time
_MARK = re.compile(r"(?<![ \t])[ \t]*+\[([^\[\]\n]{1,2000}:[0-9]{1,9}(?:-[0-9]{1,9})?)\]")


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """Result of checking a reply against the evidence.

    `text` has no inline `[token]` marks. `citations` holds every citation once; `evidence` is -1
    for a citation outside the evidence. `faults` stand in the order of the gates.
    """

    text: str
    citations: tuple[CitedSpan, ...]
    faults: tuple[Fault, ...]


def join_named(values: Iterable[str]) -> str:
    """List untrusted texts for a message, each once, and count those after MAX_NAMED."""
    listed = [quoted(value, 200) for value in dict.fromkeys(values)]
    more = f" and {len(listed) - MAX_NAMED} more" if len(listed) > MAX_NAMED else ""
    return ", ".join(listed[:MAX_NAMED]) + more


# ---- Places of citations


def _complete(cited: CitedSnippet, evidence: Sequence[Evidence]) -> Citation | Fault:
    """Complete a citation from the first evidence that has all its stated fields.

    `unknown_snippet`: no evidence has the snippet. `wrong_field`: the evidence contradicts another
    field. `bad_offsets`: the offsets are blank or lie elsewhere.
    """
    left, code = list(enumerate(evidence)), "unknown_snippet"
    for name in ("snippet_id", "section_id", "source_url"):
        if (value := getattr(cited, name)) is not None:
            left = [(number, item) for number, item in left if getattr(item.chunk, name) == value]
            if not left:
                return Fault(code, f"the evidence has no such {name}: {quoted(value, 200)}.")
            code = "wrong_field"
    if (stated := cited.offsets) is not None:
        left = [
            (number, item)
            for number, item in left
            if item.chunk.offsets.start <= stated.start < stated.end <= item.chunk.offsets.end
        ]
        if not left:
            message = f"{stated.start} to {stated.end} does not lie in the cited evidence."
            return Fault("bad_offsets", message)
    number, item = left[0]
    offsets, text = stated or item.chunk.offsets, item.chunk.text
    low, high = (at - item.chunk.offsets.start for at in (offsets.start, offsets.end))
    place = trim(text, low, high)
    if place is None:
        return Fault("bad_offsets", f"{offsets.start} to {offsets.end} is blank.")
    first = item.first_line + text.count("\n", 0, low)
    last = first + text.count("\n", low, high - 1)
    return Citation(item.chunk.doc_id, first, last, cited.quote.strip(), Place(number, *place))


def _find_lines(item: Evidence, first: int, last: int) -> tuple[int, int] | None:
    """Return where lines of the evidence stand in its text, trimmed; None for blank lines."""
    starts = [*line_starts(item.chunk.text).tolist(), len(item.chunk.text)]
    low, after = starts[first - item.first_line], last - item.first_line + 1
    return trim(item.chunk.text, low, starts[min(after, len(starts) - 1)])


def place_citation(
    citation: Citation, segment: int, evidence: Sequence[Evidence]
) -> tuple[CitedSpan, Fault | None]:
    """Find the first evidence with the lines of a citation, and with its quote if any."""
    doc, quote = citation.doc_id, citation.quote
    token = quoted(cite_token(*citation.lines), 200)
    inside = [(number, item) for number, item in enumerate(evidence) if citation.lies_in(item)]
    if not inside:
        fault = Fault("unknown_snippet", f"{token} is not in the evidence.")
        return CitedSpan(segment, -1, doc, -1, -1, quote), fault
    filled = [
        (number, item.chunk, lines)
        for number, item in inside
        if (lines := _find_lines(item, citation.first, citation.last))
    ]
    if (place := citation.place) is not None:
        filled = [(place.evidence, evidence[place.evidence].chunk, (place.start, place.end))]
    if not filled:
        fault = Fault("bad_offsets", f"{token} cites blank lines.")
        return CitedSpan(segment, inside[0][0], doc, -1, -1, quote), fault
    number, chunk, (low, high) = filled[0]
    base = chunk.offsets.start
    whole = CitedSpan(segment, number, doc, base + low, base + high, quote)
    if not quote:
        return whole, None
    if sum(map(str.isalnum, visible(citation.quote))) < MIN_QUOTE:
        message = f"a quote has {MIN_QUOTE} letters or digits at least."
        return whole, Fault("quote_mismatch", message)
    wanted = re.compile(r"\s++".join(map(re.escape, quote.split())))  # all white space is equal
    for number, chunk, lines in filled:
        if match := wanted.search(chunk.text, *lines):
            low, high = (chunk.offsets.start + at for at in match.span())
            return CitedSpan(segment, number, doc, low, high, match[0]), None
    return whole, Fault("quote_mismatch", f"{token} does not say what is quoted.")


def _remove_marks(body: str) -> tuple[str, list[tuple[int, Citation]]]:
    """Take the inline `[token]` marks out of a body.

    Returns the text, and each mark with the number (from 0) of the sentence around or before it.
    """
    pieces: list[str] = []
    marks: list[tuple[int, Citation]] = []
    at = length = 0
    for match in _MARK.finditer(body):
        if citation := read_token(match[1]):
            pieces.append(body[at : match.start()])
            length += match.start() - at
            marks.append((length, citation))
            at = match.end()
    text = "".join([*pieces, body[at:]])
    starts = [start for start, _ in segments(text)]
    # a citation mark belongs to the last sentence that begins before the mark
    return text.strip(), [
        (max(0, bisect.bisect_left(starts, place) - 1), citation) for place, citation in marks
    ]


def mark_again(text: str, body: str) -> str:
    """Put the inline marks of a body behind the same sentences of another text."""
    ends = [end for _, end in segments(text)]
    for segment, citation in reversed(_remove_marks(body)[1]):
        at = ends[segment]
        text = f"{text[:at]} [{cite_token(*citation.lines)}]{text[at:]}"
    return text


def unmarked_segment(text: str) -> int:
    """Return the segment of a citation without a mark: the only sentence, else -1, the whole text.

    Examples
    --------
    >>> unmarked_segment("Terns fly far."), unmarked_segment("Terns fly far. They eat fish.")
    (0, -1)
    """
    return 0 if len(segments(text)) == 1 else -1


def _find_crossing(
    placed: Sequence[CitedSpan], evidence: Sequence[Evidence], allowed: Collection[tuple[str, str]]
) -> list[Fault]:
    """Find a segment that cites two sections which are not whitelisted together.

    A segment is a sentence, or the whole answer for citations without a mark.
    """
    pairs = {frozenset(pair) for pair in allowed}
    sections: dict[int, dict[str, None]] = {}
    for span in placed:
        if span.evidence >= 0:
            sections.setdefault(span.segment, {})[evidence[span.evidence].chunk.section_id] = None
    for segment, names in sections.items():
        if any(frozenset((a, b)) not in pairs for a, b in itertools.combinations(names, 2)):
            cites = f"cites more than one section: {join_named(names)}."
            advice = "Put [<token>] after each sentence, and a full stop before it."
            whole = f"the answer {cites} {advice}"
            message = whole if segment < 0 else f"sentence {segment + 1} {cites}"
            return [Fault("cross_section_reuse", message)]
    return []


# ---- Paths of a text

_WORDS = {
    name: frozenset(words.split())
    for name, words in json.loads(
        files("rag_eval.answers").joinpath("paths.json").read_text("utf-8")
    ).items()
}
_MANY_PARTS = 4
"""Number of parts from which words between slashes are a path in any case."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,20}://(?=[\w/.~])")
_URL = (
    rf"(?:{_SCHEME.pattern}|www\.)[^\s<>\"'`|\\^{{}}\[\]()]*"
    r"(?:\([^\s<>\"'`()]*\)[^\s<>\"'`|\\^{}\[\]()]*)*"
)
# The slash behind a bracket, as in `(mg)/kg`, is no root.
_FOUND = re.compile(
    rf"(?P<url>{_URL})|(?:(?<=\))/)?(?P<word>[^\s<>\"'`|,;(){{}}\[\]*?!=“”‘’«»…–—。，；：]+)(?P<call>\()?"
)
_HALF_SCHEME = re.compile(r"(?:https?|ftps?|sftp|wss?|ssh|git|file):/?[\w.~-]", re.IGNORECASE)
_LINES = re.compile(r":(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?$")
_CLOCK = re.compile(r"\d{4}-\d\d-\d\dT\d\d(?::\d\d)?|(?:UTC|GMT)[+-]\d\d?", re.IGNORECASE)
_LETTER = re.compile(r"[^\W\d_]")
_ROOT = re.compile(r"(?:\.{1,2}/|~[\w-]*/|/|[A-Za-z]:/|//)(?=[\w.~-])")
_SHARE = re.compile(r"\\\\[\w.-]{2,}\\[\w$.-]")
_EXTENSION = re.compile(r"(?P<base>.*[\w)])\.(?P<ext>[A-Za-z0-9]{1,12})")
_CLASS = re.compile(r"(?:.*\.)?[A-Z]\w*[a-z]\w*")
_HOST = re.compile(
    r"(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?|[A-Za-z][\w.-]*:\d{2,5}"
    r"|(?:[\w.-]+@)?(?:localhost|(?P<name>[\w-]+(?:\.[\w-]+)*)\.(?P<domain>[a-z]{2,9}))(?::\d{1,5})?"
)


def _tidy(text: str) -> str:
    r"""Return a path for comparison: forward slashes, no leading `./`, no final punctuation."""
    path = visible(text).replace("\\", "/").rstrip(".:,;")
    while path.startswith("./"):
        path = path[2:]
    return path.rstrip("/") or path[:1]


def _split_lines(path: str) -> tuple[str, int, int] | None:
    """Split a cite token into (path, first line, last line); None without lines or a letter."""
    match = _LINES.search(path)
    if match is None or not _LETTER.search(path, 0, match.start()):
        return None
    return path[: match.start()], int(match["first"]), int(match["last"] or match["first"])


def _is_file_name(name: str, *, call: bool) -> bool:
    lowered = name.lower()
    if name.startswith(".") and "." + lowered.split(".")[1] in _WORDS["dot_files"]:
        return True
    match = _EXTENSION.fullmatch(name)
    if call or match is None or lowered in _WORDS["products"]:
        return lowered in _WORDS["files"] and not call
    base, ext = match["base"], match["ext"]
    if ext.lower() not in _WORDS["extensions"] or not re.search(r"[^\W\d]|\d{2}", base):
        return False
    if len(ext) == 1 and not re.fullmatch(r"[\w-]{2,}", base):  # D.C and U.S.C are abbreviations
        return False
    is_object = base in _WORDS["objects"] or _CLASS.fullmatch(base)
    return not base.startswith(".") and not (ext in _WORDS["attributes"] and is_object)


def _is_host(part: str) -> bool:
    match = _HOST.fullmatch(part)
    return match is not None and (
        match["domain"] is None
        or (match["domain"] in _WORDS["domains"] and match["name"] not in _WORDS["objects"])
    )


def _is_path(word: str, folders: Collection[str], *, call: bool) -> bool:
    """Tell whether a word is a path; a relative path through one of `folders` is one."""
    if _HALF_SCHEME.match(word):
        return True
    if lines := _split_lines(word):
        return not _CLOCK.fullmatch(lines[0])
    path = word.replace("\\", "/").partition("#")[0]
    if word.startswith("\\") and not _SHARE.match(word):
        path = path.lstrip("/")  # \alpha and \d have no root
    if "/" not in path:
        return _is_file_name(path, call=call)
    parts = [part for part in path.split("/") if part]
    with_letters = sum(bool(_LETTER.search(part)) for part in parts)
    # public/private is two words, and public/img/logo is a path
    customary = _WORDS["folders"] if parts[2:] else _WORDS["clear_folders"]
    return with_letters > 0 and (
        with_letters >= _MANY_PARTS
        or _ROOT.match(path) is not None
        or _is_file_name(parts[-1], call=call)
        or any(re.match(r"\.[^\W\d]", part) for part in parts)
        or (_is_host(parts[0]) and any(map(_LETTER.search, parts[1:])))
        or any(
            part in customary or part in folders
            for part in (parts if path.endswith("/") else parts[:-1])
        )
    )


def find_paths(text: str, folders: Collection[str] = ()) -> tuple[str, ...]:
    """Find the paths of a text, in order, each once, without the punctuation around them.

    Examples
    --------
    >>> find_paths("See docs/guide.md, `setup.py` and/or guide.md:3-7; on 2024/01/31, e.g. v1.2.3.")
    ('docs/guide.md', 'setup.py', 'guide.md:3-7')
    """
    paths: dict[str, None] = {}
    for match in _FOUND.finditer(visible(text)):
        url, word = match["url"], match["word"] or ""
        if url is None and (inner := _SCHEME.search(word)):
            url = word[inner.start() :]
        if url is not None:
            paths[url.rstrip(".,:;!?_~'*")] = None
            continue
        word = word.lstrip(":&#-+%").partition("::")[0]  # tests/test_a.py::test_b
        word = (word.lstrip(".") if word.startswith("...") else word).rstrip(".:,-_~&#")
        if word and _is_path(word, folders, call=bool(match["call"])):
            paths[word] = None
    return tuple(paths)


# ---- The path gates


def _is_part_of(path: str, whole: str) -> bool:
    """Tell whether a path equals another path, or is its beginning or end at a slash."""
    edge = whole.endswith("/" + path) or whole.startswith(path + "/")
    return bool(path) and (path == whole or edge)


class _Known:
    """Names, cited lines and texts of some pieces of evidence."""

    def __init__(self, items: Sequence[Evidence], lines: Collection[tuple[str, int, int]]) -> None:
        chunks = [item.chunk for item in items]
        names = ((chunk.doc_id, chunk.section_id, chunk.source_url) for chunk in chunks)
        self._names = set(map(_tidy, itertools.chain.from_iterable(names)))
        self._lines = [(_tidy(doc), first, last) for doc, first, last in lines]
        self._text = visible("\n\n".join(chunk.text for chunk in chunks)).replace("\\", "/")

    def __contains__(self, path: str) -> bool:
        """Tell whether a path is a document, section, address, or lines of it, or is in a text."""
        name, token = _tidy(path), _split_lines(path)
        if token and any(
            first <= token[1] <= token[2] <= last and _is_part_of(_tidy(token[0]), doc)
            for doc, first, last in self._lines
        ):
            return True
        if any(_is_part_of(name, whole_name) for whole_name in self._names):
            return True
        # the text must have the whole name, not a part of a longer name
        whole = r"(?<![\w.~-])" + re.escape(name) + r"(?![\w~-]|\.\w)"
        return name in self._text and re.search(whole, self._text) is not None


def _check_paths(
    body: str, evidence: Sequence[Evidence], citations: Sequence[Citation], question: str | None
) -> list[Fault]:
    """Check gate A (no path that the evidence lacks) and gate B (every path is cited).

    A path in the text of a cited item counts as cited. The gaps of a refusal may name the paths of
    the question and need no citation.
    """
    folders = {
        part
        for item in evidence
        for part in _tidy(item.chunk.doc_id).split("/")[:-1]
        if len(part) > 1 and "." not in part and ":" not in part
    }
    paths = find_paths(body, folders)
    if len(paths) > MAX_PATHS:
        return [Fault("path_not_cited", f"the answer names more than {MAX_PATHS} paths.")]
    lines = {(item.chunk.doc_id, item.first_line, item.last_line) for item in evidence}
    present = _Known(evidence, lines)
    asked = set(find_paths(question)) if question is not None else set()
    absent = [path for path in paths if path not in asked and path not in present]
    faults = []
    if absent:
        faults.append(Fault("path_not_in_evidence", f"no evidence has {join_named(absent)}."))
    if question is None:
        items = [item for item in evidence if any(cited.lies_in(item) for cited in citations)]
        cited = _Known(items, {citation.lines for citation in citations})
        uncited = [path for path in paths if path not in absent and path not in cited]
        if uncited:
            faults.append(Fault("path_not_cited", f"named but not cited: {join_named(uncited)}."))
    return faults


def judge(
    body: str,
    citations: Sequence[Citation | CitedSnippet],
    evidence: Sequence[Evidence],
    *,
    refusal_to: str | None = None,
    cross_section_allowed: Collection[tuple[str, str]] = (),
) -> Judged:
    """Compare a reply with the evidence that the prompt showed.

    `body` is the reply's text, inline marks included, and `refusal_to` the question that the reply
    refuses to answer, if any. One sentence may cite the pairs of section_ids in
    `cross_section_allowed` together.
    """
    text, marks = _remove_marks(body)
    faults: list[Fault | None] = []
    if refusal_to is None and not has_content(text):  # only marks or invisible characters
        faults.append(Fault("empty_answer", "the answer has no letter or digit."))
    completed = [
        _complete(entry, evidence) if isinstance(entry, CitedSnippet) else entry
        for entry in citations
    ]
    faults += [entry for entry in completed if isinstance(entry, Fault)]
    cited = [entry for entry in completed if not isinstance(entry, Fault)]
    placed: list[CitedSpan] = []
    unmarked = unmarked_segment(text)
    for citation in cited:
        marked = dict.fromkeys(place for place, mark in marks if citation.has_mark(mark))
        for segment in marked or (unmarked,):
            span, fault = place_citation(citation, segment, evidence)
            placed.append(span)
            faults.append(fault)
    for _, mark in marks:
        if not any(citation.has_mark(mark) for citation in cited):
            is_evidence = any(mark.lies_in(item) for item in evidence)
            token = quoted(cite_token(*mark.lines), 200)
            message = f"{token} is in the text but not under citations."
            faults.append(Fault("path_not_cited" if is_evidence else "unknown_snippet", message))
    faults += _find_crossing(placed, evidence, cross_section_allowed)
    faults += _check_paths(text, evidence, cited, refusal_to)
    return Judged(text, tuple(dict.fromkeys(placed)), tuple(dict.fromkeys(filter(None, faults))))
