"""The stage and the panel that docs/contributing.md prints work unchanged."""

import re

import pytest

from rag_eval.core.settings import Settings
from rag_eval.pipeline.evaluation import open_gold_set
from rag_eval.pipeline.runner import Node, Runner, check_graph
from rag_eval.pipeline.stages import STAGES
from rag_eval.pipeline.versions import shared_versions
from rag_eval.reporting.html.elements import Cursor, environment
from rag_eval.reporting.html.panel import Page


@pytest.fixture(scope="module")
def blocks(project_root):
    text = (project_root / "docs" / "contributing.md").read_text(encoding="utf-8")
    return re.findall(r"```(?:python|html)\n(.*?)```", text, re.DOTALL)


def block_with(blocks, part):
    return next(block for block in blocks if part in block)


def test_the_stage_runs(blocks, project_root, tmp_path):
    names: dict = {}
    exec(block_with(blocks, "def measure_lengths"), names)  # noqa: S102 - our own documentation
    stage = names["measure_lengths"]
    assert check_graph((*STAGES, stage)) == []
    settings = Settings(home=tmp_path / "home", reports=tmp_path / "reports")
    evaluation = open_gold_set(project_root / "gold_sets" / "smoke", settings)
    runner = Runner(evaluation, STAGES, shared_versions())
    admitted = runner.one(Node("admitted_chunks")).result
    result = stage.make(None, admitted_chunks=admitted)
    assert 0 < result.median <= result.longest == max(map(len, admitted.chunks["text"]))
    assert result.describe() == {"median": result.median, "longest": result.longest}


def test_the_panel_renders(blocks):
    names: dict = {}
    exec(block_with(blocks, "def corpus_size"), names)  # noqa: S102 - our own documentation
    report = Cursor({"index": {"n_documents": 1056, "n_chunks": 5393}})
    panel = names["corpus_size"](Page(report))
    template = environment().from_string(block_with(blocks, "corpus_size.html -->"))
    shown = re.sub(r"<[^>]*>", "", template.render(panel.context))
    assert "1,056 documents in 5,393 chunks." in shown
