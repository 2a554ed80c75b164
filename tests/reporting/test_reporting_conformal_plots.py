"""Pictures of conformal K and of the drift watch: written for every kind of result, and different where the results differ."""

import numpy as np
import pytest

from rag_eval.reporting.conformal_plots import conformal_depths, drift_path
from rag_eval.uncertainty.conformal_report import conformal_k
from rag_eval.uncertainty.conformal_splits import Questions
from rag_eval.uncertainty.drift import Drift, watch

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def results():
    rng = np.random.default_rng(1)
    risk = rng.beta(1, 3, 200)
    rank = np.floor(1 + np.exp(4 * risk + rng.normal(size=200)))
    rank[rng.random(200) < 0.04] = np.inf
    rank[rank > 500] = np.inf
    return conformal_k(Questions(rank, np.arange(200), 500, risk, rank, np.arange(200)), (0.8, 0.9, 0.99), splits=10)


def test_k_is_drawn_for_all_methods_and_for_what_is_not_attainable(results, tmp_path):
    assert any(not result.attainable for result in results)
    assert any(result.attainable for result in results)
    whole = conformal_depths(results, "bm25 $\\frac{$", tmp_path / "k.png").read_bytes()
    fixed = conformal_depths([result for result in results if result.method == "fixed"], "bm25", tmp_path / "fixed.png").read_bytes()
    assert whole.startswith(PNG)
    assert fixed.startswith(PNG)
    assert len(whole) > len(fixed)


def test_nothing_to_draw_is_still_a_picture(tmp_path):
    assert conformal_depths([], "none", tmp_path / "none.png").read_bytes().startswith(PNG)
    assert drift_path(Drift(), tmp_path / "empty.png").read_bytes().startswith(PNG)


def test_the_drift_watch_is_drawn_with_and_without_an_alarm(tmp_path):
    names = [str(at) for at in range(120)]
    quiet = watch(np.full(120, 0.5), np.arange(120) % 2.0, names)
    loud = watch(np.full(120, 0.1), np.ones(120), names)
    assert loud.alarm
    assert not quiet.alarm
    pictures = [drift_path(drift, tmp_path / f"{at}.png", "$\\frac{$").read_bytes() for at, drift in enumerate((quiet, loud))]
    assert all(picture.startswith(PNG) for picture in pictures)
    assert pictures[0] != pictures[1]
