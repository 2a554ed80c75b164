"""A TREC run as a strategy: `qid Q0 docno rank score tag`, one retrieved document a line.

Belongs here: file -> rankings by wording. A run has no texts, so its ids alone say what was retrieved.
"""

import math
import re
import urllib.parse
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from rag_eval.gold.lines import read_lines
from rag_eval.gold.problem_list import ProblemList
from rag_eval.records.problems import quoted
from rag_eval.retrieval.external import Item, QueryError
from rag_eval.retrieval.external_lists import ORIGINAL, Key, keys_of
from rag_eval.retrieval.external_reply import parse_item

COLUMNS = ("qid", "Q0", "docno", "rank", "score", "tag")
ACCEPTED = "qid Q0 docno rank score tag, separated by white space"
_WHOLE = re.compile(r"[+-]?\d{1,12}")


def names_of(variants: pd.DataFrame) -> dict[str, Key | None]:
    """What a qid may be -> the wording it names: `query_id`, which is the original wording, or `query_id/paraphrase_id`.

    A query_id wins where a text is both. None stands for a text that two wordings share.
    """
    names: dict[str, Key | None] = {}
    keys = keys_of(variants)
    for key in keys:
        joined = "/".join(key)
        names[joined] = None if joined in names else key
    names.update({query: (query, ORIGINAL) for query, _ in keys})
    return names


def read_run(path: Path, variants: pd.DataFrame) -> dict[Key, list[Item]]:
    """Rankings of a run file by (query_id, paraphrase_id).

    Rows are ordered by score, highest first, as trec_eval does it; equal scores by rank, then by docno. Ids in which white space is
    percent-encoded, as our own exports write them, are decoded where the gold set has them so. Rows of other queries are kept under
    (qid, ""), so that they can be counted.

    Raises
    ------
    InputError
        With every line at fault: `missing_file`, `bad_columns`, `bad_number`, `bad_id`, `duplicate_document`, `ambiguous_query`, `empty_file`,
        `other_queries` where no row is about the gold set, and those of `read_lines`.
    """
    problems = ProblemList()
    names = names_of(variants)
    rows: dict[Key, dict[str, tuple[float, int, Item]]] = {}
    matched, n_rows = False, 0
    for line, text in read_lines(path, problems):
        n_rows += 1
        row = _row(text, str(path), line, problems)
        if row is None:
            continue
        qid, rank, item = row
        key = _wording(qid, names)
        if key is None:
            problems.add(
                "ambiguous_query",
                "two wordings of the gold set go by this name",
                file=str(path),
                line=line,
                field="qid",
                found=quoted(qid),
            )
            continue
        matched |= bool(key[1])
        ranking = rows.setdefault(key, {})
        if item.id in ranking:
            problems.add(
                "duplicate_document",
                "the query names this document twice",
                file=str(path),
                line=line,
                field="docno",
                found=quoted(item.id),
                accepted="each document once a query",
            )
            continue
        ranking[item.id] = (-item.score, rank, item)
    if not n_rows and not problems.n_errors:
        problems.add(
            "empty_file", "the run holds no row", file=str(path), line=1, accepted=ACCEPTED
        )
    elif not matched and not problems.n_errors:
        found = ", ".join(quoted(query, 40) for query, _ in list(rows)[:3])
        problems.add(
            "other_queries",
            "no row is about a question of this gold set",
            file=str(path),
            field="qid",
            found=found,
            accepted="query_id or query_id/paraphrase_id",
        )
    problems.raise_errors()
    return {
        key: [
            item
            for _, _, item in sorted(
                ranking.values(), key=lambda entry: (entry[0], entry[1], entry[2].id)
            )
        ]
        for key, ranking in rows.items()
    }


def _wording(qid: str, names: Mapping[str, Key | None]) -> Key | None:
    for text in (qid, urllib.parse.unquote(qid)):
        if text in names:
            return names[text]
    return qid, ""


def _row(text: str, file: str, line: int, problems: ProblemList) -> tuple[str, int, Item] | None:
    """(qid, rank, item) of a line; None with a fault."""
    parts = text.split()
    if len(parts) != len(COLUMNS):
        problems.add(
            "bad_columns",
            f"the row has {len(parts)} columns, a run {len(COLUMNS)}",
            file=file,
            line=line,
            found=quoted(text),
            accepted=ACCEPTED,
        )
        return None
    qid, _, docno, rank, score, _ = parts
    if not _WHOLE.fullmatch(rank):
        problems.add(
            "bad_number",
            "a rank is a whole number",
            file=file,
            line=line,
            field="rank",
            found=quoted(rank),
            accepted="a whole number",
        )
        return None
    try:
        number = float(score)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        problems.add(
            "bad_number",
            "a score is a finite number",
            file=file,
            line=line,
            field="score",
            found=quoted(score),
            accepted="a finite number",
        )
        return None
    try:
        item = parse_item({"id": docno, "score": number}, 1)
    except QueryError as error:
        problems.add("bad_id", str(error), file=file, line=line, field="docno", found=quoted(docno))
        return None
    return qid, int(rank), item
