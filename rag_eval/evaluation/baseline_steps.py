"""A run beside the accepted baseline: what drifted, and whether the primary strategy fell."""

from typing import Any

from rag_eval.evaluation.baselines import Baseline, load_baseline
from rag_eval.evaluation.corpus_steps import corpus_chunks, corpus_snapshot
from rag_eval.evaluation.drift import drift, snapshot
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.measure_steps import Runs, ranking_measures
from rag_eval.evaluation.stability_steps import stability_measures
from rag_eval.evaluation.trust_steps import admitted_chunks
from rag_eval.gates.compared_runs import measured_run, with_delta_s
from rag_eval.gates.regression import GATE, regression_gates
from rag_eval.gates.verdicts import GateResult, is_configured, is_required
from rag_eval.records.problems import InputError, quoted


def baseline(runs: Runs) -> tuple[Baseline | None, str]:
    """Return the accepted baseline of this gold set, read once; and what is wrong with it where it cannot be used: a report must not wait for that."""
    evaluation = runs.evaluation

    def load() -> tuple[Baseline | None, str]:
        try:
            return load_baseline(evaluation.settings.home, evaluation.config.name), ""
        except InputError as error:
            return None, quoted(error.problems[0].message, 300)

    return evaluation.once("baseline", load)


def drift_part(runs: Runs, body: dict[str, Any]) -> dict[str, Any]:
    """Return the part `drift` of the report."""
    accepted, damaged = baseline(runs)
    if damaged:
        return {"value": None, "reason": f"the baseline cannot be used: {damaged}"}
    evaluation = runs.evaluation
    gold, documents = gold_variants(evaluation), corpus_snapshot(evaluation).frame("documents")
    chunks = corpus_chunks(evaluation).frame("chunks"), admitted_chunks(evaluation).frame("chunks")
    return drift(
        accepted,
        snapshot(documents, gold.frame("qrels_document"), gold.frame("spans"), chunks),
        body,
    )


def regression_results(runs: Runs, body: dict[str, Any]) -> list[GateResult]:
    """Judge this run against the baseline, where the gold set asks for it."""
    accepted, damaged = baseline(runs)
    gates = runs.evaluation.config.gates
    if damaged and is_configured(gates, GATE):
        required = is_required(gates, GATE)
        return [
            GateResult(
                f"{GATE}.{measure}",
                GATE,
                "insufficient_evidence",
                "baseline_damaged",
                {"measure": measure, "reason": f"the baseline cannot be used: {damaged}"},
                required,
            )
            for measure in gates.regression
        ]
    per_query = with_delta_s(
        ranking_measures(runs).frame("per_query"), stability_measures(runs).frame("per_run")
    )
    return regression_gates(
        runs.evaluation.config,
        None if accepted is None else accepted.measured,
        measured_run(body, per_query),
    )
