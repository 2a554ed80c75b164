"""The per-question explorer works with a pointer, a keyboard, a phone and damaged data."""

import json
import math
import re
from urllib.parse import quote

import hostile_project
import pytest
from harm import harm, overflow, plain

from rag_eval.reporting.tables import visible

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

K = 10


@pytest.fixture
def opened(visit):
    """Open a page and wait for the explorer; check the page's behaviour at the end."""
    seen = []

    def go(evaluated, fragment="", **options):
        made = visit(evaluated.page.as_uri() + fragment, **options)
        made.page.locator("#explorer[data-state=ready] tbody tr").first.wait_for()
        seen.append(made)
        return made.page

    yield go
    for made in seen:
        made.check_quiet()


def ids(page):
    return page.locator("#ex-table > tbody > tr.ex-row").evaluate_all(
        "(rows) => rows.map((row) => Number(row.dataset.index))"
    )


def cells(page, column):
    return [
        text.strip()
        for text in page.locator(
            f'#ex-table > tbody > tr.ex-row > [data-column="{column}"]'
        ).all_inner_texts()
    ]


def figures(page, column):
    """Return the numbers of a column; NaN for a cell that gives a reason instead of a number."""
    found = [
        re.match(r"[+−-]?\d+(?:\.\d+)?", text.replace(",", "")) for text in cells(page, column)
    ]
    return [float(match[0].replace("−", "-")) if match else math.nan for match in found]


def ranks(page, column):
    """Return the numbers of a column; infinity for a gold that was not found."""
    texts = cells(page, column)
    return [
        math.inf if text.startswith("none") else number
        for text, number in zip(texts, figures(page, column), strict=True)
    ]


def over_pages(page, read):
    """Read all pages of the table, from the first one that is shown."""
    found = read(page)
    while page.locator("#ex-next").get_attribute("aria-disabled") == "false":
        page.locator("#ex-next").click()
        found += read(page)
    return found


def unfold(page, hostile, at):
    """Open the question with this number, and return its details."""
    page.evaluate(
        "(id) => { location.hash = '#explorer?open=' + encodeURIComponent(id); }",
        hostile.explorer["summary"]["questions"]["id"][at],
    )
    page.locator(f'tr.ex-row.ex-is-open[data-index="{at}"]').wait_for()
    page.locator("#ex-detail[data-state=ready]").wait_for()
    return page.locator("#ex-detail")


@pytest.mark.parametrize("column", ["value", "first"])
def test_every_column_sorts_both_ways(hostile, opened, column):
    page = opened(hostile)
    head = page.locator(f'#ex-table thead th[data-column="{column}"]')
    # Rows without a number are last in both directions.
    seen = set()
    for _ in range(2):
        head.get_by_role("button").click()
        direction = head.get_attribute("aria-sort")
        seen.add(direction)
        shown = over_pages(page, lambda page: ranks(page, column))
        said = [value for value in shown if not math.isnan(value)]
        assert len(set(said)) > 1
        assert said == sorted(said, reverse=direction == "descending")
        assert all(map(math.isnan, shown[len(said) :]))
    assert seen == {"ascending", "descending"}
    assert page.locator("#ex-table thead th[aria-sort]").count() == 1


def test_pages_show_every_question_once(hostile, opened):
    page, n = opened(hostile), hostile.explorer["summary"]["n_questions"]
    assert len(ids(page)) == 20
    seen = over_pages(page, ids)
    assert sorted(seen) == list(range(n))
    assert f"of {n}" in page.locator("#ex-count").inner_text()
    page.locator("#ex-previous").click()
    assert ids(page) == seen[-(n % 20 or 20) - 20 : -(n % 20 or 20)]


def test_filters_leave_what_they_say(hostile, opened):
    page, summary = opened(hostile), hostile.explorer["summary"]
    questions, primary = summary["questions"], summary["primary"]
    everything = range(summary["n_questions"])

    def check(wanted):
        assert sorted(over_pages(page, ids)) == sorted(wanted)

    def missed(at, strategy):
        first = questions["first"][strategy][at]
        return questions["value"][strategy][at] is not None and not (first or math.inf) <= K

    word = questions["text"][7].split()[2].lower()
    page.fill("#ex-search", word)
    texts = [f"{questions['id'][at]}\n{questions['text'][at]}".lower() for at in everything]
    check([at for at in everything if word in texts[at]])
    page.fill("#ex-search", "")
    page.check("#ex-missed")
    page.select_option("#ex-strategy", index=1 - primary)
    assert sorted(over_pages(page, ids)) == [at for at in everything if missed(at, 1 - primary)]
    page.select_option("#ex-strategy", index=primary)
    page.fill("#ex-search", word)
    check([at for at in everything if word in texts[at] and missed(at, primary)])
    page.fill("#ex-search", "no question says this, ever")
    assert ids(page) == []
    assert "No question" in page.locator("#ex-count").inner_text()


