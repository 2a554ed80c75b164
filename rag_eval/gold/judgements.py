"""Read the judgements of TREC and BEIR, without pydantic and pandas.

`rag_eval.evaluate` reads them too, and takes less time than the import of either library.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rag_eval.core.errors import Place, ProblemList, quoted
from rag_eval.core.fields import GRADE, ID, Rule, find_column
from rag_eval.core.rows import SeenIds, read_lines

ACCEPTED_COLUMNS: Final = (
    "query-id<TAB>corpus-id<TAB>score below that header, "
    "or four TREC columns (query 0 document grade) without header"
)
_COLUMNS: Final = ("query_id", "doc_id", "relevance")
_RULES: Final[Sequence[tuple[str, Rule]]] = (("query-id", ID), ("corpus-id", ID), ("score", GRADE))
_TREC_COLUMNS: Final = 4
_TREC_PLACES: Final[Sequence[int | None]] = (0, 2, 3)


class Judgement(NamedTuple):
    """A relevance grade and its line; 0 is judged not relevant."""

    query_id: str
    target: str
    gain: int
    line: int


def read_judgements(path: Path, problems: ProblemList) -> Iterator[Judgement]:
    """Yield the judgements of a file: columns with a header (BEIR), or four without (TREC).

    Below a header the columns are separated by tabs, in any order, and other columns are ignored.
    Faults: those of `read_lines`, `bad_columns`, `bad_id`, `bad_grade`, `duplicate_judgement` and
    `empty_file`.
    """
    pairs, file, before, n_columns = SeenIds(problems), str(path), problems.n_errors, 0
    places = _TREC_PLACES
    for line, text in read_lines(path, problems):
        parts = [part.strip() for part in text.split("\t")]
        if not n_columns:
            n_columns = _TREC_COLUMNS
            header = [find_column(column, parts) for column in _COLUMNS]
            if None not in header:
                n_columns, places = len(parts), header
                continue
        parts = text.split() if places is _TREC_PLACES else parts
        more: Place = {"line": line, "found": quoted(text), "accepted": ACCEPTED_COLUMNS}
        if len(parts) != n_columns:
            message = f"this row has {len(parts)} columns where {n_columns} are due"
            problems.add("bad_columns", message, path, **more)
            continue
        cells = [parts[at] for at in places if at is not None]
        values = [rule.read(cell) for (_, rule), cell in zip(_RULES, cells, strict=True)]
        for (field, rule), cell, value in zip(_RULES, cells, values, strict=True):
            if value is None:
                more |= {"field": field, "found": quoted(cell) or "nothing"}
                problems.add(rule.code, rule.message, path, **more | {"accepted": rule.accepted})
        query, target, gain = values
        if None not in values and pairs.add(
            (query, target), file, line, "corpus-id", "duplicate_judgement"
        ):
            yield Judgement(query, target, gain, line)
    if not n_columns and problems.n_errors == before:
        message, accepted = "the file holds no judgement and no header", ACCEPTED_COLUMNS
        problems.add("empty_file", message, path, line=1, accepted=accepted)
