"""Find passages that were planted for a question, among its first chunks.

`ranked`, int64 [n_questions, k], are the first chunks of each question, best first, -1 in an empty
place. `vouched`, bool [n_chunks], marks the chunks of sources that the allowlist or a signature
vouches for, which are not read; None where nothing is configured to trust.
"""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, IntArray
from rag_eval.core.config import FINDINGS
from rag_eval.core.frames import make_frame
from rag_eval.corpus.analyzer import TermRows
from rag_eval.corpus.chunking import spans
from rag_eval.trust.sentences import QUESTION_WORDS, begins_question
from rag_eval.trust.text import plain

# ---- Paraphrases: passages that say the same

FIRST = 10
"""Number of first chunks of a question among which paraphrases are searched."""
_GROUP = 3
"""Least number of passages in a group."""
_PARAPHRASE, _COPY = 0.25, 0.8
"""Least cosine of paraphrases, and of copies such as one page at two addresses."""
_LEAST_WORDS, _PASSAGE_WORDS = 8, 100
"""Least and most words of a compared chunk, because longer texts share the words of their field."""


def find_paraphrases(
    ranked: IntArray,
    chunks: pd.DataFrame,
    terms: TermRows,
    frequency: IntArray,
    *,
    vouched: BoolArray | None,
) -> pd.DataFrame:
    """Find groups of three or more short chunks that say the same and rank first for a question.

    A single planted passage seldom decides an answer, so attackers plant several. Chunks of one
    document count once. Copies count once when nothing is configured to trust, because honest pages
    have several addresses. `terms` are those of all chunks (CHUNKS), and `frequency` [n_terms]
    counts the chunks with each term. Returns FINDINGS by chunk row: warnings, or blocks when other
    sources are trusted.
    """
    words = chunks["tokens"].to_numpy()
    compared = (words >= _LEAST_WORDS) & (words <= _PASSAGE_WORDS)
    if vouched is not None:
        compared &= ~vouched
    ranked = ranked[:, :FIRST]
    ranked = np.where((ranked >= 0) & compared[ranked], ranked, -1)
    ranked = ranked[(ranked >= 0).sum(axis=1) >= _GROUP]
    if not len(ranked):
        return make_frame(FINDINGS, [])
    used, place = np.unique(ranked, return_inverse=True)
    documents = pd.factorize(chunks["doc_id"].iloc[used])[0][place.reshape(ranked.shape)]
    copy = _COPY if vouched is None else np.inf
    marked = np.unique(ranked[_mark_groups(ranked, documents, terms, frequency, copy)])
    severity = "warning" if vouched is None else "blocked"
    detail = "one of three or more passages that say the same and rank first for a question"
    rows = [(row, -1, -1, "flood", "paraphrase", severity, detail) for row in marked.tolist()]
    return make_frame(FINDINGS, rows)


def _mark_groups(
    ranked: IntArray, documents: IntArray, terms: TermRows, frequency: IntArray, copy: float
) -> BoolArray:
    """Mark the chunks in chains of paraphrases, bool [n_questions, k].

    Each term of a chunk weighs its idf, however often the chunk has the term. Chunks with a cosine
    of `copy` count once.
    """
    from scipy.sparse import csr_array

    query, place = np.nonzero(ranked >= 0)
    of_chunks = terms.take(ranked[query, place])
    row = np.repeat(np.arange(len(query)), np.diff(of_chunks.indptr))
    row, term = np.unique(np.stack([row, of_chunks.ids]), axis=1)
    # Own columns for the terms of each question, so that only chunks of one question are compared.
    keys, column = np.unique(query[row] * len(frequency) + term, return_inverse=True)
    idf = np.log((1 + len(terms)) / (1 + frequency[term])) + 1
    weight = idf / np.sqrt(np.bincount(row, idf**2, len(query)))[row]
    unit = csr_array((weight, (row, column)), shape=(len(query), len(keys)))
    near = (unit @ unit.T).tocoo()
    cosine = np.zeros((*ranked.shape, ranked.shape[1]))
    cosine[query[near.row], place[near.row], place[near.col]] = near.data
    joined = cosine >= _PARAPHRASE
    for _ in range(FIRST.bit_length()):  # each step doubles the length of the chains
        joined = joined @ joined
    same = (cosine >= copy) | (documents[:, :, None] == documents[:, None, :])
    is_first = ~np.tril(same, -1).any(axis=2)
    marked: BoolArray = (joined & is_first[:, None, :]).sum(axis=2) >= _GROUP
    return marked


# ---- Passages that restate a question, as planted passages do to be found

_LEAST_QUESTION, _RESEMBLANCE, _LABEL_WORDS = 5, 0.8, 3
"""Least words of a question, least Jaccard resemblance, most words of a label before a heading."""
_READ = 20_000
"""Characters of a chunk that are read, so that no long chunk can slow a run down."""
_WORD = re.compile(r"\w+")


def _words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _restates(question: str, text: str) -> bool:
    """Tell whether a text has a question's exact words, or a sentence with nearly all of them.

    A line that holds only the question is a heading, which honest pages have too.
    """
    words = _words_of(question)
    if len(words) < _LEAST_QUESTION:
        return False
    if not (begins_question(words) or question.rstrip().endswith("?")):
        return False
    running = "\n".join(
        line
        for line, read in ((line, _words_of(line)) for line in text.splitlines())
        if read[-len(words) :] != words or len(read) > len(words) + _LABEL_WORDS
    )
    if f" {' '.join(words)} " in f" {' '.join(_words_of(running))} ":
        return True
    asked = set(words)
    asking = asked & QUESTION_WORDS  # an answer shares all other words
    sentences = (set(_words_of(running[low:high])) for low, high in spans(running))
    return bool(asking) and any(
        asking <= sentence and len(asked & sentence) >= _RESEMBLANCE * len(asked | sentence)
        for sentence in sentences
    )


def find_restating(
    questions: Sequence[str], ranked: IntArray, chunks: pd.DataFrame, *, vouched: BoolArray | None
) -> pd.DataFrame:
    """Find the chunks (CHUNKS) that restate a question for which they rank first.

    Returns FINDINGS by chunk row. Their warnings never add up to a block, so that no honest page
    that repeats a question is lost.
    """
    used = np.unique(ranked[ranked >= 0])
    if vouched is not None:
        used = used[~vouched[used]]
    texts = dict(zip(used.tolist(), map(plain, chunks["text"].iloc[used].str[:_READ]), strict=True))
    restating = {
        row
        for question, rows in zip(questions, ranked.tolist(), strict=True)
        for row in rows
        if row in texts and _restates(question, texts[row])
    }
    detail = "restates a question of the gold set for which it ranks first"
    findings = [
        (row, -1, -1, "restates_query", "question", "warning", detail) for row in sorted(restating)
    ]
    return make_frame(FINDINGS, findings)
