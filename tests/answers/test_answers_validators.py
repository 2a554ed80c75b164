"""Domain validators of ours and of a foreign package: entry points, options and failures."""

import json

import pytest
from answer_corpus import Ranking, ScriptedChat, evidence, question, small_library

from rag_eval.answers.answering import Tools, answer_questions
from rag_eval.answers.plugins import (
    Candidate,
    PatternTimeoutError,
    Plugins,
    TimedPattern,
    load_plugins,
)
from rag_eval.core.config import Answers, PluginUse
from rag_eval.core.errors import InputError


def candidate(body: str) -> Candidate:
    return Candidate("q1", "What?", "llm", body, body, "", (), evidence())


def use(name: str, **options) -> PluginUse:
    return PluginUse.model_validate({"name": name, **options})


def load_validators(uses):
    return load_plugins(Answers(validators=tuple(uses))).validators


COUNT = "require_min_inline_regex_count"


def messages(body: str, *uses: PluginUse) -> list[str]:
    faults = Plugins(load_validators(uses), []).validate(candidate(body))
    return [f"{fault.message.split(':')[0].split()[0]} {fault.code}" for fault in faults]


@pytest.mark.parametrize(
    ("options", "body", "rejected"),
    [
        ({"patterns": ["TODO", "as an AI"]}, "All is done.", False),
        ({"patterns": ["TODO", "as an AI"]}, "I say, as an AI, no.", True),
        ({"patterns": ["(?i)todo"]}, "TODO", True),
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
    ],
)
def test_require_min_inline_regex_count(options, body, rejected):
    expected = [f"{COUNT} validator_failed"] if rejected else []
    assert messages(body, use(COUNT, **options)) == expected


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("ban_regex", {}, "patterns Field required"),
        ("ban_regex", {"patterns": []}, "patterns Tuple should have at least 1 item"),
        ("ban_regex", {"patterns": ["a"], "ignorecase": True}, "ignorecase Extra inputs"),
        ("ban_regex", {"patterns": ["("]}, "does not compile"),
        ("ban_regex", {"patterns": ["(?:a{1000}){1000}"]}, "repeat counts"),
        (COUNT, {"pattern": "a", "min_count": 0}, "min_count Input should be greater"),
        ("require_citation_support", {"least": 0.5}, "least Extra inputs"),
    ],
)
def test_options_that_make_no_sense_are_named(name, options, said):
    with pytest.raises(InputError) as caught:
        load_validators([use(name, **options)])
    (problem,) = caught.value.problems
    assert (problem.code, problem.field) == ("bad_validator_options", f"answers.validators.{name}")
    assert said in problem.message


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
    found = Plugins(validators, []).validate(candidate("x"))
    assert [fault.code for fault in found] == ["validator_error", "validator_failed"]
    assert [fault.message.split()[0] for fault in found] == ["broken", "strict:"]
    assert "boom" in found[0].message


def test_a_pattern_that_backtracks_for_ever_is_stopped():
    pattern = TimedPattern(r"(a|a)*$")
    with pytest.raises(PatternTimeoutError):
        pattern.count_in("a" * 60 + "b", seconds=0.05)
    assert [TimedPattern("a").count_in(text) for text in ("b", "aaa", "")] == [0, 3, 0]
    assert messages("a" * 60 + "b", use("ban_regex", patterns=[r"(a|a)*$"])) == [
        "ban_regex validator_error"
    ]


# ---- Plug-ins of another package

