from hypothesis import given
from hypothesis import strategies as st

from rag_eval.answers.extractive import MAX_ENTRY, MAX_SENTENCE, cut_units

DOCSTRING = """Sort by the values along either axis.

Rows are compared in their order. The result is new.

Parameters
----------
by : str or list of str
    Name or list of names to sort by.

    * if `axis` is 0 then `by` may contain index levels
na_position : {'first', 'last'}, default 'last'
    Puts NaNs at the beginning if `first`.
**kwargs
    Passed on.

See Also
--------
Series.sort_values : Similar method for a Series.

Examples
--------
>>> frame.sort_values(by="a")
   a
0  1

>>> frame.sort_index()
"""


def test_a_docstring_is_cut_into_sentences_entries_items_pointers_and_code():
    found = [(unit.kind, DOCSTRING[unit.start : unit.end]) for unit in cut_units(DOCSTRING)]
    assert found == [
        ("sentence", "Sort by the values along either axis."),
        ("sentence", "Rows are compared in their order."),
        ("sentence", "The result is new."),
        (
            "entry",
            (
                "by : str or list of str\n    Name or list of names to sort by.\n\n"
                "    * if `axis` is 0 then `by` may contain index levels"
            ),
        ),
        (
            "entry",
            (
                "na_position : {'first', 'last'}, default 'last'\n"
                "    Puts NaNs at the beginning if `first`."
            ),
        ),
        ("entry", "**kwargs\n    Passed on."),
        ("pointer", "Series.sort_values : Similar method for a Series."),
        ("code", '>>> frame.sort_values(by="a")\n   a\n0  1'),
        ("code", ">>> frame.sort_index()"),
    ]


def test_list_items_are_units_of_their_own():
    text = "Choose one:\n\n- red, which\n  is warm\n- blue\n\nThen go on. Stop."
    assert [text[unit.start : unit.end] for unit in cut_units(text)] == [
        "Choose one:",
        "- red, which\n  is warm",
        "- blue",
        "Then go on.",
        "Stop.",
    ]


def test_what_is_too_long_is_cut():
    entry = "key : callable\n" + "".join(
        f"    It is applied to the values of row {i} before they are sorted.\n" for i in range(40)
    )
    pieces = [unit.end - unit.start for unit in cut_units(entry)]
    assert len(pieces) > 1
    assert max(pieces) <= MAX_ENTRY
    word = cut_units("x" * 1_000_000)
    assert len(word) == 1_000_000 // MAX_SENTENCE
    assert max(unit.end - unit.start for unit in word) == MAX_SENTENCE


@given(st.text(alphabet=st.sampled_from("ab.:*->=\n \t\u3000\u2028名。é-"), max_size=300))
def test_units_lie_in_their_text_in_order_and_each_has_a_word(text):
    found = cut_units(text)
    edges = [edge for unit in found for edge in (unit.start, unit.end)]
    assert edges == sorted(edges)
    for unit in found:
        piece = text[unit.start : unit.end]
        assert piece
        assert piece == piece.strip()
        assert any(character.isalnum() for character in piece)
