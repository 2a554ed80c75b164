"""Claims: state the miss rate of every retrieval, then record what the gold says of it.

The miss rates come from the calibrator that was accepted before the run. Without a calibrator they
come from the shipped prior, and without a usable prior from the uncalibrated heuristic. The module
`calibration` learns from the outcomes of the claims.
"""

import dataclasses
import datetime as dt
import functools
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self, TypeVar

import numpy as np
import pandas as pd

from rag_eval.core.arrays import FloatArray, number
from rag_eval.core.config import CLAIMS, PRIOR_QUERIES, GoldSetConfig, Uncertainty
from rag_eval.core.records import Absent, Figure
from rag_eval.core.types import DISCOUNTING, TARGETS, Answer, GoldSource, Status, Target
from rag_eval.gold.files import ORIGINAL
from rag_eval.measures.intervals import aggregate
from rag_eval.measures.overlap import NamedGold, SharedGold, mean_interval
from rag_eval.measures.run_scores import RankedRuns, figure_of, judge_runs
from rag_eval.uncertainty.calibrators import CalibratorInUse
from rag_eval.uncertainty.confidence import (
    COVERAGE_SIGNAL,
    Bounded,
    Confidence,
    CorpusCoverage,
    Derived,
    Deterministic,
    Gap,
    Line,
    Measured,
    MissRate,
    UncertainRetrieval,
    as_json,
    calibrated_confidence,
    describe_document,
    effective,
    final_confidence,
    retrieval_confidence,
)
from rag_eval.uncertainty.confidence import Absent as AbsentValue
from rag_eval.uncertainty.estimator import (
    ANY_AT_10,
    Miss,
    MissRateModel,
    Prior,
)
from rag_eval.uncertainty.heuristic import HEURISTIC, JudgedTexts
from rag_eval.uncertainty.iterative import list_expansions
from rag_eval.uncertainty.miss_rate_report import (
    AddedOutcomes,
    AnswerConfidences,
    StrategyMissRates,
)
from rag_eval.uncertainty.outcomes import (
    MAX_NUMBER,
    OutcomeStore,
    RetrievalOutcome,
    Shown,
    claim_id_of,
    new_outcome,
)
from rag_eval.uncertainty.signals import SIGNALS

QRELS: Final[GoldSource] = "qrels"

# ---- The source of a strategy's claims.


@dataclasses.dataclass(frozen=True)
class RateSource:
    """Source of the claimed miss rates of a strategy.

    `calibrator` is the id of a calibrator, `prior:<id>` or `heuristic_v0`. `status` is its earned
    status. `reason` says why there is no better source. `gold_sources` names the judges of the
    outcomes that the calibrator was fitted to. `discounts` says whether answers are discounted.
    """

    fingerprint: str
    status: Status
    calibrator: str
    reason: str
    n_outcomes: int = 0
    fitted_at: dt.datetime | None = None
    gold_sources: tuple[str, ...] = ()
    discounts: bool = False

    def read_rate(self, row: Mapping[Any, Any]) -> MissRate:
        """Read the miss rate in a row of CLAIMS from this source."""
        value, low, high = (
            None if np.isnan(row[name]) else float(row[name])
            for name in ("miss_rate", "ci_low", "ci_high")
        )
        return MissRate(
            value,
            low,
            high,
            row["status"],
            row["target"],
            int(row["k"]),
            ", ".join(self.gold_sources) or None,
            row["calibrator"],
            self.n_outcomes,
            self.fitted_at,
            self.discounts,
        )

    def describe(
        self,
        runs: RankedRuns,
        name: str,
        claims: pd.DataFrame,
        *,
        judged: pd.DataFrame,
        added: AddedOutcomes,
    ) -> StrategyMissRates:
        """Combine the claims of the strategy with its observed misses.

        `judged` has the claims that the gold judges, and `added` counts their new outcomes.
        """
        judgements, k, level = judge_runs(runs, name), runs.config.uncertainty.k, runs.config.level
        missed = np.column_stack([judgements.missed(target, k) for target in TARGETS])
        labels = [f"{target}_at_{k}" for target in TARGETS]
        # A question without gold cannot be missed, even by a failed retrieval.
        records = runs.aggregate(name, labels, missed, level, failed_value=1.0)
        nothing = "no question of this gold set can be judged"
        has_rate = claims["miss_rate"].notna()
        stated: Figure | Absent = Absent(reason=NOT_EARNED.format(status=self.status))
        if self.status in {*DISCOUNTING, "prior"}:
            usable = claims[has_rate & claims["query_id"].isin(judged["query_id"])]
            stated = _mean_stated(usable, runs.gold.named_gold, self.status)
        return StrategyMissRates(
            fingerprint=self.fingerprint,
            status=self.status,
            calibrator=self.calibrator,
            n_claims=len(claims),
            n_absent=int((~has_rate).sum()),
            observed={
                target: figure_of(record, None if record.n_scored else nothing)
                for target, record in zip(TARGETS, records, strict=True)
            },
            stated=stated,
            outcomes=added,
            **({"reason": self.reason} if self.reason else {}),
        )


