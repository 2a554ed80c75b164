"""How far each document of a corpus is to be trusted, 0 to 1, and what made it so.

Belongs here: the states of its factors put together. Each factor is a file of its own; authors, which are only compared, are here.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.corpus.authors import MAX_SHOWN_CHARS, author_hash
from rag_eval.records.trust import (
    AUTHOR_WEIGHT,
    DOMAIN_WEIGHT,
    SIGNATURE_WEIGHT,
    AuthorState,
    SignatureState,
    Trust,
)
from rag_eval.trust.domains import domain_states
from rag_eval.trust.freshness import age_days, freshness

_DECIMALS = 6
_VOID = {"domain_state": "lookalike", "signature_state": "invalid"}
"""States of a claim that is false; what else the document says of itself counts for nothing then."""
_POINTS = {
    "domain": ("domain_state", "allowed", DOMAIN_WEIGHT),
    "signature": ("signature_state", "valid", SIGNATURE_WEIGHT),
    "author": ("author_state", "known", AUTHOR_WEIGHT),
}
"""Factor -> its column, the state that earns points, and how many."""


def author_states(
    authors: Sequence[str], hashes: Sequence[str], known: Sequence[str]
) -> list[AuthorState]:
    """State of each document's author.

    Parameters
    ----------
    authors, hashes
        Columns `author` (masked) and `author_hash` (of what stood there before masking) of a SOURCES frame.
    known
        Names of the configuration.

    Returns
    -------
    list
        known when the whole is a known name, or when it is several joined by commas and each of them is: one stranger among known authors may
        have written all of it. Else not_listed, unknown where nothing is said, not_configured when nobody is known.
    """
    if not known:
        return ["not_configured"] * len(authors)
    accepted = frozenset(map(author_hash, known)) - {""}

    def state(author: str, whole: str) -> AuthorState:
        if not whole:
            return "unknown"
        # a list that was cut to be shown does not hold every name
        several = author.split(",") if len(author) < MAX_SHOWN_CHARS else []
        return (
            "known"
            if whole in accepted
            or (len(several) > 1 and all(author_hash(name) in accepted for name in several))
            else "not_listed"
        )

    pairs = list(zip(authors, hashes, strict=True))
    states = {pair: state(*pair) for pair in set(pairs)}
    return [states[pair] for pair in pairs]


def _points(frame: pd.DataFrame) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Points of each factor of each row; none at all where a claim is false."""
    honest = ~np.logical_or.reduce(
        [(frame[column] == state).to_numpy(dtype=bool) for column, state in _VOID.items()]
    )
    return {
        factor: weight * ((frame[column] == state).to_numpy(dtype=bool) & honest)
        for factor, (column, state, weight) in _POINTS.items()
    }


def source_trust(
    sources: pd.DataFrame,
    config: Trust,
    signature_states: Mapping[str, SignatureState] | None,
    as_of: dt.date,
) -> pd.DataFrame:
    """Trust of every document of a SOURCES frame, in its order.

    Parameters
    ----------
    sources
        SOURCES frame.
    config
        Whom the gold set trusts.
    signature_states
        doc_id -> state, from `signatures.verify`; a document without one is missing its signature. None where signatures were not looked for.
    as_of
        The day on which age is counted.

    Returns
    -------
    pandas.DataFrame
        doc_id, domain, domain_state, signature_state, author_state, freshness_state, freshness, date, trust. Trust is freshness times the sum of
        0.4 for an allowed domain, 0.3 for a valid signature and 0.3 for a known author, to six decimals; 0 for a look-alike domain and for
        an invalid signature, whatever else holds; NaN for all where the configuration names no domain, author or key.
    """
    fresh = freshness(sources["date"].tolist(), as_of)
    without: SignatureState = "missing" if config.keys else "not_configured"
    states = signature_states if signature_states is not None and config.keys else {}
    frame = pd.DataFrame(
        {
            "doc_id": sources["doc_id"].to_numpy(),
            "domain": sources["domain"].to_numpy(),
            "domain_state": domain_states(sources["domain"].tolist(), config.domains),
            "signature_state": [
                states.get(doc_id, without) for doc_id in sources["doc_id"].tolist()
            ],
            "author_state": author_states(
                sources["author"].tolist(), sources["author_hash"].tolist(), config.authors
            ),
            "freshness_state": fresh["state"],
            "freshness": fresh["factor"],
            # what cannot be read as a date is not repeated as one
            "date": sources["date"].where((fresh["state"] != "unknown").to_numpy(), "").to_numpy(),
        }
    )
    total = np.sum(list(_points(frame).values()), axis=0)
    trust = np.round(frame["freshness"].to_numpy() * total, _DECIMALS)
    return frame.assign(trust=trust if config.configured else np.nan)


def explain_factors(row: Mapping[str, Any], as_of: dt.date) -> dict[str, dict[str, Any]]:
    """What made a document's trust, for `evidence-trust.jsonl`: the points add up to its trust once they are multiplied by the factor.

    Parameters
    ----------
    row
        A row of `source_trust` or of EVIDENCE_TRUST.
    as_of
        The day that `source_trust` was given.

    Returns
    -------
    dict
        domain, signature and author with `state` and `points`; freshness with `state`, `factor` and `age_days`, null where there is no date,
        negative for a date after `as_of`. All points are 0 where the domain is a look-alike or the signature invalid.
    """
    honest = all(row[column] != state for column, state in _VOID.items())
    factors: dict[str, dict[str, Any]] = {
        factor: {
            "state": str(row[column]),
            "points": weight if honest and row[column] == state else 0.0,
        }
        for factor, (column, state, weight) in _POINTS.items()
    }
    age = age_days(str(row["date"]), as_of)
    factors["freshness"] = {
        "state": str(row["freshness_state"]),
        "factor": round(float(row["freshness"]), _DECIMALS),
        "age_days": age,
    }
    return factors
