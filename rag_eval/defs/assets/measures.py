"""Measures: ranking and stability of the configured strategies, and of the answers."""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from rag_eval.defs import checks, names, outcomes
from rag_eval.defs.assets.common import Common, op_name
from rag_eval.defs.metadata import clear_failures, column_schema
from rag_eval.defs.resources import Evaluations, Session
from rag_eval.records.measure_frames import ANSWER_MEASURES, DELTA_S, PER_QUERY


def _plots(session: Session, file_name: str) -> Any:
    return session.evaluation.settings.home / "plots" / session.evaluation.config.name / file_name


def measure_assets(common: Common, strategies: Sequence[str]) -> list[dg.AssetsDefinition]:
    """Make the assets of the measures."""
    runs = [names.GOLD_VARIANTS, *(names.strategy_key(strategy) for strategy in strategies)]
    ranking = common.spec(
        names.RANKING_MEASURES,
        runs,
        {"parquet"},
        "Recall, MRR, nDCG and more of every strategy at every level, with intervals, and paired comparisons. Reads the configured strategies only.",
        metadata=column_schema(PER_QUERY),
    )
    stability = common.spec(
        names.STABILITY_MEASURES,
        [*runs, names.CORPUS_INDEX],
        {"parquet"},
        "Whether a question finds the same evidence however it is put: delta_s, lambda states, flips between wordings.",
        metadata=column_schema(DELTA_S),
    )

    @dg.multi_asset(name=op_name(ranking.key), specs=[ranking])
    def ranking_measures(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> dg.MaterializeResult[Any]:
        from rag_eval.evaluation.measure_steps import ranking_measures as stage
        from rag_eval.reporting.plots import recall_forest

        with clear_failures():
            session = evaluations.open(context.partition_key)
            outcome = outcomes.ranking_measures(session)
            plot = recall_forest(
                stage(session.runs).json("about"),
                session.evaluation.config.level,
                _plots(session, "recall.png"),
            )
            return outcome.result(recall_plot=dg.MetadataValue.path(str(plot)))

    @dg.multi_asset(name=op_name(stability.key), specs=[stability])
    def stability_measures(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> dg.MaterializeResult[Any]:
        from rag_eval.evaluation.stability_steps import stability_measures as stage
        from rag_eval.reporting.plots import flip_heat_map

        with clear_failures():
            session = evaluations.open(context.partition_key)
            outcome = outcomes.stability_measures(session)
            plot = flip_heat_map(stage(session.runs).json("about"), _plots(session, "flips.png"))
            return outcome.result(
                **({} if plot is None else {"flip_plot": dg.MetadataValue.path(str(plot))})
            )

    trust = common.spec(
        names.TRUST_MEASURES,
        [*runs, names.EVIDENCE_TRUST],
        {"json"},
        "Trust of what each strategy retrieved, blocked chunks that got through, and recall with and without the trust filter.",
    )

    @dg.multi_asset(name=op_name(trust.key), specs=[trust])
    def trust_measures(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> dg.MaterializeResult[Any]:
        with clear_failures():
            return outcomes.trust_measures(evaluations.open(context.partition_key)).result()

    of_answers = common.spec(
        names.ANSWER_MEASURES,
        (names.GOLD_VARIANTS, names.ANSWERS, names.CITATIONS),
        {"parquet"},
        "Coverage, citation precision, recall and match rate, groundedness, abstention and cost of the answers; which of them leave retrieved content unused.",
        metadata=column_schema(ANSWER_MEASURES),
    )

    @dg.multi_asset(
        name=op_name(of_answers.key),
        specs=[of_answers],
        check_specs=[checks.warning_spec(names.RETRIEVAL_GAP)],
    )
    def answer_measures(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> Iterator[dg.MaterializeResult[Any]]:
        with clear_failures():
            session = evaluations.open(context.partition_key)
            yield outcomes.answer_measures(session).result(checks.retrieval_gap(session))

    return [ranking_measures, stability_measures, trust_measures, answer_measures]
