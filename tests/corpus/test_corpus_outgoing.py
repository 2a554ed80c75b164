"""Snippets and outgoing texts are short, safe to print and free of personal data."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.core.types import ELLIPSIS, snippet
from rag_eval.corpus.masking import (
    FILL,
    covered_with,
    labelled_values,
    mask,
    mask_shown_address,
    mask_snippet,
    masked_text,
    masked_tree,
    masked_values,
    masked_with,
)

EMAIL = "jane.doe@" + "example.org"
CARD = "4111 1111 " + "1111 1111"


@given(st.text(max_size=300), st.integers(1, 60))
def test_a_snippet_is_one_short_line_that_does_nothing(text, limit):
    line = snippet(text, limit)
    assert len(line) <= limit
    assert not any(unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for char in line)
    line.encode("utf-8")


def test_a_cut_text_ends_in_an_ellipsis_within_the_limit():
    assert snippet("x" * 200) == "x" * 200
    assert snippet("x" * 201) == "x" * 199 + ELLIPSIS
    assert len(snippet("word " * 100)) <= 200


def test_no_escape_and_no_letter_is_parted():
    assert snippet("abc\u202edef", 8) == "abc…"  # the escape of 6 characters would not fit
    assert snippet("abce\u0301\u0302xyz", 5) == "abc…"
    assert (
        snippet("e" + "\u0301" * 50, 5) == "e" + "\u0301" * 3 + ELLIPSIS
    )  # combining marks fill the line


def test_a_value_is_masked_before_the_text_is_cut():
    for start in range(180, 200):
        line = mask_snippet("x" * (start - 1) + " " + EMAIL)
        assert 198 <= len(line) <= 200  # no blank before the ellipsis
        assert "jane" not in line
    assert (
        mask_snippet(" " * 50_000 + EMAIL) == ""
    )  # text far beyond the examined part is also hidden


@pytest.mark.parametrize(
    "place",
    [
        f"https://example.org/people/{EMAIL}",
        f"https://example.org/?to={EMAIL.replace('@', '%40')}&x=1",
        "https://example.org/call/+4915112345678",
        f"https://example.org/pay?card={CARD.replace(' ', '')}",
        "docs/guide.md",
    ],
)
def test_addresses(place):
    line = mask_shown_address(place)
    assert ("example.org" in line) == ("example.org" in place)
    assert "jane" not in line
    assert "4915112345678" not in line
    assert "4111" not in line
    assert (line == place) == (place == "docs/guide.md")


def test_a_value_that_only_one_text_labels_is_masked_in_the_other():
    source, number = "Call (Tel.: 555 1234 99) now, or write to " + EMAIL, "555 1234 99"
    known = masked_values([(source, mask(source).text)])
    assert set(known) == {number, EMAIL}
    assert mask(f"the number is {number}").counts == {}
    masked = masked_with(f"the number is {number}", known)
    assert masked == "the number is [phone" + FILL * 5
    assert masked_values([("nothing [here]", "nothing [here]")]) == {}


def test_a_tree_keeps_its_ids_and_its_shape():
    tree = {"doc_id": EMAIL, "text": EMAIL, "more": [{"deep": f"to {EMAIL}"}, 1, None, True, 0.5]}
    masked = masked_tree(tree)
    assert masked["doc_id"] == EMAIL
    assert EMAIL not in str({**masked, "doc_id": ""})
    assert masked["more"][1:] == [1, None, True, 0.5]
    assert masked_tree(EMAIL, keep=()) == mask(EMAIL).text


@pytest.mark.parametrize(
    "encoded",
    [
        EMAIL.replace("@", "%40"),
        EMAIL.replace("@", "%40").replace(".", "%2E"),
        CARD.replace(" ", "%20"),
        "%2B49%2030%201234567",
    ],
)
def test_a_value_behind_percent_signs_is_masked_where_it_stands(encoded):
    text = f"100 % of it: see https://example.org/a%20b?to={encoded}&x=%41 and go"
    masked = masked_text(text)
    assert encoded not in masked
    assert masked.startswith("100 % of it: see https://example.org/a%20b?to=[")
    assert masked.endswith("&x=%41 and go")
    assert FILL in mask_snippet(text)
    assert masked_tree([text]) == [masked]


def test_only_what_nothing_but_a_label_gives_away_is_carried_into_other_texts():
    secret = "Xk39aBcD9f" + "Gh2JkLmN4pQrS7"
    known = labelled_values([f"api_key = {secret} of {EMAIL}"])
    assert list(known) == [secret]
    assert covered_with(f"{secret} by {EMAIL}", known) == f"{known[secret]} by {EMAIL}"
