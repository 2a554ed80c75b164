"""The uncertainty of each retrieval and each answer, and `uncertain-retrievals.jsonl`."""

import dataclasses
import datetime as dt
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

import numpy as np
import pandas as pd

from rag_eval.core.records import Absent as NotMeasured
from rag_eval.core.records import Figure
from rag_eval.gold.files import ORIGINAL
from rag_eval.measures.intervals import aggregate
from rag_eval.measures.overlap import SharedGold, mean_interval
from rag_eval.pipeline.answer_stages import NO_ANSWERS, AnswerMeasures, AnswerSet
from rag_eval.pipeline.claims import MissRateClaims, RetrievalOutcomes, Speaker
from rag_eval.pipeline.corpus import AdmittedChunks, CorpusChunks, CorpusSnapshot
from rag_eval.pipeline.index import CorpusIndex
from rag_eval.pipeline.scores import ScoredRuns, figure_of
from rag_eval.pipeline.signals import RetrievalSignals, of_strategy
from rag_eval.uncertainty.confidence import (
    COVERAGE_SIGNAL,
    Line,
    MissRate,
    UncertainRetrieval,
    calibrated_confidence,
    describe_document,
    final_confidence,
    groundedness_confidence,
    reported_confidence,
    retrieval_confidence,
)
from rag_eval.uncertainty.confidence_values import (
    Absent,
    Confidence,
    Deterministic,
    Measured,
    as_json,
    effective,
)
from rag_eval.uncertainty.gaps import Gap
from rag_eval.uncertainty.iterative import list_expansions
from rag_eval.uncertainty.miss_rate_report import AnswerConfidences, CorpusCoverage, CoverageCount

# ---- Confidence of each answer: its groundedness, discounted by the miss rate of its retrieval.

MIN_MISSED = 30
"""A share of right answers needs answers over missed retrievals from at least this many groups."""


@dataclasses.dataclass(frozen=True)
class Worth:
    """Confidence values of the answers of a run by query id; empty without answers.

    `strategy` gives the evidence of the answers. `right_when_missed` is the share of answers that
    cite gold despite a miss; None for too few answers.
    """

    strategy: str = ""
    by_query: Mapping[str, Mapping[str, Confidence]] = dataclasses.field(default_factory=dict)
    right_when_missed: Measured | None = None


def weigh_answers(
    runs: ScoredRuns,
    claims: MissRateClaims,
    outcomes: RetrievalOutcomes,
    answers: AnswerSet | None,
    measures: AnswerMeasures | None,
) -> Worth:
    """Compute the confidence values of every answer."""
    if answers is None or measures is None:
        return Worth()
    strategy, scores = answers.about.strategy, measures.per_question.set_index("query_id")
    original, judged = original_claims(claims.claims_of(strategy), runs, strategy), outcomes.judged
    missed = judged.loc[
        judged["missed"] & judged["claim_id"].isin(original["claim_id"]), "query_id"
    ]
    over = scores[scores.index.isin(missed) & (scores["outcome"] == "answered")]
    over = over[over["n_gold"] > 0]
    groups = dict(zip(runs.gold.queries["query_id"], runs.gold.groups.tolist(), strict=True))
    right, right_of_group = None, {}
    seen = pd.DataFrame(
        {
            "right": (over["n_correct"].to_numpy() > 0).astype(np.float64),
            "group": [groups[query] for query in over.index],
            "place": np.arange(len(over)),
        }
    )
    if seen["group"].nunique() >= MIN_MISSED:
        name, gold = (
            runs.gold_variants.about.hash[:16],
            runs.gold.named_gold.of(over.index.tolist()),
        )
        share = functools.partial(_share_right, gold=gold, name=name)
        # With the answers of its own group, the outcome of an answer would decide its confidence.
        right, right_of_group = share(seen), _leave_groups_out(seen, share)
    rows = {row["query_id"]: row for row in original.to_dict("records")}
    by_query: dict[str, dict[str, Confidence]] = {}
    for answer in answers.answers:
        query, answered = answer.query_id, answer.outcome == "answered"
        if answer.mode == "deterministic":
            value = scores["groundedness"][query]
            known = answered and not pd.isna(value)
            synthesis = groundedness_confidence(float(value) if known else None)
        else:
            synthesis = reported_confidence(answer.confidence if answered else None, answer.mode)
        miss = read_miss_rate(rows[query], claims.speakers[strategy])
        of_others = right_of_group.get(groups[query], right)
        by_query[query] = {
            "synthesis_confidence": synthesis,
            "retrieval_confidence": retrieval_confidence(miss),
            "final_confidence": final_confidence(synthesis, miss),
            "calibrated_confidence": calibrated_confidence(synthesis, miss, of_others),
        }
    return Worth(strategy, by_query, right)


