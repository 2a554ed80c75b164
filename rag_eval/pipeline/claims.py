"""Claims: state the miss rate of every retrieval, then judge the claim with the gold.

The miss rates come from the calibrator that was accepted before the run. Without a calibrator they
come from the shipped prior, and without a usable prior from the uncalibrated heuristic. The module
`calibration` learns from the outcomes of the claims.
"""

import dataclasses
import datetime as dt
import math
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import pandas as pd

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.core.config import CLAIMS, PRIOR_QUERIES, GoldSetConfig, Uncertainty
from rag_eval.core.types import GoldSource, Status, Target
from rag_eval.pipeline.corpus import AdmittedChunks, GoldVariants
from rag_eval.pipeline.retrieval import StrategyRun
from rag_eval.pipeline.runner import (
    Result,
    Stage,
    Work,
    frame_part,
    json_part,
)
from rag_eval.pipeline.scores import judge_runs, score_runs
from rag_eval.pipeline.signals import RetrievalSignals, SignalFacts, of_strategy
from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.calibrators import CalibratorInUse, Outcomes, find_accepted
from rag_eval.uncertainty.estimator import (
    Miss,
    MissRateModel,
    Prior,
    load_prior,
    model_from_prior,
    prior_origin,
)
from rag_eval.uncertainty.heuristic import similar_history, with_history
from rag_eval.uncertainty.miss_rate_report import AddedOutcomes
from rag_eval.uncertainty.outcome_records import (
    MAX_NUMBER,
    RETRIEVAL_OUTCOMES,
    RetrievalOutcome,
    Shown,
)
from rag_eval.uncertainty.outcomes import claim_id_of, new_outcome, select_current
from rag_eval.uncertainty.signals import SIGNALS

HEURISTIC, PRIOR = "heuristic_v0", "prior:"


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

    shown = ("speakers",)
    claims: pd.DataFrame = frame_part()
    speakers: dict[str, Speaker] = json_part()

    def claims_of(self, name: str) -> pd.DataFrame:
        """Return the claims of one strategy, in the order of its signals."""
        return of_strategy(self.claims, name).reset_index(drop=True)


def _identify_speakers(
    work: Work,
    retrieval_signals: RetrievalSignals,
    runs: Mapping[str, StrategyRun],
    gold_variants: GoldVariants,
) -> object:
    """Identify accepted calibrators, and the outcomes of similar questions."""
    del runs
    found, outcomes = {}, Outcomes(work.evaluation.settings)
    for name, about in retrieval_signals.about.items():
        accepted = find_accepted(work.evaluation.home, work.config, name, about.fingerprint)
        variants = gold_variants.variants.iloc[retrieval_signals.signals_of(name)["variant"]]
        history, n_similar = _read_history(work, outcomes, about, gold_variants, variants)
        judged: list[object] = [history.tolist()] if n_similar.any() else []
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
    parts, speakers, outcomes = [], {}, Outcomes(work.evaluation.settings)
    with work.progress.step("Stating miss rates", len(runs), "strategies") as advance:
        for name, about in retrieval_signals.about.items():
            found = find_accepted(work.evaluation.home, work.config, name, about.fingerprint)
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


def _claim_ids(fingerprint: str, variants: pd.DataFrame, seeds: Iterable[int]) -> list[str]:
    names = "query_id", "paraphrase_id", "text"
    queries, wordings, texts = (variants[name].tolist() for name in names)
    parts = zip(queries, wordings, map(int, seeds), texts, strict=True)
    return [claim_id_of(fingerprint, *part) for part in parts]


def _read_history(
    work: Work,
    outcomes: Outcomes,
    about: SignalFacts,
    gold: GoldVariants,
    variants: pd.DataFrame,
) -> tuple[FloatArray, IntArray]:
    """Compute the history of `similar_history` for wordings, from the outcomes of one strategy."""
    judged = outcomes.judged_texts(work.config, about.fingerprint, gold.queries)
    return similar_history(variants["text"].tolist(), variants["group_id"].tolist(), judged)


def _groups_at_fit(found: CalibratorInUse, variants: pd.DataFrame) -> list[str]:
    """Name the groups at the time of the fit, which select the fit without the question.

    The groups of the gold may have changed since.
    """
    body = found.usable
    known: Mapping[str, str] = {} if body is None else body.group_of_query
    pairs = zip(variants["query_id"], variants["group_id"], strict=True)
    return [known.get(query, group) for query, group in pairs]


# ---- The source of a strategy's claims.

PRIOR_TARGET: Final[tuple[Target, int]] = ("miss_any", 10)
"""Target and K that the shipped prior was fitted to."""


def choose_speaker(
    config: GoldSetConfig,
    name: str,
    found: CalibratorInUse,
    fingerprint: str,
    unlabelled: FloatArray,
) -> tuple[Speaker, MissRateModel | None]:
    """Choose the source of a strategy's claims, given its accepted calibrator.

    The prior needs `unlabelled`, the signals of known queries. Without a model the heuristic
    speaks.
    """
    spec = config.uncertainty
    if (body := found.usable) is not None:
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


def prior_of(config: GoldSetConfig, name: str) -> Prior:
    """Read the shipped prior for the kind of a strategy."""
    return load_prior(config.base_of(config.strategy(name)).prior)


def no_prior(target: Target, k: int) -> str:
    """Explain why no prior is shipped for a target and K; empty when there is a prior."""
    if (target, k) == PRIOR_TARGET:
        return ""
    return f"no prior is shipped for {target}@{k}, only for {PRIOR_TARGET[0]}@{PRIOR_TARGET[1]}"


