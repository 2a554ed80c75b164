"""Paired outcomes that a rollout is decided by: from a kept run, or from a file of what production gave.

Belongs here: reading and checking them. What they decide is `rag_eval.gates.rollout_decision`.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from rag_eval.corpus.json_lines import lines, object_of
from rag_eval.evaluation.kept_runs import choose_run, kept_run
from rag_eval.gates.compared_runs import with_delta_s
from rag_eval.gates.rollout_assignment import same_question
from rag_eval.gates.rollout_record import Source
from rag_eval.gold.problem_list import ProblemList
from rag_eval.measures.arrays import FloatArray, IntArray
from rag_eval.measures.groups import connected_components
from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.storage.artifacts import Artifact, ArtifactStore
from rag_eval.storage.hashing import SHORT, canonical_json, lines_hash, text_hash

MAX_LINE_BYTES: Final = 65_536
MAX_ROWS: Final = 1_000_000
MAX_GROUP_CHARS: Final = 500
MAX_VALUE: Final = 1e9
ACCEPTED: Final = '{"query": "...", "current": number or true or false, "candidate": number or true or false}, optionally "group": "..."'
_NOT_MEASURES = frozenset(
    {"strategy", "level", "query_id", "group_id", "paraphrase_id", "seed", "eligible", "failed"}
)


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Outcomes of both strategies on the same questions.

    Parameters
    ----------
    queries
        Text of each question.
    current, candidate
        float64 [n]; NaN = not scored.
    groups
        int64 [n] codes of what is independent of each other: lines of one question and lines of one group belong together.
    source
        Where it came from.
    report
        Report of the run; None for a file.
    """

    queries: tuple[str, ...]
    current: FloatArray
    candidate: FloatArray
    groups: IntArray
    source: Source
    report: dict[str, Any] | None = None


def _fingerprint(kind: str, questions: list[str], frame: pd.DataFrame) -> str:
    """Hash of the outcomes whatever their order, file or run: hashes of the questions; columns group, current, candidate."""
    rows = zip(
        questions,
        frame["group"],
        frame["current"].tolist(),
        frame["candidate"].tolist(),
        strict=True,
    )
    return lines_hash(
        [
            kind,
            "",
            *sorted(
                canonical_json([question, text_hash(group), repr(left), repr(right)])
                for question, group, left, right in rows
            ),
        ],
        SHORT,
    )


def _independent(questions: list[str], groups: IntArray) -> IntArray:
    """Code of what belongs together, in the order of the groups' codes: whoever shares a question or a group, and so on along the chain."""
    question = np.unique(np.array(questions, dtype=object), return_inverse=True)[1].astype(np.int64)
    row = np.arange(len(groups), dtype=np.int64)
    joined = connected_components(
        np.concatenate([row, row]), np.concatenate([groups, question + len(groups)]), len(groups)
    )
    first = np.full(len(groups), len(groups), dtype=np.int64)
    np.minimum.at(first, joined, groups)
    return np.unique(first[joined], return_inverse=True)[1].astype(np.int64)


def _evidence(
    frame: pd.DataFrame, kind: Any, name: str, report: dict[str, Any] | None = None
) -> Evidence:
    questions = [text_hash(same_question(query)) for query in frame["query"]]
    source = Source(
        kind=kind,
        name=quoted(name),
        fingerprint=_fingerprint(kind, questions, frame),
        n_questions=len(frame),
    )
    codes = _independent(
        questions,
        np.unique(frame["group"].to_numpy(dtype=object), return_inverse=True)[1].astype(np.int64),
    )
    current, candidate = (
        frame[side].to_numpy(dtype=np.float64) for side in ("current", "candidate")
    )
    return Evidence(tuple(frame["query"]), current, candidate, codes, source, report)


def run_evidence(
    home: Path, gold_set: str, run: str, current: str, candidate: str, *, measure: str, level: str
) -> Evidence:
    """Read the outcomes of a kept run, question by question, on the wordings and seeds that both strategies were run on.

    Raises
    ------
    InputError
        No such run of this gold set, what it made is gone, or it lacks a strategy or the measure.
    """
    run_id = choose_run(home, run, gold_set)
    kept = kept_run(home, run_id)
    names = [entry["name"] for entry in kept["report"]["strategies"]]
    missing = [name for name in (current, candidate) if name not in names]
    if missing:
        raise InputError(
            Problem(
                "strategy_missing",
                "the run has no such strategy",
                file=str(home / "runs" / f"{run_id}.json"),
                found=", ".join(missing),
                accepted=", ".join(names),
            )
        )
    ranking, gold, stability = (
        _artifact(home, kept, stage) for stage in ("ranking", "gold", "stability")
    )
    if ranking is None or gold is None:
        raise InputError(
            Problem(
                "run_incomplete",
                "what the run made is no longer in the home; run it again",
                file=str(home / "artifacts"),
                found=run_id,
            )
        )
    rows = with_delta_s(
        ranking.frame("per_query"), stability.frame("per_run") if stability else None
    )
    accepted = [name for name in rows.columns if name not in _NOT_MEASURES]
    if measure not in accepted:
        raise InputError(
            Problem(
                "unknown_measure",
                "the run has no such measure",
                field="--measure",
                found=measure,
                accepted=", ".join(accepted),
            )
        )
    paired = _paired(rows[rows["level"] == level], current, candidate, measure)
    texts = gold.frame("queries").set_index("query_id")["text"]
    return _evidence(
        paired.assign(query=texts.reindex(paired["query_id"]).to_numpy()),
        "run",
        run_id,
        kept["report"],
    )


