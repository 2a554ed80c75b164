"""The viewer lists runs and shows the explorer and the report of each; other sites read nothing."""

import functools
import http.server
import threading

import pytest
from harm import harm, overflow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def go(visit, viewer, address=None, **options):
    seen = visit(address or viewer.run(), **options)
    seen.page.locator("#explorer[data-state=ready] tbody tr.ex-row").first.wait_for()
    return seen


def unfold(page):
    page.locator("tr.ex-row .ex-open").first.click()
    page.locator("#ex-detail[data-state=ready]").wait_for()


def test_pages_fit(hostile, serve, visit, picture, looks):
    viewer = serve(hostile)
    for look in looks:
        seen = visit(viewer.address, **look)
        assert overflow(seen.page) == []
        picture(seen, "viewer-runs")
        opened = go(visit, viewer, **look)
        unfold(opened.page)
        assert overflow(opened.page) == []
        picture(opened, "viewer-run")
        seen.check_quiet()
        opened.check_quiet()


ATTACK = """<!doctype html><title>x</title><script>
async function attack() {
  const tried = [];
  for (const path of ["", "runs/RUN/explorer/summary.json", "assets/explorer.js"])
    for (const mode of ["cors", "no-cors"])
      tried.push(await fetch("ADDRESS" + path, {mode}).then(
        (answer) => answer.type + " " + answer.status, () => "refused"));
  const frame = document.createElement("iframe");
  frame.src = "ADDRESS";
  document.body.append(frame);
  await new Promise((done) => frame.addEventListener("load", done));
  return tried;
}
</script><body>"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        """Drop the server's log lines, which would clutter the test output."""


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1"], ids=["cross-site", "same-site-other-port"]
)
def test_another_origin_reads_nothing(hostile, serve, visit, tmp_path, host):
    viewer = serve(hostile)
    page = ATTACK.replace("ADDRESS", viewer.address).replace("RUN", hostile.report["run_id"])
    (tmp_path / "index.html").write_text(page, encoding="utf-8")
    handler = functools.partial(_Quiet, directory=str(tmp_path))
    statuses = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            other = go(visit, viewer).context.new_page()
            other.on(
                "response",
                lambda response: (
                    statuses.append(response.status)
                    if response.url.startswith(viewer.address)
                    else None
                ),
            )
            other.goto(f"http://{host}:{server.server_address[1]}/index.html")
            tried = other.evaluate("attack()")
        finally:
            server.shutdown()
            thread.join()
    assert set(tried) <= {"refused", "opaque 0"}
    assert statuses
    assert set(statuses) == {403}


def test_the_stored_report_is_shown_and_reads_no_page_of_the_viewer(hostile, serve, visit):
    viewer = serve(hostile)
    seen = go(visit, viewer, f"{viewer.run()}report")
    assert seen.page.locator("section[data-panel]").count() == 10
    unfold(seen.page)
    assert harm(seen.page) == []
    seen.check_quiet()
    found = seen.page.evaluate(
        "async () => { try { return (await fetch('/runs/')).status } catch (error) { return "
        "String(error.name) } }"
    )
    assert found == "TypeError"
    assert seen.page.evaluate("self.origin") == "null"
