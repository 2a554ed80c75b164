"""Measure miss rates on public data against the bars of docs/uncertainty.md.

Prints one JSON line for each figure, with `bar` and `met` (null without a bar). Progress goes to
stderr. `--only SECTION ...` runs some sections. Folds never split a group. The public data is read
from RAG_EVAL_TEST_DATA; the section `speed` needs none.
"""

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import fit_miss_prior as priors
import numpy as np
from miss_rate_data import (
    COLLECTIONS,
    STRATEGIES,
    group_questions,
    judged,
)
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from timing import data_folder, skipped

from rag_eval.core.config import PROVISIONAL_EACH
from rag_eval.measures.overlap import SharedGold
from rag_eval.uncertainty import calibration
from rag_eval.uncertainty.estimator import (
    Prior,
    cross_validate,
    fit_head,
    fit_scaling,
    sigmoid,
)
from rag_eval.uncertainty.heuristic import heuristic_v0
from rag_eval.uncertainty.miss_rate_report import Standing, Validation
from rag_eval.uncertainty.signals import SIGNALS
from rag_eval.uncertainty.status import Situation, count_outcomes, judge_status, suffice_to_fit
from rag_eval.uncertainty.validation import Labelled, base_rate_losses, miss_rate, validate

REPEATS, SEED, K = 20, 0, 10
BARS = {
    "minilm": {"bm25": (0.84, 0.25), "vector": (0.82, 0.25), "hybrid": (0.81, 0.15)},
    "lsa-256": {"bm25": (0.82, 0.19), "vector": (0.84, 0.30), "hybrid": (0.85, 0.28)},
}
"""Least AUROC and Brier skill."""
SINGLE_PREDICTORS = ("nqc", "tail_ratio", "cover_union", "cover_rare")
"""Signals that the literature uses alone, or nearly so."""
SIZES, SMALL_SIZES = (25, 50, 100, 200, 400), (25, 100)
OUTCOMES = (1_000, 3_000, 10_000)
"""Numbers of outcomes of the section `speed`."""
FIGURES = ("auroc", "brier", "skill", "log_loss", "slope", "intercept", "observed_expected")
STARTED = time.perf_counter()
Bar = tuple[float | None, float | None]
"""Inclusive limits of a figure; None means no limit on that side."""

# ---- JSON lines: figures, their bars, and whether the figures meet the bars.


def progress(text: str) -> None:
    """Print a line on stderr with the seconds since the start."""
    print(f"{time.perf_counter() - STARTED:7.1f} s  {text}", file=sys.stderr, flush=True)


def is_met(figure: Any, bar: Bar) -> bool:
    """Return whether a figure, or its `value`, lies within a bar; an undefined one does not."""
    value = figure["value"] if isinstance(figure, dict) else figure
    if value is None or not math.isfinite(value):
        return False
    return (bar[0] is None or bar[0] <= value) and (bar[1] is None or value <= bar[1])


def emit(section: str, figures: dict[str, Any], bars: dict[str, Bar] | None = None) -> bool | None:
    """Print one line, and return whether its figures, before rounding, meet all bars."""
    missed = [name for name, bar in (bars or {}).items() if not is_met(figures[name], bar)]
    line = {"bench": "miss_rate", "section": section, **_round(figures), "bar": bars}
    line["met"] = not missed if bars else None
    print(json.dumps(line | ({"not_met": missed} if missed else {})), flush=True)
    return not missed if bars else None


def _round(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _round(part) for name, part in value.items()}
    if isinstance(value, float):
        return round(value, 4) if math.isfinite(value) else None
    return value


# ---- Estimates.


def _judge(labelled: Labelled, predicted: np.ndarray) -> Validation:
    return validate(labelled, predicted, checked_together=len(STRATEGIES), seed=SEED)


def _figures(found: Validation) -> dict[str, Any]:
    names = ("n", "groups", "misses", "repeats", *FIGURES, "ece")
    document = found.dump()
    return {name: document[name] for name in names}


def _keep_signals(labelled: Labelled, names: Sequence[str]) -> Labelled:
    at = [labelled.names.index(name) for name in names]
    return dataclasses.replace(labelled, names=tuple(names), signals=labelled.signals[:, at])


def _skill(labelled: Labelled, predicted: np.ndarray) -> float:
    base = base_rate_losses(labelled.missed, labelled.group, labelled.weight)
    squared = ((predicted - labelled.missed) ** 2).mean(axis=0)
    return float(1 - labelled.weight @ squared / (labelled.weight @ base))