def choose_source(
    config: GoldSetConfig,
    name: str,
    calibrator: CalibratorInUse,
    fingerprint: str,
    unlabelled: FloatArray,
) -> tuple[RateSource, MissRateModel | None]:
    """Choose the source of a strategy's claims, given its accepted calibrator.

    The prior needs `unlabelled`, the signals of known queries. Without a model the heuristic
    states the rates.
    """
    spec = config.uncertainty
    if (body := calibrator.usable) is not None:
        facts = body.model.n, body.fitted_at, tuple(body.gold_sources), body.discounts
        source = RateSource(fingerprint, calibrator.status, calibrator.calibrator_id, "", *facts)
        return source, body.model
    stale, why = calibrator.status == "stale", "no calibrator was accepted before this run"
    if stale:
        why = f"calibrator {calibrator.calibrator_id} is stale"
    missing = no_prior(spec.target, spec.k)
    if len(unlabelled) < PRIOR_QUERIES:
        missing = f"{len(unlabelled)} queries, the prior needs {PRIOR_QUERIES}"
    if missing:
        status: Status = "stale" if stale else "uncalibrated"
        return RateSource(fingerprint, status, HEURISTIC, f"{why}; {missing}"), None
    prior = prior_of(config, name)
    reason = f"{why}; the prior was fitted on {prior.fitted_on()}"
    source = RateSource(fingerprint, "stale" if stale else "prior", f"prior:{prior.id}", reason)
    return source, MissRateModel.from_prior(prior, SIGNALS, unlabelled, Miss(k=spec.k))


def prior_of(config: GoldSetConfig, name: str) -> Prior:
    """Read the shipped prior for the kind of a strategy."""
    return Prior.shipped(config.base_of(config.strategy(name)).prior)


def no_prior(target: Target, k: int) -> str:
    """Explain why no prior is shipped for a target and K; empty when there is a prior."""
    if (target, k) == ANY_AT_10:
        return ""
    return f"no prior is shipped for {target}@{k}, only for {ANY_AT_10.target}@{ANY_AT_10.k}"


# ---- The claims of a strategy.


