"""Checks fail where the part that they guard is broken."""

import shutil

import dagster as dg
import pytest

from rag_eval.defs.checks import OF_STAGES, gate_results
from rag_eval.gates.gate import GatePart
from rag_eval.pipeline.index import CorpusIndex
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.stages import open_runner
from rag_eval.reporting.report import Report
from rag_eval.storage.artifacts import ArtifactStore
from rag_eval.storage.home import Home

asset = dg.AssetKey.from_user_string


def test_an_index_of_another_identity_fails_the_check(project):
    runner = open_runner(open_gold_set(project.folder, project.settings))
    stored = runner.get(CorpusIndex).artifact
    check, key = OF_STAGES["corpus_index"], asset("corpus/corpus_index")
    assert check.judge(runner, {}, key).passed
    about, stored_changes = stored.json("about"), stored.json("changes")
    about["strategies"]["bm25"]["index_hash"] = "bm25s:another"
    shutil.rmtree(stored.folder)
    ArtifactStore(Home(project.settings.home)).memo(
        stored.stage, stored.key, lambda: {"about": about, "changes": stored_changes}
    )
    found = check.judge(open_runner(open_gold_set(project.folder, project.settings)), {}, key)
    assert not found.passed
    assert found.severity == dg.AssetCheckSeverity.ERROR
    assert found.metadata["n_different"].value == 1
    assert found.metadata["index_hashes"].records[0].data["found"] == "bm25s:another"


@pytest.mark.parametrize(
    ("status", "required", "passed"),
    [
        ("pass", False, True),
        ("fail", False, False),
        ("insufficient_evidence", False, True),
        ("insufficient_evidence", True, False),
    ],
)
def test_a_gate_is_shown_with_its_status(status, required, passed):
    entries = [
        {
            "id": f"stability.{at}",
            "gate": "stability",
            "status": each,
            "severity": "P2",
            "required": required,
            "reason_code": "why",
            "evidence": {},
        }
        for at, each in enumerate(("pass", status))
    ]
    report = Report.model_construct(gates=[GatePart.model_validate(one) for one in entries])
    (found,) = gate_results(report, ["stability"], asset("reporting/report"))
    assert (found.passed, found.check_name, found.severity) == (
        passed,
        "stability",
        dg.AssetCheckSeverity.WARN,
    )
    assert found.metadata["status"].value == status
    assert found.description.startswith(status)