def scifact(section: str, model: str) -> None:
    """Judge the estimator without any prior, beside simpler ones, on SciFact's claims."""
    for strategy in STRATEGIES:
        data = judged("scifact", strategy, model)
        labelled, about = data.labelled(K), {"strategy": strategy, "vectors": model}
        predicted = cross_validate(labelled, prior=None, repeats=REPEATS, seed=SEED)
        found = _judge(labelled, predicted)
        least_auroc, least_skill = BARS[model][strategy]
        figures = {"estimator": "no prior", **_figures(found)}
        bars = {"auroc": (least_auroc, None), "skill": (least_skill, None), "slope": (0.8, 1.25)}
        emit(section, {**about, **figures}, {**bars, "ece": (None, found.ece.null_95)})
        guess = _judge(labelled, np.clip(heuristic_v0(data.batch, K), 0, 1)[None, :])
        emit(section, {**about, "estimator": "heuristic_v0", **_figures(guess)})
        for name in SINGLE_PREDICTORS:
            one = _keep_signals(labelled, [name])
            column = one.signals[:, 0]
            filled = np.where(np.isnan(column), np.nanmedian(column), column)
            ranked = float(roc_auc_score(labelled.missed, filled, sample_weight=labelled.weight))
            fitted = cross_validate(one, prior=None, repeats=REPEATS, seed=SEED)
            figures = {"auroc": max(ranked, 1 - ranked), "skill": _skill(one, fitted)}
            emit(section, {**about, "estimator": f"single predictor {name}", **figures})
        progress(f"{section} {strategy}")


def xquad() -> None:
    """Judge new questions on XQuAD, with signals of their other wordings' lists."""
    for strategy in STRATEGIES:
        labelled = judged("xquad_sentences", strategy).labelled(K)
        predicted = cross_validate(labelled, prior=None, repeats=REPEATS, seed=SEED)
        figures = {"strategy": strategy, "vectors": "lsa-256"}
        figures |= _figures(_judge(labelled, predicted))
        emit("xquad", figures, {"skill": (0.17, None)} if strategy == "bm25" else None)
        progress(f"xquad {strategy}")


def prior() -> None:
    """Judge priors on collections that the priors were not fitted on."""
    sets = priors.datasets()
    gains: dict[int, list[float]] = {}
    for name in (name for name in COLLECTIONS if name != "npl"):  # its questions are one chain
        for key, labelled in sets[name].items():
            if min(labelled.missed.sum(), (~labelled.missed).sum()) < priors.FEWEST:
                continue
            held_out = priors.fit_prior(sets, priors.kind_of(key), without=name)
            for n in SIZES if name == "scifact" else SMALL_SIZES:
                if n > 0.7 * len(labelled):
                    continue
                withs = priors.draw_skill(labelled, held_out, n)
                difference = withs - priors.draw_skill(labelled, None, n)
                gain = float(difference.mean())
                error = float(difference.std(ddof=1) / np.sqrt(len(difference)))
                gains.setdefault(n, []).append(gain)
                figures = {"collection": name, "strategy": key, "outcomes": n, "gain": gain}
                figures |= {"skill_with_prior": float(withs.mean()), "gain_high": gain + 2 * error}
                bars: dict[str, Bar] = {"gain_high": (0.0, None)}
                if name == "scifact" and n == priors.FEW:
                    bars["skill_with_prior"] = (0.10, None)
                emit("prior", figures, bars)
            progress(f"prior {name} {key}")
    for n, of_cases in gains.items():
        mean = {"gain": float(np.mean(of_cases)), "worst": min(of_cases), "cases": len(of_cases)}
        emit("prior", {"collection": "mean", "outcomes": n, **mean}, {"gain": (0.0, None)})


# ---- Predictions that do no harm, and statuses that are earned.

HARM_SIZES, HARM_DRAWS, SPLITS, SHUFFLES = (25, 50, 100, 200), 30, 40, 200


def _regress(few: Labelled, others: Labelled) -> np.ndarray:
    """Predict by scikit-learn's plain logistic regression over z-scored signals, [n]."""
    scaled = fit_scaling(np.vstack([few.signals, others.signals]))
    model = LogisticRegression(max_iter=1000).fit(scaled.z(few.signals), few.missed)
    return np.asarray(model.predict_proba(scaled.z(others.signals))[:, 1])


