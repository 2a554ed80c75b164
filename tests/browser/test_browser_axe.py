"""axe-core finds no serious or critical problem in the report.

The tests cover every theme and width, with the explorer closed and open.
"""

import json
from urllib.parse import quote

import pytest
from harm import accessibility, overflow
from viewed_project import Server

from rag_eval.gold.scaffold import init_gold_set

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def test_the_report(hostile, visit, axe, look):
    seen = visit(hostile.page, **look, unguarded=True)
    seen.page.locator("#explorer[data-state=ready] tbody tr").first.wait_for()
    assert accessibility(seen, axe) == []


def test_an_open_question(hostile, visit, axe, look):
    question = next(
        question
        for question in hostile.questions
        if any(len(unit["text"]) > 1 for unit in question["units"]) and question["answer"]
    )
    seen = visit(
        hostile.page.as_uri() + f"#explorer?open={quote(question['id'], safe='')}",
        **look,
        unguarded=True,
    )
    seen.page.locator("#ex-detail[data-state=ready]").wait_for()
    assert accessibility(seen, axe, "#panel-explorer") == []


def test_the_viewer(hostile, serve, visit, axe, looks):
    viewer = serve(hostile)
    for look in looks:
        seen = visit(viewer.address, **look, unguarded=True)
        assert accessibility(seen, axe) == []
        seen.page.goto(viewer.run())
        seen.page.locator("#explorer[data-state=ready] .ex-open").first.click()
        seen.page.locator("#ex-detail[data-state=ready]").wait_for()
        assert accessibility(seen, axe) == []
        seen.page.goto(f"{viewer.run()}report")
        assert accessibility(seen, axe) == []


def test_the_review_of_drafts(visit, axe, looks, picture, tmp_path):
    docs, gold_sets = tmp_path / "docs", tmp_path / "gold_sets"
    docs.mkdir()
    for name in ("a", "b"):
        text = f"# Part\n\nTo open part {name}, turn the key. <b>Then</b> wait. {'x' * 300}\n"
        (docs / f"{name}.md").write_text(text, encoding="utf-8")
    init_gold_set(gold_sets / "mine", docs)
    env = {"RAG_EVAL_CORPUS_ROOTS": json.dumps([str(docs)]), "RAG_EVAL_GOLD_SETS": str(gold_sets)}
    server = Server(tmp_path, "--drafts", "mine", env=env)
    try:
        for look in looks:
            seen = visit(server.address, **look, unguarded=True)
            assert accessibility(seen, axe) == []
            assert overflow(seen.page) == []
            picture(seen, "review")
        seen = visit(server.address)
        seen.page.locator("input").first.fill("How do I get in?")
        seen.page.keyboard.press("Enter")
        seen.page.get_by_text("1 left").wait_for()
        assert seen.page.evaluate("document.activeElement.value") == ""
        seen.page.get_by_role("button", name="Drop").last.click()
        seen.page.get_by_text("No draft is left").wait_for()
        seen.check_quiet()
    finally:
        server.end()
    (row,) = (gold_sets / "mine" / "queries.jsonl").read_text().splitlines()
    assert json.loads(row)["text"] == "How do I get in?"
