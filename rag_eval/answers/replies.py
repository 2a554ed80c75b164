"""Read a model's reply: its citations, its text, or the code of the rule that it breaks.

A reply is a JSON object, or a text after the lines VERDICT= and CITATIONS=. `codes.json` has the
codes of the answer contract.
"""

import dataclasses
import json
import re
import unicodedata
from importlib.resources import files
from typing import Annotated, Final, Literal, NamedTuple, NoReturn, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
)

from rag_eval.answers.abstention import MAX_GAPS_CHARS, states_an_answer
from rag_eval.core.config import Answers
from rag_eval.core.errors import quoted
from rag_eval.core.rows import format_location
from rag_eval.core.types import INSUFFICIENT_EVIDENCE, NOT_FOUND, Evidence, StatedLambda

# ---- Codes of broken rules, and shared parts of both forms of a reply


class CodeInfo(NamedTuple):
    """Meaning and remedy of a code."""

    meaning: str
    fix: str


CODES: Final[dict[str, CodeInfo]] = {
    code: CodeInfo(**info)
    for code, info in json.loads(
        files("rag_eval.answers").joinpath("codes.json").read_text("utf-8")
    ).items()
}
"""Every code, in the order of the rules."""
MAX_CITATIONS = 200
MAX_TOKEN_CHARS = 2000

ParsedOutcome = Literal["answered", "not_found", "insufficient_evidence", "contract_error_reply"]

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
_TOKEN = re.compile(r"(?P<doc>\S(?:.{0,1998}\S)?):(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?")
_SEVERAL = re.compile(r":[0-9]+(?:-[0-9]+)?\]?[,;]\s")  # several cite tokens in one text
_REFUSALS: dict[str, ParsedOutcome] = {
    NOT_FOUND: "not_found",
    INSUFFICIENT_EVIDENCE: "insufficient_evidence",
}
_GAPS = re.compile(rf"{INSUFFICIENT_EVIDENCE}(?:[\s.:;,*_–—-]+(?P<gaps>.*))?", re.DOTALL)
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Further invisible characters, besides format characters and variation selectors."""


class Fault(NamedTuple):
    """A broken rule of the contract, with a message for the model and the log."""

    code: str
    message: str


class Place(NamedTuple):
    """A piece of evidence by its number from 0, and a range of its text."""

    evidence: int
    start: int
    end: int


@dataclasses.dataclass(frozen=True, slots=True)
class Citation:
    """A citation of a reply: a document, its lines (from 1, both included), and a quote or "".

    `place` is known where the reply named a snippet, and not only lines.
    """

    doc_id: str
    first: int
    last: int
    quote: str = ""
    place: Place | None = None

    @property
    def lines(self) -> tuple[str, int, int]:
        """The cited lines without the quote."""
        return self.doc_id, self.first, self.last

    def lies_in(self, item: Evidence) -> bool:
        """Tell whether a piece of evidence has all the cited lines."""
        inside = item.first_line <= self.first and self.last <= item.last_line
        return inside and item.chunk.doc_id == self.doc_id

    def has_mark(self, mark: "Citation") -> bool:
        """Tell whether an inline mark means this citation: the same lines, or some of a snippet."""
        inside = self.first <= mark.first and mark.last <= self.last
        some = self.place is not None and inside and mark.doc_id == self.doc_id
        return some or mark.lines == self.lines


@dataclasses.dataclass(frozen=True, slots=True)
class Parsed:
    """Content of a reply; `text` still holds the inline `[token]` marks."""

    outcome: ParsedOutcome
    text: str
    citations: "tuple[Citation | CitedSnippet, ...]" = ()
    verdict: str = ""
    delta_s: float | None = None
    lambda_state: str = ""


class _BrokenError(Exception):
    """A reply breaks a rule."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def _fail(code: str, message: str) -> NoReturn:
    raise _BrokenError(Fault(code, message))


def _check(holds: object, code: str, message: str) -> None:
    if not holds:
        _fail(code, message)


def _check_characters(value: object) -> object:
    is_text = not (isinstance(value, str) and _CONTROL.search(value))
    _check(is_text, "bad_characters", "control characters and lone surrogates are not text.")
    return value


def _shorten(value: object) -> str:
    """Return the beginning of an untrusted value, in ASCII, for a message."""
    return quoted(value, 80).encode("ascii", "backslashreplace").decode()


def _is_shown(character: str) -> bool:
    return not (
        character in _BLANK
        or "\u180b" <= character <= "\u180f"
        or "\ufe00" <= character <= "\ufe0f"
        or character >= "\U000e0000"
        or unicodedata.category(character) == "Cf"
    )


