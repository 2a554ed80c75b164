import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.trust.literals import commonness, necessary_words
from rag_eval.trust.patterns import LinearPattern, RuleSet


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("your (?:answer|reply)", [{"your answer", "your reply"}]),
        (r"\badd\b[^.]{0,9}your repl(?:y|ies)", [{"your reply", "your replies"}, {"add"}]),
        ("colou?r", [{"color", "colour"}]),
        ("(?:ab)+cd|xyz", []),  # nothing long enough in the first
        ("(?:abc)+d", [{"abc"}]),
        ("(?:abc)*def", [{"def"}]),
        ("(?:abc){0,2}def", [{"def"}]),
        ("(?:abc){2}def", [{"abc"}, {"def"}]),
        ("[ab]cd[^x]", [{"acd", "bcd"}]),
        (r"[\x{e000}-\x{f8ff}]abc", [{"abc"}]),
        (r"(?:one|two|[\x{e000}-\x{f8ff}]) seven", [{" seven"}]),
        (r"os\.environ\(", [{"os.environ("}]),
        ("[a-c]xyz|[^]]uvw", [{"xyz", "uvw"}]),
        ("你好|再见", [{"你好", "再见"}]),
        ("abc|.", []),
        ("abc|", []),
        ("(?i)abc", []),
        ("(abc)", [{"abc"}]),
        (r"\pLabc", []),
        (r"\Qa.b\E", []),
        ("[[:alpha:]]abc", []),
        ("x" * 5000, [{"x" * 5000}]),
        ("(?:" * 5000, []),
    ],
)
def test_words_that_a_match_must_hold(pattern, words):
    assert {frozenset(each) for each in necessary_words(pattern)} == {
        frozenset(each) for each in words
    }


def test_rare_words_come_first():
    for words in (
        necessary_words(r"(?:use|add) .*\bkeylogger"),
        necessary_words(r"keylogger.* (?:use|add)\b"),
    ):
        assert words[0] == {"keylogger"}
    assert commonness(frozenset({"the "})) > commonness(frozenset({"xylophone", "quartz"}))


PIECES = [
    "abc",
    "de",
    "f",
    "[gh]",
    "[^i]",
    "[j-l]",
    "(?:mno|pq)",
    "(?:rst|)",
    "(?:u|[v-w]|xyz)",
    ".",
    r"\b",
    r"\.",
    "(?:abcd|efgh)",
]
REPEATS = ["", "?", "*", "+", "{0,2}", "{1,3}", "{2}", "{0}"]
PATTERNS = st.recursive(
    st.lists(
        st.tuples(st.sampled_from(PIECES), st.sampled_from(REPEATS)), min_size=1, max_size=4
    ).map(lambda parts: "".join(f"(?:{piece}){repeat}" for piece, repeat in parts)),
    lambda inner: (
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})")
        | st.lists(inner, min_size=2, max_size=2).map("".join)
    ),
    max_leaves=5,
)


@given(PATTERNS, st.data())
def test_no_text_that_matches_is_without_them(pattern, data):
    text = data.draw(st.from_regex(f"(?:{pattern})", fullmatch=True))
    if not LinearPattern(f"^(?:{pattern})$").found_in(
        text.encode()
    ):  # RE2 and Python disagree on letters beyond ASCII and on line ends
        return
    for words in necessary_words(pattern):
        assert any(word in text for word in words), (pattern, text, words)


def test_every_shipped_rule_says_what_to_look_for_and_finds_it_in_its_own_matches():
    rules = RuleSet.load()
    silent = [rule.id for rule in rules.rules if not necessary_words(rule.pattern)]
    assert len(silent) <= 4, silent
    for place, rule in enumerate(rules.rules):
        for text in rule.tests.match:
            shown = " ".join(text.lower().split())
            if rules._compiled[place].found_in(shown.encode()):
                assert place in rules.candidates(shown.encode()), (rule.id, text)
