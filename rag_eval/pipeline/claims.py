"""Claims: the signals of every retrieval, and the claimed miss rate.

The miss rates come from the calibrator that was accepted before the run. Without a calibrator they
come from the shipped prior, and without a usable prior from the uncalibrated heuristic. The module
`calibration` learns from the outcomes of the claims.
"""

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.config import (
    CLAIMS,
    DISCOUNTING,
    PRIOR_QUERIES,
    GoldSetConfig,
    Status,
    Target,
    Uncertainty,
)
from rag_eval.core.errors import InputError
from rag_eval.corpus.analyzer import Analyzer
from rag_eval.measures.ranking import collapse, relevant_ranks, span_ranks
from rag_eval.pipeline.corpus import AdmittedChunks, GoldVariants
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.measures import ScoredRuns, score_runs
from rag_eval.pipeline.retrieval import (
    Accepted,
    CorpusIndex,
    OpenIndex,
    StrategyRun,
    batch_of,
    can_be_asked,
    chosen_kinds,
    find_accepted,
    open_index,
    ready_strategy,
    strategy_fingerprint,
)
from rag_eval.pipeline.runner import (
    Result,
    Stage,
    Table,
    Work,
    count_undefined,
    frame_part,
    json_part,
)
from rag_eval.retrieval.ranking import Ranking
from rag_eval.storage.hashing import digest
from rag_eval.storage.sql import open_store
from rag_eval.uncertainty.audits import Claim, ClaimStore
from rag_eval.uncertainty.estimator import (
    Miss,
    MissRateModel,
    Prior,
    heuristic_v0,
    load_prior,
    model_from_prior,
)
from rag_eval.uncertainty.expansion import ExpansionContext
from rag_eval.uncertainty.gaps import semantic_gaps
from rag_eval.uncertainty.outcomes import (
    OutcomeStore,
    claim_id_of,
    fit_rows,
    frame_of,
)
from rag_eval.uncertainty.signals import SIGNALS, RankedBatch, TermSpace, signals
from rag_eval.uncertainty.wordings import Branch

# ---- The table of outcomes.


class Outcomes:
    """The table of outcomes as one stage reads it.

    Parameters
    ----------
    evaluation
        Evaluation with the store.
    """

    def __init__(self, evaluation: Evaluation) -> None:
        self.store: OutcomeStore | None = None
        self.error: InputError | None = None
        """Reason why the table cannot be used."""
        try:
            self.store = OutcomeStore(open_store(evaluation.settings))
        except InputError as error:
            self.error = error

    @property
    def fault(self) -> str:
        """Reason why the table cannot be used, without its address; empty when it can."""
        if self.error is None:
            return ""
        problem = self.error.problems[0]
        return f"the outcomes can neither be read nor written: {problem.code}, {problem.message}"

    def current(self, **where: Any) -> pd.DataFrame:
        """Read the current outcomes like `OutcomeStore.current`; no rows after a failure."""
        return frame_of([]) if self.store is None else self.store.current(**where)


# ---- The stored run of a strategy as batches for the estimators of a miss, one per seed.


def _stored_batches(runs: ScoredRuns, opened: OpenIndex, name: str) -> dict[int, RankedBatch]:
    """Make the batches of a stored run by seed, with variants as rows.

    When all units of an external retriever are chunks of the corpus, the batches hold chunks.
    Otherwise the batches hold units, and the texts of the units are the term space. These batches
    have no second retriever, because a second retriever would return other units.
    """
    spec, texts = runs.spec(name), runs.gold_variants.texts
    question = np.asarray(runs.gold.query_of, dtype=np.int64)
    frame = runs.runs[name].run
    lists = {
        seed: stored_ranking(frame, seed, len(texts), runs.config.depth)
        for seed in runs.about(name).seeds
    }
    if spec.own_units:
        units = runs.units(name)
        chunk_of = units["chunk"].to_numpy()
        if not len(chunk_of) or (chunk_of < 0).any():
            return _unit_batches(lists, units["text"].tolist(), texts, question)
        for seed, found in lists.items():
            rows = np.where(found.rows >= 0, chunk_of[np.maximum(found.rows, 0)], -1)
            lists[seed] = dataclasses.replace(found, rows=rows.astype(np.int32))
    return {
        seed: dataclasses.replace(
            batch_of(runs.config, opened, spec, texts, found), question=question
        )
        for seed, found in lists.items()
    }