def visible(text: str) -> str:
    r"""Remove invisible characters: format characters, fillers, variation selectors.

    Examples
    --------
    >>> visible("hidden.md\u200b")
    'hidden.md'
    """
    return text if text.isascii() else "".join(filter(_is_shown, text))


def has_content(text: str) -> bool:
    """Tell whether a text has a visible letter or digit."""
    return any(map(str.isalnum, visible(text)))


def read_token(text: str) -> Citation | None:
    """Read `docs/guide.md:3-7`, perhaps in brackets or backticks; None for anything else.

    Examples
    --------
    >>> read_token("[docs/guide.md:3-7]")
    Citation(doc_id='docs/guide.md', first=3, last=7, quote='', place=None)
    >>> read_token("docs/guide.md:0"), read_token("docs/guide.md:9-7"), read_token("docs/guide.md")
    (None, None, None)
    """
    token = text.strip()
    if len(token) > MAX_TOKEN_CHARS or "\n" in token:
        return None
    if token[:1] + token[-1:] in {"[]", "``"}:
        token = token[1:-1].strip()
    match = _TOKEN.fullmatch(token)
    if match is None or _SEVERAL.search(match["doc"]):
        return None
    first, last = int(match["first"]), int(match["last"] or match["first"])
    return Citation(match["doc"], first, last) if 1 <= first <= last else None


def _split_refusal(text: str) -> tuple[ParsedOutcome, str] | None:
    """Read a text that consists of a refusal: its outcome and gaps; None for any other text."""
    if text.strip(" \t\r\n*_`\"'.!") == NOT_FOUND:
        return "not_found", ""
    match = _GAPS.fullmatch(text.strip(" \t\r\n*_`\"'"))
    return None if match is None else ("insufficient_evidence", match["gaps"] or "")


def _check_refusal(outcome: ParsedOutcome, gaps: str, *, analyze_only: bool) -> None:
    """Raise _BrokenError if a refusal is not allowed, or if its gaps are no gaps."""
    code, phrase = "refusal_not_allowed", INSUFFICIENT_EVIDENCE if analyze_only else NOT_FOUND
    _check(outcome == _REFUSALS[phrase], code, f"the allowed refusal is {phrase}.")
    message = f"a refusal names its gaps in {MAX_GAPS_CHARS} characters at most."
    _check(len(gaps) <= MAX_GAPS_CHARS, code, message)
    _check(not states_an_answer(gaps), code, "a refusal holds no answer.")
    has_gaps = outcome == "not_found" or has_content(gaps)
    _check(has_gaps, "missing_gaps", f"name what is missing after {INSUFFICIENT_EVIDENCE}:")


# ---- The JSON forms: `{citations, answer, ΔS, λ}`, also in a fence; and `{error, fix}`

_FormT = TypeVar("_FormT", bound=BaseModel)
_Text = Annotated[str, BeforeValidator(_check_characters)]
_FENCE = re.compile(r"```(?:json|JSON)?\s*+(?=[{\[])")


class _CitedToken(BaseModel, extra="forbid", strict=True):
    token: _Text
    quote: _Text = ""

    def read(self) -> Citation:
        citation = read_token(self.token)
        if citation is None:
            _fail("bad_citation", f"{_shorten(self.token)} is not <doc path>:<line>[-<line>].")
        return dataclasses.replace(citation, quote=self.quote.strip())


class _Range(BaseModel, extra="forbid", strict=True, frozen=True):
    start: int
    end: int
    unit: Literal["char"] = "char"


class CitedSnippet(BaseModel, extra="forbid", strict=True, frozen=True):
    """A citation of the auditable block; None for a field that the reply leaves out."""

    snippet_id: Annotated[_Text, Field(min_length=1)]
    section_id: _Text | None = None
    source_url: _Text | None = None
    offsets: _Range | None = None
    tokens: int | None = None
    quote: _Text = ""


def _find_form(value: object) -> str:
    return "snippet" if isinstance(value, dict) and "token" not in value else "token"


_Cited = Annotated[
    Annotated[_CitedToken, Tag("token")] | Annotated[CitedSnippet, Tag("snippet")],
    Discriminator(_find_form),
    BeforeValidator(lambda value: {"token": value} if isinstance(value, str) else value),
]


class _JsonReply(BaseModel, extra="forbid", strict=True):
    citations: list[_Cited] = Field(max_length=MAX_CITATIONS)
    answer: _Text
    delta_s: float | None = Field(validation_alias=AliasChoices("deltaS", "ΔS"), ge=0, le=1)
    lambda_state: StatedLambda | None = Field(validation_alias=AliasChoices("lambda", "λ"))


