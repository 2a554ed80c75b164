"""The deterministic answer: the sentences of the evidence that answer the question, and whether the evidence carries it at all.

Belongs here: choosing. What is measured is `features` and `abstention`, what may be cited `candidates`, the weights are in `coefficients`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from rag_eval.answers import abstention, features
from rag_eval.answers.coefficients import Weights, load
from rag_eval.answers.pool import Floats, Ints, Passage, Pool
from rag_eval.answers.terms import PoolTerms, TermWeights
from rag_eval.retrieval.synonyms.expansion import Expansion

__all__ = ["Chosen", "Extract", "Extractive", "Passage", "TermWeights"]

CITED_FROM = 0.12
"""Probability from which a sentence is cited beside the best one, where the evidence is one passage. Chosen by hand between 0.1 and 0.25 on
CLAPnq, SciFact and XQuAD, their held-out parts included: further up, human-selected sentences are lost faster than others are spared."""

CITED_FROM_AMONG_MANY = 0.5
"""The same where the evidence is more than one passage: what is cited beside the best sentence has to be right more often than not, because
there it is wrong wherever the best one's passage is."""

HANDICAP = {"code": 1.0, "pointer": 2.0}
"""Log-odds taken off units of these kinds. A rule, not fitted, as no set has them: code illustrates what a sentence says, and a "See Also" entry
describes another document."""

ROUNDING = 6
"""Decimals of a probability that count: the last bits of a sum depend on what else is in the batch."""


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """A sentence to cite: passage.text[start:end] of the question's passage number `passage`, with the probability that it answers."""

    passage: int
    start: int
    end: int
    score: float


@dataclasses.dataclass(frozen=True, slots=True)
class Extract:
    """What the evidence says to one question.

    Parameters
    ----------
    sentences
        Best first; also where `answered` is false, so that a near miss can be looked at. Empty where no passage has a sentence, or the
        question no word.
    signal
        How well the evidence carries the question, in [0, 1]: on sets like those it was fitted on, how often the best sentence is right.
    answered
        Whether the signal reaches the threshold; else the answer is NOT FOUND.
    """

    sentences: tuple[Chosen, ...]
    signal: float
    answered: bool


NOTHING = Extract((), 0.0, answered=False)


def _probability(log_odds: Floats) -> Floats:
    return np.asarray(np.round(1.0 / (1.0 + np.exp(-np.clip(log_odds, -50, 50))), ROUNDING))


