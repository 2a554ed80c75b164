"""Tables as files: no text of theirs is read as an order by the program that opens them."""

import csv
import io

import pytest

from rag_eval.reporting.html.tables import Column, Table, Words, plain


def table(*names):
    return Table("t", "caption", [Column("name", "name", figures=False), Column("other", "other", figures=False)], [[Words(name), Words("x")] for name in names])


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
@pytest.mark.parametrize("before", ["", " ", "\n", "\t", " \n ", "\u3000"])
def test_no_cell_is_a_formula(sign, before):
    rows = list(csv.DictReader(io.StringIO(table(f"{before}{sign}1+1").csv())))
    assert rows[0]["name"].startswith("'")
    assert not plain(f"a{before}{sign}1").startswith("'")


@pytest.mark.parametrize("name", ["[2cm] tag", "*", "  [x", "\u202etag", "\n[x"])
def test_no_cell_is_an_argument_of_the_line_break_before_it(name):
    text = table("first", name).tex()
    after = [part.lstrip() for part in text.split(r"\\")[1:]]
    assert not any(part.startswith(("[", "*")) for part in after)
    assert not any(part.startswith(("[", "*")) for part in (line.lstrip() for line in text.split(r"\midrule")[1].splitlines()))
