"""Relevance judgements: BEIR tables (three columns with header) and TREC qrels (four columns without).

Belongs here: file -> JUDGEMENTS. Which document or section a target is, is found in `targets`.
"""

import re
from pathlib import Path

import pandas as pd

from rag_eval.gold.frames import JUDGEMENTS, make_frame
from rag_eval.gold.lines import read_lines
from rag_eval.gold.problem_list import ProblemList
from rag_eval.gold.rows import Row
from rag_eval.records.problems import quoted

MAX_GRADE = 1_000
ACCEPTED_COLUMNS = "query-id<TAB>corpus-id<TAB>score below that header, or four TREC columns (query 0 document grade) without header"

_HEADERS = ({"query-id", "query_id"}, {"corpus-id", "corpus_id", "doc_id", "doc-id"}, {"score"})
_WHOLE = re.compile(r"[+-]?\d{1,12}")
_BEIR, _TREC = 3, 4


def _layout(line: int, text: str, file: str, problems: ProblemList) -> int:
    """Columns that the file has, told from its first line; 0 with a fault (`bad_columns`, `missing_header`, `bad_header`)."""
    parts = text.split("\t")
    if len(parts) == _BEIR:
        names = [part.strip().lower() for part in parts]
        if all(name in accepted for name, accepted in zip(names, _HEADERS, strict=True)):
            return _BEIR
        code, message = (
            ("missing_header", "the header is missing")
            if _WHOLE.fullmatch(names[2])
            else ("bad_header", "the header names other columns")
        )
        problems.add(
            code, message, file=file, line=line, found=quoted(text), accepted=ACCEPTED_COLUMNS
        )
        return 0
    if len(text.split()) == _TREC:
        return _TREC
    problems.add(
        "bad_columns",
        "this is neither a BEIR nor a TREC table of judgements",
        file=file,
        line=line,
        found=quoted(text),
        accepted=ACCEPTED_COLUMNS,
    )
    return 0


def _grade(row: Row, *, may_be_negative: bool) -> int | None:
    text = row.values["score"]
    least = -MAX_GRADE if may_be_negative else 0
    if not _WHOLE.fullmatch(text) or not least <= int(text) <= MAX_GRADE:
        row.fault(
            "bad_grade",
            "a relevance grade is a whole number",
            "score",
            text,
            f"a whole number from 0 to {MAX_GRADE}",
        )
        return None
    return max(int(text), 0)


def read_qrels(path: Path, problems: ProblemList) -> pd.DataFrame:
    """Judgements (JUDGEMENTS) of one file, the layout told from its first line.

    A negative grade of a TREC file (spam, junk) becomes 0, as trec_eval counts it; in a BEIR table it is an error. Faults: those of
    `read_lines`, `bad_columns`, `bad_header`, `missing_header`, `bad_id`, `bad_grade`, `duplicate_judgement`, `empty_file`.
    """
    file, layout = str(path), -1
    rows: list[tuple[str, str, int, bool, str, int]] = []
    seen: dict[tuple[str, str], int] = {}
    before = problems.n_errors
    for line, text in read_lines(path, problems):
        if layout < 0:
            layout = _layout(line, text, file, problems)
            if layout == 0:
                break
            if layout == _BEIR:
                continue
        parts = text.split("\t") if layout == _BEIR else text.split()
        if len(parts) != layout:
            problems.add(
                "bad_columns",
                f"the row has {len(parts)} columns, the file {layout}",
                file=file,
                line=line,
                found=quoted(text),
                accepted=ACCEPTED_COLUMNS,
            )
            continue
        row = Row(
            {
                "query-id": parts[0].strip(),
                "corpus-id": parts[-2].strip(),
                "score": parts[-1].strip(),
            },
            file,
            line,
            problems,
        )
        query_id, target, gain = (
            row.identifier("query-id"),
            row.name("corpus-id"),
            _grade(row, may_be_negative=layout == _TREC),
        )
        if query_id is None or target is None or gain is None:
            continue
        first = seen.setdefault((query_id, target), line)
        if first != line:
            row.fault(
                "duplicate_judgement",
                f"this pair was judged in line {first} already",
                "corpus-id",
                f"{query_id}, {target}",
                "one grade for each pair",
            )
            continue
        rows.append((query_id, target, gain, True, file, line))
    if layout < 0 and problems.n_errors == before:
        problems.add(
            "empty_file",
            "the file holds no judgement and no header",
            file=file,
            line=1,
            accepted=ACCEPTED_COLUMNS,
        )
    return make_frame(JUDGEMENTS, rows)
