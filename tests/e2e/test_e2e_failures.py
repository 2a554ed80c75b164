"""A store that is away keeps the report, and no failure shows a password."""

import pytest
from personal_data import outputs


@pytest.mark.slow
def test_a_failing_mlflow_keeps_the_report_and_prints_no_password(project, monkeypatch):
    password = "S3cret" + "Passw0rdXYZ"
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("RAG_EVAL_TRACKING_URI", f"http://bob:{password}@127.0.0.1:1/")
    ran = project.run()
    assert "MLflow did not record this run" in ran.output
    assert "127.0.0.1" in ran.output
    assert project.report()["run_id"] in ran.output
    texts = outputs(project.reports, project.home)
    assert [name for name, text in texts if password in text] == []
    assert password not in ran.output


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CHROMA_URL", "ftp://bob:S3cretPw@host:8000"),
        ("ENDPOINTS", '{"w": {"base_url": "https://e.org", "api_key": "S3cretPw", "modle": "m"}}'),
        ("SOURCES", '{"mine": ["https://bob:S3cretPw@example.org/search"]}'),
    ],
)
def test_a_setting_that_is_refused_shows_no_password(project, monkeypatch, name, value):
    monkeypatch.setenv(f"RAG_EVAL_{name}", value)
    refused = project.run(exit_code=1)
    assert "error " in refused.output
    assert "S3cretPw" not in refused.output
