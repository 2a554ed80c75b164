"""Claims: the signals of every retrieval, and the claimed miss rate.

The miss rates come from the calibrator that was accepted before the run. Without a calibrator they
come from the shipped prior, and without a usable prior from the uncalibrated heuristic. The module
`calibration` learns from the outcomes of the claims.
"""

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.config import (
    CLAIMS,
    DISCOUNTING,
    PRIOR_QUERIES,
    GoldSetConfig,
    Level,
    Status,
    Target,
    Uncertainty,
)
from rag_eval.core.errors import InputError
from rag_eval.core.strategy import Strategy
from rag_eval.corpus.analyzer import Analyzer
from rag_eval.measures.ranking import collapse, relevant_ranks, span_ranks
from rag_eval.pipeline.corpus import AdmittedChunks, GoldArrays, GoldVariants
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.measures import ScoredRuns, score_runs
from rag_eval.pipeline.retrieval import (
    CalibratorInUse,
    CorpusIndex,
    KeptCalibrator,
    OpenIndex,
    StrategyRun,
    batch_of,
    can_be_asked,
    chosen_kinds,
    find_accepted,
    open_index,
    read_ranking,
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
    load_prior,
    model_from_prior,
    prior_origin,
)
from rag_eval.uncertainty.expansion import ExpansionContext
from rag_eval.uncertainty.gaps import semantic_gaps
from rag_eval.uncertainty.heuristic import (
    JudgedTexts,
    heuristic_v0,
    similar_history,
    with_history,
)
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
    """The table of outcomes as one stage reads it; `error` says why it cannot be used."""

    def __init__(self, evaluation: Evaluation) -> None:
        self.store: OutcomeStore | None = None
        self.error: InputError | None = None
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

    def fitting(self, config: GoldSetConfig, fingerprint: str) -> pd.DataFrame:
        """Read the outcomes of a strategy that may fit: claim_id, query_id, missed, weight."""
        spec, columns = config.uncertainty, ["claim_id", "query_id", "missed", "weight"]
        where = {"strategy_fingerprint": fingerprint, "target": spec.target, "k": spec.k}
        frame = frame_of([]) if self.store is None else self.store.current(**where)
        return fit_rows(frame)[columns].sort_values("claim_id", ignore_index=True)

    def judged_texts(
        self, config: GoldSetConfig, fingerprint: str, gold: GoldVariants
    ) -> JudgedTexts:
        """Read the judged questions of the gold set as possible histories of other questions."""
        rows = self.fitting(config, fingerprint)
        rows = rows.assign(misses=rows["weight"] * rows["missed"])
        sums = rows.groupby("query_id")[["misses", "weight"]].sum()
        known = gold.queries[gold.queries["query_id"].isin(sums.index)]
        sums = sums.loc[known["query_id"]]
        missed = (sums["misses"] / sums["weight"]).to_numpy(dtype=np.float64)
        return JudgedTexts(known["text"].tolist(), known["group_id"].tolist(), missed)


# ---- The stored run of a strategy as batches for the estimators of a miss, one per seed.