T = TypeVar("T")


def _share_right(seen: pd.DataFrame, gold: SharedGold, name: str) -> Measured:
    found = mean_interval(seen["right"].to_numpy(), gold.take(seen["place"].to_numpy()))
    value, low, high, _ = (float(end[0]) for end in found)
    return Measured(
        value=value,
        dataset=f"answers over missed retrievals, gold {name}",
        n=len(seen),
        ci_low=low,
        ci_high=high,
        measured_at=dt.datetime.now(dt.UTC),
    )


def _leave_groups_out(seen: pd.DataFrame, share: Callable[[pd.DataFrame], T]) -> dict[int, T]:
    """Compute a value for each group of `seen` (right, group) from the rows of all other groups.

    Groups of a single row share the computation with those of an equal one.
    """
    totals = seen.groupby("group")["right"].agg(["sum", "count"])
    kind_of = {
        group: ("alone", right) if count == 1 else ("group", group)
        for group, right, count in totals.itertuples()
    }
    example = {kind: group for group, kind in kind_of.items()}
    found = {kind: share(seen[seen["group"] != group]) for kind, group in example.items()}
    return {group: found[kind] for group, kind in kind_of.items()}


def summarize_answers(worth: Worth, runs: ScoredRuns) -> AnswerConfidences | NotMeasured:
    """Average the confidence values of the answers."""
    found = list(worth.by_query.values())
    if not found:
        return NotMeasured(reason=NO_ANSWERS)
    shared = runs.gold.named_gold.of(list(worth.by_query))

    def mean(name: str) -> Figure:
        # A question without an answer has nothing to discount.
        values = np.array(
            [
                np.nan
                if isinstance(entry[name], Absent)
                or isinstance(entry["synthesis_confidence"], Absent)
                else effective(entry[name])
                for entry in found
            ]
        )
        record = aggregate([name], values[:, None], shared)[0]
        absent = {one.reason for entry in found if isinstance(one := entry[name], Absent)}
        reason = f"absent for every answer: {', '.join(sorted(absent))}"
        return figure_of(record, None if record.n_scored else reason)

    few = f"fewer than {MIN_MISSED} independent questions were answered over a missed retrieval"
    return AnswerConfidences(
        n=len(found),
        synthesis_confidence=mean("synthesis_confidence"),
        final_confidence=mean("final_confidence"),
        calibrated_confidence=mean("calibrated_confidence"),
        right_when_missed=worth.right_when_missed,
        why={} if worth.right_when_missed else {"right_when_missed": few},
    )


def original_claims(claims: pd.DataFrame, runs: ScoredRuns, name: str) -> pd.DataFrame:
    """Select the claims of the original wordings under the first seed."""
    is_first = claims["seed"] == runs.first_seed(name)
    return claims[(claims["paraphrase_id"] == ORIGINAL) & is_first]


def read_miss_rate(row: Mapping[Any, Any], by: Speaker) -> MissRate:
    """Read the miss rate in a row of CLAIMS."""
    return MissRate(
        _known(row["miss_rate"]),
        _known(row["ci_low"]),
        _known(row["ci_high"]),
        row["status"],
        row["target"],
        int(row["k"]),
        ", ".join(by.gold_sources) or None,
        row["calibrator"],
        by.n_outcomes,
        by.fitted_at,
        by.discounts,
    )


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


# ---- Retrievable share of the corpus: counted from the index, not estimated.