def state_rates(
    spec: Uncertainty,
    source: RateSource,
    model: MissRateModel | None,
    signals: pd.DataFrame,
    variants: pd.DataFrame,
    *,
    judged: JudgedTexts,
    group_at_fit: Mapping[str, str],
) -> pd.DataFrame:
    """State the miss rates of a strategy's retrievals, as CLAIMS.

    `signals` has a row for each retrieval, and `variants` its wording. `judged` are the questions
    with outcomes. `group_at_fit` maps query ids to groups at the time of the fit, which select the
    fit without the question: the groups of the gold may have changed since.
    """
    columns = (
        variants[name].tolist() for name in ("query_id", "paraphrase_id", "group_id", "text")
    )
    queries, wordings, groups, texts = columns
    retrievals = zip(queries, wordings, map(int, signals["seed"]), texts, strict=True)
    guess, n_similar = judged.refine(signals[HEURISTIC].to_numpy(), texts, groups)
    claims = pd.DataFrame(
        {
            "claim_id": [claim_id_of(source.fingerprint, *retrieval) for retrieval in retrievals],
            "query_id": queries,
            "paraphrase_id": wordings,
            "group_id": groups,
            "seed": signals["seed"],
            "strategy": signals["strategy"],
            "strategy_fingerprint": source.fingerprint,
            "target": spec.target,
            "k": spec.k,
            "miss_rate": guess,
            "ci_low": np.nan,
            "ci_high": np.nan,
            "status": source.status,
            "calibrator": source.calibrator,
            HEURISTIC: guess,
            "similar_judged": n_similar,
        }
    )
    if model is not None:
        fitted = [group_at_fit.get(*pair) for pair in zip(queries, groups, strict=True)]
        values = signals[list(SIGNALS)].to_numpy()
        claims["miss_rate"] = model.predict(values, SIGNALS, fitted)
        claims["ci_low"], claims["ci_high"] = model.interval(values, SIGNALS, fitted)
    failed = signals["failed"].to_numpy()
    claims.loc[failed, ["miss_rate", "ci_low", "ci_high", HEURISTIC]] = np.nan
    claims.loc[failed, "status"] = "absent"
    return CLAIMS.check(claims)


# ---- Outcomes by the gold. Repeated nights on one index add nothing.


def record_judged(
    store: OutcomeStore,
    judged: pd.DataFrame,
    signals: pd.DataFrame,
    *,
    spec: Uncertainty,
    fingerprint: str,
    because: str,
) -> int:
    """Record the gold's judgements of one strategy's claims; return the number of new rows.

    `judged` are claims with the column `missed` and the index of `signals`; `because` names the
    gold.
    """
    standing = store.current(
        strategy_fingerprint=fingerprint, target=spec.target, k=spec.k, gold_source=QRELS
    ).set_index("claim_id")
    # After the first night, the table already has most judgements.
    stored = judged["claim_id"].map(standing["missed"].astype(float))
    fresh = judged[judged["missed"].astype(float).ne(stored)]
    offered = _make_outcomes(fresh, signals.loc[fresh.index])
    return len(store.record(offered, because=because).added)


def _make_outcomes(claims: pd.DataFrame, signals: pd.DataFrame) -> list[RetrievalOutcome]:
    names = "claim_id query_id group_id strategy strategy_fingerprint target k missed".split()
    # Outcomes limit signals to MAX_NUMBER, and ratios of the scores of a retriever may exceed it.
    rows = np.clip(signals[list(SIGNALS)].to_numpy(), -MAX_NUMBER, MAX_NUMBER).tolist()
    now = dt.datetime.now(dt.UTC)
    return [
        new_outcome(
            **{name: claim[name] for name in names},
            gold_source=QRELS,
            inclusion_probability=1.0,
            signals={
                name: None if math.isnan(value) else value
                for name, value in zip(SIGNALS, row, strict=True)
            },
            shown=Shown(
                value=claim["miss_rate"], status=claim["status"], calibrator=claim["calibrator"]
            ),
            at=now,
        )
        for claim, row in zip(claims.to_dict("records"), rows, strict=True)
    ]


# ---- The miss rates of a strategy in the report: observed, and as stated.

NOT_EARNED: Final = "the stated miss rates are {status}, so their mean is not shown"


def _mean_stated(claims: pd.DataFrame, gold: NamedGold, status: Status) -> Figure | Absent:
    """Average the claims of the judged questions.

    The interval of a `prior` is the mean of the claims' bounds. They hold the spread of levels
    between collections, which is common to all questions and far wider than their own spread.
    """
    if claims.empty:
        return Absent(reason="no question with a stated miss rate can be judged")
    query, names = pd.factorize(claims["query_id"])
    columns = ["miss_rate", "ci_low", "ci_high"]
    shared = gold.of(names.tolist())
    mean, low, high = aggregate(columns, claims[columns].to_numpy(), shared, query_of=query)
    figure = figure_of(mean)
    if status != "prior":
        return figure
    return figure.model_copy(update={"ci_low": number(low.value), "ci_high": number(high.value)})


