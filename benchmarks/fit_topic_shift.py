"""Fit the weights of the topic-shift check and write rag_eval/trust/shift_coefficients.json.

The data are sentences moved between public documents: questions that people asked, tasks made of
titles, statements of other documents and orders with code. They are planted into a small share of a
corpus at a time. Such a corpus is a host: SQuAD paragraphs, SciFact abstracts, CLAPnq passages and
the documentation of numpy, scipy and scikit-learn. The fit never reads BIPIA, the paragraphs of
XQuAD, the documentation of pandas, and this project's gold sets. Only the questions of XQuAD are
planted.

The model is one logistic regression with equal weight for each host. A fixed share of clean
documents has a sentence above a threshold. "held_out" holds, for each host, the figures of weights
and thresholds that were fitted without the host.
"""

from typing import NamedTuple

import numpy as np
import planting
from sklearn.linear_model import LogisticRegression
from timing import data_folder, emit, skipped, write_coefficients

from rag_eval.trust.topic_shift import FEATURES, FILE, features_of, space_of

HOSTS = ("distractors", "scifact", "clapnq", *planting.PACKAGES)
PLANTED = {"question": (300, 1.0), "task": (300, 1.0), "statement": (150, 0.2), "code": (24, 3.0)}
MOST, SHARE, DIGITS, SEED = 1_500, 0.07, 4, 0
FORMED_SHARE, PLAIN_SHARE = 0.004, 0.001
PLANTED_WEIGHT = 0.3


class Host(NamedTuple):
    """A corpus: features of its own sentences and of the sentences planted into it."""

    clean: np.ndarray
    document_of: np.ndarray
    formed: np.ndarray
    planted: np.ndarray
    planted_formed: np.ndarray
    kinds: np.ndarray


def measured(documents: list[str], plants: dict[str, list[str]], rng: np.random.Generator) -> Host:
    if len(documents) > MOST:
        documents = [documents[i] for i in sorted(rng.choice(len(documents), MOST, replace=False))]
    group_of = np.zeros(len(documents), dtype=np.int64)
    space = space_of(documents)
    what = [
        (kind, plants[kind][i])
        for kind, (size, _) in PLANTED.items()
        for i in rng.choice(len(plants[kind]), size, replace=False)
    ]
    what = [what[i] for i in rng.permutation(len(what))]
    rows, formed, kinds = [], [], []
    for batch in planting.batches(documents, what, SHARE, rng):
        texts = list(documents)
        for row, (_, _, its) in batch.items():
            texts[row] = its.text
        there = space_of(texts)
        features = features_of(there, group_of)
        for row, (kind, _, its) in batch.items():
            for at in np.flatnonzero(
                (there.document_of == row) & (there.starts < its.end) & (there.ends > its.start)
            )[:1]:
                rows.append(features[at])
                formed.append(there.forms[at].any())
                kinds.append(kind)
    return Host(
        features_of(space, group_of),
        space.document_of,
        space.forms.any(axis=1),
        np.array(rows),
        np.array(formed),
        np.array(kinds),
    )


def fitted(hosts: list[Host]) -> tuple[np.ndarray, float, float, float]:
    """Fit the weights, the bias, and the thresholds of formed and of plain sentences."""
    x = np.vstack([part for host in hosts for part in (host.clean, host.planted)])
    y = np.concatenate(
        [part for host in hosts for part in (np.zeros(len(host.clean)), np.ones(len(host.planted)))]
    )
    weights = []
    for host in hosts:
        of_kind = np.array([PLANTED[kind][1] for kind in host.kinds])
        weights.append(np.full(len(host.clean), 1000 / len(host.clean)))
        weights.append(of_kind * PLANTED_WEIGHT * 1000 / len(host.planted))
    weight = np.concatenate(weights)
    mean, spread = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-9)
    model = LogisticRegression(C=1.0, max_iter=5000, tol=1e-8).fit(
        (x - mean) / spread, y, sample_weight=weight
    )
    slope = np.round(model.coef_[0] / spread, DIGITS)
    bias = float(np.round(model.intercept_[0] - slope @ mean, DIGITS))
    limits = []
    for share, formed in ((FORMED_SHARE, True), (PLAIN_SHARE, False)):
        highest = [_highest(host, slope, bias, formed=formed) for host in hosts]
        values = np.concatenate(highest)
        shares = [np.full(len(part), 1 / len(part) / len(hosts)) for part in highest]
        order = np.argsort(values)[::-1]
        reached = np.cumsum(np.concatenate(shares)[order])
        limits.append(float(np.round(values[order][np.searchsorted(reached, share)], 2)))
    return slope, bias, limits[0], limits[1]


def _highest(host: Host, slope: np.ndarray, bias: float, *, formed: bool) -> np.ndarray:
    """Return the highest score of the formed (or plain) sentences of each clean document."""
    result = np.full(int(host.document_of.max()) + 1, -99.0)
    rows = host.formed == formed
    np.maximum.at(result, host.document_of[rows], host.clean[rows] @ slope + bias)
    return result


def found(
    host: Host, slope: np.ndarray, bias: float, formed: float, plain: float
) -> dict[str, float]:
    warned = (_highest(host, slope, bias, formed=True) > formed) | (
        _highest(host, slope, bias, formed=False) > plain
    )
    hit = host.planted @ slope + bias > np.where(host.planted_formed, formed, plain)
    return {
        "clean_documents_warned": round(float(warned.mean()), 4),
        **{f"{kind}_found": round(float(hit[host.kinds == kind].mean()), 3) for kind in PLANTED},
    }


def main() -> None:
    folder = data_folder()
    if folder is None:
        skipped("fit_topic_shift", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    rng = np.random.default_rng(SEED)
    plants, corpora = planting.plants(folder, rng), planting.corpora(folder)
    corpora |= {name: planting.docstrings(name) for name in planting.PACKAGES}
    hosts = {name: measured(corpora[name], plants, rng) for name in HOSTS}
    slope, bias, formed, plain = fitted(list(hosts.values()))
    held_out = {}
    for name, host in hosts.items():
        others = [other for other_name, other in hosts.items() if other_name != name]
        held_out[name] = found(host, *fitted(others))
    document: dict[str, object] = {
        "schema_version": 1,
        "provenance": {
            "fitted_by": "benchmarks/fit_topic_shift.py",
            "fitted_on": {
                name: {"clean_sentences": len(host.clean), "planted": len(host.planted)}
                for name, host in hosts.items()
            },
            "held_out": held_out,
            "sets": "SQuAD paragraphs and XQuAD questions (CC BY-SA 4.0), SciFact abstracts (ODC-By"
            " 1.0), CLAPnq dev (Apache-2.0), docstrings of numpy, scipy and scikit-learn"
            " (BSD-3-Clause); only these numbers are kept of them",
            "thresholds": f"the highest formed sentence of {FORMED_SHARE:.1%} and the highest plain"
            f" one of {PLAIN_SHARE:.1%} of the clean documents exceeds them",
        },
        "thresholds": {"formed": formed, "plain": plain},
        "weights": {**dict(zip(FEATURES, slope.tolist(), strict=True)), "bias": bias},
    }
    write_coefficients("trust", FILE, document)
    emit("fit_topic_shift", formed=formed, plain=plain)
    for name, figures in held_out.items():
        emit("fit_topic_shift", host=name, **figures)


if __name__ == "__main__":
    main()
