"""Match a run with judgements: rank its documents as trec_eval does, and score its wordings."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rag_eval.api.inputs import Judgements, QrelsLike, Run
from rag_eval.core.arrays import BoolArray, Float32Array, FloatArray, IntArray, count_within
from rag_eval.core.errors import InputError, quoted
from rag_eval.core.fields import ID, decode_id, encode_id
from rag_eval.measures.overlap import SharedGold
from rag_eval.measures.ranking import PADDING, Qrels, parse_label, score_rankings


class Wordings(Protocol):
    """A mapping or a pandas series: query id of a run -> the question that it asks.

    A query without an entry is its own question.
    """

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Return pairs of a query id and a question id."""


def read_wordings(wordings: Wordings | None) -> dict[str, str]:
    """Return the ids as texts, as `read_run` does. Raises InputError for a value that is no id."""
    texts = {}
    for pair in () if wordings is None else wordings.items():
        query, question = map(ID.read, pair)
        if query is None or question is None:
            raise InputError.of("bad_id", ID.message, field="wordings", accepted=ID.accepted)
        texts[query] = question
    return texts


def question_of(queries: Iterable[str], wordings: Mapping[str, str]) -> list[str]:
    """Return the question that each query asks."""
    return [wordings.get(query, query) for query in queries]


def encode(names: Iterable[str]) -> dict[str, int]:
    """Number distinct names from 0, in the order of their first appearance."""
    return {name: code for code, name in enumerate(dict.fromkeys(names))}


def find_codes(names: Sequence[str], codes: Mapping[str, int]) -> IntArray:
    """Return the code of each name, -1 for a name without a code."""
    return np.fromiter((codes.get(name, -1) for name in names), np.int64, len(names))


# ---- The documents of a run in the order of their scores.


class RankedRun:
    """The documents of `query_ids` [n] in a run; a query may have none.

    `documents` are the ids behind the codes of a ranking, sorted.
    """

    def __init__(self, run: Run, query_ids: list[str]) -> None:
        self.query_ids = query_ids
        row = find_codes(run.query_ids, encode(query_ids))
        is_asked = row >= 0
        self._row, self._score = row[is_asked], run.scores[is_asked]
        self.documents = sorted(set(run.doc_ids))
        self._document = find_codes(run.doc_ids, encode(self.documents))[is_asked]

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
        # ir-measures scores these measures by the rules of MS MARCO, not of trec_eval.
        ascending = [name == "Judged" or (name == "RR" and k is not None) for name, k in parsed]
        for rule in {*ascending}:
            columns = [column for column, other in enumerate(ascending) if other == rule]
            cutoffs = [parsed[column][1] for column in columns]
            depth = None if None in cutoffs else max(cutoff or 0 for cutoff in cutoffs)
            items, _ = self.ranked.ranking(depth, ascending_ties=rule)
            chosen = [labels[column] for column in columns]
            values[:, columns] = score_rankings(items, self.qrels, self.question, chosen)
        return values


