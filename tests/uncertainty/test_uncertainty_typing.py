"""A bare number where a confidence value belongs is an error of the type checker."""

import os
import subprocess
import sys

import pytest

SOURCE = """
from rag_eval.core.types import Absent, Confidence, Deterministic, compose, effective
from rag_eval.uncertainty.confidence import MissRate, final_confidence

def wants(value: Confidence) -> float:
    return effective(value)

wants(Deterministic(value=1.0, reason="counted"))
compose("all_of", a=Absent(reason="uncalibrated"))
"""
WRONG = [
    "wants(0.5)",
    "effective(0.5)",
    "compose('all_of', a=0.5)",
    "final_confidence(0.5, MissRate(0.1, None, None, 'prior', 'miss_any', 10, None, 'x'))",
    "x: Confidence = 0.5",
]


@pytest.mark.slow
def test_the_type_checker_refuses_bare_numbers(tmp_path, project_root):
    file = tmp_path / "uses_confidence.py"
    file.write_text(SOURCE + "\n".join(WRONG) + "\n", encoding="utf-8")
    environment = {**os.environ, "MYPYPATH": str(project_root)}
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        f"--cache-dir={tmp_path / 'cache'}",
        "--config-file",
        str(project_root / "pyproject.toml"),
        str(file),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=280
    )
    at = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    first = SOURCE.count("\n") + 1
    assert at == set(range(first, first + len(WRONG))), done.stdout + done.stderr
