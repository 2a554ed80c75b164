"""The gold set that ships for tests passes the linter and resolves at every level."""

from rag_eval.gold.lint import lint
from rag_eval.gold.loading import load_gold
from rag_eval.gold.resolving import resolve


def test_smoke_lints_clean(smoke, smoke_frames):
    assert lint(load_gold(smoke), smoke_frames.documents, smoke_frames.sections) == []


def test_smoke_resolves_on_every_level(smoke, smoke_frames):
    resolved = resolve(load_gold(smoke), *smoke_frames)
    assert resolved.problems == ()
    assert len(resolved.spans) == 10
    assert set(resolved.span_chunks["span"]) == set(range(10))
    document = resolved.qrels["document"].set_index(["query_id", "item_id"])["gain"]
    assert document["missed-while-down", "schedules.md"] == 2
    assert ("missed-while-down", "storage.md") not in document.index, (
        "a section that does not answer says nothing about its document"
    )
    section = resolved.qrels["section"].set_index(["query_id", "item_id"])["gain"]
    assert section["missed-while-down", "storage.md#restore"] == 0
    texts = smoke_frames.documents.set_index("doc_id")["text"]
    spans = resolved.spans.set_index("query_id")
    assert (
        texts["workers.md"][spans.loc["worker-count", "start"] : spans.loc["worker-count", "end"]]
        == "The default is one slot for each processor core."
    )
    assert resolved.decoys.to_dict("records") == [
        {"query_id": "stuck-task", "doc_id": "retries.md", "section_id": "retries.md#overdue-runs"},
        {"query_id": "password-for-job", "doc_id": "jobs.md", "section_id": ""},
        {"query_id": "slack", "doc_id": "alerts.md", "section_id": "alerts.md#channels"},
    ]
