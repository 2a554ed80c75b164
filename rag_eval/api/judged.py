"""Match a run with judgements: rank its documents as trec_eval does, and score its wordings."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from rag_eval.api.inputs import QrelsLike, read_qrels
from rag_eval.core.arrays import FloatArray, IntArray, count_within
from rag_eval.core.errors import InputError, quoted
from rag_eval.gold.loading import group_ids
from rag_eval.measures.ranking import PADDING, Qrels, parse_label, score_rankings

Wordings = Mapping[str, str]
"""Query id of a run -> the question that it asks. A query without an entry is its own question."""


@dataclasses.dataclass(frozen=True, eq=False)
class JudgedQuestions:
    """The judged questions, in the order of the qrels.

    `rows` are the judgements: question (code), doc_id, relevance. `groups` names the group of each
    question: questions that share a relevant document are one unit of inference.
    """

    names: pd.Index
    rows: pd.DataFrame
    groups: list[str]
    wordings: Wordings

    @classmethod
    def read(cls, qrels: QrelsLike, wordings: Wordings | None = None) -> "JudgedQuestions":
        """Read judgements. They may name questions, or wordings with equal judgements."""
        asked = {str(query): str(question) for query, question in dict(wordings or {}).items()}
        frame = read_qrels(qrels)
        questions = _questions(frame["query_id"], asked)
        frame = frame.assign(query_id=questions).drop_duplicates()
        if asked and (twice := frame.duplicated(["query_id", "doc_id"])).any():
            row = frame[twice].iloc[0]
            message = "two wordings of a question have different grades for a document"
            found = quoted(f"question {row['query_id']}, document {row['doc_id']}")
            raise InputError.of("duplicate_judgement", message, field="wordings", found=found)
        code, names = pd.factorize(frame["query_id"])
        relevant = frame[frame["relevance"] > 0]
        groups = group_ids(
            names.tolist(), relevant["query_id"].tolist(), relevant["doc_id"].tolist()
        )
        rows = frame[["doc_id", "relevance"]].assign(question=code).reset_index(drop=True)
        return cls(pd.Index(names), rows, groups, asked)

    def __len__(self) -> int:
        return len(self.names)

    def codes(self, questions: Iterable[str]) -> IntArray:
        """Return the code of each question, -1 for a question without judgements."""
        return self.names.get_indexer(pd.Index(questions)).astype(np.int64)

    @property
    def group(self) -> IntArray:
        """Code of each question's group, [n_questions]."""
        return pd.factorize(np.asarray(self.groups, dtype=object))[0].astype(np.int64)

    @property
    def n_relevant(self) -> IntArray:
        """Number of relevant documents of each question, [n_questions]."""
        relevant = self.rows["question"].to_numpy()[self.rows["relevance"].to_numpy() > 0]
        return np.bincount(relevant, minlength=len(self)).astype(np.int64)

    def match(self, run: pd.DataFrame, name: str = "run") -> "RankedRun":
        """Match a run of `read_run` with the questions.

        Raises InputError if the run has no judged query.
        """
        return RankedRun(run, self, name)


def _questions(queries: pd.Series, asked: Wordings) -> pd.Series:
    return queries.map(lambda query: asked.get(query, query)).astype("str") if asked else queries


