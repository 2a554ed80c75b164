"""Measures of ragas that need no model, beside ours on equal inputs."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from rag_eval.core.records import Figure, number
from rag_eval.core.types import Answer, CitedSpan
from rag_eval.gold.files import ORIGINAL
from rag_eval.measures.answer_report import RagasFigure
from rag_eval.measures.answers import align_quoted_spans, score_contexts
from rag_eval.measures.intervals import aggregate
from rag_eval.measures.overlap import SharedGold
from rag_eval.measures.run_scores import AnyRuns, figure_of

K = 10
MAX_SAMPLES = 500
"""Largest number of questions that ragas sees, the first ones of the gold set."""
DIFFERENCES = {
    "id_based_context_recall": "none: both count the distinct documents of the first ten",
    "id_based_context_precision": "ragas divides by the documents that were retrieved, P@10 by ten:"
    " they differ where fewer than ten were retrieved",
    "quoted_spans_alignment": "ragas looks for each cited quote in all evidence of its answer,"
    " whatever case and white space; ours at the offsets in the cited source. Answers that cite no"
    " quote of three words are left out, to which ragas gives 1",
}
NO_QUOTE = "no answer cites a quote of three words or more"
NO_DOCUMENT = "no question has a relevant document"


def measure_contexts(runs: AnyRuns, per_query: pd.DataFrame) -> list[RagasFigure]:
    """Measure the first ten documents of each question as it was first put, under one seed."""
    name, gold = runs.config.primary_strategy, runs.gold_variants
    seed = runs.first_seed(name)
    relevant = gold.qrels_document[gold.qrels_document["gain"] > 0]
    wanted = relevant.groupby("query_id")["item_id"].agg(list)
    variants = gold.variants.reset_index(drop=True)
    first = variants[
        (variants["paraphrase_id"] == ORIGINAL) & variants["query_id"].isin(wanted.index)
    ].head(MAX_SAMPLES)
    documents = runs.units(name)["doc_id"].to_numpy(dtype=object)
    rows = runs.rows(name)[seed]
    found = [
        list(dict.fromkeys(documents[[row for row in rows[at] if row >= 0]]))[:K]
        for at in first.index
    ]
    values = score_contexts(found, wanted[first["query_id"]].tolist())
    own = per_query[
        (per_query["strategy"] == name)
        & (per_query["level"] == "document")
        & (per_query["paraphrase_id"] == ORIGINAL)
        & (per_query["seed"] == seed)
    ].set_index("query_id")
    columns = {"R@10": f"recall_at_{K}", "P@10": f"precision_at_{K}"}
    shared = runs.gold.named_gold.of(first["query_id"].tolist())
    return [
        _figure(
            name,
            figure_of(
                aggregate([name], values[:, [at]], shared)[0],
                None if len(first) else NO_DOCUMENT,
            ),
            ours,
            float(own[columns[ours]].reindex(first["query_id"]).mean()) if len(first) else np.nan,
        )
        for at, (name, ours) in enumerate(zip(DIFFERENCES, columns, strict=False))
    ]


def measure_quotes(
    answers: Sequence[Answer], per_question: pd.DataFrame, shared: SharedGold
) -> RagasFigure:
    """Measure the cited quotes, which ragas gets in quotation marks; ours are the citations."""
    found = answers[:MAX_SAMPLES]
    values = align_quoted_spans(
        [_quote(answer.citations) for answer in found],
        [[item.chunk.text for item in answer.evidence] for answer in found],
    )
    quotes = ~np.isnan(values)
    own = per_question[: len(found)][quotes]
    valid = own["n_valid"].sum() / own["n_cited"].sum() if own["n_cited"].sum() else np.nan
    name = "quoted_spans_alignment"
    record = aggregate([name], values[:, None], shared.take(np.arange(len(found))))[0]
    figure = figure_of(record, None if quotes.any() else NO_QUOTE)
    return _figure(name, figure, "citation_validity_rate", float(valid))


def _quote(citations: Sequence[CitedSpan]) -> str:
    return " ".join(f"\u201c{' '.join(one.quote.split())}\u201d" for one in citations)


def _figure(name: str, figure: Figure, ours: str, ours_value: float) -> RagasFigure:
    return RagasFigure(
        **dict(figure),
        name=name,
        ours=ours,
        ours_value=number(ours_value),
        difference=DIFFERENCES[name],
    )
