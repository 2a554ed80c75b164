"""Refits the calibration of `rag_eval.measures.support` on ExpertQA's labels and says what it is worth on the half it has not seen.

A claim is supported where the experts said that its evidence supports it completely. Claims whose evidence is a bare address are left
out: the experts read the page, and its text is not there. Claims without evidence stay in. Questions are split by their hash.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from timing import data_folder, skipped

from rag_eval.measures.groundedness import groundedness
from rag_eval.measures.support import features, support_probability

LABELS = ("Complete", "Partial", "Incomplete", "Missing")
_ADDRESS = re.compile(r"^\s*(?:\[\d+\]\s*)?\S+://\S+\s*")
_ENOUGH = 100  # characters of evidence beside its address


class Claims(NamedTuple):
    """Claims with their evidence and labels; `fitted` marks the half of the questions that coefficients are fitted on."""

    texts: list[str]
    evidence: list[list[str]]
    label: np.ndarray
    question: np.ndarray
    fitted: np.ndarray

    @property
    def supported(self) -> np.ndarray:
        return self.label == "Complete"


def load(folder: Path) -> Claims:
    """Read both files of ExpertQA; a question that stands in both counts once."""
    rows = {}
    for name in ("rand_test", "rand_val"):
        for line in (
            (folder / "expertqa" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        ):
            row = json.loads(line)
            rows.setdefault(row["question"], row)
    kept = []
    for number, (question, row) in enumerate(rows.items()):
        half = int(hashlib.sha256(question.encode()).hexdigest(), 16) % 2 == 0
        for answer in row["answers"].values():
            for claim in answer["claims"]:
                texts = [_ADDRESS.sub("", text) for text in claim["evidence"]]
                if claim["support"] in LABELS and (not texts or sum(map(len, texts)) > _ENOUGH):
                    kept.append((claim["claim_string"], texts, claim["support"], number, half))
    claims, evidence, label, question, fitted = zip(*kept, strict=True)
    return Claims(
        list(claims), list(evidence), np.array(label), np.array(question), np.array(fitted)
    )


def fit(score: np.ndarray, supported: np.ndarray) -> tuple[float, ...]:
    """Intercept and coefficients of a logistic model, all but unpenalised."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=1e4, max_iter=10_000, tol=1e-10).fit(features(score), supported)
    return (float(model.intercept_[0]), *map(float, model.coef_[0]))


def calibration_error(supported: np.ndarray, probability: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error over bins of equal size."""
    parts = np.array_split(np.argsort(probability, kind="stable"), bins)
    return sum(
        abs(supported[part].mean() - probability[part].mean()) * len(part) for part in parts
    ) / len(supported)


def main() -> None:
    from sklearn.metrics import brier_score_loss, roc_auc_score

    folder = data_folder()
    if folder is None or not (folder / "expertqa").is_dir():
        skipped("fit_groundedness", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    claims = load(folder)
    found = groundedness(claims.texts, claims.evidence)
    score = np.nan_to_num(found.value)
    seen, unseen = claims.fitted, ~claims.fitted
    with_text = unseen & np.array([bool(texts) for texts in claims.evidence])
    probability, truth = support_probability(score), claims.supported
    print(
        json.dumps(
            {
                "bench": "fit_groundedness",
                "coefficients": [round(value, 4) for value in fit(score[seen], truth[seen])],
                "claims_fitted": int(seen.sum()),
                "claims_held_out": int(unseen.sum()),
                "supported_held_out": round(float(truth[unseen].mean()), 4),
                "auroc": round(float(roc_auc_score(truth[unseen], probability[unseen])), 4),
                "auroc_with_text": round(
                    float(roc_auc_score(truth[with_text], probability[with_text])), 4
                ),
                "claims_with_text": int(with_text.sum()),
                "brier": round(float(brier_score_loss(truth[unseen], probability[unseen])), 4),
                "brier_of_the_rate": round(
                    float(truth[unseen].mean() * (1 - truth[unseen].mean())), 4
                ),
                "calibration_error": round(
                    float(calibration_error(truth[unseen], probability[unseen])), 4
                ),
            }
        )
    )


if __name__ == "__main__":
    main()
