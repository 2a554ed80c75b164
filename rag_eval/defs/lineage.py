"""Lineage of runs from the command line: the same materializations as the job's, without a Dagster run.

Checks are not written: Dagster 1.13 refuses a second runless evaluation of a check in one partition (a unique constraint of its store).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from rag_eval.defs import names, outcomes, uncertain_outcomes
from rag_eval.defs.instance import prepare_home
from rag_eval.defs.outcomes import Outcome
from rag_eval.defs.resources import Session
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.storage.code import code_version

DATA_VERSION, CODE_VERSION = "dagster/data_version", "dagster/code_version"


def _outcomes(session: Session, mlflow_run: str | None) -> Iterator[tuple[dg.AssetKey, Outcome]]:
    """Every asset that a finished evaluation stands for; plots are the job's alone, drawing them takes longer than all of this."""
    yield names.CORPUS_SNAPSHOT, outcomes.corpus_snapshot(session)
    yield names.CORPUS_CHUNKS, outcomes.corpus_chunks(session)
    yield names.EVIDENCE_TRUST, outcomes.evidence_trust(session)
    yield names.GOLD_VARIANTS, outcomes.gold_variants(session)
    yield names.CORPUS_INDEX, outcomes.corpus_index(session)
    for strategy in session.runs.names:
        yield names.strategy_key(strategy), outcomes.retrieval(session, strategy)
    if session.evaluation.config.answers is not None:
        yield names.ANSWERS, outcomes.answers(session)
        yield names.CITATIONS, outcomes.citations(session)
        yield names.ANSWER_MEASURES, outcomes.answer_measures(session)
    yield names.RANKING_MEASURES, outcomes.ranking_measures(session)
    yield names.STABILITY_MEASURES, outcomes.stability_measures(session)
    yield names.TRUST_MEASURES, outcomes.trust_measures(session)
    yield names.MISS_RATE_CLAIMS, uncertain_outcomes.miss_rate_claims(session)
    yield names.RETRIEVAL_OUTCOMES, uncertain_outcomes.retrieval_outcomes(session)
    yield names.MISS_RATE_CALIBRATION, uncertain_outcomes.miss_rate_calibration(session)
    yield names.CALIBRATED_MISS_RATES, uncertain_outcomes.calibrated_miss_rates(session)
    yield names.REPORT, outcomes.metrics_report(session)
    yield names.HTML_REPORT, outcomes.html_report(session)
    if mlflow_run is not None:
        yield names.MLFLOW_RECORD, outcomes.mlflow_record(session, mlflow_run)
    verdict = outcomes.gate_verdict(session)
    if (
        verdict.metadata["verdict"].value == "pass"
    ):  # the job does not materialize a failed verdict either
        yield names.GATE_VERDICT, verdict


def report_materializations(
    dagster_home: Path,
    evaluation: Evaluation,
    report: Mapping[str, Any],
    mlflow_run: str | None = None,
) -> int:
    """Tell Dagster what a finished evaluation made, so that its lineage shows runs from the command line too.

    Parameters
    ----------
    dagster_home
        The Dagster home; prepared when it is not.
    evaluation
        The evaluation, finished in this process.
    report
        Its report.
    mlflow_run
        Id of its MLflow parent run, where there is one.

    Returns
    -------
    int
        Number of materializations written.
    """
    prepare_home(dagster_home)
    session = Session(evaluation)
    session.report = dict(report)
    count = 0
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        for key, outcome in _outcomes(session, mlflow_run):
            instance.report_runless_asset_event(
                dg.AssetMaterialization(
                    asset_key=key,
                    partition=evaluation.config.name,
                    metadata={
                        **outcome.shown,
                        "started_from": dg.MetadataValue.text("command line"),
                    },
                    tags={DATA_VERSION: outcome.version, CODE_VERSION: code_version()},
                )
            )
            count += 1
    return count
