"""Does a whole answer say that it cannot answer? One function, for recorded answers and for the gap between retrieval and answer.

Belongs here: English acknowledgements that nothing relevant was found. A refusal for other reasons ("I can't help with that") is none, nor is a
sentence that merely speaks of something not being found. Precision comes first: what is not sure is an answer.
"""

import re
from typing import Literal

from rag_eval.records.answers import INSUFFICIENT_EVIDENCE, NOT_FOUND

Abstention = Literal["not_found", "insufficient_evidence"]

MAX_CHARS = 2000
"""A longer text says more than that it has no answer."""

_TOKEN = re.compile(
    rf"\W*(?:VERDICT\s*[=:]\W*)?(?P<token>{NOT_FOUND}|{INSUFFICIENT_EVIDENCE})\W*(?:$|\n|(?<=[.:;,*_)\]—–-])\s)"
)
MAX_GAPS_CHARS = 500
"""What a refusal may say of its gaps."""

_STATES = re.compile(
    r"\banswers?\b[^.;:!?\n]{0,80}?\b(?:is|are|was|were|(?:would|must|should|could|may|might) be)\b:?\s++"
    r"(?!(?:\w+ly\s+)?(?:not|no|never|nowhere|missing|absent|unknown|unclear|unavailable|lacking|needed|required|insufficient|impossible|undetermined|uncertain|inconclusive|ambiguous|incomplete|partial|only|left|beyond|outside|given|stated|provided|yes or no"
    r"|named|in (?:none|neither|no)|nothing|none)\b)"
    r"|\banswers?\s*+[:=]\s*+(?!(?:not|none|unknown|missing|unavailable|n/a)\b)\w",
    re.IGNORECASE,
)
_HEADER_LINE = re.compile(r"^\W*CITATIONS\s*[=:].*$", re.MULTILINE)
_MARKUP = re.compile(r"[*_`#>]+|\[\d{1,3}(?:\s*,\s*\d{1,3})*\]")
_CLAUSE = re.compile(r"(?<=[.!?])[\"')\]]*\s+|\s*[;\n]+\s*|\s+[—–-]+\s+|[—]")

_ADJECTIVE = r"(?:(?:relevant|specific|sufficient|enough|further|more|other|direct|explicit|such|clear|definitive|additional|adequate|detailed|reliable|useful|necessary|required|needed|matching|suitable|any|the|an?|this|that) )*"
_PLACE = r"(?:context|documents?|documentation|passages?|sources?|text|texts|excerpts?|search results?|results|materials?|articles?|knowledge base|snippets?|references|records|corpus|files?|pages?|evidence|information|data|content)"
_GIVEN = r"(?:provided|given|retrieved|available|supplied|above|cited|attached|current|search|indexed|returned|listed)"
_SOURCE = rf"(?:(?:the|these|this|those|my|your|our|any of the|none of the) )?(?:{_GIVEN} )*{_PLACE}(?: (?:that )?(?:(?:I|we) (?:have|was given|were given)|(?:I|we) have access to|(?:was|were|is|are) )?(?:{_GIVEN}|retrieved))?"
_KNOWLEDGE = r"(?:information|context|details?|knowledge|answers?|mention|documents?|documentation|passages?|sources?|results?|anything|reference|content)"
_RESEARCH = r"(?:evidence|data|research|studies|proof)"
_WH = r"(?:who|whom|whose|what|when|where|why|how|whether|if|which)"
_END = r"\s*[.!?…\"')\]]*$"
_ABOUT = r"(?: (?:to|about|on|regarding|concerning|for|of|that|in|from|within|with|available|provided|given|found|here|necessary|needed|which|based|related|relating|at)\b.*)?"
# science speaks of missing evidence too: only what is missing for the answer or in the sources counts
_ABOUT_RESEARCH = rf"(?: (?:to (?:answer|respond|address|give|provide an|reply)\b.*|(?:available|provided|given|found)|(?:available |provided |given |found )?(?:in|from|within|among) (?:the |these |this |my )?(?:{_GIVEN} )*{_PLACE}\b.*|(?:about|on|regarding|for) (?:this|that|the|your) (?:question|topic|query)))?"
_CANNOT = r"(?:can(?:no|')t|cannot|can not|could(?: not|n't)|am (?:unable|not able) to|was (?:unable|not able) to|were (?:unable|not able) to|are (?:unable|not able) to|(?:did|do)(?: not|n't))"
_NOT_HAVE = r"(?:(?:do|did)(?: not|n't) have|don't currently have|lack|have no|have not got|haven't got|(?:do|did)(?: not|n't) see|(?:do|did)(?: not|n't) find|(?:have not|haven't) found|found no|find no|see no)"

