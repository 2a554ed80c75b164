"""The uncertainty of each retrieval and each answer, and `uncertain-retrievals.jsonl`."""

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from rag_eval.core.records import Figure
from rag_eval.gold.files import ORIGINAL
from rag_eval.measures.intervals import aggregate
from rag_eval.measures.overlap import NamedGold
from rag_eval.measures.run_scores import figure_of
from rag_eval.pipeline.corpus import AdmittedChunks, CorpusChunks, CorpusSnapshot
from rag_eval.pipeline.index import CorpusIndex
from rag_eval.pipeline.runs import ScoredRuns
from rag_eval.uncertainty.claims import MIN_MISSED, AnswerWorth, RateSource, read_miss_rate
from rag_eval.uncertainty.confidence import (
    COVERAGE_SIGNAL,
    Absent,
    CorpusCoverage,
    Gap,
    Line,
    UncertainRetrieval,
    as_json,
    count_covered,
    count_share,
    describe_document,
    effective,
)
from rag_eval.uncertainty.iterative import list_expansions
from rag_eval.uncertainty.miss_rate_report import AnswerConfidences


def summarize_answers(worth: AnswerWorth, named_gold: NamedGold) -> AnswerConfidences:
    """Average the confidence values of one answer or more."""
    values_of = list(worth.by_query.values())
    shared = named_gold.of(list(worth.by_query))

    def mean(name: str) -> Figure:
        # A question without an answer has nothing to discount.
        column = np.array(
            [
                np.nan
                if isinstance(values[name], Absent)
                or isinstance(values["synthesis_confidence"], Absent)
                else effective(values[name])
                for values in values_of
            ]
        )
        record = aggregate([name], column[:, None], shared)[0]
        reasons = {
            value.reason for values in values_of if isinstance(value := values[name], Absent)
        }
        reason = f"absent for every answer: {', '.join(sorted(reasons))}"
        return figure_of(record, None if record.n_scored else reason)

    few = f"fewer than {MIN_MISSED} independent questions were answered over a missed retrieval"
    return AnswerConfidences(
        n=len(values_of),
        synthesis_confidence=mean("synthesis_confidence"),
        final_confidence=mean("final_confidence"),
        calibrated_confidence=mean("calibrated_confidence"),
        right_when_missed=worth.right_when_missed,
        why={} if worth.right_when_missed else {"right_when_missed": few},
    )


def measure_coverage(
    corpus: CorpusSnapshot, chunks: CorpusChunks, admitted: AdmittedChunks, index: CorpusIndex
) -> CorpusCoverage:
    """Count the shares of documents indexed, of text in chunks, and of chunks with vectors."""
    documents, cut = corpus.documents, chunks.about.n_chunks
    indexed = admitted.artifact.frame("chunks", ["doc_id", "start", "end"])
    length = int(documents["text"].str.len().sum())
    in_chunks = "characters of the documents that an indexed chunk holds"
    return CorpusCoverage(
        documents_indexed=count_share(
            indexed["doc_id"].nunique(), len(documents), "documents with an indexed chunk"
        ),
        text_in_chunks=count_share(count_covered(indexed), length, in_chunks),
        chunks_admitted=count_share(len(indexed), cut, "chunks that the poisoning guard admitted"),
        # A run stops when the vector of an admitted chunk is missing.
        chunks_embedded={
            model: count_share(
                index.about.n_chunks, len(indexed), "chunks whose vectors are in the index"
            )
            for model in sorted(
                {part.embed_model for part in index.about.strategies.values()} - {""}
            )
        },
    )


# ---- `uncertain-retrievals.jsonl.gz`: one line for every retrieval of every strategy.

UNCERTAIN_FILE: Final = "uncertain-retrievals.jsonl.gz"
SCHEMA_VERSION = 2


class StatedRetrievals(NamedTuple):
    """Signals, claims, their source and semantic gaps of one strategy, None where not computed."""

    signals: pd.DataFrame
    claims: pd.DataFrame
    source: RateSource
    gaps: pd.DataFrame | None


