"""Group stage: which outcomes and claims of production traffic belong to which questions of the gold set.

Belongs here: the words and gold documents of the gold set, of outcomes and of traffic. How they are joined is `uncertainty.question_groups`.
"""

import pandas as pd

from rag_eval.corpus.masking import mask
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.outcome_steps import OF_GOLD, QRELS
from rag_eval.evaluation.outcome_store import current_outcomes, outcome_store
from rag_eval.evaluation.signal_steps import fingerprint_of
from rag_eval.evaluation.traffic_steps import traffic
from rag_eval.records.problems import InputError
from rag_eval.uncertainty.claims import ClaimStore
from rag_eval.uncertainty.naming import question_id
from rag_eval.uncertainty.question_groups import (
    Asked,
    QuestionGroups,
    document_tie,
    question_groups,
    words_tie,
)


def groups_of(runs: Runs, name: str) -> QuestionGroups:
    """Join the outcomes and the traffic of a strategy with the gold's groups, by what the tables hold when it is first asked for."""
    return runs.evaluation.once(f"groups {name}", lambda: _groups_of(runs, name))


def groups_of_traffic(runs: Runs, name: str) -> dict[str, str]:
    """Group of each claim of production traffic that is counted in, by claim id."""
    groups, frame = groups_of(runs, name), traffic(runs, name).frame
    return {
        claim: groups.group(query, group)
        for claim, query, group in frame[["claim_id", "query_id", "group_id"]].itertuples(
            index=False
        )
    }


def _groups_of(runs: Runs, name: str) -> QuestionGroups:
    spec, queries = runs.evaluation.config.uncertainty, runs.gold.queries
    gold = dict(zip(queries["query_id"], queries["group_id"], strict=True))
    every = current_outcomes(
        runs.evaluation,
        strategy_fingerprint=fingerprint_of(runs, name),
        target=spec.target,
        k=spec.k,
    )
    # what a night recorded is of the gold, or of questions that it no longer has and of which nothing is counted
    told = every[~((every["gold_source"] == QRELS) & every["note"].str.fullmatch(OF_GOLD))]
    asked = _asked(runs, told, traffic(runs, name).frame)
    return question_groups(gold, _gold_ties(runs) if asked else [], asked)


def _asked(runs: Runs, told: pd.DataFrame, claims: pd.DataFrame) -> list[Asked]:
    opened, documents = (
        outcome_store(runs.evaluation),
        list(told["gold_documents"]) + [[] for _ in range(len(claims))],
    )
    rows = pd.concat(
        [told[["claim_id", "query_id", "group_id"]], claims[["claim_id", "query_id", "group_id"]]],
        ignore_index=True,
    )
    known = (
        {}
        if isinstance(opened, InputError) or rows.empty
        else ClaimStore(opened.sql).by_id(set(rows["claim_id"]))
    )
    return [
        Asked(
            query,
            group,
            (
                *map(document_tie, named),
                *([words_tie(question_id(known[claim]["query"]))] if claim in known else []),
            ),
        )
        for (claim, query, group), named in zip(
            rows.itertuples(index=False), documents, strict=True
        )
    ]


def _gold_ties(runs: Runs) -> list[tuple[str, str]]:
    """Words of every wording, and documents with a grade over 0, by query id; the words masked as those of traffic are before they are stored."""

    def find() -> list[tuple[str, str]]:
        wordings, judged = (
            runs.gold.variants,
            gold_variants(runs.evaluation).frame("qrels_document"),
        )
        words = [
            (query, words_tie(question_id(mask(text).text)))
            for query, text in zip(wordings["query_id"], wordings["text"], strict=True)
        ]
        judged = judged[judged["gain"] > 0]
        return words + [
            (query, document_tie(document))
            for query, document in zip(judged["query_id"], judged["item_id"], strict=True)
        ]

    return runs.evaluation.once("ties of the gold", find)