def measure_coverage(
    corpus: CorpusSnapshot, chunks: CorpusChunks, admitted: AdmittedChunks, index: CorpusIndex
) -> CorpusCoverage:
    """Count the shares of documents indexed, of text in chunks, and of chunks with vectors."""
    documents, cut = corpus.documents, chunks.about.n_chunks
    kept = admitted.artifact.frame("chunks", ["doc_id", "start", "end"])
    length = int(documents["text"].str.len().sum())
    in_chunks = "characters of the documents that an indexed chunk holds"
    return CorpusCoverage(
        documents_indexed=_count_share(
            kept["doc_id"].nunique(), len(documents), "documents with an indexed chunk"
        ),
        text_in_chunks=_count_share(_count_covered(kept), length, in_chunks),
        chunks_admitted=_count_share(len(kept), cut, "chunks that the poisoning guard admitted"),
        # A run stops when the vector of an admitted chunk is missing.
        chunks_embedded={
            model: _count_share(
                index.about.n_chunks, len(kept), "chunks whose vectors are in the index"
            )
            for model in sorted({one.embed_model for one in index.about.strategies.values()} - {""})
        },
    )


def _count_share(part: int, whole: int, what: str) -> CoverageCount:
    value = min(part / whole, 1.0) if whole else 0.0
    counted = Deterministic(value=value, reason=f"counted: {part} of {whole} {what}")
    return CoverageCount(n=part, of=whole, confidence=counted)


def _count_covered(chunks: pd.DataFrame) -> int:
    """Count the characters in at least one chunk. Chunks of a document may overlap."""
    ordered = chunks.sort_values(["doc_id", "start"], kind="stable")
    start, end = (ordered[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    reached = ordered["end"].groupby(ordered["doc_id"]).cummax()
    before = reached.groupby(ordered["doc_id"]).shift(fill_value=0).to_numpy(dtype=np.int64)
    return int(np.maximum(end - np.maximum(start, before), 0).sum())


# ---- `uncertain-retrievals.jsonl`: one line for every retrieval of every strategy.

UNCERTAIN_FILE: Final = "uncertain-retrievals.jsonl"
SCHEMA_VERSION = 2


def write_lines(
    runs: ScoredRuns,
    claims: MissRateClaims,
    signals: RetrievalSignals,
    worth: Worth,
    coverage: CorpusCoverage,
) -> Iterator[bytes]:
    """Write one line for each claim: a line has about 4 KB, so they are never all in memory."""
    for name in runs.names:
        frame, first_seed = signals.signals_of(name), runs.first_seed(name)
        stated, by = claims.claims_of(name), claims.speakers[name]
        documents, steps = _list_documents(runs, name), runs.runs[name].expansions
        expansions = {} if steps is None else list_expansions(steps)
        gaps = _list_gaps(signals, name) if signals.about[name].has_gaps else None
        answered = worth.by_query if worth.strategy == name else {}
        harder = stated["miss_rate"].rank(pct=True, method="max")
        columns = (frame["variant"], frame["seed"], frame[COVERAGE_SIGNAL], harder)
        facts = zip(*(column.tolist() for column in columns), strict=True)
        rows = zip(stated.to_dict("records"), facts, strict=True)
        for row, (variant, seed, covered, share) in rows:
            is_first = seed == first_seed
            found = UncertainRetrieval(
                documents=documents.get((variant, seed), []),
                miss_rate=read_miss_rate(row, by),
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
                **found.as_json(),
            }
            if is_first and row["paraphrase_id"] == ORIGINAL and row["query_id"] in answered:
                values = answered[row["query_id"]]
                line["answer"] = {part: as_json(value) for part, value in values.items()}
            text = json.dumps(line, sort_keys=True, ensure_ascii=True, allow_nan=False)
            yield f"{text}\n".encode()


def _list_gaps(signals: RetrievalSignals, name: str) -> dict[tuple[int, int], list[Gap]]:
    """List the semantic gaps of every (variant, seed)."""
    found: dict[tuple[int, int], list[Gap]] = {}
    for row in of_strategy(signals.gaps, name).to_dict("records"):
        gap = Gap(row["description"], row["severity"], row["mitigation"])
        found.setdefault((row["variant"], row["seed"]), []).append(gap)
    return found


def _list_documents(runs: ScoredRuns, name: str) -> dict[tuple[int, int], list[Line]]:
    """List the first K results of every (variant, seed), best first."""
    frame, units, is_external = runs.runs[name].run, runs.units(name), runs.spec(name).own_units
    ids = units["unit_id" if is_external else "chunk_id"]
    texted = units if is_external else runs.admitted_chunks.artifact.frame("chunks", ["text"])
    found: dict[tuple[int, int], list[Line]] = {}
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
        found.setdefault((variant, seed), []).append(entry)
    return found
