"""Stages of the report: the report itself, its page, its record in MLflow, and the verdict."""

import datetime as dt
import json
import shutil
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Final

from rag_eval.core.errors import InputError, quoted
from rag_eval.core.settings import VIEW_PORT
from rag_eval.gates.gate import GatePart
from rag_eval.gates.verdict import required_failures
from rag_eval.pipeline.answer_stages import ABORT_LOG, AnswerSet
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
    find_previous,
    keep_run,
    make_record,
    previous_part,
    readable_runs,
)
from rag_eval.pipeline.measure_stages import (
    Answered,
    RankingMeasures,
    StabilityMeasures,
    find_answered,
)
from rag_eval.pipeline.miss_rate_stages import CalibratedMissRates, MissRateClaims
from rag_eval.pipeline.misses import MissedQuestions
from rag_eval.pipeline.report_parts import (
    EVIDENCE_FILE,
    PAGE,
    REPORTED,
    MetricsReport,
    count_embedded,
    join_fields,
    judge_draft,
    publish,
)
from rag_eval.pipeline.runner import WHOLE, Result, Results, Stage, Work, json_part
from rag_eval.pipeline.runs import ScoredRuns, StrategyRun, score_runs
from rag_eval.pipeline.uncertain import UNCERTAIN_FILE
from rag_eval.reporting.exchange import StrategyRankings, exchange_files
from rag_eval.reporting.html.page import build
from rag_eval.reporting.mlflow import record
from rag_eval.reporting.questions import SUMMARY_FILE, rank_missed, slim, unpacked
from rag_eval.reporting.report import REPORT_FILE, Report, dumps, finish, make_draft
from rag_eval.reporting.verdicts import VERDICT_FILES, verdict_rows, write_verdict
from rag_eval.storage.artifacts import Artifact, Parts
from rag_eval.storage.hashing import code_version, text_hash
from rag_eval.storage.home import atomic_path, file_states, write_bytes, write_text
from rag_eval.storage.secrets import without_secrets

# ---- The stage: the report and every file beside it.

EXPORTED = {".parquet", ".trec", ".gz", ".jsonl", ".log"}
ANSWER_FILES: Final = (
    *(f"{name}.jsonl" for name in ("answers", "citations", "preflights", "rejected")),
    *("auditable-answers.jsonl", "events.log", "traces.log"),
)
REPLACED: Final = (
    *("run-*.trec*", "reliability.svg", "miss-rates.html", PAGE),
    *("measures.csv", "tables/*.csv", "tables/*.tex"),
    *(*ANSWER_FILES, *VERDICT_FILES, ABORT_LOG),
)
"""Files that every run writes anew, or removes."""


def _identify_baseline(work: Work) -> str:
    """Name the accepted run, or what is wrong with it; empty without one."""
    try:
        baseline = load_baseline(work.evaluation.home, work.config.name)
    except InputError as error:
        return error.problems[0].message
    return "" if baseline is None else baseline.run.run_id


