"""The settings choose the executor."""

import dagster as dg
import pytest

from rag_eval.core.errors import InputError
from rag_eval.defs.build import load_executor


def named(project, executor: str, **config) -> dg.ExecutorDefinition:
    update = {"executor": executor, "executor_config": config}
    return load_executor(project.settings.model_copy(update=update))


def test_executor_is_the_one_of_the_settings(project):
    assert load_executor(project.settings).name == "in_process"
    assert named(project, "multiprocess").name == "multiprocess"


@pytest.mark.parametrize("name", ["nonsense", "dagster:op"])
def test_unknown_executor_is_refused(project, name):
    with pytest.raises(InputError, match=r"unknown_executor.*in_process, multiprocess, k8s"):
        named(project, name)
