"""Tables as files: a program that opens a table never runs a cell as a formula or a command."""

import csv
import io
import re
from html import unescape

import pandas as pd
import pytest
from cli_project import CONFIG, jsonl
from rich.console import Console

from rag_eval.reporting.elements import _write_table as markup_of
from rag_eval.reporting.tables import Cursor, Table, csv_text

SIGNS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
NUMBER = re.compile(r"-?[0-9.]+(e-?[0-9]+)?")


def table(*names):
    rows = [{"name": name, "other": "x"} for name in names]
    return Table.of("t", "caption", "name | other", rows)


def read_back(frame):
    return list(csv.DictReader(io.StringIO(csv_text(frame), newline="")))


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
@pytest.mark.parametrize("before", ["", "\t", "\r", " \n ", "\u3000"])
def test_no_cell_is_a_formula(sign, before):
    text = f"{before}{sign}1+1"
    rows = list(csv.DictReader(io.StringIO(table(text).csv())))
    assert not rows[0]["name"].lstrip().startswith(SIGNS)
    (row,) = read_back(pd.DataFrame({"name": [text], "other": [f"a{before}{sign}1"]}))
    assert row["name"].startswith("'")
    assert not row["other"].startswith("'")


@pytest.mark.slow
def test_no_csv_of_a_run_holds_a_formula(project, pages, monkeypatch):
    ids = [f"{sign}1+1|{number}" for number, sign in enumerate("=+-@\uff1d")]
    project.ask({name: f"{name} How often is a job tried?" for name in ids}, "=cmd.md")
    (project.corpus / "=cmd.md").write_text("# =1+1\n\n=2+5 A failed job is tried again.\n")
    lines = [{"query_id": name, "paraphrase_id": f"@{name}", "text": "+ retries"} for name in ids]
    project.write("paraphrases.jsonl", jsonl(lines))
    project.write("gold_set.yaml", CONFIG.replace("version: 1", 'version: "=1+1"'))
    project.run()
    for form in ("csv", "tables"):
        project.command("export", "tiny", str(project.root / form), "--format", form)
    files = sorted(project.root.rglob("*.csv"))
    assert len(files) > 10
    n_escaped = 0
    for path in files:
        with path.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.reader(stream))
        cells = [cell for row in rows for cell in row if not NUMBER.fullmatch(cell)]
        assert [cell for cell in cells if cell.lstrip().startswith(SIGNS)] == [], path
        n_escaped += sum(cell.startswith("'") for cell in cells)
    assert n_escaped > len(ids)


def test_latex_holds_every_cell_escaped():
    text = table("a & 50 %_$x^2$", "\\input{/etc/passwd} #1 ~").tex()
    assert re.match(r"\\begin\{tabular\}\{ll\}\s", text)
    assert [
        line.count("&") - line.count(r"\&") for line in text.splitlines() if line.endswith(r"\\")
    ] == [1, 1, 1]
    assert r"a \& 50 \%\_\$x" in text
    assert r"\textbackslash input\{/etc/passwd\} \#1 \textasciitilde" in text
    assert "\\input" not in text


def dashes(*reasons, heading="<x>"):
    """Return a table as HTML with one row for each reason; every figure is a dash."""
    report = Cursor([{"x": None, "x_reason": reason} for reason in reasons])
    rows = [{"name": "row", "row": row} for row in report]
    return str(markup_of(Table.of("t", "caption", f"name | {heading} = row.x", rows)))


def visible_text(markup):
    """Return the text that a reader sees without a pointer, so no attributes and no hidden text."""
    return unescape(re.sub(r"<[^>]*>", " ", re.sub(r'<span class="sr">[^<]*</span>', "", markup)))


def test_a_dash_says_why_without_being_pointed_at():
    seen = visible_text(dashes("no <gold>", "no <gold>"))
    assert seen.count("no <gold>") == 1
    markup = dashes(*(f"reason {'x' * at}" for at in range(40)))
    assert '<details class="why prose"><summary>' in markup
    assert all(f"reason {'x' * at} " in visible_text(markup) for at in range(40))


def test_a_heading_carries_its_meaning():
    assert 'title="independent questions that' in dashes("off", heading="effective")
    assert "<details" not in str(markup_of(table("x")))
    assert str(markup_of(table())) == ""


def test_one_table_in_every_form():
    report = Cursor({"a": {"value": 0.5, "ci_low": 0.25, "ci_high": 0.75, "n": 4}, "d": {}})
    difference = Cursor({"delta": -0.5, "ci_low": -0.75, "ci_high": -0.25})
    rows = [{"name": "a|b", "x": report["a"], "y": difference, "n": report["a"]["n"]}]
    made = Table.of("t", "caption", "name | value = x | change = y | n | pass = n :2%", rows)
    head, _, line = made.markdown().splitlines()
    assert head == "| name | value | change | n | pass |"
    assert line == (
        r"| `a\u007cb` | `0.500 [0.25, 0.75]` | `-0.500 [-0.75, -0.25]` | `4` | `400 %` |"
    )
    assert made.csv().splitlines() == [
        "name,value,value_low,value_high,change,change_low,change_high,n,pass",
        "a|b,0.5,0.25,0.75,-0.5,-0.75,-0.25,4,4",
    ]
    assert r"0.500 [0.25, 0.75] & -0.500 [-0.75, -0.25] & 4" in made.tex()
    console = Console(file=io.StringIO(), width=80, no_color=True)
    console.print(made)
    assert "a|b   0.500 [0.25, 0.75]  -0.500 [-0.75, -0.25]" in console.file.getvalue()
    narrow = Console(file=io.StringIO(), width=50, no_color=True)
    narrow.print(made)
    assert "[-0.75, -0.25]" in narrow.file.getvalue()  # whole, on a second line
    assert 'data-at="/a/value">0.500</data>' in str(markup_of(made))