def original_claims(claims: pd.DataFrame, runs: RankedRuns, name: str) -> pd.DataFrame:
    """Select the claims of the original wordings under the first seed."""
    is_first = claims["seed"] == runs.first_seed(name)
    return claims[(claims["paraphrase_id"] == ORIGINAL) & is_first]


# ---- The confidence values of the answers of a run.

MIN_MISSED = 30
"""Least number of groups of answers over missed retrievals behind a share of right answers."""
AnswerValues = Mapping[str, Confidence]
"""Confidence values of one answer by name."""


class AnswerGold(NamedTuple):
    """Gold of the questions of answers: group by query id, gold documents, and its hash."""

    group_of: Mapping[str, int]
    named: NamedGold
    hash: str


@dataclasses.dataclass(frozen=True)
class AnswerWorth:
    """Confidence values of the answers of a run by query id; empty without answers.

    `right_when_missed` is the share that cites gold despite a miss; None for too few answers.
    """

    strategy: str = ""
    by_query: Mapping[str, AnswerValues] = dataclasses.field(default_factory=dict)
    right_when_missed: Measured | None = None

    def summarize(self, named_gold: NamedGold) -> AnswerConfidences | None:
        """Average the confidence values of the answers; None without answers."""
        if not self.by_query:
            return None
        rows, shared = list(self.by_query.values()), named_gold.of(list(self.by_query))

        def mean(name: str) -> Figure:
            # A question without an answer has nothing to discount.
            values = [
                math.nan
                if isinstance(row[name], AbsentValue)
                or isinstance(row["synthesis_confidence"], AbsentValue)
                else effective(row[name])
                for row in rows
            ]
            figure = aggregate([name], np.array(values)[:, None], shared)[0]
            reasons = {value.reason for row in rows if isinstance(value := row[name], AbsentValue)}
            reason = f"absent for every answer: {', '.join(sorted(reasons))}"
            return figure_of(figure, None if figure.n_scored else reason)

        few = f"fewer than {MIN_MISSED} independent questions were answered over a missed retrieval"
        return AnswerConfidences(
            n=len(rows),
            synthesis_confidence=mean("synthesis_confidence"),
            final_confidence=mean("final_confidence"),
            calibrated_confidence=mean("calibrated_confidence"),
            right_when_missed=self.right_when_missed,
            why={} if self.right_when_missed else {"right_when_missed": few},
        )

    @classmethod
    def of(
        cls,
        strategy: str,
        answers: Sequence[Answer],
        scores: pd.DataFrame,
        claims: pd.DataFrame,
        *,
        source: RateSource,
        missed: Collection[str],
        gold: AnswerGold,
    ) -> Self:
        """Compute the confidence values of every answer.

        `scores` has the measures of the answers by query id. `claims` are those of the original
        wordings, and `missed` the ids of the questions that they missed.
        """
        over = scores[scores.index.isin(missed) & (scores["outcome"] == "answered")]
        over = over[over["n_gold"] > 0]
        by_answer = pd.DataFrame(
            {
                "right": (over["n_correct"].to_numpy() > 0).astype(np.float64),
                "group": [gold.group_of[query] for query in over.index],
                "place": np.arange(len(over)),
            }
        )
        right, right_of_group = None, dict[int, Measured]()
        if by_answer["group"].nunique() >= MIN_MISSED:
            shared = gold.named.of(over.index.tolist())
            share = functools.partial(_share_right, gold=shared, name=gold.hash[:16])
            # Without this, the outcome of an answer would decide its own confidence.
            right, right_of_group = share(by_answer), _leave_groups_out(by_answer, share)
        rows = {row["query_id"]: row for row in claims.to_dict("records")}
        by_query: dict[str, AnswerValues] = {}
        for answer in answers:
            query, answered = answer.query_id, answer.outcome == "answered"
            if answer.mode == "deterministic":
                value = scores["groundedness"][query]
                is_scored = answered and not pd.isna(value)
                synthesis = _groundedness_confidence(float(value) if is_scored else None)
            else:
                synthesis = _reported_confidence(
                    answer.confidence if answered else None, answer.mode
                )
            miss = source.read_rate(rows[query])
            of_others = right_of_group.get(gold.group_of[query], right)
            by_query[query] = {
                "synthesis_confidence": synthesis,
                "retrieval_confidence": retrieval_confidence(miss),
                "final_confidence": final_confidence(synthesis, miss),
                "calibrated_confidence": calibrated_confidence(synthesis, miss, of_others),
            }
        return cls(strategy, by_query, right)


