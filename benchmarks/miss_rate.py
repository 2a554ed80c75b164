"""Measure miss rates on public data against the bars of docs/uncertainty.md.

Prints one JSON line for each figure, with `bar` and `met` (null without a bar). Progress goes to
stderr. `--only SECTION ...` runs some sections. Folds never split a group. Intervals resample
groups. The public data is read from RAG_EVAL_TEST_DATA.
"""

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import fit_miss_prior as priors
import numpy as np
from miss_rate_data import COLLECTIONS, STRATEGIES, Judged, collection, folder, judged
from timing import ROOT, data_folder, json_lines, skipped

from rag_eval.answers.extractive import Extract, Extractive, Passage
from rag_eval.citations.matching import Spans, match_citations
from rag_eval.corpus.analyzer import count_documents
from rag_eval.measures.groundedness import comparable, groundedness
from rag_eval.measures.paired import paired_comparison
from rag_eval.uncertainty.conformal import Questions, conformal_k
from rag_eval.uncertainty.estimator import cross_validate, heuristic_v0
from rag_eval.uncertainty.scores import Labelled, auroc, brier_skill
from rag_eval.uncertainty.signals import WORDING_SIGNALS
from rag_eval.uncertainty.validation import Validation, validate
from rag_eval.uncertainty.wordings import cross_validate_wordings

sys.path.insert(0, str(ROOT / "tests" / "reference"))
import answer_sets

REPEATS, LEAKY_REPEATS, RISK_REPEATS, SEED, K = 20, 5, 5, 0, 10
BARS = {
    "minilm": {"bm25": (0.84, 0.25), "vector": (0.82, 0.25), "hybrid": (0.81, 0.15)},
    "lsa-256": {"bm25": (0.82, 0.19), "vector": (0.84, 0.30), "hybrid": (0.85, 0.28)},
}
"""Least AUROC and Brier skill."""
SINGLE_PREDICTORS = ("nqc", "wig", "clarity", "tail_ratio", "cover_union", "cover_best")
"""Signals that the literature uses alone."""
SIZES, SMALL_SIZES = (25, 50, 100, 200, 400), (25, 100)
DEPTH = 1000
"""Number of ranks in the lists that conformal K looks at."""

# ---- JSON lines: figures, their bars, and whether the figures meet the bars.

STARTED = time.perf_counter()
FIGURES = ("auroc", "brier", "skill", "log_loss", "slope", "intercept", "observed_expected")


class Bar(NamedTuple):
    """Inclusive limits of a figure; None means no limit on that side."""

    least: float | None = None
    most: float | None = None

    def is_met(self, value: float | None) -> bool:
        """Return whether a figure lies within the limits; an undefined figure does not."""
        if value is None or not math.isfinite(value):
            return False
        least = -math.inf if self.least is None else self.least
        return least <= value <= (math.inf if self.most is None else self.most)

    def __str__(self) -> str:
        ends = (("at least", self.least), ("at most", self.most))
        return " and ".join(f"{words} {end:.4g}" for words, end in ends if end is not None)


def progress(text: str) -> None:
    """Print a line on stderr with the seconds since the start."""
    print(f"{time.perf_counter() - STARTED:7.1f} s  {text}", file=sys.stderr, flush=True)


def emit(
    section: str, figures: dict[str, object], bars: dict[str, Bar] | None = None
) -> bool | None:
    """Print one line; `met` is null without a bar.

    A bar is compared with the figure before rounding. A figure with an interval is compared by its
    `value`.
    """
    met = {name: bar.is_met(_value(figures[name])) for name, bar in (bars or {}).items()}
    line = {
        "bench": "miss_rate",
        "section": section,
        **_round(figures),
        "bar": {name: str(bar) for name, bar in (bars or {}).items()} or None,
        "met": all(met.values()) if met else None,
    }
    if line["met"] is False:
        line["not_met"] = [name for name, reached in met.items() if not reached]
    print(json.dumps(line), flush=True)
    return all(met.values()) if met else None


def _value(figure: Any) -> float | None:
    return figure["value"] if isinstance(figure, dict) else figure


def _round(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _round(part) for name, part in value.items()}
    if isinstance(value, float):
        return round(value, 4) if math.isfinite(value) else None
    return value


def validation_figures(found: Validation) -> dict[str, object]:
    """Return the denominators, the figures with intervals, and the ECE with its chance limit."""
    counted = {name: getattr(found, name) for name in ("n", "groups", "misses", "repeats")}
    figures = {name: getattr(found, name).to_json() for name in FIGURES}
    return {**counted, **figures, "ece": dataclasses.asdict(found.ece)}


# ---- Estimates.