class _ErrorReply(BaseModel, extra="forbid", strict=True):
    error: _Text
    fix: _Text


def join_error(error: str, fix: str) -> str:
    """Make the text of an answer that consists of `{error, fix}`."""
    return f"error: {error.strip()}; fix: {fix.strip()}"


def _refuse_constant(name: str) -> NoReturn:
    _fail("not_json", f"{name} is not a number of JSON.")


def _read_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    keys = [key for key, _ in pairs]
    double = next((key for key in keys if keys.count(key) > 1), None) if pairs else None
    _check(double is None, "duplicate_key", f"the key {_shorten(double)} occurs twice.")
    return dict(pairs)


_DECODER = json.JSONDecoder(object_pairs_hook=_read_object, parse_constant=_refuse_constant)


def _decode(text: str) -> dict[str, object]:
    """Return the JSON object of a reply, with or without a code fence around it."""
    fence = _FENCE.match(text)
    try:
        value, end = _DECODER.raw_decode(text, fence.end() if fence else 0)
    except (ValueError, RecursionError) as error:
        _fail("not_json", f"the reply is not JSON: {_shorten(str(error))}.")
    after = text[end:].strip()
    if fence:
        message = "the fence around the JSON object must end right after it."
        _check(after.startswith("```"), "not_json", message)
        after = after.removeprefix("```").strip()
    _check(not after, "not_json", "nothing may follow the JSON object.")
    if not isinstance(value, dict):
        _fail("wrong_schema", "the reply must be one JSON object.")
    return value


def _read_form(form: type[_FormT], value: dict[str, object]) -> _FormT:
    """Check an object of a reply; the message names its first wrong field."""
    try:
        return form.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    place = [part if isinstance(part, int) else _shorten(part) for part in first["loc"]]
    if place[:1] == ["citations"]:
        del place[2:3]  # the kind of the citation is no key
    _fail("wrong_schema", f"{format_location(place) or 'the reply'}: {first['msg']}.")


def _read_json(text: str, settings: Answers, *, analyze_only: bool) -> Parsed:
    """Read a reply that begins with a JSON object or a fence."""
    value = _decode(text)
    if "error" in value and "answer" not in value:
        refused = _read_form(_ErrorReply, value)
        filled = has_content(refused.error) and has_content(refused.fix)
        _check(filled, "wrong_schema", "error and fix must have a letter or digit.")
        return Parsed("contract_error_reply", join_error(refused.error, refused.fix))
    is_wanted = settings.response_schema != "verdict"
    _check(is_wanted, "wrong_form", "reply with the VERDICT and CITATIONS lines, not with JSON.")
    reply = _read_form(_JsonReply, value)
    is_first = next(iter(value)) == "citations"
    _check(is_first, "explained_before_cited", "the key citations must be the first.")
    cited = (one.read() if isinstance(one, _CitedToken) else one for one in reply.citations)
    citations = tuple(dict.fromkeys(cited))
    _check(has_content(reply.answer), "empty_answer", "answer has no letter or digit.")
    outcome: ParsedOutcome = "answered"
    if refusal := _split_refusal(reply.answer):
        outcome = refusal[0]
        _check_refusal(*refusal, analyze_only=analyze_only)
    else:
        _check(citations, "empty_citations", "citations is empty.")
    figures = reply.delta_s, reply.lambda_state or ""
    return Parsed(outcome, reply.answer.strip(), citations, "", *figures)


# ---- The two-line form: `VERDICT=<allowed>`, `CITATIONS=<token>, ...`, then the text

_LISTED = re.compile(r"\s*+([^,;\s].*?:\s*[0-9]+(?:-[0-9]+)?[\]`*]*)\s*(?:,|;|$)")
_HEADER = re.compile(r"[ \t]*(?:\*{1,3}|__)?(VERDICT|CITATIONS)(?:\*{1,3}|__)?[ \t]*[=:](.*)")
_AGAIN = re.compile(r"[\W\d_]*+(?:(?i:verdict)|CITATIONS)[\s*_`\"'\])]*+[=:]")
"""A further VERDICT or CITATIONS line, also as a list item or in another case."""