def _reported_confidence(reported: float | None, system: str) -> Confidence:
    """Give the synthesis confidence that a model or recorded system reported; absent without it."""
    if reported is None:
        return AbsentValue(reason="insufficient_data")
    basis = "reported by the system that answered, not checked here"
    bounded = Bounded(low=0.0, high=reported, basis=basis, citation=system)
    formula = "as reported by the system"
    return Derived(value=reported, formula=formula, inputs={"reported": bounded})


def _groundedness_confidence(groundedness: float | None) -> Confidence:
    """Compute the synthesis confidence of a deterministic answer: the mean groundedness.

    It is absent for an answer without sentences (None).
    """
    if groundedness is None:
        return AbsentValue(reason="not_applicable")
    reason = (
        "counted: idf-weighted share of each sentence's words found in the evidence, mean over"
        " sentences"
    )
    counted = Deterministic(value=groundedness, reason=reason)
    formula = "mean groundedness of the answer's sentences"
    return Derived(value=groundedness, formula=formula, inputs={"groundedness": counted})


T = TypeVar("T")


def _share_right(rows: pd.DataFrame, gold: SharedGold, name: str) -> Measured:
    bounds = mean_interval(rows["right"].to_numpy(), gold.take(rows["place"].to_numpy()))
    value, low, high, _ = (float(end[0]) for end in bounds)
    return Measured(
        value=value,
        dataset=f"answers over missed retrievals, gold {name}",
        n=len(rows),
        ci_low=low,
        ci_high=high,
        measured_at=dt.datetime.now(dt.UTC),
    )


def _leave_groups_out(rows: pd.DataFrame, share: Callable[[pd.DataFrame], T]) -> dict[int, T]:
    """Compute a value for each group of `rows` (right, group) from the rows of other groups.

    Groups of a single row share the computation with those of an equal one.
    """
    totals = rows.groupby("group")["right"].agg(["sum", "count"])
    kind_of = {
        group: ("alone", right) if count == 1 else ("group", group)
        for group, right, count in totals.itertuples()
    }
    example = {kind: group for group, kind in kind_of.items()}
    by_kind = {kind: share(rows[rows["group"] != group]) for kind, group in example.items()}
    return {group: by_kind[kind] for group, kind in kind_of.items()}


# ---- `uncertain-retrievals.jsonl.gz`: one line for every retrieval of every strategy.

UNCERTAIN_FILE: Final = "uncertain-retrievals.jsonl.gz"
UNCERTAIN_VERSION: Final = 2
Retrieval = tuple[int, int]
"""Variant and seed of a retrieval."""


class StatedRetrievals(NamedTuple):
    """Signals, claims, their source and semantic gaps of one strategy, None where not computed."""

    signals: pd.DataFrame
    claims: pd.DataFrame
    source: RateSource
    gaps: pd.DataFrame | None


