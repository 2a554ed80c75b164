"""All candidates of a batch as arrays: questions, their passages, and the citable units in these.

Belongs here: who belongs to whom. A passage text or title that several questions share is cut and analysed once.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_eval.answers.candidates import Unit, units

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Passage:
    """A passage that an answer may cite.

    Parameters
    ----------
    text
        What spans count in.
    title
        Of its document; read as part of every sentence, never cited.
    score
        Score of the retrieval, normalised to [0, 1] within the question; 1 where nothing was ranked.
    rank
        Its place, from 1; breaks ties.
    """

    text: str
    title: str = ""
    score: float = 1.0
    rank: int = 1


def _codes(values: Sequence[str]) -> tuple[list[str], Ints]:
    """Distinct values in order of first sight, and the place of each value among them."""
    place = {value: i for i, value in enumerate(dict.fromkeys(values))}
    return list(place), np.fromiter(
        (place[value] for value in values), dtype=np.int64, count=len(values)
    )


class Pool:
    """The candidates of a batch.

    Attributes
    ----------
    texts, titles
        Distinct passage texts and titles.
    unit_texts
        Texts of the units of distinct passages; `text_of_unit` [n_units] is the passage each lies in.
    question_of_pair, text_of_pair, title_of_pair, score_of_pair, rank_of_pair
        [n_pairs], one for each passage of each question, in the order given; `passage_of_pair` is its place in the question's list.
    pair_of, unit_of, question_of, place, starts, ends
        [n_candidates], in the order of pairs and of their text; `place` counts units in the passage from 0.
    same_text
        [n_units]: units of the same words, whatever their case and white space, have the same number.
    """

    def __init__(self, questions: Sequence[str], passages: Sequence[Sequence[Passage]]) -> None:
        self.questions = list(questions)
        flat = [passage for its in passages for passage in its]
        sizes = np.fromiter((len(its) for its in passages), dtype=np.int64, count=len(passages))
        self.question_of_pair: Ints = np.repeat(np.arange(len(sizes)), sizes)
        self.passage_of_pair: Ints = np.arange(len(flat)) - np.repeat(
            np.cumsum(sizes) - sizes, sizes
        )
        self.texts, self.text_of_pair = _codes([passage.text for passage in flat])
        self.titles, self.title_of_pair = _codes([passage.title for passage in flat])
        self.score_of_pair: Floats = np.array([passage.score for passage in flat], dtype=np.float64)
        self.rank_of_pair: Ints = np.array([passage.rank for passage in flat], dtype=np.int64)
        cut: list[list[Unit]] = [units(text) for text in self.texts]
        self.units: list[Unit] = [unit for its in cut for unit in its]
        counts = np.fromiter((len(its) for its in cut), dtype=np.int64, count=len(cut))
        first = np.cumsum(counts) - counts
        self.text_of_unit: Ints = np.repeat(np.arange(len(cut)), counts)
        self.unit_texts = [
            self.texts[text][unit.start : unit.end]
            for text, unit in zip(self.text_of_unit.tolist(), self.units, strict=True)
        ]
        per_pair = counts[self.text_of_pair]
        self.pair_of: Ints = np.repeat(np.arange(len(flat)), per_pair)
        self.place: Ints = np.arange(len(self.pair_of)) - np.repeat(
            np.cumsum(per_pair) - per_pair, per_pair
        )
        self.unit_of: Ints = first[self.text_of_pair][self.pair_of] + self.place
        self.question_of: Ints = self.question_of_pair[self.pair_of]
        self.starts: Ints = np.array([unit.start for unit in self.units], dtype=np.int64)[
            self.unit_of
        ]
        self.ends: Ints = np.array([unit.end for unit in self.units], dtype=np.int64)[self.unit_of]
        self.same_text: Ints = _codes([" ".join(text.lower().split()) for text in self.unit_texts])[
            1
        ]

    @functools.cached_property
    def neighbours(self) -> Any:
        """CSR [n_units, n_units]: each unit with the one before and the one after it in its passage."""
        from scipy.sparse import csr_array

        n = len(self.units)
        here = np.arange(n)
        follows = here[1:][self.text_of_unit[1:] == self.text_of_unit[:-1]]
        rows, columns = (
            np.concatenate([here, follows, follows - 1]),
            np.concatenate([here, follows - 1, follows]),
        )
        return csr_array((np.ones(len(rows)), (rows, columns)), shape=(n, n))

    @functools.cached_property
    def membership(self) -> Any:
        """CSR [n_texts, n_units]: the units of each passage."""
        from scipy.sparse import csr_array

        n = len(self.units)
        return csr_array(
            (np.ones(n), (self.text_of_unit, np.arange(n))), shape=(len(self.texts), n)
        )