def stored_ranking(frame: pd.DataFrame, seed: int, n: int, depth: int) -> Ranking:
    """Read one seed of a RUN frame as a ranking of n variants."""
    part = frame[frame["seed"] == seed]
    place = part["variant"].to_numpy(), part["k_final"].to_numpy() - 1
    rows, k_pos = np.full((n, depth), -1, dtype=np.int32), np.zeros((n, depth), dtype=np.int32)
    raw, norm, rerank = np.zeros((n, depth)), np.zeros((n, depth)), np.full((n, depth), np.nan)
    for array, column in (
        (rows, "chunk"),
        (raw, "score_raw"),
        (norm, "score_norm"),
        (k_pos, "k_pos"),
        (rerank, "rerank_score"),
    ):
        array[place] = part[column].to_numpy()
    candidates = (rows >= 0).sum(axis=1).astype(np.int64)
    return Ranking(rows, np.nan_to_num(raw), np.nan_to_num(norm), k_pos, rerank, candidates)


def _unit_batches(
    lists: dict[int, Ranking], unit_texts: list[str], texts: list[str], question: IntArray
) -> dict[int, RankedBatch]:
    analyzer = Analyzer()
    terms = analyzer.index(unit_texts)
    n_terms = 1 + max((max(row) for row in terms if row), default=-1)
    space, query_terms = TermSpace(terms, n_terms), analyzer.index(texts)
    return {
        seed: RankedBatch(
            rows=found.rows,
            raw=found.raw,
            norm=found.norm,
            cosine=False,
            space=space,
            query_terms=query_terms,
            question=question,
        )
        for seed, found in lists.items()
    }


# ---- Stage: signals of every retrieval, before any outcome is known.

MAX_GAPS = 5
"""Largest number of semantic gaps of a retrieval. The most severe ones stay."""


@dataclasses.dataclass(frozen=True)
class TrafficFacts:
    """Numbers of counted and uncounted claims of production traffic.

    The `n_unknown` claims could not be checked, for example because their retrieval failed. The
    `n_differing` claims retrieved documents of this corpus, but none that the strategy retrieves
    now.
    """

    counted: int = 0
    n_unknown: int = 0
    n_differing: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class SignalFacts:
    """Fingerprint of a strategy, and facts on its signals."""

    fingerprint: str
    has_gaps: bool
    """Whether semantic gaps were computed. They need retrieved units that are chunks."""
    traffic: TrafficFacts


class RetrievalSignals(Result):
    """Signals of every retrieval of every strategy.

    Attributes
    ----------
    signals
        strategy, variant, seed, failed, heuristic_v0, and one column per signal, NaN if undefined.
    gaps
        strategy, variant, seed, description, severity, mitigation; the most severe gap first.
    traffic
        Counted claims of production traffic: strategy, claim_id, query_id, group_id, and the
        signals of the current retrieval.
    about
        Facts by strategy.
    """

    signals: pd.DataFrame = frame_part()
    gaps: pd.DataFrame = frame_part()
    traffic: pd.DataFrame = frame_part()
    about: dict[str, SignalFacts] = json_part()

    def signals_of(self, name: str) -> pd.DataFrame:
        """Return the signals of one strategy."""
        return of_strategy(self.signals, name).reset_index(drop=True)

    def traffic_of(self, name: str) -> pd.DataFrame:
        """Return the claims of production traffic of one strategy."""
        return of_strategy(self.traffic, name).reset_index(drop=True)

    def unlabelled(self, name: str) -> FloatArray:
        """Return the signals of all known queries, float64 [n, p], as the base of z-scores."""
        own, traffic = self.signals_of(name).query("not failed"), self.traffic_of(name)
        return np.vstack([part[list(SIGNALS)].to_numpy() for part in (own, traffic)])

    def describe(self) -> dict[str, object]:
        """Show how many retrievals and claims of production traffic have signals."""
        signals = self.signals
        rows = [
            {
                "strategy": name,
                "n": int((signals["strategy"] == name).sum()),
                **dataclasses.asdict(about.traffic),
            }
            for name, about in self.about.items()
        ]
        return {"signals": Table(("strategy", "n", "counted", "n_unknown", "n_differing"), rows)}


