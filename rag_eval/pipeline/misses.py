"""Observe misses at every cutoff, and trace them: which step lost the gold of a question."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, get_args

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray, number
from rag_eval.core.frames import schema
from rag_eval.core.types import BinaryTarget
from rag_eval.measures.intervals import aggregate, delta_of, holm, paired_comparison, within_query
from rag_eval.measures.ranking import expand
from rag_eval.measures.run_scores import (
    ALWAYS_K,
    RunJudgements,
    cutoffs_of,
    figure_of,
    judge_runs,
    rank_gold,
    wording_of,
)
from rag_eval.pipeline.corpus import AdmittedChunks, GoldVariants
from rag_eval.pipeline.index import CorpusIndex
from rag_eval.pipeline.open_strategies import chosen_kinds, open_index
from rag_eval.pipeline.runner import Result, Stage, Work, frame_part, json_part
from rag_eval.pipeline.runs import ScoredRuns, StrategyRun, score_runs, search_depth
from rag_eval.retrieval.ranking import Ranking
from rag_eval.uncertainty.miss_rate_report import MissesPart, MissPair, ObservedMisses, ScoreBin
from rag_eval.uncertainty.opened_index import OpenIndex

MISSED: Final = schema(
    "missed",
    strategy=("str", "strategy that missed the question"),
    query_id=("str", "question, in its original wording and under the first seed"),
    lexical=("float", "rank of the first gold item in the lexical list before fusion; NaN: none"),
    vector=("float", "the same in the vector list before fusion"),
    ranked=("float", "the same after fusion, before the rerank step"),
    final=("float", "the same in the list of the run"),
    depth=("int", "length of the lists before fusion; 0 where only the list of the run is known"),
    ranked_depth=("int", "length of the list after fusion"),
    lost=("str", "step that lost the gold: retrieval, fusion, rerank or cutoff"),
    twin_rank=("float", "rank of a passage with the text of a gold passage; NaN: none"),
    twin=("str", "document or section of that passage; empty: none"),
)
STEPS: Final = ("lexical", "vector", "ranked", "final")
MAX_BINS, PER_BIN = 5, 10
"""Largest number of bins of scores, and least number of questions in a bin."""


class MissedQuestions(Result):
    """Missed questions of every strategy (MISSED), and their counts for the report."""

    missed: pd.DataFrame = frame_part()
    about: dict[str, MissesPart] = json_part()

    def report_part(self, _: Work) -> dict[str, object]:
        """Give the part `misses`."""
        return {"misses": self.about}


@Stage(
    "missed_questions",
    "measures",
    stores=("embeddings",),
    reads=("level", "depth", "strategies", "trust.filter", "trust.quarantine"),
    chosen=chosen_kinds,
    columns=MISSED,
)
def trace_misses(
    work: Work,
    *,
    runs: dict[str, StrategyRun],
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
    corpus_index: CorpusIndex,  # noqa: ARG001 - identifies the vectors of the opened index
) -> MissedQuestions:
    """Find the step that lost the gold of each missed question, and identical texts elsewhere."""
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    trace = _Trace(scored, open_index(work.evaluation, admitted_chunks))
    parts, part_of = [], {}
    with work.progress.step("Tracing misses", len(scored.names), "strategies") as advance:
        for name in scored.names:
            judgements = judge_runs(scored, name)
            is_first = (wording_of(scored.gold)[0] == 0)[judgements.variant]
            is_first &= (judgements.seed == scored.first_seed(name)) & ~np.isnan(judgements.first)
            part = trace.rows(
                name, judgements, is_first & (judgements.first > ALWAYS_K) & ~judgements.failed
            )
            parts.append(part)
            part_of[name] = MissesPart(
                n_judged=int(is_first.sum()),
                n_failed=int((is_first & judgements.failed).sum()),
                n_missed=len(part),
                lost={str(step): int(n) for step, n in part["lost"].value_counts().items()},
                n_twins=int(part["twin_rank"].notna().sum()),
                by_score=_bin_scores(scored, name, judgements, is_first & ~judgements.failed),
            )
            advance(1)
    return MissedQuestions(missed=MISSED.check(pd.concat(parts, ignore_index=True)), about=part_of)


@dataclasses.dataclass(frozen=True)
class _Trace:
    """Ranks the gold of missed questions after every step of a strategy."""

    runs: ScoredRuns
    opened: OpenIndex

    def rows(self, name: str, judgements: RunJudgements, missed: BoolArray) -> pd.DataFrame:
        """Make the rows of one strategy (MISSED). `missed`, bool [n_runs], marks its misses."""
        variant, seed = judgements.variant[missed], self.runs.first_seed(name)
        ranks = dict.fromkeys(STEPS, np.full(len(variant), np.nan))
        lengths = {"depth": 0, "ranked_depth": self.runs.config.depth}
        if name in self.opened.strategies and len(variant):
            lists = self._search(name, variant, seed)
            length = {step: ranking.rows.shape[1] for step, ranking in lists.items()}
            lengths = {"depth": max(length.values()), "ranked_depth": length["ranked"]}
            ranks |= {
                step: self._first(name, ranking.rows, variant) for step, ranking in lists.items()
            }
        ranks["final"] = np.where(
            np.isfinite(judgements.first[missed]), judgements.first[missed], np.nan
        )
        gold = self.runs.gold
        twin_rank, twin = self._find_twins(name, variant, seed)
        columns: dict[str, object] = {
            "query_id": gold.queries["query_id"].to_numpy()[gold.query_of[variant]],
            **ranks,
            **lengths,
            "lost": _lost_by(ranks),
            "twin_rank": twin_rank,
            "twin": twin,
        }
        texts = dict.fromkeys(("strategy", "query_id", "lost", "twin"), "str")
        return pd.DataFrame(columns).assign(strategy=name).astype(texts)

    def _search(self, name: str, variant: IntArray, seed: int) -> dict[str, Ranking]:
        """Search again as the run did, and return the list by step."""
        config, n_chunks = self.runs.config, len(self.opened.table)
        ignored = self.runs.gold_variants.own_documents(config, self.runs.chunks["doc_id"])
        allowed = self.runs.admitted_chunks.passes if config.trust.filter else None
        texts = [self.runs.gold_variants.texts[row] for row in variant.tolist()]
        lists = self.opened.strategies[name].trace(
            texts, search_depth(config, ignored, n_chunks), seed, allowed=allowed
        )
        place = np.full(len(self.runs.gold.variants), -1, dtype=np.int64)
        place[variant] = np.arange(len(variant))
        owner = place[ignored // n_chunks]
        codes = (owner * n_chunks + ignored % n_chunks)[owner >= 0]
        return lists | {"ranked": lists["ranked"].without(codes, n_chunks)}

    def _first(self, name: str, rows: Any, variant: IntArray) -> FloatArray:
        """Rank the first gold item of each list at the headline level; NaN without one."""
        gold = self.runs.gold_of(name)
        rank, owner = rank_gold(np.asarray(rows, np.int64), gold, self.runs.config.level, variant)
        first = np.full(len(variant), np.inf)
        np.minimum.at(first, owner, rank)
        return np.where(np.isfinite(first), first, np.nan)

    def _find_twins(
        self, name: str, variant: IntArray, seed: int
    ) -> tuple[FloatArray, Sequence[str]]:
        """Find the first of the top passages whose text equals that of a gold passage."""
        runs, gold = self.runs, self.runs.gold
        rank, twin = np.full(len(variant), np.nan), np.full(len(variant), "", dtype=object)
        if runs.runs[name].has_own_units:
            return rank, twin.tolist()
        text = pd.factorize(runs.admitted_chunks.artifact.frame("chunks", ["text"])["text"])[0]
        missed, chunk = self._gold_chunks(gold.query_of[variant])
        gold_texts = pd.DataFrame({"missed": missed, "text": text[chunk]})
        top = runs.rows(name)[seed][variant][:, :ALWAYS_K]
        missed, place = np.nonzero(top >= 0)
        twins = pd.DataFrame({"missed": missed, "text": text[top[missed, place]], "place": place})
        twins = twins.merge(gold_texts.drop_duplicates()).sort_values("place")
        twins = twins.drop_duplicates("missed")
        at, place = twins["missed"].to_numpy(), twins["place"].to_numpy()
        rank[at] = place + 1
        names = runs.chunks["doc_id" if runs.config.level == "document" else "section_id"]
        twin[at] = names.to_numpy(dtype=object)[top[at, place]]
        return rank, twin.tolist()

    def _gold_chunks(self, query: IntArray) -> tuple[IntArray, IntArray]:
        """Return position and chunk of the gold passages of queries.

        The passages carry a gold span. A query without spans has all chunks of its documents.
        """
        gold = self.runs.gold
        carried, entry = expand(gold.qrels_chunk.indptr, query)
        owner, label = expand(gold.qrels_document.indptr, query)
        whole = (gold.qrels_document.gains[label] > 0) & ~np.isin(owner, carried)
        documents = pd.DataFrame(
            {"owner": owner[whole], "document": gold.qrels_document.items[label[whole]]}
        )
        chunks = pd.DataFrame({"document": gold.document_of_chunk}).reset_index(names="chunk")
        full = documents.merge(chunks)
        return (
            np.concatenate([carried, full["owner"].to_numpy(dtype=np.int64)]),
            np.concatenate([gold.qrels_chunk.items[entry], full["chunk"].to_numpy(dtype=np.int64)]),
        )


def _lost_by(ranks: Mapping[str, FloatArray]) -> list[str]:
    """Name the last step that moved the gold out of the first ALWAYS_K ranks.

    Gold that no step had among them was lost by the cutoff, or by retrieval if no list has it.
    """
    best = np.fmin(ranks["lexical"], ranks["vector"])
    ranked = np.stack([best, *(ranks[step] for step in STEPS[2:])])
    lost: list[str] = np.select(
        [
            ranks["ranked"] <= ALWAYS_K,
            best <= ALWAYS_K,
            np.isfinite(ranked).any(axis=0),
        ],
        ["rerank", "fusion", "cutoff"],
        "retrieval",
    ).tolist()
    return lost


def _bin_scores(
    runs: ScoredRuns, name: str, judgements: RunJudgements, wanted: BoolArray
) -> list[ScoreBin]:
    """Compute the miss rate by the score of the first result, in bins of equal size."""
    run, gold = runs.runs[name].run, runs.gold
    top = run[(run["k_final"] == 1) & (run["seed"] == runs.first_seed(name))]
    variant = judgements.variant[wanted]
    score = top.set_index("variant")["score_raw"].reindex(variant).to_numpy()
    order = np.argsort(score, kind="stable")
    order = order[np.isfinite(score[order])]
    bins = []
    n_bins = min(MAX_BINS, len(order) // PER_BIN)
    for part in np.array_split(order, n_bins) if n_bins > 1 else ():
        missed = (judgements.first[wanted][part] > ALWAYS_K).astype(float)
        asked = gold.shared.take(gold.query_of[variant[part]])
        record = aggregate(["missed"], missed[:, None], asked)[0]
        bins.append(
            ScoreBin(
                low=float(score[part[0]]), high=float(score[part[-1]]), missed=figure_of(record)
            )
        )
    return bins


# ---- Observed misses of both targets at every cutoff, and their paired differences.

NONE_JUDGED: Final = "no question of this gold set can be judged"
MISSES: Final[tuple[BinaryTarget, ...]] = get_args(BinaryTarget)
Cells: TypeAlias = Sequence[tuple[BinaryTarget, int]]
"""Targets, each with its K."""


def observe_misses(runs: ScoredRuns) -> tuple[list[ObservedMisses], list[MissPair]]:
    """Observe the misses of every strategy and pair, for both targets at every cutoff.

    A failed retrieval misses. A question counts by its mean over wordings and seeds, and a pair is
    compared on the wordings that both strategies were run on.
    """
    cells = list(itertools.product(MISSES, cutoffs_of(runs.config.k)))
    missed = {name: miss_columns(runs, name, cells) for name in runs.names}
    figures = [row for name in missed for row in _average_misses(runs, name, missed[name], cells)]
    return figures, _compare_misses(runs, missed, cells)


def _average_misses(
    runs: ScoredRuns, name: str, missed: FloatArray, cells: Cells
) -> Iterator[ObservedMisses]:
    labels = [f"{target}_at_{k}" for target, k in cells]
    records = runs.aggregate(name, labels, missed, runs.config.level, failed_value=1.0)
    for (target, k), record in zip(cells, records, strict=True):
        figure = figure_of(record, None if record.n_scored else NONE_JUDGED)
        yield ObservedMisses(strategy=name, target=target, k=k, **dict(figure))


def _compare_misses(
    runs: ScoredRuns, missed: Mapping[str, FloatArray], cells: Cells
) -> list[MissPair]:
    gold, pairs = runs.gold, list(itertools.combinations(missed, 2))
    if not pairs:
        return []
    sides: tuple[list[FloatArray], list[FloatArray]] = ([], [])
    for pair in pairs:
        both = runs.ran(pair[0]) & runs.ran(pair[1])
        for name, side in zip(pair, sides, strict=True):
            variant = runs.scores(name).variant
            values = np.where(both[variant][:, None], missed[name], np.nan)
            side.append(within_query(values, gold.query_of[variant], len(gold.queries)))
    left, right = map(np.hstack, sides)
    comparison = paired_comparison(left, right, gold.shared, higher_is_better=False)
    adjusted = holm(comparison.p)
    return [
        MissPair.model_validate(
            {
                **dict(zip(("a", "b", "target", "k"), (*pair, *cell), strict=True)),
                **delta_of(comparison, at),
                "p": number(comparison.p[at]),
                "p_adjusted": number(adjusted[at]),
                "minimum_detectable": number(comparison.minimum_detectable[at]),
            }
        )
        for at, (pair, cell) in enumerate(itertools.product(pairs, cells))
    ]


def miss_columns(runs: ScoredRuns, name: str, cells: Cells) -> FloatArray:
    """Judge every run of a strategy by each (target, K), [n_runs, n_cells]; NaN = not judged."""
    judgements, scores, level = judge_runs(runs, name), runs.scores(name), runs.config.level
    columns = []
    for target, k in cells:
        at_k = dataclasses.replace(judgements, recall=scores.column(level, f"R@{k}"))
        columns.append(at_k.missed(target, k))
    query = runs.gold.query_of[judgements.variant]
    is_failed = judgements.failed & ~scores.ineligible(level, runs.gold)[query]
    return np.where(is_failed[:, None], 1.0, np.stack(columns, axis=1))


# ---- One plain sentence about a miss.

_LISTS: Final = {"lexical": "the lexical list", "vector": "the vector list"}


def describe_miss(row: Mapping[Any, Any]) -> str:
    """Say in one sentence which list had the gold, and which step lost it; `row` is of MISSED.

    Examples
    --------
    >>> describe_miss({"lexical": float("nan"), "vector": 14.0, "ranked": 23.0,
    ...     "final": 23.0, "depth": 1000, "ranked_depth": 100, "lost": "cutoff", "twin": ""})
    'The vector list had it at 14, the lexical list below 1000; fusion moved it to 23; the cut-off \
at 10 lost it.'
    """
    rank = {step: int(row[step]) for step in STEPS if row[step] == row[step]}  # NaN differs
    below, final = f"below {row['ranked_depth']}", rank.get("final")
    lists = [f"{words} at {rank[step]}" for step, words in _LISTS.items() if step in rank]
    lacking = [words for step, words in _LISTS.items() if step not in rank]
    if row["lost"] == "retrieval":
        clauses = [
            f"no list had it in its first {row['depth']}" if row["depth"] else "no list had it"
        ]
    elif lists:
        lists += [f"{words} below {row['depth']}" for words in lacking]
        clauses = [", ".join(lists).replace(" at ", " had it at ", 1)]
        clauses.append(f"fusion moved it {_place(rank.get('ranked'), below)}")
    else:
        clauses = [f"its list had it at {rank.get('ranked', final)}"]
    if rank.get("ranked", final) != final:
        clauses.append(f"the rerank moved it {_place(final, below)}")
    if row["lost"] == "cutoff":
        clauses.append(f"the cut-off at {ALWAYS_K} lost it")
    elif row["lost"] in {"fusion", "rerank"}:
        clauses[-1] += " and lost it"
    text = "; ".join(clauses)
    if row["twin"]:
        text += f"; the same text stood at {int(row['twin_rank'])} under another id, {row['twin']}"
    return f"{text[0].upper()}{text[1:]}."


def _place(rank: int | None, below: str) -> str:
    return below if rank is None else f"to {rank}"
