"""Who is on the candidate: uniform over questions, nested over stages, independent between plans, and the same for the same question."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from rag_eval.gates.rollout_assignment import (
    STAGES,
    assignment,
    assignments,
    on_candidate,
    same_question,
    stage_before,
)

SALT, OTHER = "0" * 32, "1" * 32
QUESTIONS = [f"How do I set option {at}?" for at in range(20_000)]


def chi_square(counts, expected):
    return float(((counts - expected) ** 2 / expected).sum())


def test_questions_are_spread_evenly():
    counts = np.histogram(assignments(QUESTIONS, SALT), bins=100, range=(0, 1))[0]
    assert counts.sum() == len(QUESTIONS)
    assert chi2.ppf(0.0005, 99) < chi_square(counts, len(QUESTIONS) / 100) < chi2.ppf(0.9995, 99)


def test_another_salt_assigns_independently():
    a, b = ((assignments(QUESTIONS, salt) * 10).astype(int) for salt in (SALT, OTHER))
    table = np.bincount(a * 10 + b, minlength=100).reshape(10, 10)
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    assert chi2.ppf(0.0005, 81) < chi_square(table, expected) < chi2.ppf(0.9995, 81)


def test_the_share_is_kept_and_each_stage_holds_the_one_before():
    on = [
        {question for question in QUESTIONS if on_candidate(question, SALT, share)}
        for share in STAGES
    ]
    assert on[0] < on[1] < on[2] == set(QUESTIONS)
    for share, those in zip(STAGES[:2], on[:2], strict=True):
        assert len(those) == pytest.approx(
            share * len(QUESTIONS), abs=4 * np.sqrt(len(QUESTIONS) * share * (1 - share))
        )


def test_a_known_place():
    """What was assigned once stays so in every later version: sha256 of salt, NUL and question, its first 52 bits."""
    import hashlib

    first = hashlib.sha256(b"s\0what is it?").hexdigest()[:13]
    assert assignment("What  is\tit?", "s") == int(first, 16) / 2**52
    assert assignments([], "s").shape == (0,)


@given(
    st.text(max_size=60), st.sampled_from(["NFC", "NFD"]), st.sampled_from([" ", "\t", "\n \u00a0"])
)
def test_spelling_of_white_space_case_and_composition_does_not_matter(query, form, space):
    other = f"{space}{unicodedata.normalize(form, query)}{space}"
    assert same_question(same_question(query)) == same_question(query)
    assert same_question(other) == same_question(query)
    assert 0 <= assignment(other, SALT) == assignment(query, SALT) < 1


def test_case_and_inner_white_space_do_not_matter_and_words_do():
    assert same_question("STRASSE  zur\u00fcck") == same_question("stra\u00dfe zuru\u0308ck ")
    assert same_question("\u03b1\u0345\u0301") == same_question(
        "\u1fb4"
    )  # a mark that folds to a letter must be composed before it does
    assert assignment("sort values", SALT) != assignment("sort value s", SALT)
    assert 0 <= assignment("\ud800", SALT) < 1  # what JSON may hold and UTF-8 may not


def test_what_is_new_at_a_stage():
    assert [stage_before(share) for share in STAGES] == [0, 0.1, 0.5]
