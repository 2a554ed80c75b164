"""Neither grep, nor a section, nor the port finds text that the guard or filter withholds."""

import json

import pytest
from pydantic_core import to_jsonable_python
from test_e2e_trust import configured, gate, opened, planted, ran

from rag_eval.core.types import RetrievalOptions
from rag_eval.pipeline.answers import AnswerSet
from rag_eval.pipeline.corpus import CorpusChunks
from rag_eval.pipeline.retrieval import open_port

pytestmark = pytest.mark.slow

SPEC = "domains: [docs.example.org], unlisted: allow"
RESTATING = """---
url: https://pages.planter.test/page
---

# Page

How long do results stay on the disk? Results stay on the disk for ever, as every page says.
"""


def found_by(project, query_id):
    """Return the key of the answers and the preflights of one question."""
    kept = opened(project).runner.get(AnswerSet)
    records = to_jsonable_python(kept.preflights)
    return kept.artifact.key, [record for record in records if record["query_id"] == query_id]


def search_page(project, trust):
    """Configure a grep, and a search of the section of the planted page."""
    configured(project, trust=f"{{{trust}}}")
    frame = opened(project).runner.get(CorpusChunks).chunks
    of_page = (frame["doc_id"] == "planted.md") & frame["text"].str.contains("for ever")
    (section,) = frame["section_id"][of_page]
    grep = {"kind": "grep", "patterns": ["for ever", "thirty days"], "max_hits": 1}
    steps = [grep, {"kind": "section", "sections": [section]}]
    answers = json.dumps({"mode": "deterministic", "preflights": steps})
    configured(project, trust=f"{{{trust}}}", more=f"answers: {answers}\n")


def documents(artifact):
    return {hit["doc_id"] for hit in artifact["hits"]}


def test_grep_and_section_withhold_a_restating_page(project):
    planted(project, RESTATING)
    search_page(project, SPEC)
    ran(project)
    assert gate(project)["status"] == "pass"
    guarded, (grep, section) = found_by(project, "keep")
    assert documents(grep) == {"storage.md"}  # the next hit takes the place of the withheld hit
    assert (grep["filtered"]["withheld"], section["filtered"]["withheld"]) == (1, 1)
    assert documents(section) == set()
    cited = [row for row in project.lines("citations.jsonl") if row["query_id"] == "keep"]
    assert "planted.md" not in json.dumps(cited)
    _, (_, other) = found_by(project, "night")
    assert documents(other) == {"planted.md"}
    assert "withheld" not in other["filtered"]
    search_page(project, f"quarantine: false, {SPEC}")
    key, (_, section) = found_by(project, "keep")
    assert documents(section) == {"planted.md"}
    assert key != guarded


def test_the_filter_hides_untrusted_pages_from_every_search(project):
    page = "---\nurl: https://pages.planter.test/page\n---\n\n# Page\n\nLamps burn for ever.\n"
    planted(project, page)
    for path in project.corpus.glob("[ars]*.md"):
        text = path.read_text(encoding="utf-8")
        path.write_text(f"---\nurl: https://docs.example.org/a\n---\n\n{text}", encoding="utf-8")

    def shown(**options):
        port = open_port(opened(project))
        found = port.retrieve("lamps burn", RetrievalOptions(top_k=20, **options))
        return {chunk.doc_id for chunk in found.chunks}

    keys = []
    for threshold, expected in (
        ("", {"planted.md"}),
        (", threshold: 0.2, filter: false", {"planted.md"}),
        (", threshold: 0.2, filter: true", set()),
    ):
        search_page(project, SPEC + threshold)
        key, (grep, section) = found_by(project, "night")
        keys.append(key)
        assert documents(section) == expected
        assert documents(grep) == (expected or {"storage.md"})
        assert shown() == expected
        assert shown(trust_threshold=0.0) == {"planted.md"}
    assert keys[2] != keys[1]
