import tomllib
from pathlib import Path

import pytest

from rag_eval.trust.planted import _form_of, _sentences_of

CASES = tomllib.loads((Path(__file__).parent / "sentences.toml").read_text(encoding="utf-8"))
DOCSTRING = """Return the sum of the values.

This is a longer sentence about the sum. Here stands another one about it.

Parameters
----------
axis : {0, 1}, default 0
    Axis over which the sum is taken.
skipna : bool

Returns
-------
Series or scalar

See Also
--------
Series.min : Return the smallest value.

Examples
--------
>>> frame.sum(axis=0)
total weight of all the animals
Name: weight, dtype: int64

.. code-block:: python

    this indented line is code to print.

.. versionadded:: 2.0
"""


def shown(text):
    return [text[one.start : one.end] for one in _sentences_of(text)]


def test_of_a_docstring_only_its_prose_is_left():
    assert shown(DOCSTRING) == [
        "Return the sum of the values.",
        "This is a longer sentence about the sum.",
        "Here stands another one about it.",
        "Axis over which the sum is taken.",
        "Series or scalar",
    ]


@pytest.mark.parametrize("skipped", CASES["no_prose"])
def test_code_tables_and_headings_are_no_sentences(skipped):
    found = shown(f"The first line stays here.\n\n{skipped}\n\nThe last line stays here.")
    words = ("hat is", "hat =", "module")
    assert [line for line in found if any(word in line for word in words)] == []
    assert (found[0], found[-1]) == ("The first line stays here.", "The last line stays here.")


@pytest.mark.parametrize("mark", ["", "- ", "3. ", "    "])
def test_a_question_on_a_line_of_its_own_is_a_sentence(mark):
    line = f"{mark}What is the use of it?"
    for text in (
        f"{line}\nReturn the sum of the values.",
        f"Return the sum of the values.\n{line}",
        f">>> frame.sum()\nName: weight, dtype: int64\n{line.strip()}\nName: x, dtype: int64",
    ):
        assert "What is the use of it?" in shown(text)


@pytest.mark.parametrize("gap", ["\n", "\n\n"])
def test_the_sentence_before_a_fence_introduces_code(gap):
    before = f"One sentence stands here. Use the code that follows:{gap}"
    text = f"{before}```\nimport os\n```\nAfter the code stands this."
    assert [one.introduces_code for one in _sentences_of(text)] == [False, True, False]


FORMS = {"asks": (True, False), "orders": (False, True), "states": (False, False)}


@pytest.mark.parametrize(
    ("kind", "sentence"), [(kind, one) for kind in FORMS for one in CASES[kind]]
)
def test_questions_ask_orders_order_and_statements_do_neither(kind, sentence):
    form = _form_of(sentence)
    assert (form.asks, form.orders) == FORMS[kind]
