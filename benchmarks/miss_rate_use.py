"""Sections of `miss_rate.py` on what miss rates are used for: conformal K, answers, expansions; synthetic truth and speed."""

import os
import time
from typing import Any

import conformal_k as conformal_bench
import numpy as np
from miss_rate_data import STRATEGIES, judged
from miss_rate_lines import Bar, emit, progress, script_lines

from rag_eval.uncertainty import calibration
from rag_eval.uncertainty.conformal_report import conformal_k
from rag_eval.uncertainty.conformal_splits import Questions
from rag_eval.uncertainty.estimator import cross_validated
from rag_eval.uncertainty.head import fit_head
from rag_eval.uncertainty.heuristic import heuristic_v0
from rag_eval.uncertainty.labelled import Labelled
from rag_eval.uncertainty.ladder import Counts, standing
from rag_eval.uncertainty.model import MissRateModel
from rag_eval.uncertainty.prior import load_prior
from rag_eval.uncertainty.resampling import miss_rate
from rag_eval.uncertainty.ridge import sigmoid
from rag_eval.uncertainty.validation import validate

DEPTH, LEVELS, SPLITS, REPEATS, SEED, K = 1000, (0.8, 0.9, 0.95), 200, 5, 0, 10
SIMULATIONS, RATE_SIMULATIONS, TRIALS = 100, 1000, 40
OUTCOMES, SECONDS = 1000, 60.0


def conformal() -> None:
    """K for risks that this project's own estimator predicts out of fold."""
    for strategy in STRATEGIES:
        deep = judged("scifact", strategy, "minilm", DEPTH)
        risk = cross_validated(
            judged("scifact", strategy, "minilm").labelled(K),
            prior=None,
            repeats=REPEATS,
            seed=SEED,
        ).mean(axis=0)
        results = conformal_k(
            Questions(
                deep.first_gold,
                deep.collection.group,
                DEPTH,
                risk,
                *conformal_bench.gold_ranks(deep),
            ),
            LEVELS,
            splits=SPLITS,
        )
        one = {result.level: result for result in results if result.method == "fixed"}
        third = risk >= np.quantile(risk, 2 / 3)
        within = {
            "within_depth": float(np.isfinite(deep.first_gold).mean()),
            "within_depth_riskiest_third": float(np.isfinite(deep.first_gold[third]).mean()),
        }  # no K can cover more
        for result in results:
            figures = {
                name: value
                for name, value in conformal_bench.line(strategy, result, one[result.level]).items()
                if name != "bench" and not name.endswith("_bar")
            }
            bars = {"coverage": Bar(result.level - 0.01)}
            if result.level == 0.9 and result.method == "adaptive":
                bars["shorter"] = Bar(0.25)
            if result.level == 0.9 and result.method == "mondrian":
                bars["riskiest_third"] = Bar(0.9)
            emit(
                "conformal",
                {"depth": DEPTH, **within, "attainable": result.attainable, **figures},
                bars,
            )
        progress(f"conformal {strategy}")


def _simulated(
    n: int, p: int, group_size: int, seed: int, coefficients: np.ndarray
) -> tuple[Labelled, np.ndarray]:
    rng = np.random.default_rng(seed)
    group = np.arange(n) // group_size
    x = (rng.normal(size=(n, p)) + rng.normal(size=(group.max() + 1, p))[group]) / np.sqrt(2)
    true = sigmoid(-1.0 + x @ coefficients)
    return Labelled(
        tuple(f"signal_{i}" for i in range(p)),
        x,
        rng.random(n) < true,
        group,
        np.ones(n),
        np.arange(n),
    ), true


