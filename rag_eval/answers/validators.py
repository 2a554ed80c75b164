"""Domain validators: found by name in the entry-point group `rag_eval.validators`, given their options, asked about each answer. And the two that come with us.

Belongs here: the protocol, the look-up, `ban_regex` and `require_min_inline_regex_count`.

A validator of one's own is a package with, in its pyproject.toml,

    [project.entry-points."rag_eval.validators"]
    my_rule = "my_package:make_my_rule"

where `make_my_rule(options)` takes the mapping of gold_set.yaml, raises ValueError (pydantic's ValidationError is one) where it makes no sense, and
returns a function from `Candidate` to None (accepted) or a message that says what is wrong, which the model is shown when it is asked again.
"""

import dataclasses
import difflib
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rag_eval.answers.codes import Fault
from rag_eval.answers.patterns import TimedPattern
from rag_eval.records.answer_settings import ValidatorUse
from rag_eval.records.answers import Evidence, Mode
from rag_eval.records.citation import CitedSpan
from rag_eval.records.problems import InputError, Problem, quoted

GROUP = "rag_eval.validators"
MAX_MESSAGE_CHARS = 300

PatternText = Annotated[str, Field(min_length=1, max_length=500)]


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """An answer that passed the contract and awaits the domain validators; refusals are not asked about.

    Parameters
    ----------
    query_id, question
        What was asked.
    mode
        What answered.
    body
        The text as it was given, inline `[token]` marks included.
    text
        The text without the marks.
    verdict
        The VERDICT of the two-line form; empty elsewhere.
    citations, evidence
        What it cites and what it could cite.
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
Factory = Callable[[Mapping[str, Any]], Check]


@dataclasses.dataclass(frozen=True, slots=True)
class Validator:
    """A domain validator with its options, by its name."""

    name: str
    check: Check


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BanRegexOptions(_Options):
    """Options of `ban_regex`: patterns that no answer may match; `ignore_case` for `a` to match `A`."""

    patterns: tuple[PatternText, ...] = Field(min_length=1, max_length=100)
    ignore_case: bool = False


class MinCountOptions(_Options):
    """Options of `require_min_inline_regex_count`: a pattern, and how often the answer's text, inline marks included, must match it at least."""

    pattern: PatternText
    min_count: int = Field(ge=1, le=10_000)
    ignore_case: bool = False


def ban_regex(options: Mapping[str, Any]) -> Check:
    """Reject an answer that matches one of `patterns`. Raises ValueError for options that make no sense."""
    given = BanRegexOptions.model_validate(dict(options))
    patterns = [TimedPattern(pattern, ignore_case=given.ignore_case) for pattern in given.patterns]

    def check(candidate: Candidate) -> str | None:
        banned = next((pattern for pattern in patterns if pattern.count(candidate.body)), None)
        return None if banned is None else f"the answer must not match {quoted(banned.pattern)}."

    return check


def require_min_inline_regex_count(options: Mapping[str, Any]) -> Check:
    """Reject an answer that matches `pattern` fewer than `min_count` times. Raises ValueError for options that make no sense."""
    given = MinCountOptions.model_validate(dict(options))
    pattern = TimedPattern(given.pattern, ignore_case=given.ignore_case)

    def check(candidate: Candidate) -> str | None:
        count = pattern.count(candidate.body)
        return (
            None
            if count >= given.min_count
            else f"the answer must match {quoted(pattern.pattern)} at least {given.min_count} times, and does {count} times."
        )

    return check


def _problems(use: ValidatorUse, error: ValueError) -> list[Problem]:
    field = f"answers.validators.{use.name}"
    if not isinstance(error, ValidationError):
        return [Problem("bad_validator_options", quoted(str(error), 400), field=field)]
    return [
        Problem(
            "bad_validator_options",
            quoted(part["msg"], 400),
            field=".".join([field, *map(str, part["loc"])]),
            found=quoted(part["input"]),
        )
        for part in error.errors(include_url=False)
    ]


def _factory(name: str) -> Factory | Problem:
    """The installed validator of a name, or why there is none."""
    installed = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
    entry = installed.get(name)
    if entry is None:
        near = difflib.get_close_matches(name, sorted(installed), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return Problem(
            "unknown_validator",
            f"no validator of this name is installed{hint}",
            field="answers.validators.name",
            found=name,
            accepted=", ".join(sorted(installed)) or "none is installed",
        )
    try:
        made: Factory = entry.load()
    except Exception as error:  # noqa: BLE001 - another package's import may fail in any way
        return Problem(
            "broken_validator",
            f"{quoted(entry.value)} cannot be loaded: {quoted(repr(error), 300)}",
            field="answers.validators.name",
            found=name,
        )
    return made


def load_validators(uses: Sequence[ValidatorUse]) -> tuple[Validator, ...]:
    """Validators of a gold set, in its order.

    Raises
    ------
    InputError
        `unknown_validator` (naming what is installed), `broken_validator`, `bad_validator_options`; every problem of every validator.
    """
    problems: list[Problem] = []
    loaded: list[Validator] = []
    for use in uses:
        factory = _factory(use.name)
        if isinstance(factory, Problem):
            problems.append(factory)
            continue
        try:
            loaded.append(Validator(use.name, factory(use.options)))
        except ValueError as error:
            problems += _problems(use, error)
        except Exception as error:  # noqa: BLE001 - likewise
            problems.append(
                Problem(
                    "broken_validator",
                    f"it does not take its options: {quoted(repr(error), 300)}",
                    field=f"answers.validators.{use.name}",
                )
            )
    if problems:
        raise InputError(problems)
    return tuple(loaded)


def validate(candidate: Candidate, validators: Sequence[Validator]) -> list[tuple[str, Fault]]:
    """(validator, what it holds against the answer), in order; a validator that raises rejects the answer with `validator_error`."""
    found: list[tuple[str, Fault]] = []
    for validator in validators:
        try:
            message = validator.check(candidate)
        except Exception as error:  # noqa: BLE001 - a validator is anybody's code; its failure is a failed answer
            found.append(
                (
                    validator.name,
                    Fault(
                        "validator_error",
                        f"{validator.name} raised {quoted(repr(error), MAX_MESSAGE_CHARS)}",
                    ),
                )
            )
            continue
        if message is not None:
            found.append(
                (
                    validator.name,
                    Fault(
                        "validator_failed",
                        f"{validator.name}: {quoted(str(message), MAX_MESSAGE_CHARS)}",
                    ),
                )
            )
    return found