def compress(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Compress lines as gzip, without a time, so that equal lines give equal bytes."""
    pack = zlib.compressobj(wbits=31)  # 31: with the head and the check sum of gzip
    yield from map(pack.compress, lines)
    yield pack.flush()


def write_lines(
    runs: ScoredRuns,
    retrievals: Mapping[str, StatedRetrievals],
    worth: AnswerWorth,
    coverage: CorpusCoverage,
) -> Iterator[bytes]:
    """Write one line for each claim: a line has about 4 KB, so they are never all in memory."""
    for name, (signals, claims, source, semantic_gaps) in retrievals.items():
        first_seed = runs.first_seed(name)
        documents, steps = _list_documents(runs, name), runs.runs[name].expansions
        expansions = {} if steps is None else list_expansions(steps)
        gaps = None if semantic_gaps is None else _list_gaps(semantic_gaps)
        answered = worth.by_query if worth.strategy == name else {}
        harder = claims["miss_rate"].rank(pct=True, method="max")
        columns = (signals["variant"], signals["seed"], signals[COVERAGE_SIGNAL], harder)
        facts = zip(*(column.tolist() for column in columns), strict=True)
        rows = zip(claims.to_dict("records"), facts, strict=True)
        for row, (variant, seed, covered, share) in rows:
            is_first = seed == first_seed
            retrieval = UncertainRetrieval(
                documents=documents.get((variant, seed), []),
                miss_rate=read_miss_rate(row, source),
                heuristic_v0=row["heuristic_v0"],
                similar_judged=row["similar_judged"],
                coverage=covered,
                corpus=coverage,
                gaps=None if gaps is None else gaps.get((variant, seed), []),
                iterations=expansions.get(variant, []) if is_first else [],
                harder_share=share,
            )
            line: Line = {
                "schema_version": SCHEMA_VERSION,
                "strategy": name,
                **{part: row[part] for part in ("claim_id", "query_id", "paraphrase_id", "seed")},
                **retrieval.as_json(),
            }
            if is_first and row["paraphrase_id"] == ORIGINAL and row["query_id"] in answered:
                values = answered[row["query_id"]]
                line["answer"] = {part: as_json(value) for part, value in values.items()}
            text = json.dumps(line, sort_keys=True, ensure_ascii=True, allow_nan=False)
            yield f"{text}\n".encode()


def _list_gaps(frame: pd.DataFrame) -> dict[tuple[int, int], list[Gap]]:
    """List the semantic gaps of every (variant, seed)."""
    gaps: dict[tuple[int, int], list[Gap]] = {}
    for row in frame.to_dict("records"):
        gap = Gap(row["description"], row["severity"], row["mitigation"])
        gaps.setdefault((row["variant"], row["seed"]), []).append(gap)
    return gaps


def _list_documents(runs: ScoredRuns, name: str) -> dict[tuple[int, int], list[Line]]:
    """List the first K results of every (variant, seed), best first."""
    frame, units, is_external = runs.runs[name].run, runs.units(name), runs.spec(name).own_units
    ids = units["unit_id" if is_external else "chunk_id"]
    texted = units if is_external else runs.admitted_chunks.artifact.frame("chunks", ["text"])
    documents: dict[tuple[int, int], list[Line]] = {}
    top = frame[frame["k_final"] <= runs.config.uncertainty.k]
    top = top.sort_values(["variant", "seed", "k_final"], kind="stable")
    columns = ("variant", "seed", "chunk", "k_final", "score_raw")
    rows = zip(*(top[column].tolist() for column in columns), strict=True)
    chunk_ids, doc_ids = ids.to_numpy(), units["doc_id"].to_numpy()
    texts = texted["text"].to_numpy()
    for variant, seed, row, rank, score in rows:
        entry = describe_document(
            str(chunk_ids[row]), str(doc_ids[row]), rank, score, str(texts[row])
        )
        documents.setdefault((variant, seed), []).append(entry)
    return documents