def _draw_harm(part: Labelled, prior: Prior | None, n: int, draw: int) -> dict[str, float]:
    """Compare predictions after n outcomes with the base rate, on groups without outcomes."""
    rng = np.random.default_rng([SEED, n, draw])
    few = rng.choice(len(part), n, replace=False)
    rest = part.take(~np.isin(part.group, part.group[few]))
    judged_few, missed = part.take(few), rest.missed
    fewest = min(judged_few.missed.sum(), n - judged_few.missed.sum())
    if fewest < PROVISIONAL_EACH or missed.all() or not missed.any():
        return {}
    head = fit_head(judged_few, prior=prior, unlabelled=rest.signals)
    stated = head.predict(rest.signals, rest.names)
    base = float(((head.rate - missed) ** 2).mean())
    by_name = {
        "": stated,
        "_if_always_trusted": sigmoid(head.log_odds(rest.signals, rest.names)),
        "_plain": _regress(judged_few, rest),
    }
    skills = {name: 1 - float(((p - missed) ** 2).mean()) / base for name, p in by_name.items()}
    figures = {f"skill{name}": value for name, value in skills.items()}
    figures |= {f"harm{name}": float(value < -1e-9) for name, value in skills.items()}
    return {**figures, "bias": float(stated.mean() - missed.mean())}


def harm() -> None:
    """Measure how often predictions are worse than the base rate of the same outcomes.

    The prior of a collection was fitted without its texts. `shuffled` outcomes have no signal.
    """
    sets = {
        name: {f"lsa-256/{kind}": judged(name, kind).labelled(K) for kind in STRATEGIES}
        for name in (*priors.FITTED_ON, "npl")
    }
    for name, parts in sets.items():
        for what in ("", " shuffled"):
            for n in HARM_SIZES:
                drawn = []
                for key, part in parts.items():
                    rng = np.random.default_rng(SEED)
                    used = part
                    if what:
                        used = dataclasses.replace(part, missed=rng.permutation(part.missed))
                    known = priors.fit_prior(sets, priors.kind_of(key), without=name)
                    draws = range(HARM_DRAWS if n <= 0.7 * len(part) else 0)
                    drawn += [_draw_harm(used, known, n, draw) for draw in draws]
                drawn = [figures for figures in drawn if figures]
                if not drawn:
                    continue
                means = {name: float(np.mean([one[name] for one in drawn])) for name in drawn[0]}
                bars: dict[str, Bar] = {"harm": (None, 0.05)}
                if n == 50 and not what:
                    bars["bias"] = (-0.03, 0.03)
                about = {"collection": name + what, "outcomes": n, "draws": len(drawn)}
                emit("harm", {**about, **means}, bars)
        progress(f"harm {name}")


def _many_relevant(n: int, seed: int) -> Labelled:
    """Draw questions with 25 to 50 gold documents each, which chains of shared gold join.

    The signals say something, and so do the documents, so questions that share gold are alike.
    """
    rng = np.random.default_rng([SEED, n, seed])
    n_documents = 12 * n
    centre, size = rng.integers(0, n_documents, n), rng.integers(25, 51, n)
    chosen = [rng.choice(80, count, replace=False) for count in size]
    document = np.concatenate(
        [(at + own) % n_documents for at, own in zip(centre, chosen, strict=True)]
    )
    question = np.repeat(np.arange(n), size)
    topic = np.bincount(question, rng.normal(size=n_documents)[document]) / np.sqrt(size)
    signals_ = rng.normal(size=(n, len(SIGNALS)))
    log_odds = 0.7 * signals_[:, :6].sum(axis=1) + 0.7 * topic - 0.5
    missed = rng.random(n) < sigmoid(log_odds)
    shared = SharedGold.of_pairs(question, document, n)
    group = group_questions(question, document, n)
    return Labelled(SIGNALS, signals_, missed, group, np.ones(n), np.arange(n), shared)


def _standing(labelled: Labelled, seed: int) -> tuple[Standing, Validation | None]:
    counts, found = count_outcomes(labelled), None
    if suffice_to_fit(counts):
        predicted = cross_validate(labelled, prior=None, repeats=1, seed=seed)
        found = validate(labelled, predicted, checked_together=1, seed=seed)
    fresh = Situation(
        age_days=0.0,
        stale_after_days=180,
        n_unlabelled=len(labelled),
        trusted=fit_head(labelled, prior=None).trust > 0,
    )
    return judge_status(counts, found, fresh), found


