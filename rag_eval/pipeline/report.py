"""Stages of the report: the report with every file beside it, its page, MLflow and the verdict."""

import dataclasses
import datetime as dt
import json
import shutil
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, get_args

from rag_eval.core.errors import quoted
from rag_eval.core.report import GatePart, GateStatus, Report, count_gates
from rag_eval.gates.success import judge_success
from rag_eval.gates.verdict import required_failures
from rag_eval.pipeline.answers import ABORT_LOG, answer_files, write_run_traces
from rag_eval.pipeline.calibration import PICTURE
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.explorer import (
    SUMMARY_FILE,
    Explored,
    missed_sentences,
    rank_missed,
    slim,
    unpacked,
    write_explorer,
)
from rag_eval.pipeline.history import (
    NO_PREVIOUS,
    find_previous,
    history_part,
    keep_run,
    make_record,
    past_runs,
    previous_part,
)
from rag_eval.pipeline.measures import HEADLINE, list_measures
from rag_eval.pipeline.report_parts import EVIDENCE_FILE, Inputs, evidence_lines, report_parts
from rag_eval.pipeline.runner import Result, Stage, Table, Work, json_part
from rag_eval.pipeline.scores import ScoredRuns, score_runs
from rag_eval.pipeline.uncertain import UNCERTAIN_FILE
from rag_eval.reporting.exchange import StrategyRankings, exchange_files
from rag_eval.reporting.html.page import Built, build
from rag_eval.reporting.metrics_report import REPORT_FILE, dumps, finish, write_measures
from rag_eval.reporting.miss_rates import MISS_RATES_PAGE, MissRateTables
from rag_eval.reporting.mlflow import record
from rag_eval.reporting.terminal import interval
from rag_eval.reporting.verdicts import VERDICT_FILES, verdict_rows, write_verdict
from rag_eval.storage.artifacts import Artifact, Parts, atomic_path, write_bytes, write_text
from rag_eval.storage.secrets import without_secrets

# ---- The report and every file beside it.

EXPORTED = {".csv", ".parquet", ".trec", ".jsonl", ".log", ".md"}
PAGE, TABLES = "index.html", "tables"
PAGES: Final = (PAGE, MISS_RATES_PAGE)
ANSWER_FILES: Final = (
    *(f"{name}.jsonl" for name in ("answers", "citations", "preflights", "rejected")),
    *("auditable-answers.jsonl", "events.log", "traces.log"),
)
REPLACED: Final = (
    *("run-*.trec", PICTURE, *PAGES, f"{TABLES}/*.csv", f"{TABLES}/*.tex"),
    *(*ANSWER_FILES, *VERDICT_FILES, ABORT_LOG),
)
"""Files that every run writes anew, or removes."""


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

    content_hash: str = json_part()
    report: Report = json_part(volatile=True)
    explorer: str = json_part(volatile=True)
    trace_error: str = json_part(volatile=True)
    folder: str = json_part(volatile=True)

    def describe(self) -> dict[str, object]:
        """Show the headline figures with their denominators, latency and gates."""
        report = self.report
        entries = [entry.dump() for entry in report.strategies]
        latency = [{"strategy": entry["name"], **entry["latency_ms"]} for entry in entries]
        gates = [_show_gate(gate) for gate in report.gates]
        return {
            "run_id": report.run_id,
            "content_hash": report.content_hash,
            "index_hash": report.index.hash,
            "strategy": report.strategy,
            "recall_at_10": report.recallAt10,
            "mrr": report.mrr,
            "cache_hit_rate": report.cacheHitRate,
            "n_queries": report.gold.n_queries,
            "n_groups_answerable": report.gold.n_groups_answerable,
            **list_measures(entries, report.evaluation.level, HEADLINE),
            "latency_ms": Table(("strategy", "n", "p50", "p95", "p99"), latency),
            "verdict": count_gates((gate.required, gate.status) for gate in report.gates),
            "gates": Table(GATE_COLUMNS, gates),
            "look_first": Table(
                ("query_id", "text", "n_found", "n_runs", "miss_rate", "status"),
                [one.dump() | one.primary.dump() for one in report.look_first or ()],
            ),
            "report": self.folder,
            "trace_error": self.trace_error or "none",
        }


