"""Definitions load without the libraries that stages need, and every library's telemetry is off."""

import json
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.telemetry import _get_instance_telemetry_enabled

from rag_eval.core.settings import TELEMETRY_OFF
from rag_eval.defs.instance import prepare_home

HEAVY = tuple(
    "chromadb mlflow ragas datasets bm25s rank_bm25 openai onnxruntime sklearn scipy ir_measures"
    " matplotlib tokenizers".split()
)
FRAMES = ("numpy", "pandas", "pyarrow")
"""Libraries for data frames, which building the assets imports, but not the import alone."""
CI_SIGNS = (
    "PYTEST_CURRENT_TEST CI GITHUB_ACTIONS TF_BUILD BITBUCKET_BUILD_NUMBER JENKINS_URL GITLAB_CI"
    " TRAVIS CIRCLECI"
).split()
"""Variables under which MLflow takes the process for a test and sends no telemetry."""


def fresh(code: str, root: Path) -> str:
    """Run code in a new process without our telemetry switches; return its last line of output."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in TELEMETRY_OFF and name not in CI_SIGNS
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=root,
        env=kept,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_definitions_load_no_heavy_library(project_root):
    code = (
        "import json, sys, rag_eval.definitions\nimported = set(sys.modules)\n"
        "rag_eval.definitions.defs()\nbuilt = set(sys.modules)\n"
        f"print(json.dumps([*(imported & set({HEAVY + FRAMES!r})), *(built & set({HEAVY!r}))]))"
    )
    assert json.loads(fresh(code, project_root)) == []


LIBRARIES = """
import json, warnings
warnings.simplefilter("ignore")
from rag_eval.core.settings import telemetry_off
{switch}
from chromadb.config import Settings
from huggingface_hub.constants import HF_HUB_DISABLE_TELEMETRY
from mlflow.telemetry.utils import is_telemetry_disabled
from ragas._analytics import do_not_track
print(json.dumps({{
    "chromadb": not Settings().anonymized_telemetry,
    "huggingface_hub": HF_HUB_DISABLE_TELEMETRY,
    "mlflow": is_telemetry_disabled(),
    "ragas": do_not_track(),
}}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("switch", "off"), [("telemetry_off()", True), ("pass", False)])
def test_each_library_says_whether_its_telemetry_is_off(project_root, switch, off):
    found = json.loads(fresh(LIBRARIES.format(switch=switch), project_root))
    assert found == dict.fromkeys(("chromadb", "huggingface_hub", "mlflow", "ragas"), off)


def test_dagster_says_its_telemetry_is_off(tmp_path):
    prepare_home(tmp_path)
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert (_get_instance_telemetry_enabled(instance), instance.nux_enabled) == (False, False)
