"""Corpus: snapshot, chunks, index."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from rag_eval.defs import checks, names, outcomes
from rag_eval.defs.assets.common import Common, op_name
from rag_eval.defs.metadata import clear_failures, column_schema, problems_metadata
from rag_eval.defs.resources import Evaluations
from rag_eval.records.frames import CHUNKS, DOCUMENTS
from rag_eval.records.problems import InputError


def corpus_assets(common: Common) -> list[dg.AssetsDefinition]:
    """Make the assets of the corpus."""
    snapshot = common.spec(
        names.CORPUS_SNAPSHOT,
        (),
        {"parquet"},
        "The corpus as it is now: documents and sections, masked, with its revision.",
        metadata=column_schema(DOCUMENTS),
    )
    chunks = common.spec(
        names.CORPUS_CHUNKS,
        (names.CORPUS_SNAPSHOT,),
        {"parquet"},
        "The documents cut into chunks with exact offsets.",
        metadata=column_schema(CHUNKS),
        skippable=True,
    )
    index = common.spec(
        names.CORPUS_INDEX,
        (names.CORPUS_CHUNKS, names.EVIDENCE_TRUST),
        {"chroma"},
        "Vectors of the admitted chunks for every embedding in the vector store, and the identity (index_hash) of every strategy's index.",
    )

    @dg.multi_asset(name=op_name(snapshot.key), specs=[snapshot])
    def corpus_snapshot(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> dg.MaterializeResult[Any]:
        with clear_failures():
            return outcomes.corpus_snapshot(evaluations.open(context.partition_key)).result()

    @dg.multi_asset(
        name=op_name(chunks.key), specs=[chunks], check_specs=[checks.spec(names.INDEX_NOT_EMPTY)]
    )
    def corpus_chunks(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
        with clear_failures():
            session = evaluations.open(context.partition_key)
            try:
                outcome = outcomes.corpus_chunks(session)
            except InputError as error:
                if all(problem.code != "empty_index" for problem in error.problems):
                    raise
                yield checks.result(
                    names.INDEX_NOT_EMPTY, passed=False, metadata=problems_metadata(error.problems)
                )
                return
        yield outcome.result(
            checks.result(
                names.INDEX_NOT_EMPTY,
                passed=True,
                metadata={"n_chunks": outcome.metadata["n_chunks"]},
            )
        )

    @dg.multi_asset(
        name=op_name(index.key), specs=[index], check_specs=[checks.spec(names.INDEX_IDENTITY)]
    )
    def corpus_index(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> Iterator[dg.MaterializeResult[Any]]:
        with clear_failures():
            session = evaluations.open(context.partition_key)
            yield outcomes.corpus_index(session).result(checks.index_identity(session))

    return [corpus_snapshot, corpus_chunks, corpus_index]
