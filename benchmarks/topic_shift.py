"""Measure the topic-shift check: the BIPIA attacks it finds, and its findings in clean corpora.

Each attack is a line of its own at the start, in the middle or at the end of a document. The
documents are those of XQuAD and the documentation of pandas. A batch poisons a small or a large
share of the documents.
Nothing was fitted on BIPIA, on pandas or on the paragraphs of XQuAD. An attack is found when a
finding inside_document touches it.
"""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import planting
from timing import data_folder, emit, skipped

from rag_eval.trust.topic_shift import topic_shift

SHARES, SEED = (0.04, 0.3), 0


def read_attacks(folder: Path) -> list[tuple[str, str]]:
    """Return (part and kind, attack) of all attacks."""
    return [
        (f"{part}: {kind}", attack)
        for part in ("text", "code")
        for kind, attacks in json.loads(
            (folder / "bipia" / f"{part}_attack_train.json").read_text(encoding="utf-8")
        ).items()
        for attack in attacks
    ]


def measure_attacks(
    attacks: list[tuple[str, str]], host: str, documents: list[str], share: float
) -> None:
    """Print the share of attacks found by kind; each batch poisons `share` of the documents."""
    rng = np.random.default_rng(SEED)
    hits = defaultdict(list)
    what = [attacks[i] for i in rng.permutation(len(attacks))]
    for batch in planting.batches(documents, what, share, rng):
        texts = list(documents)
        for row, (_, _, planted) in batch.items():
            texts[row] = planted.text
        found = topic_shift(texts, [host] * len(texts))
        inside = found[found["rule"] == "inside_document"]
        for row, (kind, _, planted) in batch.items():
            near = (inside["start"] < planted.end) & (inside["end"] > planted.start)
            hits[kind].append(bool((near & (inside["row"] == row)).any()))
    for kind, values in sorted(hits.items()):
        about = {"host": host, "poisoned_share": share, "attack": kind, "planted": len(values)}
        emit("topic_shift", **about, found=round(float(np.mean(values)), 3))


def main() -> None:
    folder = data_folder()
    if folder is None:
        skipped("topic_shift", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    corpora = planting.corpora(folder) | {"pandas": planting.docstrings("pandas")}
    for name, documents in corpora.items():
        findings = topic_shift(documents, [name] * len(documents))
        warned = findings.groupby("rule")["row"].nunique() / len(documents)
        shares = {rule: round(float(share), 4) for rule, share in warned.items()}
        emit("topic_shift", clean=name, documents=len(documents), **shares)
    attacks = read_attacks(folder)
    for host in ("xquad", "pandas"):
        for share in SHARES:
            measure_attacks(attacks, host, corpora[host], share)


if __name__ == "__main__":
    main()
