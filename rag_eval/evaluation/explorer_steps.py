"""Explorer stage: what the page and the viewer show question by question, written once a run as parts that a browser reads one by one.

Belongs here: what the parts are made from and when they are kept. Their contents are the other `explorer_*` modules; what of them goes into the
HTML report is `explorer_slim`.
"""

from typing import Any

from rag_eval.evaluation.answer_measure_steps import answer_measures
from rag_eval.evaluation.answer_steps import answers
from rag_eval.evaluation.citation_steps import citations
from rag_eval.evaluation.claim_steps import miss_rate_claims
from rag_eval.evaluation.corpus_steps import corpus_snapshot
from rag_eval.evaluation.explorer_answers import answered
from rag_eval.evaluation.explorer_claims import stated
from rag_eval.evaluation.explorer_gold import gold_entries
from rag_eval.evaluation.explorer_marks import gold_marks
from rag_eval.evaluation.explorer_packing import SUMMARY_FILE, nullable, packed
from rag_eval.evaluation.explorer_previous import Previous, changes, identity, previous_run
from rag_eval.evaluation.explorer_questions import Material, question_parts
from rag_eval.evaluation.explorer_rankings import rankings
from rag_eval.evaluation.explorer_summary import summary_of, values_of
from rag_eval.evaluation.explorer_units import chunk_parts, unit_frame
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.stability_steps import stability_measures
from rag_eval.evaluation.trust_steps import admitted_chunks, evidence_trust
from rag_eval.storage.artifacts import Artifact

PRIORITY = "priority"
"""Array beside the parts: which texts go into the HTML report first (`explorer_rankings.Units`)."""


def explorer_bundle(runs: Runs) -> Artifact:
    """Write the explorer's parts.

    Parts: summary.json.gz, questions-NNNN.json.gz, chunks-NNNN.json.gz (published schemas `explorer-*.schema.json`), priority (array, by number of
    the unit). Where only the previous run is another one, all but the summary is shared with what was written before.
    """
    return runs.evaluation.once("explorer", lambda: _explorer_bundle(runs))


def _explorer_bundle(runs: Runs) -> Artifact:
    evaluation, previous = runs.evaluation, previous_run(runs)
    made = _without_previous(runs)

    def make() -> dict[str, Any]:
        shared = [
            *sorted(made.folder.glob("*.json.gz")),
            made.path(f"{PRIORITY}.npy"),
        ]  # not copied: each night has another run before it
        return {
            SUMMARY_FILE: packed(_with_previous(made.json("base"), previous, runs)),
            **{path.name: path for path in shared},
        }

    return evaluation.memo(
        "explorer", evaluation.key("explorer", made.key, identity(previous)), make
    )


def _with_previous(base: dict[str, Any], previous: Previous, runs: Runs) -> dict[str, Any]:
    change, reason = changes(previous, runs, values_of(runs))
    questions = {**base["questions"], "change": nullable(change)}
    return {
        **base,
        "previous": previous.run_id,
        "previous_reason": reason or None,
        "previous_comparable": previous.comparable,
        "previous_changes": list(previous.changed),
        "questions": questions,
    }


def _without_previous(runs: Runs) -> Artifact:
    """Everything that does not depend on the previous run. Parts: base (JSON), parts of questions and chunks, priority."""
    evaluation, config = runs.evaluation, runs.evaluation.config
    made_of = [gold_variants, corpus_snapshot, admitted_chunks, evidence_trust]
    measured = [
        stability_measures(runs),
        miss_rate_claims(runs),
        answers(runs),
        citations(runs),
        answer_measures(runs),
    ]
    keys = [
        *(step(evaluation).key for step in made_of),
        *(None if artifact is None else artifact.key for artifact in measured),
    ]
    about = [
        config.name,
        config.level,
        config.primary_strategy,
        runs.names,
        config.uncertainty.target,
        config.uncertainty.k,
        config.trust.configured,
    ]
    key = evaluation.key("explorer parts", keys, runs.keys, about)

    def make() -> dict[str, Any]:
        with evaluation.progress.step(
            "Writing the explorer", len(runs.gold.queries), "questions"
        ) as advance:
            parts = _parts(runs)
            advance(len(runs.gold.queries))
        return parts

    return evaluation.memo("explorer parts", key, make)


def _parts(runs: Runs) -> dict[str, Any]:
    gold, corpus = gold_variants(runs.evaluation), corpus_snapshot(runs.evaluation)
    tops, units = rankings(runs)
    claims, spoken = stated(runs, tops), answered(runs)
    frame, spans = unit_frame(runs, units), gold.frame("spans")
    marks = gold_marks(tops, units, runs.gold, frame, spans)
    entries = gold_entries(
        spans,
        corpus.frame("documents"),
        corpus.frame("sections"),
        gold.frame("qrels_section"),
        gold.frame("qrels_document"),
    )
    parts: dict[str, Any] = {
        "base": summary_of(runs, units, claims, spoken.columns),
        PRIORITY: units.priority,
    }
    return (
        parts
        | question_parts(runs, Material(tops, units, claims, entries, marks, spoken.entries))
        | chunk_parts(runs, units, frame)
    )
