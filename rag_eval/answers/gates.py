"""Gates between a reply and an answer: provenance, quotes, sections, path gates A and B.

Belongs here: what an answer says, held against the evidence it was given. The form of a reply is `replies`; what a path is, `paths`.
"""

import bisect
import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable, Sequence

from rag_eval.answers.codes import Fault
from rag_eval.answers.evidence import line_span
from rag_eval.answers.paths import find_paths, folders_of, has_content, split_lines, tidied, visible
from rag_eval.answers.replies import Citation, read_token
from rag_eval.corpus.sentences import spans
from rag_eval.records.answers import Evidence
from rag_eval.records.citation import CitedSpan
from rag_eval.records.problems import quoted

MAX_PATHS = 500
MIN_QUOTE = 2
"""Letters and digits of a quote; fewer stand anywhere."""
MAX_NAMED = 5
"""Paths or citations that one message names; the others are counted."""

# a run of blanks is tried once, from its beginning: long runs are read in linear time
_MARK = re.compile(r"(?<![ \t])[ \t]*+\[([^\[\]\n]{1,2000}:[0-9]{1,9}(?:-[0-9]{1,9})?)\]")

_WORD = re.compile(r"\S+")
_LIST_ITEM = re.compile(r"[\r\n][^\S\r\n]*+(?:[-*•‣–]|\d{1,3}[.)])\s")


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """A reply held against the evidence.

    Parameters
    ----------
    text
        The answer without its inline `[token]` marks.
    citations
        Where each citation points; nothing is left out, evidence is -1 where it points outside.
    faults
        What is wrong, in the order of the gates; empty where the answer passes.
    """

    text: str
    citations: tuple[CitedSpan, ...]
    faults: tuple[Fault, ...]


def _named(values: Iterable[str]) -> str:
    listed = [quoted(value, 200) for value in dict.fromkeys(values)]
    return ", ".join(listed[:MAX_NAMED]) + (
        f" and {len(listed) - MAX_NAMED} more" if len(listed) > MAX_NAMED else ""
    )


def _token(citation: Citation) -> str:
    return f"{citation.doc_id}:{citation.first}" + (
        f"-{citation.last}" if citation.last > citation.first else ""
    )


def find_quote(quote: str, text: str, start: int, end: int) -> tuple[int, int] | None:
    r"""Where text[start:end] has a quote, white space of any length standing for white space; None where it does not.

    Examples
    --------
    >>> find_quote("a  b", "x a\nb y", 0, 7)
    (2, 5)
    """
    wanted = " ".join(quote.split())
    words = [match.span() for match in _WORD.finditer(text, start, end)]
    at = " ".join(text[low:high] for low, high in words).find(wanted) if wanted else -1
    if at < 0:
        return None
    joined = list(
        itertools.accumulate((high - low + 1 for low, high in words), initial=0)
    )  # where each word begins among single blanks
    last = at + len(wanted) - 1
    first_word, last_word = (
        bisect.bisect_right(joined, at) - 1,
        bisect.bisect_right(joined, last) - 1,
    )
    return words[first_word][0] + at - joined[first_word], words[last_word][0] + last - joined[
        last_word
    ] + 1


def _placed(
    citation: Citation, segment: int, evidence: Sequence[Evidence]
) -> tuple[CitedSpan, Fault | None]:
    """A citation's place: the first evidence that has its lines, and its quote where it gives one."""
    inside = [
        (number, item)
        for number, item in enumerate(evidence)
        if item.chunk.doc_id == citation.doc_id
        and item.first_line <= citation.first
        and citation.last <= item.last_line
    ]
    if not inside:
        return CitedSpan(segment, -1, citation.doc_id, -1, -1, citation.quote), Fault(
            "unknown_snippet", f"{quoted(_token(citation), 200)} is not in the evidence."
        )
    lines = [
        (number, item, span)
        for number, item in inside
        if (span := line_span(item, citation.first, citation.last))
    ]
    if not lines:
        number = inside[0][0]
        return CitedSpan(segment, number, citation.doc_id, -1, -1, citation.quote), Fault(
            "bad_offsets", f"{quoted(_token(citation), 200)} cites blank lines."
        )
    if not citation.quote:
        number, _, (start, end) = lines[0]
        return CitedSpan(segment, number, citation.doc_id, start, end), None
    if sum(map(str.isalnum, visible(citation.quote))) < MIN_QUOTE:
        number, _, (start, end) = lines[0]
        return CitedSpan(segment, number, citation.doc_id, start, end, citation.quote), Fault(
            "quote_mismatch", f"a quote has {MIN_QUOTE} letters or digits at least."
        )
    for number, item, (start, end) in lines:
        base = item.chunk.offsets.start
        if found := find_quote(citation.quote, item.chunk.text, start - base, end - base):
            return CitedSpan(
                segment,
                number,
                citation.doc_id,
                base + found[0],
                base + found[1],
                item.chunk.text[found[0] : found[1]],
            ), None
    number, _, (start, end) = lines[0]
    return CitedSpan(segment, number, citation.doc_id, start, end, citation.quote), Fault(
        "quote_mismatch", f"{quoted(_token(citation), 200)} does not say what is quoted."
    )


