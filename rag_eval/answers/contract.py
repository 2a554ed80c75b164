"""Compare a reply with the evidence, and ask the domain validators.

`judge` runs the gates (provenance, quotes, sections, path gates A and B). `validate` asks the
validators of the gold set. A reply that breaks a rule fails.
"""

import bisect
import dataclasses
import difflib
import importlib.metadata
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field

from rag_eval.answers.codes import Fault, TimedPattern
from rag_eval.answers.evidence import cite_token, line_starts
from rag_eval.answers.paths import find_paths, has_content, split_lines, tidy_path, visible
from rag_eval.answers.replies import Citation, CitedSnippet, Place, read_token
from rag_eval.core.config import Answers, PluginUse
from rag_eval.core.errors import InputError, Problem, quoted
from rag_eval.core.parts import FOREIGN
from rag_eval.core.types import Answer, AnswerFinding, CitedSpan, Evidence, Mode
from rag_eval.corpus.chunking import segments, spans, trim
from rag_eval.measures.support import (
    SentenceSupport,
    citation_support,
)
from rag_eval.trust.guard import screen

# ---- Gates between a reply and an answer: provenance, quotes, sections, path gates A and B

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


def _join_named(values: Iterable[str]) -> str:
    listed = [quoted(value, 200) for value in dict.fromkeys(values)]
    more = f" and {len(listed) - MAX_NAMED} more" if len(listed) > MAX_NAMED else ""
    return ", ".join(listed[:MAX_NAMED]) + more


def _find_lines(item: Evidence, first: int, last: int) -> tuple[int, int] | None:
    """Return where lines of the evidence stand in its text, trimmed; None for blank lines."""
    starts = [*line_starts(item.chunk.text).tolist(), len(item.chunk.text)]
    low, after = starts[first - item.first_line], last - item.first_line + 1
    return trim(item.chunk.text, low, starts[min(after, len(starts) - 1)])


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
    if (offsets := cited.offsets) is not None:
        left = [
            (number, item)
            for number, item in left
            if item.chunk.offsets.start <= offsets.start < offsets.end <= item.chunk.offsets.end
        ]
        if not left:
            message = f"{offsets.start} to {offsets.end} does not lie in the cited evidence."
            return Fault("bad_offsets", message)
    number, item = left[0]
    text, base = item.chunk.text, item.chunk.offsets.start
    wanted = offsets or item.chunk.offsets
    low, high = wanted.start - base, wanted.end - base
    place = trim(text, low, high)
    if place is None:
        return Fault("bad_offsets", f"{wanted.start} to {wanted.end} is blank.")
    first = item.first_line + text.count("\n", 0, low)
    last = first + text.count("\n", low, high - 1)
    return Citation(item.chunk.doc_id, first, last, cited.quote.strip(), Place(number, *place))


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

    Returns the text, and each mark with the number (from 0) of the segment around or before the
    mark.
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


def _mark_again(text: str, body: str) -> str:
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
    placed: Sequence[CitedSpan],
    evidence: Sequence[Evidence],
    allowed: Collection[tuple[str, str]],
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
            cites = f"cites more than one section: {_join_named(names)}."
            whole = (
                f"the answer {cites} Put [<token>] after each sentence, and a full stop before it."
            )
            message = whole if segment < 0 else f"sentence {segment + 1} {cites}"
            return [Fault("cross_section_reuse", message)]
    return []


def _is_part_of(path: str, whole: str) -> bool:
    """Tell whether a path equals another path, or is its beginning or end at a slash."""
    edge = whole.endswith("/" + path) or whole.startswith(path + "/")
    return bool(path) and (path == whole or edge)