# ---- Stage: judge every claim with the gold. Repeated nights on one index add nothing.

QRELS: Final[GoldSource] = "qrels"
OF_GOLD: Final = r"gold [0-9a-f]{16}(: instead of [0-9a-f]+)?"
"""Pattern of the notes that this stage writes. A correction by a person has another note."""


class RetrievalOutcomes(Result):
    """Outcomes of the claims that the gold judges: strategy, claim_id, query_id, missed.

    `not_recorded` is the reason why nothing was written to the table; empty when it was written.
    """

    shown = ("strategies",)
    judged: pd.DataFrame = frame_part()
    strategies: dict[str, AddedOutcomes] = json_part(volatile=True)
    gold_source: str = json_part()
    not_recorded: str = json_part()

    def judged_of(self, name: str) -> pd.DataFrame:
        """Return the judged claims of one strategy."""
        return of_strategy(self.judged, name)


@Stage(
    "retrieval_outcomes",
    "uncertainty",
    stores=("outcomes",),
    live=True,
    columns=RETRIEVAL_OUTCOMES,
    kinds=("sql",),
)
def record_outcomes(
    work: Work,
    *,
    miss_rate_claims: MissRateClaims,
    retrieval_signals: RetrievalSignals,
    runs: dict[str, StrategyRun],
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
) -> RetrievalOutcomes:
    """Append the gold's judgement of every claim to the table of outcomes.

    A repeated run adds nothing. Only the first of several seeds counts: the same wording under
    another seed is nearly the same retrieval, so its outcome would only repeat the first.
    """
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    outcomes, now = Outcomes(work.evaluation.settings), dt.datetime.now(dt.UTC)
    because = f"gold {gold_variants.about.hash[:16]}"
    counts, parts, spec = {}, [], work.config.uncertainty
    with work.progress.step("Recording outcomes", len(runs), "strategies") as advance:
        for name in scored.names:
            claims, frame = miss_rate_claims.claims_of(name), retrieval_signals.signals_of(name)
            of = judge_runs(scored, name)
            keys = pd.MultiIndex.from_arrays([of.variant, of.seed])
            values = pd.Series(of.missed(spec.target, spec.k), index=keys)
            missed = values.loc[pd.MultiIndex.from_frame(frame[["variant", "seed"]])].to_numpy()
            first = (frame["seed"] == scored.first_seed(name)).to_numpy()
            counted = ~np.isnan(missed) & ~frame["failed"].to_numpy() & first
            judged = claims.assign(missed=missed == 1)[counted]
            added = 0
            if outcomes.store is not None:
                history = outcomes.store.history(
                    strategy_fingerprint=retrieval_signals.about[name].fingerprint,
                    target=spec.target,
                    k=spec.k,
                    gold_source=QRELS,
                )
                standing = select_current(history).set_index("claim_id")
                # After the first night, the table already has most judgements.
                known = judged["claim_id"].map(standing["missed"].astype(float))
                fresh = judged[judged["missed"].astype(float).ne(known)]
                notes = _notes_of_returns(history, standing, because)
                offered = _outcomes(fresh, frame.loc[fresh.index], notes, now)
                added = len(outcomes.store.record(offered, because=because).added)
            counts[name] = AddedOutcomes(
                n_claims=len(claims),
                n_judged=len(judged),
                n_missed=int(judged["missed"].sum()),
                added=added,
                already_there=0 if outcomes.store is None else len(judged) - added,
            )
            parts.append(judged[["strategy", "claim_id", "query_id", "missed"]])
            advance(1)
    return RetrievalOutcomes(
        judged=pd.concat(parts, ignore_index=True),
        strategies=counts,
        gold_source=QRELS,
        not_recorded=outcomes.fault,
    )


def _notes_of_returns(
    history: pd.DataFrame, standing: pd.DataFrame, because: str
) -> dict[str, str]:
    """Return notes by claim id for claims that this gold judged before, but another gold last.

    The store replaces an outcome once for each reason. The note makes the return of this gold a new
    reason. Corrections by a person get no note, so the store keeps the corrections.
    """
    heard = history.loc[history["note"].str.startswith(because), "claim_id"]
    turned = standing[
        standing.index.isin(heard)
        & standing["note"].str.fullmatch(OF_GOLD)
        & ~standing["note"].str.startswith(because)
    ]
    return {str(claim): f"instead of {name}" for claim, name in turned["outcome_id"].items()}


def _outcomes(
    claims: pd.DataFrame, signals: pd.DataFrame, notes: dict[str, str], now: dt.datetime
) -> list[RetrievalOutcome]:
    names = ["claim_id", "query_id", "group_id", "strategy", "strategy_fingerprint", "target", "k"]
    # Outcomes limit signals to MAX_NUMBER. A retriever may return scores so large that ratios of
    # scores exceed the limit.
    rows = np.clip(signals[list(SIGNALS)].to_numpy(), -MAX_NUMBER, MAX_NUMBER).tolist()
    found = []
    for claim, row in zip(claims.to_dict("records"), rows, strict=True):
        outcome = new_outcome(
            **{name: claim[name] for name in (*names, "missed")},
            gold_source=QRELS,
            inclusion_probability=1.0,
            signals={
                signal: None if math.isnan(value) else value
                for signal, value in zip(SIGNALS, row, strict=True)
            },
            shown=Shown(
                value=claim["miss_rate"], status=claim["status"], calibrator=claim["calibrator"]
            ),
            at=now,
        )
        note = notes.get(claim["claim_id"], "")
        found.append(outcome.model_copy(update={"note": note}) if note else outcome)
    return found
