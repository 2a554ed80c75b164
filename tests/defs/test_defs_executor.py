"""The settings choose the executor, and a failed run continues where it stopped."""

import dagster as dg
import pytest
from dagster._core.definitions.reconstruct import ReconstructableJob, ReconstructableRepository

from rag_eval.core.errors import InputError
from rag_eval.defs.build import JOB, load_executor

asset = dg.AssetKey.from_user_string


def named(project, executor: str, **config) -> dg.ExecutorDefinition:
    update = {"executor": executor, "executor_config": config}
    return load_executor(project.settings.model_copy(update=update))


def test_executor_is_the_one_of_the_settings(project):
    assert load_executor(project.settings).name == "in_process"
    assert named(project, "multiprocess").name == "multiprocess"
    assert named(project, "dagster:multi_or_in_process_executor").name == (
        "multi_or_in_process_executor"
    )


@pytest.mark.parametrize("name", ["dask", "nonsense", "dagster:nonsense", "dagster:op", "json"])
def test_unknown_executor_is_refused(project, name):
    with pytest.raises(InputError, match=r"unknown_executor.*in_process, multiprocess, k8s"):
        named(project, name)


@pytest.mark.slow
@pytest.mark.timeout(900)  # each step imports everything again
def test_failed_stage_is_resumed_and_earlier_stages_do_not_run_again(
    project, instance, tmp_path, project_root, monkeypatch
):
    """Run the steps of the code location in processes of their own."""
    for name in ("home", "reports", "gold_sets", "tracking_uri"):
        monkeypatch.setenv(f"RAG_EVAL_{name.upper()}", str(getattr(project.settings, name)))
    monkeypatch.setenv("RAG_EVAL_EXECUTOR", "multiprocess")
    monkeypatch.setenv("RAG_EVAL_EXECUTOR_CONFIG", '{"max_concurrent": 1}')
    location = ReconstructableRepository.for_module(
        "rag_eval.definitions", "defs", working_directory=str(project_root)
    )
    job = ReconstructableJob(repository=location, job_name=JOB)
    before = ["corpus/corpus_snapshot", "corpus/corpus_chunks", "trust/evidence_trust"]
    assert project.run(instance, [asset(name) for name in before]).success
    tags = {"dagster/partition": "smoke"}  # as Dagster's server copies them to the new run
    questions = project.folder / "queries.jsonl"
    whole = questions.read_text(encoding="utf-8")
    questions.write_text(whole + '{"query_id": "broken"}\n', encoding="utf-8")

    def steps(result: dg.JobExecutionResult) -> list[str]:
        return [event.step_key for event in result.all_events if event.is_step_start]

    with dg.DagsterInstance.local_temp(str(tmp_path)) as lasting:
        with dg.execute_job(
            job,
            lasting,
            tags=tags,
            asset_selection=[asset("corpus/admitted_chunks"), asset("gold/gold_variants")],
            raise_on_error=False,
        ) as failed:
            assert not failed.success
            assert steps(failed) == ["corpus__admitted_chunks", "gold__gold_variants"]
        questions.write_text(whole, encoding="utf-8")
        options = dg.ReexecutionOptions.from_failure(failed.run_id, lasting)
        with dg.execute_job(job, lasting, tags=tags, reexecution_options=options) as resumed:
            assert resumed.success
            assert steps(resumed) == ["gold__gold_variants"]