def _artifact(home: Path, kept: dict[str, Any], stage: str) -> Artifact | None:
    key = kept["artifacts"].get(stage)
    return ArtifactStore(home / "artifacts").get(stage, key) if key else None


def _paired(rows: pd.DataFrame, current: str, candidate: str, measure: str) -> pd.DataFrame:
    """Mean of each side inside each question: query_id, group, current, candidate. A question that only one side was run on is NaN on the other."""
    keys = ["query_id", "paraphrase_id", "seed"]
    left, right = (rows[rows["strategy"] == name].set_index(keys) for name in (current, candidate))
    both = left.index.intersection(right.index)
    group = left.groupby(level="query_id", sort=True)["group_id"].first()
    means = {
        side: frame.loc[both, measure].groupby(level="query_id").mean()
        for side, frame in (("current", left), ("candidate", right))
    }
    alone = (
        left[measure].groupby(level="query_id").mean()
    )  # a question that the candidate was not run on is scored with the current one
    frame = pd.DataFrame(
        {
            "group": group.astype(str),
            "current": means["current"].reindex(group.index).fillna(alone),
            "candidate": means["candidate"].reindex(group.index),
        }
    )
    return frame.reset_index()


def file_evidence(path: Path) -> Evidence:
    """Read outcomes of production, one JSON object a line: query, current, candidate, optionally group.

    A question that stands on several lines is one question to the statistics, whatever groups they name: its group is itself where none is given.

    Raises
    ------
    InputError
        No such file, or every fault of it with its line and field.
    """
    if not path.is_file():
        raise InputError(
            Problem(
                "file_missing",
                "no such file of outcomes",
                file=str(path),
                field="--evidence",
                accepted=f"JSON lines: {ACCEPTED}",
            )
        )
    problems = ProblemList()
    rows: list[tuple[str, float, float, str]] = []
    with path.open("rb") as stream:
        for number, line in lines(stream, MAX_LINE_BYTES):
            if line is not None and not line.strip():
                continue
            if len(rows) >= MAX_ROWS:
                problems.add(
                    "too_many_lines",
                    "the file has too many lines",
                    file=str(path),
                    line=number,
                    accepted=f"at most {MAX_ROWS} outcomes; give each stage a file of its own",
                )
                break
            row = _outcome(line, str(path), number, problems)
            if row is not None:
                rows.append(row)
    if not rows and not problems.n_errors:
        problems.add("no_evidence", "the file has no outcome", file=str(path), accepted=ACCEPTED)
    problems.raise_errors()
    return _evidence(
        pd.DataFrame(rows, columns=["query", "current", "candidate", "group"]), "file", path.name
    )


def _outcome(
    line: bytes | None, file: str, number: int, problems: ProblemList
) -> tuple[str, float, float, str] | None:
    row = object_of(line, strict=True)
    if isinstance(row, tuple):
        problems.add(row[0], row[1], file=file, line=number, accepted=ACCEPTED)
        return None
    before = problems.n_errors
    for name in row.keys() - {"query", "current", "candidate", "group"}:
        problems.add(
            "unknown_key",
            "no such key",
            file=file,
            line=number,
            field=quoted(name),
            accepted="query, current, candidate, group",
        )
    query = row.get("query")
    if not isinstance(query, str) or not query.strip():
        problems.add(
            "missing_field" if query is None else "bad_value",
            "the question as it was asked",
            file=file,
            line=number,
            field="query",
            found=None if query is None else quoted(query),
            accepted="a text",
        )
    values = [_value(row, side, file, number, problems) for side in ("current", "candidate")]
    group = row.get("group")
    if group is not None and (not isinstance(group, str) or not 0 < len(group) <= MAX_GROUP_CHARS):
        problems.add(
            "bad_value",
            "what ties questions together",
            file=file,
            line=number,
            field="group",
            found=quoted(group),
            accepted=f"a text of 1 to {MAX_GROUP_CHARS} characters",
        )
    if problems.n_errors > before:
        return None
    # a group given must not meet a question of the same words
    return (
        str(query),
        values[0],
        values[1],
        f"query:{text_hash(same_question(str(query)))}" if group is None else f"group:{group}",
    )


def _value(row: dict[str, Any], side: str, file: str, number: int, problems: ProblemList) -> float:
    value = row.get(side)
    accepted = f"a number from -{MAX_VALUE:g} to {MAX_VALUE:g}, true or false"
    if side not in row:
        problems.add(
            "missing_field",
            f"the outcome of the {side} strategy",
            file=file,
            line=number,
            field=side,
            accepted=accepted,
        )
        return math.nan
    if not isinstance(value, (int, float)) or not -MAX_VALUE <= value <= MAX_VALUE:
        problems.add(
            "bad_value",
            f"the outcome of the {side} strategy",
            file=file,
            line=number,
            field=side,
            found=quoted(value),
            accepted=accepted,
        )
        return math.nan
    return float(value)