def of_strategy(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Select the rows of one strategy."""
    return frame[frame["strategy"] == name]


def _identify_traffic(
    work: Work, runs: Mapping[str, StrategyRun], corpus_index: CorpusIndex, **_: Result
) -> object:
    """Identify the imported claims of every strategy."""
    del corpus_index
    outcomes = Outcomes(work.evaluation)
    if outcomes.store is None:
        return outcomes.fault
    claims = ClaimStore(outcomes.store.sql)
    return {
        name: [claim.claim_id for claim in claims.claims(_fingerprint(work, run))]
        for name, run in runs.items()
    }


def _fingerprint(work: Work, run: StrategyRun) -> str:
    spec = next(spec for spec in work.config.strategies if spec.name == run.about.name)
    return strategy_fingerprint(work.config, spec, run.about.index_hash)


@Stage(
    "retrieval_signals",
    "uncertainty",
    stores=("embeddings", "traffic"),
    reads=("name", "level", "depth", "seeds", "strategies", "trust", "uncertainty.k"),
    outside=_identify_traffic,
    chosen=chosen_kinds,
)
def collect_signals(
    work: Work,
    *,
    runs: dict[str, StrategyRun],
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
    corpus_index: CorpusIndex,  # noqa: ARG001 - identifies the vectors of the opened index
) -> RetrievalSignals:
    """Compute the signals of a miss in every ranking, and in those of production traffic."""
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    opened = open_index(work.evaluation, admitted_chunks)
    parts, traffic, about = list[pd.DataFrame](), list[pd.DataFrame](), dict[str, SignalFacts]()
    gaps: list[tuple[str | int, ...]] = []
    with work.progress.step("Reading signals", len(scored.names), "strategies") as advance:
        for name in scored.names:
            batches = _stored_batches(scored, opened, name)
            has_gaps = all(batch.space is opened.terms for batch in batches.values())
            for seed, batch in batches.items():
                parts.append(_signal_rows(scored, name, seed, batch))
                if has_gaps:
                    gaps += _gap_rows(scored, opened, name, seed, batch)
            claims = _Traffic(work, scored, opened, name)
            counted, facts = claims.ask_again()
            traffic.append(counted)
            about[name] = SignalFacts(claims.fingerprint, has_gaps, facts)
            advance(1)
    return RetrievalSignals(
        signals=pd.concat(parts, ignore_index=True),
        gaps=pd.DataFrame(gaps, columns=_GAP_COLUMNS),
        traffic=pd.concat(traffic, ignore_index=True),
        about=about,
    )


def _signal_rows(runs: ScoredRuns, name: str, seed: int, batch: RankedBatch) -> pd.DataFrame:
    k, failed = runs.config.uncertainty.k, runs.runs[name].failed
    broken = np.zeros(len(batch), dtype=bool)
    broken[failed.loc[failed["seed"] == seed, "variant"].to_numpy()] = True
    keys = pd.DataFrame(
        {
            "strategy": name,
            "variant": np.arange(len(batch), dtype=np.int64),
            "seed": seed,
            "failed": broken,
            "heuristic_v0": heuristic_v0(batch, k),
        }
    )
    values = pd.DataFrame(signals(batch, k), columns=list(SIGNALS))
    return pd.concat([keys, values], axis=1)[runs.ran(name)]


_GAP_COLUMNS: Final = ["strategy", "variant", "seed", "description", "severity", "mitigation"]


def _gap_rows(
    runs: ScoredRuns, opened: OpenIndex, name: str, seed: int, batch: RankedBatch
) -> list[tuple[str | int, ...]]:
    context = ExpansionContext(batch, runs.gold_variants.texts, opened.words)
    found = semantic_gaps(context, np.arange(len(batch)), runs.config.uncertainty.k)
    return [
        (name, variant, seed, gap.description, gap.severity, gap.mitigation)
        for variant, gaps in enumerate(found)
        for gap in gaps[:MAX_GAPS]
    ]


# ---- Claims of production traffic: search each question again for its signals.

AT_ONCE = 2000
"""Questions in one search, because the lists of a large import may not fit in memory."""
_UNKNOWN: Final = {
    "no_vector": "with questions that the file of vectors has none for",
    "failed": "whose retrieval failed here",
    "no_id": "whose first K ids are neither chunks nor documents of this corpus",
}


@dataclasses.dataclass(frozen=True)
class _Again:
    """Current chunks of a question, best first. A failed retrieval has no signals."""

    rows: tuple[int, ...]
    signals: FloatArray | None


@dataclasses.dataclass(frozen=True)
class _Traffic:
    """The imported claims of one strategy under its current fingerprint."""

    work: Work
    runs: ScoredRuns
    opened: OpenIndex
    name: str

    @property
    def fingerprint(self) -> str:
        return _fingerprint(self.work, self.runs.runs[self.name])

    def ask_again(self) -> tuple[pd.DataFrame, TrafficFacts]:
        """Search every question again. Return the counted claims with signals."""
        store = Outcomes(self.work.evaluation).store
        if self.runs.spec(self.name).own_units:
            return self._frame([]), TrafficFacts(reason="an external retriever is not asked again")
        if store is None:
            return self._frame([]), TrafficFacts(reason="the table of claims cannot be read")
        claims = ClaimStore(store.sql).claims(self.fingerprint)
        if not claims:
            why = "no claim was imported for the strategy's current configuration"
            return self._frame([]), TrafficFacts(reason=why)
        again = self._retrieve(list(dict.fromkeys(claim.query for claim in claims)))
        states = self._states(claims, again)
        counted = [
            (claim.claim_id, claim.query_id, claim.group_id, found.signals)
            for claim, state in zip(claims, states, strict=True)
            if state == "counted" and (found := again[claim.query]) is not None
        ]
        return self._frame(counted), TrafficFacts(
            counted=len(counted),
            n_unknown=sum(state in _UNKNOWN for state in states),
            n_differing=states.count("differing"),
            reason="; ".join(
                f"{states.count(state)} {why}" for state, why in _UNKNOWN.items() if state in states
            ),
        )

    def _frame(self, counted: list[tuple[str, str, str, FloatArray | None]]) -> pd.DataFrame:
        names = pd.DataFrame(
            [(self.name, *row[:3]) for row in counted],
            columns=["strategy", "claim_id", "query_id", "group_id"],
            dtype="str",
        )
        values = np.array([row[3] for row in counted], dtype=np.float64)
        values = values.reshape(len(counted), len(SIGNALS))
        return pd.concat([names, pd.DataFrame(values, columns=list(SIGNALS))], axis=1)

    def _retrieve(self, texts: list[str]) -> dict[str, _Again | None]:
        """Search each question; None when a file of vectors lacks the question.

        The trust filter applies as for the gold set. The guard against restated questions only
        compares with the wordings of the gold set.
        """
        runs, opened, config = self.runs, self.opened, self.work.config
        spec, steered_by = runs.spec(self.name), runs.about(self.name).steered_by
        strategy = ready_strategy(
            self.work.evaluation, opened, spec, runs.gold_variants, steered_by
        )
        asked = [text for text in texts if can_be_asked(config, opened, spec, text)]
        allowed = runs.admitted_chunks.passes if config.trust.filter else None
        again: dict[str, _Again | None] = dict.fromkeys(texts)
        for start in range(0, len(asked), AT_ONCE):
            part = asked[start : start + AT_ONCE]
            found = strategy.search(
                part, config.depth, config.seeds[0], allowed=allowed, strict=False
            )
            values = signals(batch_of(config, opened, spec, part, found), config.uncertainty.k)
            for at, text in enumerate(part):
                failed = found.failed is not None and found.failed[at]
                rows = found.rows[at]
                retrieved = tuple(rows[rows >= 0].tolist())
                again[text] = _Again(retrieved, None if failed else values[at])
        return again

    def _states(self, claims: Sequence[Claim], again: dict[str, _Again | None]) -> list[str]:
        """Classify each claim as `counted`, `differing`, or a key of _UNKNOWN."""
        table, k = self.opened.table, self.work.config.uncertainty.k
        known = table.row_of.keys() | set(table.doc_ids)

        def state(claim: Claim) -> str:
            found = again[claim.query]
            if found is None or found.signals is None:
                return "no_vector" if found is None else "failed"
            stated = {name for name, _ in claim.retrieved[: claim.k]}
            if stated and not stated & known:
                return "no_id"
            top = found.rows[: max(claim.k, k)]
            now = {name for row in top for name in (table.chunk_ids[row], table.doc_ids[row])}
            return "counted" if (stated & now if stated else not top) else "differing"

        return [state(claim) for claim in claims]


# ---- Stage: the claimed miss rate of every retrieval.

HEURISTIC, PRIOR = "heuristic_v0", "prior:"
PRIOR_TARGET: Final[tuple[Target, int]] = ("miss_any", 10)
"""Target and K that the shipped prior was fitted to."""


@dataclasses.dataclass(frozen=True)
class Speaker:
    """Source of the claimed miss rates of a strategy.

    `calibrator` is the id of a calibrator, `prior:<id>` or `heuristic_v0`. `status` is its earned
    status. `reason` says why there is no better source. `gold_sources` names the judges of the
    outcomes that the calibrator was fitted to.
    """

    fingerprint: str
    status: Status
    calibrator: str
    reason: str
    n_outcomes: int = 0
    fitted_at: dt.datetime | None = None
    gold_sources: tuple[str, ...] = ()


class MissRateClaims(Result):
    """The claimed miss rates of every retrieval (CLAIMS), and their source by strategy."""

    claims: pd.DataFrame = frame_part()
    speakers: dict[str, Speaker] = json_part()

    def claims_of(self, name: str) -> pd.DataFrame:
        """Return the claims of one strategy, in the order of its signals."""
        return of_strategy(self.claims, name).reset_index(drop=True)

    def describe(self) -> dict[str, object]:
        """Show the source and the mean of the claimed miss rates of every strategy."""
        rows = []
        for name, by in self.speakers.items():
            own = self.claims_of(name)["miss_rate"]
            mean = None if own.isna().all() else float(own.mean())
            rows.append({"strategy": name, "n_claims": len(own), "mean_stated": mean, **vars(by)})
        columns = ("strategy", "status", "calibrator", "n_claims", "mean_stated", "fingerprint")
        return {
            "n_claims": len(self.claims),
            "stated": Table(columns, [{name: row[name] for name in columns} for row in rows]),
            "n_undefined": count_undefined(rows, "mean_stated"),
        }


@dataclasses.dataclass(frozen=True)
class _Spoken:
    """A source of claims with its estimator.

    `branch` predicts questions with judged other wordings, under a status of its own.
    `group_of_query` holds the groups at the time of the fit. These groups select the fit without
    the question, even when the groups of the gold have changed since.
    """

    by: Speaker
    model: MissRateModel | None = None
    branch: tuple[Branch, Status] | None = None
    group_of_query: Mapping[str, str] = dataclasses.field(default_factory=dict)


def prior_of(config: GoldSetConfig, name: str) -> Prior:
    """Read the shipped prior for the kind of a strategy."""
    spec = next(spec for spec in config.strategies if spec.name == name)
    return load_prior(config.base_of(spec).prior)


def no_prior(target: Target, k: int) -> str:
    """Explain why no prior is shipped for a target and K; empty when there is a prior."""
    if (target, k) == PRIOR_TARGET:
        return ""
    return f"no prior is shipped for {target}@{k}, only for {PRIOR_TARGET[0]}@{PRIOR_TARGET[1]}"


def _branch_of(found: Accepted) -> tuple[Branch, Status] | None:
    """Return the branch for other wordings of an accepted calibrator; None if it is not usable."""
    if found.body is None or found.status not in DISCOUNTING:
        return None
    wordings = found.body.wordings
    if wordings is None or wordings.model is None or wordings.status not in DISCOUNTING:
        return None
    return wordings.model, wordings.status


def _speak(work: Work, name: str, found: Accepted, signals_: RetrievalSignals) -> _Spoken:
    """Choose the source of a strategy's claims, given its accepted calibrator."""
    spec, fingerprint = work.config.uncertainty, signals_.about[name].fingerprint
    if found.body is not None and found.status in DISCOUNTING:
        by = Speaker(
            fingerprint,
            found.status,
            found.calibrator_id,
            "",
            n_outcomes=found.body.model.n,
            fitted_at=found.body.fitted_at,
            gold_sources=tuple(found.body.gold_sources),
        )
        return _Spoken(by, found.body.model, _branch_of(found), found.body.group_of_query)
    stale = found.status == "stale"
    why = (
        f"calibrator {found.calibrator_id} is stale"
        if stale
        else "no calibrator was accepted before this run"
    )
    unlabelled = signals_.unlabelled(name)
    missing = no_prior(spec.target, spec.k)
    if len(unlabelled) < PRIOR_QUERIES:
        missing = f"{len(unlabelled)} queries, the prior needs {PRIOR_QUERIES}"
    if missing:
        status: Status = "stale" if stale else "uncalibrated"
        return _Spoken(Speaker(fingerprint, status, HEURISTIC, f"{why}; {missing}"))
    prior = prior_of(work.config, name)
    by = Speaker(fingerprint, "stale" if stale else "prior", f"{PRIOR}{prior.id}", why)
    return _Spoken(by, model_from_prior(prior, SIGNALS, unlabelled, Miss(k=spec.k)))


def _identify_speakers(
    work: Work,
    retrieval_signals: RetrievalSignals,
    runs: Mapping[str, StrategyRun],
    **_: Result,
) -> object:
    """Identify accepted calibrators and the outcomes of other wordings."""
    del runs
    found, outcomes = {}, Outcomes(work.evaluation)
    for name, about in retrieval_signals.about.items():
        accepted = find_accepted(work.evaluation, name, about.fingerprint)
        judged: list[object] = []
        if _branch_of(accepted):
            history = _history(work.config, outcomes, about.fingerprint)
            judged = [history["claim_id"].tolist(), history["missed"].tolist()]
        found[name] = [accepted.calibrator_id, accepted.status, digest(judged)]
    return found


@Stage(
    "miss_rate_claims",
    "uncertainty",
    stores=("calibrators", "outcomes"),
    reads=("name", "strategies", "uncertainty.target", "uncertainty.k"),
    outside=_identify_speakers,
    columns=CLAIMS,
)
def state_miss_rates(
    work: Work,
    *,
    retrieval_signals: RetrievalSignals,
    runs: dict[str, StrategyRun],
    gold_variants: GoldVariants,
) -> MissRateClaims:
    """State a miss rate for every retrieval, by the calibrator accepted before this run.

    Without an accepted calibrator, the prior or the uncalibrated heuristic states it.
    """
    parts, speakers, outcomes = [], {}, Outcomes(work.evaluation)
    with work.progress.step("Stating miss rates", len(runs), "strategies") as advance:
        for name, about in retrieval_signals.about.items():
            found = find_accepted(work.evaluation, name, about.fingerprint)
            spoken = _speak(work, name, found, retrieval_signals)
            history = _history(work.config, outcomes, about.fingerprint)
            frame = retrieval_signals.signals_of(name)
            variants = gold_variants.variants.iloc[frame["variant"].to_numpy()]
            first = runs[name].about.seeds[0]
            parts.append(
                _claims(work.config.uncertainty, spoken, frame, variants, history, first_seed=first)
            )
            speakers[name] = spoken.by
            advance(1)
    frame = CLAIMS.check(pd.concat(parts, ignore_index=True))
    return MissRateClaims(claims=frame, speakers=speakers)


def _claims(
    spec: Uncertainty,
    spoken: _Spoken,
    frame: pd.DataFrame,
    variants: pd.DataFrame,
    history: pd.DataFrame,
    *,
    first_seed: int,
) -> pd.DataFrame:
    """Make the claims (CLAIMS) of one strategy.

    `frame` has the signals, `variants` the wording of each row, and `history` the earlier outcomes.
    """
    by, n = spoken.by, len(frame)
    value, low, high = frame["heuristic_v0"].to_numpy(), np.full(n, np.nan), np.full(n, np.nan)
    status = np.full(n, by.status, dtype=object)
    features, failed = frame[list(SIGNALS)].to_numpy(), frame["failed"].to_numpy()
    queries, texts = variants["query_id"], variants["text"]
    groups = [
        spoken.group_of_query.get(query, group)
        for query, group in zip(queries, variants["group_id"], strict=True)
    ]

    def claim_ids(seeds: Sequence[int]) -> list[str]:
        parts = zip(queries, variants["paraphrase_id"], seeds, texts, strict=True)
        return [claim_id_of(by.fingerprint, *part) for part in parts]

    if spoken.model is not None:
        value = spoken.model.predict(features, SIGNALS, groups)
        low, high = spoken.model.interval(features, SIGNALS, groups)
    if spoken.branch is not None:
        branch, earned = spoken.branch
        own = claim_ids([first_seed] * n)
        known = history[history["claim_id"].isin(own)]
        misses, judged = count_others(known, queries.tolist(), own)
        better = branch.predict(features, SIGNALS, misses, judged, groups)
        speaks = np.isfinite(better)
        value = np.where(speaks, better, value)
        low, high = np.where(speaks, np.nan, low), np.where(speaks, np.nan, high)
        status = np.where(speaks, earned, status).astype(object)
    return pd.DataFrame(
        {
            "claim_id": claim_ids(frame["seed"].tolist()),
            "query_id": queries.to_numpy(),
            "paraphrase_id": variants["paraphrase_id"].to_numpy(),
            "group_id": variants["group_id"].to_numpy(),
            "seed": frame["seed"].to_numpy(),
            "strategy": frame["strategy"].to_numpy(),
            "strategy_fingerprint": by.fingerprint,
            "target": spec.target,
            "k": spec.k,
            "miss_rate": np.where(failed, np.nan, value),
            "ci_low": np.where(failed, np.nan, low),
            "ci_high": np.where(failed, np.nan, high),
            "status": np.where(failed, "absent", status).astype(object),
            "calibrator": by.calibrator,
            "heuristic_v0": np.where(failed, np.nan, frame["heuristic_v0"].to_numpy()),
        }
    )


def _history(config: GoldSetConfig, outcomes: Outcomes, fingerprint: str) -> pd.DataFrame:
    """Read the outcomes of a strategy before this run: claim_id, query_id, missed, weight."""
    spec = config.uncertainty
    frame = outcomes.current(strategy_fingerprint=fingerprint, target=spec.target, k=spec.k)
    columns = ["claim_id", "query_id", "missed", "weight"]
    return fit_rows(frame)[columns].sort_values("claim_id", ignore_index=True)


def count_others(
    history: pd.DataFrame, query_ids: list[str], claim_ids: list[str]
) -> tuple[FloatArray, FloatArray]:
    """Sum the outcomes of each question without the outcome of the claim itself.

    Returns the weights of the misses and of all judged wordings, both float [n_claims].
    """
    weighted = history.assign(misses=history["weight"] * history["missed"])
    columns = ["misses", "weight"]
    sums = weighted.groupby("query_id")[columns].sum().reindex(query_ids, fill_value=0.0)
    own = weighted.set_index("claim_id")[columns].reindex(claim_ids, fill_value=0.0)
    left = sums.to_numpy() - own.to_numpy()
    # A judged wording weighs at least 1. Smaller values are rounding errors.
    misses, judged = np.where(left[:, [1]] > 0.5, left, 0.0).T  # noqa: PLR2004 - the label is 0 or 1
    return np.maximum(misses, 0.0), judged


# ---- Judgements of the gold on each retrieval.


@dataclasses.dataclass(frozen=True)
class RunJudgements:
    """The runs of one strategy, judged at the headline level.

    All arrays are [n_runs]. `variant` and `seed` name the run. `first` is the rank of the first
    gold item, inf when none is within the depth. `recall` is the share of the gold in the top K.
    Both are NaN for questions without gold and for wordings outside the run. `failed` says whether
    the retriever ended in an error.
    """

    variant: IntArray
    seed: IntArray
    first: FloatArray
    recall: FloatArray
    failed: BoolArray

    def missed(self, target: Target, k: int) -> FloatArray:
        """Return the target [n_runs]: 1 for a miss, 0 for a hit, or the missed share.

        Runs without a judgement are NaN.
        """
        if target == "miss_frac":
            return 1 - self.recall
        value = self.first if target == "miss_any" else self.recall
        missed = value > k if target == "miss_any" else value < 1
        return np.where(np.isnan(value), np.nan, missed.astype(np.float64))


def judge_runs(runs: ScoredRuns, name: str) -> RunJudgements:
    """Judge the runs of one strategy. A failed retrieval counts as an empty result."""
    level, scores = runs.config.level, runs.scores(name)
    reciprocal = scores.column(level, "RR")
    recall = scores.column(level, f"R@{runs.config.uncertainty.k}")
    with np.errstate(divide="ignore"):
        first = np.where(np.isnan(reciprocal), np.nan, 1 / reciprocal)
    first = np.asarray(np.round(first, 6), dtype=np.float64)
    return RunJudgements(scores.variant, scores.seed, first, recall, scores.failed)


def gold_ranks(
    runs: ScoredRuns, name: str, variant: IntArray, seed: int
) -> tuple[FloatArray, IntArray]:
    """Rank every gold item at the headline level, as `judge_runs` ranks the first.

    Returns
    -------
    rank, owner
        [n_items]: rank from 1, inf when the list lacks the item; and position of its wording in
        `variant`.
    """
    level, gold = runs.config.level, runs.gold_of(name)
    rows, query = runs.rows(name)[seed][variant], gold.query_of[variant]
    if level == "span":
        ranked = span_ranks(rows, gold.spans, query)
        return ranked.rank, ranked.owner
    of_chunk, qrels = (
        (gold.section_of_chunk, gold.qrels_section)
        if level == "section"
        else (gold.document_of_chunk, gold.qrels_document)
    )
    owner, rank = relevant_ranks(collapse(rows, of_chunk, rows.shape[1]), qrels, query)
    return rank, owner
