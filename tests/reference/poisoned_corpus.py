"""PoisonedRAG's passages in XQuAD's corpus, and their retrieval with and without a guard.

The guard has two checks. A document that `floods` blocks is not indexed. A pair that
`restated_pairs` blocks is not retrieved. Other tests judge domains.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from corpora import places
from corpora import table as make_table

from rag_eval.core.errors import Embedding
from rag_eval.measures.overlap import SharedGold, mean_interval
from rag_eval.retrieval.kinds.bm25 import Bm25
from rag_eval.retrieval.kinds.vector import Vector
from rag_eval.retrieval.strategies import ReadyStrategy, StrategyIndex
from rag_eval.trust.duplicates import floods
from rag_eval.trust.restating import restated_pairs

HOST = "xquad.example"
UNTRUSTED, LOOKALIKE = "untrusted.example", "xquad.examp1e"
TOP, DEPTH = 5, 100
STRATEGIES = (
    Bm25(name="bm25", kind="bm25"),
    Vector(name="lsa", kind="vector", embedding=Embedding(model="lsa-256")),
)

FORMS: dict[str, Callable[[str, str], str]] = {
    "question. passage": lambda question, passage: f"{question}. {passage}",
    "question passage": lambda question, passage: f"{question} {passage}",
    "question? passage": lambda question, passage: f"{question}? {passage}",
    "Question? passage": lambda question, passage: (
        f"{question[:1].upper()}{question[1:]}? {passage}"
    ),
    "## question": lambda question, passage: f"## {question}\n\n{passage}",
    "passage": lambda _, passage: passage,
}
"""Ways to put the question in front of the passage; the last form leaves the question out."""

PLAIN = "passage"


class Attack(NamedTuple):
    """A corpus with planted texts, its questions, and the right documents."""

    texts: list[str]
    doc_ids: list[str]
    sources: list[str]
    vouched: np.ndarray
    targets: list[str]
    target_of: np.ndarray  # row of the target question of each text, -1 = clean text
    clean: list[str]
    relevant: list[str]  # document of each clean question


class Outcome(NamedTuple):
    """Shares of target questions with a planted text in the top 5, and recall@5 of clean questions.

    `poisoned` counts any planted text. `own` counts only texts that were planted for the question.
    `upper` and `own_upper` are upper 95 % bounds.
    """

    poisoned: float
    upper: float
    own: float
    own_upper: float
    recall: float


def json_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def attack(data: Path, form: str, source: str, per_target: int = 5) -> Attack:
    """Plant `per_target` passages for each target question; 0 plants none."""
    documents = json_lines(data / "xquad" / "corpus.jsonl")
    read = (data / "poisonedrag" / "nq.json").read_text(encoding="utf-8")
    targets = list(json.loads(read).values())
    planted = [
        (number, FORMS[form](target["question"], passage))
        for number, target in enumerate(targets)
        for passage in target["adv_texts"][:per_target]
    ]
    asked = {query["_id"]: query["text"] for query in json_lines(data / "xquad" / "queries.jsonl")}
    table = (data / "xquad" / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()
    judged = [line.split("\t")[:2] for line in table[1:]]
    names = [document["_id"] for document in documents]
    return Attack(
        [document["text"] for document in documents] + [text for _, text in planted],
        names + [f"zz-{row:04d}" for row in range(len(planted))],
        [HOST] * len(documents) + [source] * len(planted),
        np.array([True] * len(documents) + [False] * len(planted)),
        [target["question"] for target in targets],
        np.array([-1] * len(documents) + [number for number, _ in planted]),
        [asked[query] for query, _ in judged],
        [document for _, document in judged],
    )


def outcome(
    its: Attack, spec: Bm25 | Vector, folder: Path, *, guard: str = "", allowlist: bool = True
) -> Outcome:
    """Retrieve for all questions; `guard` names the checks that are on, joined by "+".

    `allowlist` says whether an allowlist with the host's domain is configured.
    """
    vouched = its.vouched if allowlist else None
    kept = np.ones(len(its.texts), dtype=bool)
    if "floods" in guard:
        found = floods(its.texts, its.sources, vouched=vouched)
        kept[found.loc[found["severity"] == "blocked", "row"].to_numpy()] = False
    rows = np.flatnonzero(kept)
    chunks = make_table(
        [its.texts[row] for row in rows],
        [(its.doc_ids[row], f"chunk-{its.doc_ids[row]}") for row in rows],
    )
    row_of = {document: row for row, document in enumerate(its.doc_ids)}
    original = np.array([row_of[document] for document in chunks.doc_ids])
    queries = its.targets + its.clean
    ranked = (
        ReadyStrategy(spec, StrategyIndex(chunks, places(folder)))
        .search(queries, min(DEPTH, len(rows)))
        .rows
    )
    held = ranked >= 0
    if "restates" in guard:
        of = [its.sources[row] for row in original]
        marks = None if vouched is None else vouched[original]
        pairs = restated_pairs(
            queries,
            chunks.texts,
            titles=[""] * len(of),
            doc_ids=chunks.doc_ids,
            sources=of,
            vouched=marks,
        )
        pairs = pairs[pairs["severity"] == "blocked"]
        blocked = np.zeros((len(queries), len(of)), dtype=bool)
        blocked[pairs["query"], pairs["chunk"]] = True
        held &= ~blocked[np.arange(len(queries))[:, None], np.maximum(ranked, 0)]
    shown = held & (np.cumsum(held, axis=1) <= TOP)
    documents = original[np.maximum(ranked, 0)]
    n = len(its.targets)
    planted = np.where(shown[:n], its.target_of[documents[:n]], -1)
    hits = np.stack(
        [(planted >= 0).any(axis=1), (planted == np.arange(n)[:, None]).any(axis=1)], axis=1
    ).astype(float)
    wanted = np.array([row_of[document] for document in its.relevant])
    recall = (shown[n:] & (documents[n:] == wanted[:, None])).any(axis=1).mean()
    bounds = mean_interval(hits, SharedGold.of_groups(np.arange(n)))
    return Outcome(
        float(bounds.value[0]),
        float(bounds.high[0]),
        float(bounds.value[1]),
        float(bounds.high[1]),
        float(recall),
    )
