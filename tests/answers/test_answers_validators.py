"""Domain validators of ours and of a foreign package: entry points, options and failures."""

import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from answer_corpus import evidence

from rag_eval.answers.codes import PatternTimeoutError, TimedPattern
from rag_eval.answers.contract import Candidate, load_validators, validate
from rag_eval.core.config import ValidatorUse
from rag_eval.core.errors import InputError


def candidate(body: str) -> Candidate:
    return Candidate("q1", "What?", "llm", body, body, "", (), evidence())


def use(name: str, **options) -> ValidatorUse:
    return ValidatorUse.model_validate({"name": name, **options})


COUNT = "require_min_inline_regex_count"


def messages(body: str, *uses: ValidatorUse) -> list[str]:
    return [
        f"{name} {fault.code}" for name, fault in validate(candidate(body), load_validators(uses))
    ]


@pytest.mark.parametrize(
    ("options", "body", "rejected"),
    [
        ({"patterns": ["TODO", "as an AI"]}, "All is done.", False),
        ({"patterns": ["TODO", "as an AI"]}, "I say, as an AI, no.", True),
        ({"patterns": ["todo"]}, "TODO", False),
        ({"patterns": ["(?i)todo"]}, "TODO", True),
        ({"patterns": [r"\bfoo\b"]}, "foobar", False),
        ({"patterns": [r"^- "]}, "a\n- b", False),
        ({"patterns": [r"(?m)^- "]}, "a\n- b", True),
    ],
)
def test_ban_regex(options, body, rejected):
    expected = ["ban_regex validator_failed"] if rejected else []
    assert messages(body, use("ban_regex", **options)) == expected


@pytest.mark.parametrize(
    ("options", "body", "rejected"),
    [
        ({"pattern": r"\[[^\]]+:\d+\]", "min_count": 2}, "A [a:1]. B [b:2].", False),
        ({"pattern": r"\[[^\]]+:\d+\]", "min_count": 3}, "A [a:1]. B [b:2].", True),
        ({"pattern": "aa", "min_count": 2}, "aaa", True),  # matches do not overlap
        ({"pattern": "x", "min_count": 1}, "X", True),
    ],
)
def test_require_min_inline_regex_count(options, body, rejected):
    expected = [f"{COUNT} validator_failed"] if rejected else []
    assert messages(body, use(COUNT, **options)) == expected


def test_message_says_how_often_a_pattern_must_match():
    found = validate(candidate("a"), load_validators([use(COUNT, pattern="b+", min_count=2)]))
    message = f"{COUNT}: the answer must match b+ at least 2 times, and does 0 times."
    assert [fault.message for _, fault in found] == [message]


@pytest.mark.parametrize(
    ("name", "options", "field"),
    [
        ("ban_regex", {}, ".patterns"),
        ("ban_regex", {"patterns": []}, ".patterns"),
        ("ban_regex", {"patterns": "TODO"}, ".patterns"),
        ("ban_regex", {"patterns": [""]}, ".patterns.0"),
        ("ban_regex", {"patterns": ["a"], "ignorecase": True}, ".ignorecase"),
        ("ban_regex", {"patterns": ["("]}, ""),
        ("ban_regex", {"patterns": ["(?:a{1000}){1000}"]}, ""),
        (COUNT, {"pattern": "a", "min_count": 0}, ".min_count"),
        (COUNT, {"pattern": "[", "min_count": 1}, ""),
    ],
)
def test_options_that_make_no_sense_are_named(name, options, field):
    with pytest.raises(InputError) as caught:
        load_validators([use(name, **options)])
    assert {problem.code for problem in caught.value.problems} == {"bad_validator_options"}
    assert caught.value.problems[0].field == f"answers.validators.{name}{field}"


def test_unknown_validators_are_named_all_at_once_with_what_is_installed():
    with pytest.raises(InputError) as caught:
        load_validators([use("ban_regexp", patterns=["a"]), use("no_such"), use("ban_regex")])
    first, *_ = problems = caught.value.problems
    codes = ["unknown_validator", "unknown_validator", "bad_validator_options"]
    assert ([one.code for one in problems], first.found) == (codes, "ban_regexp")
    assert "did you mean ban_regex?" in first.message
    assert first.accepted is not None
    assert {"ban_regex", COUNT} <= set(first.accepted.split(", "))


def test_a_validator_that_raises_rejects_the_answer_and_the_next_is_still_asked():
    def broken(_):
        raise ZeroDivisionError("boom")

    validators = [("broken", broken), ("strict", lambda _: "no."), ("kind", lambda _: None)]
    found = validate(candidate("x"), validators)
    codes = [("broken", "validator_error"), ("strict", "validator_failed")]
    assert [(name, fault.code) for name, fault in found] == codes
    assert "boom" in found[0][1].message


def test_a_pattern_that_backtracks_for_ever_is_stopped():
    pattern = TimedPattern(r"(a|a)*$")
    with pytest.raises(PatternTimeoutError):
        pattern.count_in(["ok", "a" * 60 + "b"], seconds=0.05)
    assert TimedPattern("a").count_in(["b", "aaa", ""]) == [0, 3, 0]
    assert TimedPattern("a").count_in(["aaa"], at_most=1) == [1]
    assert messages("a" * 60 + "b", use("ban_regex", patterns=[r"(a|a)*$"])) == [
        "ban_regex validator_error"
    ]


@pytest.mark.parametrize(
    "pattern", ["(", "[z-a]", "a{100001}", "(?:a{1000}){1000}", r"\p{nonsense}", "(?P<a>"]
)
def test_patterns_that_do_not_compile_are_refused(pattern):
    with pytest.raises(ValueError, match="pattern"):
        TimedPattern(pattern)


ASK = """
import json, sys
from rag_eval.answers.contract import Candidate, load_validators, validate
from rag_eval.core.config import ValidatorUse
from rag_eval.core.errors import InputError
found = []
for body in ("one two", "one two three four", "crash"):
    few_words = ValidatorUse(name="max_words", limit=3)
    no_four = ValidatorUse(name="ban_regex", patterns=["four"])
    validators = load_validators([few_words, no_four])
    candidate = Candidate("q", "?", "llm", body, body, "", (), ())
    found.append([(name, fault.code) for name, fault in validate(candidate, validators)])
try:
    load_validators([ValidatorUse(name="max_words", limit="many")])
except InputError as error:
    found.append([error.problems[0].code, error.problems[0].message])
print(json.dumps(found))
"""


def test_a_validator_of_a_package_of_its_own_is_found_by_its_entry_point(tmp_path, project_root):
    """Build the package offline and unpack it outside this environment."""
    source, wheels, site = tmp_path / "source", tmp_path / "wheels", tmp_path / "site"
    shutil.copytree(project_root / "tests" / "validator_package", source)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    built = subprocess.run(build, cwd=source, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    paths = os.pathsep.join([str(site), str(project_root), *inherited])
    command, environment = [sys.executable, "-c", ASK], {**os.environ, "PYTHONPATH": paths}
    asked = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout) == [
        [],
        [["max_words", "validator_failed"], ["ban_regex", "validator_failed"]],
        [["max_words", "validator_error"]],
        ["bad_validator_options", "max_words takes limit, a whole number; found {'limit': 'many'}"],
    ]
