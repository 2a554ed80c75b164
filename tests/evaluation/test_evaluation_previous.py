"""The previous run: paired question by question where that may be done, and null with the reason where not."""

import json

import numpy as np
import pandas as pd
import pytest
from cli_project import CONFIG, PARAPHRASES, jsonl
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.evaluation.previous_steps import (
    DAMAGED,
    GOLD_DIFFERS,
    GONE,
    NONE_IN_COMMON,
    delta_rows,
    means_of,
)
from rag_eval.measures.paired import paired_comparison
from rag_eval.reporting.metrics_report import VOLATILE, first_fault
from rag_eval.reporting.terminal import previous_lines

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # raised inside MLflow's own SQLAlchemy models

COLUMNS = {"R@10": "recall_at_10", "RR": "mrr", "nDCG@10": "ndcg_at_10"}
VALUES = st.lists(
    st.tuples(*[st.sampled_from([0.0, 0.25, 0.5, 1.0, np.nan])] * 12, st.integers(0, 2)),
    min_size=1,
    max_size=12,
)


def run(project):
    result = project.invoke("run", "tiny")
    assert result.exit_code == 0, result.output
    return project.report(), result.output


def kept_path(project, report):
    return project.home / "runs" / f"{report['run_id']}.json"


@given(VALUES)
@settings(deadline=None)
def test_deltas_are_those_of_a_paired_comparison_on_what_both_scored(rows):
    table = np.array(rows, dtype=np.float64)
    now, before, groups = table[:, :6], table[:, 6:12], table[:, 12].astype(np.int64)
    found = delta_rows(["a", "b"], now, before, groups)
    assert [(row["strategy"], row["measure"]) for row in found] == [
        (name, label) for name in "ab" for label in COLUMNS
    ]
    for at, row in enumerate(found):
        both = [
            (x, y)
            for x, y in zip(now[:, at], before[:, at], strict=True)
            if not np.isnan(x) and not np.isnan(y)
        ]
        assert (row["n_better"], row["n_worse"], row["n_tied"]) == (
            sum(x > y for x, y in both),
            sum(x < y for x, y in both),
            sum(x == y for x, y in both),
        )
        if not both:
            assert row["delta"] is row["before"] is row["after"] is None
            assert (
                row["before_reason"] == row["after_reason"] == "no question was scored in both runs"
            )
            continue
        assert row["after"] == pytest.approx(np.mean([x for x, _ in both]))
        assert row["before"] == pytest.approx(np.mean([y for _, y in both]))
        assert row["delta"] == pytest.approx(row["after"] - row["before"], abs=1e-9)
        alone = paired_comparison(now[:, at], before[:, at], groups, 20_240_229)
        np.testing.assert_allclose(
            [np.nan if row[key] is None else row[key] for key in ("ci_low", "ci_high")],
            [alone.ci_low[0], alone.ci_high[0]],
            atol=1e-9,
        )


def test_a_changed_corpus_is_named_and_its_questions_are_paired(project):
    (project.gold / "answers.jsonl").unlink()
    now, _ = run(project)
    (project.corpus / "new.md").write_text(
        "# Jobs\n\nHow often is a failed job tried again? Number of retries of a failed job.\n",
        encoding="utf-8",
    )
    (project.corpus / "retries.md").write_text(
        "# Retries\n\n## Count\n\nA failed job is tried three more times.\n", encoding="utf-8"
    )
    old = pd.read_parquet(project.reports / "tiny" / "per-query.parquet")
    last, printed = run(project)
    new = pd.read_parquet(project.reports / "tiny" / "per-query.parquet")
    part = last["previous"]
    assert (part["run_id"], part["timestamp"]) == (now["run_id"], now["timestamp"])
    assert part["comparable"] is False
    assert part["reason_codes"] == ["chunks_changed", "index_changed"]
    assert (
        f"previous run {now['run_id']}: not comparable (chunks changed, index changed)\n" in printed
    )
    assert last["history"]["runs"][-1]["reason_codes"] == part["reason_codes"]
    assert last["history"]["runs"][-1]["reason"] == "; ".join(part["reasons"])
    assert [entry["comparable"] for entry in last["history"]["runs"]] == [None, False]
    means = [
        frame[frame["level"] == "document"]
        .groupby(["strategy", "query_id"])[list(COLUMNS.values())]
        .mean()
        for frame in (old, new)
    ]
    assert len(part["deltas"]) == 6
    differs = 0
    for row in part["deltas"]:
        left, right = (
            mean.loc[row["strategy"]][COLUMNS[row["measure"]]].dropna() for mean in means
        )
        assert (row["before"], row["after"]) == (
            pytest.approx(left.mean()),
            pytest.approx(right.mean()),
        )
        assert row["n_better"] == int((right - left > 1e-12).sum())
        assert row["n_worse"] == int((left - right > 1e-12).sum())
        assert row["n_tied"] == len(left) - row["n_better"] - row["n_worse"]
        differs += row["n_better"] + row["n_worse"]
    assert differs, "the change of the corpus changes no ranking, so this test shows nothing"
    assert first_fault(last) is None


