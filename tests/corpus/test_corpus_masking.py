"""Masking covers personal data only, keeps offsets, and shows addresses and snippets without it."""

import json
import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.core.types import snippet
from rag_eval.corpus import masking
from rag_eval.corpus.masking import (
    FILL,
    covered_with,
    labelled_values,
    mask,
    mask_decoded,
    mask_shown_address,
    mask_snippet,
    masked_tree,
)

HEX = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b"
# The secrets are joined from parts, because a scanner would report a whole secret as a leak.
GITHUB = "gh" + "p_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"
AWS = "AK" + "IAIOSFODNN7EXAMPLE"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PEM = (
    "-----BEGIN RSA PRIVATE"
    " KEY-----\r\nMIIEpAIBAAKCAQEA04up8hoqzS1+\r\nAPIB0RhjXyObwHQnOzhAk5Bd\r\n-----END RSA PRIVATE"
    " KEY-----"
)

HITS = [
    ("email", "jane.doe@example.org", "jane.doe@example.org"),
    ("email", "mail <o'brien+tag@mail.example.co.uk>.", "brien+tag@mail.example.co.uk"),
    ("email", "an jürgen@müller.de schreiben", "jürgen@müller.de"),
    ("phone", "call +49 30 1234567 today", "+49 30 1234567"),
    ("phone", "+4915112345678", "+4915112345678"),
    ("phone", "Tel.: +31-20-5665-633;", "+31-20-5665-633"),
    ("phone", "FAX (212) 717-3298.", "(212) 717-3298"),
    ("phone", "020 7946 0958", "020 7946 0958"),
    ("card", "card 4111 1111 1111 1111.", "4111 1111 1111 1111"),
    ("card", "3782 822463 10005", "3782 822463 10005"),
    ("iban", "to DE89 3704 0044 0532 0130 00 BIC", "DE89 3704 0044 0532 0130 00"),
    ("iban", "GB82WEST12345698765432", "GB82WEST12345698765432"),
    ("iban", "ES91 2100 0418 4502 0005 1332 THIS", "ES91 2100 0418 4502 0005 1332"),
    ("key", f"id {AWS} end", AWS),
    ("key", f"use {GITHUB}", GITHUB),
    ("key", "xo" + "xb-123456789012-abcdefGHIJ", "xo" + "xb-123456789012-abcdefGHIJ"),
    ("key", "s" + "k-proj-a1B2c3D4e5F6g7H8i9J0k1", "s" + "k-proj-a1B2c3D4e5F6g7H8i9J0k1"),
    ("key", f"Bearer {JWT}", JWT),
    ("key", PEM, PEM),
    ("key", f'API_KEY = "{HEX}"', HEX),
    ("key", "password=Zx9kQ2mN7pL4vB8s", "Zx9kQ2mN7pL4vB8s"),
]

MISSES = [
    "@pytest.mark.parametrize and a @ b.T and @user",
    "1990-2000, 10.1234/56-789, 2024-01-01 00:00:00+01:00, p = 0.0001-0.0005",
    "+1.2345678 and -0.12345678 and +10.5 and 1,234,567,890",
    "95% CI 1.02-1.45; n=1234 5678; 192.168.100.200; 12:34:56.789012",
    "DE89 3704 0044 0532 0130 01 and AB12 CDEF GHIJ",
    "sk-learn-based-classification-of-things and task-force-one-two-three",
    "token = tokenize_the_whole_sentence_now, password: correcthorsebatterystaple",
    "secret=aaaaaaaaaaaaaaa1aaaaaaaa, token: 1111111111111111111111",
]


def line_ends(text):
    return [(place, letter) for place, letter in enumerate(text) if letter in "\r\n"]


@pytest.mark.parametrize(("name", "text", "hit"), HITS)
def test_hit_is_covered_and_the_rest_stays(name, text, hit):
    masked = mask(text)
    at = text.index(hit)
    assert masked.counts.get(name, 0) >= 1
    assert masked.text.startswith(text[:at] + f"[{name}")
    assert len(masked.text) == len(text)
    covered = masked.text[at : at + len(hit)]
    assert set(covered) <= set(f"[{name}{masking.FILL}\r\n")
    assert line_ends(covered) == line_ends(hit)


@pytest.mark.parametrize("text", MISSES)
def test_what_is_no_personal_data_stays(text):
    assert mask(text) == (text, {})


