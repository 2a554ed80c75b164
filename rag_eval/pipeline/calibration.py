"""Outcomes and calibration: from judged claims to stored calibrators and recorded promotions.

The judgements of the gold on claims are appended to the table of outcomes. All outcomes so far
decide the status of each strategy, and the calibrator of later runs. The statistics are in
`rag_eval.uncertainty`.
"""

import dataclasses
import datetime as dt
import functools
import math
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.config import DISCOUNTING, GoldSource, Status
from rag_eval.core.errors import InputError
from rag_eval.core.report import AddedOutcomes, StrategyCalibration
from rag_eval.core.types import MAX_NUMBER, RETRIEVAL_OUTCOMES, OutcomeOutcomes, Shown
from rag_eval.corpus.masking import mask
from rag_eval.gold.files import ORIGINAL
from rag_eval.pipeline.claims import (
    MissRateClaims,
    Outcomes,
    RetrievalSignals,
    gold_ranks,
    judge_runs,
    no_prior,
    of_strategy,
    prior_of,
)
from rag_eval.pipeline.corpus import AdmittedChunks, GoldVariants
from rag_eval.pipeline.evaluation import (
    Accepted,
    accept_calibrator,
    accepted_calibrator,
    keep_calibrator,
    keep_watch,
    kept_watch,
    read_calibrator,
)
from rag_eval.pipeline.measures import BOOTSTRAP_SEED, ScoredRuns, score_runs
from rag_eval.pipeline.retrieval import KeptCalibrator, StrategyRun, steering_calibrator
from rag_eval.pipeline.runner import (
    Result,
    Stage,
    Table,
    Work,
    count_undefined,
    file_part,
    frame_part,
    json_part,
)
from rag_eval.storage.artifacts import Artifact, Parts
from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.audits import ClaimStore
from rag_eval.uncertainty.calibration import Calibration, Judged, Task, calibrate
from rag_eval.uncertainty.conformal import Questions
from rag_eval.uncertainty.drift import WATCHED, WatchState, feed, resume
from rag_eval.uncertainty.estimator import Miss, MissRateModel
from rag_eval.uncertainty.outcomes import (
    Asked,
    QuestionGroups,
    document_tie,
    first_judgements,
    fit_rows,
    frame_of,
    new_outcome,
    question_groups,
    question_id,
    refuse_own_gold,
    select_current,
    utc_text,
    words_tie,
)
from rag_eval.uncertainty.scores import Labelled
from rag_eval.uncertainty.signals import SIGNALS
from rag_eval.uncertainty.status import (
    Condition,
    Counts,
    Promotion,
    Series,
    Situation,
    Standing,
    judge_status,
    promotions,
    record_status,
)
from rag_eval.uncertainty.stored import finite
from rag_eval.uncertainty.validation import Validation

# ---- Stage: judge every claim with the gold. Repeated nights on one index add nothing.

QRELS: Final[GoldSource] = "qrels"
OF_GOLD: Final = r"gold [0-9a-f]{16}(: instead of [0-9a-f]+)?"
"""Pattern of the notes that this stage writes. A correction by a person has another note."""


class RetrievalOutcomes(Result):
    """Outcomes of the claims that the gold judges: strategy, claim_id, query_id, missed.

    `not_recorded` is the reason why nothing was written to the table; empty when it was written.
    """

    judged: pd.DataFrame = frame_part()
    strategies: dict[str, AddedOutcomes] = json_part(volatile=True)
    gold_source: str = json_part()
    not_recorded: str = json_part()

    def judged_of(self, name: str) -> pd.DataFrame:
        """Return the judged claims of one strategy."""
        return of_strategy(self.judged, name)

    def describe(self) -> dict[str, object]:
        """Show the judged claims and the rows added to the table."""
        rows = [{"strategy": name, **entry.dump()} for name, entry in self.strategies.items()]
        columns = ("strategy", "n_claims", "n_judged", "n_missed", "added", "already_there")
        return {
            "n_added": sum(entry.added for entry in self.strategies.values()),
            "gold_source": self.gold_source,
            "outcomes": Table(columns, rows),
            "not_recorded": self.not_recorded or "none",
        }


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
    outcomes, now = Outcomes(work.evaluation), dt.datetime.now(dt.UTC)
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
                # After the first night, the table already has most judgements.
                fresh = judged[~_stand_already(history, judged)]
                notes = _notes_of_returns(history, fresh, because)
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


