"""The gold set in the report: facts, warnings and blocked documents."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from rag_eval.core.errors import Problem
from rag_eval.core.parts import Name
from rag_eval.core.records import Count, Hash, Record


class LintWarning(Record):
    """A warning of lint; file is relative to the gold set."""

    code: str
    message: str
    file: str | None = None
    line: Count | None = None
    field: str | None = None
    found: str | None = None
    accepted: str | None = None
    severity: Literal["warning"]


def report_warnings(problems: Iterable[Problem], base: Path) -> list[LintWarning]:
    """Make warnings for the report, with file names that do not depend on the folder `base`."""
    warnings: list[LintWarning] = []
    for problem in problems:
        values = {key: it for key, it in dataclasses.asdict(problem).items() if it is not None}
        if problem.file:
            path = Path(problem.file)
            is_below = path.is_relative_to(base)
            values["file"] = path.relative_to(base).as_posix() if is_below else path.name
        warnings.append(LintWarning.model_validate(values))
    return warnings


class GoldFacts(Record):
    """The gold set without its seeds.

    `n_answerable_unknown` counts the questions of recorded outputs that nobody judged.
    """

    name: Name
    version: str
    hash: Hash
    n_queries: Count
    n_answerable: Count
    n_answerable_unknown: Count
    n_judged: Count
    n_paraphrases: Count
    n_groups: Count
    n_groups_answerable: Count
    n_spans: Count
    warnings: list[LintWarning]


class GoldPart(GoldFacts):
    """The gold set."""

    seeds: list[Count]


class BlockedGoldDocument(Record):
    """A relevant document with blocked chunks."""

    doc_id: str
    n_chunks: Count
    n_blocked: Count
    n_queries: Count


class BlockedGold(Record):
    """Relevant documents with chunks that the guard keeps out of the index, and their questions.

    A document counts as blocked with one blocked chunk, and as wholly blocked if all chunks are
    blocked. Documents of most questions come first; the report names fifty. All counts are zero
    where quarantine is off.
    """

    n_documents: Count
    n_blocked: Count
    n_wholly_blocked: Count
    n_queries: Count
    n_queries_blocked: Count
    documents: list[BlockedGoldDocument]
