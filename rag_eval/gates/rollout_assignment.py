"""Which questions a candidate strategy answers while it is rolled out: by a hash of the question, never by a draw.

Belongs here: a question's place in [0, 1), the stages, and who is on the candidate. What is decided at a stage is `rollout_decision`.
"""

import unicodedata
from collections.abc import Sequence
from typing import Final

import numpy as np

from rag_eval.measures.arrays import FloatArray
from rag_eval.storage.hashing import text_hash

STAGES: Final = (0.1, 0.5, 1.0)
"""Shares of the questions that the candidate answers, one stage after the other."""

_HEX_DIGITS = 13  # 52 bits: every value is a float of its own
_PLACES = float(16**_HEX_DIGITS)


def same_question(query: str) -> str:
    r"""Bring a question to the form under which it is one and the same: Unicode NFC, white space collapsed, case folded.

    Examples
    --------
    >>> same_question("  How LONG\n do results stay? ")
    'how long do results stay?'
    """
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", query).casefold())
    return " ".join(folded.split())


def assignment(query: str, salt: str) -> float:
    """Place of a question in [0, 1), uniform over questions and independent between salts.

    Parameters
    ----------
    query
        The question as it was asked; its form (`same_question`) decides.
    salt
        The plan's id: another rollout puts other questions first.

    Returns
    -------
    float
        The first 52 bits of SHA-256 over salt and question, divided by 2 ** 52.
    """
    return int(text_hash(f"{salt}\0{same_question(query)}")[:_HEX_DIGITS], 16) / _PLACES


def on_candidate(query: str, salt: str, share: float) -> bool:
    """Tell whether the candidate answers this question while it has `share` of them; who is on it at 10 % still is at 50 %."""
    return assignment(query, salt) < share


def assignments(queries: Sequence[str], salt: str) -> FloatArray:
    """Places of many questions, float64 [n]."""
    return np.fromiter(
        (assignment(query, salt) for query in queries), dtype=np.float64, count=len(queries)
    )


def stage_before(share: float) -> float:
    """Share of the stage before this one, 0 before the first: questions between the two are new at this stage."""
    return max((other for other in STAGES if other < share), default=0.0)
