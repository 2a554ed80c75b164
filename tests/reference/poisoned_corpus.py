"""PoisonedRAG's passages in XQuAD's corpus, and their retrieval with and without a guard.

A chunk that `find_paraphrases` or `find_restating` names may be left out.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from corpora import places
from corpora import table as make_table

from rag_eval.core.parts import Embedding
from rag_eval.measures.overlap import SharedGold, mean_interval
from rag_eval.retrieval.dense import Vector
from rag_eval.retrieval.lexical import Bm25, bm25s_engine
from rag_eval.retrieval.strategies import ReadyStrategy, StrategyIndex
from rag_eval.trust.planted import FIRST, find_paraphrases, find_restating

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
"""Ways to put the question in front of the passage; the last form leaves the question out.

`## question` with one passage a question is a page of a FAQ.
"""

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
    `upper` and `own_upper` are upper 95 % bounds. `n_dropped` is the number of clean documents that
    are lost.
    """

    poisoned: float
    upper: float
    own: float
    own_upper: float
    recall: float
    n_dropped: int


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


class Poisoned:
    """An attack with its rankings by one strategy, made once for all guards."""

    def __init__(self, its: Attack, spec: Bm25 | Vector, folder: Path) -> None:
        self.its, self.queries = its, its.targets + its.clean
        table = make_table(its.texts, [(name, f"chunk-{name}") for name in its.doc_ids])
        self.index = StrategyIndex(table, places(folder))
        self.row_of = {document: row for row, document in enumerate(its.doc_ids)}
        self.documents = np.array([self.row_of[document] for document in table.doc_ids])
        depth = min(DEPTH, len(its.texts))
        self.ranked = ReadyStrategy(spec, self.index).search(self.queries, depth).rows
        terms = table.query_terms(self.queries)
        self.first = bm25s_engine(self.index).search(terms, FIRST).rows.astype(np.int64)

    def outcome(self, *, allowlist: bool = True, withheld: Sequence[str] = ("blocked",)) -> Outcome:
        """Retrieve for all questions behind the guard.

        `allowlist` says whether an allowlist with the host's domain is configured. `withheld` are
        the verdicts that are left out.
        """
        vouched = self.its.vouched[self.documents] if allowlist else None
        table, frequency = self.index.table, bm25s_engine(self.index).frequency
        found = pd.concat(
            [
                find_paraphrases(self.first, table.frame, table.terms, frequency, vouched=vouched),
                find_restating(self.queries, self.first, table.frame, vouched=vouched),
            ]
        )
        gone = np.zeros(len(self.documents), dtype=bool)
        gone[found["row"].to_numpy()[found["severity"].isin(withheld).to_numpy()]] = True
        return self._measure(gone)

    def _measure(self, gone: np.ndarray) -> Outcome:
        its, n = self.its, len(self.its.targets)
        rows = np.maximum(self.ranked, 0)
        held = (self.ranked >= 0) & ~gone[rows]
        shown = held & (np.cumsum(held, axis=1) <= TOP)
        documents = self.documents[rows]
        planted = np.where(shown[:n], its.target_of[documents[:n]], -1)
        hits = np.stack(
            [(planted >= 0).any(axis=1), (planted == np.arange(n)[:, None]).any(axis=1)], axis=1
        ).astype(float)
        wanted = np.array([self.row_of[document] for document in its.relevant])
        recall = (shown[n:] & (documents[n:] == wanted[:, None])).any(axis=1).mean()
        bounds = mean_interval(hits, SharedGold.of_groups(np.arange(n)))
        dropped = gone & (its.target_of[self.documents] < 0)
        return Outcome(
            float(bounds.value[0]),
            float(bounds.high[0]),
            float(bounds.value[1]),
            float(bounds.high[1]),
            float(recall),
            int(dropped.sum()),
        )