def is_marked(question):
    return any(len(unit["text"]) > 1 for unit in question["units"])


def test_a_question_opens_down_to_its_evidence(hostile, opened):
    page, summary, questions = opened(hostile), hostile.explorer["summary"], hostile.questions
    at = next(
        at
        for at, question in enumerate(questions)
        if len(question["wordings"]) > 1
        and is_marked(question)
        and question["answer"]
        and question["answer"]["citations"]
    )
    question = questions[at]
    detail = unfold(page, hostile, at)
    # wordings
    assert detail.locator("#ex-wordings-table tbody tr").count() == len(question["wordings"])
    for wording in question["wordings"]:
        assert plain(wording["text"])[:60] in plain(
            detail.locator("#ex-wordings-table").inner_text()
        )
    # ranked evidence of the primary strategy, best first, with scores, badges and the miss rate
    run = next(run for run in question["runs"] if run["s"] == summary["primary"] and run["w"] == 0)
    units = detail.locator("article.ex-run li.ex-unit")
    assert units.count() == len(run["units"]) > 0
    assert [int(text.split()[-1]) for text in detail.locator(".ex-rank").all_inner_texts()] == list(
        range(1, len(run["units"]) + 1)
    )
    scores = [
        float(re.search(r"[−-]?[\d.]+", text)[0].replace("−", "-"))
        for text in detail.locator(".ex-score").all_inner_texts()
    ]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) > 1
    for place in range(units.count()):
        assert ("ex-hit" in units.nth(place).get_attribute("class").split()) == (
            place in run["hits"]
        )
    facts = detail.locator("article.ex-run dl").inner_text()
    assert run["miss"][3] in facts
    if run["miss"][0] is not None:
        assert f"{run['miss'][0]:.3f}" in facts
    # the answer's citations, each with its verdict
    cited = detail.locator(".ex-citations > li")
    assert cited.count() == len(question["answer"]["citations"])
    for place, citation in enumerate(question["answer"]["citations"]):
        assert citation["code"] in cited.nth(place).inner_text()
        said = cited.nth(place).locator(".ex-correct").inner_text()
        assert (
            said == {True: "correct", False: "not correct", None: "not judged"}[citation["correct"]]
        )
    # another wording, and another strategy
    detail.locator("#ex-wordings-table input").nth(1).check()
    page.locator(
        f"article.ex-run[data-wording={json.dumps(question['wordings'][1]['id'])}]"
    ).first.wait_for()
    other = summary["strategies"][summary["primary"] - 1]
    page.select_option("#ex-strategy", other)
    page.locator(f'article.ex-run[data-strategy="{other}"]').wait_for()
    assert overflow(page) == []


@pytest.mark.parametrize("unguarded", [False, True])
def test_every_hostile_question_opens_as_text(hostile, opened, unguarded):
    """Escaping alone stops hostile text, also while the policy of the page is out of force."""
    page, questions = opened(hostile, unguarded=unguarded), hostile.questions
    assert len(questions) == len(hostile_project.topics()) + hostile_project.N_PLAIN
    for at, question in enumerate(questions):
        detail = unfold(page, hostile, at)
        assert harm(page) == [], question["id"]
        assert overflow(page) == [], question["id"]
        links = detail.locator("a[href]").evaluate_all(
            "(all) => all.map((a) => [a.href, a.target, a.rel])"
        )
        assert all(
            re.match(r"https?://(?:www\.)?example\.org/", href)
            and target == "_blank"
            and "noopener" in rel
            for href, target, rel in links
        ), links
        if at < len(hostile_project.topics()):
            payload = plain(visible(plain(hostile_project.topics()[at][1])))[:40]
            assert payload[:30] in plain(detail.inner_text()), question["id"]


