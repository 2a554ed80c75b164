"""Answer measures stage: groundedness, citation figures, abstention, the retrieval-to-answer gap; faithfulness where it is switched on.

Belongs here: which answers and which evidence are measured. Definitions are `rag_eval.measures`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.evaluation.answer_frames import from_artifact
from rag_eval.evaluation.answer_steps import answers
from rag_eval.evaluation.citation_steps import citations
from rag_eval.evaluation.faithfulness_steps import faithfulness
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.measure_steps import BOOTSTRAP_SEED, Runs, number
from rag_eval.evaluation.trust_steps import admitted_chunks
from rag_eval.measures.answers import AnswerRecord, AnswerResults
from rag_eval.measures.answers import answer_measures as measure
from rag_eval.measures.groundedness import DocumentFrequencies, document_frequencies, groundedness
from rag_eval.measures.retrieval_gap import CODE, Gap, Purpose, retrieval_gaps
from rag_eval.records.answer_settings import Answers
from rag_eval.records.answers import Answer
from rag_eval.records.snippets import snippet
from rag_eval.reporting.outgoing import Outgoing
from rag_eval.storage.artifacts import Artifact

TARGETS = {
    "coverage": ">= 0.70",
    "citation_precision": ">= 0.85",
    "citation_recall": ">= 0.75",
    "citation_match_rate": ">= 0.95",
}
"""What the field asks for; gates ask for what the gold set says."""
UNCHECKED = ("failed", "contract_error_reply")
"""Outcomes that are no answers, so that none of them can leave the evidence unused."""
MAX_FLAGGED = 50


def figure(record: AnswerRecord) -> dict[str, Any]:
    """Write an answer measure as the report shows it."""
    reason = {"value_reason": record.reason} if record.reason else {}
    target = {"target": TARGETS[record.label]} if record.label in TARGETS else {}
    return {
        "name": record.label,
        "value": number(record.value),
        **reason,
        "ci_low": number(record.ci_low),
        "ci_high": number(record.ci_high),
        "n_attempted": record.n_attempted,
        "n_scored": record.n_scored,
        "n_failed": record.n_failed,
        "n_ineligible": record.n_ineligible,
        "n_units": record.n_units,
        "n_groups": record.n_groups,
        **target,
    }


def answer_measures(runs: Runs) -> Artifact | None:
    """Measure the answers; None where the gold set has no `answers`.

    Parts: per_question (frame: outcome, counts of citations, coverage, groundedness, supported share, gap and its reason), about (measures, gap,
    outcomes, codes, faithfulness).
    """
    config = runs.evaluation.config.answers
    return (
        None
        if config is None
        else runs.evaluation.once("answer measures", lambda: _answer_measures(runs, config))
    )


def _answer_measures(runs: Runs, config: Answers) -> Artifact:
    evaluation, made, cited = runs.evaluation, answers(runs), citations(runs)
    if made is None or cited is None:
        raise RuntimeError("no answers were made")
    found = from_artifact(made)
    judged = faithfulness(runs, config, found)
    key = evaluation.key(
        "answer_measures",
        made.key,
        cited.key,
        gold_variants(evaluation).key,
        config.purpose,
        judged,
    )

    def make() -> dict[str, Any]:
        with evaluation.progress.step("Measuring answers", len(found), "answers") as advance:
            frequencies = document_frequencies(
                pd.read_parquet(
                    admitted_chunks(evaluation).path("chunks.parquet"), columns=["text"]
                )["text"].tolist()
            )
            texts = [answer.text if answer.outcome == "answered" else "" for answer in found]
            evidence = [[item.chunk.text for item in answer.evidence] for answer in found]
            scored = groundedness(texts, evidence, frequencies)
            gaps = answer_gaps(found, config.purpose, frequencies)
            per_question = _per_question(
                found, cited.frame("per_question"), scored.value, scored.supported, gaps
            )
            advance(len(found))
        records = measure(_results(runs, found, per_question), BOOTSTRAP_SEED)
        return {"per_question": per_question, "about": _about(found, records, gaps, judged)}

    return evaluation.memo("answer_measures", key, make)


def answer_gaps(
    found: Sequence[Answer], purpose: Purpose, frequencies: DocumentFrequencies | None = None
) -> dict[int, Gap]:
    """FK019 on every answer, by its place in `found`; outcomes that are no answers (UNCHECKED) are left out."""
    checked = [at for at, answer in enumerate(found) if answer.outcome not in UNCHECKED]
    verdicts = retrieval_gaps(
        [found[at].text for at in checked],
        [[item.chunk.text for item in found[at].evidence] for at in checked],
        cites=[any(span.evidence >= 0 for span in found[at].citations) for at in checked],
        purposes=[purpose] * len(checked),
        frequencies=frequencies,
    )
    return dict(zip(checked, verdicts, strict=True))


def _per_question(
    found: list[Answer],
    counts: pd.DataFrame,
    value: np.ndarray,
    supported: np.ndarray,
    gaps: dict[int, Gap],
) -> pd.DataFrame:
    return counts.assign(
        outcome=[answer.outcome for answer in found],
        groundedness=value,
        supported=supported,
        gap=[gaps[at].violation if at in gaps else False for at in range(len(found))],
        gap_reason=[
            gaps[at].reason if at in gaps else answer.outcome for at, answer in enumerate(found)
        ],
    )


def _results(runs: Runs, found: list[Answer], frame: pd.DataFrame) -> AnswerResults:
    gold = runs.gold
    unknown = runs.evaluation.gold.layout == "recorded"
    known = (
        runs.evaluation.gold.places["has_flag"].to_numpy(dtype=bool)
        if unknown
        else np.ones(len(found), dtype=bool)
    )
    return AnswerResults(
        outcome=[answer.outcome for answer in found],
        codes=[tuple(dict.fromkeys(answer.codes)) for answer in found],
        answerable=gold.queries["answerable"].to_numpy(dtype=bool),
        known=known | (frame["n_gold"].to_numpy() > 0),
        group=gold.groups,
        **{
            name: frame[name].to_numpy()
            for name in (
                "n_cited",
                "n_valid",
                "n_correct",
                "n_gold",
                "coverage",
                "groundedness",
                "supported",
            )
        },
        n_matched=frame["n_gold_matched"].to_numpy(),
        tokens_in=np.zeros(len(found), dtype=np.int64),
        tokens_out=np.zeros(len(found), dtype=np.int64),
    )


def _about(
    found: list[Answer], records: list[AnswerRecord], gaps: dict[int, Gap], judged: dict[str, Any]
) -> dict[str, Any]:
    violations = [(found[at], gap.reason) for at, gap in gaps.items() if gap.violation]
    # an answer may repeat what only its evidence labels as a secret
    flagged = [
        {"query_id": answer.query_id, "reason": reason, "answer": snippet(Outgoing(answer).text)}
        for answer, reason in violations[:MAX_FLAGGED]
    ]
    outcomes: dict[str, int] = {}
    codes: dict[str, int] = {}
    for answer in found:
        outcomes[answer.outcome] = outcomes.get(answer.outcome, 0) + 1
        for code in dict.fromkeys(answer.codes):
            codes[code] = codes.get(code, 0) + 1
    return {
        "measures": [figure(record) for record in records if record.label != "cost_per_1k"],
        "gap": {
            "code": CODE,
            "severity": "warning",
            "n_checked": len(gaps),
            "n_flagged": len(violations),
            "flagged": flagged,
        },
        "outcomes": outcomes,
        "codes": codes,
        "faithfulness": judged,
    }
