"""Find answers that do not use what was retrieved: FK019, the retrieval-to-answer gap."""

import json
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Literal, NamedTuple

import numpy as np

from rag_eval.corpus.analyzer import DocumentFrequencies, words
from rag_eval.measures.support import BAR, Score, groundedness

# ---- Phrases that refer to the sources, or say that the sources have no answer.

MOST = 20_000
"""Largest number of characters read of an answer."""
_WORD_LIST = re.compile(r"<(\w+)>")


def _phrases(kind: str) -> re.Pattern[str]:
    """Compile the phrases of every language; `<word>` stands for a list under `words`."""
    file = files("rag_eval.measures").joinpath("gap_phrases.json")
    content = json.loads(file.read_text("utf-8"))
    phrases = "|".join(f"(?:{phrase})" for part in content[kind].values() for phrase in part)
    while _WORD_LIST.search(phrases):
        phrases = _WORD_LIST.sub(lambda name: content["words"][name[1]], phrases)
    return re.compile(phrases, re.IGNORECASE)


_REFERENCE = _phrases("references")
_ACKNOWLEDGEMENT = _phrases("acknowledgements")
_NEGATOR = re.compile(
    r"\b(?:not(?! only)|never|without|instead of|rather than|regardless of|irrespective of"
    r"|independent(?:ly)? of|ignor(?:e|es|ed|ing)|disregard(?:s|ed|ing)?|no need|nothing|none"
    r"|neither|despite|contrary to|unlike|apart from|refus(?:e|es|ed|ing)|skip(?:ped|ping)?|cannot"
    r"|nicht|ohne|ungeachtet|unabhängig|statt|entgegen|pas|sans|sin|senza|sem|не|без|non|não|no)\b"
    r"|n['’]t\b|不是|没有|沒有|不(?:根据|依据|按照|看)|ではなく|なしに|않고|아니라|دون|بدون|ليس",
    re.IGNORECASE,
)
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_CLAUSE = re.compile(r"[.;:!?。！？\n]|,?\s+but\s|,\s*(?:aber|mais|pero|ma|mas|но)\s")
_LOOK_BACK = 60


def _refers_to_sources(text: str) -> str:
    """Return the first words that refer to the sources, or an empty text.

    A reference inside code or behind a negation, as in "without looking at the provided context",
    is none.
    """
    plain = _CODE.sub(" ", text[:MOST])
    for match in _REFERENCE.finditer(plain):
        before = plain[max(match.start() - _LOOK_BACK, 0) : match.start()]
        if not _NEGATOR.search(_CLAUSE.split(before)[-1]):
            return match[0]
    return ""


# ---- The verdict on an answer

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
    "citation_unsupported",
    "empty_answer",
    "no_verdict",
]
Cites = bool | Literal["no_verdict"] | None
"""Whether the citations of an answer support one of its sentences; None without a citation."""
VIOLATIONS: frozenset[Reason] = frozenset(
    {"content_unused", "citation_unsupported", "empty_answer"}
)
_USED = 0.45
"""Score from which a sentence uses the evidence; the name of a title may be missing."""
_SHOWN = 120
_QUOTE = re.compile(
    r'„[^“”"]{3,500}[“”"]|“[^”]{3,500}”|«[^»]{3,500}»|»[^«]{3,500}«|"[^"\n]{3,500}"'
    r"|「[^」]{3,500}」|『[^』]{3,500}』"
)
_QUOTED_WORDS = 3
"""Least number of words in a quote; fewer words in quotation marks are a term."""


class Gap(NamedTuple):
    """Verdict on an answer; `detail` is the deciding phrase or sentence, or empty."""

    reason: Reason
    detail: str = ""

    @property
    def violation(self) -> bool:
        """Whether the answer broke the rule."""
        return self.reason in VIOLATIONS


