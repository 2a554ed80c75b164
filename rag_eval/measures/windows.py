"""Which window of evidence sentences holds most of a sentence's words: a join over flat arrays, no loop over pairs.

Belongs here: the join and the window sums. Not here: what a word is, what it weighs and what a score means (`groundedness`).
"""

from typing import NamedTuple

import numpy as np

from rag_eval.measures.arrays import BoolArray, FloatArray, IntArray, expand

WINDOW = 3  # evidence sentences that are read together
_SCALE = (
    2**20
)  # weights are added as integers: a window's sum must not depend on what was added and taken away before it
_CELLS = 4_000_000  # evidence terms, and (sentence, window) sums, held at a time


class Wanted(NamedTuple):
    """Terms of the sentences to find, in CSR form, and whose sentence each is.

    Parameters
    ----------
    indptr, terms, weights
        Sentence s has the distinct terms `terms[indptr[s]:indptr[s + 1]]` with these weights, 0 or more.
    answer_of
        `[n_sentences]` answer of each sentence, rising.
    """

    indptr: IntArray
    terms: IntArray
    weights: FloatArray
    answer_of: IntArray


class Texts(NamedTuple):
    """Evidence texts: text t has the sentences from `sentence_indptr[t]` to `sentence_indptr[t + 1]`, sentence e the terms from `term_indptr[e]` on."""

    sentence_indptr: IntArray
    term_indptr: IntArray
    terms: IntArray


class Offered(NamedTuple):
    """Evidence of each answer: answer a was given the texts `texts[indptr[a]:indptr[a + 1]]`."""

    indptr: IntArray
    texts: IntArray


class Windows(NamedTuple):
    """What was found of each sentence, `[n_sentences]`, and of each of its terms, `[n_terms]`.

    Parameters
    ----------
    total
        Sum of the weights of the terms in the best window; windows lie inside one text; of equal ones the first.
    text, first
        Place of that text among the answer's evidence and its first sentence in the text, from 0; -1 where there is no evidence sentence.
    inside, beside, anywhere
        Whether the term stands in the best window, in the text of that window, and anywhere in the answer's evidence.
    """

    total: FloatArray
    text: IntArray
    first: IntArray
    inside: BoolArray
    beside: BoolArray
    anywhere: BoolArray


def distinct(keys: IntArray) -> IntArray:
    """Each of the keys once, rising; sorting is several times faster than the hashing of `np.unique`."""
    ordered = np.sort(keys)
    return ordered[np.diff(ordered, prepend=-1) > 0]