def _judge(labelled: Labelled, predicted: np.ndarray) -> Validation:
    return validate(labelled, predicted, checked_together=len(STRATEGIES), seed=SEED)


def _keep_signals(labelled: Labelled, names: Sequence[str]) -> Labelled:
    at = [labelled.names.index(name) for name in names]
    return dataclasses.replace(labelled, names=tuple(names), signals=labelled.signals[:, at])


def _skill(labelled: Labelled, predicted: np.ndarray) -> float:
    scores = brier_skill(predicted, labelled.missed, labelled.group, labelled.weight)
    return float(np.mean(scores))


def scifact(section: str, model: str) -> None:
    """Judge the estimator without any prior, beside simpler ones, on SciFact's claims."""
    for strategy in STRATEGIES:
        data = judged("scifact", strategy, model)
        labelled, about = data.labelled(K), {"strategy": strategy, "vectors": model}
        predicted = cross_validate(labelled, prior=None, repeats=REPEATS, seed=SEED)
        leaky = cross_validate(
            labelled, prior=None, repeats=LEAKY_REPEATS, seed=SEED, folds="random"
        )
        found = _judge(labelled, predicted)
        least_auroc, least_skill = BARS[model][strategy]
        figures = {
            **about,
            "estimator": "ridge, no prior",
            **validation_figures(found),
            "leakage_gap": _skill(labelled, leaky) - found.skill.value,
        }
        bars = {
            "auroc": Bar(least_auroc),
            "skill": Bar(least_skill),
            "slope": Bar(0.8, 1.25),
            "ece": Bar(most=found.ece.null_95),
        }
        emit(section, figures, bars)
        progress(f"{section} {strategy}: estimator")
        _emit_baselines(section, about, data, labelled)
        progress(f"{section} {strategy}: baselines")


def _emit_baselines(
    section: str, about: dict[str, object], data: Judged, labelled: Labelled
) -> None:
    guess = _judge(labelled, np.clip(heuristic_v0(data.batch, K), 0, 1)[None, :])
    emit(section, {**about, "estimator": "heuristic_v0", **validation_figures(guess)})
    for name in SINGLE_PREDICTORS:
        one = _keep_signals(labelled, [name])
        column = one.signals[:, 0]
        filled = np.where(np.isnan(column), np.nanmedian(column), column)
        ranked = float(auroc(filled, labelled.missed, labelled.weight))
        fitted = cross_validate(one, prior=None, repeats=REPEATS, seed=SEED)
        figures = {"auroc": max(ranked, 1 - ranked), "skill": _skill(one, fitted)}
        emit(section, {**about, "estimator": f"single predictor {name}", **figures})


def xquad() -> None:
    """Judge new questions, and new wordings of judged questions, on XQuAD."""
    for strategy in STRATEGIES:
        labelled = judged("xquad_sentences", strategy).labelled(K)
        about = {"strategy": strategy, "vectors": "lsa-256"}
        alone = [name for name in labelled.names if name not in WORDING_SIGNALS]
        for part, what in (
            (_keep_signals(labelled, alone), "new questions, signals of the wording alone"),
            (labelled, "new questions, with signals of their other wordings' lists"),
        ):
            predicted = cross_validate(part, prior=None, repeats=REPEATS, seed=SEED)
            figures = {**about, "estimator": what, **validation_figures(_judge(part, predicted))}
            emit("xquad", figures, {"skill": Bar(0.17)} if strategy == "bm25" else None)
            progress(f"xquad {strategy}: {what}")
        predicted = cross_validate_wordings(labelled, prior=None, repeats=REPEATS, seed=SEED)
        figures = validation_figures(_judge(labelled, predicted))
        what = "questions with other wordings judged"
        emit("xquad", {**about, "estimator": what, **figures}, {"auroc": Bar(0.90)})
        progress(f"xquad {strategy}: {what}")


def prior() -> None:
    """Judge priors on collections that the priors were not fitted on."""
    sets = priors.datasets()
    progress("prior: collections")
    gains: dict[int, list[float]] = {}
    for name in COLLECTIONS:
        for key, labelled in sets[name].items():
            held_out = priors.fit_prior(sets, priors.kind_of(key), without=name)
            for n in SIZES if name == "scifact" else SMALL_SIZES:
                if n > 0.7 * len(labelled):
                    continue
                withs = priors.draw_skill(labelled, held_out, n)
                difference = withs - priors.draw_skill(labelled, None, n)
                gain = float(difference.mean())
                error = float(difference.std(ddof=1) / np.sqrt(len(difference)))
                gains.setdefault(n, []).append(gain)
                figures = {
                    "collection": name,
                    "strategy": key,
                    "outcomes": n,
                    "skill_with_prior": float(withs.mean()),
                    "gain": gain,
                    "gain_high": gain + 2 * error,
                }
                bars = {"gain_high": Bar(0.0)}
                if name == "scifact" and n == priors.FEW:
                    bars["skill_with_prior"] = Bar(0.10)
                emit("prior", figures, bars)
            progress(f"prior {name} {key}")
    for n, of_cases in gains.items():
        mean = {"gain": float(np.mean(of_cases)), "worst": min(of_cases), "cases": len(of_cases)}
        emit("prior", {"collection": "mean", "outcomes": n, **mean}, {"gain": Bar(0.0)})