def _identify_report(work: Work, **inputs: Any) -> object:
    """Identify what the report says beside its inputs, and the report in the folder.

    The run before decides what is compared. Of the files of the folder, pages belong to a later
    stage, and the others are written with the report.
    """
    evaluation, settings = work.evaluation, work.settings
    before = next(readable_runs(evaluation.home, work.config.name), None)
    places = [evaluation.reports] + [settings.reports] * evaluation.is_primary
    return {
        "run": None if before is None else before.run_id,
        "baseline": _identify_baseline(work),
        "embedded": count_embedded(Results(inputs)).embedded,
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
    draft = make_draft(join_fields(work, results), dt.datetime.now(dt.UTC))
    plain = finish(draft, judge_draft(work, draft, ranking, stability, runs.gold.named_gold)).dump()
    now = make_record(work.config.name, {}, plain)
    previous = find_previous(home, now, runs.gold)
    explored = Explored(
        runs,
        results.get(CorpusSnapshot),
        results.get(CorpusChunks),
        results.get(EvidenceTrust),
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
    ]
    work.evaluation.lock.check()
    for source in sources:
        with atomic_path(folder / source.name) as partial:
            shutil.copyfile(source, partial)
    lines = evidence_lines(explored.evidence_trust.trust, report.trust.as_of)
    write_bytes(folder / EVIDENCE_FILE, lines)
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


def _remove(folder: Path, names: Container[str], *patterns: str) -> None:
    for pattern in patterns:
        for path in folder.glob(pattern):
            if path.name not in names:
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


# ---- The page of a finished report.

BYTES_PER_1000 = 3_000_000
"""Largest size of a page in bytes per 1,000 questions. Smaller gold sets have the same limit."""


class HtmlReport(Result):
    """Place of the page; empty when the settings want no page."""

    content_hash: str = json_part()
    about: dict[str, str | int] = json_part(volatile=True)


def _identify_pages(work: Work, retrieval_metrics_report: MetricsReport) -> object:
    """Identify the run that the pages show, and the pages in the folder of reports."""
    folder, run_id = work.evaluation.reports, retrieval_metrics_report.report.run_id
    return [run_id, file_states([folder / PAGE])]


@Stage(
    "html_report",
    "reporting",
    stores=("reports",),
    reads=("settings.html_report",),
    outside=_identify_pages,
    live=True,
    kinds=("html",),
)
def write_page(work: Work, retrieval_metrics_report: MetricsReport) -> HtmlReport:
    """Write index.html, which opens from disk."""
    report, path = retrieval_metrics_report.report, work.evaluation.reports / PAGE
    if not work.settings.html_report:
        return HtmlReport(content_hash=report.content_hash, about={})
    with work.progress.step("Writing the HTML report"):
        questions = work.evaluation.store.get("explorer", retrieval_metrics_report.explorer)
        write_text(path, built_page(report.dump(), questions))
    publish(work.evaluation, [path])
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
    REPORT_FILE,
    PAGE,
    *("per-query.parquet", EVIDENCE_FILE),
    *("answers.jsonl", "auditable-answers.jsonl", "citations.jsonl"),
)
"""Files that MLflow stores for every run."""


class MlflowRecord(Result):
    """The run in MLflow, or the reason why MLflow did not record the run.

    Attributes
    ----------
    runs_page
        Address of the runs of this gold set in the MLflow UI; empty after an error.
    """

    mlflow_run: str = json_part()
    runs_page: str = json_part(volatile=True)
    run_id: str = json_part(volatile=True)
    error: str = json_part()


def _identify_record(work: Work, retrieval_metrics_report: MetricsReport) -> object:
    """Identify the run, and the tracking store that it is recorded in."""
    return [retrieval_metrics_report.report.run_id, text_hash(work.settings.mlflow_uri)]


@Stage(
    "mlflow_record",
    "reporting",
    stores=("reports", "mlflow"),
    after=("html_report",),
    outside=_identify_record,
    kinds=("mlflow",),
    failure=lambda result: result.error,
)
def record_in_mlflow(work: Work, retrieval_metrics_report: MetricsReport) -> MlflowRecord:
    """Record the report in MLflow. A failure of the tracking store does not affect the report."""
    report, folder = retrieval_metrics_report.report, work.evaluation.reports
    uri, run, page, error = work.settings.mlflow_uri, "", "", ""
    home = work.evaluation.home
    paths = home.take(work.evaluation.shared_reports, folder) or folder.glob("*")
    here = {path.name: path for path in paths if path.is_file() and path.parent == folder}
    files = [here[name] for name in RECORDED if name in here]
    try:
        run, page = record(
            report,
            work.config.name,
            uri,
            files,
            home.folder / "mlartifacts",
            tags=dict(work.evaluation.tags),
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


def _explain_failure(result: GateVerdict) -> str:
    """Say which required gates did not pass; empty when all did."""
    gates = ", ".join(result.failed)
    return f"required gates did not pass: {gates}" if gates else ""


@Stage(
    "gate_verdict",
    "reporting",
    after=("html_report", "mlflow_record"),
    outside=lambda _, retrieval_metrics_report: retrieval_metrics_report.report.run_id,
    kinds=("python",),
    failure=_explain_failure,
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