def _stand_already(history: pd.DataFrame, claims: pd.DataFrame) -> BoolArray:
    """Mark the claims whose judgement is already current in the gold's history, bool [n]."""
    standing = select_current(history)
    known = dict(zip(standing["claim_id"], standing["missed"], strict=True))
    pairs = zip(claims["claim_id"], claims["missed"].tolist(), strict=True)
    return np.array([known.get(claim) == missed for claim, missed in pairs], dtype=bool)


def _notes_of_returns(history: pd.DataFrame, claims: pd.DataFrame, because: str) -> dict[str, str]:
    """Return notes by claim id for claims that this gold judged before, but another gold last.

    The store replaces an outcome once for each reason. The note makes the return of this gold a new
    reason. Corrections by a person get no note, so the store keeps the corrections.
    """
    history = history[history["claim_id"].isin(claims["claim_id"])]
    of_this_gold = history["note"].str.startswith(because)
    heard = set(history.loc[of_this_gold, "claim_id"])
    turned = history[
        ~history["outcome_id"].isin(history["supersedes"])
        & history["claim_id"].isin(heard)
        & history["note"].str.fullmatch(OF_GOLD)
        & ~of_this_gold
    ]
    pairs = zip(turned["claim_id"], turned["outcome_id"], strict=True)
    return {claim: f"instead of {outcome}" for claim, outcome in pairs}


def _outcomes(
    claims: pd.DataFrame, signals: pd.DataFrame, notes: dict[str, str], now: dt.datetime
) -> list[OutcomeOutcomes]:
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


# ---- Stage: calibrate each strategy's miss rate on the outcomes so far.

PARTIAL: Final = "a partial run (some strategies, or other vectors) does not change later runs"
PICTURES: Final = ("reliability.svg", "learning-curve.svg")


class MissRateCalibration(Result):
    """The calibration of every strategy on the outcomes so far.

    Attributes
    ----------
    strategies
        Part `calibration.strategies` of the report.
    predictions
        Outcomes of the fit: strategy, claim_id, missed, predicted (out of fold), group_id.
    traffic
        Claims of production traffic: strategy, claim_id, query_id, group_id, and the prediction
        of models that did not see their group; NaN without a model.
    """

    strategies: dict[str, StrategyCalibration] = json_part()
    predictions: pd.DataFrame = frame_part()
    traffic: pd.DataFrame = frame_part()
    reliability: bytes | None = file_part(PICTURES[0], default=None)
    learning: bytes | None = file_part(PICTURES[1], default=None)

    @property
    def pictures(self) -> list[Path]:
        """The picture files."""
        found = [self.artifact.path(name) for name in PICTURES]
        return [path for path in found if path.is_file()]

    def describe(self) -> dict[str, object]:
        """Show the status of each strategy, missing requirements, and changes of status."""
        rows, unmet, changes = [], [], []
        for name, entry in self.strategies.items():
            strategy, validation = {"strategy": name}, entry.validation
            row = {**strategy, "status": entry.status, **entry.counts.dump()}
            row["calibrator"] = entry.calibrator or "none"
            for key in ("skill", "auroc", "brier"):
                row[key] = None if validation is None else getattr(validation, key).value
            rows.append(row)
            conditions = entry.standing.conditions
            unmet += [{**one.dump(), **strategy} for one in conditions if not one.met]
            changes += [{**strategy, **entry.promotion.dump()}] if entry.promotion else []
        columns = (
            "strategy",
            "status",
            "calibrator",
            "outcomes",
            "groups",
            "skill",
            "auroc",
            "brier",
        )
        return {
            "calibration": Table(columns, rows),
            "n_undefined": count_undefined(rows, "skill"),
            "conditions_not_met": Table(("strategy", "status", "name", "found", "needed"), unmet),
            "promotions": Table(("strategy", "old_status", "new_status", "at"), changes),
            **{path.stem.replace("-", "_"): str(path.resolve()) for path in self.pictures},
        }