# ---- What miss rates are used for.


def conformal() -> None:
    """Judge K for risks that the estimator predicts out of fold."""
    for strategy in STRATEGIES:
        deep = judged("scifact", strategy, "minilm", DEPTH)
        labelled = judged("scifact", strategy, "minilm").labelled(K)
        predicted = cross_validate(labelled, prior=None, repeats=RISK_REPEATS, seed=SEED)
        risk = predicted.mean(axis=0)
        questions = Questions(
            deep.first_gold, deep.collection.group, DEPTH, risk, *_gold_ranks(deep)
        )
        riskiest = deep.first_gold[risk >= np.quantile(risk, 2 / 3)]
        for result in conformal_k(questions):
            figures = {
                "strategy": strategy,
                "method": result.method,
                "level": result.level,
                "k": [part.k for part in result.bins] or result.k,
                "coverage": dataclasses.asdict(result.coverage),
                "riskiest_third": None if result.riskiest is None else result.riskiest.value,
                "unattainable": result.share_unattainable,
                "within_depth_riskiest_third": float(np.isfinite(riskiest).mean()),
            }
            bars = {"coverage": Bar(result.level - 0.01)}
            if result.method == "mondrian":  # At 95 % the riskiest third has no K.
                bars = {"riskiest_third": Bar(0.9)} if result.level == 0.9 else {}
            emit("conformal", figures, bars)
        progress(f"conformal {strategy}")


def _gold_ranks(data: Judged) -> tuple[np.ndarray, np.ndarray]:
    """Return the rank of every gold item (inf beyond the depth), and the row of its query."""
    query, place = np.nonzero(data.relevant)
    lacking = np.repeat(np.arange(len(data.n_gold)), data.n_gold - data.relevant.sum(axis=1))
    ranks = np.concatenate([place + 1.0, np.full(len(lacking), np.inf)])
    return ranks, np.concatenate([query, lacking]).astype(np.int64)


# ---- Answers: does a discount by the miss rate improve their confidence?