PARTS = [hit for _, _, hit in HITS]
PARTS += [*"@ . + - 1 23 ( ) é = eyJ İ".split(), " ", "\n", "\r\n", "\ud800"]


@given(st.lists(st.sampled_from(PARTS) | st.text(max_size=3)).map("".join))
def test_length_and_line_ends(text):
    masked = mask(text)
    assert len(masked.text) == len(text)
    assert line_ends(masked.text) == line_ends(text)
    assert sum(masked.counts.values()) == 0 or masked.text != text


@given(st.lists(st.sampled_from(PARTS) | st.text(max_size=3)).map(" ".join))
def test_masked_text_has_nothing_more_to_mask(text):
    masked = mask(text).text
    assert mask(masked) == (masked, {})


HOSTILE = "a@|1|(1|+1 22 |4111 1111 1111 1112 |GB82 |eyJ|sk-|token=aA1=|a@a.".split("|")
HOSTILE += ["-----BEGIN PRIVATE" + " KEY-----", "a" * 64 + "@" + "a" * 63 + "."]


@pytest.mark.slow
@pytest.mark.parametrize("part", HOSTILE)
def test_two_megabytes_of_hostile_text_end(part):
    text = part * (2_000_000 // len(part))
    assert len(mask(text).text) == len(text)


def _hits(path):
    found = Counter()
    documents = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        counts = Counter(mask(row.get("title", "")).counts) + Counter(mask(row["text"]).counts)
        found += counts
        if counts:
            documents.add(row["_id"])
    return found, documents


def test_public_data_has_only_true_hits(shared_data):
    """Eight abstracts of SciFact give addresses or phone numbers of their authors."""
    found, documents = _hits(shared_data / "scifact" / "corpus.jsonl")
    assert found == {"email": 11, "phone": 3}
    assert len(documents) == 8
    for name in ("corpus.jsonl", "distractors.jsonl", "queries.jsonl"):
        assert _hits(shared_data / "xquad" / name) == ({}, set())


@pytest.mark.parametrize(
    ("address", "shown", "counts"),
    [
        (
            "https://example.org/u/jane@example.org",
            "https://example.org/u/[email██████████",
            {"email": 1},
        ),
        (
            "https://example.org/u?mail=jane.doe%40example.org&b=%2F",
            "https://example.org/u?mail=[email████████████████&b=%2F",
            {"email": 1},
        ),
        ("tel:+1 415 555 0123", "tel:[phone█████████", {"phone": 1}),
        (
            "https://example.org/?n=4111%201111%201111%201111&m=a@example.org",
            "https://example.org/?n=[card████████████████████&m=[email███████",
            {"card": 1, "email": 1},
        ),
        ("https://example.org/a%20b%0Ac", "https://example.org/a%20b%0Ac", {}),
    ],
)
def test_personal_data_is_masked_percent_encoded_or_not(address, shown, counts):
    assert mask_decoded(address) == (shown, counts)


# ---- Shown texts

EMAIL = "jane.doe@" + "example.org"
CARD = "4111 1111 " + "1111 1111"


@given(st.text(max_size=300), st.integers(1, 60))
def test_a_snippet_is_one_short_line_that_does_nothing(text, limit):
    line = snippet(text, limit)
    assert len(line) <= limit
    assert not any(unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for char in line)
    line.encode("utf-8")


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


def test_a_tree_keeps_its_ids_and_its_shape():
    tree = {"doc_id": EMAIL, "text": EMAIL, "more": [{"deep": f"to {EMAIL}"}, 1, None, True, 0.5]}
    masked = masked_tree(tree)
    assert masked["doc_id"] == EMAIL
    assert EMAIL not in str({**masked, "doc_id": ""})
    assert masked["more"][1:] == [1, None, True, 0.5]
    assert masked_tree(EMAIL, keep=()) == mask(EMAIL).text


def test_only_what_nothing_but_a_label_gives_away_is_carried_into_other_texts():
    secret, number = "Xk39aBcD9f" + "Gh2JkLmN4pQrS7", "555 1234 99"
    covers = labelled_values([f"api_key = {secret} of {EMAIL}", f"(Tel.: {number})", "no [here]"])
    assert list(covers) == [secret, number]
    assert mask(f"the number is {number}").counts == {}
    assert covered_with(f"the number is {number}", covers) == "the number is [phone" + FILL * 5
    assert covered_with(f"{secret} by {EMAIL}", covers) == f"{covers[secret]} by {EMAIL}"
