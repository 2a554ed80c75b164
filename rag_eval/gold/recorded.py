"""Gold where there is no corpus: questions taken from recorded outputs, and how outputs and questions match.

Belongs here: what a question is when only its output is known. Reading the outputs is `rag_eval.corpus.recorded`.
"""

import dataclasses
from pathlib import Path

import pandas as pd

from rag_eval.corpus.recorded import read_outputs
from rag_eval.corpus.recorded_rows import RecordedOutput
from rag_eval.gold.files import Question, Questions, questions_of
from rag_eval.gold.frames import REFERENCE_ANSWERS, make_frame
from rag_eval.gold.problem_list import ProblemList
from rag_eval.records.problems import InputError, quoted
from rag_eval.storage.hashing import digest


@dataclasses.dataclass(frozen=True, slots=True)
class OutputQuestions:
    """Questions as outputs name them.

    Parameters
    ----------
    questions
        Wording from the output, its id where none stands there. Whether a question can be answered is not known: it counts as answerable
        and its place says that no flag was given.
    references
        REFERENCE_ANSWERS of ragas rows.
    identity
        Hash of ids, wordings and references; not of answers and contexts, so that two systems' outputs for the same questions are one gold set.
    """

    questions: Questions
    references: pd.DataFrame
    identity: str


def _read(path: Path, problems: ProblemList) -> list[RecordedOutput]:
    try:
        return read_outputs(path)
    except InputError as error:
        problems.extend(error.problems)
        return []


def questions_of_outputs(path: Path, problems: ProblemList) -> OutputQuestions:
    """Take the questions from the outputs. Faults: those of `read_outputs`."""
    outputs = _read(path, problems)
    rows = [
        Question(
            output.query_id,
            output.question if output.question.strip() else output.query_id,
            answerable=True,
            has_flag=False,
            tags=(),
            line=output.line,
        )
        for output in outputs
    ]
    references = make_frame(
        REFERENCE_ANSWERS,
        [(output.query_id, output.reference) for output in outputs if output.reference],
    )
    identity = digest(
        sorted([output.query_id, output.question, output.reference] for output in outputs)
    )
    return OutputQuestions(questions_of(rows, str(path)), references, identity)


def report_unmatched(questions: Questions, path: Path, problems: ProblemList) -> None:
    """Warn of outputs for questions that the gold does not ask (`unknown_query`), and of questions without an output, which count as failed (`missing_output`)."""
    outputs = _read(path, problems)
    known = set(questions.queries["query_id"])
    for output in outputs:
        if output.query_id not in known:
            problems.add(
                "unknown_query",
                "no question has this id; its output is left out",
                file=str(path),
                line=output.line,
                field="query_id",
                found=quoted(output.query_id),
                accepted="an id of queries.jsonl",
                severity="warning",
            )
    answered = {output.query_id for output in outputs}
    for query_id, file, line in zip(
        questions.places["query_id"],
        questions.places["file"],
        questions.places["line"],
        strict=True,
    ):
        if outputs and query_id not in answered:
            problems.add(
                "missing_output",
                f"question {quoted(query_id)} has no recorded output: it counts as failed",
                file=file,
                line=int(line),
                field="query_id",
                severity="warning",
            )
