"""Attacks planted into documents of public corpora, for the tests of the topic-shift check."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rag_eval.corpus import chunking as sentences
from rag_eval.corpus.loaders.package_docs import PackageDocs
from rag_eval.trust.planted import topic_shift

PLACES = ("start", "middle", "end")


class Planted(NamedTuple):
    """A document with a sentence planted at the characters [start, end)."""

    text: str
    start: int
    end: int


def plant(text: str, attack: str, place: str) -> Planted:
    """Put a sentence on a line of its own: at the start, the end, or the border near the middle."""
    if place == "start":
        return Planted(f"{attack}\n{text}", 0, len(attack))
    if place == "end":
        return Planted(f"{text}\n{attack}", len(text) + 1, len(text) + 1 + len(attack))
    cuts = sentences.borders(text) or [len(text)]
    at = min(cuts, key=lambda cut: abs(cut - len(text) / 2))
    before = text[:at].rstrip()
    end = len(before) + 1 + len(attack)
    return Planted(f"{before}\n{attack}\n{text[at:]}", len(before) + 1, end)


def read_documents(folder: Path, name: str) -> list[str]:
    """Read the documents of xquad, distractors or scifact, or the docstrings of pandas."""
    if name == "pandas":
        spec = PackageDocs(loader="package_docs", package="pandas", min_chars=150)
        return [document.text for document in spec.read(Path()).documents]
    path = folder / {"distractors": "xquad/distractors.jsonl"}.get(name, f"{name}/corpus.jsonl")
    return [json.loads(line)["text"] for line in path.read_text("utf-8").splitlines()]


def read_attacks(folder: Path) -> list[tuple[str, str]]:
    """Return (part and kind, attack) of all attacks of BIPIA."""
    return [
        (f"{part}: {kind}", attack)
        for part in ("text", "code")
        for kind, attacks in json.loads(
            (folder / "bipia" / f"{part}_attack_train.json").read_text("utf-8")
        ).items()
        for attack in attacks
    ]


def share_found(
    documents: list[str], attacks: Sequence[tuple[str, str]], share: float, seed: int = 0
) -> dict[str, float]:
    """Return the share of the attacks of each kind that a finding inside_document touches.

    The attacks are planted in random order, each batch into a share of the documents.
    """
    rng, hits = np.random.default_rng(seed), defaultdict(list)
    long_enough = np.flatnonzero([len(sentences.borders(text)) > 1 for text in documents])
    order, size = rng.permutation(len(attacks)), max(1, int(len(documents) * share))
    for low in range(0, len(order), size):
        part = [attacks[at] for at in order[low : low + size]]
        rows = rng.choice(long_enough, len(part), replace=False).tolist()
        texts, places = list(documents), {}
        for at, (row, (_, attack)) in enumerate(zip(rows, part, strict=True), low):
            places[row] = plant(documents[row], attack, PLACES[at % 3])
            texts[row] = places[row].text
        findings = topic_shift(texts)
        inside = findings[findings["rule"] == "inside_document"]
        for row, (kind, _) in zip(rows, part, strict=True):
            planted = places[row]
            near = (inside["start"] < planted.end) & (inside["end"] > planted.start)
            hits[kind].append((near & (inside["row"] == row)).any())
    return {kind: float(np.mean(values)) for kind, values in sorted(hits.items())}
