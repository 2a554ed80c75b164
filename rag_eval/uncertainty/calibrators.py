"""Calibrators that runs keep for later runs, and the outcomes as one run opens them."""

import dataclasses
import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rag_eval.core.config import GoldSetConfig
from rag_eval.core.errors import InputError, quoted
from rag_eval.core.settings import Settings
from rag_eval.core.strategy import Strategy
from rag_eval.core.types import DISCOUNTING, Status
from rag_eval.gold.configuration import gold_set_name
from rag_eval.storage.hashing import canonical_json, digest
from rag_eval.storage.home import Home
from rag_eval.storage.locks import is_shared
from rag_eval.storage.sql import open_store
from rag_eval.uncertainty.estimator import MissRateModel, Stored
from rag_eval.uncertainty.heuristic import JudgedTexts
from rag_eval.uncertainty.outcomes import OUTCOMES_TABLE, OutcomeStore, fit_rows
from rag_eval.uncertainty.status import Series

# ---- The table of outcomes.


class Outcomes:
    """The table of outcomes as one stage reads it; `error` says why it cannot be used."""

    def __init__(self, settings: Settings) -> None:
        self.store: OutcomeStore | None = None
        self.error: InputError | None = None
        try:
            self.store = OutcomeStore(open_store(settings))
        except InputError as error:
            if error.is_outage and is_shared(settings):
                raise  # The run cannot publish without this server, so it is tried again.
            self.error = error

    @property
    def fault(self) -> str:
        """Reason why the table cannot be used, without its address; empty when it can."""
        if self.error is None:
            return ""
        problem = self.error.problems[0]
        return f"the outcomes can neither be read nor written: {problem.code}, {problem.message}"

    def state(self, fingerprints: Sequence[str]) -> list[object]:
        """Identify the outcomes of strategies, as JSON; no row of them is ever changed."""
        if self.store is None:
            return [self.fault]
        with self.store.sql.reading() as transaction:
            return [
                transaction.size(OUTCOMES_TABLE, {"strategy_fingerprint": name}, "at")
                for name in fingerprints
            ]

    def grow_old(self, fingerprints: Sequence[str]) -> bool:
        """Tell whether some outcomes have an age: those by gold are judged anew in every run."""
        if self.store is None:
            return False
        of_all = {"strategy_fingerprint": list(fingerprints)}
        with self.store.sql.reading() as transaction:
            n_all, n_by_gold = (
                transaction.size(OUTCOMES_TABLE, where, "at")[0]
                for where in (of_all, {**of_all, "gold_source": "qrels"})
            )
        return bool(n_all > n_by_gold)

    def judged_texts(
        self, config: GoldSetConfig, fingerprint: str, queries: pd.DataFrame
    ) -> JudgedTexts:
        """Read the judged ones of `queries`, the histories that other questions may have."""
        spec = config.uncertainty
        where = {"strategy_fingerprint": fingerprint, "target": spec.target, "k": spec.k}
        if self.store is None:
            return JudgedTexts([], [], np.zeros(0))
        rows = fit_rows(self.store.current(**where)).sort_values("claim_id")
        rows["misses"] = rows["weight"] * rows["missed"]
        sums = rows.groupby("query_id")[["misses", "weight"]].sum()
        asked = queries[queries["query_id"].isin(sums.index)]
        sums = sums.loc[asked["query_id"]]
        missed = (sums["misses"] / sums["weight"]).to_numpy(dtype=np.float64)
        return JudgedTexts(asked["text"].tolist(), asked["group_id"].tolist(), missed)


# ---- Calibrators: immutable JSON files. Another file names the accepted calibrator.

CALIBRATORS: Final = "calibrators"
_ID: Final = r"[0-9a-f]{16,64}"


