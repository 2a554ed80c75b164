"""The report of a run, opened from disk, is complete, readable and offline; no data in it runs."""

import re

import hostile_project
import pytest
from evaluated import PANELS
from harm import harm, overflow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

LIMIT = 3_000_000
"""Largest size of a page of up to 1,000 questions, in bytes."""
WITH_PICTURES = ("measures", "miss-rates")
PRINTED_PX = 956
"""Width in pixels in which a browser lays out an A4 page.

A4 is 8.27 inches wide. Without two margins of 0.4 inches, 717 pixels remain at 96 pixels an inch.
A browser may lay out a wide page at 4/3 of this width and shrink the print.
"""


def ready(seen):
    """Wait until the explorer shows its questions."""
    seen.page.locator("#explorer tbody tr").first.wait_for()
    return seen


def open_all(page):
    """Unfold all folded parts of the page."""
    page.evaluate(
        "document.querySelectorAll('section[data-panel] details').forEach((e) => "
        "{ e.open = true; })"
    )


def test_page_is_one_file_of_bounded_size(hostile):
    assert 100_000 < hostile.page.stat().st_size <= LIMIT
    text = hostile.page.read_text(encoding="utf-8")
    assert not re.search(
        r"""<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)\s*=\s*["']?(?!data:)""", text
    )
    head = re.sub(r"<script type=\"application[^>]*>[^<]*", "", text).split("<body", 1)[0]
    assert "@import" not in head


def test_opens_quietly_with_every_panel(hostile, visit, look, picture):
    seen = ready(visit(hostile.page, **look))
    assert overflow(seen.page) == []
    open_all(seen.page)
    panels = seen.page.locator("section[data-panel]")
    assert [panels.nth(n).get_attribute("data-panel") for n in range(panels.count())] == list(
        PANELS
    )
    for name in PANELS:
        panel = seen.page.locator(f"#panel-{name}")
        assert panel.is_visible()
        labelled = panel.get_attribute("aria-labelledby")
        assert seen.page.locator(f"#{labelled}").inner_text().strip()
        assert len(panel.inner_text().strip()) > 80, name
        assert panel.bounding_box()["height"] > 60, name
        odd = panel.locator("td, dd, data, text").evaluate_all(
            "(all) => all.map((e) => e.textContent.trim()).filter((text) => ['NaN', 'nan', "
            "'None', 'null', 'inf', '[object Object]'].includes(text))"
        )
        assert [text for text in odd if text not in hostile_project.NAMES] == [], name
    for name in WITH_PICTURES:
        drawn = seen.page.locator(f"#panel-{name} svg").first
        assert drawn.bounding_box()["width"] > 200
        assert seen.page.locator(f"#panel-{name} svg").first.evaluate(
            "(e) => e.querySelector('title')?.textContent || e.getAttribute('aria-label') || ''"
        )
    assert harm(seen.page) == []
    seen.check_quiet()
    picture(seen, f"report-{hostile.name}")


def test_prints_every_panel(hostile, visit):
    seen = ready(visit(hostile.page))
    seen.page.emulate_media(media="print")
    seen.page.set_viewport_size({"width": PRINTED_PX, "height": 1123})
    assert overflow(seen.page) == []
    for name in PANELS:
        assert seen.page.locator(f"#panel-{name}").is_visible(), name
    # Folded parts are printed.
    folded = seen.page.locator("section[data-panel]:not(#panel-explorer) details").evaluate_all(
        "(all) => all.flatMap((e) => [...e.children].slice(1)).filter((e) => "
        "!e.checkVisibility()).length"
    )
    assert folded == 0
    document = seen.page.pdf(format="A4")
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", document)) >= 4
    seen.check_quiet()


def test_reads_without_scripts(hostile, visit):
    seen = visit(hostile.page, javascript=False)
    for name in PANELS:
        panel = seen.page.locator(f"#panel-{name}")
        assert panel.is_visible(), name
        assert len(panel.text_content().strip()) > 60, name
    assert "JavaScript" in seen.page.locator("#panel-explorer").inner_text()
    # Controls that need a script are hidden.
    assert [b.inner_text() for b in seen.page.get_by_role("button").all() if b.is_visible()] == []
    assert seen.elsewhere() == []


def test_without_the_policy_escaping_alone_holds(hostile, visit):
    seen = ready(visit(hostile.page, unguarded=True))
    assert harm(seen.page) == []
    seen.check_quiet()
