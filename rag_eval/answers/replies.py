"""Replies of a model -> what they say, or the one code that says why they break the contract. No reply raises an exception.

Belongs here: choosing the form. The forms are `json_form` and `verdict_form`; whether what is cited exists is judged by `gates`.

A reply is the JSON object `{citations, answer, deltaS, lambda}`, citations first (also in a json fence); or the two header lines `VERDICT=` and
`CITATIONS=` and then the text; or `{error, fix}`; or nothing but the allowed refusal.
"""

import re

from rag_eval.answers.codes import Fault
from rag_eval.answers.json_form import FENCE, json_reply
from rag_eval.answers.reply_parts import (
    CONTROL,
    BrokenError,
    Citation,
    Parsed,
    ParsedOutcome,
    Terms,
    allowed_refusal,
    broken,
    read_token,
    refusal_in,
)
from rag_eval.answers.verdict_form import HEADER, verdict_reply

__all__ = ["Citation", "Parsed", "ParsedOutcome", "Terms", "parse_reply", "read_token"]


def _parsed(reply: str, terms: Terms) -> Parsed:
    if len(reply) > terms.max_reply_chars:
        broken("reply_too_long", f"the reply has more than {terms.max_reply_chars} characters.")
    text = reply.lstrip("\ufeff").strip()
    if not text:
        broken("empty_reply", "the reply is empty.")
    if CONTROL.search(text):
        broken("bad_characters", "control characters and lone surrogates are not text.")
    if refusal := refusal_in(text):
        return Parsed(allowed_refusal(refusal[0], terms, gaps=refusal[1]), text)
    if text[0] == "{" or FENCE.match(text):
        return json_reply(text, terms)
    if terms.response_schema == "verdict":
        return verdict_reply(text, terms)
    if HEADER.match(text):
        broken("wrong_form", "reply with the JSON object, not with VERDICT and CITATIONS lines.")
    if re.search(r'\{\s*"(?:citations|answer|deltaS|lambda)"', text):
        broken("explained_before_cited", "nothing may stand before the JSON object.")
    return broken("not_json", "the reply must be one JSON object.")


def parse_reply(reply: str, terms: Terms) -> Parsed | Fault:
    """Read a reply of any length and content.

    Returns
    -------
    Parsed
        It keeps to the form; what it cites is still to be judged.
    Fault
        The first rule that it breaks, in the order of `codes.ContractCode`.
    """
    try:
        return _parsed(reply, terms)
    except BrokenError as error:
        return Fault(error.code, str(error))
