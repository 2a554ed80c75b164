"""The viewer shows the same explorer over kept runs and records feedback as outcomes.

Each feedback counts once, and only our own pages can send it.
"""

import functools
import http.server
import json
import threading
from pathlib import Path

import hostile_project
import pytest
from harm import harm, overflow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

NOTE = (
    "</textarea><script>window.__pwned=70;alert(70)</script><img src=x onerror=alert(71)> {{7*7}} "
    "\u202egnp\u2066 \x1b[31m =cmd|'C'!A1 write to carla.note@example.org"
)


def go(visit, viewer, address=None, **options):
    seen = visit(address or viewer.run(), **options)
    seen.page.locator("#explorer[data-state=ready] tbody tr.ex-row").first.wait_for()
    return seen


def unfold(page, at):
    page.select_option("#ex-size", "200")
    page.locator(f'tr.ex-row[data-index="{at}"] .ex-open').click()
    page.locator("#ex-detail[data-state=ready]").wait_for()
    page.locator(".ex-feedback-fold > summary").first.click()
    return page.locator("form.ex-feedback").first


def say(form, label, note=""):
    """Fill in the form and send it; return the reply of the page."""
    form.get_by_label(label).check()
    form.locator("textarea").fill(note)
    form.get_by_role("button", name="Record").click()
    told = form.locator("[aria-live]")
    form.page.wait_for_function(
        "(e) => e.textContent && e.textContent !== 'Sending…'", arg=told.element_handle()
    )
    return told.inner_text()


def test_runs_are_listed_and_open_quietly(hostile, serve, visit):
    viewer = serve(hostile)
    seen = visit(viewer.address)
    links = seen.page.locator("table a[href^='/runs/']")
    assert links.count() == 2
    assert harm(seen.page) == []
    links.first.click()
    seen.page.locator("#explorer[data-state=ready] tbody tr.ex-row").first.wait_for()
    assert seen.page.url == viewer.run()
    assert seen.page.locator("#ex-count").inner_text().endswith(f"of {len(hostile.questions)}")
    assert harm(seen.page) == []
    seen.check_quiet()


def test_pages_fit(hostile, serve, visit, picture, looks):
    viewer = serve(hostile)
    for look in looks:
        seen = visit(viewer.address, **look)
        assert overflow(seen.page) == []
        picture(seen, "viewer-runs")
        opened = go(visit, viewer, **look)
        unfold(opened.page, 0)
        assert overflow(opened.page) == []
        picture(opened, "viewer-run")
        seen.check_quiet()
        opened.check_quiet()


def test_feedback_is_an_outcome_when_the_page_says_so(hostile, serve, visit):
    viewer = serve(hostile)
    seen = go(visit, viewer)
    form = unfold(seen.page, 3)
    assert viewer.outcomes() == []
    told = say(form, "Something is missing", "the page about joins")
    held = viewer.outcomes()
    assert len(held) == 1
    question, strategy = hostile.questions[3], hostile.report["strategy"]
    assert held[0]["outcome_id"] in told
    expected = {
        "query_id": question["id"],
        "strategy": strategy,
        "gold_source": "user_feedback",
        "feedback": "something_missing",
        "note": "the page about joins",
        "missed": True,
        "inclusion_probability": None,
    }
    assert {name: held[0][name] for name in expected} == expected
    # The outcome also holds the text that the reader saw.
    run = next(
        run
        for run in question["runs"]
        if run["s"] == hostile.explorer["summary"]["primary"] and run["w"] == 0
    )
    stated = run["miss"][0]  # the page rounds the value
    assert held[0]["shown"]["value"] == (stated and pytest.approx(stated, abs=5e-4))
    # A repeated opinion adds nothing, and another opinion replaces it.
    assert "before" in say(form, "Something is missing", "the page about joins")
    assert len(viewer.outcomes(everything=True)) == 1
    say(form, "Nothing is missing")
    assert [row["feedback"] for row in viewer.outcomes()] == ["nothing_missing"]
    assert len(viewer.outcomes(everything=True)) == 2
    seen.check_quiet()


def test_feedback_is_taken_on_every_hostile_question(hostile, serve, visit):
    viewer = serve(hostile)
    seen = go(visit, viewer)
    wrong = {}
    asked = hostile_project.topics()[: len(hostile_project.NAMES) + len(hostile_project.QUERY_IDS)]
    for at, (query_id, _) in enumerate(asked):
        told = say(unfold(seen.page, at), "Something is missing", f"note of {at}")
        if "Recorded" not in told:
            wrong[query_id] = told
        seen.page.locator("#ex-close").click()
    assert wrong == {}
    assert {row["query_id"] for row in viewer.outcomes()} == {query_id for query_id, _ in asked}
    seen.check_quiet()


