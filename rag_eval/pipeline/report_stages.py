"""Stages of the report: the report itself, its page, its record in MLflow, and the verdict."""

import datetime as dt
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from rag_eval import __version__
from rag_eval.core.errors import InputError, quoted
from rag_eval.core.records import Absent, Estimate, Record
from rag_eval.core.settings import VIEW_PORT
from rag_eval.gates.gate import AcceptedRun, GateInputs, GatePart, RunInputs
from rag_eval.gates.verdict import judge_gates, required_failures, with_delta_s
from rag_eval.measures.overlap import NamedGold
from rag_eval.measures.strategy_figures import StrategyPart
from rag_eval.pipeline.answer_stages import (
    ABORT_LOG,
    NO_ANSWERS,
    RAGAS_OFF,
)
from rag_eval.pipeline.corpus import (
    AdmittedChunks,
    CorpusChunks,
    CorpusSnapshot,
    EvidenceTrust,
    GoldVariants,
)
from rag_eval.pipeline.explorer import Explored, missed_sentences, write_explorer
from rag_eval.pipeline.exports import (
    Answered,
    answer_files,
    evidence_lines,
    write_run_traces,
)
from rag_eval.pipeline.history import (
    NO_PREVIOUS,
    changes,
    find_previous,
    load_baseline,
    make_record,
    readable_runs,
    run_inputs,
)
from rag_eval.pipeline.measure_stages import MissedQuestions, RankingMeasures, StabilityMeasures
from rag_eval.pipeline.miss_rate_stages import CalibratedMissRates, MissRateClaims
from rag_eval.pipeline.retrieval import count_new_vectors
from rag_eval.pipeline.runner import WHOLE, Result, Results, Stage, Work, json_part
from rag_eval.pipeline.strategy_runs import ScoredRuns, StrategyRun, score_runs
from rag_eval.reporting.exchange import StrategyRankings, exchange_files
from rag_eval.reporting.mlflow import record
from rag_eval.reporting.page import build
from rag_eval.reporting.questions import SUMMARY_FILE, rank_missed, slim, unpacked
from rag_eval.reporting.report import REPORT_FILE, Embeddings, Report, dumps
from rag_eval.reporting.verdicts import VERDICT_FILES, verdict_rows
from rag_eval.storage.artifacts import Artifact, Parts
from rag_eval.storage.hashing import code_version, library_versions, text_hash
from rag_eval.storage.home import atomic_path, file_states, write_bytes, write_text
from rag_eval.storage.secrets import without_secrets
from rag_eval.uncertainty.claims import UNCERTAIN_FILE

REPORTED: Final = tuple(
    """corpus_snapshot corpus_chunks evidence_trust admitted_chunks gold_variants corpus_index runs
    ranking_measures stability_measures trust_measures answers citations answer_measures
    ragas_measures miss_rate_claims missed_questions miss_rate_calibration
    calibrated_miss_rates""".split()
)
"""The stages whose results the report joins, in the order of the graph."""
PAGE: Final = "index.html"
EVIDENCE_FILE: Final = "evidence-trust.jsonl"
EXPORTED: Final = {".parquet", ".trec", ".gz", ".jsonl", ".log"}
REPLACED: Final = (
    *("run-*.trec*", PAGE, "events.log", "traces.log", "auditable-answers.jsonl"),
    *(f"{name}.jsonl" for name in ("answers", "citations", "preflights", "rejected")),
    *(*VERDICT_FILES, ABORT_LOG),
)
"""Files that every run writes anew, or removes."""
BYTES_PER_1000: Final = 3_000_000
"""Largest size of a page in bytes per 1,000 questions. Smaller gold sets have the same limit."""


# ---- The fields of the report, and its gates.


def _join_fields(work: Work, results: Results) -> dict[str, Any]:
    """Join the parts of all results, and add what is about the run as a whole."""
    config, settings, fields = work.config, work.settings, results.join_parts(work)
    strategies = {
        name: StrategyPart.model_validate(part) for name, part in fields["strategies"].items()
    }
    primary, trust = strategies[config.primary_strategy], fields["trust"]
    embeddings = _count_embedded(results)
    fields["index"] |= {"hash": primary.index_hash, "embed_model": primary.embed_model}
    return fields | {
        "strategy": primary.name,
        "recallAt10": primary.measure("recall_at_10", config.level).value,
        "mrr": primary.measure("mrr", config.level).value,
        "cacheHitRate": max(0.0, 1 - embeddings.embedded / embeddings.needed),
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
        "embeddings": embeddings,
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


def _count_embedded(results: Results) -> Embeddings:
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
        embedded=count_new_vectors(admitted),
    )


