"""FK019, the retrieval-to-answer gap: something was retrieved, and the answer neither cites it nor uses it. Severity: warning.

Belongs here: the verdict on each answer, with its reason. Nothing is repaired.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from rag_eval.measures.content import comparable
from rag_eval.measures.groundedness import SUPPORTED, DocumentFrequencies, groundedness
from rag_eval.measures.phrases import acknowledges_nothing_found, refers_to_sources

CODE = "FK019"
Purpose = Literal["answer", "context"]
Reason = Literal[
    "no_retrieval",
    "context_only",
    "cited",
    "refers_to_sources",
    "acknowledged",
    "content_used",
    "content_unused",
    "empty_answer",
]
VIOLATIONS: frozenset[Reason] = frozenset({"content_unused", "empty_answer"})
_FEW = 2  # content words up to which a sentence must be found whole: one word of two is a word, not use
_WHOLE = 0.999
_SHOWN = 120
_QUOTE = re.compile(
    r'„[^“”"]{3,500}[“”"]|“[^”]{3,500}”|«[^»]{3,500}»|»[^«]{3,500}«|"[^"\n]{3,500}"|「[^」]{3,500}」|『[^』]{3,500}』'
)
_QUOTED_WORDS = 3  # fewer in quotes are a term, not a quote


class Gap(NamedTuple):
    """Verdict on one answer.

    Parameters
    ----------
    violation
        Whether it is a gap.
    reason
        Why, or why not.
    detail
        The phrase or the sentence that decided, at most 120 characters; empty where there is none.
    """

    violation: bool
    reason: Reason
    detail: str = ""


def retrieval_gaps(
    answers: Sequence[str],
    retrieved: Sequence[Sequence[str]],
    *,
    cites: Sequence[bool] | None = None,
    purposes: Sequence[Purpose] | None = None,
    frequencies: DocumentFrequencies | None = None,
) -> list[Gap]:
    """Judge every answer.

    Parameters
    ----------
    answers
        Texts, as the user sees them.
    retrieved
        The texts that were retrieved for each answer; texts without content count as not retrieved.
    cites
        Whether the answer cites any of them by means other than its text (`Answer.citations` that are among the evidence).
    purposes
        `context` exempts retrieval that only sets the tone; default: all `answer`.
    frequencies
        Of the corpus, see `groundedness`.

    Returns
    -------
    list of Gap
        In the order of the answers.

    Notes
    -----
    Compliant, in the order tried: nothing retrieved; `purpose: context`; a citation; a reference to the sources that is not negated (also
    a false one: whether it is true is for citation measures); an explicit word that nothing relevant was found; or one sentence whose
    groundedness is 0.5 or more; a quote of three words or more is also read as a sentence of its own, because what stands around it may be in
    another language. A sentence of one or two content words must stand there with all of them: "Python is great" does not use
    a text on Python.

    An answer without any letter or digit that follows on a retrieval is a violation of its own reason, `empty_answer`: it neither
    cites nor uses nor acknowledges, and a count that leaves it out would look best for a system that says nothing.

    Overlap is of words. An answer that only translates its sources, without citing or naming them, is reported.
    """
    if (
        not len(answers)
        == len(retrieved)
        == len(cites if cites is not None else answers)
        == len(purposes if purposes is not None else answers)
    ):
        raise ValueError(
            "answers, retrieved, cites and purposes differ in length; accepted: one entry an answer in each"
        )
    shown = [[text for text in texts if _has_content(text)] for texts in retrieved]
    verdicts: list[Gap | None] = [
        _without_overlap(
            answer,
            len(texts),
            cited=bool(cites and cites[at]),
            purpose=purposes[at] if purposes else "answer",
        )
        for at, (answer, texts) in enumerate(zip(answers, shown, strict=True))
    ]
    open_cases = [at for at, verdict in enumerate(verdicts) if verdict is None]
    found = groundedness(
        [_with_quotes(answers[at]) for at in open_cases],
        [shown[at] for at in open_cases],
        frequencies,
    )
    uses = np.where(found.n_words <= _FEW, found.score >= _WHOLE, found.score >= SUPPORTED)
    first: dict[int, str] = {}
    for sentence in np.flatnonzero(uses)[::-1].tolist():
        first[open_cases[int(found.answer_of[sentence])]] = found.sentences[sentence]
    return [
        verdict
        or (
            Gap(violation=False, reason="content_used", detail=first[at][:_SHOWN])
            if at in first
            else Gap(violation=True, reason="content_unused")
        )
        for at, verdict in enumerate(verdicts)
    ]


def _without_overlap(answer: str, n_texts: int, *, cited: bool, purpose: Purpose) -> Gap | None:
    """Verdict that needs no comparison with the texts; None where one is needed."""
    if not n_texts or purpose == "context":
        return Gap(violation=False, reason="context_only" if n_texts else "no_retrieval")
    if not _has_content(answer):
        return Gap(violation=True, reason="empty_answer")
    if cited:
        return Gap(violation=False, reason="cited")
    if phrase := refers_to_sources(answer, n_texts):
        return Gap(violation=False, reason="refers_to_sources", detail=phrase[:_SHOWN])
    phrase = acknowledges_nothing_found(answer)
    return Gap(violation=False, reason="acknowledged", detail=phrase[:_SHOWN]) if phrase else None


def _with_quotes(answer: str) -> str:
    quotes = [
        quote
        for quote in _QUOTE.findall(answer)
        if len(comparable(quote[1:-1]).split()) >= _QUOTED_WORDS
    ]
    return "\n\n".join([answer, *quotes])


def _has_content(text: str) -> bool:
    return any(character.isalnum() for character in text)