def best_windows(wanted: Wanted, texts: Texts, offered: Offered) -> Windows:
    """Find the window of three evidence sentences that holds most of each sentence."""
    n, n_answers = len(wanted.answer_of), len(offered.indptr) - 1
    out = Windows(
        np.zeros(n),
        np.full(n, -1),
        np.full(n, -1),
        *(np.zeros(len(wanted.terms), dtype=bool) for _ in range(3)),
    )
    sentence_indptr = np.searchsorted(wanted.answer_of, np.arange(n_answers + 1))
    sizes = np.diff(texts.sentence_indptr)
    n_terms = np.diff(texts.term_indptr[texts.sentence_indptr])
    columns = np.where(
        sizes > 0, np.maximum(sizes - WINDOW + 1, 1) + 1, 0
    )  # one more than windows: where the last intervals end
    offers = np.repeat(np.arange(n_answers), np.diff(offered.indptr))
    width = np.bincount(offers, weights=columns[offered.texts], minlength=n_answers)
    cost = np.maximum(
        width * np.diff(sentence_indptr),
        np.bincount(offers, weights=n_terms[offered.texts], minlength=n_answers),
    )
    block_of = (np.cumsum(cost) // _CELLS).astype(np.int64)
    edges = np.concatenate([[0], np.flatnonzero(np.diff(block_of)) + 1, [n_answers]])
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if sentence_indptr[high] > sentence_indptr[low]:
            _fill(
                out,
                wanted,
                texts,
                offered,
                (low, high),
                (int(sentence_indptr[low]), int(sentence_indptr[high])),
                columns,
            )
    return out


def _fill(  # noqa: PLR0917 - one join; its columns are its variables
    out: Windows,
    wanted: Wanted,
    texts: Texts,
    offered: Offered,
    answers: tuple[int, int],
    sentences: tuple[int, int],
    columns: IntArray,
) -> None:
    """Write the results of the answers from `answers[0]` to `answers[1]`."""
    rows = slice(*sentences)
    answer = wanted.answer_of[rows] - answers[0]
    n_answers, n_rows = answers[1] - answers[0], len(answer)
    start = int(wanted.indptr[sentences[0]])
    entries = slice(start, int(wanted.indptr[sentences[1]]))
    row_of = np.repeat(np.arange(n_rows), np.diff(wanted.indptr[sentences[0] : sentences[1] + 1]))

    offer_indptr = offered.indptr[answers[0] : answers[1] + 1]
    text = offered.texts[offer_indptr[0] : offer_indptr[-1]]
    offer_indptr = offer_indptr - offer_indptr[0]
    offer_answer = np.repeat(np.arange(n_answers), np.diff(offer_indptr))
    size = np.diff(texts.sentence_indptr)[text]
    left = np.concatenate([[0], np.cumsum(columns[text])])  # column of each offer, over all answers
    row_width = np.diff(left[offer_indptr])[answer]
    row_start = np.cumsum(row_width) - row_width
    n_cells = int(row_width.sum())

    entry, offer, at = _matches((answer[row_of], wanted.terms[entries]), texts, text, offer_answer)
    out.anywhere[start + entry] = True
    before = np.full(
        len(entry), -1
    )  # the term's last sentence before this one in the same text: windows from there on hold it already
    same = (entry[1:] == entry[:-1]) & (offer[1:] == offer[:-1])
    before[1:][same] = at[:-1][same]
    last = np.maximum(size[offer] - WINDOW, 0)
    low, high = np.maximum(np.maximum(at - WINDOW, before) + 1, 0), np.minimum(at, last)
    new = low <= high
    weight = np.rint(wanted.weights[entries] * _SCALE).astype(np.int64)[entry[new]]
    base = row_start[row_of[entry]] + left[offer] - left[offer_indptr[answer[row_of[entry]]]]
    sums = np.zeros(n_cells + 1, dtype=np.int64)
    np.add.at(sums, (base + low)[new], weight)
    np.add.at(sums, (base + high)[new] + 1, -weight)
    sums = np.cumsum(sums)

    some = np.flatnonzero(row_width > 0)
    if not len(some):
        return
    best = np.maximum.reduceat(sums[:-1], row_start[some])
    cells = np.flatnonzero(sums[:-1] == np.repeat(best, row_width[some]))
    cell = cells[np.searchsorted(cells, row_start[some])]
    column = cell - row_start[some] + left[offer_indptr[answer[some]]]
    chosen = np.searchsorted(left, column, side="right") - 1
    first = column - left[chosen]
    where = np.arange(*sentences)[some]
    out.total[where] = best / _SCALE
    out.text[where] = chosen - offer_indptr[answer[some]]
    out.first[where] = first

    chosen_of, first_of = np.full(n_rows, -1), np.full(n_rows, -1)
    chosen_of[some], first_of[some] = chosen, first
    row = row_of[entry]
    beside = offer == chosen_of[row]
    inside = beside & (at >= first_of[row]) & (at < first_of[row] + WINDOW)
    out.beside[start + entry[beside]] = True
    out.inside[start + entry[inside]] = True


def _matches(
    wanted: tuple[IntArray, IntArray], texts: Texts, text: IntArray, offer_answer: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Every (wanted entry, offer, sentence of the text) where the term stands, each once, ordered by entry, offer, sentence."""
    answer, term = wanted
    n_terms = max(int(term.max(initial=-1)), int(texts.terms.max(initial=-1))) + 1
    order = np.argsort(answer * n_terms + term, kind="stable")
    keys, starts = np.unique((answer * n_terms + term)[order], return_index=True)
    if not len(keys) or not len(text):
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing, nothing
    starts = np.append(starts, len(order))
    text_indptr = texts.term_indptr[texts.sentence_indptr]
    offer, token = expand(text_indptr, text)
    token_keys = offer_answer[offer] * n_terms + texts.terms[token]
    found = np.minimum(np.searchsorted(keys, token_keys), len(keys) - 1)
    kept = np.flatnonzero(keys[found] == token_keys)
    sentence = np.searchsorted(texts.term_indptr, token[kept], side="right") - 1
    at = sentence - texts.sentence_indptr[text[offer[kept]]]
    match, place = expand(starts, found[kept])
    entry, offer, at = order[place], offer[kept][match], at[match]
    depth, n_offers = int(at.max(initial=0)) + 1, len(text)
    unique = distinct((entry * n_offers + offer) * depth + at)
    pair, at = np.divmod(unique, depth)
    entry, offer = np.divmod(pair, n_offers)
    return entry, offer, at