def _judge_draft(
    work: Work,
    draft: Report,
    ranking: RankingMeasures,
    stability: StabilityMeasures,
    gold: NamedGold,
) -> list[GatePart]:
    """Judge the gates on a report without gates; a damaged baseline does not end the run."""
    config, plain, home = work.config, draft.dump(), work.evaluation.home
    accepted, fault = None, ""
    try:
        baseline = load_baseline(home, config.name)
        if baseline is not None:
            changed = changes(baseline.run, RunInputs.model_validate(run_inputs(plain)))
            accepted = AcceptedRun(baseline.run.run_id, baseline.per_query, changed)
    except InputError as error:
        fault = quoted(error.problems[0].message, 300)
    inputs = GateInputs(
        config=config,
        figures=_figures_for_gates(draft),
        answers=plain["answers"],
        trust=plain["trust"]["retrieved"],
        n_chunks=draft.trust.poisoning.n_chunks,
        n_quarantined=draft.trust.poisoning.n_quarantined,
        gold=gold,
        per_query=with_delta_s(ranking.per_query, stability.per_run),
        baseline=accepted,
        baseline_fault=fault,
        is_first=next(readable_runs(home, config.name), None) is None,
    )
    return judge_gates(inputs)


def _figures_for_gates(report: Report) -> dict[str, Mapping[str, object]]:
    """Collect all figures that gates compare with floors, as name -> JSON values."""
    primary, level = report.primary, report.evaluation.level
    stability = report.stability.strategies[primary.name]
    records: dict[str, Record] = {
        figure.name: figure for figure in primary.measures if figure.level == level
    }
    records |= {
        "delta_s": stability.delta_s,
        "avg_trust_score": report.trust.retrieved[primary.name].avg_trust,
        "convergent_hit_share": stability.convergent_and_hit,
    }
    cost = primary.cost_per_1k
    for part in (report.answers, report.citations):
        if not isinstance(part, Absent):
            records |= {figure.name: figure for figure in part.measures}
    if not isinstance(report.answers, Absent):
        records["faithfulness"] = report.answers.faithfulness
        spent = report.answers.usage.get("cost_per_1k")
        if cost is not None and isinstance(spent, float):
            cost += spent
    latency = primary.latency_ms
    return {
        **{name: figure.dump() for name, figure in records.items()},
        "cost_per_1k": {"value": cost, "reason": primary.why.get("cost_per_1k", "")},
        "cache_hit_rate": {"value": report.cacheHitRate},
        **{f"latency_{at}_ms": {"value": getattr(latency, at)} for at in ("p50", "p95", "p99")},
    }


# ---- The stage: the report and every file beside it.