def unmarked(body: str) -> tuple[str, list[tuple[int, Citation]]]:
    """A body without its inline `[token]` marks, and each mark with the sentence (from 0) that it ends or stands in."""
    pieces: list[str] = []
    marks: list[tuple[int, Citation]] = []
    at = length = 0
    for match in _MARK.finditer(body):
        citation = read_token(match[1])
        if citation is None:
            continue
        pieces.append(body[at : match.start()])
        length += match.start() - at
        marks.append((length, citation))
        at = match.end()
    text = "".join([*pieces, body[at:]])
    starts = [start for start, _ in spans(text)]
    # a mark belongs to the last sentence that begins before it
    return text.strip(), [
        (max(0, bisect.bisect_left(starts, place) - 1), citation) for place, citation in marks
    ]


def _segmented(
    citations: Sequence[Citation], marks: Sequence[tuple[int, Citation]]
) -> list[tuple[int, Citation]]:
    """(sentence, citation): an inline mark's own sentence, -1 for what is cited for the answer as a whole."""
    found: list[tuple[int, Citation]] = []
    for citation in citations:
        inline = dict.fromkeys(
            sentence
            for sentence, mark in marks
            if (mark.doc_id, mark.first, mark.last)
            == (citation.doc_id, citation.first, citation.last)
        )
        found.extend((sentence, citation) for sentence in inline or {-1: None})
    return found


def _is_one_sentence(text: str) -> bool:
    return len(spans(text)) == 1 and not _LIST_ITEM.search(text)


def _crossing(
    placed: Sequence[CitedSpan],
    evidence: Sequence[Evidence],
    allowed: Collection[tuple[str, str]],
    *,
    one_sentence: bool,
) -> Fault | None:
    """A sentence that cites two sections which are not whitelisted together.

    In an answer of one sentence all that is listed supports that sentence. In one of several, what is listed and not marked inline supports
    the answer as a whole: it cannot be told which sentence rests on it, and nothing is held against any of them.
    """
    pairs = {frozenset(pair) for pair in allowed}
    sections: dict[int, dict[str, None]] = {}
    for span in placed:
        segment = max(span.segment, 0) if one_sentence else span.segment
        if segment >= 0 and span.evidence >= 0:
            sections.setdefault(segment, {})[evidence[span.evidence].chunk.section_id] = None
    for segment, names in sections.items():
        listed = list(names)
        if any(
            frozenset((a, b)) not in pairs
            for number, a in enumerate(listed)
            for b in listed[:number]
        ):
            return Fault(
                "cross_section_reuse",
                f"sentence {segment + 1} cites more than one section: {_named(listed)}.",
            )
    return None


def _has_lines(path: str, known: Iterable[tuple[str, int, int]]) -> bool:
    """Whether a cite token of the text lies within known lines of a document of that name."""
    lines = split_lines(path)
    if lines is None:
        return False
    name = tidied(lines[0])
    return any(
        first <= lines[1] <= lines[2] <= last and _is_part_of(name, tidied(doc))
        for doc, first, last in known
    )


def _is_part_of(path: str, whole: str) -> bool:
    """Whether a path is another, or its beginning or end at a slash."""
    return bool(path) and (
        path == whole or whole.endswith("/" + path) or whole.startswith(path + "/")
    )


def _stands_in(path: str, text: str) -> bool:
    """Whether a text (slashes forward) has a path, and not only as a piece of a longer name."""
    return (
        path in text
        and re.search(r"(?<![\w.~-])" + re.escape(path) + r"(?![\w~-]|\.\w)", text) is not None
    )


