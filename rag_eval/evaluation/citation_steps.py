"""Citation stage: every citation of every answer validated against the live index and matched with the gold evidence.

Belongs here: which index counts as live, and counts for each question. The rules are `rag_eval.citations`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from rag_eval.citations.live_index import LiveIndex
from rag_eval.citations.matching import CitationMatch, Spans, Words, coverage, match_citations
from rag_eval.citations.validators import Rules, Verdicts
from rag_eval.corpus.analyzer import ANALYZER
from rag_eval.evaluation.answer_frames import from_artifact
from rag_eval.evaluation.answer_steps import answers
from rag_eval.evaluation.citation_verdicts import citation_rows, stated_rows, verdicts_of
from rag_eval.evaluation.corpus_steps import corpus_snapshot
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.trust_steps import admitted_chunks
from rag_eval.records.answer_settings import Answers
from rag_eval.records.answers import Answer
from rag_eval.records.gold_set import External, Recorded
from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.storage.artifacts import Artifact


def with_units(chunks: pd.DataFrame, units: pd.DataFrame) -> pd.DataFrame:
    """Chunks, and the units of an external retriever that have a place in a document."""
    placed = units[(units["start"] >= 0) & (units["chunk"] < 0)].assign(chunk_id=units["unit_id"])
    return pd.concat([chunks, placed.reindex(columns=chunks.columns)], ignore_index=True)


def live_index(runs: Runs, strategy: str) -> LiveIndex:
    """What citations are held against: the corpus, its chunks, and where the evidence is an external retriever's its placed units."""
    evaluation = runs.evaluation
    corpus, chunks = corpus_snapshot(evaluation), admitted_chunks(evaluation).frame("chunks")
    if isinstance(runs.spec(strategy), External):
        chunks = with_units(chunks, runs.units(strategy))
    hashes = {runs.artifact(name).json("about")["index_hash"] for name in runs.names}
    return LiveIndex.from_frames(
        corpus.frame("documents"), corpus.frame("sections"), chunks, hashes, ANALYZER
    )


def citations(runs: Runs) -> Artifact | None:
    """Validate and match every citation; None where the gold set has no `answers`.

    Parts: citations (frame: a row a citation, in the order of the answers), records (JSON: as citations.jsonl holds them), per_question (frame, in
    the order of the questions: n_cited, n_valid, n_correct, n_due, n_gold, n_gold_matched, coverage), about (counts by code).

    Raises
    ------
    InputError
        `analyzer_mismatch`: a stated payload was made with another analyzer than the index.
    """
    config = runs.evaluation.config.answers
    return (
        None
        if config is None
        else runs.evaluation.once("citations", lambda: _citations(runs, config))
    )


def _citations(runs: Runs, config: Answers) -> Artifact:
    evaluation, made = runs.evaluation, answers(runs)
    if made is None:
        raise RuntimeError("no answers were made")
    key = evaluation.key(
        "citations",
        made.key,
        gold_variants(evaluation).key,
        admitted_chunks(evaluation).key,
        config.cross_section_allowed,
    )

    def make() -> dict[str, Any]:
        with evaluation.progress.step("Checking citations"):
            found = from_artifact(made)
            placed = citation_rows(found)
            records = stated_rows(found, placed, made.json("stated"))
            live = live_index(runs, made.json("about")["strategy"])
            verdicts = verdicts_of(
                records,
                placed,
                live,
                Rules(config.cross_section_allowed),
                corpus=not isinstance(evaluation.config.corpus, Recorded),
            )
            if verdicts.fail_fast:
                refuse_analyzer(records, verdicts)
            cited, per_question = _matched(runs, found, verdicts, live)
        about = {
            "codes": {code: n for code, n in verdicts.counts.items() if n} if records else {},
            "n_citations": len(records),
        }
        return {
            "citations": cited,
            "records": records,
            "per_question": per_question,
            "about": about,
        }

    return evaluation.memo("citations", key, make)