class RankedRun:
    """The wordings of a run that were judged, and their ranked documents.

    `query_ids` are the wordings, `question` [n] the codes of their questions. A wording that the
    run lacks has an empty ranking: it is in `wordings`, or it is a question without any wording in
    the run. `n_unjudged` counts the queries of the run without judgements, which are left out.
    """

    def __init__(self, run: pd.DataFrame, judged: JudgedQuestions, name: str = "run") -> None:
        row, queries = pd.factorize(run["query_id"])
        question = judged.codes(_questions(pd.Series(queries), judged.wordings))
        if (question < 0).all():
            message = f"no query of {name} has judgements"
            found, known = (quoted(", ".join(ids[:3])) for ids in (queries, judged.names))
            accepted = f"queries such as {known}"
            raise InputError.of("nothing_judged", message, found=found, accepted=accepted)
        is_judged = question >= 0
        self.n_unjudged = int(np.count_nonzero(~is_judged))
        missing = _missing(queries, question, judged)
        self.query_ids: list[str] = [*queries[is_judged], *missing]
        self.question: IntArray = np.concatenate(
            [question[is_judged], judged.codes(missing.values())]
        )
        self.is_missing = np.arange(len(self.query_ids)) >= np.count_nonzero(is_judged)
        code = np.cumsum(is_judged) - 1
        kept = is_judged[row]
        self._row = code[row[kept]]
        documents = run["doc_id"] if kept.all() else run["doc_id"][kept]
        self._document, names = pd.factorize(documents, sort=True)
        self._score: FloatArray = run["score"].to_numpy()[kept]
        self.n_documents = len(names)
        self.qrels = _number_documents(judged, pd.Index(names))

    def ranking(
        self, depth: int | None = None, *, ascending_ties: bool = False
    ) -> tuple[IntArray, FloatArray]:
        """Rank the documents of each wording: codes and scores, [n, depth]; -1 and 0 are padding.

        Equal scores are ordered by document id, from Z to A, and scores are equal if single
        precision cannot tell them apart: so trec_eval ranks. With `ascending_ties`, the order of
        ids is from A to Z and the precision is double.
        """
        key = self._score if ascending_ties else _single(self._score)
        tie = self._document if ascending_ties else -self._document
        order = np.lexsort((tie, -key, self._row))
        counts = np.bincount(self._row, minlength=len(self.query_ids))
        place = count_within(counts)
        width = int(counts.max(initial=0)) if depth is None else min(depth, int(counts.max()))
        first = place < width
        order, place = order[first], place[first]
        items = np.full((len(counts), width), PADDING, dtype=np.int64)
        scores = np.zeros(items.shape)
        items[self._row[order], place] = self._document[order]
        scores[self._row[order], place] = self._score[order]
        return items, scores

    def score(self, labels: Sequence[str]) -> FloatArray:
        """Score each wording under each measure, [n, n_labels], as ir-measures does.

        A question without a relevant document scores 0, and its `Judged@k` is what it is.
        """
        values = np.empty((len(self.query_ids), len(labels)))
        parsed = [parse_label(label) for label in labels]
        ascending = np.array([_breaks_ties_ascending(*one) for one in parsed])
        for rule in (False, True):
            columns = np.flatnonzero(ascending == rule).tolist()
            if columns:
                cutoffs = [parsed[column][1] for column in columns]
                depth = None if None in cutoffs else max(cutoff or 0 for cutoff in cutoffs)
                items, _ = self.ranking(depth, ascending_ties=rule)
                chosen = [labels[column] for column in columns]
                values[:, columns] = score_rankings(items, self.qrels, self.question, chosen)
        return values


def _breaks_ties_ascending(name: str, cutoff: int | None) -> bool:
    """Tell whether ir-measures scores a measure by the rules of MS MARCO, not of trec_eval."""
    return name == "Judged" or (name == "RR" and cutoff is not None)


def _single(scores: FloatArray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return scores.astype(np.float32)


def _missing(queries: pd.Index, question: IntArray, judged: JudgedQuestions) -> dict[str, str]:
    """Return the wordings that the run lacks, with their questions."""
    found = set(queries)
    missing = {
        query: asked
        for query, asked in judged.wordings.items()
        if query not in found and asked in judged.names
    }
    has_wording = np.zeros(len(judged), dtype=bool)
    has_wording[question[question >= 0]] = True
    has_wording[judged.codes(missing.values())] = True
    return missing | {name: name for name in judged.names[~has_wording]}


def _number_documents(judged: JudgedQuestions, retrieved: pd.Index) -> Qrels:
    """Give judged documents the codes of a run; documents that the run lacks get further codes.

    A question without a relevant document gets one that no ranking holds. So every measure is 0 and
    not undefined, as in ir-measures, and the share of judged documents stays what it is.
    """
    items = retrieved.get_indexer(pd.Index(judged.rows["doc_id"])).astype(np.int64)
    absent = items < 0
    items[absent] = len(retrieved) + pd.factorize(judged.rows["doc_id"][absent])[0]
    without = np.flatnonzero(judged.n_relevant == 0)
    nowhere = np.full(len(without), items.max(initial=-1) + 1 + len(retrieved))
    return Qrels.from_rows(
        np.concatenate([judged.rows["question"].to_numpy(), without]),
        np.concatenate([items, nowhere]),
        np.concatenate([judged.rows["relevance"].to_numpy(), np.ones(len(without), dtype=int)]),
        len(judged),
    )
