"""A run beside the accepted baseline: what drifted, and whether the primary strategy fell."""

from typing import Any

from rag_eval.evaluation.baselines import Baseline, load_baseline
from rag_eval.evaluation.corpus_steps import corpus_snapshot
from rag_eval.evaluation.drift import drift, snapshot
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.measure_steps import Runs, ranking_measures
from rag_eval.evaluation.stability_steps import stability_measures
from rag_eval.gates.compared_runs import measured_run, with_delta_s
from rag_eval.gates.regression import regression_gates
from rag_eval.gates.verdicts import GateResult


def baseline(runs: Runs) -> Baseline | None:
    """Return the accepted baseline of this gold set, read once."""
    evaluation = runs.evaluation
    return evaluation.once("baseline", lambda: load_baseline(evaluation.settings.home, evaluation.config.name))


def drift_part(runs: Runs, body: dict[str, Any]) -> dict[str, Any]:
    """Return the part `drift` of the report."""
    accepted = baseline(runs)
    gold, documents = gold_variants(runs.evaluation), corpus_snapshot(runs.evaluation).frame("documents")
    return drift(accepted, snapshot(documents, gold.frame("qrels_document"), gold.frame("spans")), body)


def regression_results(runs: Runs, body: dict[str, Any]) -> list[GateResult]:
    """Judge this run against the baseline, where the gold set asks for it."""
    accepted = baseline(runs)
    per_query = with_delta_s(ranking_measures(runs).frame("per_query"), stability_measures(runs).frame("per_run"))
    return regression_gates(runs.evaluation.config, None if accepted is None else accepted.measured, measured_run(body, per_query))