class _Known:
    """Names, cited lines and texts of some pieces of evidence."""

    def __init__(self, items: Sequence[Evidence], lines: Collection[tuple[str, int, int]]) -> None:
        chunks = [item.chunk for item in items]
        names = ((chunk.doc_id, chunk.section_id, chunk.source_url) for chunk in chunks)
        self._names = set(map(tidy_path, itertools.chain.from_iterable(names)))
        self._lines = lines
        self._text = visible("\n\n".join(chunk.text for chunk in chunks)).replace("\\", "/")

    def __contains__(self, path: str) -> bool:
        """Tell whether a path is a document, section, address, or lines of it, or is in a text."""
        name, token = tidy_path(path), split_lines(path)
        if token and any(
            first <= token[1] <= token[2] <= last
            and _is_part_of(tidy_path(token[0]), tidy_path(doc))
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
        for part in tidy_path(item.chunk.doc_id).split("/")[:-1]
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
        faults.append(Fault("path_not_in_evidence", f"no evidence has {_join_named(absent)}."))
    if question is None:
        items = [item for item in evidence if any(cited.lies_in(item) for cited in citations)]
        cited = _Known(items, {citation.lines for citation in citations})
        uncited = [path for path in paths if path not in absent and path not in cited]
        if uncited:
            faults.append(Fault("path_not_cited", f"named but not cited: {_join_named(uncited)}."))
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


# ---- Domain validators: ours, and those of the entry-point group `rag_eval.validators`

MAX_MESSAGE_CHARS = 300

MAX_PATTERN_CHARS = 500


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """An answer (no refusal) that passed the gates, for postprocessors and domain validators.

    `body` has the inline `[token]` marks, `text` does not. `verdict` is empty outside the two-line
    form.
    """

    query_id: str
    question: str
    mode: Mode
    body: str
    text: str
    verdict: str
    citations: tuple[CitedSpan, ...]
    evidence: tuple[Evidence, ...]


Check = Callable[[Candidate], str | None]
"""Candidate -> reason for rejecting the answer, or None."""
Factory = Callable[[Mapping[str, Any]], Check]
"""Options of a validator -> check; raises ValueError for unfit options."""


def _compile(pattern: object) -> TimedPattern:
    if not isinstance(pattern, str) or not 1 <= len(pattern) <= MAX_PATTERN_CHARS:
        raise ValueError(f"a pattern is a text of 1 to {MAX_PATTERN_CHARS} characters")
    return TimedPattern(pattern)


_Pattern = Annotated[TimedPattern, BeforeValidator(_compile)]


class _OwnValidator(BaseModel, extra="forbid", arbitrary_types_allowed=True):
    """The fields are the options."""


class _BanRegex(_OwnValidator):
    """Rejects an answer that matches one of `patterns`."""

    patterns: tuple[_Pattern, ...] = Field(min_length=1, max_length=100)

    def __call__(self, candidate: Candidate) -> str | None:
        body = [candidate.body]
        banned = next((pattern for pattern in self.patterns if pattern.count_in(body, 1)[0]), None)
        return None if banned is None else f"the answer must not match {quoted(banned.pattern)}."


class _MinCount(_OwnValidator):
    """Rejects an answer with under `min_count` matches of `pattern`, inline marks included."""

    pattern: _Pattern
    min_count: int = Field(ge=1, le=10_000)

    def __call__(self, candidate: Candidate) -> str | None:
        (count,), wanted = self.pattern.count_in([candidate.body]), self.min_count
        if count >= wanted:
            return None
        shown = quoted(self.pattern.pattern)
        return f"the answer must match {shown} at least {wanted} times, and does {count} times."


class _CitationSupport(_OwnValidator):
    """Rejects an answer that says more than the text that it cites; takes no options.

    The citations of every sentence that states something must support it (`citation_support`), and
    the passage that does so must have all its content words, none of them exchanged. So a model has
    to keep to the words of its sources. Source text that speaks to a model supports nothing.
    """

    def __call__(self, candidate: Candidate) -> str | None:
        cited = {span.evidence for span in candidate.citations}
        evidence = tuple(
            _without_orders(item) if place in cited else item
            for place, item in enumerate(candidate.evidence)
        )
        answer = Answer(
            candidate.query_id,
            candidate.mode,
            "answered",
            text=candidate.text,
            citations=candidate.citations,
            evidence=evidence,
        )
        for sentence in citation_support([answer])[0]:
            if reason := _doubt(sentence):
                return f"sentence {sentence.segment + 1} ({quoted(sentence.text, 100)}) {reason}."
        return None


def _without_orders(item: Evidence) -> Evidence:
    """Blank the sentences of a passage that the guard finds to speak to a model."""
    text = item.chunk.text
    findings = screen([text])
    orders = findings[findings["severity"] != "hint"][["start", "end"]].to_numpy().tolist()
    for low, high in spans(text):
        # a finding may begin with the full stop before it
        if any(min(high, end) - max(low, start) > 1 for start, end in orders):
            text = text[:low] + " " * (high - low) + text[high:]
    return dataclasses.replace(item, chunk=dataclasses.replace(item.chunk, text=text))


def _doubt(sentence: SentenceSupport) -> str:
    """Say why the words that a sentence cites do not carry it; empty if they do."""
    if not sentence.places:
        return "cites nothing"
    if sentence.conflict:
        return f"conflicts with what it cites: {quoted(sentence.conflict, 150)}"
    if not sentence.supported:
        return "is not supported by what it cites"
    if missing := sentence.missing_words():
        return f"has words that what it cites lacks: {_join_named(missing)}"
    exchanged = sentence.exchanged_words()
    return f"exchanges words of what it cites: {_join_named(exchanged)}" if exchanged else ""


OWN_VALIDATORS: dict[str, Factory] = {
    "ban_regex": _BanRegex.model_validate,
    "require_citation_support": _CitationSupport.model_validate,
    "require_min_inline_regex_count": _MinCount.model_validate,
}


def _load_plugin(
    use: PluginUse, kind: Literal["validator", "postprocessor"], built_in: Mapping[str, Factory]
) -> Any:
    """Load a plug-in of ours or an installed one with its options; raises InputError."""
    entries = importlib.metadata.entry_points(group=f"rag_eval.{kind}s")
    installed = {entry.name: entry for entry in entries}
    field, name = f"answers.{kind}s.{use.name}", use.name
    names = sorted(installed.keys() | built_in.keys())
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        message, available = (
            f"no {kind} of this name is installed{hint}",
            ", ".join(names) or "none is installed",
        )
        raise InputError.of(f"unknown_{kind}", message, field=field, found=name, accepted=available)
    try:
        return (built_in.get(name) or installed[name].load())(use.options)
    except ValueError as error:  # pydantic's ValidationError is a subclass
        message = quoted(" ".join(str(error).split()), 400)
        raise InputError.of(f"bad_{kind}_options", message, field=field) from None
    except FOREIGN as error:
        message = f"it cannot be loaded: {quoted(repr(error), 300)}"
        raise InputError.of(f"broken_{kind}", message, field=field) from None


class Plugins(NamedTuple):
    """Validators and postprocessors of a gold set with their names, in its order."""

    validators: list[tuple[str, Check]]
    postprocessors: "list[tuple[str, Postprocess]]"


def load_plugins(settings: Answers) -> Plugins:
    """Load the plug-ins of a gold set.

    Raises InputError with every problem: `unknown_validator` (with the installed names),
    `broken_validator`, `bad_validator_options`, and these of a postprocessor.
    """
    plugins, problems = Plugins([], []), list[Problem]()

    def load(uses: Sequence[PluginUse], loaded: list[tuple[str, Any]], *kind: Any) -> None:
        for use in uses:
            try:
                loaded.append((use.name, _load_plugin(use, *kind)))
            except InputError as error:
                problems.extend(error.problems)

    load(settings.validators, plugins.validators, "validator", OWN_VALIDATORS)
    load(settings.postprocessors, plugins.postprocessors, "postprocessor", {})
    if problems:
        raise InputError(problems)
    return plugins


def validate(candidate: Candidate, validators: Sequence[tuple[str, Check]]) -> list[Fault]:
    """Return what the validators object; one that raises rejects with `validator_error`."""
    objections: list[Fault] = []
    for name, check in validators:
        try:
            if (message := check(candidate)) is not None:
                reason = quoted(str(message), MAX_MESSAGE_CHARS)
                objections.append(Fault("validator_failed", f"{name}: {reason}"))
        except Exception as error:  # noqa: BLE001 - a validator is anybody's code
            reason = quoted(repr(error), MAX_MESSAGE_CHARS)
            objections.append(Fault("validator_error", f"{name} raised {reason}"))
    return objections


# ---- Postprocessors: plug-ins of the entry-point group `rag_eval.postprocessors`


class Extracted(BaseModel, extra="forbid"):
    """A finding as a postprocessor gives it; `segment` as in `AnswerFinding`."""

    kind: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")
    text: str = Field(min_length=1, max_length=2000)
    segment: int = Field(default=-1, ge=-1)


class Processed(BaseModel, extra="forbid"):
    """What a postprocessor makes of an answer: another text or None, and findings."""

    text: str | None = Field(default=None, max_length=1_000_000)
    findings: tuple[Extracted, ...] = Field(default=(), max_length=200)


Postprocess = Callable[[Candidate], Processed | Mapping[str, Any]]
"""Candidate -> `Processed`, or a mapping with its fields. It must be deterministic."""


def postprocess(
    candidate: Candidate, postprocessors: Sequence[tuple[str, Postprocess]]
) -> tuple[Candidate, tuple[AnswerFinding, ...]] | Fault:
    """Return the candidate with its new text, and findings; each plug-in reads the text before it.

    A plug-in that raises or breaks a rule is the fault `postprocessor_error`. A new text must have
    as many sentences as the old one, because citations and inline marks name sentences by number.
    """
    findings: list[AnswerFinding] = []
    for name, process in postprocessors:
        try:
            processed = _process(candidate, process)
        except Exception as error:  # noqa: BLE001 - a plug-in is anybody's code
            reason = quoted(" ".join(str(error).split()), MAX_MESSAGE_CHARS)
            return Fault("postprocessor_error", f"{name}: {type(error).__name__}: {reason}")
        if processed.text is not None:
            body = _mark_again(processed.text, candidate.body)
            candidate = dataclasses.replace(candidate, text=processed.text, body=body)
        findings += [AnswerFinding(name, **finding.model_dump()) for finding in processed.findings]
    return candidate, tuple(findings)


def _process(candidate: Candidate, process: Postprocess) -> Processed:
    """Ask one plug-in; raises ValueError if it breaks a rule."""
    processed = Processed.model_validate(process(candidate))
    n = len(segments(candidate.text))
    if processed.text is not None and len(segments(processed.text)) != n:
        raise ValueError(f"the text must keep its number of sentences, {n}")
    if any(finding.segment >= n for finding in processed.findings):
        raise ValueError(f"a segment must be less than the number of sentences, {n}")
    return processed