_NOT_FOUND_SENTENCES = (
    rf"(?:I|we) {_CANNOT} (?:find|locate|see|identify) {_ADJECTIVE}(?:{_KNOWLEDGE}{_ABOUT}|{_RESEARCH}{_ABOUT_RESEARCH}|{_WH}\b.*|(?:it|this|that)(?: (?:in|within|among) {_SOURCE}\b.*)?)",
    rf"(?:I|we) (?:found|find|see) (?:no|nothing)(?: {_ADJECTIVE}(?:{_KNOWLEDGE}{_ABOUT}|{_RESEARCH}{_ABOUT_RESEARCH}))?(?: (?:in|within|among) {_SOURCE}\b.*)?",
    r"(?:(?:the|this|that) )?(?:answer|information|requested information|question)(?: to (?:this|that|the|your) question)? (?:is|was|are|were|could|can)(?: ?n[o']t| not) (?:be )?(?:found|available|present|given|provided|contained|mentioned|included|answered|addressed|located)(?: (?:in|by|from|within|on|with|based)\b.*)?",
    rf"no {_ADJECTIVE}(?:{_KNOWLEDGE}(?: (?:to|about|on|regarding|for|in|from)\b.*?)?) (?:was|were|is|are|could be|can be|has been|have been)(?: \w+)? (?:found|available|provided|given|located|retrieved|returned|present|contained)(?: (?:to|about|on|regarding|for|in|from|within)\b.*)?",
    rf"no {_ADJECTIVE}(?:{_KNOWLEDGE})(?: (?:found|available|provided|retrieved))?(?: (?:in|about|on|for) .*)?",
    rf"there (?:is|are|was|were) (?:no|nothing|not any)(?: {_ADJECTIVE}{_KNOWLEDGE}(?: (?:about|on|regarding|for|in|from|within|available|provided|given|found|here|to answer)\b.*)?| (?:about|on|regarding)\b.* in {_SOURCE}\b.*| in {_SOURCE}\b.*)?",
    rf"(?:none of )?{_SOURCE} (?:does|do|did)(?: not|n't) (?:seem to |appear to |actually |explicitly |directly |specifically )*(?:mention|address|cover|discuss|answer|specify|say|state|describe|explain|tell|reveal|indicate|touch on|talk about|(?:contain|include|provide|have|offer|give|hold) {_ADJECTIVE}(?:{_KNOWLEDGE}|answer)\b)(?: .*)?",
    rf"(?:none of|nothing in) (?:the |these |those )?(?:{_GIVEN} )*{_PLACE}(?: {_GIVEN})? (?:mentions?|address(?:es)?|covers?|discuss(?:es)?|answers?|specif(?:y|ies)|says?|states?|describes?|explains?|contains? .*|provides? .*|includes? .*|(?:is|are) (?:relevant|about)\b)(?: .*)?",
    rf"{_SOURCE} (?:is|are) (?:not relevant|irrelevant|not related|unrelated)(?: to\b.*)?",
    rf"(?:this|that|it) (?:is|was)(?: not|n't) (?:mentioned|found|covered|addressed|specified|stated|discussed|answered|available) (?:in|by|within) {_SOURCE}\b.*",
    r"(?:nothing|none) (?:relevant )?(?:on|about|regarding) (?:this|that|it)(?: (?:topic|question|subject))?",
    r"(?:not found|n/a|unanswerable|no answer|no answer found|nothing found|none found)",
)
_INSUFFICIENT_SENTENCES = (
    rf"(?:I|we) (?:{_NOT_HAVE}|(?:do|did)(?: not|n't) have access to) {_ADJECTIVE}(?:{_KNOWLEDGE}{_ABOUT}|{_RESEARCH}{_ABOUT_RESEARCH})",
    rf"(?:I|we) (?:do|did)(?: not|n't) know(?: the answer)?(?: to (?:this|that|the|your) question)?(?: {_WH}\b.*)?(?:,? (?:based on|from) .*)?",
    r"(?:I am|I'm|we are|we're) not (?:sure|certain)(?: (?:about|of) (?:this|that|it|the answer))?",
    r"(?:I have|I've) no idea",
    rf"(?:I|we) {_CANNOT} (?:provide|give|offer|determine|confirm|verify|tell|say|know|answer|conclude|establish|respond)(?: (?:an?|the|any|to|this|that|your|it|you|for|with|from|based|accurately|definitively|certain|exactly|{_WH})\b.*)?",
    r"(?:it is|it's) (?:not possible|impossible) to (?:answer|determine|say|tell|know|give|provide)\b.*",
    r"(?:(?:this|that|the|your) )?question (?:cannot|can't|can not|could not) be (?:reliably |fully |definitively )?answered(?: .*)?",
    rf"(?:there (?:is|are|was|were) )?(?:not enough|insufficient|too little|not sufficient|inadequate) {_ADJECTIVE}(?:{_KNOWLEDGE}{_ABOUT}|{_RESEARCH}{_ABOUT_RESEARCH})",
    rf"there (?:isn't|aren't|is not|are not) (?:enough|sufficient) {_ADJECTIVE}(?:{_KNOWLEDGE}{_ABOUT}|{_RESEARCH}{_ABOUT_RESEARCH})",
    rf"{_SOURCE} (?:is|are)(?: not|n't) (?:enough|sufficient)(?: (?:to|for)\b.*)?",
    rf"{_SOURCE} (?:is|are) insufficient(?: (?:to|for)\b.*)?",
    r"(?:unknown|insufficient evidence|insufficient information|insufficient context)",
)
_LEAD = re.compile(
    r"(?:(?:I am|I'm|we are|we're) (?:very |truly |so )?sorry,?(?: (?:but|that))?|sorry,?(?: but)?|(?:my |I )?apolog(?:ies|i[sz]e),?(?: but| that)?|I(?:'m| am) afraid(?: that)?|unfortunately,?|regrettably,?|sadly,?"
    r"|however,|therefore,|thus,|so,?|hence,|in short,|in summary,|currently,|at (?:this|the) (?:time|moment),?|it (?:seems|appears|looks like)(?: that)?|as an AI(?: language model| assistant)?,|to answer (?:this|your|the) question,|answer:"
    rf"|(?:based (?:solely |only )?(?:up)?on|according to|from|given|in|within|using|with|after (?:reviewing|searching|checking)) [^,.;:]{{0,80}}?{_PLACE}[^,.;:]{{0,60}},)\s*",
    re.IGNORECASE,
)
_CONTRAST = re.compile(
    r"\b(?:but|however|although|though|nevertheless|nonetheless|yet|whereas|while|instead|except|unless|until|besides|apart from|other than|guess|probably|likely|perhaps|maybe|suggest|assume|believe|think)\b|,\s*(?:so|and|it|he|she|they|the|this|that)\b",
    re.IGNORECASE,
)
_CLOSING = re.compile(
    r"(?:(?:please|kindly) (?:provide|share|supply|consult|refer|check|contact|clarify|rephrase|try|ask|let me know|give|feel free|upload|specify)\b.*"
    r"|(?:could|can|would) you (?:please )?(?:provide|share|clarify|rephrase|specify|give)\b.*"
    r"|let me know if\b.*|feel free to\b.*|(?:I am|I'm) sorry\b[^,]{0,60}|sorry|(?:my )?apologies\b[^,]{0,60}|I apologi[sz]e\b[^,]{0,60}"
    r"|(?:if you|you (?:may|might|can|could|should)(?: want| wish| need)?(?: to)?) (?:try|consult|check|refer|contact|provide|look|ask|rephrase|share|have|give|would like)\b.*"
    r"|I (?:would )?(?:recommend|suggest) (?:consulting|checking|contacting|asking|looking|referring)\b.*|is there anything else\b.*)",
    re.IGNORECASE,
)