@pytest.mark.slow
def test_another_gold_is_not_paired(project):
    first, _ = run(project)
    (project.gold / "paraphrases.jsonl").write_text(jsonl(PARAPHRASES[:1]), encoding="utf-8")
    second, printed = run(project)
    part = second["previous"]
    assert (part["run_id"], part["comparable"], part["reason_codes"]) == (
        first["run_id"],
        False,
        ["gold_changed"],
    )
    assert (part["deltas"], part["deltas_reason"]) == (None, GOLD_DIFFERS)
    assert "not comparable (gold changed)" in printed
    assert first_fault(second) is None


@pytest.mark.slow
def test_figures_that_are_gone_or_damaged_are_said_and_never_fatal(project):
    first, _ = run(project)
    path = kept_path(project, first)
    kept = json.loads(path.read_text(encoding="utf-8"))
    damaged = project.home / "artifacts" / "ranking" / ("1" * 32)
    damaged.mkdir()
    (damaged / "artifact.json").write_text("{}", encoding="utf-8")
    (damaged / "per_query.parquet").write_bytes(b"no table")
    for key, reason in (("0" * 32, GONE), ("1" * 32, DAMAGED)):
        for other in (project.home / "runs").glob("*"):
            other.unlink()
        path.write_text(
            json.dumps(kept | {"artifacts": kept["artifacts"] | {"ranking": key}}), encoding="utf-8"
        )
        report, _ = run(project)
        assert (
            report["previous"]["run_id"],
            report["previous"]["deltas"],
            report["previous"]["deltas_reason"],
        ) == (first["run_id"], None, reason)
        assert report["content_hash"] == first["content_hash"]
        assert first_fault(report) is None


TABLE = pd.DataFrame(
    {
        "strategy": "a",
        "level": "document",
        "query_id": ["p", "p", "q"],
        **{name: [0.0, 1.0, np.nan] for name in COLUMNS.values()},
    }
)


def test_means_are_those_inside_each_question(tmp_path):
    TABLE.to_parquet(tmp_path / "table.parquet", index=False)
    found = means_of(tmp_path / "table.parquet", ["b", "a"], ["q", "p", "new"], "document")
    np.testing.assert_array_equal(
        found,
        np.hstack(
            [np.full((3, 3), np.nan), np.array([[np.nan], [0.5], [np.nan]]).repeat(3, axis=1)]
        ),
    )


@pytest.mark.parametrize(
    "spoiled",
    [
        TABLE.drop(columns="mrr"),
        TABLE.assign(mrr=7.0),
        TABLE.assign(mrr=-np.inf),
        TABLE.assign(mrr="<b>"),
        TABLE.assign(level=5),
        TABLE.drop(columns="query_id"),
        TABLE.assign(mrr=[[1.0], [], [2.0]]),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path, spoiled):
    spoiled.to_parquet(tmp_path / "table.parquet", index=False)
    with pytest.raises((OSError, ValueError, KeyError, TypeError, NotImplementedError)):
        means_of(tmp_path / "table.parquet", ["a"], ["p", "q"], "document")


@pytest.mark.slow
def test_a_damaged_run_is_passed_over_for_the_one_before(project):
    first, _ = run(project)
    second, _ = run(project)
    kept_path(project, second).write_text("{", encoding="utf-8")
    third, _ = run(project)
    assert third["previous"]["run_id"] == first["run_id"]
    assert [entry["run_id"] for entry in third["history"]["unreadable"]] == [second["run_id"]]
    assert first_fault(third) is None


@pytest.mark.slow
def test_other_strategies_are_named_and_those_in_common_paired(project):
    run(project)
    config = project.gold / "gold_set.yaml"
    config.write_text(
        CONFIG.replace(
            "  - {name: vector, kind: vector, embedding: {model: lsa-8}}\n",
            "  - {name: other, kind: bm25, k1: 0.5}\n",
        ).replace("depth: 20", "depth: 30"),
        encoding="utf-8",
    )
    second, _ = run(project)
    assert second["previous"]["reason_codes"] == ["configuration_changed", "strategies_changed"]
    assert {row["strategy"] for row in second["previous"]["deltas"]} == {"bm25"}
    config.write_text(
        CONFIG.replace("name: bm25", "name: third").replace("depth: 20", "depth: 30"),
        encoding="utf-8",
    )
    third, _ = run(project)
    assert (third["previous"]["deltas"], third["previous"]["deltas_reason"]) == (
        None,
        NONE_IN_COMMON,
    )
    assert "strategies_changed" in third["previous"]["reason_codes"]


def test_what_stands_in_a_report_of_an_earlier_version_is_not_asked_for(project):
    report, _ = run(project)
    assert {"history", "previous", "previous_reason"} <= VOLATILE
    assert previous_lines({key: part for key, part in report.items() if key != "previous"}) == []
    older = {
        key: part
        for key, part in report.items()
        if key not in {"history", "previous", "previous_reason", "slices", "overlap"}
    }
    assert first_fault(older) is None
    assert first_fault({**report, "previous": {}}) is not None
    assert first_fault({**report, "history": {"runs": []}}) is not None
    assert first_fault({**report, "slices": {**report["slices"], "more": 1}}) is not None
