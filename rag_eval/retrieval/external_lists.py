"""Rankings that were made beforehand: a TREC run, or the contexts of recorded outputs."""

import dataclasses
import math
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import pandas as pd

from rag_eval.core.errors import ProblemList, quoted
from rag_eval.core.rows import read_lines
from rag_eval.corpus.loaders.recorded import rankings, read_outputs
from rag_eval.retrieval.external import (
    Failure,
    Item,
    Outcome,
    QueryError,
    Retrieved,
    parse_item,
    parse_items,
)

ORIGINAL = "original"

Key = tuple[str, str]
"""(query_id, paraphrase_id)."""


@dataclasses.dataclass(frozen=True)
class Listed:
    """Outcomes of all wordings, and what a reader of the figures must know about them."""

    outcomes: list[Outcome]
    """One a wording; None where the list holds the questions' original wordings alone."""
    wordings: Literal["all", "original"]
    notes: list[str]


def match_lists(
    lists: Mapping[Key, Sequence[Item] | Failure],
    variants: pd.DataFrame,
    top_k: int,
    *,
    missing: Literal["empty", "failed"],
) -> Listed:
    """Give every wording its list.

    Parameters
    ----------
    lists
        Items, best first, or why there are none. Keys that are no wording are noted.
    variants
        VARIANTS.
    top_k
        Length at which lists are cut.
    missing
        Meaning of a wording without a list: it retrieved nothing (a run file leaves empty rankings
        out), or it failed (recorded outputs that lack the question). Where no paraphrase at all has
        a list, paraphrases were not run: neither.
    """
    keys = list(zip(variants["query_id"].tolist(), variants["paraphrase_id"].tolist(), strict=True))
    paraphrases = {key for key in keys if key[1] != ORIGINAL}
    original_only = bool(paraphrases) and paraphrases.isdisjoint(lists)
    ran = [key for key in keys if not original_only or key not in paraphrases]
    outcomes: dict[Key, Outcome] = {}
    for key in ran:
        found = lists.get(key, ())
        if isinstance(found, Failure):
            outcomes[key] = found
        elif key in lists or missing == "empty":
            outcomes[key] = Retrieved(tuple(found[:top_k]))
        else:
            message = f"no output for {quoted(key[0])}"
            outcomes[key] = QueryError("not_recorded", message).failure
    notes = []
    if original_only:
        notes.append(
            "evaluated on the questions' original wordings only: "
            "there is no list for any paraphrase"
        )
    without = sum(key not in lists for key in ran)
    if without and missing == "empty":
        notes.append(
            f"{without} of {len(ran)} wordings have no row and count as having retrieved nothing"
        )
    others = len(set(lists) - set(keys))
    if others:
        notes.append(f"{others} rankings belong to no question of the gold set and were left out")
    return Listed(
        [outcomes.get(key) for key in keys], "original" if original_only else "all", notes
    )


def read_recorded(path: Path) -> dict[Key, Sequence[Item] | Failure]:
    """Read rankings of recorded outputs by (query_id, original).

    The order is the ranking; a score that was not recorded is NaN and becomes 1 / rank. An output
    that is an error and has no context is a failed retrieval. Raises `InputError`, see
    `read_outputs`.
    """
    outputs = read_outputs(path)
    errors = {
        output.query_id: output.error for output in outputs if output.error and not output.contexts
    }
    failures = {
        query_id: QueryError("recorded_error", quoted(error)).failure
        for query_id, error in errors.items()
    }
    return {
        (query_id, ORIGINAL): failures[query_id] if query_id in failures else _read_contexts(rows)
        for query_id, rows in rankings(outputs).items()
    }


def _read_contexts(rows: Sequence[tuple[str, float, str]]) -> Sequence[Item] | Failure:
    """Read a list of (document, score, text)."""
    chunks = [
        {"doc_id": name, "text": text, "score": 1 / place if math.isnan(score) else score}
        for place, (name, score, text) in enumerate(rows, start=1)
    ]
    try:
        return parse_items(chunks)
    except QueryError as error:
        return error.failure


# ---- A TREC run: `qid Q0 docno rank score tag`, one retrieved document a line.

ACCEPTED = "qid Q0 docno rank score tag, separated by white space"


def read_run(path: Path, variants: pd.DataFrame) -> dict[Key, Sequence[Item] | Failure]:
    """Read the rankings of a run file by (query_id, paraphrase_id).

    A qid is a `query_id`, which names the original wording, or `query_id/paraphrase_id`. Rows are
    ordered by score, highest first, as trec_eval does it; equal scores by rank, then by docno. Ids
    in which white space is percent-encoded, as our own exports write them, are decoded where the
    gold set has them so. Rows of other queries are kept under (qid, ""), to be counted.

    Raises
    ------
    InputError
        With every line at fault: `missing_file`, `bad_columns`, `bad_number`, `bad_id`,
        `duplicate_document`, `empty_file`, `other_queries` where no row is about the gold set, and
        those of `read_lines`.
    """
    problems = ProblemList()
    keys = zip(variants["query_id"].tolist(), variants["paraphrase_id"].tolist(), strict=True)
    wordings = {"/".join(key): key for key in keys}
    wordings |= {query: (query, ORIGINAL) for query, _ in list(wordings.values())}
    rows: dict[Key, dict[str, tuple[float, int, Item]]] = {}
    for line, text in read_lines(path, problems):
        code, message = "duplicate_document", "the query names this document twice"
        try:
            qid, rank, item = _parse_row(text)
        except QueryError as error:
            code, message = error.code, str(error)
        else:
            key = wordings.get(qid) or wordings.get(urllib.parse.unquote(qid)) or (qid, "")
            ranking = rows.setdefault(key, {})
            if item.id not in ranking:
                ranking[item.id] = (-item.score, rank, item)
                continue
        problems.add(
            code, message, file=str(path), line=line, found=quoted(text), accepted=ACCEPTED
        )
    if not problems.n_errors and not any(paraphrase for _, paraphrase in rows):
        problems.add(
            "other_queries" if rows else "empty_file",
            "no row is about a question of this gold set" if rows else "the run holds no row",
            file=str(path),
            found=", ".join(quoted(query, 40) for query, _ in list(rows)[:3]) or None,
            accepted="query_id or query_id/paraphrase_id as qid" if rows else ACCEPTED,
        )
    problems.raise_errors()
    return {
        key: tuple(item for *_, item in sorted(found.values(), key=_place_in_run))
        for key, found in rows.items()
    }


def _place_in_run(row: tuple[float, int, Item]) -> tuple[float, int, str]:
    negative_score, rank, item = row
    return negative_score, rank, item.id


def _parse_row(text: str) -> tuple[str, int, Item]:
    """Return (qid, rank, item) of a line. Raises `QueryError`, whose code is that of a problem."""
    parts = text.split()
    if len(parts) != len(ACCEPTED.partition(",")[0].split()):
        raise QueryError("bad_columns", f"the row has {len(parts)} columns, a run 6")
    qid, _, docno, rank, score, _ = parts
    try:
        place, number = int(rank), float(score)
    except ValueError as error:
        raise QueryError("bad_number", str(error)) from error
    if not math.isfinite(number):
        raise QueryError("bad_number", "a score is a finite number")
    try:
        return qid, place, parse_item({"id": docno, "score": number}, 1)
    except QueryError as error:
        raise QueryError("bad_id", str(error)) from error
