"""The documentation site builds without warnings, and works from disk without any other host."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def site(project_root, tmp_path_factory):
    """Build the site; return its folder."""
    folder = tmp_path_factory.mktemp("site")
    config = project_root / "docs" / "site" / "mkdocs.yml"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config, "-d", folder],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("page", ["index", "report-fields", "tutorial", "python"])
def test_a_page_asks_no_other_host(site, visit, page):
    seen = visit(site / f"{page}.html")
    assert seen.page.locator("h1").count() == 1
    assert [one for one in seen.requests if not one.startswith(("file:", "data:"))] == []
    assert seen.messages == []


def test_the_search_works_from_disk(site, visit):
    seen = visit(site / "index.html")
    field = seen.page.locator("input.md-search__input")
    field.click()
    field.press_sequentially("conformal")
    found = seen.page.locator(".md-search-result__link[href*='uncertainty.html']")
    found.first.wait_for()
