"""The additions that docs/contributing.md prints work unchanged."""

import re
from types import SimpleNamespace

import pytest

from rag_eval.core.settings import Settings
from rag_eval.measures.ranking import Measure
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.runner import Node, Runner
from rag_eval.pipeline.stages import STAGES
from rag_eval.reporting.elements import Page, environment
from rag_eval.reporting.tables import Cursor


@pytest.fixture(scope="module")
def blocks(project_root):
    text = (project_root / "docs" / "contributing.md").read_text(encoding="utf-8")
    return re.findall(r"```(?:python|html)\n(.*?)```", text, re.DOTALL)


def block_with(blocks, part):
    return next(block for block in blocks if part in block)


def defined(blocks, part, **names):
    """Execute the block that holds this text; return the names that it defines."""
    exec(block_with(blocks, part), names)  # noqa: S102 - our own documentation
    return names


def test_the_measure_and_the_strategy_can_be_made(blocks):
    assert defined(blocks, "MEASURES", Measure=Measure)["MEASURES"][1].label == "AP"
    longest = defined(blocks, "class Longest")["Longest"]
    first, second = (longest(name="x", kind="longest", weight=weight) for weight in (1, 2))
    assert first.index_hash("chunks", "") != second.index_hash("chunks", "")


@pytest.mark.parametrize(
    ("value", "status"), [(5, "pass"), (1000, "fail"), (None, "insufficient_evidence")]
)
def test_the_gate_judges(blocks, value, status):
    gate = defined(blocks, "class LatencyGate")["LatencyGate"]()
    inputs = SimpleNamespace(figures={"latency_p95_ms": {"value": value}})
    assert [judged.status for judged in gate.judge(inputs)] == [status]


def test_the_stage_runs(blocks, project_root, tmp_path):
    stage = defined(blocks, "def measure_lengths")["measure_lengths"]
    assert set(stage.inputs) <= {each.name for each in STAGES}
    settings = Settings(home=tmp_path / "home", reports=tmp_path / "reports")
    evaluation = open_gold_set(project_root / "gold_sets" / "smoke", settings)
    runner = Runner(evaluation, STAGES)
    admitted = runner.one(Node("admitted_chunks")).result
    result = stage.make(None, admitted_chunks=admitted)
    assert 0 < result.median <= result.longest == max(map(len, admitted.chunks["text"]))
    assert result.describe() == {"median": result.median, "longest": result.longest}


def test_the_panel_renders(blocks):
    corpus_size = defined(blocks, "def corpus_size")["corpus_size"]
    report = Cursor({"index": {"n_documents": 1056, "n_chunks": 5393}})
    panel = corpus_size(Page(report))
    template = environment().from_string(block_with(blocks, "corpus_size.html -->"))
    shown = re.sub(r"<[^>]*>", "", template.render(panel.context))
    assert "1,056 documents in 5,393 chunks." in shown
