"""The rule file of the poisoning guard, as it is written: which keys a rule has and what they may say.

Belongs here: reading and checking the JSON, with an error that names the rule and the field. Not here: what a pattern is compiled to (`patterns`).
"""

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError, field_validator, model_validator

from rag_eval.records.configuration_parts import Part
from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.records.trust import Severity

RULES = Path(__file__).parent / "rules.json"
MAX_FILE_BYTES, MAX_RULES, MAX_PATTERN_CHARS = 4 << 20, 1000, 20_000

ViewKind = Literal["visible", "hidden", "decoded"]
RuleId = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Sentence = Annotated[str, StringConstraints(min_length=1, max_length=10_000)]


class RuleTests(Part):
    """Sentences that show what a rule is for, run by the tests of the project."""

    match: tuple[Sentence, ...] = Field(
        min_length=1, description="texts that the rule finds something in"
    )
    clean: tuple[Sentence, ...] = Field(
        min_length=1, description="harmless texts that look alike, in which it finds nothing"
    )


class Rule(Part):
    """One forbidden pattern, the views of a text it is looked for in, and why it is forbidden."""

    id: RuleId
    severity: Severity
    views: tuple[ViewKind, ...] = Field(default=("visible", "hidden", "decoded"), min_length=1)
    pattern: Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATTERN_CHARS)] = Field(
        description="RE2 syntax, applied to the normalised lower-case view"
    )
    rationale: Annotated[str, StringConstraints(min_length=1, max_length=2000)]
    needs: tuple[RuleId, ...] = Field(
        default=(),
        max_length=8,
        description="rules whose patterns must be found in the same view as well, whatever views they name themselves",
    )
    max_gap: int | None = Field(
        default=None,
        ge=0,
        le=100_000,
        description="most characters between this match and one of each needed rule; without, anywhere in the view",
    )
    tests: RuleTests

    @field_validator("views", "needs")
    @classmethod
    def _named_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("every name may stand there once")
        return value

    @model_validator(mode="after")
    def _gap_has_an_end(self) -> "Rule":
        if self.max_gap is not None and not self.needs:
            raise ValueError("max_gap without needs: there is nothing to be near to")
        if self.id in self.needs:
            raise ValueError("a rule cannot need itself")
        return self


class RuleFile(Part):
    """The whole file."""

    version: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$")]
    rules: tuple[Rule, ...] = Field(max_length=MAX_RULES)
    hash: str | None = Field(
        default=None,
        description="sha256 of the rules (`content_hash`); where given it must fit, so that a change of a rule cannot be forgotten",
    )

    @field_validator("rules")
    @classmethod
    def _some_rule(cls, value: tuple[Rule, ...]) -> tuple[Rule, ...]:
        if not value:
            raise ValueError("a file without rules guards nothing")
        return value


def content_hash(rules: list[dict[str, Any]]) -> str:
    """Sha256 (hex) of the list under `rules` as canonical JSON: keys sorted, no white space, UTF-8."""
    return hashlib.sha256(
        json.dumps(rules, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
            "utf-8", "surrogatepass"
        )
    ).hexdigest()


def _name_of(data: dict[str, Any], place: tuple[int | str, ...]) -> str:
    """`rules[3 reply_instruction].pattern`, for a person who looks for it in the file."""
    parts: list[str] = []
    for part in place:
        if isinstance(part, str):
            parts.append(f".{part}" if parts else part)
        elif parts == ["rules"]:
            rule = data["rules"][part]
            name = rule.get("id") if isinstance(rule, dict) else None
            parts.append(f"[{part} {quoted(name, 64)}]" if isinstance(name, str) else f"[{part}]")
        else:
            parts.append(f"[{part}]")
    return "".join(parts)


def _parsed(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(
            Problem(
                "rules_unreadable",
                f"The rule file cannot be read: {error.strerror}.",
                file=str(path),
                accepted="a JSON file",
            )
        ) from error
    if len(raw) > MAX_FILE_BYTES:
        raise InputError(
            Problem(
                "rules_too_large",
                "The rule file is too large.",
                file=str(path),
                accepted=f"at most {MAX_FILE_BYTES} bytes",
            )
        )
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else None
        raise InputError(
            Problem(
                "rules_not_json",
                f"The rule file is not JSON: {quoted(str(error))}.",
                file=str(path),
                line=line,
                accepted="JSON in UTF-8",
            )
        ) from error
    if not isinstance(data, dict):
        raise InputError(
            Problem(
                "rules_not_json",
                "The rule file is not a JSON object.",
                file=str(path),
                found=type(data).__name__,
                accepted='{"version": ..., "rules": [...]}',
            )
        )
    return data


def read_rules(path: Path | None = None) -> RuleFile:
    """Read a rule file, by default the one that is shipped.

    Raises
    ------
    InputError
        With every problem found: the file, the rule's place and id, the field, what was found and what is accepted.
    """
    path = path or RULES
    data = _parsed(path)
    try:
        found = RuleFile.model_validate(data)
    except ValidationError as failure:
        raise InputError(
            [
                Problem(
                    "bad_rule",
                    f"{quoted(error['msg'])}.",
                    file=str(path),
                    field=_name_of(data, error["loc"]),
                    found=quoted(error["input"]),
                )
                for error in failure.errors(include_url=False)
            ]
        ) from failure
    ids = [rule.id for rule in found.rules]
    problems = [
        Problem(
            "duplicate_rule",
            "Two rules have the same id.",
            file=str(path),
            field=f"rules.{name}.id",
            found=f"{count} times",
            accepted="once",
        )
        for name, count in Counter(ids).items()
        if count > 1
    ]
    problems += [
        Problem(
            "unknown_rule",
            "A rule needs one that is not in the file.",
            file=str(path),
            field=f"rules.{rule.id}.needs",
            found=name,
            accepted="ids of rules of this file",
        )
        for rule in found.rules
        for name in rule.needs
        if name not in set(ids)
    ]
    if found.hash is not None and found.hash != (expected := content_hash(data["rules"])):
        problems.append(
            Problem(
                "stale_rule_hash",
                "The rules changed; set `hash` and raise `version`.",
                file=str(path),
                field="hash",
                found=found.hash,
                accepted=expected,
            )
        )
    if problems:
        raise InputError(problems)
    return found
