"""Find questions, orders and code about something else than their document.

The check guesses from words and form, so every finding is a warning. It finds a plain question or
task in a document about something else, but no planted statement.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.core.config import FINDINGS
from rag_eval.core.frames import make_frame
from rag_eval.corpus.analyzer import Analyzer, count_matrix
from rag_eval.trust.sentences import CLOSED_CLASS, form_of, sentences_of

LIMIT = 0.955
"""Score above which a sentence is reported.

Of the documents of XQuAD, SciFact and pandas, 0.1 to 0.9 % exceed it. Of BIPIA's plain tasks in
them, 0.7 to 0.9 exceed it."""
_UNKNOWN_WEIGHT, _SURPRISE_WEIGHT, _MOST_SURPRISE = 0.25, 0.03, 8.0
_LEAST_SENTENCES = 3
"""Least number of sentences of a document with a topic."""
_VERBS = ("asks", "gives an order", "speaks to its reader", "introduces code")
_PRIOR_RATES, _PRIOR_SENTENCES = (0.01, 0.01, 0.01, 0.002), 100.0
"""Prior share of sentences with each form, and the number of sentences that the prior weighs."""


def _share_foreign_words(
    texts: Sequence[str], wordings: Sequence[str], document_of: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return two shares of the words of each sentence, weighed by idf.

    The first is of words that its document has nowhere else, the second of words that no other
    document has. Equal sentences in several documents do not make each other's words known.
    `document_of` is the document of each sentence, rising.
    """
    from scipy.sparse import csr_array

    analyzer = Analyzer()
    closed = set(analyzer.index([" ".join(sorted(CLOSED_CLASS))])[0])
    rows = [
        [[term for term in row if term not in closed] for row in analyzer.index(part)]
        for part in (texts, wordings)
    ]
    n, m, n_terms = len(texts), len(wordings), len(analyzer.vocabulary)
    documents, sentences = (
        csr_array(count_matrix(part, n_terms), shape=(len(part), n_terms)) for part in rows
    )
    n_holders = np.bincount(documents.indices, minlength=n_terms)
    idf = np.log((1.0 + n) / (1.0 + n_holders)) + 1.0
    row = np.repeat(np.arange(m), np.diff(sentences.indptr))
    weight = idf[sentences.indices]
    # Look the terms of sentences up in the sorted terms of their documents, which end with a mark.
    of_documents = np.repeat(np.arange(n), np.diff(documents.indptr)) * n_terms + documents.indices
    of_documents = np.append(of_documents, n * n_terms)
    wanted = document_of[row] * n_terms + sentences.indices
    at = np.searchsorted(of_documents, wanted)
    in_document = np.where(of_documents[at] == wanted, np.append(documents.data, 0.0)[at], 0.0)
    alone = in_document <= sentences.data
    # Compare random sums, because equal sums practically always mean equal terms.
    marks = sentences @ np.random.default_rng(0).random(n_terms)
    sentence = np.unique(marks, return_inverse=True)[1].ravel()
    n_alike = np.bincount(np.unique(sentence * n + document_of) // n, minlength=m)[sentence]
    is_unknown = n_holders[sentences.indices] <= n_alike[row]
    # Add two mean terms to every share, because a share of one term says little.
    mean = float(weight.mean()) if len(weight) else 1.0
    total = np.bincount(row, weight, m) + 2 * mean
    uncovered = (np.bincount(row, weight * alone, m) + mean) / total
    return uncovered, np.bincount(row, weight * is_unknown, m) / total


def _rate_surprise(forms: FloatArray, document_of: IntArray) -> FloatArray:
    """Return how rare the forms of each sentence are in other documents, -ln of the share, summed.

    First and later sentences are compared separately, because docstrings begin with an order. A
    form surprises less in a document with other sentences of this form. `forms`, [m, 4], are 0 or
    1: whether a sentence asks, orders, addresses its reader, introduces code.
    """
    place = (np.diff(document_of, prepend=-1) != 0).astype(np.int64)
    own = 2 * document_of + place
    n_others = np.bincount(place)[place] - np.bincount(own)[own]
    total = np.zeros(len(forms))
    for flags, rate in zip(forms.T, _PRIOR_RATES, strict=True):
        in_own = np.bincount(own, flags)[own]
        n_formed = np.bincount(place, flags)[place] - in_own
        share = (n_formed + rate * _PRIOR_SENTENCES) / (n_others + _PRIOR_SENTENCES)
        total += flags * -np.log(share) / (1.0 + in_own - flags)
    return np.minimum(total, _MOST_SURPRISE)


def topic_shift(texts: Sequence[str]) -> pd.DataFrame:
    """Find sentences unlike their document; neighbouring sentences are one finding.

    Returns FINDINGS, all warnings, by document and place.

    Examples
    --------
    >>> topic_shift(["Too short to say."]).empty
    True
    """
    spans = [(row, sentence) for row, text in enumerate(texts) for sentence in sentences_of(text)]
    if not spans:
        return make_frame(FINDINGS, [])
    document_of = np.array([row for row, _ in spans], dtype=np.int64)
    wordings = [texts[row][sentence.start : sentence.end] for row, sentence in spans]
    forms = np.array(
        [
            (*form_of(wording), sentence.introduces_code)
            for wording, (_, sentence) in zip(wordings, spans, strict=True)
        ],
        dtype=np.float64,
    )
    uncovered, unknown = _share_foreign_words(texts, wordings, document_of)
    surprise = _rate_surprise(forms, document_of)
    scores = uncovered + _UNKNOWN_WEIGHT * unknown + _SURPRISE_WEIGHT * surprise
    enough = np.bincount(document_of)[document_of] >= _LEAST_SENTENCES
    rows = np.flatnonzero(forms.any(axis=1) & enough & (scores > LIMIT))
    breaks = (np.diff(rows) > 1) | (np.diff(document_of[rows]) > 0)
    findings = []
    for group in np.split(rows, np.flatnonzero(breaks) + 1) if len(rows) else ():
        best = group[int(np.argmax(scores[group]))]
        verbs = [verb for verb, holds in zip(_VERBS, forms[best], strict=True) if holds]
        does = f"{' and '.join(verbs)}, unlike the rest of its document"
        detail = f"a sentence {does} (score {scores[best]:.2f}, limit {LIMIT})"
        place = spans[group[0]][1].start, spans[group[-1]][1].end
        rule = "topic_shift", "inside_document", "warning", detail
        findings.append((int(document_of[best]), *place, *rule))
    return make_frame(FINDINGS, findings)
