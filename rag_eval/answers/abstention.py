"""Tell whether a whole answer says that the sources do not hold an answer.

The words and phrases of each language are in `refusals.toml`.
"""

import functools
import itertools
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from typing import Any, Literal

from rag_eval.core.types import INSUFFICIENT_EVIDENCE, NOT_FOUND
from rag_eval.corpus.chunking import spans
from rag_eval.corpus.markers import remove_marks
from rag_eval.trust.rules import LinearPattern, compile_phrases

Abstention = Literal["not_found", "insufficient_evidence"]

MAX_CHARS = 2000
"""Longest text that can abstain, because a longer text says more than a refusal."""
MAX_GAPS_CHARS = 500
"""Most characters in which a refusal may name the gaps in the evidence."""

_TOKEN = re.compile(
    rf"\W*(?:VERDICT\s*[=:]\W*)?(?P<token>{NOT_FOUND}|{INSUFFICIENT_EVIDENCE})\W*"
    r"(?:$|\n|(?<=[.:;,*_)\]—–-])\s)"
)
_HEADER_LINE = re.compile(r"^\W*CITATIONS\s*[=:].*$", re.MULTILINE)
_MARKUP = re.compile(r"[*_`#>|\"“”„«»「」]+|^\s*[-•]\s", re.MULTILINE)
_PART = re.compile(r"[:;](?=\s|$|[^\x00-\x7f])|[—–]|\s-\s")
_CLAUSE = re.compile(r"[,、()]+(?=\s|$|[^\x00-\x7f])")
_STATES = re.compile(
    r"\banswers?\b[^.;:!?\n]{0,80}?\b(?:is|are|was|were|(?:would|must|should|could|may|might) be)\b"
    r":?\s++(?!(?:\w+ly\s+)?(?:not|no|never|nowhere|missing|absent|unknown|unclear|unavailable|"
    r"lacking|needed|required|insufficient|impossible|undetermined|uncertain|inconclusive|"
    r"ambiguous|incomplete|partial|only|left|beyond|outside|given|stated|provided|yes or no|named|"
    r"in (?:none|neither|no)|nothing|none)\b)"
    r"|\banswers?\s*+[:=]\s*+(?!(?:not|none|unknown|missing|unavailable|n/a)\b)\w",
    re.IGNORECASE,
)


def states_an_answer(gaps: str) -> bool:
    """Tell whether a refusal's words about its gaps state the answer, as in "the answer is ...".

    A bare statement ("Paris is the capital") looks like a gap, so only its length is bounded.

    Examples
    --------
    >>> states_an_answer("the answer is Paris")
    True
    """
    return _STATES.search(" ".join(gaps.replace("’", "'").split())) is not None


def abstention(text: str) -> Abstention | None:
    """Tell how an answer abstains; None for an answer, an empty text or a doubtful text.

    The contract's tokens count in capitals at the beginning, before a line's end or punctuation.
    INSUFFICIENT EVIDENCE abstains with short gaps that do not state the answer. NOT FOUND abstains
    alone, or if the rest abstains too. Any other text abstains if one clause refuses, and all other
    clauses refuse, name the topic of the sources, or are courtesies. So a refusal before a guess,
    a reason or a part of the answer is an answer.

    Examples
    --------
    >>> abstention("I don't have enough information to answer this.")
    'insufficient_evidence'
    >>> abstention("Das geht aus dem Text nicht hervor. Bitte wenden Sie sich an den Hersteller.")
    'not_found'
    >>> abstention("The documents do not mention the price, but the pump costs 40 euros.") is None
    True
    """
    token = _TOKEN.match(text)
    if not token:
        return _acknowledgement(text)
    remainder = _HEADER_LINE.sub("", text[token.end("token") :]) if len(text) <= MAX_CHARS else text
    if token["token"] == INSUFFICIENT_EVIDENCE:
        answers = len(remainder) > MAX_GAPS_CHARS or states_an_answer(remainder)
        return None if answers else "insufficient_evidence"
    says_more = any(map(str.isalnum, remainder))
    refuses = not says_more or _acknowledgement(remainder.lstrip(" \t\r\n.:;,*_)]—–-"))
    return "not_found" if refuses else None


def _acknowledgement(text: str) -> Abstention | None:
    """Return how a text without a token abstains, as the first refusing clause says."""
    if len(text) > MAX_CHARS:
        return None
    plain = _MARKUP.sub("", unicodedata.normalize("NFKC", remove_marks(text).replace("’", "'")))
    sentences = [
        part for start, end in spans(plain) for part in _PART.split(plain[start:end].lower())
    ]
    verdicts = (language.judge(sentences) for language in _load_languages())
    return next((verdict for verdict in verdicts if verdict), None)