def refuse_analyzer(records: Sequence[Mapping[str, Any]], verdicts: Verdicts) -> NoReturn:
    """End the run: with another analyzer on the read path nothing else that is cited can be trusted.

    Raises
    ------
    InputError
        `analyzer_mismatch`, naming the first question and what was found.
    """
    record = next(
        record
        for record, found in zip(records, verdicts.failures, strict=True)
        if any(code == "analyzer_mismatch" for code, _ in found)
    )
    n = verdicts.counts["analyzer_mismatch"]
    message = f"{n} citations were made with another analyzer, the first for question {quoted(str(record.get('query_id')))}; align the analyzers"
    raise InputError(
        Problem(
            "analyzer_mismatch",
            message,
            field="analyzer",
            found=quoted(str(record.get("analyzer"))),
            accepted=ANALYZER,
        )
    )


def _matched(
    runs: Runs, found: list[Answer], verdicts: Verdicts, live: LiveIndex
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A row for each citation and one for each question."""
    gold = gold_variants(runs.evaluation)
    queries = pd.Index(gold.frame("queries")["query_id"])
    spans = gold.frame("spans")
    texts = dict(live.texts)
    documents = pd.Index(list(texts))
    flat = [(answer.query_id, span) for answer in found for span in answer.citations]
    cited = Spans(
        queries.get_indexer(pd.Index([query_id for query_id, _ in flat], dtype="object")),
        documents.get_indexer(pd.Index([span.doc_id for _, span in flat], dtype="object")),
        np.array([span.start for _, span in flat], dtype=np.int64),
        np.array([span.end for _, span in flat], dtype=np.int64),
    )
    wanted = Spans(
        queries.get_indexer(pd.Index(spans["query_id"])),
        documents.get_indexer(pd.Index(spans["doc_id"])),
        spans["start"].to_numpy(),
        spans["end"].to_numpy(),
    )
    valid = verdicts.valid if flat else np.zeros(0, dtype=bool)
    owed = np.asarray(gold.frame("queries")["answerable"], dtype=bool)
    match = match_citations(cited, valid, wanted, len(queries), owed)
    named = sorted({int(doc) for doc in cited.doc.tolist() + wanted.doc.tolist() if doc >= 0})
    place = {doc: at for at, doc in enumerate(named)}
    words = Words.of([texts[documents[doc]] for doc in named])
    covered = coverage(_recoded(cited, place), valid, _recoded(wanted, place), words, len(queries))
    rows = pd.DataFrame(
        {
            "query_id": [query_id for query_id, _ in flat],
            "segment": np.array([span.segment for _, span in flat], dtype=np.int64),
            "doc_id": [span.doc_id for _, span in flat],
            "start": cited.start,
            "end": cited.end,
            "code": list(verdicts.codes),
            "field": list(verdicts.fields),
            "correct": match.cited_correct,
        }
    )
    return rows.astype(
        {"query_id": "str", "doc_id": "str", "code": "str", "field": "str"}
    ), _per_question(queries, match, covered)


def _recoded(spans: Spans, place: dict[int, int]) -> Spans:
    """Spans over the named documents only, so that no other document's words are looked for."""
    return Spans(
        spans.query,
        np.array([place.get(doc, -1) for doc in spans.doc.tolist()], dtype=np.int64),
        spans.start,
        spans.end,
    )


def _per_question(queries: pd.Index, match: CitationMatch, covered: np.ndarray) -> pd.DataFrame:
    counts = {
        name: getattr(match, name)
        for name in ("n_cited", "n_valid", "n_correct", "n_due", "n_gold", "n_gold_matched")
    }
    # a gold span that the corpus lacks (recorded outputs without one of their own) has no words to cover: it is missed, not left out
    missed = np.isnan(covered) & (match.n_gold > 0)
    return pd.DataFrame(
        {"query_id": queries.astype("str"), **counts, "coverage": np.where(missed, 0.0, covered)}
    )