def test_a_hostile_note_is_kept_as_text_and_without_personal_data(hostile, serve, visit):
    viewer = serve(hostile)
    seen = go(visit, viewer)
    form = unfold(seen.page, 1)
    assert "Recorded" in say(form, "Something is missing", NOTE)
    (held,) = viewer.outcomes()
    assert "carla.note@example.org" not in held["note"]
    assert "window.__pwned=70" in held["note"]
    assert len(held["note"]) <= 500
    assert harm(seen.page) == []
    seen.check_quiet()


def test_read_only_offers_and_takes_nothing(hostile, serve, visit):
    viewer = serve(hostile, "--read-only")
    seen = go(visit, viewer)
    seen.page.locator("tr.ex-row .ex-open").first.click()
    seen.page.locator("#ex-detail[data-state=ready]").wait_for()
    assert seen.page.locator(".ex-feedback-fold, form.ex-feedback, textarea").count() == 0
    assert "read-only" in seen.page.locator("main").inner_text()
    seen.check_quiet()
    status = seen.page.evaluate(
        "async (body) => (await fetch('/feedback', {method: 'POST', headers: {'Content-Type': "
        "'application/json', 'X-Rag-Eval-Token': "
        "document.querySelector('meta[name=rag-eval-token]')?.content ?? ''}, body})).status",
        json.dumps(_body(hostile)),
    )
    assert status == 403
    assert viewer.outcomes() == []


def _body(hostile, at=0):
    question = hostile.questions[at]
    return {
        "run_id": hostile.report["run_id"],
        "query_id": question["id"],
        "paraphrase_id": "original",
        "seed": question["runs"][0]["seed"],
        "strategy": hostile.report["strategy"],
        "feedback": "something_missing",
        "note": "",
    }


ATTACK = Path(__file__).with_name("attack.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1"], ids=["cross-site", "same-site-other-port"]
)
def test_another_origin_can_neither_write_nor_read(hostile, serve, visit, tmp_path, host):
    viewer = serve(hostile)
    body = json.dumps(_body(hostile))
    page = (
        ATTACK.replace("BODY_START", quote_attribute(body[:-2] + ', "x": "'))
        .replace("BODY_END", '"}')
        .replace("BODY", json.dumps(body).replace("</", "<\\/"))
    )
    folder = tmp_path / "attack"
    folder.mkdir()
    (folder / "index.html").write_text(
        page.replace("ADDRESS", viewer.address.rstrip("/")).replace(
            "RUN", hostile.report["run_id"]
        ),
        encoding="utf-8",
    )
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            # The viewer is open in the same browser, so the browser would send its cookies.
            seen = go(visit, viewer)
            statuses = []
            other = seen.context.new_page()
            other.on(
                "response",
                lambda response: (
                    statuses.append((response.request.method, response.status))
                    if response.url.startswith(viewer.address)
                    else None
                ),
            )
            other.goto(f"http://{host}:{server.server_address[1]}/index.html")
            tried = other.evaluate("window.attack()")
        finally:
            server.shutdown()
            thread.join()
    assert viewer.outcomes(everything=True) == []
    assert [what for what in tried if what not in {"refused", "opaque 0"}] == []
    posts = [status for method, status in statuses if method == "POST"]
    assert len(posts) >= 2
    assert all(400 <= status < 500 for status in posts)
    # Our own page can still send feedback.
    assert "Recorded" in say(unfold(seen.page, 0), "Something is missing")


def quote_attribute(text):
    return text.replace("&", "&amp;").replace("'", "&#39;")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        """Drop the server's log lines, which would clutter the test output."""


def test_the_stored_report_is_shown_and_can_change_nothing(hostile, serve, visit):
    viewer = serve(hostile)
    seen = go(visit, viewer, f"{viewer.run()}report")
    assert seen.page.locator("section[data-panel]").count() == 13
    seen.page.locator("tr.ex-row .ex-open").first.click()
    seen.page.locator("#ex-detail[data-state=ready]").wait_for()
    assert harm(seen.page) == []
    seen.check_quiet()
    # Its opaque origin can neither read a page of the viewer nor send feedback.
    found = seen.page.evaluate(
        "async () => { try { return (await fetch('/runs/')).status } catch (error) { return "
        "String(error.name) } }"
    )
    assert found == "TypeError"
    assert seen.page.evaluate("self.origin") == "null"
    assert viewer.outcomes() == []