@Stage(
    "miss_rate_calibration",
    "uncertainty",
    stores=("outcomes", "calibrators", "traffic"),
    live=True,
    kinds=("json", "sql"),
)
def calibrate_miss_rates(
    work: Work,
    *,
    retrieval_outcomes: RetrievalOutcomes,
    miss_rate_claims: MissRateClaims,
    retrieval_signals: RetrievalSignals,
    runs: dict[str, StrategyRun],
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
) -> MissRateCalibration:
    """Fit each strategy's estimator to its outcomes, and validate it on held-out groups.

    The status decides whether later runs use it. Fits to equal outcomes are reused.
    """
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    night = _Night(work, scored, retrieval_signals, miss_rate_claims, retrieval_outcomes)
    with work.progress.step("Calibrating miss rates", len(runs), "strategies") as advance:
        found = {}
        # Bases come first, because their calibrators steer iterative strategies.
        for name in sorted(scored.names, key=lambda one: scored.spec(one).base_name is not None):
            found[name] = _Strategy(night, name).calibrate()
            advance(1)
    ordered = [found[name] for name in scored.names]
    strategies = {name: found[name][0] for name in scored.names}
    return MissRateCalibration(
        **_draw(work, strategies),
        strategies=strategies,
        predictions=pd.concat([part for _, part, _ in ordered], ignore_index=True),
        traffic=pd.concat([part for *_, part in ordered], ignore_index=True),
    )


def _draw(work: Work, strategies: dict[str, StrategyCalibration]) -> dict[str, bytes | None]:
    """Draw the reliability and the learning curves of all strategies with such curves."""
    spec = work.config.uncertainty
    target = f"{spec.target}@{spec.k}"
    entries = strategies.items()
    validations = {name: part.validation.dump() for name, part in entries if part.validation}
    curves = {
        name: [point.dump() for point in part.learning_curve]
        for name, part in entries
        if part.learning_curve
    }

    def make() -> Parts:
        from rag_eval.reporting.html.panels.miss_rates import learning_sheet, reliability_sheet

        sheets = (
            reliability_sheet(validations, target) if validations else None,
            learning_sheet(curves, target) if curves else None,
        )
        pictures = zip(PICTURES, sheets, strict=True)
        return {name: sheet.encode() for name, sheet in pictures if sheet is not None}

    kept = work.keep("calibration_pictures", [target, validations, curves], make)
    return {
        part: kept.bytes(name) if kept.path(name).is_file() else None
        for part, name in zip(("reliability", "learning"), PICTURES, strict=True)
    }


@dataclasses.dataclass(frozen=True)
class _Night:
    """Common data of the calibrations of all strategies of one run."""

    work: Work
    runs: ScoredRuns
    signals: RetrievalSignals
    claims: MissRateClaims
    judged: RetrievalOutcomes

    @functools.cached_property
    def outcomes(self) -> Outcomes:
        return Outcomes(self.work.evaluation)

    @functools.cached_property
    def now(self) -> dt.datetime:
        return dt.datetime.now(dt.UTC)

    @functools.cached_property
    def gold_ties(self) -> list[tuple[str, str]]:
        """List (query id, tie) for the words of every wording and for every gold document.

        The words are masked like the words of stored traffic.
        """
        gold = self.runs.gold_variants
        wordings, judged = gold.variants, gold.qrels_document
        judged = judged[judged["gain"] > 0]
        words = zip(wordings["query_id"], wordings["text"], strict=True)
        documents = zip(judged["query_id"], judged["item_id"], strict=True)
        return [
            *((query, words_tie(question_id(mask(text).text))) for query, text in words),
            *((query, document_tie(document)) for query, document in documents),
        ]


@dataclasses.dataclass(frozen=True)
class _Fitting:
    """The outcomes of one strategy for the fit of a calibrator.

    `rows` and `labelled` hold the outcomes in the order of claim ids, with current groups.
    `refused` says why the outcomes cannot calibrate this strategy, else it is empty.
    `n_without_signals` counts the outcomes that were left out. `age_days` is the median age. An
    outcome that this run's gold judges again has age 0.
    """

    rows: pd.DataFrame
    labelled: Labelled
    refused: str
    age_days: float | None
    n_without_signals: int

    @property
    def identity(self) -> str:
        """Hash of the outcomes with their groups and inclusion probabilities, and of `refused`."""
        columns = ("outcome_id", "missed", "group_id", "inclusion_probability")
        return digest([*(self.rows[name].tolist() for name in columns), self.refused], 32)


@dataclasses.dataclass(frozen=True)
class _Earned:
    """A fit with its status. `wordings` is the status of the branch for other wordings."""

    of: _Fitting
    fit: Calibration
    standing: Standing
    wordings: Status | None