FOREIGN = """
def max_words(options):
    if not isinstance(options.get("limit"), int):
        raise ValueError(f"max_words takes limit, a whole number; found {options}")
    return lambda found: "too long" if len(found.text.split()) > options["limit"] else None


def shout(options):
    def process(found):
        ends = [{"kind": "length", "text": found.text[-5:], "segment": 0}]
        return {"text": found.text.upper(), "findings": ends}
    return process


def give(options):
    return lambda found: options["result"]


def replace(options):
    return lambda found: {"text": found.text.replace(*options["words"])}
"""
ENTRY_POINTS = """
[rag_eval.validators]
max_words = house_style:max_words
[rag_eval.postprocessors]
shout = house_style:shout
give = house_style:give
replace = house_style:replace
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    about = tmp_path / "house_style-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: house-style\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "house_style.py").write_text(FOREIGN)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("package")
def test_a_validator_of_another_package_is_found_by_its_entry_point():
    uses = [use("max_words", limit=3), use("ban_regex", patterns=["four"])]
    assert messages("one two", *uses) == []
    rejected = ["max_words validator_failed", "ban_regex validator_failed"]
    assert messages("one two three four", *uses) == rejected
    with pytest.raises(InputError, match="max_words takes limit, a whole number"):
        load_validators([use("max_words", limit="many")])


def processed(text: str, *uses):
    settings = Answers.model_validate({"postprocessors": uses})
    return load_plugins(settings).postprocess(candidate(text))


@pytest.mark.usefixtures("package")
def test_postprocessors_reword_and_extract_in_their_order():
    found, findings = processed("It is so.", {"name": "shout"}, {"name": "shout"})
    assert found.text == "IT IS SO."
    assert [(one.source, one.kind, one.text, one.segment) for one in findings] == [
        ("shout", "length", "s so.", 0),
        ("shout", "length", "S SO.", 0),
    ]
    assert processed("It is so.") == (candidate("It is so."), ())


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    "result",
    [
        None,
        {"text": ""},
        {"text": "It is. So."},
        {"findings": [{"kind": "a b", "text": "x"}]},
        {"findings": [{"kind": "a", "text": "x", "segment": 1}]},
        {"more": 1},
    ],
)
def test_a_postprocessor_that_breaks_a_rule_is_named(result):
    fault = processed("It is so.", {"name": "give", "result": result})
    assert fault.code == "postprocessor_error"
    assert fault.message.startswith("give: ")


@pytest.mark.usefixtures("package")
def test_an_unknown_postprocessor_is_refused_with_the_installed_ones():
    with pytest.raises(
        InputError, match=r"unknown_postp.*did you mean shout.*give, replace, shout"
    ):
        processed("It is so.", {"name": "shoud"})


def replied(answer: str, words: list[str], *validators: dict):
    """Answer one question with a reply whose words a postprocessor replaces."""
    options = {
        "mode": "llm",
        "endpoint": "local",
        "schema_retry_attempts": 0,
        "validators": validators,
        "postprocessors": [{"name": "replace", "words": words}],
    }
    corpus, asked = small_library(), "What is the capital of France?"
    content = {"citations": ["docs/capitals.md:2", "docs/capitals.md:3"], "answer": answer}
    chat = ScriptedChat({asked: [json.dumps(content | {"deltaS": None, "lambda": None})]})
    tools = Tools(corpus, Ranking(corpus), None, chat=chat)
    found = answer_questions(
        [question("q", asked, **options)], Answers.model_validate(options), tools
    )
    messages = [message for row in found.rejected for message in row.messages]
    return found.answers[0], messages


PARIS, BERLIN = "Paris is the capital of France", "Berlin is the capital of Germany"
MARKED = f"{PARIS} [docs/capitals.md:2]. {BERLIN} [docs/capitals.md:3]."


@pytest.mark.usefixtures("package")
def test_a_postprocessor_cannot_spoil_what_a_validator_required():
    support = {"name": "require_citation_support"}
    answer, _ = replied(MARKED, ["Paris is", "Paris was"], support)
    assert answer.text == f"Paris was the capital of France. {BERLIN}."
    assert answer.outcome == "answered"
    answer, (message,) = replied(MARKED, ["Germany", "France"], support)
    assert (answer.outcome, answer.codes, answer.text) == ("failed", ("validator_failed",), "")
    assert message.startswith(f"require_citation_support: sentence 2 ({BERLIN[:-7]}France.)")


@pytest.mark.usefixtures("package")
def test_validators_read_a_new_text_with_the_inline_marks_of_its_sentences():
    mark = r"\[docs/capitals\.md:\d\]"
    wanted = rf"(?s)^THE town.*\. {mark}.*\. {mark}$"
    both = [{"name": COUNT, "pattern": wanted, "min_count": 1}, {"name": "ban_regex"}]
    words = ["Paris", "THE town"]
    answer, messages = replied(MARKED, words, both[0], {**both[1], "patterns": ["Paris"]})
    assert (answer.outcome, messages) == ("answered", [])
    answer, (message,) = replied(MARKED, words, {**both[1], "patterns": ["THE"]})
    assert answer.codes == ("validator_failed",)
    assert "must not match THE" in message
