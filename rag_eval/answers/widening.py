"""Question terms that a text may also say in other words: one more column for each, worth less where only a synonym is there.

Belongs here: turning synonyms into columns of the term matrices, so that what is measured on these (`features`) needs to know nothing of them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rag_eval.corpus.analyzer import Analyzer
from rag_eval.retrieval.synonyms.expansion import Expansion, Mean, Phrase


class Widening:
    """The columns that a batch of questions needs beside its terms.

    Parameters
    ----------
    expansion
        The synonyms.
    analyzer
        Whose term ids all rows are in.
    rows
        Term ids of the questions, function words included: phrases are made of them.
    asked
        Those that count.

    Attributes
    ----------
    asked
        The questions in columns: where a term has synonyms, the widened column stands for it. A term counts once a question.
    terms
        Term of each widened column; their ids start at `n_terms`, the size of the vocabulary.
    """

    def __init__(
        self,
        expansion: Expansion,
        analyzer: Analyzer,
        rows: Sequence[Sequence[int]],
        asked: Sequence[Sequence[int]],
    ) -> None:
        bound = expansion.bind(analyzer)
        self.n_terms = len(analyzer.vocabulary)
        columns: dict[tuple[int, Phrase], int] = {}
        self.terms: list[int] = []
        self._options: list[tuple[Mean, ...]] = []
        self.asked: list[list[int]] = []
        for phrases, counted in zip(bound.phrases(rows), asked, strict=True):
            column_of = {term: term for term in counted}
            for phrase in phrases:
                for term in phrase:
                    means = (
                        bound.means(phrase)
                        if phrase == (term,)
                        else (*bound.means(phrase), *bound.means((term,)))
                    )
                    if means and column_of.get(term) == term:
                        key = (term, phrase)
                        if key not in columns:
                            columns[key] = self.n_terms + len(columns)
                            self.terms.append(term)
                            self._options.append(means)
                        column_of[term] = columns[key]
            self.asked.append(list(column_of.values()))
        self._means = {
            terms: place
            for place, terms in enumerate(
                dict.fromkeys(mean.terms for means in self._options for mean in means)
            )
        }

    def widen(self, values: Any) -> Any:
        """Append the widened columns to a matrix.

        Parameters
        ----------
        values
            CSR [n, n_terms], not negative: 0 where a text lacks the term.

        Returns
        -------
        CSR [n, n_terms + len(terms)]
            A widened column has the largest of the term's own value and, for each meaning of which the text has all terms, the mean of their
            values times the meaning's weight.
        """
        from scipy.sparse import csr_array, hstack

        if not self.terms:
            return values
        there = values.copy()
        there.data = (there.data > 0).astype(np.float64)
        distinct = [tuple(dict.fromkeys(terms)) for terms in self._means]
        sizes = np.array([len(terms) for terms in distinct], dtype=np.float64)
        member = _entries(
            [(term, place, 1.0) for place, terms in enumerate(distinct) for term in terms],
            (self.n_terms, len(distinct)),
        )
        whole = (there @ member).tocoo()
        kept = whole.data >= sizes[whole.col]
        complete = csr_array(
            (1.0 / sizes[whole.col[kept]], (whole.row[kept], whole.col[kept])), shape=whole.shape
        )
        meant = (values @ member).multiply(complete).tocsr()
        found = values @ _entries(
            [(term, column, 1.0) for column, term in enumerate(self.terms)],
            (self.n_terms, len(self.terms)),
        )
        for place in range(
            max(map(len, self._options))
        ):  # the n-th meanings of all columns at once: a maximum, not a sum
            nth = [
                (self._means[its[place].terms], column, its[place].weight)
                for column, its in enumerate(self._options)
                if place < len(its)
            ]
            found = found.maximum(meant @ _entries(nth, (len(self._means), len(self.terms))))
        return hstack([values, found], format="csr")


def _entries(entries: Sequence[tuple[int, int, float]], shape: tuple[int, int]) -> Any:
    from scipy.sparse import csr_array

    rows, columns, values = (
        np.array([entry[i] for entry in entries], dtype=kind)
        for i, kind in enumerate((np.int64, np.int64, np.float64))
    )
    return csr_array((values, (rows, columns)), shape=shape)
