"""Stage `retrieval_metrics_report`: the report, joined from the parts of all results."""

import datetime as dt
import shutil
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Final

from rag_eval import __version__
from rag_eval.core.errors import InputError, quoted
from rag_eval.core.records import Absent, Estimate, Record
from rag_eval.gates.gate import AcceptedRun, GateInputs
from rag_eval.gates.gate_report import GatePart, RunInputs
from rag_eval.gates.regression import with_delta_s
from rag_eval.gates.verdict import judge_gates
from rag_eval.measures.overlap import NamedGold
from rag_eval.measures.strategy_report import StrategyPart
from rag_eval.pipeline.answers import (
    ABORT_LOG,
    RAGAS_OFF,
    Answered,
    AnswerMeasures,
    AnswerSet,
    find_answered,
)
from rag_eval.pipeline.calibration import PICTURE, MissRateCalibration
from rag_eval.pipeline.claims import MissRateClaims
from rag_eval.pipeline.comparisons import load_baseline
from rag_eval.pipeline.corpus import (
    AdmittedChunks,
    CorpusChunks,
    CorpusSnapshot,
    EvidenceTrust,
    GoldVariants,
)
from rag_eval.pipeline.explorer import Explored, missed_sentences, write_explorer
from rag_eval.pipeline.exports import answer_files, evidence_lines, write_run_traces
from rag_eval.pipeline.history import (
    NO_PREVIOUS,
    changes,
    find_previous,
    keep_run,
    make_record,
    previous_part,
    readable_runs,
    run_inputs,
)
from rag_eval.pipeline.index import n_embedded
from rag_eval.pipeline.measures import RankingMeasures
from rag_eval.pipeline.miss_rates import CalibratedMissRates
from rag_eval.pipeline.misses import MissedQuestions
from rag_eval.pipeline.report import EVIDENCE_FILE, PAGES, TABLES, MetricsReport, publish
from rag_eval.pipeline.retrieval import StrategyRun
from rag_eval.pipeline.runner import Results, Stage, Work
from rag_eval.pipeline.scores import ScoredRuns, score_runs
from rag_eval.pipeline.slices import measure_slices
from rag_eval.pipeline.stability import StabilityMeasures
from rag_eval.pipeline.uncertain import NO_ANSWERS, UNCERTAIN_FILE
from rag_eval.reporting.exchange import StrategyRankings, exchange_files
from rag_eval.reporting.metrics_report import (
    MEASURE_COLUMNS,
    REPORT_FILE,
    dumps,
    finish,
    make_draft,
    write_csv,
)
from rag_eval.reporting.questions import SUMMARY_FILE, rank_missed, unpacked
from rag_eval.reporting.report import Embeddings, Report
from rag_eval.reporting.verdicts import VERDICT_FILES, verdict_rows, write_verdict
from rag_eval.storage.artifacts import Artifact, Parts
from rag_eval.storage.files import atomic_path, write_bytes, write_text
from rag_eval.storage.hashing import code_version, library_versions

# ---- The report.

REPORTED: Final = tuple(
    """corpus_snapshot corpus_chunks evidence_trust admitted_chunks gold_variants corpus_index runs
    ranking_measures stability_measures trust_measures answers citations answer_measures
    ragas_measures miss_rate_claims missed_questions miss_rate_calibration
    calibrated_miss_rates""".split()
)
"""The stages whose results the report joins, in the order of the graph."""


def _report_fields(work: Work, results: Results, runs: ScoredRuns) -> dict[str, Any]:
    """Join the parts of all results, and add what is about the run as a whole."""
    config, settings, fields = work.config, work.settings, results.join_parts(work)
    strategies = {
        name: StrategyPart.model_validate(part) for name, part in fields["strategies"].items()
    }
    primary, use, trust = strategies[config.primary_strategy], _embeddings(results), fields["trust"]
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
        "slices": measure_slices(work, runs, results.find(AnswerMeasures)),
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


def _embeddings(results: Results) -> Embeddings:
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


