"""What one question of `queries.jsonl` says otherwise than `answers` of the configuration.

Belongs here: the keys of `AnswerOverride` taken from a row, every fault named. What they mean to an answer is `rag_eval.answers`.
"""

import json
from collections.abc import Mapping
from typing import Any, get_args

import pandas as pd
from pydantic import ValidationError

from rag_eval.gold.frames import rows_of
from rag_eval.gold.problem_list import ProblemList
from rag_eval.gold.rows import Row
from rag_eval.records.answer_settings import AnswerMode, AnswerOverride, Answers, ResponseSchema
from rag_eval.records.problems import quoted

KEYS = tuple(AnswerOverride.model_fields)

_ACCEPTED = {
    "answer_mode": ", ".join(get_args(AnswerMode)),
    "preflights": 'a list such as [{"kind": "retrieve"}, {"kind": "grep", "terms": [...]}, {"kind": "section"}]',
    "response_schema": ", ".join(get_args(ResponseSchema)),
    "verdicts": "a list of words such as SUPPORTED, each of letters, digits, spaces, _ and -, starting with a letter, at most 64 characters",
    "top_k": "a whole number from 1 to 1000, or null",
    "schema_retry_attempts": "a whole number from 0 to 10, or null",
}
_CODES = {
    "missing": "missing_key",
    "extra_forbidden": "unknown_key",
    "union_tag_not_found": "missing_key",
}
_NEEDS = {"llm": "endpoint", "recorded": "recorded"}


def _place(location: tuple[int | str, ...]) -> str:
    """`preflights[0].max_hits`; the name of the union member that pydantic puts after the place is left out."""
    parts = list(location)
    if parts[:1] == ["preflights"]:
        del parts[2:3]
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts
    ).removeprefix(".")


def _accepted(error: Mapping[str, Any], key: str) -> str:
    context = error.get("ctx", {})
    named = context.get("expected_tags") or context.get("expected")
    bounds = [
        f"{sign} {context[name]}"
        for name, sign in (
            ("ge", "at least"),
            ("gt", "more than"),
            ("le", "at most"),
            ("lt", "less than"),
            ("max_length", "at most"),
        )
        if name in context
    ]
    return str(named).replace("'", "") if named else ", ".join(bounds) or _ACCEPTED[key]


def override_of(row: Row) -> AnswerOverride | None:
    """Take the override of a row; None where it has none, or with a fault for each key that cannot be used.

    A key that is null stands for the configuration's own value. Faults: `missing_key`, `unknown_key`, `wrong_type`, `bad_value`.
    """
    given = {key: row.values[key] for key in KEYS if row.values.get(key) is not None}
    if not given:
        return None
    try:
        return AnswerOverride.model_validate_json(
            json.dumps(given), strict=True
        )  # JSON: lists may be tuples, nothing else is converted
    except ValidationError as failure:
        errors = failure.errors(include_url=False)
        places = [error["loc"] for error in errors]
        for error in errors:
            # a list whose only item is wrong counts as too short as well: the item's own mistake is what to mend
            if error["type"] == "too_short" and any(
                place[: len(error["loc"])] == error["loc"] and place != error["loc"]
                for place in places
            ):
                continue
            kind, location = str(error["type"]), tuple(error["loc"])
            code = _CODES.get(kind, "wrong_type" if kind.endswith("_type") else "bad_value")
            message = str(error["msg"]).removeprefix("Value error, ")
            found = None if kind == "missing" else error["input"]
            shown = found if isinstance(found, str) else json.dumps(found)
            row.fault(
                code,
                message[:1].lower() + message[1:],
                _place(location),
                None if found is None else shown,
                _accepted(error, str(location[0])),
            )
        return None


def report_unmet(
    overrides: Mapping[str, AnswerOverride],
    places: pd.DataFrame,
    answers: Answers | None,
    problems: ProblemList,
) -> None:
    """Report overrides that the configuration does not bear: none where it answers no question, no mode without what the mode needs (`unmet_override`)."""
    for row in rows_of(places[places["query_id"].isin(list(overrides))]):
        override, field, accepted = overrides[row.query_id], "answer_mode", ""
        if answers is None:
            field, accepted = (
                next(key for key in KEYS if getattr(override, key) is not None),
                "answers: {mode: ...} in gold_set.yaml, or no such key",
            )
        elif (needed := _NEEDS.get(override.answer_mode or "")) and getattr(
            answers, needed
        ) is None:
            accepted = f"answers: {{{needed}: ...}} in gold_set.yaml, or another mode"
        if accepted:
            found = json.dumps(override.model_dump(mode="json", exclude_none=True)[field])
            problems.add(
                "unmet_override",
                f"question {quoted(row.query_id)} asks for what the configuration lacks",
                file=row.file,
                line=int(row.line),
                field=field,
                found=quoted(found),
                accepted=accepted,
                severity="warning" if answers is None else "error",
            )
