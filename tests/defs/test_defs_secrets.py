"""What Dagster keeps of a failure: neither the password of a tracking server nor what an error quotes of a corpus or gold set."""

import dagster as dg
import pytest

PASSWORD = "S3cret" + "Passw0rdXYZ"
EMAIL = "jane.doe@" + "private.example.com"

pytestmark = [
    # MLflow 3.17 with SQLAlchemy 2.1
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),
]


@pytest.fixture
def kept(tmp_path):
    """An instance on disk, and a search for a text in everything that it kept."""
    folder = tmp_path / "dagster"
    folder.mkdir()
    with dg.DagsterInstance.local_temp(str(folder)) as instance:

        def holds(value: str) -> list[str]:
            files = [path for path in folder.rglob("*") if path.is_file()]
            assert any(path.suffix == ".db" for path in files)
            return [path.name for path in files if value.encode() in path.read_bytes()]

        yield instance, holds


def test_the_password_of_the_tracking_server_is_kept_nowhere(project, kept, monkeypatch, capfd):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    project.settings = project.settings.model_copy(update={"tracking_uri": f"http://bob:{PASSWORD}@127.0.0.1:1/"})
    instance, holds = kept
    result = project.run(instance)
    assert not result.success
    (event,) = [event for event in result.all_events if event.is_step_failure and event.step_key == "reporting__mlflow_record"]
    assert "MLflow did not record this run" in event.step_failure_data.user_failure_data.description
    assert "127.0.0.1" in event.step_failure_data.user_failure_data.description
    assert holds("MLflow did not record this run")  # what is kept is looked through
    assert holds(PASSWORD) == []
    printed = capfd.readouterr()
    assert PASSWORD not in printed.out + printed.err


def test_what_an_error_quotes_is_kept_masked_with_its_causes(project, kept):
    project.change("depth: 20", f"depth: {EMAIL}")
    instance, holds = kept
    result = project.run(instance)
    assert not result.success
    assert holds("[email")
    assert holds(EMAIL) == []
