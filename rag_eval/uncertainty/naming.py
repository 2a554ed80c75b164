"""What names claims, questions and outcomes: hashes of what they are, so that the same thing recorded twice is one.

Belongs here: the names, and making an outcome with its name. What an outcome holds is `rag_eval.records.outcomes`.
"""

import datetime as dt
import unicodedata
from typing import Any

from rag_eval.records.outcomes import Outcome
from rag_eval.storage.hashing import digest


def claim_id_of(
    strategy_fingerprint: str, query_id: str, paraphrase_id: str, seed: int, text: str
) -> str:
    """Name the retrieval of a gold question: equal night after night while strategy, wording and seed are, 32 hex digits."""
    return digest(["claim", strategy_fingerprint, query_id, paraphrase_id, seed, text])


def outcome_id_of(
    claim_id: str, target: str, k: int, gold_source: str, supersedes: str | None = None
) -> str:
    """Name an outcome by claim, target, k, gold source and what it supersedes, 32 hex digits.

    Two corrections of one outcome have the same name: of two people who correct it at once, one is told that it was done, and a chain never forks.
    """
    return digest(["outcome", claim_id, target, k, gold_source, supersedes or ""])


def question_id(text: str) -> str:
    """Name a question by its words, whatever their case, width and spacing: `q-` and 32 hex digits.

    Examples
    --------
    >>> question_id("What is  NaN?") == question_id("what is nan?")
    True
    """
    return f"q-{digest(' '.join(unicodedata.normalize('NFKC', text).casefold().split()))}"


def traffic_claim_id(
    strategy_fingerprint: str,
    query_id: str,
    query: str,
    retrieved: tuple[tuple[str, float | None], ...],
    at: dt.datetime | None,
) -> str:
    """Name a retrieval of production traffic: by what was asked, what came back, and when, where that is known; 32 hex digits."""
    return digest(
        [
            "traffic",
            strategy_fingerprint,
            query_id,
            query,
            [name for name, _ in retrieved],
            None if at is None else at.isoformat(),
        ]
    )


def new_outcome(**fields: Any) -> Outcome:
    """Make an outcome and name it.

    Raises
    ------
    pydantic.ValidationError
        A field is missing or not accepted.
    """
    return Outcome.model_validate(
        {
            **fields,
            "outcome_id": outcome_id_of(
                fields["claim_id"],
                fields["target"],
                fields["k"],
                fields["gold_source"],
                fields.get("supersedes"),
            ),
        }
    )


def is_named(outcome: Outcome) -> bool:
    """Whether an outcome has the name that follows from what it is."""
    return outcome.outcome_id == outcome_id_of(
        outcome.claim_id, outcome.target, outcome.k, outcome.gold_source, outcome.supersedes
    )
