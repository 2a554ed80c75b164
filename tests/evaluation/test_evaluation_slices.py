"""Slices hold the right questions, and their figures equal those of the per-query table."""

import numpy as np
import pandas as pd
import pytest
from cli_project import CONFIG, QUERIES, jsonl
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.pipeline.report_parts import MAX_TAGS, _length_slices, _tag_slices

TAGS = st.lists(st.lists(st.sampled_from(["a", "b", "c", "ä <b>", ""]), max_size=4), max_size=12)


@given(TAGS, st.integers(0, 3))
def test_tags_are_the_most_frequent_and_hold_exactly_their_questions(tags, limit):
    n_tags, found = _tag_slices(tags, limit)
    counts = {tag: sum(tag in row for row in tags) for tag in {tag for row in tags for tag in row}}
    assert n_tags == len(counts)
    assert [part.name for part in found] == sorted(counts, key=lambda tag: (-counts[tag], tag))[
        :limit
    ]
    for part in found:
        assert part.member.tolist() == [part.name in row for row in tags]


@given(st.lists(st.integers(0, 9), max_size=30))
def test_thirds_hold_every_question_once_in_the_order_of_length(words):
    found = _length_slices(np.array(words, dtype=np.int64))
    if len(set(words)) < 2:
        assert found == []
        return
    assert np.sum([part.member for part in found], axis=0).tolist() == [1] * len(words)
    chosen = [np.array(words)[part.member] for part in found]
    bounds = [(own.min(), own.max()) for own in chosen]
    assert bounds == sorted(bounds)
    for part, (low, high) in zip(found, bounds, strict=True):
        assert part.member.tolist() == [low <= count <= high for count in words]
        assert (f"{low} to {high}" if low != high else f"of {low} ") in part.about


def by_name(report):
    return {(part["kind"], part["name"]): part for part in report["slices"]["by"]}


@pytest.fixture
def sliced(project, shared_runs):
    """Run over questions in few groups, with two tags. One question has no tag."""
    rows = [
        {**row, "tags": tags}
        for row, tags in zip(
            QUERIES, (["storage", "old"], ["old", "old"], [], ["old"]), strict=True
        )
    ]
    (project.gold / "queries.jsonl").write_text(jsonl(rows), encoding="utf-8")
    shared_runs.run(project)
    return project


def test_figures_are_those_of_the_per_query_table(sliced):
    report = sliced.report()
    frame = pd.read_parquet(sliced.reports / "tiny" / "per-query.parquet")
    frame = frame[frame["level"] == "document"]
    means = frame.groupby(["strategy", "query_id"])[["recall_at_10", "success_at_10"]].mean()
    found = by_name(report)
    members = {"storage": ["keep"], "old": ["again", "keep", "price"]}
    assert [name for kind, name in found if kind == "tag"] == ["old", "storage"]
    for name, ids in members.items():
        entry = found["tag", name]
        assert entry["n_queries"] == len(ids)
        for strategy, figure in entry["strategies"].items():
            wanted = means.loc[strategy].loc[ids]
            assert figure["value"] == pytest.approx(wanted["recall_at_10"].mean())
            assert figure["miss"]["value"] == pytest.approx(1 - wanted["success_at_10"].mean())
            assert (figure["n_attempted"], figure["n_scored"], figure["n_ineligible"]) == (
                len(ids),
                int(wanted["recall_at_10"].notna().sum()),
                int(wanted["recall_at_10"].isna().sum()),
            )
    assert found["tag", "storage"]["strategies"]["bm25"]["ci_low"] is None
    assert (
        found["tag", "storage"]["strategies"]["bm25"]["ci_low_reason"]
        == "one question gives no interval"
    )
    assert report["slices"]["n_tags"] == 2


def test_the_answerable_slice_is_what_the_report_says_of_the_whole(sliced):
    report, keys = sliced.report(), ("value", "ci_low", "ci_high", "n_scored", "n_effective")
    found = by_name(report)["answerability", "answerable"]
    other = by_name(report)["answerability", "unanswerable"]

    def figures(record):
        return [record[key] for key in keys]

    for entry in report["strategies"]:
        name = entry["name"]
        records = {(record["label"], record["level"]): record for record in entry["measures"]}
        seen = report["uncertainty"]["strategies"][name]["observed"]["miss_any"]
        assert figures(found["strategies"][name]) == figures(records["R@10", "document"])
        assert figures(found["strategies"][name]["miss"]) == figures(seen)
        for figure in (other["strategies"][name], other["strategies"][name]["miss"]):
            assert figure["value"] is None
            assert "no gold" in figure["value_reason"]
    rates = {record["name"]: record for record in report["answers"]["measures"]}
    assert figures(found["abstention"]) == figures(rates["refused_answerable"])
    assert figures(other["abstention"]) == figures(rates["abstention_rate"])


def test_without_answers_abstention_is_null_and_says_why(project):
    (project.gold / "gold_set.yaml").write_text(
        CONFIG.replace("answers: {mode: deterministic, top_k: 5}\n", ""), encoding="utf-8"
    )
    (project.gold / "queries.jsonl").write_text(
        jsonl(
            {**row, "tags": [f"tag {at}-{n}" for n in range(20)]} for at, row in enumerate(QUERIES)
        ),
        encoding="utf-8",
    )
    assert project.invoke("run", "tiny").exit_code == 0
    report = project.report()
    assert by_name(report)["answerability", "unanswerable"]["abstention"] == {
        "value": None,
        "reason": "the gold set configures no answers",
    }
    assert report["slices"]["n_tags"] == 80
    assert sum(part["kind"] == "tag" for part in report["slices"]["by"]) == MAX_TAGS
