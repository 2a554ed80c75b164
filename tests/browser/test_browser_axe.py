"""axe-core finds no serious or critical problem in the report.

The tests cover every theme and width, with the explorer closed and open.
"""

from urllib.parse import quote

import pytest
from harm import accessibility

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def test_the_engine_finds_what_is_wrong(visit, axe, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(
        "<!doctype html><html><title></title><img "
        'src="data:image/gif;base64,R0lGODlhAQABAAAAACw="><p '
        'style="color:#ccc;background:#fff">faint</p><button></button>',
        encoding="utf-8",
    )
    found = "\n".join(accessibility(visit(path, unguarded=True), axe))
    for rule in ("html-has-lang", "document-title", "image-alt", "color-contrast", "button-name"):
        assert rule in found


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
        hostile.page.as_uri() + f"#explorer?size=20&open={quote(question['id'], safe='')}&show=*",
        **look,
        unguarded=True,
    )
    seen.page.locator("#ex-detail[data-state=ready]").wait_for()
    seen.page.locator("#explorer summary").first.click()
    assert accessibility(seen, axe, "#panel-explorer") == []


def test_the_viewer(hostile, serve, visit, axe, looks):
    viewer = serve(hostile)
    for look in looks:
        seen = visit(viewer.address, **look, unguarded=True)
        assert accessibility(seen, axe) == []
        seen.page.goto(viewer.run())
        seen.page.locator("#explorer[data-state=ready] .ex-open").first.click()
        seen.page.locator("#ex-detail[data-state=ready] details summary").first.click()
        assert accessibility(seen, axe) == []
        seen.page.goto(f"{viewer.run()}report")
        assert accessibility(seen, axe) == []


def test_the_report_whose_explorer_cannot_start(hostile, visit, axe):
    seen = visit(hostile.page, unguarded=True, before="window.DecompressionStream = undefined;")
    seen.page.locator("#explorer [role=alert]").wait_for()
    assert accessibility(seen, axe) == []
