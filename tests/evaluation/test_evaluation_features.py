"""The feature flags of the environment, as the report states them."""

import pytest
from cli_project import CONFIG


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # raised inside MLflow's own SQLAlchemy models
def test_the_feature_flags_stand_in_the_report(project, monkeypatch):
    assert project.invoke("run", "tiny", "--strategy", "bm25").exit_code == 0
    assert project.report()["features"] == {
        "FEATURE_HYBRID_RETRIEVAL": False,
        "FEATURE_RAGAS_EVAL": False,
    }
    for flag in ("FEATURE_HYBRID_RETRIEVAL", "FEATURE_RAGAS_EVAL"):
        monkeypatch.setenv(flag, "1")
        (project.gold / "gold_set.yaml").write_text(
            CONFIG.replace("answers: {mode: deterministic, top_k: 5}\n", ""), encoding="utf-8"
        )
        assert project.invoke("run", "tiny", "--strategy", "bm25").exit_code == 0
        assert project.report()["features"] == {
            name: name == flag for name in ("FEATURE_HYBRID_RETRIEVAL", "FEATURE_RAGAS_EVAL")
        }
        monkeypatch.delenv(flag)
