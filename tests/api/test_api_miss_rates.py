"""Miss rates are fitted to the outcomes of a run, judged out of fold, and predicted for others."""

import numpy as np
import pandas as pd
import pytest

import rag_eval
from rag_eval.api.inputs import Run
from rag_eval.api.miss_rate_model import LIST_SIGNALS, _run_signals, miss_rates
from rag_eval.core.errors import InputError


def draw(n: int, seed: int, prefix: str = "q") -> tuple[pd.DataFrame, dict[str, dict[str, int]]]:
    """Draw runs of 30 documents. The first score leads by more, the likelier it is a hit."""
    rng = np.random.default_rng(seed)
    lead = rng.exponential(1.0, n)
    missed = rng.random(n) < 1 / (1 + np.exp(2.5 * (lead - 0.7)))
    rows, qrels = [], {}
    for i in range(n):
        scores = np.sort(rng.random(30))[::-1] + 1
        scores[0] += lead[i]
        query = f"{prefix}{i}"
        rows += [(query, f"{query}-{at}", score) for at, score in enumerate(scores)]
        qrels[query] = {f"{query}-{20 if missed[i] else 0}": 1}
    return pd.DataFrame(rows, columns=["query_id", "doc_id", "score"]), qrels


@pytest.fixture(scope="module")
def fitted():
    run, qrels = draw(400, seed=1)
    return run, qrels, miss_rates(run, {**qrels, "absent": {"d": 1}, "empty": {"d": 0}})


def test_predictions_rank_misses_and_are_calibrated(fitted):
    _, qrels, model = fitted
    assert model.status == "measured"
    assert model.conditions["met"].drop(2).all()  # there is no shipped prior for lists alone
    assert model.skill.low > 0.15
    predicted, missed = model.predictions["miss_rate"], model.predictions["missed"]
    assert len(predicted) == len(qrels)
    assert missed.mean() == pytest.approx(model.table.loc["miss_rate", "value"])
    assert predicted[missed].mean() > predicted[~missed].mean() + 0.2
    assert (predicted.between(model.predictions["ci_low"], model.predictions["ci_high"])).all()
    inside = model.reliability.query("band_low <= observed <= band_high")
    assert len(inside) >= 0.8 * len(model.reliability)


def test_predictions_of_a_new_run_keep_their_skill(fitted):
    run, qrels = draw(300, seed=2, prefix="new")
    predicted = fitted[2].predict(run)
    assert list(predicted) == ["query_id", "miss_rate", "ci_low", "ci_high", "status"]
    assert set(predicted["status"]) == {"measured"}
    missed = np.array([f"{query}-20" in qrels[query] for query in predicted["query_id"]])
    losses = (predicted["miss_rate"] - missed) ** 2
    assert losses.mean() < 0.8 * missed.var()


def test_predictions_do_not_depend_on_the_outcome_of_their_own_group(fitted):
    run, qrels, model = fitted
    flipped = dict(qrels)
    flipped["q0"] = {"q0-0" if "q0-20" in qrels["q0"] else "q0-20": 1}
    again = miss_rates(run, flipped)
    assert again.predictions.loc[0, "missed"] != model.predictions.loc[0, "missed"]
    before, after = (one.predictions.loc[0, "miss_rate"] for one in (model, again))
    assert after == pytest.approx(before, abs=1e-9)


def test_wordings_give_signals_of_their_agreement():
    run, qrels = draw(40, seed=3)
    both = pd.concat([run, run.assign(query_id=run["query_id"] + "-b")])
    wordings = {f"{query}-b": query for query in qrels}
    model = miss_rates(both, qrels, wordings=wordings)
    assert model.predictions["query_id"].tolist() == [*qrels, *wordings]
    assert model.predictions["question_id"].tolist() == [*qrels, *qrels]
    overlap = LIST_SIGNALS.index("wordings_overlap")
    with_wordings, alone = (
        _run_signals(Run.read(part), given, 10)[1]
        for part, given in ((both, wordings), (run, None))
    )
    assert with_wordings[:, overlap].tolist() == [1.0] * len(wordings) * 2
    assert np.isnan(alone[:, overlap]).all()


def test_too_few_outcomes_predict_nothing_and_say_why():
    run, qrels = draw(12, seed=4)
    model = miss_rates(run, qrels)
    assert model.status == "uncalibrated"
    assert model.skill.value is None
    assert model.predictions["miss_rate"].isna().all()
    for call in (lambda: model.predict(run), model.plot_reliability):
        with pytest.raises(InputError, match=r"not_calibrated.*outcomes: 12.*at least 25"):
            call()
    assert "status='uncalibrated', 12 retrievals in 12 groups" in repr(model)


def test_the_reliability_diagram_shows_in_a_notebook(fitted):
    chart = fitted[2].plot_reliability()
    assert chart._repr_png_().startswith(b"\x89PNG")
    assert "measured, Brier skill 0." in chart.axes[0].get_title()
    assert "<th>skill</th>" in fitted[2]._repr_html_()


REFUSED = {
    "k": (lambda run, qrels: rag_eval.miss_rates(run, qrels, k=0), r"\[k\].*accepted: 1 or more"),
    "gold": (
        lambda run, qrels: rag_eval.miss_rates(run, {query: {"d": 0} for query in qrels}),
        "no query of the run has a relevant document",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_input_without_outcomes_is_refused(case):
    call, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        call(*draw(3, seed=5))
