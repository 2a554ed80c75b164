"""Two kept runs side by side, and the rollout decision that a kept run allows."""

import shutil

import pytest
from cli_project import jsonl

from rag_eval.core.errors import InputError
from rag_eval.pipeline.history import compare_runs, decide_rollout, open_run
from rag_eval.storage.home import Home

MANY = 200
MANY_CONFIG = """\
name: many
corpus: {loader: folder, path: corpus, chunker: {kind: markdown, max_tokens: 64}}
k: [1, 5]
depth: 10
seeds: [13]
strategies:
  - {name: bm25, kind: bm25}
  - {name: same, kind: bm25}
  - {name: worse, kind: external, run_file: worse.trec}
gates: {required: [], advisory: []}
nightly: false
"""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"candidate": "none"}, "bm25, vector"),
        ({"against": "vector"}, "accepted: bm25"),
        ({"measure": "recall"}, "--measure.*mrr"),
        ({"gold_set": "none"}, "run_not_found"),
    ],
)
def test_a_decision_that_cannot_be_made_is_refused(project, shared_runs, arguments, says):
    shared_runs.run(project, times=2)
    given = {"gold_set": "tiny", "candidate": "vector", **arguments}
    with pytest.raises(InputError, match=says):
        decide_rollout(Home(project.home), given.pop("gold_set"), given.pop("candidate"), **given)


def test_a_run_without_artifacts_is_named(project, shared_runs):
    shared_runs.run(project, times=2)
    shutil.rmtree(project.home / "artifacts" / "ranking_measures")
    with pytest.raises(InputError, match="run_incomplete"):
        decide_rollout(Home(project.home), "tiny", "vector")


@pytest.mark.slow
def test_a_large_gold_set_decides_by_its_own_run(project):
    """Of 200 documents with a question each, the strategy `worse` misses every third."""
    folder = project.root / "gold_sets" / "many"
    (folder / "corpus").mkdir(parents=True)
    ids = [f"q{at}" for at in range(MANY)]
    for at in range(MANY):
        (folder / "corpus" / f"d{at}.md").write_text(
            f"# Item{at}\n\nThe value of item{at} is documented.\n", encoding="utf-8"
        )
    (folder / "gold_set.yaml").write_text(MANY_CONFIG, encoding="utf-8")
    (folder / "queries.jsonl").write_text(
        jsonl(
            {"query_id": one, "text": f"value of item{one[1:]}", "answerable": True} for one in ids
        ),
        encoding="utf-8",
    )
    (folder / "qrels.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"{one}\td{one[1:]}.md\t1\n" for one in ids),
        encoding="utf-8",
    )
    (folder / "worse.trec").write_text(
        "".join(f"{one} Q0 d{one[1:]}.md 1 1 x\n" for one in ids if int(one[1:]) % 3),
        encoding="utf-8",
    )
    project.command("run", "many")
    same = decide_rollout(Home(project.home), "many", "same", measure="recall_at_5")
    assert same.decision.action == "promote"
    assert same.decision.n_effective == pytest.approx(MANY)
    worse = decide_rollout(Home(project.home), "many", "worse", measure="mrr")
    assert (worse.base, worse.decision.action) == ("bm25", "roll_back")
    assert worse.decision.degradation.value == pytest.approx(1 / 3, abs=0.01)
    more = ("many", "--measure", "mrr")
    project.command("rollout", "worse", *more, exit_code=2)


def test_two_runs_are_compared_by_their_questions(project, shared_runs):
    shared_runs.run(project, times=2)
    a, b = (open_run(Home(project.home), name) for name in ("latest", "previous"))
    notes, rows = compare_runs(a, b)
    assert notes == []
    assert [row["a"] for row in rows[::3]] == ["bm25 (a)", "vector (a)"]
    assert {(row["delta"], row["n_tied"]) for row in rows} == {(0.0, 3)}
    with pytest.raises(InputError, match="gold_differs"):
        compare_runs(a, b.model_copy(update={"gold_hash": "f" * 32}))
    with pytest.raises(InputError, match="nothing_to_compare"):
        compare_runs(a, b.model_copy(update={"strategies": {}}))
    moved = b.model_copy(update={"chunks_hash": "f" * 32})
    assert compare_runs(a, moved)[0][0].startswith("DIFFERENT: the chunks differ")
