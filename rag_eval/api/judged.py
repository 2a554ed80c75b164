"""Match a run with judgements: rank its documents as trec_eval does, and score its wordings."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from rag_eval.api.inputs import QrelsLike, read_qrels
from rag_eval.core.arrays import BoolArray, Float32Array, FloatArray, IntArray, count_within
from rag_eval.core.errors import InputError, quoted
from rag_eval.gold.loading import gold_groups
from rag_eval.measures.overlap import SharedGold
from rag_eval.measures.ranking import PADDING, Qrels, parse_label, score_rankings

Wordings = Mapping[str, str] | pd.Series
"""Query id of a run -> the question that it asks. A query without an entry is its own question."""


def read_wordings(wordings: Wordings | None) -> dict[str, str]:
    """Return the ids as texts, as `read_run` does."""
    given = {} if wordings is None else wordings
    return {str(query): str(question) for query, question in given.items()}


def question_of(queries: Iterable[str], wordings: Mapping[str, str]) -> list[str]:
    """Return the question that each query asks."""
    return [wordings.get(query, query) for query in queries]


# ---- The documents of a run in the order of their scores.


class RankedRun:
    """The documents of `query_ids` [n] in a run of `read_run`; a query may have none.

    `documents` are the ids behind the codes of a ranking, sorted.
    """

    def __init__(self, run: pd.DataFrame, query_ids: list[str]) -> None:
        self.query_ids = query_ids
        row = pd.Index(query_ids).get_indexer(pd.Index(run["query_id"]))
        kept = run if (row >= 0).all() else run[row >= 0]
        self._row = row[row >= 0]
        self._score: FloatArray = kept["score"].to_numpy()
        self._document, names = pd.factorize(kept["doc_id"], sort=True)
        self.documents = pd.Index(names)

    def __len__(self) -> int:
        return len(self.query_ids)

    def ranking(
        self, depth: int | None = None, *, ascending_ties: bool = False
    ) -> tuple[IntArray, FloatArray]:
        """Rank the documents of each query: codes and scores, [n, depth]; -1 and 0 are padding.

        Equal scores are ordered by document id, from Z to A, and scores are equal if single
        precision cannot tell them apart: so trec_eval ranks. With `ascending_ties`, the order of
        ids is from A to Z and the precision is double.
        """
        key = self._score if ascending_ties else _single(self._score)
        tie = self._document if ascending_ties else -self._document
        order = np.lexsort((tie, -key, self._row))
        counts = np.bincount(self._row, minlength=len(self))
        place, longest = count_within(counts), int(counts.max(initial=0))
        width = longest if depth is None else min(depth, longest)
        order, place = order[place < width], place[place < width]
        items = np.full((len(counts), width), PADDING, dtype=np.int64)
        scores = np.zeros(items.shape)
        items[self._row[order], place] = self._document[order]
        scores[self._row[order], place] = self._score[order]
        return items, scores


def _single(scores: FloatArray) -> Float32Array:
    with np.errstate(over="ignore"):  # larger scores become infinite, and so equal
        return scores.astype(np.float32)


# ---- Questions with judgements.


@dataclasses.dataclass(frozen=True, eq=False)
class JudgedRun:
    """The wordings of a run that were judged.

    `question` [n] are the codes of their questions. `is_missing` [n] marks a wording that the run
    lacks: it is a key of `wordings`, or a question without any wording in the run. Its ranking is
    empty. `n_unjudged` counts the queries of the run without judgements, which are left out.
    `qrels` has the document codes of `ranked`.
    """

    ranked: RankedRun
    question: IntArray
    is_missing: BoolArray
    n_unjudged: int
    qrels: Qrels

    def score(self, labels: Sequence[str]) -> FloatArray:
        """Score each wording under each measure, [n, n_labels], as ir-measures does.

        A question without a relevant document scores 0, and its `Judged@k` is what it is.
        """
        values = np.empty((len(self.ranked), len(labels)))
        parsed = [parse_label(label) for label in labels]
        ascending = np.array([_breaks_ties_ascending(*one) for one in parsed])
        for rule in (False, True):
            columns = np.flatnonzero(ascending == rule).tolist()
            if columns:
                cutoffs = [parsed[column][1] for column in columns]
                depth = None if None in cutoffs else max(cutoff or 0 for cutoff in cutoffs)
                items, _ = self.ranked.ranking(depth, ascending_ties=rule)
                chosen = [labels[column] for column in columns]
                values[:, columns] = score_rankings(items, self.qrels, self.question, chosen)
        return values


def _breaks_ties_ascending(name: str, cutoff: int | None) -> bool:
    """Tell whether ir-measures scores a measure by the rules of MS MARCO, not of trec_eval."""
    return name == "Judged" or (name == "RR" and cutoff is not None)


@dataclasses.dataclass(frozen=True, eq=False)
class JudgedQuestions:
    """The judged questions, in the order of the qrels.

    `rows` are the judgements: question (code), doc_id, relevance. `groups` names the group of each
    question: those that share a relevant document, also by way of other questions.
    """

    names: pd.Index
    rows: pd.DataFrame
    groups: list[str]
    wordings: Mapping[str, str]

    @classmethod
    def read(cls, qrels: QrelsLike, wordings: Wordings | None = None) -> "JudgedQuestions":
        """Read judgements. They may name questions, or wordings with equal judgements."""
        asked = read_wordings(wordings)
        frame = read_qrels(qrels)
        if asked:
            frame = frame.assign(query_id=question_of(frame["query_id"], asked)).drop_duplicates()
            twice = frame.duplicated(["query_id", "doc_id"])
            if twice.any():
                row = frame[twice].iloc[0]
                message = "two wordings of a question have different grades for a document"
                found = quoted(f"question {row['query_id']}, document {row['doc_id']}")
                raise InputError.of("duplicate_judgement", message, field="wordings", found=found)
        code, names = pd.factorize(frame["query_id"])
        relevant = frame[frame["relevance"] > 0]
        groups = gold_groups(
            names.tolist(), relevant["query_id"].tolist(), relevant["doc_id"].tolist()
        )
        rows = frame[["doc_id", "relevance"]].assign(question=code).reset_index(drop=True)
        return cls(pd.Index(names), rows, groups, asked)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def gold(self) -> SharedGold:
        """The relevant documents that the questions share."""
        relevant = self.rows[self.rows["relevance"] > 0]
        return SharedGold.of_pairs(
            relevant["question"], pd.factorize(relevant["doc_id"])[0], len(self)
        )

    @property
    def n_relevant(self) -> IntArray:
        """Number of relevant documents of each question, [n_questions]."""
        relevant = self.rows["question"].to_numpy()[self.rows["relevance"].to_numpy() > 0]
        return np.bincount(relevant, minlength=len(self)).astype(np.int64)

    def match(self, run: pd.DataFrame, name: str = "run") -> JudgedRun:
        """Match a run of `read_run` with the questions.

        Raises InputError if the run has no judged query.
        """
        queries = pd.Index(run["query_id"].unique())
        question = self._codes(question_of(queries, self.wordings))
        is_judged = question >= 0
        if not is_judged.any():
            message = f"no query of {name} has judgements"
            found, known = (quoted(", ".join(ids[:3])) for ids in (queries, self.names))
            accepted = f"queries such as {known}"
            raise InputError.of("nothing_judged", message, found=found, accepted=accepted)
        missing = self._missing(queries, question)
        ranked = RankedRun(run, [*queries[is_judged], *missing])
        n_judged = int(np.count_nonzero(is_judged))
        return JudgedRun(
            ranked,
            np.concatenate([question[is_judged], self._codes(missing.values())]),
            np.arange(len(ranked)) >= n_judged,
            len(queries) - n_judged,
            self._number_documents(ranked.documents),
        )

    def _codes(self, questions: Iterable[str]) -> IntArray:
        """Return the code of each question, -1 for a question without judgements."""
        return self.names.get_indexer(pd.Index(list(questions), dtype=object)).astype(np.int64)

    def _missing(self, queries: pd.Index, question: IntArray) -> dict[str, str]:
        """Return the wordings that a run lacks, with their questions."""
        found = set(queries)
        missing = {
            query: asked
            for query, asked in self.wordings.items()
            if query not in found and asked in self.names
        }
        has_wording = np.zeros(len(self), dtype=bool)
        has_wording[question[question >= 0]] = True
        has_wording[self._codes(missing.values())] = True
        return missing | {name: name for name in self.names[~has_wording]}

    def _number_documents(self, retrieved: pd.Index) -> Qrels:
        """Give judged documents the codes of a run; documents that it lacks get further codes.

        A question without a relevant document gets one that no ranking holds. So every measure is
        0 and not undefined, as in ir-measures, and the share of judged documents stays what it is.
        """
        items = retrieved.get_indexer(pd.Index(self.rows["doc_id"])).astype(np.int64)
        absent = items < 0
        items[absent] = len(retrieved) + pd.factorize(self.rows["doc_id"][absent])[0]
        without = np.flatnonzero(self.n_relevant == 0)
        nowhere = np.full(len(without), len(retrieved) + len(items))
        return Qrels.from_rows(
            np.concatenate([self.rows["question"].to_numpy(), without]),
            np.concatenate([items, nowhere]),
            np.concatenate([self.rows["relevance"].to_numpy(), np.ones(len(without), dtype=int)]),
            len(self),
        )
