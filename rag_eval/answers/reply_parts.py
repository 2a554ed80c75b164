"""What both forms of a reply share: the terms it must keep to, what it says, cite tokens, refusals.

Belongs here: types and the rules that do not depend on the form.
"""

import dataclasses
import re
from typing import Literal, NoReturn

from rag_eval.answers.abstaining import MAX_GAPS_CHARS, states_an_answer
from rag_eval.answers.codes import ContractCode
from rag_eval.answers.paths import has_content
from rag_eval.records.answer_settings import ResponseSchema
from rag_eval.records.answers import INSUFFICIENT_EVIDENCE, NOT_FOUND
from rag_eval.records.problems import quoted

MAX_CITATIONS = 200
MAX_TOKEN_CHARS = 2000

ParsedOutcome = Literal["answered", "not_found", "insufficient_evidence", "contract_error_reply"]

CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
"""Characters that no reply may hold: control characters but tabs and line ends, and lone surrogates."""

_TOKEN = re.compile(r"(?P<doc>\S(?:.{0,1998}\S)?):(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?")
_SEVERAL = re.compile(r":[0-9]+(?:-[0-9]+)?\]?[,;]\s")  # several tokens in one text
_GAPS = re.compile(rf"{INSUFFICIENT_EVIDENCE}(?:[\s.:;,*_–—-]+(?P<gaps>.*))?", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class Terms:
    """What a reply must keep to: the form, the allowed verdicts, which refusal is allowed (analyze-only: INSUFFICIENT EVIDENCE, else NOT FOUND), the length."""

    response_schema: ResponseSchema
    verdicts: tuple[str, ...]
    analyze_only: bool
    max_reply_chars: int


@dataclasses.dataclass(frozen=True, slots=True)
class Citation:
    """One citation as the reply gives it: a document, its lines (from 1, both included), and what it is said to say (may be empty)."""

    doc_id: str
    first: int
    last: int
    quote: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Parsed:
    """What a reply says; `text` has the inline `[token]` marks still in it."""

    outcome: ParsedOutcome
    text: str
    citations: tuple[Citation, ...] = ()
    verdict: str = ""
    delta_s: float | None = None
    lambda_state: str = ""


class BrokenError(Exception):
    """A reply breaks a rule; `code` says which."""

    def __init__(self, code: ContractCode, message: str) -> None:
        super().__init__(message)
        self.code: ContractCode = code


def broken(code: ContractCode, message: str) -> NoReturn:
    """Raise BrokenError."""
    raise BrokenError(code, message)


def read_token(text: str) -> Citation | None:
    """`docs/guide.md:3-7` as a citation; None where it is no cite token. One pair of brackets or backticks around it is tolerated.

    Examples
    --------
    >>> read_token("[docs/guide.md:3-7]")
    Citation(doc_id='docs/guide.md', first=3, last=7, quote='')
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
    first = int(match["first"])
    last = int(match["last"] or first)
    return Citation(match["doc"], first, last) if 1 <= first <= last else None


def short(value: object) -> str:
    """Beginning of an untrusted value, in ASCII, for a message."""
    return quoted(value, 80).encode("ascii", "backslashreplace").decode()


def no_answer(gaps: str) -> None:
    """Raise BrokenError where what a refusal says of its gaps is too long for that, or says what the answer is; see `abstaining.states_an_answer`."""
    if len(gaps) > MAX_GAPS_CHARS:
        broken(
            "refusal_not_allowed",
            f"a refusal names its gaps in {MAX_GAPS_CHARS} characters at most.",
        )
    if states_an_answer(gaps):
        broken("refusal_not_allowed", "a refusal does not say what the answer is.")


def refusal_in(text: str) -> tuple[ParsedOutcome, bool] | None:
    """(outcome, whether it names gaps) of a text that is nothing but a refusal; raises BrokenError where it is too long, or states an answer."""
    bare = text.strip(" \t\r\n*_`\"'.!")
    if bare == NOT_FOUND:
        return "not_found", True
    match = _GAPS.fullmatch(text.strip(" \t\r\n*_`\"'"))
    if match is None:
        return None
    no_answer(match["gaps"] or "")
    return "insufficient_evidence", has_content(match["gaps"] or "")


def allowed_refusal(outcome: ParsedOutcome, terms: Terms, *, gaps: bool) -> ParsedOutcome:
    """The outcome of a refusal, if it is the one that the prompt allowed and names its gaps where it must; else BrokenError."""
    wanted = "insufficient_evidence" if terms.analyze_only else "not_found"
    if outcome != wanted:
        phrase = INSUFFICIENT_EVIDENCE if terms.analyze_only else NOT_FOUND
        broken("refusal_not_allowed", f"the allowed refusal is {phrase}.")
    if outcome == "insufficient_evidence" and not gaps:
        broken("missing_gaps", f"name what is missing after {INSUFFICIENT_EVIDENCE}:")
    return outcome
