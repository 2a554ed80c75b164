"""Validate as a command: a file of citations held against the newest run of a home, and the result in lines for a person."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rag_eval.citations.live_index import LiveIndex
from rag_eval.citations.validators import LIVE_CODES, Rules, Verdicts, validate
from rag_eval.corpus.outgoing import shown
from rag_eval.evaluation.citation_steps import with_units
from rag_eval.evaluation.comparing import run_ids
from rag_eval.evaluation.report_steps import load_run
from rag_eval.gold.lines import read_objects
from rag_eval.gold.problem_list import ProblemList
from rag_eval.records.citation import CODES, FIXES
from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.storage.artifacts import Artifact, ArtifactStore

MAX_OFFENDERS = 20
"""Offending lines that are shown one by one."""


@dataclasses.dataclass(frozen=True)
class FileVerdicts:
    """What validating a file found.

    Parameters
    ----------
    path
        The file.
    lines
        Line number of each record.
    records
        What stood there.
    verdicts
        Their verdicts.
    problems
        Lines that are no JSON objects, and faults of the file itself.
    """

    path: Path
    lines: tuple[int, ...]
    records: tuple[dict[str, Any], ...]
    verdicts: Verdicts
    problems: tuple[Problem, ...]

    @property
    def passed(self) -> bool:
        """Whether the file could be read whole, holds a citation, and every one is ok."""
        return self.verdicts.passed and not self.problems


def validate_file(
    path: Path, live: LiveIndex | None = None, rules: Rules | None = None
) -> FileVerdicts:
    """Validate a JSONL file of citation records, one run.

    Parameters
    ----------
    path
        The file; see `rag_eval.citations.validators` for its records.
    live
        The index that they are held against; None tries only what the records show by themselves.
    rules
        What the run allows.

    Notes
    -----
    Nothing that stands in the file raises: broken lines, and a file that cannot be read, are `problems`.

    Raises
    ------
    InputError
        There is no such file.
    """
    if not path.is_file():
        raise InputError(
            Problem(
                "not_a_file",
                "there is no such file of citations",
                file=str(path),
                accepted="a .jsonl file, one citation payload a line",
            )
        )
    problems = ProblemList()
    rows = list(read_objects(path, problems))
    verdicts = validate([row for _, row in rows], live, rules)
    return FileVerdicts(
        path,
        tuple(number for number, _ in rows),
        tuple(row for _, row in rows),
        verdicts,
        problems.listed(),
    )


def live_index(home: Path, gold_set: str | None = None) -> tuple[LiveIndex, str]:
    """Open the newest kept run of a home, of one gold set where it is named; returns its index and which run it is.

    Raises
    ------
    InputError
        No run is kept there, its corpus is no longer in the home, or it cannot be read.
    """
    folder = home / "runs"
    try:
        ids = run_ids(home, gold_set)
        kept = load_run(home, ids[-1]) if ids else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            Problem(
                "run_unreadable",
                "a kept run cannot be read",
                file=str(folder),
                found=quoted(str(error)),
            )
        ) from error
    if kept is None:
        of = "" if gold_set is None else f" of gold set {quoted(gold_set)}"
        raise InputError(
            Problem(
                "run_not_found",
                f"no run{of} is kept in this home",
                file=str(folder),
                accepted="a home that `rag-eval run` has written",
            )
        )
    try:
        keys, index = kept["artifacts"], kept["report"]["index"]
        corpus, chunks = (
            _artifact(home, stage, keys.get(stage), ids[-1]) for stage in ("corpus", "chunks")
        )
        frame = chunks.frame("chunks")
        external = [
            entry["name"] for entry in kept["report"]["strategies"] if entry["kind"] == "external"
        ]
        for name in external:  # an external retriever's own units
            frame = with_units(
                frame, _artifact(home, "run", keys.get(f"run {name}"), ids[-1]).frame("units")
            )
        hashes = [entry["index_hash"] for entry in index["strategies"].values()]
        live = LiveIndex.from_frames(
            corpus.frame("documents"), corpus.frame("sections"), frame, hashes, index["analyzer"]
        )
        return live, f"run {quoted(ids[-1])} of gold set {quoted(str(kept['gold_set']))}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            Problem(
                "run_unreadable",
                "the kept run is not whole",
                file=str(folder / f"{ids[-1]}.json"),
                found=quoted(str(error)),
            )
        ) from error


def _artifact(home: Path, stage: str, key: str | None, run_id: str) -> Artifact:
    artifact = ArtifactStore(home / "artifacts").get(stage, key) if key else None
    if artifact is None:
        raise InputError(
            Problem(
                "run_incomplete",
                f"the run's {stage} is not in the home, so nothing can be held against it",
                file=str(home / "artifacts"),
                found=quoted(run_id),
            )
        )
    return artifact


def verdict_lines(result: FileVerdicts) -> list[str]:
    """Write the result for a terminal: counts by code with their denominators, the first offenders, what was not tried. Controls are escaped."""
    return [_printable(line) for line in _verdict_lines(result)]


def _verdict_lines(result: FileVerdicts) -> Iterator[str]:
    verdicts, n = result.verdicts, len(result.lines)
    yield from map(str, result.problems)
    yield f"{quoted(str(result.path), 400)}: {n:,} citation{'' if n == 1 else 's'}, {verdicts.counts['ok']:,} ok"
    for code in CODES[:-1]:
        if verdicts.counts[code]:
            yield f"  {code:<24} {verdicts.counts[code]:>7,} of {verdicts.tried[code]:,} tried   fix: {FIXES[code]}"
    if verdicts.fail_fast:
        yield "analyzer_mismatch ends the run: align the analyzers before anything else is judged"
    offenders = [place for place, found in enumerate(verdicts.failures) if found]
    if offenders:
        yield f"first offenders ({min(len(offenders), MAX_OFFENDERS)} of {len(offenders):,}):"
    for place in offenders[:MAX_OFFENDERS]:
        code, field = verdicts.failures[place][0]
        more = [other for other, _ in verdicts.failures[place][1:]]
        also = f"; also {', '.join(more)}" if more else ""
        yield f"  line {result.lines[place]}: {code}{f' [{field}]' if field else ''}{_found(result.records[place], field)}{also}"
    if not verdicts.live:
        yield f"not tried without a live index (--index HOME): {', '.join(LIVE_CODES)}, and whether offsets end within the document"
    elif n:
        skipped = [
            code
            for code in verdicts.not_tried
            if code in {*LIVE_CODES, "cross_section_reuse", "explained_before_cited"}
        ]
        if skipped:
            yield f"not tried, for no citation says what it needs: {', '.join(skipped)}"


def _found(record: dict[str, Any], field: str) -> str:
    value: Any = record
    for part in field.split(".") if field else ():
        value = value.get(part) if isinstance(value, dict) else None
    return (
        ""
        if not field or value is None
        else f" found {shown(value if isinstance(value, str) else repr(value), 60)}"
    )


def _printable(line: str) -> str:
    """Lone surrogates escaped: a terminal cannot print them."""
    return line.encode("utf-8", "backslashreplace").decode("utf-8")