def synthetic() -> None:
    """Outcomes of a known logistic model: a short form of what the tests do with more simulations."""
    within = Bar(0.93, 0.97)
    n, p, new = 500, 12, 500
    covered = []
    for seed in range(SIMULATIONS):
        rng = np.random.default_rng([SEED, seed])
        its, true = _simulated(n + new, p, 2, seed, rng.normal(size=p) * 0.4)
        fitted = fit_head(its.take(np.arange(n)), prior=None, rng=rng)
        low, high = MissRateModel(
            "miss_any", K, fitted.head, fitted.covariance, (), {}, "", n, n // 2, 0
        ).interval(its.signals[n:], its.names)
        covered.append(float(((low <= true[n:]) & (true[n:] <= high)).mean()))
    figures = {
        "figure": "interval of a question's miss rate",
        "simulations": SIMULATIONS,
        "outcomes": n,
        "coverage": float(np.mean(covered)),
        "standard_error": float(np.std(covered, ddof=1) / SIMULATIONS**0.5),
    }
    emit("synthetic", figures, {"coverage": within})
    progress("synthetic: interval of a prediction")
    coefficients = np.full(4, 0.5)
    truth = float(_simulated(400_000, 4, 2, SEED, coefficients)[1].mean())
    parts = [
        _simulated(400, 4, 2, 1000 + seed, coefficients)[0] for seed in range(RATE_SIMULATIONS)
    ]
    rates = [miss_rate(its.missed, its.group, its.weight) for its in parts]
    emit(
        "synthetic",
        {
            "figure": "interval of the miss rate",
            "simulations": RATE_SIMULATIONS,
            "outcomes": 400,
            "coverage": float(np.mean([rate.low <= truth <= rate.high for rate in rates])),
        },
        {"coverage": within},
    )
    for what in ("shuffled", "true"):
        reached = [_status(trial, shuffled=what == "shuffled") for trial in range(TRIALS)]
        emit(
            "synthetic",
            {
                "figure": f"status of {what} outcomes",
                "trials": TRIALS,
                "outcomes": 320,
                "measured": reached.count("measured"),
            },
            {"measured": Bar(most=0)} if what == "shuffled" else {"measured": Bar(1)},
        )
        progress(f"synthetic: {what} outcomes")


def _status(trial: int, *, shuffled: bool) -> str:
    rng = np.random.default_rng([SEED, trial, 1])
    its, _ = _simulated(320, 6, 1, 5000 + trial, np.array([1.4, 0, 0, 0, 0, 0]))
    if shuffled:
        its = Labelled(
            its.names, its.signals, rng.permutation(its.missed), its.group, its.weight, its.question
        )
    found = validate(
        its,
        cross_validated(its, prior=None, repeats=2, seed=trial),
        checked_together=1,
        seed=trial,
        resamples=300,
    )
    fresh: dict[str, Any] = {
        "fingerprint_changed": False,
        "drift_alarm": False,
        "age_days": 1.0,
        "stale_after_days": 180,
        "own_gold_only": False,
        "n_unlabelled": 500,
    }
    return standing(Counts.of(its), found, **fresh).status


def iterative() -> None:
    """What `iterative.py` prints, held against the bars: all questions, before any outcome (`heuristic_v0` of the whole list, the default) and calibrated."""
    for found in script_lines("iterative.py"):
        if "skipped" in found:
            emit("iterative", found)
            continue
        figures = {
            name: value
            for name, value in found.items()
            if name not in {"bench", "by_expansion", "stopped"}
        }
        figures["recovered_minus_lost"] = figures["recovered"] - figures["lost"]
        emit(
            "iterative",
            figures,
            {"triggered_share": Bar(0.1), "recovered_minus_lost": Bar(1)}
            if found["part"] == "all" and found["basis"] in {"heuristic_v0", "calibrated"}
            else None,
        )
        progress(
            f"iterative {found['collection']} {found['strategy']} {found['basis']} {found['part']}"
        )


def speed() -> None:
    """Signals against retrieving, and everything that is done with 1,000 outcomes."""
    for found in script_lines("miss_signals_speed.py"):
        emit(
            "speed",
            {**found, "bench": "miss_rate", "figure": "signals / retrieving"},
            {"ratio": Bar(most=2.0)},
        )
    progress("speed: signals")
    data = judged("scifact", "bm25", "minilm")
    deep = judged("scifact", "bm25", "minilm", DEPTH)
    rows = np.arange(OUTCOMES)
    its, guess = data.labelled(K).take(rows), heuristic_v0(data.batch, K)[:OUTCOMES]
    usual = calibration.REPEATS
    for repeats in (usual, 20):
        calibration.REPEATS = repeats
        started, load = time.perf_counter(), os.getloadavg()[0]
        questions = Questions(deep.first_gold[:OUTCOMES], deep.collection.group[:OUTCOMES], DEPTH)
        ids = [str(code) for code in its.group]
        found = calibration.calibrate(
            its,
            guess,
            questions,
            group_ids=ids,
            prior=load_prior("bm25"),
            target="miss_any",
            k=K,
            checked_together=len(STRATEGIES),
            seed=SEED,
            question_rows=rows,
        )
        seconds = time.perf_counter() - started
        figures = {
            "figure": "fitting and validating with all diagnostics",
            "outcomes": OUTCOMES,
            "repeats": repeats,
            "seconds": seconds,
            "load_before": load,
            "load_after": os.getloadavg()[0],
            "cores": os.cpu_count(),
        }
        emit(
            "speed",
            {
                **figures,
                "conformal_results": len(found.conformal),
                "points_of_the_learning_curve": len(found.curve),
            },
            {"seconds": Bar(most=SECONDS)},
        )
    calibration.REPEATS = usual
