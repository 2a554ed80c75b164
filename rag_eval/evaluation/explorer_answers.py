"""Answers as the explorer shows them: outcome, text, and each citation with its verdict; of no source more than may leave the home."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pandas as pd

from rag_eval.evaluation.answer_frames import from_artifact
from rag_eval.evaluation.answer_measure_steps import answer_measures
from rag_eval.evaluation.answer_steps import answers
from rag_eval.evaluation.citation_steps import citations
from rag_eval.evaluation.explorer_packing import nullable
from rag_eval.evaluation.explorer_texts import MAX_ANSWER, address, line, name
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.records.answers import OUTCOMES, Answer
from rag_eval.reporting.outgoing import Outgoing


@dataclasses.dataclass(frozen=True)
class Answered:
    """Answers of the questions, in their order.

    Parameters
    ----------
    entries
        What stands with each question; None where it has no answer.
    columns
        outcome, correct, cited, groundedness: one value a question, null where there is none.
    """

    entries: list[dict[str, Any] | None]
    columns: dict[str, list[Any]]


def answered(runs: Runs) -> Answered:
    """Read what was answered; empty where the gold set configures no answers."""
    made, cited, measured = answers(runs), citations(runs), answer_measures(runs)
    n = len(runs.gold.queries)
    if made is None or cited is None or measured is None:
        return Answered(
            [None] * n,
            {column: [None] * n for column in ("outcome", "correct", "cited", "groundedness")},
        )
    per_question = (
        measured.frame("per_question").set_index("query_id").reindex(runs.gold.queries["query_id"])
    )
    judged = per_question["n_gold"].to_numpy() > 0
    columns = {
        "outcome": [
            OUTCOMES.index(outcome) if outcome in OUTCOMES else None
            for outcome in per_question["outcome"].tolist()
        ],
        "correct": nullable(per_question["n_correct"].where(judged).to_numpy(dtype=float)),
        "cited": nullable(per_question["n_cited"].to_numpy(dtype=float)),
        "groundedness": nullable(per_question["groundedness"].to_numpy(dtype=float)),
    }
    strategy = runs.names.index(made.json("about")["strategy"])
    verdicts = {
        str(query_id): part
        for query_id, part in cited.frame("citations").groupby("query_id", sort=False)
    }
    has_gold = dict(zip(per_question.index.tolist(), judged.tolist(), strict=True))
    grounded = dict(zip(per_question.index.tolist(), columns["groundedness"], strict=True))
    entries = {
        answer.query_id: {
            "outcome": OUTCOMES.index(answer.outcome),
            **_said(
                answer, verdicts.get(answer.query_id), judged=has_gold.get(answer.query_id, False)
            ),
            "strategy": strategy,
            "groundedness": grounded.get(answer.query_id),
        }
        for answer in from_artifact(made)
    }
    return Answered([entries.get(query_id) for query_id in runs.gold.queries["query_id"]], columns)


def _said(answer: Answer, verdicts: pd.DataFrame | None, *, judged: bool) -> dict[str, Any]:
    outgoing = Outgoing(answer)
    codes: Sequence[str] = [] if verdicts is None else verdicts["code"].tolist()
    correct: Sequence[bool] = [] if verdicts is None else verdicts["correct"].tolist()
    cited = []
    for span, quote, code, right in zip(
        answer.citations, outgoing.quotes, codes, correct, strict=True
    ):
        source, link = address(quote.source_url or "")
        section = (
            answer.evidence[span.evidence].chunk.section_id
            if 0 <= span.evidence < len(answer.evidence)
            else ""
        )
        cited.append(
            {
                "doc": name(quote.doc_id),
                "section": name(section),
                "quote": line(quote.text),
                "code": code,
                "correct": int(right) if judged else None,
                "link": link,
                "source": source,
            }
        )
    return {"text": line(outgoing.text, MAX_ANSWER), "citations": cited}
