"""Corpora and planted sentences for the benchmarks of the topic-shift check."""

import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from timing import json_lines

from rag_eval.corpus import chunking as sentences
from rag_eval.corpus.loaders.package_docs import PackageDocs
from rag_eval.trust.topic_shift import topic_shift

PLACES = ("start", "middle", "end")
PACKAGES = ("numpy", "scipy", "sklearn")
"""Packages with documentation for the fit; the documentation of pandas is only measured."""

SENTENCES = tomllib.loads((Path(__file__).parent / "planting.toml").read_text(encoding="utf-8"))
TASKS = SENTENCES["tasks"].strip().splitlines()
CODE = [
    f"{line}\n```\n{code}\n```"
    for line in SENTENCES["code_introductions"].strip().splitlines()
    for code in SENTENCES["code"]
]


class Planted(NamedTuple):
    """A document with a sentence planted at the characters [start, end)."""

    text: str
    start: int
    end: int


def plant(text: str, what: str, place: str) -> Planted:
    """Put a sentence on a line of its own: at the start, the end, or the border near the middle."""
    if place == "start":
        return Planted(f"{what}\n{text}", 0, len(what))
    if place == "end":
        return Planted(f"{text}\n{what}", len(text) + 1, len(text) + 1 + len(what))
    cuts = sentences.borders(text) or [len(text)]
    at = min(cuts, key=lambda cut: abs(cut - len(text) / 2))
    before = text[:at].rstrip()
    return Planted(f"{before}\n{what}\n{text[at:]}", len(before) + 1, len(before) + 1 + len(what))


def docstrings(package: str) -> list[str]:
    """Read the documentation of an installed package, one text for each document."""
    spec = PackageDocs(loader="package_docs", package=package, min_chars=150)
    return [document.text for document in spec.read(Path()).documents]


def _texts(path: Path) -> list[str]:
    return [line["text"] for line in json_lines(path)]


def _read_clapnq(folder: Path) -> list[dict]:
    parts = (f"clapnq_dev_{part}.jsonl" for part in ("answerable", "unanswerable"))
    return [row for part in parts for row in json_lines(folder / "clapnq" / part)]


def corpora(folder: Path) -> dict[str, list[str]]:
    """Read the clean documents of each corpus."""
    passages = (passage for row in _read_clapnq(folder) for passage in row["passages"])
    return {
        "xquad": _texts(folder / "xquad" / "corpus.jsonl"),
        "distractors": _texts(folder / "xquad" / "distractors.jsonl"),
        "scifact": _texts(folder / "scifact" / "corpus.jsonl"),
        "clapnq": list(dict.fromkeys(passage["text"] for passage in passages)),
    }


def plants(folder: Path, rng: np.random.Generator) -> dict[str, list[str]]:
    """Make sentences by kind: asked questions, tasks made of titles, statements, and code."""
    clapnq, clean = _read_clapnq(folder), corpora(folder)
    asked = [row["input"] for row in clapnq]
    questions = [f"{text[:1].upper()}{text[1:].rstrip('?')}?" for text in asked]
    questions += _texts(folder / "xquad" / "queries.jsonl")
    titles = sorted({passage["title"] for row in clapnq for passage in row["passages"]})
    tasks = [TASKS[i % len(TASKS)].format(title) for i, title in enumerate(rng.permutation(titles))]
    statements = [
        text[low:high]
        for text in [*clean["scifact"][::20], *clean["distractors"][::3]]
        for low, high in sentences.spans(text)[1:2]
        if re.search(r"\w+(?:\W+\w+){5}", text[low:high])
    ]
    return {"question": questions, "task": tasks, "statement": statements, "code": CODE}


def batches(
    documents: Sequence[str],
    what: Sequence[tuple[str, str]],
    share: float,
    rng: np.random.Generator,
) -> list[dict[int, tuple[str, str, Planted]]]:
    """Plant each (kind, sentence) into a document, a share of the documents in each batch.

    The places take turns. Returns document row -> (kind, place, planted document) for each batch.
    """
    size = max(1, int(len(documents) * share))
    long_enough = np.flatnonzero([len(sentences.borders(text)) > 1 for text in documents])
    result = []
    for low in range(0, len(what), size):
        part = what[low : low + size]
        rows = rng.choice(long_enough, len(part), replace=False)
        result.append(
            {
                int(row): (kind, place, plant(documents[row], text, place))
                for row, (i, (kind, text)) in zip(rows, enumerate(part, low), strict=True)
                for place in [PLACES[i % 3]]
            }
        )
    return result


def read_attacks(folder: Path) -> list[tuple[str, str]]:
    """Return (part and kind, attack) of all attacks of BIPIA."""
    return [
        (f"{part}: {kind}", attack)
        for part in ("text", "code")
        for kind, attacks in json.loads(
            (folder / "bipia" / f"{part}_attack_train.json").read_text(encoding="utf-8")
        ).items()
        for attack in attacks
    ]


def share_found(
    documents: list[str], what: Sequence[tuple[str, str]], share: float, seed: int = 0
) -> dict[str, float]:
    """Return the share of sentences of each kind that a finding inside_document touches.

    The sentences are planted in random order, each batch into a share of the documents.
    """
    rng = np.random.default_rng(seed)
    hits = defaultdict(list)
    for batch in batches(documents, [what[i] for i in rng.permutation(len(what))], share, rng):
        texts = list(documents)
        for row, (_, _, planted) in batch.items():
            texts[row] = planted.text
        found = topic_shift(texts, ["host"] * len(texts))
        inside = found[found["rule"] == "inside_document"]
        for row, (kind, _, planted) in batch.items():
            near = (inside["start"] < planted.end) & (inside["end"] > planted.start)
            hits[kind].append((near & (inside["row"] == row)).any())
    return {kind: float(np.mean(values)) for kind, values in sorted(hits.items())}
