"""A home that f6876b1d wrote still opens: its outcomes, claims and accepted calibrator are read."""

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from rag_eval.storage.home import Home
from rag_eval.storage.sql import SqlStore
from rag_eval.uncertainty.calibrators import KeptCalibrator, accepted_calibrator, read_calibrator
from rag_eval.uncertainty.outcomes import OutcomeStore
from rag_eval.uncertainty.signals import SIGNALS
from rag_eval.uncertainty.status import Series, promotions
from rag_eval.uncertainty.traffic import TrafficStore

WRITTEN = Path(__file__).with_name("home_of_f6876b1d")
SERIES = Series("tiny", "bm25", "miss_any", 10)


@pytest.fixture
def home(tmp_path) -> Home:
    shutil.copytree(WRITTEN / "calibrators", tmp_path / "calibrators")
    with sqlite3.connect(tmp_path / "rag_eval.db") as database:
        database.executescript((WRITTEN / "rag_eval.sql").read_text(encoding="utf-8"))
    return Home(tmp_path)


def test_a_home_of_an_earlier_version_opens(home):
    sql = SqlStore(home.folder / "rag_eval.db")
    first, withdrawn = OutcomeStore(sql).history().to_dict("records")
    assert (first["missed"], first["missed_content"]) == (1.0, "a page")
    assert first["signals"]["tail_ratio"] == 0.5
    assert np.isnan(withdrawn["missed"])
    assert withdrawn["supersedes"] == first["outcome_id"]
    (claim,) = TrafficStore(sql).claims(strategy_fingerprint="f1")
    assert (claim.query, claim.miss_rate) == ("where is it", 0.25)
    draw = TrafficStore(sql).last_draw("f1", "miss_any")
    assert draw.population == draw.drawn == {claim.claim_id}
    assert [change["new_status"] for change in promotions(sql, SERIES)] == ["provisional"]
    accepted = accepted_calibrator(home, SERIES)
    kept = KeptCalibrator.from_json(read_calibrator(home, accepted.calibrator_id))
    assert (accepted.status, kept.discounts, kept.model.n) == ("provisional", True, 40)
    assert np.isfinite(kept.model.predict(np.zeros((1, len(SIGNALS))), SIGNALS)).all()
