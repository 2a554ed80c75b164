"""The helpers of the browser tests notice every forbidden act of a page."""

import pytest
from hostile_project import FAR

pytestmark = pytest.mark.slow

GUILTY = {
    "request": f"<img src='{FAR}/pixel.gif'>",
    "message": "<script>console.error('one')</script>",
    "exception": "<script>throw new Error('one')</script>",
    "dialog": "<script>alert(1)</script>",
    "pwned": "<script>window.__pwned = 1</script>",
    "polluted": "<script>Object.prototype.polluted = 1</script>",
    "window": "<script>window.open('about:blank')</script>",
    "policy": (
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'\"><script>1</script>"
    ),
    "frame": f"<iframe src='{FAR}/'></iframe>",
}


@pytest.mark.parametrize("name", GUILTY)
def test_what_no_page_may_do_is_seen(visit, tmp_path, name):
    path = tmp_path / "page.html"
    path.write_text(
        f"<!doctype html><html lang=en><title>x</title>{GUILTY[name]}<p>text", encoding="utf-8"
    )
    seen = visit(path)
    seen.page.wait_for_timeout(200)
    with pytest.raises(AssertionError):
        seen.check_quiet()


def test_a_page_that_does_nothing_is_quiet(visit, tmp_path):
    path = tmp_path / "page.html"
    path.write_text("<!doctype html><html lang=en><title>x</title><p>text", encoding="utf-8")
    visit(path).check_quiet()
