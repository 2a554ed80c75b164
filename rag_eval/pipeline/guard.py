"""The guard at retrieval time: no strategy may return a passage that restates the question."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.answers.evidence import Withheld
from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.config import GoldSetConfig
from rag_eval.pipeline.by_chunk import identify_chunks, work_by_chunk
from rag_eval.pipeline.corpus import AdmittedChunks, CorpusChunks, EvidenceTrust, GoldVariants
from rag_eval.pipeline.runner import Node, Result, Stage, Work, frame_part, json_part
from rag_eval.retrieval.ranking import Ranking
from rag_eval.retrieval.service import QueryGuard
from rag_eval.retrieval.strategies import ReadyStrategy
from rag_eval.storage.artifacts import Artifact
from rag_eval.trust.allowances import ALLOWED
from rag_eval.trust.guard import VERDICTS, rank_findings, screen
from rag_eval.trust.restating import find_sightings, judge_sightings, restated_pairs
from rag_eval.trust.sources import vouched_for


@dataclasses.dataclass(frozen=True)
class RestatedFacts:
    """Facts for the report on chunks that restate a question."""

    n_blocked_pairs: int
    n_blocked_chunks: int
    n_warned_pairs: int


class RestatedPassages(Result):
    """Admitted chunks that restate a wording of the gold set.

    `pairs` has query (row of the variants), chunk, start, end, rule and severity.
    """

    pairs: pd.DataFrame = frame_part()
    about: "RestatedFacts" = json_part()
    seen: str | None = json_part(volatile=True, default=None)
    """Key of the stored sightings, which the next run reads."""

    def select(self, severities: Sequence[str]) -> pd.DataFrame:
        """Return the pairs of some severities."""
        pairs = self.pairs
        return pairs[pairs["severity"].isin(severities)]

    def codes(self, n_chunks: int, severities: Sequence[str]) -> IntArray:
        """Return `variant * n_chunks + chunk` for every pair of some severities."""
        pairs = self.select(severities)
        query, chunk = (pairs[name].to_numpy(dtype=np.int64) for name in ("query", "chunk"))
        return np.asarray(query * n_chunks + chunk, dtype=np.int64)


@Stage(
    "restated_passages",
    "trust",
)
def find_restated(
    work: Work, gold_variants: GoldVariants, admitted_chunks: AdmittedChunks
) -> RestatedPassages:
    """Find the chunks that restate a question: no strategy may return them for it."""
    chunks, facts = admitted_chunks.chunks, admitted_chunks.facts
    texts, vouched = gold_variants.texts, vouched_for(facts)
    with work.progress.step("Looking for passages that restate a question"):
        seen = _find_sightings(work, texts, chunks, vouched)
        found = judge_sightings(
            texts,
            seen.frame("rows").rename(columns={"row": "chunk"}),
            doc_ids=chunks["doc_id"].array,
            sources=facts["domain"].array,
            vouched=vouched,
            warned=facts["warned"].to_numpy(dtype=bool),
        )
    allowed = (facts["allowed_by"] != "").to_numpy(dtype=bool)
    pairs = found[~allowed[found["chunk"].to_numpy()]].reset_index(drop=True)
    blocked = pairs[pairs["severity"] == "blocked"]
    about = RestatedFacts(
        n_blocked_pairs=len(blocked),
        n_blocked_chunks=int(blocked["chunk"].nunique()),
        n_warned_pairs=int((pairs["severity"] == "warning").sum()),
    )
    return RestatedPassages(pairs=pairs, about=about, seen=seen.key)


def _find_sightings(
    work: Work, texts: list[str], chunks: pd.DataFrame, vouched: BoolArray | None
) -> Artifact:
    """Find sightings in the chunks that the run before did not search for the same questions."""

    def make(block: IntArray) -> pd.DataFrame:
        return find_sightings(
            texts,
            chunks["text"].iloc[block].tolist(),
            titles=chunks["title"].iloc[block].tolist(),
            vouched=None if vouched is None else vouched[block],
        ).rename(columns={"chunk": "row"})

    flags = np.zeros(len(chunks), dtype="S1") if vouched is None else vouched.astype("S1")
    recorded = work.evaluation.runner.find_recorded(Node(work.stage.name))
    before = recorded.seen if isinstance(recorded, RestatedPassages) else None
    keys = np.char.add(identify_chunks(chunks), flags)
    return work_by_chunk(
        work, "restated_sightings", identity=texts, keys=keys, make=make, before=before
    )


def query_guard(
    config: GoldSetConfig, admitted: AdmittedChunks, chunks: pd.DataFrame
) -> QueryGuard | None:
    """Make the guard of a `RetrievalService` over the admitted chunks; None without quarantine.

    `chunks` is the frame of the admitted chunks, which the caller has in memory.
    """
    if not config.trust.withheld:
        return None
    facts = admitted.facts
    return QueryGuard(
        chunks,
        facts["domain"],
        vouched_for(facts),
        exempt=(facts["allowed_by"] != "").to_numpy(dtype=bool),
        warned=facts["warned"].to_numpy(dtype=bool),
        withheld=config.trust.withheld,
    )


def withheld_chunks(
    config: GoldSetConfig, gold: GoldVariants, admitted: AdmittedChunks, restated: RestatedPassages
) -> Withheld:
    """Find the chunks that retrieval withholds from each question.

    Evidence search leaves out these chunks, too. Quarantine withholds chunks that restate any
    wording of the question. The trust filter withholds chunks under the threshold.
    """
    pairs = restated.select(config.trust.withheld)
    owners = gold.variants["query_id"].to_numpy(dtype=object)[
        pairs["query"].to_numpy(dtype=np.int64)
    ]
    of_question = {
        str(query_id): frozenset(part.tolist()) for query_id, part in pairs["chunk"].groupby(owners)
    }
    return Withheld(of_question, admitted.passes if config.trust.filter else None)


def search_depth(config: GoldSetConfig, pairs: IntArray, n_chunks: int) -> int:
    """Return the depth of a search that leaves the configured depth behind the guard."""
    return config.depth + (int(np.bincount(pairs // n_chunks).max()) if len(pairs) else 0)


def guarded_search(
    config: GoldSetConfig,
    strategy: ReadyStrategy,
    texts: list[str],
    seed: int,
    *,
    allowed: BoolArray | None,
    restated: RestatedPassages,
    ignored: IntArray,
) -> tuple[Ranking, int]:
    """Search every wording to the configured depth, as a caller behind the guard would.

    `ignored` are pairs of `GoldVariants.own_documents`, which are left out too. The second value is
    the number of chunks that the guard removed.
    """
    depth, n_chunks = config.depth, len(strategy.index.table)
    pairs = restated.codes(n_chunks, config.trust.withheld)
    gone = np.union1d(pairs, ignored)
    ranked = strategy.search(texts, search_depth(config, gone, n_chunks), seed, allowed=allowed)
    codes = np.arange(len(ranked.rows), dtype=np.int64)[:, None] * n_chunks + ranked.rows
    dropped = int((np.isin(codes, pairs) & ranked.has_chunk)[:, :depth].sum())
    return ranked.without(gone, n_chunks).cut(depth), dropped


# ---- Units of an outside retriever: verdicts of overlapping chunks, or a scan.


@dataclasses.dataclass(frozen=True)
class UnitVerdicts:
    """Verdicts on the units of a strategy.

    The trust of a unit of an unknown document is 0. `pairs` and `warned` are the pairs of wording
    and unit that restate the wording, blocked or with a warning, as `variant * n_units + unit`.
    """

    trust: FloatArray
    verdict: npt.NDArray[np.object_]
    reasons: list[list[str]]
    pairs: IntArray
    warned: IntArray


def unit_verdicts(
    config: GoldSetConfig,
    corpus_chunks: CorpusChunks,
    evidence_trust: EvidenceTrust,
    texts_asked: list[str],
    units: pd.DataFrame,
) -> UnitVerdicts:
    """Judge the units of an external strategy (UNITS frame)."""
    evidence, n = evidence_trust.trust, len(units)
    rank = np.zeros(n, dtype=np.int64)
    reasons: list[list[str]] = [[] for _ in range(n)]

    def mark(unit: int, grade: int, codes: Sequence[str]) -> None:
        rank[unit] = max(rank[unit], grade)
        reasons[unit] += [code for code in codes if code not in reasons[unit]]

    met = _overlapping(units, corpus_chunks.chunks, evidence)
    for unit, verdict, codes in zip(met["unit"], met["verdict"], met["reasons"], strict=True):
        mark(unit, VERDICTS.index(verdict), codes)
    # Do not screen text that a person allowed. The loop above covers the other overlapping chunks.
    is_allowed = np.array([ALLOWED in codes for codes in reasons], dtype=bool)
    texts, returned = (units[name].to_numpy(dtype=object) for name in ("text", "returned"))
    foreign = np.flatnonzero((units["chunk"] < 0).to_numpy() & (texts != "") & ~is_allowed)
    # The returned text differs from the corpus, so no judgement or allowance covers it.
    other = np.flatnonzero(returned != "")
    places = np.concatenate([foreign, other])
    milder = config.trust.about_injection
    scanned = screen(
        [str(text) for text in (*texts[foreign], *returned[other])], about_injection=milder
    )
    judged = rank_findings(scanned, len(places), about_injection=milder)
    for place, grade, codes in zip(places, *judged, strict=True):
        mark(place, grade, codes)
    facts = evidence.drop_duplicates("doc_id").set_index("doc_id").reindex(units["doc_id"])
    unknown = "unknown" if config.trust.configured else "not_configured"
    vouched = vouched_for(facts.fillna({"domain_state": unknown, "signature_state": unknown}))
    at = np.concatenate([np.arange(n), other])
    pairs = restated_pairs(
        texts_asked,
        [*texts, *returned[other]],
        titles=[""] * len(at),
        doc_ids=units["doc_id"].iloc[at].tolist(),
        sources=facts["domain"].fillna("").iloc[at].tolist(),
        vouched=None if vouched is None else vouched[at],
        warned=rank[at] == VERDICTS.index("warning"),
    )
    query, place = (pairs[name].to_numpy(dtype=np.int64) for name in ("query", "chunk"))
    counts = (place >= n) | ~is_allowed[at[place]]
    code, blocked = query * max(1, n) + at[place], (pairs["severity"] == "blocked").to_numpy()
    return UnitVerdicts(
        facts["trust"].fillna(0.0).to_numpy(dtype=np.float64),
        np.array(VERDICTS, dtype=object)[rank],
        reasons,
        np.unique(code[counts & blocked]),
        np.unique(code[counts & ~blocked]),
    )


def _overlapping(units: pd.DataFrame, chunks: pd.DataFrame, evidence: pd.DataFrame) -> pd.DataFrame:
    """Match units with the chunks that are not clean: rows of unit, verdict and reasons.

    A unit matches the chunks that share characters with it. A unit without a place matches every
    chunk of a document when all chunks of the document are blocked.
    """
    is_blocked = evidence["verdict"] == "blocked"
    marked = chunks[["doc_id", "start", "end"]].assign(
        verdict=evidence["verdict"].to_numpy(),
        reasons=evidence["reasons"].to_numpy(),
        wholly=is_blocked.groupby(evidence["doc_id"]).transform("all").to_numpy(),
    )
    marked = marked[marked["verdict"] != "clean"]
    places = units[["doc_id", "start", "end"]].assign(unit=np.arange(len(units)))
    met = places.merge(marked, on="doc_id", suffixes=("", "_chunk"))
    is_placed = met["start"] >= 0
    shares = (met["start_chunk"] < met["end"]) & (met["start"] < met["end_chunk"])
    return met[(is_placed & shares) | (~is_placed & met["wholly"])]
