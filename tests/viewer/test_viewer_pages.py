"""The viewer shows runs, stored parts and sandboxed reports, and no stored text becomes markup."""

import html.parser
import re

import pytest

from rag_eval.pipeline.history import make_record
from rag_eval.viewer.app import render

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\u200b{{ 7*7 }}'


class Elements(html.parser.HTMLParser):
    """Names of elements and attributes of a page, and its texts."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.attributes, self.texts = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.append(data)


@pytest.mark.parametrize("template", ["runs.html", "run.html"])
def test_hostile_texts_are_shown_as_texts(viewed, template):
    kept = viewed.kept()
    run = make_record("tiny", {}, kept["report"]).model_copy(
        update=dict.fromkeys(("gold_set", "timestamp", "primary", "index_hash", "level"), HOSTILE)
    )
    run.strategies[HOSTILE] = run.strategies["bm25"]
    more = {"n_runs": 2, "explorer": False}
    made = render(
        template, run=run, rows=[("20260101T000000001Z-00000000", run)], **more
    ).body.decode()
    found = Elements(made)
    assert "script" not in found.elements
    assert "img" not in found.elements
    assert not [name for name, _ in found.attributes if name.startswith("on") or name == "style"]
    assert "\u202e" not in made
    assert "\u200b" not in made
    shown = HOSTILE.replace("\u202e", "[U+202E]").replace("\u200b", "[U+200B]")
    assert any(shown in text for text in found.texts)


def test_the_list_has_each_run_with_its_figures(viewed):
    report = viewed.kept()["report"]
    page = viewed.client().get("/")
    assert page.status_code == 200
    assert f'href="/runs/{viewed.run_id}/"' in page.text
    measure = next(
        item
        for entry in report["strategies"]
        if entry["name"] == report["strategy"]
        for item in entry["measures"]
        if item["label"] == "R@10" and item["level"] == report["evaluation"]["level"]
    )
    assert (
        f"{measure['value']:.3f} [{measure['ci_low']:.3f}, {measure['ci_high']:.3f}]" in page.text
    )
    assert f'data-label="n" class="number">{measure["n_scored"]}<' in page.text
    assert "tiny" in page.text


def test_runs_are_listed_newest_first(viewed):
    kept = viewed.kept()
    ids = [f"20300101T0000{number:05d}Z-00000000" for number in range(100)]
    for run_id in ids:
        kept["report"]["run_id"] = run_id
        viewed.keep(kept, run_id)
    page = viewed.client().get("/").text
    assert re.findall(r'href="/runs/([^/"]+)/"', page) == ids[::-1]
    assert "101 kept" in page


@pytest.mark.parametrize(
    "content", ["{", '{"gold_set": 1, "artifacts": [], "report": {"gates": 3}}']
)
def test_a_damaged_run_is_named_and_stops_nothing_else(viewed, content):
    damaged = "20300101T000000000Z-00000000"
    (viewed.home / "runs" / f"{damaged}.json").write_text(content, encoding="utf-8")
    client = viewed.client()
    page = client.get("/")
    assert page.status_code == 200
    assert damaged in page.text
    assert f'href="/runs/{viewed.run_id}/"' in page.text
    found = client.get(f"/runs/{damaged}/")
    assert found.status_code == 409
    assert "damaged" in found.text
    assert str(viewed.home) not in found.text
    assert client.get(f"/runs/{viewed.run_id}/").status_code == 200


def test_the_page_of_a_run_holds_the_explorer(viewed):
    found = Elements(viewed.client().get(f"/runs/{viewed.run_id}/").text)
    attributes = dict(found.attributes)
    assert attributes["data-source"] == "fetch"
    assert attributes["data-base"] == f"/runs/{viewed.run_id}/"
    assert ("src", "/assets/explorer.js") in found.attributes
    assert "noscript" in found.elements
    assert not [name for name, _ in found.attributes if name.startswith("on") or name == "style"]


def test_parts_are_sent_as_they_are_stored(viewed):
    client, folder = viewed.client(), f"/runs/{viewed.run_id}/explorer"
    with client.stream("GET", f"{folder}/summary.json") as answer:
        stored = b"".join(answer.iter_raw())
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["content-type"] == "application/json"
    assert stored == viewed.explorer.joinpath("summary.json.gz").read_bytes()
    ids = client.get(f"{folder}/summary.json").json()["questions"]["id"]
    assert ids == ["keep", "again", "night", "price"]
    questions = client.get(f"{folder}/questions-0000.json").json()
    assert [question["id"] for question in questions] == ids


NOWHERE = (
    *(f"/runs/RUN/explorer/{part}.json" for part in "chunks-0000 questions-0001 artifact".split()),
    *(f"/runs/RUN/explorer/{part}.json" for part in "..%2fartifact summary.json SUMMARY".split()),
    *(f"/runs/RUN/explorer/{part}.json" for part in "questions-٠٠٠٠ summary%00".split()),
    "/runs/RUN/explorer/questions-000.json",
    *(
        f"/runs/{run_id}{rest}"
        for run_id in (
            *("%2e%2e", "..%2f..%2fetc%2fpasswd", "..%5c..", "a%00b", "%0a", "x" * 5000),
            *("20261122T130838752Z-488d41af", "٢٠261122T130838752Z-488d41af"),
        )
        for rest in ("/", "/report", "/explorer/summary.json")
    ),
    *(f"/assets/{name}" for name in "viewer.py ..%2fapp.py %2e%2e%2fapp.py".split()),
    *(f"/assets/{name}" for name in "templates%2fbase.html viewer.css%00 VIEWER.CSS".split()),
)


def test_no_other_part_run_or_asset_is_sent(viewed):
    client = viewed.client()
    for address in NOWHERE:
        answer = client.get(address.replace("RUN", viewed.run_id))
        assert answer.status_code == 404, address
        assert str(viewed.home) not in answer.text, address


def test_a_report_is_served_in_a_sandbox(viewed):
    client = viewed.client()
    answer = client.get(f"/runs/{viewed.run_id}/report")
    assert answer.status_code == 200
    assert viewed.run_id in answer.text
    assert 'id="panel-verdict"' in answer.text
    assert "Content-Security-Policy" in answer.text
    policy = answer.headers["content-security-policy"]
    assert "sandbox allow-scripts" in policy
    assert "allow-same-origin" not in policy
    assert "connect-src" not in policy  # so default-src 'none' applies
    assert "default-src 'none'" in policy
    assert "cross-origin-opener-policy" not in answer.headers
    assert f'href="/runs/{viewed.run_id}/report"' in client.get(f"/runs/{viewed.run_id}/").text