def uncertain_retrievals(
    runs: RankedRuns,
    retrievals: Mapping[str, StatedRetrievals],
    worth: AnswerWorth,
    coverage: CorpusCoverage,
) -> Iterator[bytes]:
    """Compress the lines of all retrievals as gzip, without a time; equal lines give equal bytes.

    A line has about 4 KB, so they are never all in memory.
    """
    pack = zlib.compressobj(wbits=31)  # 31: with the head and the check sum of gzip
    for name, stated in retrievals.items():
        for line in _uncertain_lines(runs, name, stated, worth, coverage):
            text = json.dumps(line, sort_keys=True, ensure_ascii=True, allow_nan=False)
            yield pack.compress(f"{text}\n".encode())
    yield pack.flush()


def _uncertain_lines(
    runs: RankedRuns,
    name: str,
    stated: StatedRetrievals,
    worth: AnswerWorth,
    coverage: CorpusCoverage,
) -> Iterator[Line]:
    """Describe each retrieval of one strategy."""
    signals, claims, source, semantic_gaps = stated
    first_seed, steps = runs.first_seed(name), runs.runs[name].expansions
    documents, gaps = _list_documents(runs, name), _list_gaps(semantic_gaps)
    expansions = {} if steps is None else list_expansions(steps)
    answered = worth.by_query if worth.strategy == name else {}
    harder = claims["miss_rate"].rank(pct=True, method="max")
    columns = (signals["variant"], signals["seed"], signals[COVERAGE_SIGNAL], harder)
    facts = zip(*(column.tolist() for column in columns), strict=True)
    for row, (variant, seed, covered, share) in zip(claims.to_dict("records"), facts, strict=True):
        is_first = seed == first_seed
        retrieval = UncertainRetrieval(
            documents=documents[variant, seed],
            miss_rate=source.read_rate(row),
            heuristic_v0=row["heuristic_v0"],
            similar_judged=row["similar_judged"],
            coverage=covered,
            corpus=coverage,
            gaps=None if semantic_gaps is None else gaps[variant, seed],
            iterations=expansions.get(variant, []) if is_first else [],
            harder_share=share,
        )
        line: Line = {
            "schema_version": UNCERTAIN_VERSION,
            "strategy": name,
            **{part: row[part] for part in ("claim_id", "query_id", "paraphrase_id", "seed")},
            **retrieval.as_json(),
        }
        if is_first and row["paraphrase_id"] == ORIGINAL and row["query_id"] in answered:
            values = answered[row["query_id"]]
            line["answer"] = {part: as_json(value) for part, value in values.items()}
        yield line


def _list_gaps(frame: pd.DataFrame | None) -> Mapping[Retrieval, list[Gap]]:
    gaps = defaultdict[Retrieval, list[Gap]](list)
    for row in [] if frame is None else frame.to_dict("records"):
        gap = Gap(row["description"], row["severity"], row["mitigation"])
        gaps[row["variant"], row["seed"]].append(gap)
    return gaps


def _list_documents(runs: RankedRuns, name: str) -> Mapping[Retrieval, list[Line]]:
    """List the first K results of every retrieval, best first."""
    frame, units, is_external = runs.runs[name].run, runs.units(name), runs.spec(name).own_units
    texts: Any = units if is_external else runs.admitted_chunks.artifact.frame("chunks", ["text"])
    named = pd.DataFrame(
        {
            "id": units["unit_id" if is_external else "chunk_id"].astype(str),
            "doc_id": units["doc_id"].astype(str),
            "text": texts["text"].astype(str),
        }
    ).to_numpy(dtype=object)
    documents = defaultdict[Retrieval, list[Line]](list)
    top = frame[frame["k_final"] <= runs.config.uncertainty.k]
    top = top.sort_values(["variant", "seed", "k_final"], kind="stable")
    columns = ("variant", "seed", "chunk", "k_final", "score_raw")
    rows = zip(*(top[column].tolist() for column in columns), strict=True)
    for variant, seed, row, rank, score in rows:
        chunk_id, doc_id, text = named[row]
        documents[variant, seed].append(describe_document(chunk_id, doc_id, rank, score, text))
    return documents