@dataclasses.dataclass(frozen=True)
class _Strategy:
    """The calibration of one strategy."""

    night: _Night
    name: str

    @property
    def work(self) -> Work:
        return self.night.work

    @property
    def place(self) -> tuple[Any, ...]:
        """Place of the strategy's calibrators: gold set, strategy, target, K."""
        spec = self.work.config.uncertainty
        return self.work.config.name, self.name, spec.target, spec.k

    @functools.cached_property
    def fingerprint(self) -> str:
        return self.night.signals.about[self.name].fingerprint

    @functools.cached_property
    def history(self) -> pd.DataFrame:
        """All recorded outcomes of the strategy under its current fingerprint."""
        store, spec = self.night.outcomes.store, self.work.config.uncertainty
        if store is None:
            return frame_of([])
        return store.history(strategy_fingerprint=self.fingerprint, target=spec.target, k=spec.k)

    @functools.cached_property
    def standing(self) -> pd.DataFrame:
        """The current outcomes of `history`."""
        return select_current(self.history)

    @functools.cached_property
    def signals(self) -> pd.DataFrame:
        return self.night.signals.signals_of(self.name)

    @functools.cached_property
    def claims(self) -> pd.DataFrame:
        return self.night.claims.claims_of(self.name)

    @functools.cached_property
    def traffic(self) -> pd.DataFrame:
        """Claims of production traffic, with current groups."""
        frame = self.night.signals.traffic_of(self.name)
        pairs = zip(frame["query_id"], frame["group_id"], strict=True)
        return frame.assign(group_id=[self.groups.group(*pair) for pair in pairs])

    @functools.cached_property
    def groups(self) -> QuestionGroups:
        """Join the outcomes and the traffic with the gold's groups."""
        queries, every = self.night.runs.gold.queries, self.standing
        gold = dict(zip(queries["query_id"], queries["group_id"], strict=True))
        # Leave out the outcomes of this stage. Their questions are in the gold, or the gold dropped
        # the questions.
        by_hand = every[~((every["gold_source"] == QRELS) & every["note"].str.fullmatch(OF_GOLD))]
        columns = ["claim_id", "query_id", "group_id"]
        claims = self.night.signals.traffic_of(self.name)[columns]
        documents = [*by_hand["gold_documents"], *([] for _ in range(len(claims)))]
        rows, store = pd.concat([by_hand[columns], claims]), self.night.outcomes.store
        known = {}
        if store is not None and len(rows):
            known = ClaimStore(store.sql).by_id(set(rows["claim_id"]))
        asked = []
        for (claim, query, group), named in zip(
            rows.itertuples(index=False), documents, strict=True
        ):
            ties = [document_tie(document) for document in named]
            if claim in known:
                ties.append(words_tie(question_id(known[claim].query)))
            asked.append(Asked(query, group, tuple(ties)))
        return question_groups(gold, self.night.gold_ties if asked else [], asked)

    # -- Outcomes for the fit.

    def fitting(self) -> _Fitting:
        """Read the outcomes for the fit of a calibrator."""
        rows = fit_rows(self.standing).sort_values("claim_id", kind="stable")
        tonight = set(self.night.judged.judged_of(self.name)["claim_id"])
        # An outcome of this stage counts only while the gold still judges the claim.
        is_current = ~rows["note"].str.fullmatch(OF_GOLD) | rows["claim_id"].isin(tonight)
        rows = rows[is_current].reset_index(drop=True)
        pairs = zip(rows["query_id"], rows["group_id"], strict=True)
        rows["group_id"] = [self.groups.group(*pair) for pair in pairs]
        values = self._signals_of_outcomes(rows)
        # Leave out outcomes without signals, because their z-scores would describe an average
        # retrieval.
        known = np.asarray(np.isfinite(values).any(axis=1))
        rows, refused = rows[known].reset_index(drop=True), self.night.outcomes.fault
        try:
            refuse_own_gold(rows, self.name)
        except InputError as error:
            refused = str(error.problems[0])
        ages = pd.Timestamp(self.night.now) - pd.to_datetime(rows["at"], utc=True)
        days = np.maximum(ages.dt.total_seconds().to_numpy() / 86400, 0.0)
        is_tonight = rows["claim_id"].isin(tonight).to_numpy(dtype=bool)
        # Use the median age, because one recent outcome must not hide many old ones.
        age = float(np.median(np.where(is_tonight, 0.0, days))) if len(rows) else None
        # Give every claim of traffic an owner of its own. A question that is asked twice is not
        # another wording of itself.
        owner = rows["query_id"].where(is_tonight, "\x00" + rows["claim_id"])
        labelled = Labelled(
            SIGNALS,
            values[known],
            rows["missed"].to_numpy(dtype=bool),
            pd.factorize(rows["group_id"])[0].astype(np.int64),
            rows["weight"].to_numpy(dtype=np.float64),
            pd.factorize(owner.to_numpy(dtype=object))[0].astype(np.int64),
        )
        return _Fitting(rows, labelled, refused, age, int((~known).sum()))

    def _signals_of_outcomes(self, rows: pd.DataFrame) -> FloatArray:
        """Collect the signals of outcomes [n, p] from this run, or else from the stored outcomes.

        Missing signals are NaN. Stored audits of traffic have no signals, and outcomes of earlier
        versions may have fewer.
        """
        names = list(SIGNALS)
        own = self.signals[names].set_index(self.claims["claim_id"])
        other = self.traffic.set_index("claim_id")[names]
        known = pd.concat([own, other[~other.index.isin(own.index)]])
        values = np.array(known.reindex(rows["claim_id"]), dtype=np.float64)
        for place in np.flatnonzero(~rows["claim_id"].isin(known.index)):
            found = rows["signals"].iloc[place]
            values[place] = [np.nan if found.get(name) is None else found[name] for name in SIGNALS]
        return values

    # -- The drift watch.

    def watch(self, rows: pd.DataFrame) -> WatchState:
        """Continue the drift watch with the new outcomes. Nothing is written."""
        state = resume(
            kept_watch(self.work.settings.home, *self.place),
            self.fingerprint,
            utc_text(self.night.now),
        )
        if self.night.outcomes.store is None:
            return state
        known = zip(rows["query_id"], rows["group_id"], strict=True)
        predicted = self._predicted_before(rows, first_judgements(self.history))
        return feed(state, predicted, [*self.groups.of_gold.items(), *known])

    def _predicted_before(self, rows: pd.DataFrame, first: pd.DataFrame) -> pd.DataFrame:
        """Select the outcomes (WATCHED) whose miss rate was stated before the first judgement.

        The first outcome of a gold claim holds the miss rate. The calibrator in force predicts
        audits of production traffic that were first judged after the fit. Claims with an earlier
        judgement may have been part of the fit.
        """
        shown = first[["claim_id", "at", "shown_value", "shown_status"]]
        rows = rows.merge(
            shown.rename(columns={"at": "first_at"}),
            on="claim_id",
            validate="one_to_one",
            suffixes=("_now", ""),
        )
        was_shown = rows["shown_status"].isin(DISCOUNTING)
        values = rows["shown_value"].where(was_shown).to_numpy(dtype=np.float64).copy()
        by = self.night.claims.speakers[self.name]
        if by.status in DISCOUNTING and len(self.traffic):
            kept = KeptCalibrator.from_json(read_calibrator(self.work.settings.home, by.calibrator))
            audited = pd.DataFrame(
                {
                    "claim_id": rows["claim_id"],
                    "group": rows["group_id"],
                    "at": np.arange(len(rows)),
                }
            )[np.isnan(values) & (rows["first_at"] > kept.fitted_until).to_numpy()]
            audited = audited.merge(self.traffic, on="claim_id")
            pairs = zip(audited["query_id"], audited["group"], strict=True)
            groups = [kept.group_of_query.get(query, group) for query, group in pairs]
            values[audited["at"].to_numpy()] = kept.model.predict(
                audited[list(SIGNALS)].to_numpy(), SIGNALS, groups
            )
        made = rows.assign(
            at=rows["first_at"], predicted=values, missed=rows["missed"].astype(np.float64)
        )
        found: pd.DataFrame = made.loc[np.isfinite(values), list(WATCHED)].reset_index(drop=True)
        return found

    def keep_watch(self, state: WatchState) -> None:
        """Store a state for the next night, unless the run is partial or cannot read outcomes."""
        home = self.work.settings.home
        if self.work.evaluation.partial or self.night.outcomes.fault:
            return
        # An unchanged state is not stored, for example a new watch without outcomes.
        before = kept_watch(home, *self.place) or WatchState(state.fingerprint)
        if state != before:
            keep_watch(home, *self.place, state=state)

    # -- Fitting, status and acceptance.

    def fit(self, of: _Fitting) -> Artifact:
        """Fit and validate a calibrator, or read the stored fit to equal outcomes.

        The parts are `about` (a `Calibration`) and `predictions` (means out of fold).
        """
        night, spec, names = self.night, self.work.config.uncertainty, list(SIGNALS)
        prior, together = prior_of(self.work.config, self.name), len(night.runs.names)
        seen = pd.util.hash_pandas_object(self.signals, index=False).tolist()
        identity = [
            of.identity,
            night.runs.runs[self.name].id,
            night.runs.gold_variants.id,
            self.work.config.level,
            [spec.target, spec.k, together, prior.id],
            seen,
            self.traffic["claim_id"].tolist(),
            pd.util.hash_pandas_object(self.traffic[names], index=False).tolist(),
        ]

        def make() -> Parts:
            heuristic = self.claims.set_index("claim_id")["heuristic_v0"]
            questions, question_rows = self._questions(of.rows)
            judged = Judged(
                of.labelled,
                of.rows["group_id"].tolist(),
                heuristic.reindex(of.rows["claim_id"]).to_numpy(dtype=np.float64),
                questions,
                question_rows,
                night.signals.unlabelled(self.name),
            )
            miss = Miss(spec.target, spec.k)
            task = Task(prior=prior, checked_together=together, seed=BOOTSTRAP_SEED, miss=miss)
            found = calibrate(judged, task)
            mean = np.nan if found.predictions is None else found.predictions.mean(axis=0)
            predictions = of.rows[["claim_id", "group_id"]].assign(
                missed=of.labelled.missed, predicted=mean
            )
            return {"about": found.to_json(), "predictions": predictions}

        return self.work.keep("calibration", identity, make)

    def _questions(self, outcomes: pd.DataFrame) -> tuple[Questions | None, IntArray | None]:
        """Compute the gold ranks of the original wordings, and their rows in `outcomes`.

        Both are None when no original wording is judged.
        """
        runs, name = self.night.runs, self.name
        gold, of, seed = runs.gold, judge_runs(runs, name), runs.first_seed(name)
        original = (gold.variants["paraphrase_id"].to_numpy() == ORIGINAL)[of.variant]
        first = original & (of.seed == seed) & ~np.isnan(of.first)
        if not first.any():
            return None, None
        claims, variant = self.claims, of.variant[first]
        claims = claims[(claims["paraphrase_id"] == ORIGINAL) & (claims["seed"] == seed)]
        claim_of = claims.set_index("query_id")["claim_id"]
        asked = claim_of.reindex(gold.variants["query_id"].to_numpy()[variant])
        rows = pd.Index(outcomes["claim_id"]).get_indexer(asked).astype(np.int64)
        rank, owner = gold_ranks(runs, name, variant, seed)
        questions = Questions(
            of.first[first],
            gold.groups[gold.query_of[variant]].astype(np.int64),
            runs.config.depth,
            gold_rank=rank,
            gold_question=owner,
        )
        return questions, rows

    def calibrate(self) -> tuple[StrategyCalibration, pd.DataFrame, pd.DataFrame]:
        """Calibrate the strategy. Return its part of the report, predictions and traffic."""
        of = self.fitting()
        watch, kept = self.watch(of.rows), self.fit(of)
        fit = Calibration.from_json(kept.json("about"))
        if of.refused:  # refused outcomes prove nothing, so their figures are hidden
            fit = Calibration(fit.counts, fit.conformal, fit.conformal_absent, fit.without_risk)
        counts = Counts(0, 0, 0, 0) if of.refused else fit.counts
        standing = self._judge(of, watch, counts, fit.validation)
        wordings: Status | None = None
        if fit.wordings is not None:  # the branch for other wordings has its own status
            found = fit.wordings.validation
            counts = Counts(found.n, found.groups, found.groups_with_misses, found.groups_with_hits)
            wordings = self._judge(of, watch, counts, found).status
        # Count these outcomes before acceptance of the calibrator. A run that is killed in between
        # then counts them only once.
        self.keep_watch(watch)
        earned = _Earned(of, fit, standing, wordings)
        calibrator = self._accept(earned)
        promotion = self._record(earned, calibrator)
        if watch.drift.alarm and standing.status == "stale":
            # The alarm ended this status, so the next night resets the drift watch.
            self.keep_watch(watch.demoted(utc_text(self.night.now)))
        report = self._describe(earned, watch, calibrator, promotion)
        predictions = kept.frame("predictions").assign(strategy=self.name)
        return report, predictions, self._predict_traffic(fit.model)

    def _judge(
        self, of: _Fitting, watch: WatchState, counts: Counts, validation: Validation | None
    ) -> Standing:
        spec = self.work.config.uncertainty
        situation = Situation(
            age_days=of.age_days,
            stale_after_days=spec.stale_after_days,
            n_unlabelled=len(self.night.signals.unlabelled(self.name)),
            own_gold_only=bool(of.refused) and not self.night.outcomes.fault,
            drift_alarm=watch.drift.alarm,
            no_prior=no_prior(spec.target, spec.k),
            base_changes=self._base_changes(),
        )
        return judge_status(counts, validation, situation)

    def _base_changes(self) -> bool | None:
        """Check whether another calibrator of the base steers the next run; None without a base."""
        runs = self.night.runs
        spec = runs.spec(self.name)
        base = runs.config.base_of(spec)
        if spec.base_name is None:
            return None
        now = steering_calibrator(self.work.evaluation, base, runs.about(base.name).index_hash)
        return now != runs.about(self.name).steered_by

    def _accept(self, earned: _Earned) -> str:
        """Store and accept a calibrator, or demote the previous one. Return the stored id."""
        evaluation, home = self.work.evaluation, self.work.settings.home
        rows, fit, wordings = earned.of.rows, earned.fit, earned.fit.wordings
        if evaluation.partial:
            return ""
        at = self.night.now.isoformat(timespec="seconds")
        before = accepted_calibrator(home, *self.place)
        calibrator = ""
        if fit.model is not None:
            sources = rows["gold_source"].value_counts().sort_index()
            queries = self.night.runs.gold.queries
            own = dict(zip(queries["query_id"], queries["group_id"], strict=True))
            # Store changed groups too, so that no fit to the group of a question without an outcome
            # predicts the question.
            regrouped = {
                query: group for query, group in self.groups.of_gold.items() if group != own[query]
            }
            body = {
                "schema_version": 1,
                **dict(zip(("gold_set", "strategy", "target", "k"), self.place, strict=True)),
                "strategy_fingerprint": self.fingerprint,
                "gold_sources": {str(source): int(n) for source, n in sources.items()},
                "outcomes": earned.of.identity,
                "fitted_until": str(rows["at"].max()),
                "model": fit.model.to_json(),
                "validation": fit.validation and fit.validation.to_json(),
                "conformal": [rule.to_json() for rule in fit.conformal],
                "wordings": wordings and {**wordings.to_json(), "status": earned.wordings},
                "group_of_query": {
                    **regrouped,
                    **dict(zip(rows["query_id"], rows["group_id"], strict=True)),
                },
            }
            calibrator = keep_calibrator(home, {**body, "fitted_at": at})
        elif before is None or self.night.outcomes.fault:
            return ""
        accepted = Accepted(
            calibrator_id=calibrator or (before.calibrator_id if before else ""),
            strategy_fingerprint=self.fingerprint,
            status=earned.standing.status,
            at=at,
        )
        if before is None or accepted.model_copy(update={"at": before.at}) != before:
            accept_calibrator(home, *self.place, accepted=accepted)
        return calibrator

    def _record(self, earned: _Earned, calibrator: str) -> Promotion | None:
        """Record a change of status.

        When the last earned status belongs to another fingerprint, first record the status `stale`.
        The claims of this run did not use the calibrator of the other fingerprint.
        """
        store = self.night.outcomes.store
        if store is None or self.work.evaluation.partial:
            return None
        series = Series(*self.place)
        record = functools.partial(
            record_status,
            store.sql,
            series,
            strategy_fingerprint=self.fingerprint,
            at=self.night.now,
        )
        before = promotions(store.sql, series)
        last = before[-1] if before else None
        if (
            last is not None
            and last.new_status in DISCOUNTING
            and last.strategy_fingerprint != self.fingerprint
        ):
            changed = Condition(
                "same_fingerprint", met=False, found="changed", needed="unchanged", status="stale"
            )
            record(status="stale", figures=None, reasons=(dataclasses.asdict(changed),))
        figures: dict[str, object] = {"counts": dataclasses.asdict(earned.fit.counts)}
        if earned.fit.validation is not None:
            validation = earned.fit.validation.to_json()
            names = ("miss_rate", "brier", "skill", "auroc", "slope", "ece")
            figures |= {name: validation[name] for name in names}
        return record(
            status=earned.standing.status,
            figures=figures,
            reasons=tuple(dataclasses.asdict(condition) for condition in earned.standing.unmet),
            calibrator_id=calibrator or None,
        )

    def _predict_traffic(self, model: MissRateModel | None) -> pd.DataFrame:
        """Predict the miss rates of claims of traffic.

        The fold that left the group out predicts the claims of a fitted group. The mean of all
        folds predicts all other claims, so that all predictions are comparable.
        """
        frame = self.traffic[["strategy", "claim_id", "query_id", "group_id"]]
        if model is None or frame.empty:
            return frame.assign(predicted=np.nan)
        values = self.traffic[list(SIGNALS)].to_numpy()
        folds = [
            dataclasses.replace(model, head=fold, fold_of_group={}).predict(values, SIGNALS)
            for fold in model.folds or (model.head,)
        ]
        own = model.predict(values, SIGNALS, frame["group_id"].tolist())
        was_fitted = frame["group_id"].isin(list(model.fold_of_group))
        return frame.assign(predicted=np.where(was_fitted, own, np.mean(folds, axis=0)))

    def _describe(
        self, earned: _Earned, watch: WatchState, calibrator: str, promotion: Promotion | None
    ) -> StrategyCalibration:
        """Make the report part on the calibration of the strategy."""
        fit, counts, of = earned.fit, earned.fit.counts, earned.of
        why = of.refused or (
            f"{counts.groups} distinct groups with outcomes, {counts.groups_with_misses} of them"
            " with misses: too few to fit a calibrator"
        )
        absent = {}
        if fit.wordings is None:
            absent["other_wordings"] = "too few wordings whose question has another judged wording"
        if fit.model is None:
            absent |= dict.fromkeys(("estimator", "validation", "heuristic_v0", "leakage_gap"), why)
        if self.work.evaluation.partial:
            absent["calibrator"] = PARTIAL
        elif not calibrator:
            absent["calibrator"] = why
        drift, wordings = watch.drift.to_json(), fit.wordings and fit.wordings.to_json()
        since = {} if watch.since else {"since": "the watch covers all outcomes"}
        return StrategyCalibration.model_validate(
            {
                "fingerprint": self.fingerprint,
                "status": earned.standing.status,
                "calibrator": calibrator or None,
                "counts": dataclasses.asdict(counts),
                "validation": fit.validation and fit.validation.to_json(),
                "heuristic_v0": fit.heuristic and fit.heuristic.to_json(),
                "leakage_gap": fit.gap and fit.gap.to_json(),
                "learning_curve": [point.to_json() for point in fit.curve],
                "conformal": [rule.to_json() for rule in fit.conformal],
                "conformal_methods": fit.conformal_methods,
                "estimator": fit.model and _describe_model(fit.model),
                "standing": earned.standing.to_json(),
                "drift": {
                    **{name: drift[name] for name in drift if name not in {"groups", "wealth"}},
                    "since": watch.since or None,
                    "why": since,
                },
                "refused": of.refused or None,
                "promotion": promotion
                and {name: getattr(promotion, name) for name in ("old_status", "new_status", "at")},
                "other_wordings": wordings
                and {key: value for key, value in wordings.items() if key != "model"}
                | {"status": earned.wordings},
                "n_without_signals": of.n_without_signals,
                "why": absent,
            }
        )


def _describe_model(model: MissRateModel) -> dict[str, object]:
    """Describe an estimator: coefficients of z-scored signals in log-odds of a miss, by size."""
    head = model.head
    pairs = zip(head.names, head.coefficients.tolist(), strict=True)
    strongest = sorted(pairs, key=lambda pair: -abs(pair[1]))
    return {
        "intercept": head.intercept,
        "coefficients": [{"signal": name, "value": value} for name, value in strongest],
        "penalty": finite(head.penalty),
        "calibrator": head.calibrator.name,
        "prior": model.prior or None,
        "n": model.n,
        "groups": model.groups,
        "misses": model.misses,
    }
