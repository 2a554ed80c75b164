"""`rag-eval rollout` as a person and a script meet it."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from rag_eval.cli.app import app
from rag_eval.cli.gates import _show
from rag_eval.gates.rollout import decide
from rag_eval.pipeline.comparisons import Rollout


def rollout(project, *arguments):
    return CliRunner().invoke(
        app, ["rollout", *map(str, arguments), "--home", str(project.home)], catch_exceptions=False
    )


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # raised inside MLflow's own SQLAlchemy models
def test_a_small_set_is_held_with_figures_reason_and_file(project, shared_runs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    shared_runs.run(project)
    out = project.root / "decision.json"
    result = rollout(
        project, "vector", "--gold-set", "tiny", "--stage", 50, "--measure", "mrr", "--json", out
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("HOLD (vector against bm25 at 50 %)")
    for part in (
        "mrr of bm25",
        "mrr of vector",
        "3 (3 independent)",
        "too_few_questions: 3 independent questions decide nothing",
        "document level, run 2",
    ):
        assert part in result.stdout
    written = json.loads(out.read_text(encoding="utf-8"))
    assert (
        written["action"],
        written["stage"],
        written["next_stage"],
        written["figures"]["n_groups"],
    ) == ("hold", 50, None, 3)
    assert (written["base"], written["candidate"], sorted(written["index_hashes"])) == (
        "bm25",
        "vector",
        ["bm25", "vector"],
    )
    assert written["reasons"][0]["code"] == "too_few_questions"


@pytest.mark.parametrize(
    ("n", "lost", "stage", "first"),
    [
        (400, 0, 10, "PROMOTE to 50 % (new against now at 10 %)"),
        (400, 0, 100, "PROMOTE: the rollout is done (new against now at 100 %)"),
        (400, 100, 10, "ROLL BACK (new against now at 10 %)"),
        (100, 4, 10, "HOLD (new against now at 10 %)"),
    ],
)
def test_each_action_has_its_line(capsys, n, lost, stage, first):
    base = (np.arange(n) % 5 != 0).astype(float)
    candidate = np.where(np.arange(n) < lost, 0.0, base)
    decision = decide(base, candidate, np.arange(n))
    following = {10: 50, 100: None}[stage] if decision.action == "promote" else None
    _show(
        Rollout(
            "tiny", "0" * 64, "r", "now", "new", {}, "mrr", "document", stage, following, decision
        )
    )
    shown = capsys.readouterr().out
    assert shown.splitlines()[0] == first
    assert ("would decide with 80 % power" in shown) == first.startswith("HOLD")
