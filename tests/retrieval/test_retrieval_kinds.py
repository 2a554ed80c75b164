"""A kind of strategy from another package: one class and one entry point."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rag_eval
from rag_eval.core.strategy import strategy_kinds

KIND = '''
from typing import Literal

import numpy as np

from rag_eval.retrieval.ranking import Ranking, ranking, scale_by_top
from rag_eval.retrieval.strategies import LocalStrategy, Request, StrategyIndex
from rag_eval.storage.hashing import digest


class Longest(LocalStrategy):
    """Ranks every chunk by its length, whatever the question."""

    kind: Literal["longest"]
    weight: float = 1.0

    def index_hash(self, chunks_hash: str, model: str) -> str:
        return f"longest:{digest([chunks_hash, self.weight])}"

    def rank(self, index: StrategyIndex, request: Request) -> Ranking:
        lengths = np.array([len(text) for text in index.table.texts]) * self.weight
        best = np.argsort(-lengths, kind="stable")[: request.depth].astype(np.int32)
        rows = np.tile(best, (len(request.texts), 1))
        raw = lengths[rows].astype(np.float64)
        counts = np.full(len(rows), len(lengths), dtype=np.int64)
        return ranking(rows, raw, scale_by_top(raw), counts)
'''
EVALUATE = """
import sys
from pathlib import Path
from rag_eval.core.settings import Settings
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.report_stages import MetricsReport
from rag_eval.pipeline.stages import open_runner
found = open_runner(open_gold_set(Path(sys.argv[1]), Settings())).get(MetricsReport)
print("[" + ", ".join(part.model_dump_json() for part in found.report.strategies) + "]")
"""


@pytest.fixture
def package(tmp_path):
    (tmp_path / "longest.py").write_text(KIND, encoding="utf-8")
    info = tmp_path / "longest-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: longest\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rag_eval.strategies]\nlongest = longest:Longest\n")
    return tmp_path


def configure(package, root, strategy, name="smoke"):
    gold = package / "gold_sets" / name
    shutil.copytree(root / "gold_sets" / "smoke", gold)
    text = (gold / "gold_set.yaml").read_text(encoding="utf-8")
    lines = text.replace("name: smoke", f"name: {name}", 1).splitlines()
    others = ("  - {name:", "answers:", "primary:", "gates:")
    kept = [line for line in lines if not line.startswith(others)]
    kept.insert(kept.index("strategies:") + 1, f"  - {strategy}")
    (gold / "gold_set.yaml").write_text("\n".join(kept) + "\n", encoding="utf-8")


def run_python(package, *arguments):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(package), str(Path(rag_eval.__file__).parents[1])]),
        "RAG_EVAL_HOME": str(package / "home"),
        "RAG_EVAL_REPORTS": str(package / "reports"),
    }
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=package,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_only_kinds_that_embed_questions_pay_for_it():
    kinds = strategy_kinds()
    specs = [kinds[kind](name="a", kind=kind) for kind in ("bm25", "vector", "hybrid")]
    assert [spec.question_price(2.0) for spec in specs] == [0.0, 2.0, 2.0]
    assert [spec.second for spec in specs] == ["vector", "bm25", "bm25"]
    assert [spec.embeds_with is None for spec in specs] == [True, False, False]


def test_a_kind_of_another_package_is_evaluated(package, project_root):
    configure(package, project_root, "{name: long, kind: longest, weight: 2.0}")
    done = run_python(package, "-c", EVALUATE, str(package / "gold_sets" / "smoke"))
    assert done.returncode == 0, done.stderr
    (strategy,) = json.loads(done.stdout)
    assert (strategy["kind"], strategy["n_failed"]) == ("longest", 0)
    assert strategy["index_hash"].startswith("longest:")
    assert strategy["configuration"]