def retrieval_gaps(
    answers: Sequence[str],
    retrieved: Sequence[Sequence[str]],
    *,
    cites: Sequence[Cites] | None = None,
    purpose: Purpose = "answer",
    frequencies: DocumentFrequencies | None = None,
    score: Score | None = None,
) -> list[Gap]:
    """Judge whether every answer uses its retrieved texts.

    The first condition that holds makes an answer comply:

    - Nothing was retrieved, or the purpose is `context`.
    - The answer has a citation whose text supports a sentence of the answer.
    - The answer has no citation, and refers to the sources in words, rightly or wrongly, without a
      negation.
    - The answer states that nothing relevant was found.
    - The score of one sentence (see `support`) is 0.45 or more. A sentence that says otherwise than
      the evidence (`find_conflicts`) has at most 0.4.

    A quote of three words or more is also a sentence of its own, because the words around it may
    be in another language. A sentence of one or two content words must have all words in the
    evidence: "Python is great" does not use a text on Python.

    An answer without letter or digit after a retrieval is the violation `empty_answer`, because an
    empty answer must not look best. Only words are compared. So an answer that translates its
    sources without naming them is a violation.

    Retrieved texts without content count as not retrieved. `cites` tells whether the text that an
    answer cites supports one of its sentences (see `citation_support`), and is None without a
    citation. A false value is the violation `citation_unsupported`, unless the answer complies
    otherwise: a phrase does not mend a citation. The purpose `context` is for retrieval that only
    sets the tone. `frequencies` are as for `support`.

    `score` is a verifier, whose probability of 0.5 or more takes the place of the score. If
    a missing verdict leaves a case open, its reason is `no_verdict`, which is no violation.
    """
    shown = [[text for text in texts if _has_content(text)] for texts in retrieved]
    cites = cites or [None] * len(answers)
    verdicts = [
        _judge_without_overlap(answer, len(texts), is_cited, purpose)
        for answer, texts, is_cited in zip(answers, shown, cites, strict=True)
    ]
    open_cases = [at for at, verdict in enumerate(verdicts) if verdict is None]
    scored = groundedness(
        [_with_quotes(answers[at]) for at in open_cases],
        [shown[at] for at in open_cases],
        frequencies,
    )
    uses = np.array([one.reaches(_USED) for one in scored.supports], dtype=bool)
    unjudged = {at for at in open_cases if cites[at] == "no_verdict"}
    if score is not None and open_cases:
        texts = ["\n\n".join(shown[open_cases[at]]) for at in scored.answer_of.tolist()]
        verdicts_of = score(scored.sentences, texts)
        uses = scored.rescored(verdicts_of).score >= BAR
        failed = scored.answer_of[np.isnan(verdicts_of) & ~np.isnan(scored.score)]
        unjudged |= {open_cases[at] for at in failed.tolist()}
    first: dict[int, str] = {}
    for sentence in np.flatnonzero(uses).tolist():
        first.setdefault(open_cases[int(scored.answer_of[sentence])], scored.sentences[sentence])
    used = {at: Gap("content_used", text[:_SHOWN]) for at, text in first.items()}
    unused = [Gap("content_unused" if one is None else "citation_unsupported") for one in cites]
    used = {at: Gap("no_verdict") for at in unjudged} | used
    return [verdict or used.get(at, unused[at]) for at, verdict in enumerate(verdicts)]


def _judge_without_overlap(
    answer: str, n_texts: int, is_cited: Cites, purpose: Purpose
) -> Gap | None:
    """Return a verdict without comparing texts; None if only a comparison can decide."""
    if not n_texts or purpose == "context":
        return Gap("context_only" if n_texts else "no_retrieval")
    if not _has_content(answer):
        return Gap("empty_answer")
    if is_cited is True:
        return Gap("cited")
    if is_cited is None and (phrase := _refers_to_sources(answer)):
        return Gap("refers_to_sources", phrase[:_SHOWN])
    match = _ACKNOWLEDGEMENT.search(_CODE.sub(" ", answer[:MOST]))
    return Gap("acknowledged", match[0][:_SHOWN]) if match else None


def _with_quotes(answer: str) -> str:
    quotes = _QUOTE.findall(answer)
    long = [quote for quote in quotes if len(words(quote[1:-1])) >= _QUOTED_WORDS]
    return "\n\n".join([answer, *long])


def _has_content(text: str) -> bool:
    return any(character.isalnum() for character in text)
