import tomllib
from pathlib import Path

import pytest
from growth import growth

from rag_eval.trust.guard import (
    MOST_FINDINGS,
    _features_of,
    _find_addressing,
    _scale_of,
)
from rag_eval.trust.text import read_all

CASES = tomllib.loads((Path(__file__).parent / "addressing.toml").read_text(encoding="utf-8"))
ORDERS, ORDINARY = CASES["orders"], CASES["ordinary"]
PROSE = (
    "The abbey was founded in 1127.",
    "It burned down twice and was rebuilt in brick.",
    "Its library holds four hundred manuscripts.",
)


def find(text):
    """Return the sorted distinct (start, end, detail) of the findings in all views."""
    return sorted({one for found in _find_addressing(read_all([text])[0].views) for one in found})


def spans(text):
    return [text[start:end] for start, end, _ in find(text)]


def test_nearly_all_orders_are_found_and_hardly_any_ordinary_sentence():
    assert sum(bool(find(text)) for text in ORDERS) >= len(ORDERS) - 1
    assert sum(bool(find(text)) for text in ORDINARY) <= 1


def test_other_languages_are_left_alone():
    assert [text for text in CASES["foreign"] if find(text)] == []


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_an_order_is_found_at_its_place_in_prose(place):
    parts = list(PROSE)
    parts.insert(place, ORDERS[0])
    assert spans(" ".join(parts)) == [ORDERS[0]]


def test_places_are_those_of_the_text_as_it_was_given():
    order = ORDERS[0].replace("users", "use\u200brs").replace("Chatbots", "Ｃhatbots")
    assert order in spans(f"Straße 5\n\n  {PROSE[0]}\n{order}\n{PROSE[1]}")


def test_neighbouring_orders_are_one_finding():
    text = f"{PROSE[0]} {ORDERS[0]} {ORDERS[2]} {PROSE[1]}"
    assert spans(text) == [f"{ORDERS[0]} {ORDERS[2]}"]


def test_ten_thousand_orders_are_not_ten_thousand_findings():
    text = f"{ORDERS[0]} The wall is old. " * 10_000
    found = find(text)
    assert len(found) == MOST_FINDINGS
    assert text[: found[-1][1]].rstrip().endswith(ORDERS[0])


GROWN = {
    "orders": lambda size: (ORDERS[0] + " ") * (size // 87),
    "triggers": lambda size: "user " * (size // 5),
    "triggers with ends": lambda size: "you. " * (size // 5),
    "no ends": lambda size: "x " * (size // 2) + "tell the user",
    "addresses": lambda size: "tell the user a@" + "a@" * (size // 2),
    "closers": lambda size: "tell the user" + '."' * (size // 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GROWN)
def test_time_grows_with_the_text_and_no_faster(name):
    assert growth(find, GROWN[name], 8_000, 64_000) < 28


@pytest.mark.parametrize("text", ["", ". ", "…! ", "write—. ... ---. " * 40])
def test_a_sentence_without_words_has_a_score(text):
    assert _features_of("---") == set()
    assert _scale_of(set()) == 1.0
    assert not find(text)