# ---- The clauses of a language

_KINDS: tuple[Abstention, ...] = ("insufficient_evidence", "not_found")
_Kind = Literal[Abstention, "lead", "topic", "courtesy", "more", "content"]
"""Kind of a clause: `more` continues the clause before it, `content` says anything else."""


@functools.cache
def _load_languages() -> "list[_Language]":
    content = files("rag_eval.answers").joinpath("refusals.toml").read_text("utf-8")
    return [_Language(name, table) for name, table in tomllib.loads(content).items()]


class _Language:
    """Reads clauses by the words and phrases of one language."""

    def __init__(self, name: str, table: Mapping[str, Any]) -> None:
        words, parts = table["words"], table.get("parts", {})

        def expand(phrase: str) -> list[str]:
            part = next((part for part in parts if f"<{part}>" in phrase), None)
            if part is None:
                return [phrase]
            filled = (phrase.replace(f"<{part}>", way) for way in parts[part])
            return list(itertools.chain.from_iterable(map(expand, filled)))

        def compile_rule(phrases: Iterable[str]) -> LinearPattern:
            expanded = itertools.chain.from_iterable(map(expand, phrases))
            return LinearPattern(compile_phrases(expanded, words, name))

        def compile_words(texts: Iterable[str]) -> re.Pattern[str]:
            joined = "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))
            return re.compile(joined if name == "zh" else rf"(?<!\w)(?:{joined})(?!\w)")

        self._spelling = table.get("spelling", ())
        self._object, self._subject = table["ground"]
        self._fillers, self._joints = map(compile_words, (table["fillers"], table["joints"]))
        kinds = (*_KINDS, "lead", "topic", "courtesy")
        self._rules = {kind: compile_rule(table[kind]) for kind in kinds}
        for first in ("conjunction", "pronoun", "content", "goes_on"):
            self._rules[first] = compile_rule([f"^ {{{first}}}"])
        self._sources, self._verbs = compile_rule(["{src}"]), compile_rule(["{verb}"])

    def judge(self, sentences: Iterable[str]) -> Abstention | None:
        """Return how the first refusing clause abstains, or None if any clause says more."""
        first: Abstention | None = None
        is_grounded = False
        for sentence in sentences:
            before = ""
            for clause in self._split(sentence):
                kind = self._judge_clause(clause, is_grounded=is_grounded, before=before)
                if kind == "content":
                    return None
                if kind in {"not_found", "insufficient_evidence"}:
                    first = first or kind
                is_grounded |= kind == "lead" or self._sources.matches(clause.encode())
                before = before if kind == "lead" else kind
        return first

    def _split(self, sentence: str) -> Iterator[str]:
        for spelling, replacement in self._spelling:
            sentence = sentence.replace(spelling, replacement)
        marked = self._joints.sub(r", \g<0>", self._fillers.sub(" ", sentence))
        for clause in _CLAUSE.split(marked):
            if words := " ".join(clause.split()).strip(" .!?…'。"):
                yield words

    def _judge_clause(self, clause: str, *, is_grounded: bool, before: str) -> _Kind:
        """Judge a clause; `before` is the kind of the clause before it in the sentence."""
        words = clause
        while (after := self._cut("conjunction", words)) is not None:
            words = after
        led = self._cut("lead", words)
        refusal = self._find_refusal(words, is_grounded=is_grounded)
        refusal = refusal or self._find_refusal(led or "", is_grounded=True)
        if refusal or not words or led == "":
            return refusal or "lead"
        states = re.search(r"\d", words) is not None
        if self._cut("courtesy", words) is not None:
            return "courtesy"
        if self._cut("topic", words) is not None and not states:
            return "topic"
        states |= self._cut("content", clause) is not None or self._verbs.matches(words.encode())
        goes_on = self._cut("goes_on", clause) is not None or before == "courtesy" or not states
        return "more" if before and goes_on else "content"

    def _find_refusal(self, text: str, *, is_grounded: bool) -> Abstention | None:
        """Return how a clause abstains; a grounded clause may leave out the sources."""
        texts = [text] if text else []
        if is_grounded and text:
            words = self._cut("pronoun", text) or text
            texts += [f"{text} {self._object}", f"{self._subject} {words}"]
        kinds = (kind for kind in _KINDS if any(self._cut(kind, it) is not None for it in texts))
        return next(kinds, None)

    def _cut(self, rule: str, clause: str) -> str | None:
        """Return the rest after a phrase at the beginning of a clause; None without the phrase."""
        data = f"{clause} eos".encode()  # the end of a clause is a word of phrases
        start, end = next(self._rules[rule].find(data), (1, 1))
        if start > 0:
            return None
        return data[end:].decode().removesuffix("eos").strip(" ")
