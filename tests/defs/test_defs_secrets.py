"""Dagster stores a failure without passwords and without quotes of a corpus or gold set."""

import http.server
import threading
import traceback

import dagster as dg
import pytest

from rag_eval.core.errors import InputError, Problem
from rag_eval.defs import assets
from rag_eval.defs.assets import clear_failures

PASSWORD = "S3cret" + "Passw0rdXYZ"
EMAIL = "jane.doe@" + "private.example.com"


@pytest.fixture
def kept(tmp_path):
    """Yield an instance on disk, and a function that lists the instance's files with a text."""
    folder = tmp_path / "dagster"
    folder.mkdir()
    with dg.DagsterInstance.local_temp(str(folder)) as instance:

        def holds(value: str) -> list[str]:
            files = [path for path in folder.rglob("*") if path.is_file()]
            assert any(path.suffix == ".db" for path in files)
            return [path.name for path in files if value.encode() in path.read_bytes()]

        yield instance, holds


@pytest.fixture
def silent_server():
    """Yield the port of a server that answers no request, and the paths of the requests."""
    paths = []

    class Mute(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path.partition("?")[0])  # and the connection ends

        do_POST = do_GET  # noqa: N815 - the name that http.server calls

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mute) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, paths
        server.shutdown()


@pytest.mark.slow
def test_the_password_of_the_tracking_server_is_kept_nowhere(
    project, kept, monkeypatch, capfd, silent_server
):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(assets, "RETRIES", dg.RetryPolicy(max_retries=2))
    port, paths = silent_server
    project.settings = project.settings.model_copy(
        update={"tracking_uri": f"http://bob:{PASSWORD}@127.0.0.1:{port}/"}
    )
    instance, holds = kept
    result = project.run(instance)
    restarted = [event.step_key for event in result.result.all_events if event.is_step_restarted]
    assert restarted == ["reporting__mlflow_record"] * 2
    assert paths.count(paths[0]) == 3  # each retry asks the server again
    assert not result.success
    told = result.failure("reporting__mlflow_record").description
    assert "MLflow did not record this run" in told
    assert "127.0.0.1" in told
    assert holds("MLflow did not record this run")  # search the stored files
    assert holds(PASSWORD) == []
    printed = capfd.readouterr()
    assert PASSWORD not in printed.out + printed.err


def test_what_an_error_quotes_is_kept_masked_without_its_cause():
    problem = Problem(
        "bad_target",
        "the target does not exist",
        field="doc_id",
        found=f"{EMAIL} of https://example.org/?to={EMAIL.replace('@', '%40')}",
    )
    with pytest.raises(dg.Failure) as failed, clear_failures():
        raise InputError(problem)
    stored = "".join(
        traceback.format_exception(failed.value)
    )  # Dagster stores an error with all its causes
    assert "[email" in stored
    assert EMAIL.partition("@")[2] not in stored
    (row,) = failed.value.metadata["problems"].records
    assert EMAIL.partition("@")[2] not in str(row.data)
