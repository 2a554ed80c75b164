"""Three assets of answers and the warning of FK019 exist only where the gold set has answers."""

import json

import dagster as dg
import pytest

DETERMINISTIC = (
    "answers: {mode: deterministic, abstain_below: 0.2, top_k: 5, "
    "preflights: [{kind: retrieve}, {kind: grep}]}"
)
UNUSED = "Bananas are yellow fruit from Ecuador."


def record_outputs(project) -> list[str]:
    """Write answers of another system.

    Each answer copies a sentence of the corpus, but the first answer uses none of its evidence.
    """
    lines = (project.folder / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    queries = [json.loads(line) for line in lines]
    path = min((project.folder / "corpus").rglob("*.md"))
    passage = next(
        line
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.endswith(".") and len(line) > 30
    )
    context = {"doc_id": path.relative_to(project.folder / "corpus").as_posix(), "text": passage}
    rows = [
        {
            "query_id": row["query_id"],
            "answer": UNUSED if place == 0 else f"{passage} [1]",
            "contexts": [context],
        }
        for place, row in enumerate(queries)
    ]
    (project.folder / "mine.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
    )
    project.change(DETERMINISTIC, "answers: {mode: recorded, recorded: mine.jsonl}")
    return [row["query_id"] for row in queries]


@pytest.mark.slow
def test_the_job_answers_cites_and_warns(project, instance):
    query_ids = record_outputs(project)
    result = project.run(instance)
    assert result.success  # a warning does not end the job
    made = result.made
    assert {"answers/answers", "answers/citations", "measures/answer_measures"} <= set(made)
    check = result.checks["FK019_retrieval_to_answer_gap"]
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert check.asset_key.path[-1] == "answer_measures"
    assert (check.metadata["n_checked"].value, check.metadata["n_flagged"].value) == (
        len(query_ids),
        1,
    )
    (row,) = [record.data for record in check.metadata["flagged"].records]
    assert (row["query_id"], row["answer"]) == (query_ids[0], UNUSED)
    report = project.report()
    flagged = [row["query_id"] for row in report["answers"]["gap"]["flagged"]]
    assert flagged == [query_ids[0]]
    assert made["reporting/retrieval_metrics_report"]["content_hash"] == report["content_hash"]
    again = project.run(instance).made
    assert again["answers/answers"]["reused"]


@pytest.mark.slow
def test_a_contract_that_must_hold_fails_the_job_last(project, instance):
    record_outputs(project)
    lines = (project.folder / "mine.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (project.folder / "mine.jsonl").write_text("".join(lines[1:]), encoding="utf-8")
    result = project.run(instance)
    assert not result.success
    assert "reporting/retrieval_metrics_report" in result.made
    assert "answer_contract" in result.failure("reporting__gate_verdict").description
    assert not result.checks["answer_contract"].passed
