"""Gold stage: linted, resolved against this corpus revision, spread into variants."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.evaluation.corpus_steps import corpus_snapshot
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.evaluation.trust_steps import admitted_chunks
from rag_eval.gold.lint import lint
from rag_eval.gold.resolving import resolve
from rag_eval.gold.variants import variants
from rag_eval.measures.levels import Spans
from rag_eval.measures.ranking import Qrels
from rag_eval.records.problems import InputError, Problem
from rag_eval.storage.artifacts import Artifact


def gold_problems(evaluation: Evaluation) -> list[Problem]:
    """Lint the gold set against this corpus revision; errors and warnings."""
    corpus = corpus_snapshot(evaluation)
    return lint(evaluation.gold, corpus.frame("documents"), corpus.frame("sections"))


def _warning(problem: Problem, files: Sequence[Path]) -> dict[str, Any]:
    """Make a warning fit for the report: what applies, and the file by its name in the gold set, wherever that lies."""
    names = {str(file): file.name for file in files}
    shown = {key: value for key, value in dataclasses.asdict(problem).items() if value is not None}
    return shown | (
        {"file": names.get(problem.file, problem.file)} if problem.file is not None else {}
    )


def gold_variants(evaluation: Evaluation) -> Artifact:
    """Lint, resolve and spread the gold set.

    Parts: queries, variants, qrels_document, qrels_section, spans, span_chunks, decoys, about.

    Raises
    ------
    InputError
        Lint found an error; every problem is listed.
    """
    return evaluation.once("gold", lambda: _gold_variants(evaluation))


def _gold_variants(evaluation: Evaluation) -> Artifact:
    corpus, chunks, gold = corpus_snapshot(evaluation), admitted_chunks(evaluation), evaluation.gold
    key = evaluation.key("gold", gold.gold_hash, gold.layout, corpus.key, chunks.key)

    def make() -> dict[str, Any]:
        documents, sections = corpus.frame("documents"), corpus.frame("sections")
        with evaluation.progress.step("Checking the gold set"):
            problems = lint(gold, documents, sections)
        if any(problem.severity == "error" for problem in problems):
            raise InputError(problems)
        resolved = resolve(gold, documents, sections, chunks.frame("chunks"))
        spread = variants(resolved.gold)
        about = {
            "name": gold.name,
            "version": gold.version,
            "hash": gold.gold_hash,
            "n_queries": len(gold.queries),
            "n_answerable": int(gold.queries["answerable"].sum()),
            # a question that only recorded outputs name may or may not have an answer: it counts as answerable and nobody judged it
            "n_answerable_unknown": int((~gold.places["has_flag"]).sum())
            if gold.layout == "recorded"
            else 0,
            "n_judged": int(
                gold.queries["query_id"]
                .isin({*gold.judgements["query_id"], *gold.anchors["query_id"]})
                .sum()
            ),
            "n_paraphrases": len(gold.paraphrases),
            "n_groups": int(resolved.gold.queries["group_id"].nunique()),
            "n_groups_answerable": int(
                resolved.gold.queries.loc[resolved.gold.queries["answerable"], "group_id"].nunique()
            ),
            "n_spans": len(resolved.spans),
            "warnings": [_warning(problem, gold.files) for problem in problems],
        }
        return {
            "queries": resolved.gold.queries,
            "variants": spread,
            "qrels_document": resolved.qrels["document"],
            "qrels_section": resolved.qrels["section"],
            "spans": resolved.spans,
            "span_chunks": resolved.span_chunks,
            "decoys": resolved.decoys,
            "about": about,
        }

    return evaluation.memo("gold", key, make)


class GoldArrays:
    """The stored gold as arrays that the measures take; codes are row numbers.

    Attributes
    ----------
    query_of
        [n_variants] query row of each variant.
    documents, sections
        Names by code; code_of_chunk arrays [n_chunks] for both.

    Parameters
    ----------
    gold
        Artifact of `gold_variants`.
    chunks
        What rankings name by row, with doc_id and section_id: the chunks, or the units of an external retriever.
    carried
        SPAN_CHUNKS of these rows; default: of the chunks.
    """

    def __init__(
        self, gold: Artifact, chunks: pd.DataFrame, carried: pd.DataFrame | None = None
    ) -> None:
        self.queries = gold.frame("queries")
        self.variants = gold.frame("variants")
        query_index = pd.Index(self.queries["query_id"])
        self.query_of = query_index.get_indexer(self.variants["query_id"])
        self.groups = pd.factorize(self.queries["group_id"], sort=True)[0]
        self.documents = pd.Index(sorted(chunks["doc_id"].unique()))
        self.sections = pd.Index(sorted(chunks["section_id"].unique()))
        self.document_of_chunk = self.documents.get_indexer(chunks["doc_id"])
        self.section_of_chunk = self.sections.get_indexer(chunks["section_id"])
        self.qrels_document, self.documents = self._qrels(
            gold.frame("qrels_document"), query_index, self.documents
        )
        self.qrels_section, self.sections = self._qrels(
            gold.frame("qrels_section"), query_index, self.sections
        )
        spans = gold.frame("spans")
        carried = gold.frame("span_chunks") if carried is None else carried
        self.span_query = query_index.get_indexer(spans["query_id"])
        order = np.argsort(self.span_query, kind="stable")
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        carrier_span = (
            place[carried["span"].to_numpy()] if len(carried) else np.zeros(0, dtype=np.int64)
        )
        carriers = carried["chunk"].to_numpy()
        by_span = np.argsort(carrier_span, kind="stable")
        self.spans = Spans(
            np.searchsorted(self.span_query[order], np.arange(len(self.queries) + 1)),
            np.searchsorted(carrier_span[by_span], np.arange(len(spans) + 1)),
            carriers[by_span],
        )
        pairs = (
            np.unique(np.stack([self.span_query[order][carrier_span], carriers], axis=1), axis=0)
            if len(carried)
            else np.zeros((0, 2), dtype=np.int64)
        )
        self.qrels_chunk = Qrels.from_rows(
            pairs[:, 0], pairs[:, 1], np.ones(len(pairs), dtype=np.int64), len(self.queries)
        )

    def _qrels(
        self, frame: pd.DataFrame, query_index: pd.Index, items: pd.Index
    ) -> tuple[Qrels, pd.Index]:
        # a judged document without any text has no chunk: it gets a code of its own and cannot be found
        items = items.append(pd.Index(sorted(set(frame["item_id"]) - set(items))))
        qrels = Qrels.from_rows(
            query_index.get_indexer(pd.Index(frame["query_id"])),
            items.get_indexer(pd.Index(frame["item_id"])),
            frame["gain"].to_numpy(),
            len(query_index),
        )
        return qrels, items
