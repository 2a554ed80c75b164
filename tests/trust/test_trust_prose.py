import gc
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.trust.prose import MOST_CHARACTERS, sentences_of

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
    return [text[its.start : its.end] for its in sentences_of(text)]


def test_of_a_docstring_only_its_prose_is_left():
    assert shown(DOCSTRING) == [
        "Return the sum of the values.",
        "This is a longer sentence about the sum.",
        "Here stands another one about it.",
        "Axis over which the sum is taken.",
        "Series or scalar",
    ]


@pytest.mark.parametrize("skipped", [
    "# What is a heading good for?",
    "What is a heading\n=================",
    "| what is | in a | table? |",
    "```\nWhat is in a fence?\n```",
    ">>> what = is_this('code')",
    "name : what is a parameter",
    ".. image:: what is a picture",
    "from what.module import this and that",
    "Shown like this::\n\n    what is in a literal block.\n",
])  # fmt: skip
def test_what_is_no_sentence_is_skipped(skipped):
    text = f"The first line stays here.\n\n{skipped}\n\nThe last line stays here."
    assert [
        line for line in shown(text) if "hat is" in line or "hat =" in line or "module" in line
    ] == []
    assert shown(text)[0] == "The first line stays here."
    assert shown(text)[-1] == "The last line stays here."


@pytest.mark.parametrize(
    "line",
    [
        "What is the use of it?",
        "- What is the use of it?",
        "3. What is the use of it?",
        "    What is the use of it?",
    ],
)
def test_a_question_on_a_line_of_its_own_is_a_sentence(line):
    for text in (
        f"{line}\nReturn the sum of the values.",
        f"Return the sum of the values.\n{line}",
        f">>> frame.sum()\nName: weight, dtype: int64\n{line.strip()}\nName: x, dtype: int64",
    ):
        assert "What is the use of it?" in shown(text)


@pytest.mark.parametrize("gap", ["\n", "\n\n"])
def test_the_sentence_before_a_fence_introduces_code(gap):
    text = f"One sentence stands here. Use the code that follows:{gap}```\nimport os\n```\nAfter the code stands this."
    assert [its.introduces_code for its in sentences_of(text)] == [False, True, False]


def test_a_run_without_an_end_is_read_up_to_a_bound():
    [only] = sentences_of("word " * 10_000)
    assert only.end - only.start == MOST_CHARACTERS


@given(st.text(alphabet=" \n\r\t.?!:|`#>-=*_'\"(){}[]abcXYZ1é中\u2028\x0b", max_size=400))
def test_sentences_rise_and_lie_inside_their_text(text):
    last = 0
    for its in sentences_of(text):
        assert last <= its.start < its.end <= len(text)
        assert not text[its.start].isspace()
        last = its.end


def seconds(text):
    gc.collect()
    gc.disable()
    started = time.process_time()
    sentences_of(text)
    taken = time.process_time() - started
    gc.enable()
    return taken


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit",
    [
        "```\n",
        "\n",
        "a : ",
        "a, ",
        "with a ",
        "with a\n",
        "Word and ",
        "Word and (",
        "=",
        " ",
        ".. ",
        "a.",
        "::\n  ",
        "- ",
        ">>> a\n",
        "? ",
        "[a.",
    ],
)
def test_time_grows_with_the_text(unit):
    small, large = (
        min(seconds(unit * (size // len(unit))) for _ in range(3)) for size in (10_000, 80_000)
    )
    assert large < 40 * max(small, 0.001)  # 8 times the text: linear is 8, quadratic 64
