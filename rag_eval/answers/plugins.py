"""Domain validators, ours and of the entry-point group `rag_eval.validators`, and postprocessors.

Postprocessors are of the group `rag_eval.postprocessors`.
"""

import dataclasses
import importlib.metadata
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field

from rag_eval.answers.contract import join_named, mark_again
from rag_eval.answers.replies import Fault
from rag_eval.core.config import Answers, PluginUse
from rag_eval.core.errors import InputError, Problem, quoted
from rag_eval.core.parts import FOREIGN
from rag_eval.core.rows import suggest
from rag_eval.core.types import Answer, AnswerFinding, CitedSpan, Evidence, Mode
from rag_eval.corpus.chunking import segments, spans
from rag_eval.measures.support import SentenceSupport, citation_support
from rag_eval.trust.guard import screen

MAX_MESSAGE_CHARS = 300


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

# ---- Regular expressions of gold sets, with limits of size and time

SECONDS = 2.0
"""Time limit of one pattern over the text of an answer."""
MAX_PATTERN_CHARS = 500
MAX_REPEATS = 100_000
"""Most repeats of a pattern, multiplied; to compile more would take seconds."""
_COUNTS = re.compile(r"\{(?:\d*,)?(\d+)")


class PatternTimeoutError(Exception):
    """A pattern ran out of time."""


class TimedPattern:
    """A pattern in the syntax of the `regex` package, with a time limit for its searches.

    Raises ValueError for a pattern that is too long, repeats too often or does not compile.
    """

    def __init__(self, pattern: object) -> None:
        import regex  # type: ignore[import-untyped]  # the package has no types; not in the core

        if not isinstance(pattern, str) or not 1 <= len(pattern) <= MAX_PATTERN_CHARS:
            raise ValueError(f"a pattern is a text of 1 to {MAX_PATTERN_CHARS} characters")
        self.pattern = pattern
        repeats = math.prod(int(count[:9]) or 1 for count in _COUNTS.findall(pattern))
        if repeats > MAX_REPEATS:
            raise ValueError(f"pattern {pattern!r}: repeat counts multiply to over {MAX_REPEATS}")
        try:
            self._compiled: Any = regex.compile(pattern)
        except (regex.error, RecursionError, OverflowError, ValueError) as error:
            raise ValueError(f"pattern {pattern!r} does not compile: {error}") from None

    def count_in(self, text: str, at_most: int | None = None, seconds: float = SECONDS) -> int:
        """Count the matches in a text; raises PatternTimeoutError."""
        try:
            matches = self._compiled.finditer(text, timeout=seconds)
            return sum(1 for _ in itertools.islice(matches, at_most))
        except TimeoutError:
            message = f"pattern {self.pattern!r} took longer than {seconds:g} s"
            raise PatternTimeoutError(message) from None


# ---- Our validators

_Pattern = Annotated[TimedPattern, BeforeValidator(TimedPattern)]


class _OwnValidator(BaseModel, extra="forbid", arbitrary_types_allowed=True):
    """The fields are the options."""


class _BanRegex(_OwnValidator):
    """Rejects an answer that matches one of `patterns`."""

    patterns: tuple[_Pattern, ...] = Field(min_length=1, max_length=100)

    def __call__(self, candidate: Candidate) -> str | None:
        matching = (one.pattern for one in self.patterns if one.count_in(candidate.body, 1))
        banned = next(matching, None)
        return None if banned is None else f"the answer must not match {quoted(banned)}."


class _MinCount(_OwnValidator):
    """Rejects an answer with under `min_count` matches of `pattern`, inline marks included."""

    pattern: _Pattern
    min_count: int = Field(ge=1, le=10_000)

    def __call__(self, candidate: Candidate) -> str | None:
        count, wanted = self.pattern.count_in(candidate.body), self.min_count
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
        return f"has words that what it cites lacks: {join_named(missing)}"
    exchanged = sentence.exchanged_words()
    return f"exchanges words of what it cites: {join_named(exchanged)}" if exchanged else ""


OWN_VALIDATORS: dict[str, Factory] = {
    "ban_regex": _BanRegex.model_validate,
    "require_citation_support": _CitationSupport.model_validate,
    "require_min_inline_regex_count": _MinCount.model_validate,
}

