"""Why a figure of the report is null: every null gets `<name>_reason` beside it, unless its stage gave one already.

Belongs here: the sentences, and walking through the report. Which figures there are is the stages' business.
"""

from collections.abc import Mapping
from typing import Any

NOT_FIGURES = frozenset({"rerank"})
"""Keys whose null says that there is none."""

_NOT_SCORED = "no question was scored"
_REASONS = {
    "refused": "nothing speaks against these outcomes",
    "promotion": "the status is what it was",
    "direction": "there was no alarm",
    "first_alarm_at": "there was no alarm",
    "powered": "there is no production traffic in this comparison",
    "recallAt10": _NOT_SCORED,
    "mrr": _NOT_SCORED,
    "value": _NOT_SCORED,
    "value_if_unjudged_relevant": _NOT_SCORED,
    "delta": "no question was scored for both strategies",
    "p": "no question was scored for both strategies",
    "p_adjusted": "no question was scored for both strategies",
    "query": "too few questions, or nothing varies",
    "paraphrase": "no question has several wordings, or nothing varies",
    "seed": "every wording was run once, or nothing varies",
    "seeds_change_nothing": "one seed was configured",
}


def _reason(key: str, record: Mapping[str, Any]) -> str:
    if key in {"ci_low", "ci_high"}:
        return (
            _NOT_SCORED
            if record.get("value", record.get("delta")) is None
            else "one group of questions gives no interval"
        )
    if key == "minimum_detectable":
        return "fewer than two groups of questions, or the two never differ"
    if key == "judged_at_k":
        return (
            "what was not quoted was not judged"
            if record.get("level") == "span"
            else "this measure looks at no first k places, or no question was scored"
        )
    if key == "share":
        return (
            "no question has both wordings"
            if isinstance(record.get(key), list)
            else "there is no run"
        )
    return _REASONS.get(key, "nothing to compute it from")


def _has_null(value: Any) -> bool:
    return value is None or (isinstance(value, list) and any(_has_null(part) for part in value))


def with_reasons(value: Any) -> Any:
    """Give every null figure of a report, or of any part of it, its reason.

    Examples
    --------
    >>> with_reasons({"value": None, "n_scored": 0})
    {'value': None, 'n_scored': 0, 'value_reason': 'no question was scored'}
    """
    if isinstance(value, list):
        return [with_reasons(part) for part in value]
    if not isinstance(value, Mapping):
        return value
    result = {key: with_reasons(part) for key, part in value.items()}
    for key, part in value.items():
        known = (
            key in NOT_FIGURES or f"{key}_reason" in value or (key == "value" and "reason" in value)
        )
        if _has_null(part) and not known:
            result[f"{key}_reason"] = _reason(key, value)
    return result
