"""The gold set that ships for tests is itself without objection."""

from rag_eval.gold.configuration import load_config
from rag_eval.gold.lint import lint
from rag_eval.gold.loading import load_gold
from rag_eval.gold.resolving import resolve
from rag_eval.gold.variants import variants


def test_smoke_lints_clean(smoke, smoke_frames):
    assert lint(load_gold(smoke), smoke_frames.documents, smoke_frames.sections) == []


def test_smoke_counts(smoke):
    gold = load_gold(smoke)
    assert (gold.name, gold.version, gold.layout) == ("smoke", "1", "own")
    assert len(gold.queries) == 12
    assert list(gold.queries.loc[~gold.queries["answerable"], "query_id"]) == [
        "slack",
        "windows-service",
    ]
    assert gold.paraphrases.groupby("query_id").size().eq(2).all()
    assert len(gold.decoys) == 3


def test_smoke_configuration(smoke):
    config = load_config(smoke)
    assert [strategy.name for strategy in config.strategies] == [
        "bm25",
        "vector",
        "hybrid",
        "hybrid-rrf-mmr",
    ]
    assert (config.k, config.depth, config.nightly, config.primary_strategy) == (
        (1, 3, 5),
        20,
        False,
        "hybrid",
    )


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


def test_smoke_variants(smoke):
    frame = variants(load_gold(smoke))
    assert len(frame) == 36
    assert list(frame["paraphrase_id"][:3]) == ["original", "situation", "terse"]
    # three questions are answered by workers.md and two by retries.md: each is one unit of inference
    assert frame.groupby("group_id")["query_id"].nunique().loc[
        ["gpu-only", "no-repeat-bad-input"]
    ].tolist() == [3, 2]
