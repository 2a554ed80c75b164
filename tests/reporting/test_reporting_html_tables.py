"""Tables as files: no text of theirs is read as an order by the program that opens them."""

import csv
import io
import re
from html import unescape

import pytest
from panel_pages import renamed

from rag_eval.reporting.html.figures import Cursor
from rag_eval.reporting.html.latex import tex
from rag_eval.reporting.html.page import build
from rag_eval.reporting.html.tables import Column, Number, Table, Words, plain


def table(*names):
    return Table(
        "t",
        "caption",
        [Column("name", "name", figures=False), Column("other", "other", figures=False)],
        [[Words(name), Words("x")] for name in names],
    )


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
    assert not any(
        part.startswith(("[", "*"))
        for part in (line.lstrip() for line in text.split(r"\midrule")[1].splitlines())
    )


def beyond_ascii(text):
    return {character for character in text if not character.isascii()}


def test_every_sign_of_the_projects_own_words_is_a_command_of_latex():
    text = "σ² wordings, Δs − 0.5 – 1 ≤ x ≥ y ± z × w · v → u ← t… “said” ‘so’ µ § α₁ “”"
    made = tex(text)
    assert beyond_ascii(made) == set()
    assert (
        r"\ensuremath{\sigma}\ensuremath{^{2}} wordings, \ensuremath{\Delta}s \ensuremath{-} 0.5 -- 1 \ensuremath{\leq} x"
        in made
    )
    assert "``said'' `so'" in made
    assert "$$" not in made


@pytest.mark.slow
def test_every_latex_table_of_a_page_is_ascii_but_for_names_of_data(report):
    """Strategies named in letters that LaTeX has no command for stay as they are; nothing else is beyond ASCII."""
    files = {table.name: table.tex() for table in build(report, None, 10_000_000).tables}
    assert {"delta-s", "stability-wordings"} <= set(files)
    assert {name: beyond_ascii(text) for name, text in files.items() if not text.isascii()} == {}
    named = build(renamed(report, "bm25", "検索"), None, 10_000_000)
    assert set().union(*(beyond_ascii(table.tex()) for table in named.tables)) == set("検索")


def dashes(*reasons, means=""):
    """A table with a row a reason, all of it a dash."""
    report = Cursor({str(at): {"x": None, "x_reason": reason} for at, reason in enumerate(reasons)})
    return Table(
        "t",
        "caption",
        [Column("name", "name", figures=False), Column("x", "<x>", means)],
        [[Words("row"), Number(report[str(at)]["x"])] for at in range(len(reasons))],
    )


def visible_text(markup):
    """What a reader sees without pointing: no attributes, nothing that is only read aloud."""
    return unescape(re.sub(r"<[^>]*>", " ", re.sub(r'<span class="sr">[^<]*</span>', "", markup)))


def test_a_dash_says_why_without_being_pointed_at():
    seen = visible_text(str(dashes("no <gold>", "no <gold>").html()))
    assert seen.count("no <gold>") == 1
    markup = str(dashes("no gold", "off", "no gold").html())
    assert re.findall(r'<sup aria-hidden="true">(\w)</sup>', markup) == ["a", "b", "a"]
    assert re.search(r"a\s+no gold", visible_text(markup))
    assert re.search(r"b\s+off", visible_text(markup))
    assert "dash" not in visible_text(str(table("x").html())).lower()


def test_many_reasons_are_folded_and_all_there():
    reasons = [f"reason {'x' * at}" for at in range(40)]
    markup = str(dashes(*reasons).html())
    assert re.search(r'<details class="why[^>]*><summary>[^<]*forty', markup)
    assert all(f"{reason} " in visible_text(markup) for reason in reasons)
    marks = re.findall(r'<sup aria-hidden="true">(\w+)</sup>', markup)
    assert len(set(marks)) == 40


def test_what_a_column_means_can_be_read_without_pointing():
    markup = str(dashes("off", means="share of <questions>").html())
    assert "share of <questions>" in visible_text(markup)
    assert re.search(r'<details class="means[^>]*><summary>', markup)
    assert "<details" not in str(table("x").html())


def test_text_of_the_data_is_no_dash():
    said = '<span class="absent" title="x">–<span class="sr"> not available: x</span></span>'
    assert "A dash" not in str(table(said).html())