def status() -> None:
    """Judge which statuses are earned, and whether `measured` rates hold on held-out groups."""
    for n, aim in ((76, "provisional"), (400, "measured")):
        reached, intervals = [], []
        for seed in range(SPLITS // 2):
            standing, found = _standing(_many_relevant(n, seed), seed)
            reached.append(standing.status)
            intervals.append(found is not None and found.miss_rate.low is not None)
        share = {name: reached.count(name) / len(reached) for name in set(reached)}
        figures = {"collection": "many relevant, generated", "questions": n, "statuses": share}
        figures |= {"with_interval": float(np.mean(intervals)), "reached": share.get(aim, 0.0)}
        emit("status", figures, {"with_interval": (1.0, None), "reached": (0.5, None)})
    earned = []
    for seed in range(SHUFFLES):
        part = _many_relevant(400, seed)
        shuffled = np.random.default_rng([SEED, seed]).permutation(part.missed)
        earned.append(_standing(dataclasses.replace(part, missed=shuffled), seed)[0])
    figures = {"collection": "many relevant, generated and shuffled", "trials": SHUFFLES}
    figures["measured"] = float(np.mean([one.status == "measured" for one in earned]))
    figures["discounts"] = float(np.mean([one.discounts for one in earned]))
    emit("status", figures, {"measured": (None, 0.0), "discounts": (None, 0.05)})
    progress("status many relevant")
    if data_folder() is not None:
        _hold_splits()


def _hold_splits() -> None:
    """Calibrate on half of SciFact's groups, and look at the observed rate of the other half."""
    outside = []
    for split in range(SPLITS):
        strategy = STRATEGIES[split % len(STRATEGIES)]
        data = judged("scifact", strategy, "minilm").labelled(K)
        half = np.random.default_rng([SEED, split]).random(int(data.group.max()) + 1) < 0.5
        fitted, rest = data.take(half[data.group]), data.take(~half[data.group])
        standing, found = _standing(fitted, split)
        if standing.status != "measured" or found is None:
            continue
        stated = fit_head(fitted, prior=None).predict(rest.signals, rest.names).mean()
        ends = [found.miss_rate, miss_rate(rest)]
        errors = [((one.high or 0) - (one.low or 0)) / 2 for one in ends]
        outside.append(abs(stated - rest.missed.mean()) > float(np.hypot(*errors)))
    figures = {"collection": "scifact", "splits": SPLITS, "measured": len(outside)}
    figures["outside"] = float(np.mean(outside)) if outside else None
    emit("status", figures, {"measured": (1, None), "outside": (None, 0.05)})
    progress("status scifact")


def speed() -> None:
    """Time the whole calibration of generated outcomes, four wordings a question.

    The bars are on seconds of CPU. A calibration uses one thread, so a quiet machine takes as long.
    """
    seconds = []
    for n in OUTCOMES:
        given = _generate(n)
        started, worked = time.perf_counter(), time.process_time()
        calibration.calibrate(given, prior=Prior.shipped("bm25"), checked_together=5)
        seconds.append(time.process_time() - worked)
        figures = {"outcomes": n, "cpu_s": seconds[-1], "s": time.perf_counter() - started}
        limits = {OUTCOMES[0]: 2.0, OUTCOMES[-1]: 30.0}
        emit("speed", figures, {"cpu_s": (None, limits[n])} if n in limits else None)
    exponent = float(np.polyfit(np.log(OUTCOMES), np.log(seconds), 1)[0])
    emit("speed", {"exponent": exponent}, {"exponent": (None, 1.0)})


def _generate(n: int) -> calibration.Judged:
    """Draw outcomes of a logistic model over all signals; two questions share a group."""
    rng = np.random.default_rng(SEED)
    question = np.arange(n) // 4
    of_question = rng.normal(size=(question[-1] + 1, len(SIGNALS)))[question]
    signals = of_question + 0.5 * rng.normal(size=of_question.shape)
    log_odds = signals @ (0.35 * rng.normal(size=len(SIGNALS))) - 1
    missed = rng.random(n) < 1 / (1 + np.exp(-log_odds))
    group = question // 2
    return calibration.Judged(
        Labelled(SIGNALS, signals, missed, group, np.ones(n), question),
        [f"g{code}" for code in group],
        rng.random(n),
    )


SECTIONS: dict[str, Callable[[], None]] = {
    "speed": speed,
    "scifact": lambda: scifact("scifact", "minilm"),
    "lsa": lambda: scifact("lsa", "lsa-256"),
    "xquad": xquad,
    "prior": prior,
    "harm": harm,
    "status": status,
}


def main() -> None:
    """Run the chosen sections."""
    parser = argparse.ArgumentParser(description="Miss rates against the bars of the project.")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options = parser.parse_args()
    for name in options.only:
        if name not in {"speed", "status"} and data_folder() is None:
            skipped("miss_rate", f"{name}: the public data is not there; set RAG_EVAL_TEST_DATA")
            continue
        progress(name)
        SECTIONS[name]()


if __name__ == "__main__":
    main()
