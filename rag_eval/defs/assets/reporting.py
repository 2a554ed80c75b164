"""Reporting: the report, its MLflow record, and the verdict that ends the run."""

import datetime as dt
from typing import Any

import dagster as dg

# the longest window that Dagster accepts for a cron follows from it; there is no public function for that
from dagster._utils.schedules import get_smallest_cron_interval

from rag_eval.defs import names, outcomes
from rag_eval.defs.assets.common import Common, op_name
from rag_eval.defs.metadata import clear_failures, text
from rag_eval.defs.resources import Evaluations
from rag_eval.settings import Settings


def freshness(settings: Settings) -> dg.FreshnessPolicy:
    """Expect a report between each tick of the schedule and the next."""
    window = max(get_smallest_cron_interval(settings.schedule), dt.timedelta(minutes=1))
    return dg.FreshnessPolicy.cron(
        deadline_cron=settings.schedule, lower_bound_delta=window, timezone=settings.timezone
    )


def reporting_assets(common: Common, settings: Settings) -> list[dg.AssetsDefinition]:
    """Make the assets of the report."""
    measured = (
        names.CORPUS_INDEX,
        names.GOLD_VARIANTS,
        names.RANKING_MEASURES,
        names.STABILITY_MEASURES,
        names.TRUST_MEASURES,
        names.ANSWER_MEASURES,
        names.CALIBRATED_MISS_RATES,
    )
    report = common.spec(
        names.REPORT,
        measured,
        {"json"},
        "retrieval-metrics.json with its tables beside it; every figure carries the index_hash and rev it was measured on.",
        freshness_policy=freshness(settings),
    )
    page = common.spec(
        names.HTML_REPORT,
        (names.REPORT,),
        {"html"},
        "index.html: the whole report as one page that opens from disk, and its tables as CSV and LaTeX.",
    )
    record = common.spec(
        names.MLFLOW_RECORD,
        (names.REPORT, names.HTML_REPORT),
        {"mlflow"},
        "The report in MLflow: one parent run, one child run a strategy.",
    )
    verdict = common.spec(
        names.GATE_VERDICT,
        (names.REPORT, names.HTML_REPORT, names.MLFLOW_RECORD),
        {"python"},
        "Fails the run when a required gate did not pass; everything else is written by then.",
    )

    @dg.multi_asset(name=op_name(report.key), specs=[report])
    def retrieval_metrics_report(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> dg.MaterializeResult[Any]:
        from rag_eval.evaluation.report_steps import retrieval_metrics_report as stage
        from rag_eval.evaluation.run import publish
        from rag_eval.evaluation.trace_steps import traces_or_error
        from rag_eval.records.problems import quoted

        with clear_failures():
            session = evaluations.open(context.partition_key)
            session.report = stage(session.evaluation, session.opened, session.runs)
            if context.partition_key == evaluations.settings.primary_gold_set:
                publish(session.evaluation, session.evaluation.reports)
            if error := traces_or_error(session.runs, session.report):
                context.log.warning(
                    "the traces were not written (%s); the report is complete", quoted(error, 400)
                )
            return outcomes.metrics_report(session).result(trace_error=text(error or "none"))

    @dg.multi_asset(name=op_name(page.key), specs=[page])
    def html_report(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> dg.MaterializeResult[Any]:
        from rag_eval.evaluation.html_steps import html_report as stage
        from rag_eval.evaluation.run import publish

        with clear_failures():
            session = evaluations.open(context.partition_key)
            stage(session.runs, session.report)
            if context.partition_key == evaluations.settings.primary_gold_set:
                publish(session.evaluation, session.evaluation.reports)
            return outcomes.html_report(session).result()

    @dg.multi_asset(name=op_name(record.key), specs=[record])
    def mlflow_record(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> dg.MaterializeResult[Any]:
        from rag_eval.evaluation.run import NotRecordedError
        from rag_eval.evaluation.run import mlflow_record as stage
        from rag_eval.records.problems import quoted

        with clear_failures():
            session = evaluations.open(context.partition_key)
            try:
                run_id = stage(session.runs, session.report, {"dagster.run_id": context.run.run_id})
            except NotRecordedError as failure:
                raise dg.Failure(
                    f"MLflow did not record this run ({quoted(str(failure), 400)}); the report is complete"
                ) from None
            return outcomes.mlflow_record(session, run_id).result()

    @dg.multi_asset(name=op_name(verdict.key), specs=[verdict])
    def gate_verdict(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> dg.MaterializeResult[Any]:
        with clear_failures():
            outcome = outcomes.gate_verdict(evaluations.open(context.partition_key))
        if outcome.metadata["verdict"].value == "fail":
            message = f"required gates did not pass: {outcome.metadata['required_failures'].value}"
            raise dg.Failure(message, metadata=outcome.metadata, allow_retries=False)
        return outcome.result()

    return [retrieval_metrics_report, html_report, mlflow_record, gate_verdict]