@dataclasses.dataclass(frozen=True, eq=False)
class JudgedQuestions:
    """The judged questions, in the order of the qrels.

    The judgements are `question` (codes), `doc_ids` and `relevance`, [n_judgements] each.
    """

    names: list[str]
    question: IntArray
    doc_ids: list[str]
    relevance: IntArray
    wordings: Mapping[str, str]

    @classmethod
    def read(cls, qrels: QrelsLike, wordings: Wordings | None = None) -> "JudgedQuestions":
        """Read judgements. They may name questions, or wordings with equal judgements."""
        asked = read_wordings(wordings)
        judgements = Judgements.read(qrels)
        questions, grades = question_of(judgements.query_ids, asked), judgements.relevance.tolist()
        grade_of: dict[tuple[str, str], int] = {}
        for question, doc_id, grade in zip(questions, judgements.doc_ids, grades, strict=True):
            if grade_of.setdefault((question, doc_id), grade) != grade:
                message = "two wordings of a question have different grades for a document"
                pair = quoted(f"question {question}, document {doc_id}")
                raise InputError.of("duplicate_judgement", message, field="wordings", found=pair)
        codes = encode(question for question, _ in grade_of)
        return cls(
            list(codes),
            find_codes([question for question, _ in grade_of], codes),
            [doc_id for _, doc_id in grade_of],
            np.array(list(grade_of.values()), dtype=np.int64),
            asked,
        )

    def __len__(self) -> int:
        return len(self.names)

    @functools.cached_property
    def groups(self) -> list[str]:
        """Group of each question: those that share a relevant document, also through others."""
        from rag_eval.gold.loading import gold_groups

        rows = np.flatnonzero(self.relevance > 0).tolist()
        queries = [self.names[code] for code in self.question[rows].tolist()]
        return gold_groups(self.names, queries, [self.doc_ids[row] for row in rows])

    @property
    def gold(self) -> SharedGold:
        """The relevant documents that the questions share."""
        rows = np.flatnonzero(self.relevance > 0)
        doc_ids = [self.doc_ids[row] for row in rows]
        codes = find_codes(doc_ids, encode(doc_ids))
        return SharedGold.of_pairs(self.question[rows], codes, len(self))

    @property
    def n_relevant(self) -> IntArray:
        """Number of relevant documents of each question, [n_questions]."""
        relevant = self.question[self.relevance > 0]
        return np.bincount(relevant, minlength=len(self)).astype(np.int64)

    def match(self, run: Run, name: str = "run") -> JudgedRun:
        """Match a run with the questions; raise InputError if the run has no judged query.

        TREC files of this package percent-encode ids. Ids of the run are decoded, or encoded as
        those of the judgements, if more of them are judged then.
        """
        run, codes = self._spell_alike(run), encode(self.names)
        queries = list(encode(run.query_ids))
        question = find_codes(question_of(queries, self.wordings), codes)
        asked = [query for query, code in zip(queries, question, strict=True) if code >= 0]
        if not asked:
            message = f"no query of {name} has judgements"
            theirs, ours = (quoted(", ".join(ids[:3])) for ids in (queries, self.names))
            accepted = f"queries such as {ours}"
            raise InputError.of("nothing_judged", message, found=theirs, accepted=accepted)
        present = set(queries)
        missing = {
            query: code
            for query, asked_question in self.wordings.items()
            if query not in present and (code := codes.get(asked_question, -1)) >= 0
        }
        has_wording = np.isin(np.arange(len(self)), [*question, *missing.values()])
        missing |= {self.names[code]: code for code in np.flatnonzero(~has_wording).tolist()}
        ranked = RankedRun(run, [*asked, *missing])
        return JudgedRun(
            ranked,
            np.array([*question[question >= 0], *missing.values()], dtype=np.int64),
            np.arange(len(ranked)) >= len(asked),
            len(queries) - len(asked),
            self._number_documents(ranked.documents),
        )

    def _spell_alike(self, run: Run) -> Run:
        """Spell the ids of a run as the judgements do: as given, decoded, or encoded.

        The spelling with most judged ids wins, so a literal `%20` that is judged stays. Of equals
        the given one wins, unless the run has an encoded percent sign.
        """
        queries, documents = set(run.query_ids), set(run.doc_ids)
        names, rated = set(self.names), set(self.doc_ids)
        spellings: list[Callable[[str], str]] = [str]
        chars = "".join(queries | documents)
        if "%" in chars and all(encode_id(decode_id(name)) == name for name in queries | documents):
            spellings.insert(0 if "%25" in chars else 1, decode_id)
        if "%" in "".join(names | rated):
            spellings.append(encode_id)
        if len(spellings) == 1:
            return run

        def count_judged(spell: Callable[[str], str]) -> int:
            asked = question_of(map(spell, queries), self.wordings)
            return len(names.intersection(asked)) + len(rated.intersection(map(spell, documents)))

        spell = max(spellings, key=count_judged)
        query_ids, doc_ids = (list(map(spell, ids)) for ids in run[:2])
        return run._replace(query_ids=query_ids, doc_ids=doc_ids)

    def _number_documents(self, retrieved: Sequence[str]) -> Qrels:
        """Give judged documents the codes of a run; documents that it lacks get further codes.

        A question without a relevant document gets one that no ranking holds. So every measure is
        0 and not undefined, as in ir-measures, and the share of judged documents stays what it is.
        """
        items = find_codes(self.doc_ids, encode([*retrieved, *self.doc_ids]))
        without = np.flatnonzero(self.n_relevant == 0)
        nowhere = np.full(len(without), len(retrieved) + len(items))
        return Qrels.from_rows(
            np.concatenate([self.question, without]),
            np.concatenate([items, nowhere]),
            np.concatenate([self.relevance, np.ones(len(without), dtype=np.int64)]),
            len(self),
        )