@Stage(
    "retrieval_metrics_report",
    "reporting",
    given=tuple(field.name for field in dataclasses.fields(Inputs)),
    stores=("baselines", "kept_runs", "traces", "reports"),
    live=True,
)
def write_report(work: Work, **results: Any) -> MetricsReport:
    """Write retrieval-metrics.json and its tables. Every figure carries its index_hash and rev.

    `results` are the `Inputs`. The report comes last. The home also stores the run, so that later
    runs can be compared with it.
    """
    made, folder, home = Inputs(**results), work.evaluation.reports, work.evaluation.home
    runs = score_runs(work.config, made.gold_variants, made.admitted_chunks, made.runs)
    plain = finish(report_parts(work, made, runs), dt.datetime.now(dt.UTC)).dump()
    now = make_record(work.config.name, {}, plain)
    # Runs with a later date come from a wrong clock and are left out.
    past, unreadable = past_runs(home, now.gold_set, before=now.run_id)
    previous = find_previous(past, now, runs.gold)
    explored = Explored(
        runs,
        made.corpus_snapshot,
        made.corpus_chunks,
        made.evidence_trust,
        made.stability_measures,
        made.miss_rate_claims,
        made.missed_questions,
        made.answered,
    )
    explorer = write_explorer(work, explored, previous)
    summary = unpacked(explorer.path(SUMMARY_FILE).read_bytes())
    sentences = missed_sentences(made.missed_questions.missed)
    plain |= {
        "history": history_part(past, unreadable, now),
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
        per_query = made.ranking_measures.per_query
        plain["previous"] = previous_part(previous, now, runs.gold, per_query)
    report = Report.model_validate(plain)
    success = judge_success(report, made.ranking_measures.per_query, runs.gold.named_gold)
    report = report.model_copy(update={"success": success})
    plain = report.dump()
    exports = _exports(work, made, runs)
    sources = [
        *(exports.path(name) for name in exports.files if Path(name).suffix in EXPORTED),
        made.calibrated_miss_rates.artifact.path(UNCERTAIN_FILE),
        *filter(None, [made.miss_rate_calibration.picture]),
    ]
    work.evaluation.lock.check()
    for source in sources:
        with atomic_path(folder / source.name) as partial:
            shutil.copyfile(source, partial)
    lines = evidence_lines(made.evidence_trust.trust, report.trust.as_of)
    write_bytes(folder / EVIDENCE_FILE, lines)
    write_measures(folder / "measures.csv", report.strategies)
    keys = made.artifact_keys | {"explorer": explorer.key, "exports": exports.key}
    keep_run(home, now, keys, plain)
    # This run may end before it writes its verdict and page, so none of an earlier run may stay.
    _remove(folder, {source.name for source in sources}, *REPLACED)
    write_text(folder / REPORT_FILE, dumps(plain))
    write_verdict(verdict_rows(report, work.config.name), folder)
    trace_error = write_run_traces(work, made.answers, runs, made.stability_measures, report)
    files = [path for path in folder.rglob("[!.]*") if path.is_file()]
    files.sort(key=lambda path: (path.name == REPORT_FILE, path))
    _publish(work.evaluation, files, alone=True)
    return MetricsReport(
        content_hash=report.content_hash,
        report=report,
        explorer=explorer.key,
        folder=str(folder.resolve()),
        trace_error=trace_error,
    )


def _publish(evaluation: Evaluation, files: Iterable[Path], *, alone: bool = False) -> None:
    """Share the files, and copy those of the primary gold set to the top of the reports."""
    evaluation.home.share(evaluation.shared_reports, evaluation.reports, files, alone=alone)
    if not evaluation.is_primary:
        return
    top = evaluation.settings.reports
    # Neither may stand beside the report of another run.
    for name in (*PAGES, EVIDENCE_FILE):
        (top / name).unlink(missing_ok=True)
    for name in (REPORT_FILE, *PAGES, EVIDENCE_FILE):
        if (evaluation.reports / name).is_file():
            with atomic_path(top / name) as partial:
                shutil.copyfile(evaluation.reports / name, partial)


def _remove(folder: Path, kept: Container[str], *patterns: str) -> None:
    for pattern in patterns:
        for path in folder.glob(pattern):
            if path.name not in kept:
                path.unlink(missing_ok=True)


def _exports(work: Work, made: Inputs, runs: ScoredRuns) -> Artifact:
    """Make the files that other tools read, once."""
    answered, gold = made.answered, made.gold_variants

    def make() -> Parts:
        rankings = {
            name: StrategyRankings(run.run, runs.units(name), runs.first_seed(name))
            for name, run in made.runs.items()
        }
        frame = made.ranking_measures.per_query
        files = exchange_files(frame, gold.qrels_document, gold.variants, rankings)
        if answered is None:
            return files
        return files | answer_files(answered, made.stability_measures, runs)

    identity = [made.ranking_measures.id, gold.id, made.admitted_chunks.id]
    identity += [made.stability_measures.id]
    identity += [run.id for run in made.runs.values()]
    return work.keep("exports", [*identity, answered and answered.ids], make)


GATE_COLUMNS: Final = ("id", "required", "status", "reason_code", "found", "accepted")


def _show_gate(gate: GatePart) -> dict[str, object]:
    """Make the row of a gate in the summary for people."""
    bounds = (gate.evidence.get(name) for name in ("value", "ci_low", "ci_high"))
    found: list[Any] = [bound if isinstance(bound, int | float) else None for bound in bounds]
    return gate.dump() | {"found": interval(*found), "accepted": gate.evidence.get("accepted")}


# ---- The page of a finished report, and the tables of its panels.

MAX_QUESTIONS = 5000
"""Largest number of rows in the table for MLflow, because MLflow's page reads the whole table."""
BYTES_PER_1000 = 3_000_000
"""Largest size of a page in bytes per 1,000 questions. Smaller gold sets have the same limit."""


class HtmlReport(Result):
    """Places of the page, its tables and its pictures; empty when the settings want no page."""

    content_hash: str = json_part()
    about: dict[str, str | int] = json_part(volatile=True)

    def describe(self) -> Mapping[str, object]:
        """Show the places of the page, its size, and its address in the viewer."""
        return self.about or {"page": "not written: html_report is off"}


@Stage("html_report", "reporting", stores=("reports",), live=True, kinds=("html",))
def write_page(work: Work, retrieval_metrics_report: MetricsReport) -> HtmlReport:
    """Write index.html and miss-rates.html, which open from disk, and tables as CSV and LaTeX."""
    report, place = retrieval_metrics_report.report, work.evaluation.reports
    if not work.settings.html_report:
        return HtmlReport(content_hash=report.content_hash, about={})
    with work.progress.step("Writing the HTML report"):
        built = built_page(report.dump(), _questions_of(work, retrieval_metrics_report))
        tables = MissRateTables([report]).files()
        pages = {PAGE: built.html, MISS_RATES_PAGE: tables.pop(MISS_RATES_PAGE)}
        (place / TABLES).mkdir(parents=True, exist_ok=True)
        written = {f"{TABLES}/{name}": text for name, text in (dict(built.files) | tables).items()}
        written |= pages
        for name, text in written.items():
            write_text(place / name, text)
    _publish(work.evaluation, map(place.joinpath, written))
    folder = place.resolve()
    about: dict[str, str | int] = {
        "page": str(folder / PAGE),
        "miss_rates": str(folder / MISS_RATES_PAGE),
        "page_bytes": (folder / PAGE).stat().st_size,
        "tables": str(folder / TABLES),
        "viewer": f"http://127.0.0.1:{work.settings.view_port}/runs/{report.run_id}/",
        **{path.stem.replace("-", "_"): str(path) for path in sorted(folder.glob("*.svg"))},
    }
    return HtmlReport(content_hash=report.content_hash, about=about)


def built_page(report: Mapping[str, Any], bundle: Artifact | None) -> Built:
    """Build the page of a report with the questions of a stored bundle."""
    limit = BYTES_PER_1000 * max(1000, report["gold"]["n_queries"]) // 1000
    # `dumps` sorts the keys, so a report from memory gives the same page as a report from a file.
    report = json.loads(dumps(report))
    return build(report, None if bundle is None else lambda left: slim(bundle, left), limit)


def _questions_of(work: Work, made: MetricsReport) -> Artifact | None:
    """Open the explorer of a report; None when it was removed."""
    return work.evaluation.store.get("explorer", made.explorer)


# ---- The record in MLflow.

RECORDED: Final = (
    REPORT_FILE,
    *PAGES,
    *("measures.csv", "per-query.parquet", EVIDENCE_FILE),
    *("answers.jsonl", "auditable-answers.jsonl", "citations.jsonl"),
)
"""Files that MLflow stores for every run, beside the charts."""


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

    def describe(self) -> dict[str, object]:
        """Show the ids of the run in MLflow and in the home, and where its runs are."""
        if self.error:
            return {}
        return {"mlflow_run": self.mlflow_run, "run_id": self.run_id, "runs": self.runs_page}


@Stage(
    "mlflow_record",
    "reporting",
    stores=("reports", "mlflow"),
    after=("html_report",),
    live=True,
    kinds=("mlflow",),
    failure=lambda result: result.error,
)
def record_in_mlflow(work: Work, retrieval_metrics_report: MetricsReport) -> MlflowRecord:
    """Record the report in MLflow. A failure of the tracking store does not affect the report."""
    report, folder = retrieval_metrics_report.report, work.evaluation.reports
    uri, run, page, error = work.settings.mlflow_uri, "", "", ""
    home = work.evaluation.home
    found = home.take(work.evaluation.shared_reports, folder) or folder.glob("*")
    here = {path.name: path for path in found if path.is_file() and path.parent == folder}
    files = [here[name] for name in RECORDED if name in here]
    pictures = [here[name] for name in sorted(here) if name.endswith(".svg")]
    try:
        run, page = record(
            report,
            work.config.name,
            uri,
            [*files, *pictures],
            home.folder / "mlartifacts",
            tags=dict(work.evaluation.tags),
            questions=_questions_table(_questions_of(work, retrieval_metrics_report)),
        )
    except Exception as failure:  # noqa: BLE001 - a tracking store may raise any exception
        reason = quoted(without_secrets(f"{type(failure).__name__}: {failure}", uri), 400)
        error = f"MLflow did not record this run ({reason}); the report is complete"
    return MlflowRecord(mlflow_run=run, runs_page=page, run_id=report.run_id, error=error)


def _questions_table(bundle: Artifact | None) -> dict[str, list[Any]]:
    """Make the table for MLflow: id, wording, recall and claimed miss rate.

    It holds the first MAX_QUESTIONS questions.
    """
    if bundle is None:
        return {}
    summary = unpacked(bundle.path(SUMMARY_FILE).read_bytes())
    questions, measure = summary["questions"], summary["measure"]
    found: dict[str, list[Any]] = {"query_id": questions["id"], "text": questions["text"]}
    for at, name in enumerate(summary["strategies"]):
        found[f"{name}: {measure}"] = questions["value"][at]
        found[f"{name}: miss rate"] = questions["miss"][at]
    return {name: values[:MAX_QUESTIONS] for name, values in found.items()}


# ---- The verdict of the gates.


class GateVerdict(Result):
    """The gates of a report, and the ids of the required gates that did not pass."""

    content_hash: str = json_part()
    failed: list[str] = json_part()
    run_id: str = json_part(volatile=True)
    gates: list[GatePart] = json_part(volatile=True)

    def describe(self) -> dict[str, object]:
        """Show the verdict and every gate."""
        gates = [_show_gate(gate) for gate in self.gates]
        statuses = get_args(GateStatus)
        return {
            "verdict": "fail" if self.failed else "pass",
            "required_failures": ", ".join(self.failed) or "none",
            **{
                f"n_{status}": sum(gate["status"] == status for gate in gates)
                for status in statuses
            },
            "counts": count_gates((gate.required, gate.status) for gate in self.gates)
            or "no gates",
            "gates": Table((*GATE_COLUMNS, "severity"), gates),
            "run_id": self.run_id,
        }


def _explain_failure(result: GateVerdict) -> str:
    """Say which required gates did not pass; empty when all did."""
    named = ", ".join(result.failed)
    return f"required gates did not pass: {named}" if named else ""


@Stage(
    "gate_verdict",
    "reporting",
    after=("html_report", "mlflow_record"),
    live=True,
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