class Accepted(BaseModel):
    """The calibrator of a strategy's claims, and its status."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    calibrator_id: str = Field(pattern=f"^{_ID}$")
    strategy_fingerprint: str
    status: Status
    at: str

    def accept(self, home: Home, series: Series) -> None:
        """Set the calibrator for later runs. The caller must hold the lock of the home."""
        text = f"{canonical_json(self.model_dump(mode='json'))}\n"
        home.write(_accepted_file(series), text.encode())


def _identify(body: Mapping[str, object]) -> str:
    """Hash a calibrator without its times; older homes have `fitted_until`."""
    left_out = {"calibrator_id", "fitted_at", "fitted_until"}
    return digest({key: value for key, value in body.items() if key not in left_out}, 32)


def keep_calibrator(home: Home, body: Mapping[str, object]) -> str:
    """Write a new calibrator, and return its id."""
    name = _identify(body)
    text = f"{canonical_json({**body, 'calibrator_id': name})}\n"
    home.create(f"{CALIBRATORS}/{name}.json", text.encode())
    return name


def _damaged(code: str, place: str, fault: str) -> InputError:
    message = "damaged; move it away, and run rag-eval calibrate"
    return InputError.of(code, message, place, found=quoted(fault, 200))


def read_calibrator(home: Home, name: str) -> Mapping[str, object]:
    """Read a calibrator. Raises InputError if the file is absent or was changed."""
    file = f"{CALIBRATORS}/{name}.json"
    if not re.fullmatch(_ID, name) or not home.has(file):
        message, folder = "there is no calibrator of this id", home.address_of(CALIBRATORS)
        accepted = "an id that rag-eval calibrate shows"
        raise InputError.of("calibrator_missing", message, folder, found=name, accepted=accepted)
    try:
        body = json.loads(home.read(file))
        if isinstance(body, dict) and body.get("calibrator_id") == name == _identify(body):
            return body
    except (ValueError, RecursionError):
        pass  # no JSON, numbers outside JSON, or nested too deep
    raise _damaged("calibrator_damaged", home.address_of(file), name)


def _accepted_file(series: Series) -> str:
    dataset, strategy = gold_set_name(series.dataset), gold_set_name(series.strategy)
    return f"{CALIBRATORS}/accepted/{dataset}/{strategy}/{series.target}@{series.k}.json"


def accepted_calibrator(home: Home, series: Series) -> Accepted | None:
    """Read the accepted calibrator; None without one. Raises InputError for a changed file."""
    file = _accepted_file(series)
    if not home.has(file):
        return None
    try:
        return Accepted.model_validate_json(home.read(file))
    except ValidationError as error:
        fault = error.errors()[0]["msg"]
        raise _damaged("accepted_damaged", home.address_of(file), fault) from None


# ---- The calibrator that a run uses: the one accepted for the strategy's fingerprint.


CALIBRATOR_VERSION = 2
"""Form of stored calibrators; 1 had Platt and isotonic maps, and a covariance."""


@dataclasses.dataclass(frozen=True)
class KeptCalibrator(Stored):
    """The parts of a stored calibrator that later runs use.

    `gold_sources` counts the outcomes of the fit by their judge. `group_of_query` holds the groups
    at the time of the fit. `discounts` says whether answers may be discounted by its miss rates.
    """

    model: MissRateModel
    fitted_at: dt.datetime
    gold_sources: Mapping[str, int]
    group_of_query: Mapping[str, str]
    discounts: bool = False


@dataclasses.dataclass(frozen=True)
class CalibratorInUse:
    """The calibrator for the claims of a strategy; an empty id and no `body` without one.

    `status` is what it has earned, or `stale` without `body` when it is of another fingerprint.
    """

    calibrator_id: str
    status: Status
    body: KeptCalibrator | None

    @property
    def usable(self) -> KeptCalibrator | None:
        """The stored calibrator if its status allows claims by it, else None."""
        return self.body if self.status in DISCOUNTING else None


def strategy_fingerprint(config: GoldSetConfig, spec: Strategy, index_hash: str) -> str:
    """Identify everything that decides a strategy's rankings, and the gold set that judges them.

    The fingerprint covers configuration, index, guard and trust filter, but not the name. Two gold
    sets over one index have two fingerprints, as judgements in one say nothing about the other.
    """
    trust = [config.trust.quarantine, config.trust.threshold if config.trust.filter else None]
    return digest([config.name, spec.ranking_options(), index_hash, trust, config.level], 32)


def find_accepted(
    home: Home, config: GoldSetConfig, name: str, fingerprint: str
) -> CalibratorInUse:
    """Find the calibrator that is accepted for a strategy now.

    A calibrator of another fingerprint, or in the form of another version, is stale.
    """
    spec = config.uncertainty
    accepted = accepted_calibrator(home, Series(config.name, name, spec.target, spec.k))
    is_other = accepted is not None and accepted.strategy_fingerprint != fingerprint
    # A calibrator that has earned nothing cannot become stale.
    if accepted is None or (is_other and accepted.status not in {*DISCOUNTING, "stale"}):
        return CalibratorInUse("", "absent", None)
    body = {} if is_other else read_calibrator(home, accepted.calibrator_id)
    if body.get("schema_version") != CALIBRATOR_VERSION:
        return CalibratorInUse(accepted.calibrator_id, "stale", None)
    return CalibratorInUse(accepted.calibrator_id, accepted.status, KeptCalibrator.from_json(body))