def _compiled(sentences: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"(?:{'|'.join(sentences)}){_END}", re.IGNORECASE | re.DOTALL)


_KINDS: tuple[tuple[Abstention, re.Pattern[str]], ...] = (
    ("not_found", _compiled(_NOT_FOUND_SENTENCES)),
    ("insufficient_evidence", _compiled(_INSUFFICIENT_SENTENCES)),
)


def _kind(sentence: str) -> Abstention | None:
    """What one sentence acknowledges; None where it says anything else, or goes on to say something."""
    rest = sentence
    while lead := _LEAD.match(rest):
        rest = rest[lead.end() :]
    if _CONTRAST.search(rest):
        return None
    return next((kind for kind, pattern in _KINDS if pattern.match(rest)), None)


def states_an_answer(gaps: str) -> bool:
    """Whether what a refusal says of its gaps says what the answer is ("the answer is ...", "answer: ...").

    Notes
    -----
    A bare statement ("Paris is the capital") cannot be told from a gap by its form, and is not found: what is bounded is its length.

    Examples
    --------
    >>> states_an_answer("the answer is Paris"), states_an_answer("the answer is not in the passages"), states_an_answer("the population")
    (True, False, False)
    """
    return _STATES.search(" ".join(gaps.replace("’", "'").split())) is not None


