"""Run a whole evaluation in one process, and validate files of citations."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rag_eval.citations.payload import LIVE_CODES, LiveIndex, Verdicts, validate
from rag_eval.core.errors import InputError, Problem, ProblemList, quoted
from rag_eval.core.report import Report
from rag_eval.core.rows import read_objects
from rag_eval.core.settings import Settings
from rag_eval.core.types import CODES, FIXES
from rag_eval.corpus.masking import mask_snippet
from rag_eval.pipeline.answers import with_units
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.history import open_kept_run
from rag_eval.pipeline.report import GateVerdict, MetricsReport, MlflowRecord
from rag_eval.storage.artifacts import home_lock, sweep

# ---- Whole evaluations in one process without Dagster: the same stages in the same order.

ANOTHER_HOME_S = 3600.0
"""Age in seconds at which a half-written report is removed. A run may still write a younger one."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of one evaluation.

    `folder` holds the report's files. `failed` are the ids of the required gates that did not pass.
    `seconds` is the duration without MLflow. `mlflow_run` is None after a failure. `mlflow_error`
    gives the reason without user and password of the address. `trace_error` says why there are no
    traces.
    """

    gold_set: str
    report: Report
    folder: Path
    failed: list[str]
    seconds: float
    mlflow_run: str | None
    mlflow_error: str | None
    trace_error: str | None


def evaluate(evaluation: Evaluation) -> Outcome:
    """Run all stages of one gold set. An InputError leaves the reports as they were."""
    runner = evaluation.runner
    seconds = {made.node: made.seconds for made in runner.run()}
    written, recorded = runner.get(MetricsReport), runner.get(MlflowRecord)
    return Outcome(
        evaluation.config.name,
        written.report,
        evaluation.reports,
        runner.get(GateVerdict).failed,
        sum(spent for node, spent in seconds.items() if node.name != "mlflow_record"),
        recorded.mlflow_run or None,
        recorded.error or None,
        written.trace_error or None,
    )


def evaluate_all(evaluations: Sequence[Evaluation], settings: Settings) -> list[Outcome]:
    """Evaluate several gold sets in sequence under one lock of the home.

    The primary gold set runs last, so that its report is the newest. The top of the folder of
    reports shows only the complete primary gold set.
    """
    primary = settings.primary_gold_set
    ordered = sorted(evaluations, key=lambda evaluation: evaluation.config.name == primary)
    with home_lock(settings.home):
        sweep(settings.home, "", "artifacts/*", "runs", "record/*", "embeddings/*")
        sweep(settings.reports, "", "*", older_than_s=ANOTHER_HOME_S)
        return [evaluate(evaluation) for evaluation in ordered]


# ---- The validate command: check a file of citations against the newest run of a home.

MAX_OFFENDERS = 20
"""Largest number of offending lines in the output."""


@dataclasses.dataclass(frozen=True)
class FileVerdicts:
    """The result of validating a file: line number, record and verdict of each citation.

    `problems` are lines that are no JSON objects, and faults of the file.
    """

    path: Path
    lines: tuple[int, ...]
    records: tuple[dict[str, Any], ...]
    verdicts: Verdicts
    problems: tuple[Problem, ...]

    @property
    def passed(self) -> bool:
        """Whether the file was read completely, has a citation, and all citations are ok."""
        return self.verdicts.passed and not self.problems


def validate_file(path: Path, live: LiveIndex | None = None) -> FileVerdicts:
    """Validate a JSONL file with the citation records of one run.

    Without `live`, only the records themselves are checked. Broken lines and an unreadable file are
    `problems`. Raises InputError if the file does not exist.
    """
    if not path.is_file():
        message, accepted = (
            "there is no such file of citations",
            "a .jsonl file",
        )
        raise InputError.of("not_a_file", message, path, accepted=accepted)
    problems = ProblemList()
    rows = list(read_objects(path, problems))
    verdicts = validate([row for _, row in rows], live)
    numbers, records = tuple(number for number, _ in rows), tuple(row for _, row in rows)
    return FileVerdicts(path, numbers, records, verdicts, problems.listed())


def live_index(home: Path, gold_set: str | None = None) -> tuple[LiveIndex, str]:
    """Open the newest stored run of a home, or of one gold set in it.

    Returns the index of the run and a label of the run. Raises InputError if no run is stored
    there, or if its corpus is no longer in the home.
    """
    run = open_kept_run(home, "latest", gold_set)
    corpus, chunks = run.stored("corpus_snapshot"), run.stored("admitted_chunks")
    frame = chunks.frame("chunks")
    for name in run.strategies:
        made = run.stored("run", name)
        if made.path("units.parquet").is_file():  # only runs of external retrievers have units
            frame = with_units(frame, made.frame("units"))
    hashes = [strategy.index_hash for strategy in run.strategies.values()]
    documents, sections = corpus.frame("documents"), corpus.frame("sections")
    live = LiveIndex(documents, sections, frame, hashes, run.analyzer)
    return live, f"run {quoted(run.run_id)} of gold set {quoted(run.gold_set)}"


def verdict_lines(result: FileVerdicts) -> list[str]:
    """Write the result for a terminal, with escaped control characters.

    The lines show counts by code with their denominators, the first offenders, and the skipped
    checks.
    """
    return [_printable(line) for line in _verdict_lines(result)]


def _verdict_lines(result: FileVerdicts) -> Iterator[str]:
    verdicts, n = result.verdicts, len(result.lines)
    yield from map(str, result.problems)
    yield (
        f"{quoted(str(result.path), 400)}: {n:,} citation{'' if n == 1 else 's'},"
        f" {verdicts.counts['ok']:,} ok"
    )
    for code in CODES[:-1]:
        if verdicts.counts[code]:
            yield (
                f"  {code:<24} {verdicts.counts[code]:>7,} of {verdicts.tried[code]:,} tried"
                f"   fix: {FIXES[code]}"
            )
    if verdicts.fail_fast:
        yield "analyzer_mismatch ends the run: align the analyzers before anything else is judged"
    offenders = [place for place, found in enumerate(verdicts.failures) if found]
    if offenders:
        yield f"first offenders ({min(len(offenders), MAX_OFFENDERS)} of {len(offenders):,}):"
    for place in offenders[:MAX_OFFENDERS]:
        code, field = verdicts.failures[place][0]
        more = [other for other, _ in verdicts.failures[place][1:]]
        also = f"; also {', '.join(more)}" if more else ""
        yield (
            f"  line {result.lines[place]}: {code}{f' [{field}]' if field else ''}"
            f"{_quote_field(result.records[place], field)}{also}"
        )
    if not verdicts.live:
        yield (
            f"not tried without a live index (--index HOME): {', '.join(LIVE_CODES)},"
            " and whether offsets end within the document"
        )
    elif n:
        skipped = [
            code
            for code in verdicts.not_tried
            if code in {*LIVE_CODES, "cross_section_reuse", "explained_before_cited"}
        ]
        if skipped:
            yield f"not tried, for no citation says what it needs: {', '.join(skipped)}"


def _quote_field(record: dict[str, Any], field: str) -> str:
    value: Any = record
    for part in field.split(".") if field else ():
        value = value.get(part) if isinstance(value, dict) else None
    return (
        ""
        if not field or value is None
        else f" found {mask_snippet(value if isinstance(value, str) else repr(value), 60)}"
    )


def _printable(line: str) -> str:
    """Escape lone surrogates, because a terminal cannot print them."""
    return line.encode("utf-8", "backslashreplace").decode("utf-8")
