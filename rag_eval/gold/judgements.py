"""Read the judgements of TREC and BEIR, without pydantic and pandas.

`rag_eval.evaluate` reads them too, and takes less time than the import of either library.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rag_eval.core.errors import Place, ProblemList, quoted
from rag_eval.core.fields import COLUMN_NAMES, GRADE, ID, Rule
from rag_eval.core.rows import SeenIds, read_lines

ACCEPTED_COLUMNS: Final = (
    "query-id<TAB>corpus-id<TAB>score below that header, "
    "or four TREC columns (query 0 document grade) without header"
)
_HEADER: Final = [COLUMN_NAMES[name] for name in ("query_id", "doc_id", "relevance")]
_RULES: Final[Sequence[tuple[str, Rule]]] = (("query-id", ID), ("corpus-id", ID), ("score", GRADE))
_BEIR, _TREC = 3, 4


class Judgement(NamedTuple):
    """A relevance grade and its line; 0 is judged not relevant."""

    query_id: str
    target: str
    gain: int
    line: int


def _is_header(cells: Sequence[str]) -> bool:
    return len(cells) == _BEIR and all(
        cell.lower() in names for cell, names in zip(cells, _HEADER, strict=True)
    )


def read_judgements(path: Path, problems: ProblemList) -> Iterator[Judgement]:
    """Yield the judgements of a file: three columns with header (BEIR), or four without (TREC).

    Faults: those of `read_lines`, `bad_columns`, `bad_id`, `bad_grade`, `duplicate_judgement` and
    `empty_file`.
    """
    seen, file, before, n_columns = SeenIds(problems), str(path), problems.n_errors, 0
    for line, text in read_lines(path, problems):
        parts = [part.strip() for part in text.split("\t")]
        if not n_columns and _is_header(parts):
            n_columns = _BEIR
            continue
        n_columns = n_columns or _TREC
        parts = text.split() if n_columns == _TREC else parts
        more: Place = {"line": line, "found": quoted(text), "accepted": ACCEPTED_COLUMNS}
        if len(parts) != n_columns:
            message = f"this row has {len(parts)} columns where {n_columns} are due"
            problems.add("bad_columns", message, path, **more)
            continue
        cells = parts[0], parts[-2], parts[-1]
        values = [rule.read(cell) for (_, rule), cell in zip(_RULES, cells, strict=True)]
        for (field, rule), cell, value in zip(_RULES, cells, values, strict=True):
            if value is None:
                more["field"], more["found"] = field, quoted(cell) or "nothing"
                more["accepted"] = rule.accepted
                problems.add(rule.code, rule.message, path, **more)
        query, target, gain = values
        if None not in values and seen.add(
            (query, target), file, line, "corpus-id", "duplicate_judgement"
        ):
            yield Judgement(query, target, gain, line)
    if not n_columns and problems.n_errors == before:
        message, accepted = "the file holds no judgement and no header", ACCEPTED_COLUMNS
        problems.add("empty_file", message, path, line=1, accepted=accepted)