def abstention(text: str) -> Abstention | None:
    """How an answer abstains; None where it answers, is empty, or is not surely an abstention.

    The contract's tokens stand in capitals at the beginning, before a line's end or a mark of punctuation. INSUFFICIENT EVIDENCE abstains where
    what is named after it has at most MAX_GAPS_CHARS characters and does not say what the answer is (`states_an_answer`); NOT FOUND where it
    stands alone, or what follows abstains by itself. Other texts abstain where every sentence, citation markers and markup aside,
    acknowledges that nothing was found or known, or is a closing courtesy ("Please provide more context."), and at least one acknowledges.

    Parameters
    ----------
    text
        The whole answer.

    Returns
    -------
    `not_found` (nothing relevant is there), `insufficient_evidence` (what is there does not carry an answer) or None.

    Examples
    --------
    >>> abstention("I don't have enough information to answer this.")
    'insufficient_evidence'
    >>> abstention("The documents do not mention the opening hours. Please check the website.")
    'not_found'
    >>> abstention("The key was not found in the cache, so it is computed.") is None
    True
    """
    token = _TOKEN.match(text)
    if token:
        rest = _HEADER_LINE.sub("", text[token.end("token") :]) if len(text) <= MAX_CHARS else text
        if token["token"] == INSUFFICIENT_EVIDENCE:
            return (
                None
                if len(rest) > MAX_GAPS_CHARS or states_an_answer(rest)
                else "insufficient_evidence"
            )
        return (
            "not_found"
            if not any(map(str.isalnum, rest)) or _acknowledged(rest.lstrip(" \t\r\n.:;,*_)]—–-"))
            else None
        )
    return _acknowledged(text)


def _acknowledged(text: str) -> Abstention | None:
    """How a text without a token abstains."""
    if len(text) > MAX_CHARS:
        return None
    plain = " ".join(
        _MARKUP.sub("", line).strip() for line in text.replace("’", "'").splitlines(keepends=True)
    )
    found: list[Abstention] = []
    for piece in _CLAUSE.split(plain):
        sentence = " ".join(piece.split()).strip(" \"'()")
        if not sentence or _CLOSING.fullmatch(sentence.rstrip(".!?")):
            continue
        kind = _kind(sentence)
        if kind is None:
            return None
        found.append(kind)
    return found[0] if found else None


def abstains(text: str) -> bool:
    """Whether the whole answer says that it cannot answer; see `abstention`."""
    return abstention(text) is not None