class _Known:
    """What some pieces of evidence know: names, lines and texts."""

    def __init__(self, items: Sequence[Evidence], lines: Collection[tuple[str, int, int]]) -> None:
        self._names = {
            tidied(name)
            for item in items
            for name in (item.chunk.doc_id, item.chunk.section_id, item.chunk.source_url)
        }
        self._lines = lines
        self._text = visible("\n\n".join(item.chunk.text for item in items)).replace("\\", "/")

    def __contains__(self, path: str) -> bool:
        """Whether they have a path: as document, section or address, as lines, or in their text."""
        name = tidied(path)
        return (
            _has_lines(path, self._lines)
            or any(_is_part_of(name, known) for known in self._names)
            or _stands_in(name, self._text)
        )


def path_faults(
    body: str,
    evidence: Sequence[Evidence],
    citations: Sequence[Citation],
    question: str | None = None,
) -> list[Fault]:
    """Path gates A (no path that the evidence lacks) and B (every path is cited, or in the text of a cited item).

    Parameters
    ----------
    body
        The answer's text.
    evidence, citations
        What it could cite, and what it cites.
    question
        For a refusal: its gaps may name paths of the question, and need no citation. None for an answer.
    """
    paths = find_paths(body, folders_of(item.chunk.doc_id for item in evidence))
    if len(paths) > MAX_PATHS:
        return [Fault("path_not_cited", f"the answer names more than {MAX_PATHS} paths.")]
    known = _Known(
        evidence, {(item.chunk.doc_id, item.first_line, item.last_line) for item in evidence}
    )
    asked = set(find_paths(question)) if question is not None else set()
    absent = [path for path in paths if path not in asked and path not in known]
    faults = [Fault("path_not_in_evidence", f"no evidence has {_named(absent)}.")] if absent else []
    if question is None:
        items = [
            item for item in evidence if any(_covers(item, citation) for citation in citations)
        ]
        cited = _Known(
            items, {(citation.doc_id, citation.first, citation.last) for citation in citations}
        )
        uncited = [path for path in paths if path not in absent and path not in cited]
        faults += (
            [Fault("path_not_cited", f"named but not cited: {_named(uncited)}.")] if uncited else []
        )
    return faults


def _covers(item: Evidence, citation: Citation) -> bool:
    return (
        item.chunk.doc_id == citation.doc_id
        and item.first_line <= citation.first
        and citation.last <= item.last_line
    )


def judge(
    body: str,
    citations: Sequence[Citation],
    evidence: Sequence[Evidence],
    *,
    refusal_to: str | None = None,
    cross_section_allowed: Collection[tuple[str, str]] = (),
) -> Judged:
    """Hold a reply against the evidence: provenance, quotes, sections, path gates.

    Parameters
    ----------
    body
        The reply's text, inline marks included.
    citations
        Its citations.
    evidence
        What the prompt showed.
    refusal_to
        The question, where the reply refuses to answer it.
    cross_section_allowed
        Pairs of section_ids that one sentence may cite together; see `_crossing` for what counts as one sentence's.
    """
    text, marks = unmarked(body)
    # nothing but marks, or nothing that shows
    faults: list[Fault] = (
        []
        if refusal_to is not None or has_content(text)
        else [Fault("empty_answer", "the answer has no letter or digit.")]
    )
    placed: list[CitedSpan] = []
    for segment, citation in _segmented(citations, marks):
        span, fault = _placed(citation, segment, evidence)
        placed.append(span)
        if fault and fault not in faults:
            faults.append(fault)
    listed = {(citation.doc_id, citation.first, citation.last) for citation in citations}
    for _, mark in marks:
        if (mark.doc_id, mark.first, mark.last) not in listed:
            known = any(_covers(item, mark) for item in evidence)
            faults.append(
                Fault(
                    "path_not_cited" if known else "unknown_snippet",
                    f"{quoted(_token(mark), 200)} stands in the text and not under citations.",
                )
            )
    crossing = _crossing(
        placed,
        evidence,
        cross_section_allowed,
        one_sentence=refusal_to is None and _is_one_sentence(text),
    )
    faults += [crossing] if crossing else []
    faults += path_faults(text, evidence, citations, refusal_to)
    return Judged(text, tuple(placed), tuple(dict.fromkeys(faults)))