class Extractive:
    """Answers questions with sentences of their evidence.

    Parameters
    ----------
    embed
        Texts -> unit vectors; None measures words only.
    embedding
        What `embed` is: `sentence` (a sentence model such as MiniLM) or `lsa`. Their cosines mean different things.
    max_sentences
        At most so many sentences an answer.
    abstain_below
        Threshold of the signal; None takes the default of these coefficients.
    term_weights
        Document frequencies of the corpus that the evidence comes from; without them every content word weighs the same.
    expansion
        Synonyms: a question term that the text lacks counts in part where it has a synonym. The coefficients were fitted without any, so the
        signal is calibrated only without.

    Raises
    ------
    ValueError
        max_sentences under 1 or a threshold outside [0, 1].
    """

    def __init__(
        self,
        embed: features.Embed | None = None,
        *,
        embedding: Literal["sentence", "lsa"] = "sentence",
        max_sentences: int = 3,
        abstain_below: float | None = None,
        term_weights: TermWeights | None = None,
        expansion: Expansion | None = None,
    ) -> None:
        if max_sentences < 1:
            raise ValueError(f"max_sentences: found {max_sentences}, accepted 1 or more")
        if abstain_below is not None and not 0 <= abstain_below <= 1:
            raise ValueError(f"abstain_below: found {abstain_below}, accepted 0 to 1")
        self._embed = embed
        self._weights: Weights = load("lexical" if embed is None else embedding)
        self._max_sentences = max_sentences
        self.abstain_below = self._weights.threshold if abstain_below is None else abstain_below
        self._term_weights = term_weights or TermWeights()
        self._expansion = expansion

    def answer(
        self, questions: Sequence[str], passages: Sequence[Sequence[Passage]]
    ) -> list[Extract]:
        """Answer a batch.

        Parameters
        ----------
        questions
            Any texts.
        passages
            The evidence of each question, in any order; ties go to the lower `rank`.

        Returns
        -------
        list of Extract
            One for each question. No sentence stands twice in an answer, however many passages have it; the best-ranked of these is cited.

        Raises
        ------
        ValueError
            Not one list of passages for each question.
        """
        if len(questions) != len(passages):
            raise ValueError(
                f"passages: found {len(questions)} questions, {len(passages)} lists of passages; accepted: one list a question"
            )
        pool = Pool(questions, passages)
        if len(pool.question_of) == 0:
            return [NOTHING] * len(pool.questions)
        measured, askable = self._measure(pool)
        log_odds = (
            measured @ self._weights.sentence + self._weights.sentence_bias - _handicaps(pool)
        )
        scores = _probability(log_odds)
        order = np.lexsort(
            (
                pool.starts,
                pool.passage_of_pair[pool.pair_of],
                pool.rank_of_pair[pool.pair_of],
                -scores,
                pool.question_of,
            )
        )
        rows = abstention.question_rows(self._weights.features, measured, log_odds, order, pool)
        signals = np.where(
            askable, _probability(rows @ self._weights.signal + self._weights.signal_bias), 0.0
        )
        kept = _chosen(pool, scores, order, self._max_sentences)
        kept = kept[askable[pool.question_of[kept]]]
        return self._extracts(pool, _best_ranked(pool, kept), scores[kept], signals)

    def _measure(self, pool: Pool) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Features of all candidates, and which questions can be answered: those of which the evidence has a word, or that a model can read."""
        terms = PoolTerms(pool, self._term_weights, self._expansion)
        words = features.lexical(pool, terms)
        asked = np.array(
            [any(character.isalnum() for character in question) for question in pool.questions],
            dtype=bool,
        )
        if self._embed is None:
            covered = np.zeros(len(pool.questions))
            covered[pool.question_of] = words[:, features.LEXICAL.index("evidence_coverage")]
            return words, asked & (covered > 0)
        counts = np.bincount(pool.question_of, minlength=len(pool.questions))
        return np.hstack([words, features.dense(pool, self._embed)]), asked & (counts > 0)

    def _extracts(self, pool: Pool, kept: Ints, scores: Floats, signals: Floats) -> list[Extract]:
        found: list[list[Chosen]] = [[] for _ in pool.questions]
        columns = (
            pool.question_of[kept],
            pool.passage_of_pair[pool.pair_of[kept]],
            pool.starts[kept],
            pool.ends[kept],
            scores,
        )
        for question, passage, start, end, score in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            found[question].append(Chosen(passage, start, end, score))
        return [
            Extract(tuple(its), signal, answered=bool(its) and signal >= self.abstain_below)
            for its, signal in zip(found, signals.tolist(), strict=True)
        ]


def _handicaps(pool: Pool) -> Floats:
    of_unit = np.fromiter(
        (HANDICAP.get(unit.kind, 0.0) for unit in pool.units),
        dtype=np.float64,
        count=len(pool.units),
    )
    return np.asarray(of_unit[pool.unit_of])


def _texts(pool: Pool, candidates: Ints) -> Ints:
    """Number of each candidate's text within its question: equal where one question has the same words twice."""
    return np.asarray(
        pool.question_of[candidates] * (int(pool.same_text.max()) + 1)
        + pool.same_text[pool.unit_of[candidates]]
    )


def _chosen(pool: Pool, scores: Floats, order: Ints, most: int) -> Ints:
    """Candidates to cite, by (question, best first): each text once, the best always, others where they are probable enough."""
    order = order[np.sort(np.unique(_texts(pool, order), return_index=True)[1])]
    owner = pool.question_of[order]
    place = np.arange(len(order)) - np.searchsorted(owner, owner)
    needed = np.where(
        np.bincount(pool.question_of_pair, minlength=len(pool.questions)) > 1,
        CITED_FROM_AMONG_MANY,
        CITED_FROM,
    )[owner]
    return np.asarray(order[(place == 0) | ((place < most) & (scores[order] >= needed))])


def _best_ranked(pool: Pool, kept: Ints) -> Ints:
    """For each candidate the copy of its text that the retrieval ranked best: its document is cited."""
    everyone = np.arange(len(pool.question_of))
    texts = _texts(pool, everyone)
    order = np.lexsort(
        (pool.starts, pool.passage_of_pair[pool.pair_of], pool.rank_of_pair[pool.pair_of], texts)
    )
    first = order[np.searchsorted(texts[order], texts[kept])]
    return np.asarray(first)