def _right(extracts: list[Extract], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return whether each answer cites a rationale, and whether its claim has any: bool [n]."""
    its = collection("scifact")
    documents = sorted(
        document["_id"] for document in json_lines(folder() / "scifact" / "corpus.jsonl")
    )
    row = {document: i for i, document in enumerate(documents)}
    place = {query: i for i, query in enumerate(its.ids)}
    lines: list[Any] = [*json_lines(folder() / "scifact" / "evidence.jsonl")]
    gold = [
        (place[line["query_id"]], row[line["doc_id"]], span["start"], span["end"])
        for line in lines
        if line["query_id"] in place
        for span in line["spans"]
    ]
    cited = [
        (i, rows[i, chosen.passage], chosen.start, chosen.end)
        for i, extract in enumerate(extracts)
        for chosen in extract.sentences
    ]
    found = match_citations(
        Spans(*np.array(cited).T),
        np.ones(len(cited), dtype=bool),
        Spans(*np.array(gold).T),
        len(extracts),
        np.ones(len(extracts), dtype=bool),
    )
    return found.n_correct > 0, found.n_gold > 0


def _leave_group_out(values: np.ndarray, counted: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Compute for each question the mean of the counted values in other groups, [n]."""
    total, n = np.bincount(group, values * counted), np.bincount(group, counted)
    share: np.ndarray = (total.sum() - total) / np.maximum(n.sum() - n, 1)
    return share[group]


def _difference(a: np.ndarray, b: np.ndarray, group: np.ndarray) -> dict[str, float]:
    """Compute the mean of a - b with its interval over groups."""
    change = paired_comparison(a, b, group, SEED, higher_is_better=False)
    return {
        "value": float(change.delta[0]),
        "low": float(change.ci_low[0]),
        "high": float(change.ci_high[0]),
    }


def _compared(
    about: dict[str, object],
    data: Judged,
    kept: np.ndarray,
    right: np.ndarray,
    *,
    synthesis: np.ndarray,
    miss: np.ndarray,
    held: bool,
) -> None:
    group, missed = data.collection.group, data.missed(K)
    c0 = _leave_group_out(right, missed & kept, group)
    shown = {
        "c": synthesis[None, :],
        "c (1 - heuristic_v0)": (synthesis * (1 - heuristic_v0(data.batch, K)))[None, :],
        "c (1 - base rate of misses)": (
            synthesis * (1 - _leave_group_out(missed, np.ones(len(missed), dtype=bool), group))
        )[None, :],
        "c (1 - m)": synthesis * (1 - miss),
        "c (1 - m) + c0 m": synthesis * (1 - miss) + c0 * miss,
        "base rate of right answers": _leave_group_out(right, kept, group)[None, :],
    }
    errors = {name: ((values - right) ** 2).mean(axis=0)[kept] for name, values in shown.items()}
    figures = {
        **about,
        "answers": int(kept.sum()),
        "right": float(right[kept].mean()),
        "missed": float(missed[kept].mean()),
        "right_when_missed": float(right[kept & missed].mean()),
        "mean_c": float(synthesis[kept].mean()),
    }
    figures["brier"] = {name: float(its.mean()) for name, its in errors.items()}
    figures["less_c"] = {
        name: _difference(its, errors["c"], group[kept])
        for name, its in errors.items()
        if name != "c"
    }
    figures["miss_rate_less_base_rate_of_misses"] = _difference(
        errors["c (1 - m)"], errors["c (1 - base rate of misses)"], group[kept]
    )
    figures["difference_high"] = figures["less_c"]["c (1 - m)"]["high"]
    figures["difference_high_with_c0"] = figures["less_c"]["c (1 - m) + c0 m"]["high"]
    below = Bar(most=-1e-12)
    emit(
        "answers",
        figures,
        {"difference_high": below, "difference_high_with_c0": below} if held else None,
    )


def answers() -> None:
    """Judge the discount of answers' confidence by the miss rate on SciFact.

    Deterministic answers stand over the first ten abstracts of bm25, vector (MiniLM) and hybrid. An
    answer is right when a span that it cites matches a rationale.

    The project's synthesis confidence of a deterministic answer is its groundedness. It is 1 for
    quotations, so any discount improves it. The figures therefore also cover the answerer's own
    signal. `miss_rate_less_base_rate_of_misses` compares with a discount by the base rate.
    """
    its = collection("scifact")
    documents = sorted(
        json_lines(folder() / "scifact" / "corpus.jsonl"), key=lambda document: document["_id"]
    )
    answerer = Extractive(
        answer_sets.lsa_embed(its.texts),
        embedding="lsa",
        frequencies=count_documents(its.texts),
    )
    frequencies = count_documents([comparable(document["text"]) for document in documents])
    for strategy in STRATEGIES:
        data = judged("scifact", strategy, "minilm")
        rows = data.batch.rows[:, :K]
        passages = [
            [
                Passage(documents[row]["text"], documents[row]["title"], rank)
                for rank, row in enumerate(found, start=1)
                if row >= 0
            ]
            for found in rows.tolist()
        ]
        extracts = answerer.answer(its.queries, passages)
        progress(f"answers {strategy}: answered")
        texts = [
            " ".join(
                given[chosen.passage].text[chosen.start : chosen.end]
                for chosen in extract.sentences
            )
            for extract, given in zip(extracts, passages, strict=True)
        ]
        grounded = groundedness(
            texts, [[passage.text for passage in given] for given in passages], frequencies
        ).value
        progress(f"answers {strategy}: groundedness")
        right, has_rationale = _right(extracts, rows)
        said = np.array([extract.answered for extract in extracts]) & ~np.isnan(grounded)
        miss = cross_validate(data.labelled(K), prior=None, repeats=REPEATS, seed=SEED)
        signal = np.array([extract.signal for extract in extracts])
        for which, kept in (
            ("with a rationale", said & has_rationale),
            ("all, those without a rationale are wrong", said),
        ):
            bases = {"groundedness": np.nan_to_num(grounded), "signal of the answerer": signal}
            for basis, synthesis in bases.items():
                about = {"strategy": strategy, "synthesis_confidence": basis, "claims": which}
                held = basis == "groundedness"
                _compared(about, data, kept, right, synthesis=synthesis, miss=miss, held=held)
        progress(f"answers {strategy}: compared")


SECTIONS: dict[str, Callable[[], None]] = {
    "scifact": lambda: scifact("scifact", "minilm"),
    "lsa": lambda: scifact("lsa", "lsa-256"),
    "xquad": xquad,
    "prior": prior,
    "conformal": conformal,
    "answers": answers,
}


def main() -> None:
    """Run the chosen sections."""
    parser = argparse.ArgumentParser(description="Miss rates against the bars of the project.")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options = parser.parse_args()
    if data_folder() is None:
        skipped("miss_rate", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    for name in options.only:
        progress(name)
        SECTIONS[name]()


if __name__ == "__main__":
    main()
