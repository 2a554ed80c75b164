"""The two-line form of a reply: `VERDICT=<allowed>`, `CITATIONS=<doc path>:<line>[-<line>], ...`, then the text; `:` for `=` and bold markers are tolerated.

Belongs here: finding and reading the two lines.
"""

import re
import unicodedata

from rag_eval.answers.paths import has_content, visible
from rag_eval.answers.reply_parts import (
    MAX_CITATIONS,
    Citation,
    Parsed,
    ParsedOutcome,
    Terms,
    allowed_refusal,
    broken,
    no_answer,
    read_token,
    refusal_in,
    short,
)
from rag_eval.records.answers import INSUFFICIENT_EVIDENCE, NOT_FOUND

_LISTED = re.compile(r"\s*+([^,;\s].*?:\s*[0-9]+(?:-[0-9]+)?[\]`*]*)\s*(?:,|;|$)")
HEADER = re.compile(r"[ \t]*(?:\*{1,3}|__)?(VERDICT|CITATIONS)(?:\*{1,3}|__)?[ \t]*[=:](.*)")
_AGAIN = re.compile(r"[\W\d_]*+(?:(?i:verdict)|CITATIONS)[\s*_`\"'\])]*+[=:]")
"""A line of the text that says either again, as a list item, in another case, behind any line end."""
_REFUSALS: dict[str, ParsedOutcome] = {
    NOT_FOUND: "not_found",
    INSUFFICIENT_EVIDENCE: "insufficient_evidence",
}


def _listed_citations(text: str) -> tuple[Citation, ...]:
    value = text.strip().strip("*").strip()
    if value.startswith("[") and value.endswith("]") and "]" not in value[:-1]:
        value = value[1:-1].strip()
    if not value or value.upper() == "NONE":
        return ()
    citations: dict[Citation, None] = {}
    at = 0
    while at < len(value):
        match = _LISTED.match(value, at)
        found = read_token(match[1].strip().strip("*")) if match else None
        if match is None or found is None or len(citations) >= MAX_CITATIONS:
            broken(
                "bad_citation", f"{short(value[at:])} is not a list of <doc path>:<line>[-<line>]."
            )
        citations[found] = None
        at = match.end()
    return tuple(citations)


def _header_lines(text: str) -> tuple[str, str, str]:
    """(verdict, citations, text after them); raises BrokenError where the two lines are not the first."""
    lines = text.split("\n")
    heads = [
        (number, match[1], match[2].strip().strip("*").strip())
        for number, line in enumerate(lines)
        if (match := HEADER.fullmatch(line.rstrip("\r")))
    ]
    names = [name for _, name, _ in heads]
    if "VERDICT" not in names:
        broken("missing_verdict", "the first line must be VERDICT=<one of the allowed>.")
    filled = [number for number, line in enumerate(lines) if line.strip()]
    if filled[0] != heads[0][0]:
        broken(
            "explained_before_cited", "nothing may stand before the lines VERDICT= and CITATIONS=."
        )
    if names[0] != "VERDICT":
        broken("wrong_form", "the line VERDICT= comes first, then CITATIONS=.")
    if "CITATIONS" not in names:
        broken("empty_citations", "the line CITATIONS= is missing.")
    if len(names) > len({*names}):
        broken("duplicate_key", "the lines VERDICT= and CITATIONS= may stand once each.")
    if filled[1] != heads[1][0]:
        broken(
            "explained_before_cited",
            "the line CITATIONS= comes right after VERDICT=, before any text.",
        )
    body = "\n".join(lines[heads[1][0] + 1 :]).strip()
    if any(
        _AGAIN.match(unicodedata.normalize("NFKC", visible(line))) for line in body.splitlines()
    ):
        broken("duplicate_key", "the lines VERDICT= and CITATIONS= may stand once each.")
    return heads[0][2], heads[1][2], body


def _verdict_outcome(verdict: str, terms: Terms) -> ParsedOutcome:
    outcome: ParsedOutcome = _REFUSALS.get(verdict, "answered")
    if verdict not in terms.verdicts:
        if outcome == "answered":
            broken(
                "verdict_not_allowed",
                f"the verdict {short(verdict)} is none of {', '.join(terms.verdicts)}.",
            )
        allowed_refusal(outcome, terms, gaps=True)
    return outcome


def verdict_reply(text: str, terms: Terms) -> Parsed:
    """Read a reply in the two-line form; raises BrokenError.

    A refusal is a verdict: one of the allowed, or the one that the prompt allows in any case.
    """
    verdict, cited, body = _header_lines(text)
    outcome, citations = _verdict_outcome(verdict, terms), _listed_citations(cited)
    refusal = refusal_in(body) if body else None
    if outcome == "answered":
        if refusal:
            broken("refusal_not_allowed", "the verdict says one thing and the text refuses.")
        if not citations:
            broken("empty_citations", "the line CITATIONS= is empty.")
        if not has_content(body):
            broken("empty_answer", "no text follows the two lines.")
    else:
        no_answer(body)
    named = refusal[1] if refusal and refusal[0] == outcome else has_content(body)
    if outcome == "insufficient_evidence" and not named:
        broken("missing_gaps", "name what is missing after the two lines.")
    return Parsed(outcome, body or NOT_FOUND, citations, verdict)
