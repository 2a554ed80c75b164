"""Reports that a verdict may be read from: whole, as rag-eval wrote them, wherever they come from."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from rag_eval.records.problems import InputError, Problem
from rag_eval.reporting.metrics_report import SCHEMA_VERSION, content_hash, first_fault

MAX_GATES = 1000
MAX_BYTES = 200_000_000
MAX_DIGITS = 308
"""Whole numbers of more digits are no figures: float64 has none so large."""


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _whole(text: str) -> int:
    if len(text.lstrip("-")) > MAX_DIGITS:
        raise ValueError("a number is too large")
    return int(text)


def _unreadable(path: Path, field: str | None, found: str | None) -> InputError:
    accepted = f"a retrieval-metrics.json of schema_version {SCHEMA_VERSION}, unchanged"
    return InputError(
        Problem(
            "run_unreadable",
            "not a whole report as rag-eval wrote it",
            file=str(path),
            field=field,
            found=found,
            accepted=accepted,
        )
    )


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises
    ------
    InputError
        There is no such file, it is too large, or it holds something else.
    """
    if not path.is_file():
        raise InputError(
            Problem(
                "run_not_found",
                "no such report",
                file=str(path),
                accepted="the report of a run: rag-eval run writes it",
            )
        )
    if path.stat().st_size > MAX_BYTES:
        raise _unreadable(path, None, f"{path.stat().st_size} bytes")
    try:
        loaded = json.loads(
            path.read_text(encoding="utf-8"),
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_whole,
        )
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, None, str(error)) from error
    if not isinstance(loaded, dict):
        raise _unreadable(path, None, type(loaded).__name__)
    return loaded


def whole_report(report: Mapping[str, Any], path: Path) -> None:
    """Refuse what is no whole report; `path` is where it was read.

    Raises
    ------
    InputError
        It breaks its schema, was changed after it was written, or has more gates than any gold set asks for.
    """
    if report.get("schema_version") != SCHEMA_VERSION:
        raise _unreadable(path, "schema_version", str(report.get("schema_version")))
    fault = first_fault(report)
    if fault is not None:
        raise _unreadable(path, *fault)
    if report["content_hash"] != content_hash(report):
        raise _unreadable(path, "content_hash", report["content_hash"])
    if len(report["gates"]) > MAX_GATES:
        raise InputError(
            Problem(
                "too_many_gates",
                "no gold set asks for so many gates",
                file=str(path),
                field="gates",
                found=str(len(report["gates"])),
                accepted=f"at most {MAX_GATES}",
            )
        )


def read_report(path: Path) -> dict[str, Any]:
    """Read a report and make sure that it is whole.

    Raises
    ------
    InputError
        It is not.
    """
    report = read_object(path)
    whole_report(report, path)
    return report
