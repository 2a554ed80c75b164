"""Join the parts of all results to a report, judge its gates, and share its files."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from rag_eval import __version__
from rag_eval.core.errors import InputError, quoted
from rag_eval.core.records import Absent, Estimate, Record
from rag_eval.gates.gate import AcceptedRun, GateInputs, GatePart, RunInputs
from rag_eval.gates.verdict import judge_gates, with_delta_s
from rag_eval.measures.overlap import NamedGold
from rag_eval.measures.strategy_figures import StrategyPart
from rag_eval.pipeline.comparisons import load_baseline
from rag_eval.pipeline.corpus import AdmittedChunks, GoldVariants
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.history import changes, readable_runs, run_inputs
from rag_eval.pipeline.measure_stages import (
    NO_ANSWERS,
    RAGAS_OFF,
    RankingMeasures,
    StabilityMeasures,
)
from rag_eval.pipeline.open_strategies import n_embedded
from rag_eval.pipeline.runner import Result, Results, Work, json_part
from rag_eval.pipeline.runs import StrategyRun
from rag_eval.reporting.report import REPORT_FILE, Embeddings, Report
from rag_eval.storage.hashing import code_version, library_versions
from rag_eval.storage.home import atomic_path

# ---- The report.

REPORTED: Final = tuple(
    """corpus_snapshot corpus_chunks evidence_trust admitted_chunks gold_variants corpus_index runs
    ranking_measures stability_measures trust_measures answers citations answer_measures
    ragas_measures miss_rate_claims missed_questions miss_rate_calibration
    calibrated_miss_rates""".split()
)
"""The stages whose results the report joins, in the order of the graph."""


def join_fields(work: Work, results: Results) -> dict[str, Any]:
    """Join the parts of all results, and add what is about the run as a whole."""
    config, settings, fields = work.config, work.settings, results.join_parts(work)
    strategies = {
        name: StrategyPart.model_validate(part) for name, part in fields["strategies"].items()
    }
    primary, use, trust = (
        strategies[config.primary_strategy],
        count_embedded(results),
        fields["trust"],
    )
    fields["index"] |= {"hash": primary.index_hash, "embed_model": primary.embed_model}
    return fields | {
        "strategy": primary.name,
        "recallAt10": primary.measure("recall_at_10", config.level).value,
        "mrr": primary.measure("mrr", config.level).value,
        "cacheHitRate": max(0.0, 1 - use.embedded / use.needed),
        "version": __version__,
        "code": {"version": code_version(), "libraries": library_versions()},
        "features": {
            "FEATURE_HYBRID_RETRIEVAL": settings.feature_hybrid_retrieval,
            "FEATURE_RAGAS_EVAL": settings.feature_ragas_eval,
        },
        "evaluation": {
            **{name: getattr(config, name) for name in ("k", "depth", "level")},
            "primary": config.primary_strategy,
            "partial": work.evaluation.partial,
            "known": work.evaluation.known,
        },
        "strategies": list(strategies.values()),
        "embeddings": use,
        "poisonedBlocked": trust.poisoning.n_quarantined,
        "gates": [],
        **_headline("avgTrustScore", trust.retrieved[primary.name].avg_trust),
        **_answer_fields(fields),
    }


def _answer_fields(fields: Mapping[str, Any]) -> dict[str, object]:
    """Return the headline figures of answers; without answers, their parts with the reason."""
    if "answers" not in fields:
        absent, headlines = Absent(reason=NO_ANSWERS), {"groundedness": None, "faithfulness": None}
        reasons = {"groundedness_reason": NO_ANSWERS, "faithfulness_reason": RAGAS_OFF}
        return {"answers": absent, "citations": absent, **headlines, **reasons}
    answers = fields["answers"]
    groundedness = next(part for part in answers["measures"] if part.name == "groundedness")
    return _headline("faithfulness", answers["faithfulness"]) | _headline(
        "groundedness", groundedness
    )


def _headline(name: str, figure: Estimate) -> dict[str, object]:
    """Return a figure for the top of the report, with the reason when the value is missing."""
    reason = {} if figure.value is not None else {f"{name}_reason": figure.why["value"]}
    return {name: figure.value, **reason}


def count_embedded(results: Results) -> Embeddings:
    """Count the texts that needed a vector, and the texts without a cached vector."""
    models, expanded = {results.get(StabilityMeasures).about.embedding}, 0
    for run in results.by_strategy(StrategyRun).values():
        models.add(run.about.rerank_model)
        if not run.has_own_units:
            models.add(run.about.embed_model)
        if run.expansions is not None and run.about.embed_model:
            expanded += len(run.expansions)
    models.discard("")
    admitted = results.get(AdmittedChunks)
    texts = admitted.about.n_chunks + len(set(results.get(GoldVariants).texts))
    return Embeddings(
        models=sorted(models),
        needed=len(models) * texts + expanded,
        embedded=n_embedded(admitted),
    )


# ---- The baseline and the gates.


def judge_draft(
    work: Work,
    draft: Report,
    ranking: RankingMeasures,
    stability: StabilityMeasures,
    gold: NamedGold,
) -> list[GatePart]:
    """Judge the gates on a report that lacks them.

    A damaged baseline raises no error here, because the report must not fail.
    """
    config, plain = work.config, draft.dump()
    accepted, fault = None, ""
    try:
        baseline = load_baseline(work.evaluation.home, config.name)
        if baseline is not None:
            now = RunInputs.model_validate(run_inputs(plain))
            changed = changes(baseline.run, now)
            accepted = AcceptedRun(baseline.run.run_id, baseline.per_query, changed)
    except InputError as error:
        fault = quoted(error.problems[0].message, 300)
    inputs = GateInputs(
        config=config,
        figures=figures_for_gates(draft),
        answers=plain["answers"],
        trust=plain["trust"]["retrieved"],
        n_chunks=draft.trust.poisoning.n_chunks,
        n_quarantined=draft.trust.poisoning.n_quarantined,
        gold=gold,
        per_query=with_delta_s(ranking.per_query, stability.per_run),
        baseline=accepted,
        baseline_fault=fault,
        is_first=next(readable_runs(work.evaluation.home, config.name), None) is None,
    )
    return judge_gates(inputs)


def figures_for_gates(report: Report) -> dict[str, Mapping[str, object]]:
    """Collect all figures that gates compare with floors, as name -> JSON values."""
    primary, level = report.primary, report.evaluation.level
    stability = report.stability.strategies[primary.name]
    records: dict[str, Record] = {
        record.name: record for record in primary.measures if record.level == level
    }
    records |= {
        "delta_s": stability.delta_s,
        "avg_trust_score": report.trust.retrieved[primary.name].avg_trust,
        "convergent_hit_share": stability.convergent_and_hit,
    }
    cost = primary.cost_per_1k
    for part in (report.answers, report.citations):
        if not isinstance(part, Absent):
            records |= {record.name: record for record in part.measures}
    if not isinstance(report.answers, Absent):
        records["faithfulness"] = report.answers.faithfulness
        spent = report.answers.usage.get("cost_per_1k")
        if cost is not None and isinstance(spent, float):
            cost += spent
    figures: dict[str, Mapping[str, object]] = {
        **{name: record.dump() for name, record in records.items()},
        "cost_per_1k": {"value": cost, "reason": primary.why.get("cost_per_1k", "")},
        "cache_hit_rate": {"value": report.cacheHitRate},
    }
    for at in ("p50", "p95", "p99"):
        figures[f"latency_{at}_ms"] = {"value": getattr(primary.latency_ms, at)}
    return figures


# ---- The report as the result of its stage, and its files in the folder of reports.

PAGE: Final = "index.html"
EVIDENCE_FILE = "evidence-trust.jsonl"


class MetricsReport(Result):
    """The report of a run. Only `content_hash` is part of the identity: equal inputs repeat it.

    Attributes
    ----------
    explorer
        Key of the explorer's parts.
    trace_error
        Reason why the traces were not written; empty when they were.
    folder
        Folder of the report and its files.
    """

    shown = ()
    content_hash: str = json_part()
    report: Report = json_part(volatile=True)
    explorer: str = json_part(volatile=True)
    trace_error: str = json_part(volatile=True)
    folder: str = json_part(volatile=True)

    def describe(self) -> dict[str, object]:
        """Show also the headline figures, the gates and the comparisons."""
        names = "run_id strategy recallAt10 mrr cacheHitRate gates comparisons look_first".split()
        report = self.report.dump()
        return super().describe() | {name: report.get(name) or "none" for name in names}


def publish(evaluation: Evaluation, files: Iterable[Path], *, alone: bool = False) -> None:
    """Share the files, and copy those of the primary gold set to the top of the reports."""
    evaluation.home.share(evaluation.shared_reports, evaluation.reports, files, alone=alone)
    if not evaluation.is_primary:
        return
    top = evaluation.settings.reports
    # Neither may stand beside the report of another run.
    for name in (PAGE, EVIDENCE_FILE):
        (top / name).unlink(missing_ok=True)
    for name in (REPORT_FILE, PAGE, EVIDENCE_FILE):
        if (evaluation.reports / name).is_file():
            with atomic_path(top / name) as partial:
                shutil.copy2(evaluation.reports / name, partial)  # an equal file has an equal time