def _read_list(text: str) -> tuple[Citation, ...]:
    value = text.strip().strip("*").strip()
    if value.startswith("[") and value.endswith("]") and "]" not in value[:-1]:
        value = value[1:-1].strip()
    if not value or value.upper() == "NONE":
        return ()
    citations: dict[Citation, None] = {}
    at = 0
    while at < len(value):
        match = _LISTED.match(value, at)
        citation = read_token(match[1].strip().strip("*")) if match else None
        if match is None or citation is None or len(citations) >= MAX_CITATIONS:
            message = f"{_shorten(value[at:])} is not a list of <doc path>:<line>[-<line>]."
            _fail("bad_citation", message)
        citations[citation] = None
        at = match.end()
    return tuple(citations)


def _read_headers(text: str) -> tuple[str, str, str]:
    """Return verdict, citations and the text after the two lines, which must come first."""
    lines = text.split("\n")
    heads = [
        (number, match[1], match[2].strip().strip("*").strip())
        for number, line in enumerate(lines)
        if (match := _HEADER.fullmatch(line.rstrip("\r")))
    ]
    names = [name for _, name, _ in heads]
    message = "the first line must be VERDICT=<one of the allowed>."
    _check("VERDICT" in names, "missing_verdict", message)
    _check("CITATIONS" in names, "empty_citations", "the line CITATIONS= is missing.")
    filled = [number for number, line in enumerate(lines) if line.strip()]
    ordered = names[0] == "VERDICT" and filled[:2] == [number for number, *_ in heads[:2]]
    message = "the lines VERDICT= and then CITATIONS= come first, before any text."
    _check(ordered, "explained_before_cited", message)
    body = "\n".join(lines[heads[1][0] + 1 :]).strip()
    plain = (unicodedata.normalize("NFKC", visible(line)) for line in body.splitlines())
    once = names[1] == "CITATIONS" and not any(map(_AGAIN.match, plain))
    _check(once, "duplicate_key", "the lines VERDICT= and CITATIONS= may stand once each.")
    return heads[0][2], heads[1][2], body


def _read_verdict(text: str, settings: Answers, *, analyze_only: bool) -> Parsed:
    """Read a reply in the two-line form; its refusal is that of the prompt."""
    verdict, cited, body = _read_headers(text)
    outcome: ParsedOutcome = _REFUSALS.get(verdict, "answered")
    message = f"the verdict {_shorten(verdict)} is none of {', '.join(settings.verdicts)}."
    is_allowed = verdict in settings.verdicts or outcome != "answered"
    _check(is_allowed, "verdict_not_allowed", message)
    citations, refusal = _read_list(cited), _split_refusal(body)
    if outcome == "answered":
        message = "the verdict says one thing and the text refuses."
        _check(refusal is None, "refusal_not_allowed", message)
        _check(citations, "empty_citations", "the line CITATIONS= is empty.")
        _check(has_content(body), "empty_answer", "no text follows the two lines.")
    else:
        gaps = refusal[1] if refusal and refusal[0] == outcome else body
        _check_refusal(outcome, gaps, analyze_only=analyze_only)
    return Parsed(outcome, body or NOT_FOUND, citations, verdict)


# ---- Parsing a reply: its content, or the code of the broken rule


def _parse(reply: str, settings: Answers, *, analyze_only: bool) -> Parsed:
    message = f"the reply has more than {settings.max_reply_chars} characters."
    _check(len(reply) <= settings.max_reply_chars, "reply_too_long", message)
    text = reply.lstrip("\ufeff").strip()
    _check(text, "empty_reply", "the reply is empty.")
    _check_characters(text)
    if refusal := _split_refusal(text):
        _check_refusal(*refusal, analyze_only=analyze_only)
        return Parsed(refusal[0], text)
    if text[0] == "{" or _FENCE.match(text):
        return _read_json(text, settings, analyze_only=analyze_only)
    if settings.response_schema == "verdict":
        return _read_verdict(text, settings, analyze_only=analyze_only)
    message = "reply with the JSON object, not with VERDICT and CITATIONS lines."
    _check(not _HEADER.match(text), "wrong_form", message)
    late = re.search(r'\{\s*"(?:citations|answer|deltaS|ΔS|lambda|λ)"', text)
    _check(not late, "explained_before_cited", "nothing may stand before the JSON object.")
    return _fail("not_json", "the reply must be one JSON object.")


def parse_reply(reply: str, settings: Answers, *, analyze_only: bool) -> Parsed | Fault:
    """Read a reply of any length and content; no reply raises an exception.

    The first broken rule gives the fault, in the order of CODES. An analyze-only prompt allows the
    refusal INSUFFICIENT EVIDENCE, any other prompt NOT FOUND. The citations are still to be held
    against the evidence (`contract.judge`).
    """
    try:
        return _parse(reply, settings, analyze_only=analyze_only)
    except _BrokenError as error:
        return error.fault
