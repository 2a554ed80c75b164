import gc
import time

import pytest
from adversarial_texts import TEXTS

from rag_eval.trust.patterns import RuleSet
from rag_eval.trust.rule_file import Rule
from rag_eval.trust.scanning import findings_of

TOO_SHORT = 0.02
"""Seconds under which a ratio says more of the machine than of the text."""
PATTERNS = (
    r"\bignore\b[^.!?]{0,60}\binstructions?\b",
    r"\b(?:include|insert|output)\b[^.!?]{0,80}\b(?:in|to|with)\b[^.!?]{0,20}\byour (?:answer|reply)\b",
    r"\byour\b(?:.*\bnever there\b)?",
    r"<!--|javascript:|display:none",
)


@pytest.fixture(scope="module")
def rules():
    tests = {"match": ["x"], "clean": ["y"]}
    return RuleSet(
        [
            Rule(
                id=f"rule_{place}", severity="warning", pattern=pattern, rationale="r", tests=tests
            )
            for place, pattern in enumerate(PATTERNS)
        ],
        "1",
    )


def seconds(text, rules, repeats):
    taken = []
    for _ in range(repeats):
        gc.collect()
        gc.disable()
        try:
            started = time.process_time()
            findings_of(0, text, rules)
            taken.append(time.process_time() - started)
        finally:
            gc.enable()
    return min(taken)


def assert_linear(name, rules, size, *, bound, repeats, times=8):
    findings_of(0, TEXTS[name](1000), rules)
    large = seconds(TEXTS[name](size * times), rules, repeats)
    if large < TOO_SHORT:
        return
    small = seconds(TEXTS[name](size), rules, repeats)
    if (
        large / small >= bound
    ):  # a busy machine can make one reading slow, never one fast: the least of several is what the text needs
        large, small = (
            min(taken, seconds(TEXTS[name](part), rules, 3))
            for taken, part in ((large, size * times), (small, size))
        )
    assert large / small < bound, (
        f"{times} times the text took {large / small:.1f} times as long ({small:.3f} s, {large:.3f} s)"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_time_grows_with_the_text_and_no_faster(rules, name):
    assert_linear(name, rules, 8_000, bound=28, repeats=2)


# a choice of the kinds: all of them at this size take a quarter of an hour (benchmarks/trust_scan.py has them)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["comment_opens", "flags", "short_comments", "turns"])
def test_ten_megabytes_take_eight_times_as_long_as_an_eighth(rules, name):
    assert_linear(name, rules, 1_250_000, bound=16, repeats=1)


def test_a_million_tricks_are_not_a_million_findings(rules):
    for name in ("short_comments", "overrides", "flags", "markdown_comments", "base64_of_words"):
        text = TEXTS[name](200_000)
        assert len(findings_of(0, text, rules)) < 1200, name