def _stored_batches(runs: ScoredRuns, opened: OpenIndex, name: str) -> dict[int, RankedBatch]:
    """Make the batches of a stored run by seed, with variants as rows.

    When all units of an external retriever are chunks of the corpus, the batches hold chunks.
    Otherwise the batches hold units, and the texts of the units are the term space. These batches
    have no second retriever, because a second retriever would return other units.
    """
    spec, texts = runs.spec(name), runs.gold_variants.texts
    question = np.asarray(runs.gold.query_of, dtype=np.int64)
    seeds, run = runs.about(name).seeds, runs.runs[name].run
    lists = {seed: read_ranking(run, seed, len(texts), runs.config.depth) for seed in seeds}
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
    """Signals of every retrieval of every strategy, with facts by strategy.

    `signals` has strategy, variant, seed, failed, heuristic_v0, and one column per signal, NaN if
    undefined. `gaps` has strategy, variant, seed, description, severity, mitigation; the most
    severe gap comes first. `traffic` has the counted claims of production traffic: strategy,
    claim_id, query_id, group_id, and the signals of the current retrieval.
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
            fingerprint = _fingerprint(work, runs[name])
            counted, facts = _count_traffic(work, scored, opened, name, fingerprint)
            traffic.append(counted)
            about[name] = SignalFacts(fingerprint, has_gaps, facts)
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


def _count_traffic(
    work: Work, runs: ScoredRuns, opened: OpenIndex, name: str, fingerprint: str
) -> tuple[pd.DataFrame, TrafficFacts]:
    """Search the questions of imported claims again; return the counted claims with signals."""
    store, spec = Outcomes(work.evaluation).store, runs.spec(name)
    claims, reason = list[Claim](), ""
    if spec.own_units:
        reason = "an external retriever is not asked again"
    elif store is None:
        reason = "the table of claims cannot be read"
    elif not (claims := ClaimStore(store.sql).claims(fingerprint)):
        reason = "no claim was imported for the strategy's current configuration"
    texts = list(dict.fromkeys(claim.query for claim in claims))
    again = _search_again(work, runs, opened, spec, texts) if claims else {}
    known = opened.table.row_of.keys() | set(opened.table.doc_ids)
    states = [_state(claim, again.get(claim.query), opened, known, work) for claim in claims]
    counted = [claim for claim, state in zip(claims, states, strict=True) if state == "counted"]
    keys = pd.DataFrame(
        [(name, claim.claim_id, claim.query_id, claim.group_id) for claim in counted],
        columns=["strategy", "claim_id", "query_id", "group_id"],
        dtype="str",
    )
    values = np.array([again[claim.query][1] for claim in counted], dtype=np.float64)
    frame = pd.DataFrame(values.reshape(-1, len(SIGNALS)), columns=list(SIGNALS))
    why = (f"{states.count(state)} {why}" for state, why in _UNKNOWN.items() if state in states)
    facts = TrafficFacts(
        counted=len(counted),
        n_unknown=sum(state in _UNKNOWN for state in states),
        n_differing=states.count("differing"),
        reason=reason or "; ".join(why),
    )
    return pd.concat([keys, frame], axis=1), facts


_Again = tuple[list[int], FloatArray | None]
"""Current chunks of a question, best first, and signals; a failed retrieval has no signals."""


def _search_again(
    work: Work, runs: ScoredRuns, opened: OpenIndex, spec: Strategy, texts: list[str]
) -> dict[str, _Again]:
    """Search each question, except where a file of vectors lacks the question.

    The trust filter applies as for the gold set. The guard against restated questions only
    compares with the wordings of the gold set.
    """
    config, again = work.config, dict[str, _Again]()
    steered_by = runs.about(spec.name).steered_by
    strategy = ready_strategy(work.evaluation, opened, spec, runs.gold_variants, steered_by)
    asked = [text for text in texts if can_be_asked(config, opened, spec, text)]
    allowed = runs.admitted_chunks.passes if config.trust.filter else None
    for start in range(0, len(asked), AT_ONCE):
        part = asked[start : start + AT_ONCE]
        found = strategy.search(part, config.depth, config.seeds[0], allowed=allowed)
        values = signals(batch_of(config, opened, spec, part, found), config.uncertainty.k)
        failed = np.zeros(len(part), dtype=bool) if found.failed is None else found.failed
        for text, rows, own, broken in zip(part, found.rows, values, failed, strict=True):
            again[text] = rows[rows >= 0].tolist(), None if broken else own
    return again


def _state(
    claim: Claim, again: _Again | None, opened: OpenIndex, known: set[str], work: Work
) -> str:
    """Classify a claim as `counted`, `differing`, or a key of _UNKNOWN."""
    if again is None or again[1] is None:
        return "no_vector" if again is None else "failed"
    stated, table = {name for name, _ in claim.retrieved[: claim.k]}, opened.table
    if stated and not stated & known:
        return "no_id"
    top = again[0][: max(claim.k, work.config.uncertainty.k)]
    now = {name for row in top for name in (table.chunk_ids[row], table.doc_ids[row])}
    return "counted" if (stated & now if stated else not top) else "differing"


# ---- Stage: the claimed miss rate of every retrieval.

HEURISTIC, PRIOR = "heuristic_v0", "prior:"
PRIOR_TARGET: Final[tuple[Target, int]] = ("miss_any", 10)
"""Target and K that the shipped prior was fitted to."""


@dataclasses.dataclass(frozen=True)
class Speaker:
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


def prior_of(config: GoldSetConfig, name: str) -> Prior:
    """Read the shipped prior for the kind of a strategy."""
    spec = next(spec for spec in config.strategies if spec.name == name)
    return load_prior(config.base_of(spec).prior)


def no_prior(target: Target, k: int) -> str:
    """Explain why no prior is shipped for a target and K; empty when there is a prior."""
    if (target, k) == PRIOR_TARGET:
        return ""
    return f"no prior is shipped for {target}@{k}, only for {PRIOR_TARGET[0]}@{PRIOR_TARGET[1]}"


def usable_body(found: CalibratorInUse) -> KeptCalibrator | None:
    """Return the calibrator if its status allows claims by it, else None."""
    return found.body if found.status in DISCOUNTING else None


def _branch_of(found: CalibratorInUse) -> tuple[Branch, Status] | None:
    """Return the branch for other wordings with its status; None if it is not usable."""
    body = usable_body(found)
    wordings = None if body is None else body.wordings
    if wordings is None or wordings.model is None or wordings.status not in DISCOUNTING:
        return None
    return wordings.model, wordings.status


def choose_speaker(
    config: GoldSetConfig, name: str, found: CalibratorInUse, fingerprint: str, unlabelled: FloatArray
) -> tuple[Speaker, MissRateModel | None]:
    """Choose the source of a strategy's claims, given its accepted calibrator.

    The prior needs `unlabelled`, the signals of known queries. Without a model the heuristic
    speaks.
    """
    spec = config.uncertainty
    if (body := usable_body(found)) is not None:
        facts = body.model.n, body.fitted_at, tuple(body.gold_sources), body.discounts
        return Speaker(fingerprint, found.status, found.calibrator_id, "", *facts), body.model
    stale, why = found.status == "stale", "no calibrator was accepted before this run"
    if stale:
        why = f"calibrator {found.calibrator_id} is stale"
    missing = no_prior(spec.target, spec.k)
    if len(unlabelled) < PRIOR_QUERIES:
        missing = f"{len(unlabelled)} queries, the prior needs {PRIOR_QUERIES}"
    if missing:
        status: Status = "stale" if stale else "uncalibrated"
        return Speaker(fingerprint, status, HEURISTIC, f"{why}; {missing}"), None
    prior = prior_of(config, name)
    by = Speaker(
        fingerprint,
        "stale" if stale else "prior",
        f"{PRIOR}{prior.id}",
        f"{why}; the prior was fitted on {prior_origin()}",
    )
    return by, model_from_prior(prior, SIGNALS, unlabelled, Miss(k=spec.k))


def _identify_speakers(
    work: Work,
    retrieval_signals: RetrievalSignals,
    runs: Mapping[str, StrategyRun],
    gold_variants: GoldVariants,
) -> object:
    """Identify accepted calibrators, the outcomes of other wordings, and of similar questions."""
    del runs
    found, outcomes = {}, Outcomes(work.evaluation)
    for name, about in retrieval_signals.about.items():
        accepted = find_accepted(work.evaluation, name, about.fingerprint)
        variants = gold_variants.variants.iloc[retrieval_signals.signals_of(name)["variant"]]
        history, n_similar = _read_history(work, outcomes, about, gold_variants, variants)
        judged: list[object] = [history.tolist()] if n_similar.any() else []
        if _branch_of(accepted):
            own = outcomes.fitting(work.config, about.fingerprint)
            judged += [own["claim_id"].tolist(), own["missed"].tolist()]
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
            speakers[name], model = choose_speaker(
                work.config, name, found, about.fingerprint, retrieval_signals.unlabelled(name)
            )
            frame = retrieval_signals.signals_of(name)
            variants = gold_variants.variants.iloc[frame["variant"].to_numpy()]
            variants = variants.reset_index(drop=True)
            history, n_similar = _read_history(work, outcomes, about, gold_variants, variants)
            frame["heuristic_v0"] = with_history(frame["heuristic_v0"].to_numpy(), history)
            frame["similar_judged"] = n_similar
            claims = _claims(work.config.uncertainty, speakers[name], frame, variants)
            values, groups = frame[list(SIGNALS)].to_numpy(), _groups_at_fit(found, variants)
            if model is not None:
                claims["miss_rate"] = model.predict(values, SIGNALS, groups)
                claims["ci_low"], claims["ci_high"] = model.interval(values, SIGNALS, groups)
            if (branch := _branch_of(found)) is not None:
                judged = outcomes.fitting(work.config, about.fingerprint)
                seed = runs[name].about.seeds[0]
                own = _claim_ids(about.fingerprint, variants, [seed] * len(frame))
                known = judged[judged["claim_id"].isin(own)]
                counts = count_others(known, variants["query_id"].tolist(), own)
                better = branch[0].predict(values, SIGNALS, *counts, groups)
                speaks = np.isfinite(better)
                claims.loc[speaks, "miss_rate"] = better[speaks]
                claims.loc[speaks, ["ci_low", "ci_high"]] = np.nan
                claims.loc[speaks, "status"] = branch[1]
            failed = frame["failed"].to_numpy()
            claims.loc[failed, ["miss_rate", "ci_low", "ci_high", "heuristic_v0"]] = np.nan
            claims.loc[failed, "status"] = "absent"
            parts.append(claims)
            advance(1)
    frame = CLAIMS.check(pd.concat(parts, ignore_index=True))
    return MissRateClaims(claims=frame, speakers=speakers)


def _claims(
    spec: Uncertainty, by: Speaker, frame: pd.DataFrame, variants: pd.DataFrame
) -> pd.DataFrame:
    """Make the claims (CLAIMS) of one strategy by the heuristic.

    `frame` has the signals, and `variants` the wording of each row.
    """
    return pd.DataFrame(
        {
            "claim_id": _claim_ids(by.fingerprint, variants, frame["seed"]),
            **{name: variants[name] for name in ("query_id", "paraphrase_id", "group_id")},
            "seed": frame["seed"],
            "strategy": frame["strategy"],
            "strategy_fingerprint": by.fingerprint,
            "target": spec.target,
            "k": spec.k,
            "miss_rate": frame["heuristic_v0"],
            "ci_low": np.nan,
            "ci_high": np.nan,
            "status": by.status,
            "calibrator": by.calibrator,
            "heuristic_v0": frame["heuristic_v0"],
            "similar_judged": frame["similar_judged"],
        }
    )


def _read_history(
    work: Work,
    outcomes: Outcomes,
    about: SignalFacts,
    gold: GoldVariants,
    variants: pd.DataFrame,
) -> tuple[FloatArray, IntArray]:
    """Compute the history of `similar_history` for wordings, from the outcomes of one strategy."""
    judged = outcomes.judged_texts(work.config, about.fingerprint, gold)
    return similar_history(variants["text"].tolist(), variants["group_id"].tolist(), judged)


def _claim_ids(fingerprint: str, variants: pd.DataFrame, seeds: Iterable[int]) -> list[str]:
    names = "query_id", "paraphrase_id", "text"
    queries, wordings, texts = (variants[name].tolist() for name in names)
    parts = zip(queries, wordings, map(int, seeds), texts, strict=True)
    return [claim_id_of(fingerprint, *part) for part in parts]


def _groups_at_fit(found: CalibratorInUse, variants: pd.DataFrame) -> list[str]:
    """Name the groups at the time of the fit, which select the fit without the question.

    The groups of the gold may have changed since.
    """
    body = usable_body(found)
    known: Mapping[str, str] = {} if body is None else body.group_of_query
    pairs = zip(variants["query_id"], variants["group_id"], strict=True)
    return [known.get(query, group) for query, group in pairs]


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
    """Rank every gold item at the headline level in the run, as `judge_runs` ranks the first.

    Returns what `rank_gold` returns.
    """
    rows = runs.rows(name)[seed][variant]
    return rank_gold(rows, runs.gold_of(name), runs.config.level, variant)


def rank_gold(
    rows: IntArray, gold: GoldArrays, level: Level, variant: IntArray
) -> tuple[FloatArray, IntArray]:
    """Rank every gold item at a level in the lists `rows` of wordings, int [n_variants, depth].

    Returns for [n_items] the rank from 1, inf when the list lacks the item, and the position of
    its wording in `variant`.
    """
    query = gold.query_of[variant]
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