class MetricsReport(Result):
    """The report of a run. Only `content_hash` is part of the identity: equal inputs repeat it.

    `explorer` is the key of the explorer's parts, and `folder` the folder of the report's files.
    `trace_error` is the reason why the traces were not written; empty when they were.
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


def _identify_report(work: Work, **inputs: Any) -> object:
    """Identify what the report says beside its inputs, and the report in the folder.

    The run before decides what is compared. Of the files of the folder, pages belong to a later
    stage, and the others are written with the report.
    """
    evaluation, settings = work.evaluation, work.settings
    before = next(readable_runs(evaluation.home, work.config.name), None)
    try:
        baseline = load_baseline(evaluation.home, work.config.name)
        accepted = "" if baseline is None else baseline.run.run_id
    except InputError as error:
        accepted = error.problems[0].message
    places = [evaluation.reports] + [settings.reports] * evaluation.is_primary
    return {
        "run": None if before is None else before.run_id,
        "baseline": accepted,
        "embedded": _count_embedded(Results(inputs)).embedded,
        "code": code_version(),
        "evaluation": [evaluation.partial, evaluation.known],
        "files": [file_states([place / REPORT_FILE, place / EVIDENCE_FILE]) for place in places],
    }


@Stage(
    "retrieval_metrics_report",
    "reporting",
    given=REPORTED,
    stores=("baselines", "kept_runs", "traces", "reports"),
    reads=(*WHOLE, "settings.feature_hybrid_retrieval", "settings.feature_ragas_eval"),
    outside=_identify_report,
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
    answered, missed = Answered.find(results), results.get(MissedQuestions).missed
    draft = Report.draft(_join_fields(work, results), dt.datetime.now(dt.UTC))
    gates = _judge_draft(work, draft, ranking, stability, runs.gold.named_gold)
    plain = draft.finish(gates).dump()
    now = make_record(work.config.name, {}, plain)
    previous = find_previous(home, now, runs.gold, ranking.per_query)
    explored = Explored(
        runs,
        results.get(CorpusSnapshot),
        results.get(CorpusChunks),
        results.get(EvidenceTrust),
        results.get(MissRateClaims),
        results.get(MissedQuestions),
        answered,
    )
    explorer = write_explorer(work, explored, previous)
    lost = missed_sentences(missed[missed["strategy"] == work.config.primary_strategy])
    plain["look_first"] = rank_missed(
        unpacked(explorer.path(SUMMARY_FILE).read_bytes()),
        runs.gold.groups,
        {query_id: sentence for (_, query_id), sentence in lost.items()},
    )
    if previous is None:
        plain |= {"previous": None, "previous_reason": NO_PREVIOUS}
    else:
        plain["previous"] = previous.part
    report = Report.model_validate(plain)
    plain = report.dump()
    exports = _exports(work, runs, ranking, stability, answered)
    sources = [
        *(exports.path(name) for name in exports.files if Path(name).suffix in EXPORTED),
        results.get(CalibratedMissRates).artifact.path(UNCERTAIN_FILE),
    ]
    work.evaluation.lock.check()
    for source in sources:
        with atomic_path(folder / source.name) as partial:
            shutil.copyfile(source, partial)
    trust = explored.evidence_trust.trust
    write_bytes(folder / EVIDENCE_FILE, evidence_lines(trust, report.trust.as_of))
    keys = results.artifact_keys | {"explorer": explorer.key, "exports": exports.key}
    now.keep(home, keys, plain)
    # This run may end before it writes its verdict and page, so none of an earlier run may stay.
    written = {source.name for source in sources}
    for path in (path for pattern in REPLACED for path in folder.glob(pattern)):
        if path.name not in written:
            path.unlink(missing_ok=True)
    write_text(folder / REPORT_FILE, dumps(plain))
    verdict_rows(report, work.config.name).write(folder)
    answers = None if answered is None else answered.answers
    trace_error = write_run_traces(work, answers, runs, stability, report)
    files = [path for path in folder.rglob("[!.]*") if path.is_file()]
    files.sort(key=lambda path: (path.name == REPORT_FILE, path))
    _publish(work, files, alone=True)
    return MetricsReport(
        content_hash=report.content_hash,
        report=report,
        explorer=explorer.key,
        folder=str(folder.resolve()),
        trace_error=trace_error,
    )


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


def _publish(work: Work, files: Iterable[Path], *, alone: bool = False) -> None:
    """Share the files, and copy those of the primary gold set to the top of the reports."""
    evaluation, top = work.evaluation, work.settings.reports
    evaluation.home.share(evaluation.shared_reports, evaluation.reports, files, alone=alone)
    if not evaluation.is_primary:
        return
    # Neither may stand beside the report of another run.
    for name in (PAGE, EVIDENCE_FILE):
        (top / name).unlink(missing_ok=True)
    for name in (REPORT_FILE, PAGE, EVIDENCE_FILE):
        if (evaluation.reports / name).is_file():
            with atomic_path(top / name) as partial:
                shutil.copy2(evaluation.reports / name, partial)  # an equal file has an equal time


# ---- The page of a finished report.


class HtmlReport(Result):
    """Place of the page; empty when the settings want no page."""

    content_hash: str = json_part()
    about: dict[str, str | int] = json_part(volatile=True)


@Stage(
    "html_report",
    "reporting",
    stores=("reports",),
    reads=("settings.html_report",),
    outside=lambda work, retrieval_metrics_report: [
        retrieval_metrics_report.report.run_id,
        file_states([work.evaluation.reports / PAGE]),
    ],
    live=True,
)
def write_page(work: Work, retrieval_metrics_report: MetricsReport) -> HtmlReport:
    """Write index.html, which opens from disk."""
    report, path = retrieval_metrics_report.report, work.evaluation.reports / PAGE
    if not work.settings.html_report:
        return HtmlReport(content_hash=report.content_hash, about={})
    with work.progress.step("Writing the HTML report"):
        questions = work.evaluation.store.get("explorer", retrieval_metrics_report.explorer)
        write_text(path, built_page(report.dump(), questions))
    _publish(work, [path])
    places: dict[str, str | int] = {
        "page": str(path.resolve()),
        "page_bytes": path.stat().st_size,
        "viewer": f"http://127.0.0.1:{VIEW_PORT}/runs/{report.run_id}/",
    }
    return HtmlReport(content_hash=report.content_hash, about=places)


def built_page(report: Mapping[str, Any], bundle: Artifact | None) -> str:
    """Build the page of a report with the questions of a stored bundle."""
    limit = BYTES_PER_1000 * max(1000, report["gold"]["n_queries"]) // 1000
    # `dumps` sorts the keys, so a report from memory gives the same page as a report from a file.
    report = json.loads(dumps(report))
    return build(report, None if bundle is None else lambda left: slim(bundle, left), limit)


# ---- The record in MLflow.

RECORDED: Final = (
    *(REPORT_FILE, PAGE, "per-query.parquet", EVIDENCE_FILE),
    *("answers.jsonl", "auditable-answers.jsonl", "citations.jsonl"),
)
"""Files that MLflow stores for every run."""


class MlflowRecord(Result):
    """The run in MLflow, or the reason why MLflow did not record the run.

    `runs_page` is the address of the runs of this gold set in the MLflow UI; empty after an error.
    """

    mlflow_run: str = json_part()
    runs_page: str = json_part(volatile=True)
    run_id: str = json_part(volatile=True)
    error: str = json_part()


@Stage(
    "mlflow_record",
    "reporting",
    stores=("reports", "mlflow"),
    after=("html_report",),
    outside=lambda work, retrieval_metrics_report: [
        retrieval_metrics_report.report.run_id,
        text_hash(work.settings.mlflow_uri),
    ],
    failure=lambda result: result.error,
)
def record_in_mlflow(work: Work, retrieval_metrics_report: MetricsReport) -> MlflowRecord:
    """Record the report in MLflow. A failure of the tracking store does not affect the report."""
    report, folder = retrieval_metrics_report.report, work.evaluation.reports
    uri, run, page, error = work.settings.mlflow_uri, "", "", ""
    home, tags = work.evaluation.home, dict(work.evaluation.tags)
    paths = home.take(work.evaluation.shared_reports, folder) or folder.glob("*")
    here = {path.name: path for path in paths if path.is_file() and path.parent == folder}
    files = [here[name] for name in RECORDED if name in here]
    try:
        run, page = record(
            report, work.config.name, uri, files, home.folder / "mlartifacts", tags=tags
        )
    except Exception as failure:  # noqa: BLE001 - a tracking store may raise any exception
        reason = quoted(without_secrets(f"{type(failure).__name__}: {failure}", uri), 400)
        error = f"MLflow did not record this run ({reason}); the report is complete"
    recorded = MlflowRecord(mlflow_run=run, runs_page=page, run_id=report.run_id, error=error)
    recorded.is_lasting = not error
    return recorded


# ---- The verdict of the gates.


class GateVerdict(Result):
    """The gates of a report, and the ids of the required gates that did not pass."""

    shown = ("failed", "gates")
    content_hash: str = json_part()
    failed: list[str] = json_part()
    run_id: str = json_part(volatile=True)
    gates: list[GatePart] = json_part(volatile=True)


@Stage(
    "gate_verdict",
    "reporting",
    after=("html_report", "mlflow_record"),
    outside=lambda _, retrieval_metrics_report: retrieval_metrics_report.report.run_id,
    failure=lambda result: (
        f"required gates did not pass: {', '.join(result.failed)}" if result.failed else ""
    ),
)
def judge_report(_: Work, retrieval_metrics_report: MetricsReport) -> GateVerdict:
    """Fail the run when a required gate did not pass. Everything else is written by then."""
    report = retrieval_metrics_report.report
    return GateVerdict(
        content_hash=report.content_hash,
        failed=required_failures(report.gates),
        run_id=report.run_id,
        gates=report.gates,
    )