def _judge(
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
        trust_factors=draft.trust.factors or (),
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


# ---- The stage: the report and every file beside it.

EXPORTED = {".parquet", ".trec", ".jsonl", ".log"}
ANSWER_FILES: Final = (
    *(f"{name}.jsonl" for name in ("answers", "citations", "preflights", "rejected")),
    *("auditable-answers.jsonl", "events.log", "traces.log"),
)
REPLACED: Final = (
    *("run-*.trec", PICTURE, *PAGES, f"{TABLES}/*.csv", f"{TABLES}/*.tex"),
    *(*ANSWER_FILES, *VERDICT_FILES, ABORT_LOG),
)
"""Files that every run writes anew, or removes."""


@Stage(
    "retrieval_metrics_report",
    "reporting",
    given=REPORTED,
    stores=("baselines", "kept_runs", "traces", "reports"),
    live=True,
)
def write_report(work: Work, **inputs: Any) -> MetricsReport:
    """Write retrieval-metrics.json and its tables. Every figure carries its index_hash and rev.

    The report comes last. The home also stores the run, so that later runs can be compared with it.
    """
    results, folder, home = Results(inputs), work.evaluation.reports, work.evaluation.home
    gold, admitted = results.get(GoldVariants), results.get(AdmittedChunks)
    runs = score_runs(work.config, gold, admitted, results.by_strategy(StrategyRun))
    ranking, stability = results.get(RankingMeasures), results.get(StabilityMeasures)
    draft = make_draft(_report_fields(work, results, runs), dt.datetime.now(dt.UTC))
    plain = finish(draft, _judge(work, draft, ranking, stability, runs.gold.named_gold)).dump()
    now = make_record(work.config.name, {}, plain)
    previous = find_previous(home, now, runs.gold)
    explored = Explored(
        runs,
        results.get(CorpusSnapshot),
        results.get(CorpusChunks),
        results.get(EvidenceTrust),
        stability,
        results.get(MissRateClaims),
        results.get(MissedQuestions),
        find_answered(results),
    )
    explorer = write_explorer(work, explored, previous)
    summary = unpacked(explorer.path(SUMMARY_FILE).read_bytes())
    sentences = missed_sentences(explored.missed_questions.missed)
    plain |= {
        "previous": None,
        "look_first": rank_missed(
            summary,
            runs.gold.groups,
            {
                query_id: sentence
                for (name, query_id), sentence in sentences.items()
                if name == work.config.primary_strategy
            },
        ),
    }
    if previous is None:
        plain["previous_reason"] = NO_PREVIOUS
    else:
        plain["previous"] = previous_part(previous, now, runs.gold, ranking.per_query)
    report = Report.model_validate(plain)
    plain = report.dump()
    exports = _exports(work, runs, ranking, stability, explored.answered)
    sources = [
        *(exports.path(name) for name in exports.files if Path(name).suffix in EXPORTED),
        results.get(CalibratedMissRates).artifact.path(UNCERTAIN_FILE),
        *filter(None, [results.get(MissRateCalibration).picture]),
    ]
    work.evaluation.lock.check()
    for source in sources:
        with atomic_path(folder / source.name) as partial:
            shutil.copyfile(source, partial)
    lines = evidence_lines(explored.evidence_trust.trust, report.trust.as_of)
    write_bytes(folder / EVIDENCE_FILE, lines)
    measures = [
        {"strategy": part.name, **one.dump()} for part in report.strategies for one in part.measures
    ]
    write_csv(folder / "measures.csv", MEASURE_COLUMNS, measures)
    keys = results.artifact_keys | {"explorer": explorer.key, "exports": exports.key}
    keep_run(home, now, keys, plain)
    # This run may end before it writes its verdict and page, so none of an earlier run may stay.
    _remove(folder, {source.name for source in sources}, *REPLACED)
    write_text(folder / REPORT_FILE, dumps(plain))
    write_verdict(verdict_rows(report, work.config.name), folder)
    trace_error = write_run_traces(work, results.find(AnswerSet), runs, stability, report)
    files = [path for path in folder.rglob("[!.]*") if path.is_file()]
    files.sort(key=lambda path: (path.name == REPORT_FILE, path))
    publish(work.evaluation, files, alone=True)
    return MetricsReport(
        content_hash=report.content_hash,
        report=report,
        explorer=explorer.key,
        folder=str(folder.resolve()),
        trace_error=trace_error,
    )


def _remove(folder: Path, kept: Container[str], *patterns: str) -> None:
    for pattern in patterns:
        for path in folder.glob(pattern):
            if path.name not in kept:
                path.unlink(missing_ok=True)


def _exports(
    work: Work,
    runs: ScoredRuns,
    ranking: RankingMeasures,
    stability: StabilityMeasures,
    answered: Answered | None,
) -> Artifact:
    """Make the files that other tools read, once."""
    gold = runs.gold_variants

    def make() -> Parts:
        rankings = {
            name: StrategyRankings(run.run, runs.units(name), runs.first_seed(name))
            for name, run in runs.runs.items()
        }
        files = exchange_files(ranking.per_query, gold.qrels_document, gold.variants, rankings)
        return files if answered is None else files | answer_files(answered, stability, runs)

    identity = [ranking.id, gold.id, runs.admitted_chunks.id, stability.id]
    identity += [run.id for run in runs.runs.values()]
    return work.keep("exports", [*identity, answered and answered.ids], make)