# ---- The plug-ins of a gold set


def _load_plugin(
    use: PluginUse, kind: Literal["validator", "postprocessor"], built_in: Mapping[str, Factory]
) -> Any:
    """Load a plug-in of ours or an installed one with its options; raises InputError."""
    entries = importlib.metadata.entry_points(group=f"rag_eval.{kind}s")
    installed = {entry.name: entry for entry in entries}
    field, name = f"answers.{kind}s.{use.name}", use.name
    names = sorted(installed.keys() | built_in.keys())
    if name not in names:
        message = f"no {kind} of this name is installed{suggest(name, names)}"
        accepted = ", ".join(names) or "none is installed"
        raise InputError.of(f"unknown_{kind}", message, field=field, found=name, accepted=accepted)
    try:
        return (built_in.get(name) or installed[name].load())(use.options)
    except ValueError as error:  # pydantic's ValidationError is a subclass
        message = quoted(" ".join(str(error).split()), 400)
        raise InputError.of(f"bad_{kind}_options", message, field=field) from None
    except FOREIGN as error:
        message = f"it cannot be loaded: {quoted(repr(error), 300)}"
        raise InputError.of(f"broken_{kind}", message, field=field) from None


class _Extracted(BaseModel, extra="forbid"):
    """A finding as a postprocessor gives it; `segment` as in `AnswerFinding`."""

    kind: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")
    text: str = Field(min_length=1, max_length=2000)
    segment: int = Field(default=-1, ge=-1)


class _Processed(BaseModel, extra="forbid"):
    """What a postprocessor makes of an answer: another text or None, and findings."""

    text: str | None = Field(default=None, max_length=1_000_000)
    findings: tuple[_Extracted, ...] = Field(default=(), max_length=200)


Postprocess = Callable[[Candidate], Mapping[str, Any]]
"""Candidate -> {text, findings}, both optional. It must be deterministic."""


class Plugins(NamedTuple):
    """Validators and postprocessors of a gold set with their names, in its order."""

    validators: list[tuple[str, Check]]
    postprocessors: list[tuple[str, Postprocess]]

    def validate(self, candidate: Candidate) -> list[Fault]:
        """Return what the validators object; one that raises rejects with `validator_error`."""
        objections: list[Fault] = []
        for name, check in self.validators:
            try:
                if (message := check(candidate)) is not None:
                    reason = quoted(str(message), MAX_MESSAGE_CHARS)
                    objections.append(Fault("validator_failed", f"{name}: {reason}"))
            except Exception as error:  # noqa: BLE001 - a validator is anybody's code
                reason = quoted(repr(error), MAX_MESSAGE_CHARS)
                objections.append(Fault("validator_error", f"{name} raised {reason}"))
        return objections

    def postprocess(
        self, candidate: Candidate
    ) -> tuple[Candidate, tuple[AnswerFinding, ...]] | Fault:
        """Return the candidate with its new text, and findings; a plug-in reads the text before it.

        A plug-in that raises or breaks a rule is the fault `postprocessor_error`. A new text must
        have as many sentences as the old one, because citations and inline marks name sentences by
        number.
        """
        findings: list[AnswerFinding] = []
        for name, process in self.postprocessors:
            try:
                processed = _Processed.model_validate(process(candidate))
                n = len(segments(candidate.text))
                if processed.text is not None and len(segments(processed.text)) != n:
                    raise ValueError(f"the text must keep its number of sentences, {n}")  # noqa: TRY301 - told below with the plug-in
                if any(finding.segment >= n for finding in processed.findings):
                    raise ValueError(f"a segment must be less than the number of sentences, {n}")  # noqa: TRY301 - told below with the plug-in
            except Exception as error:  # noqa: BLE001 - a plug-in is anybody's code
                reason = quoted(" ".join(str(error).split()), MAX_MESSAGE_CHARS)
                return Fault("postprocessor_error", f"{name}: {type(error).__name__}: {reason}")
            if processed.text is not None:
                body = mark_again(processed.text, candidate.body)
                candidate = dataclasses.replace(candidate, text=processed.text, body=body)
            findings += [
                AnswerFinding(name, **finding.model_dump()) for finding in processed.findings
            ]
        return candidate, tuple(findings)


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