def test_keyboard_alone_is_enough(hostile, opened):
    page = opened(hostile)

    def focused(expression):
        return page.evaluate(f"((e) => {expression})(document.activeElement)")

    page.keyboard.press("Tab")
    assert focused("e.className") == "skip"
    page.locator("#ex-search").focus()
    page.keyboard.type("topic-")
    assert 0 < len(ids(page)) < hostile.explorer["summary"]["n_questions"]
    for _ in "topic-":
        page.keyboard.press("Backspace")
    walked = set()
    while focused("e.className") != "ex-open" and len(walked) < 40:
        page.keyboard.press("Tab")
        walked.add(focused("e.id || e.className || e.closest('th')?.dataset.column || ''"))
    controls = {"ex-strategy", "ex-status", "ex-missed"}
    assert controls | {"question", "change"} <= walked
    assert focus_shows(page)
    at = focused("Number(e.closest('tr').dataset.index)")
    page.keyboard.press("Enter")
    page.locator("#ex-detail[data-state=ready]").wait_for()
    assert focused("e.id") == "ex-detail-title"
    page.locator("#ex-wordings-table input").first.focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_function(
        "document.querySelector('article.ex-run').dataset.wording !== 'original'"
    )
    page.keyboard.press("Escape")
    assert page.locator("#ex-detail").count() == 0
    assert focused("Number(e.closest('tr').dataset.index)") == at
    head = page.locator('#ex-table thead th[data-column="miss"]')
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    page.locator("#ex-next").focus()
    page.keyboard.press("Enter")
    assert "Page 2" in page.locator("#ex-page").inner_text()
    assert focused("e.id") == "ex-next"


def focus_shows(page):
    """Return whether the focused element has a visible outline or shadow."""
    return page.evaluate(
        "(() => { const s = getComputedStyle(document.activeElement); return (s.outlineStyle "
        "!== 'none' && parseFloat(s.outlineWidth) >= 1) || s.boxShadow !== 'none'; })()"
    )


@pytest.mark.parametrize(
    "fragment",
    [
        "#explorer?%E0%A4%A&page=1e99",
        "#explorer?strategy=__proto__&status=constructor&open=__proto__&sort=__proto__",
        "#explorer?q=" + quote("<img src=x onerror=alert(1)>"),
    ],
)
def test_an_address_that_asks_for_nothing_known_is_harmless(hostile, visit, fragment):
    seen = visit(hostile.page.as_uri() + fragment)
    seen.page.locator("#explorer[data-state=ready]").wait_for()
    assert seen.page.locator("#ex-problem").count() == 0
    assert harm(seen.page) == []
    seen.check_quiet()


def test_an_open_question_fits(hostile, picture, visit, look):
    at = next(
        at
        for at, question in enumerate(hostile.questions)
        if is_marked(question) and question["answer"]
    )
    seen = visit(
        hostile.page.as_uri() + f"#explorer?open={quote(hostile.questions[at]['id'], safe='')}",
        **look,
    )
    seen.page.locator("#ex-detail[data-state=ready]").wait_for()
    assert overflow(seen.page) == []
    if look["narrow"]:
        small = (
            seen.page.locator("#explorer")
            .get_by_role("button")
            .evaluate_all(
                "(all) => all.filter((b) => b.offsetParent && "
                "b.getBoundingClientRect().height < 24).map((b) => b.id || b.className)"
            )
        )
        assert small == []
    picture(seen, f"explorer-{hostile.name}")
    seen.check_quiet()


@pytest.mark.parametrize(
    ("name", "harmful"),
    [
        ("summary", "!!!!"),
        ("questions-0000", "H4sIAAAAAAAC/w=="),
    ],
)
def test_damaged_data_are_said_in_a_sentence(hostile, visit, tmp_path, name, harmful):
    path = tmp_path / "index.html"
    text, n = re.subn(
        rf'(id="bundle-{name}">)[^<]*', rf"\g<1>{harmful}", hostile.page.read_text(encoding="utf-8")
    )
    assert n == 1
    path.write_text(text, encoding="utf-8")
    seen = visit(path)
    if name == "summary":
        told = seen.page.locator("#explorer [role=alert]")
    else:
        seen.page.locator("#explorer[data-state=ready] .ex-open").first.click()
        told = seen.page.locator("#ex-detail [role=alert]")
    told.wait_for()
    assert "damaged" in told.inner_text()
    assert seen.page.locator("#panel-measures").is_visible()
    seen.check_quiet()
