"""What the extractive answerer reaches on CLAPnq, XQuAD, SciFact and pandas_api, and what a question costs.

One JSON line a figure. `all` counts every question of a set, `held_out` only those that no weight and no threshold was fitted on
(`benchmarks/fit_extractive.py`). `model` is what measures: words alone, words and LSA fitted on the set's own passages (the embedded
default), words and MiniLM. `ms_per_question` is one batch of all questions, with their embedding where `embedding_included`.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from answer_sets_path import answer_sets
from timing import ROOT, data_folder, skipped

from rag_eval.answers.extractive import Extract, Extractive, TermWeights
from rag_eval.settings import telemetry_off

BARS = {
    "precision": 0.58,
    "recall": 0.58,
    "auroc": 0.65,
    "refused_answerable": 0.15,
    "recall_at_3": 0.65,
    "citation_precision": 0.50,
    "citation_validity": 1.0,
}


def line(figure: str, **more: object) -> None:
    rounded = {
        name: round(value, 4) if isinstance(value, float) else value for name, value in more.items()
    }
    print(json.dumps({"bench": "extractive", "figure": figure, **rounded}), flush=True)


def run(model: Extractive, its: Any) -> tuple[list[Extract], float]:
    model.answer(its.questions[:5], its.passages[:5])
    started = time.perf_counter()
    found = model.answer(its.questions, its.passages)
    return found, 1000 * (time.perf_counter() - started) / len(its.questions)


def answerers(its: Any, minilm: Any) -> dict[str, Extractive]:
    weights = TermWeights.of_texts(its.background)
    found = {
        "lexical": Extractive(term_weights=weights),
        "lsa": Extractive(
            answer_sets.lsa_embed(its.background), embedding="lsa", term_weights=weights
        ),
    }
    return found | ({} if minilm is None else {"minilm": Extractive(minilm, term_weights=weights)})


def sentences(its: Any, minilm: Any, bars: dict[str, float]) -> dict[str, list[Extract]]:
    """Precision and recall of the chosen sentences, macro over questions with gold."""
    kept = {}
    for name, model in answerers(its, minilm).items():
        model.answer(its.questions, its.passages)  # embeds; the second time counts without
        kept[name], ms = run(model, its)
        precision, recall = answer_sets.precision_recall(kept[name], its.gold)
        for part, rows in (("all", its.answerable), ("held_out", its.answerable & its.held_out)):
            if not rows.any():
                continue
            n = float(
                np.mean(
                    [
                        len(extract.sentences)
                        for extract, used in zip(kept[name], rows, strict=True)
                        if used
                    ]
                )
            )
            figures = {
                "precision": float(precision[rows].mean()),
                "recall": float(recall[rows].mean()),
                "sentences": n,
            }
            line(
                f"{its.name} sentences",
                model=name,
                part=part,
                questions=int(rows.sum()),
                **figures,
                bars=bars,
                ms_per_question=ms,
                embedding_included=name == "lsa",
            )
    return kept


def abstention(
    figure: str,
    name: str,
    threshold: float,
    *,
    signal: np.ndarray,
    positive: np.ndarray,
    held_out: np.ndarray,
) -> None:
    for part, rows in (
        ("all", np.ones(len(signal), dtype=bool)),
        ("fitted", ~held_out),
        ("held_out", held_out),
    ):
        low, high = answer_sets.auroc_interval(positive[rows], signal[rows])
        refused = signal[rows] < threshold
        rates = {
            "refused_answerable": float(refused[positive[rows]].mean()),
            "refused_unanswerable": float(refused[~positive[rows]].mean()),
        }
        auroc = answer_sets.auroc(positive[rows], signal[rows])
        line(
            figure,
            model=name,
            part=part,
            questions=int(rows.sum()),
            auroc=auroc,
            interval=[round(low, 3), round(high, 3)],
            threshold=threshold,
            **rates,
            bars={name: BARS[name] for name in ("auroc", "refused_answerable")},
        )


def signals(extracts: list[Extract]) -> np.ndarray:
    return np.array([extract.signal for extract in extracts])


def pandas_api(minilm: Any) -> None:
    from pandas_evidence import figures, pandas_evidence

    with tempfile.TemporaryDirectory() as home:
        for original in (True, False):
            evidence = pandas_evidence(ROOT, Path(home), original=original)
            questions = evidence.variants["text"].tolist()
            models = {"lsa": evidence.answerer()} | (
                {}
                if minilm is None
                else {"minilm": Extractive(minilm, term_weights=evidence.term_weights)}
            )
            for name, model in models.items():
                found = model.answer(questions, evidence.passages)
                wording = "original" if original else "paraphrases"
                line(
                    "pandas_api citations",
                    model=name,
                    wording=wording,
                    threshold=model.abstain_below,
                    **figures(evidence, found),
                    bars={key: BARS[key] for key in ("citation_precision", "citation_validity")},
                )
                line(
                    "pandas_api citations, nothing refused",
                    model=name,
                    wording=wording,
                    **figures(evidence, found, ignore_refusals=True),
                )


def main() -> None:
    telemetry_off()
    folder = data_folder()
    if folder is None:
        skipped("extractive", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    minilm = answer_sets.minilm_embed()
    if minilm is None:
        skipped(
            "extractive",
            "the model file of MiniLM is not on this machine: its figures are left out",
        )
    clapnq = answer_sets.clapnq(folder)
    thresholds = {name: model.abstain_below for name, model in answerers(clapnq, minilm).items()}
    for name, found in sentences(
        clapnq, minilm, {key: BARS[key] for key in ("precision", "recall")}
    ).items():
        abstention(
            "clapnq answerable or not",
            name,
            thresholds[name],
            signal=signals(found),
            positive=clapnq.carried,
            held_out=clapnq.held_out,
        )
    xquad = answer_sets.xquad(folder)
    right, wrong = (sentences(xquad[name], minilm, {}) for name in ("xquad", "xquad_wrong"))
    held_out = np.concatenate([xquad["xquad"].held_out, xquad["xquad_wrong"].held_out])
    for name in right:
        signal, positive = (
            np.concatenate([signals(right[name]), signals(wrong[name])]),
            np.repeat([True, False], len(right[name])),
        )
        abstention(
            "xquad right paragraph or nearest wrong one",
            name,
            thresholds[name],
            signal=signal,
            positive=positive,
            held_out=held_out,
        )
    sentences(xquad["xquad_open"], minilm, {})
    sentences(answer_sets.scifact_evidence(folder), minilm, {"recall": BARS["recall_at_3"]})
    pandas_api(minilm)


if __name__ == "__main__":
    main()
