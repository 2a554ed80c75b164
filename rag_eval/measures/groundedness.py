"""Groundedness without a model: how much of each answer sentence stands in the evidence.

Belongs here: from texts to a score for each answer sentence and each answer. Not here: the join (`windows`), text rules (`content`),
probabilities (`support`), averages over questions (`answers`).
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rag_eval.corpus import sentences
from rag_eval.corpus.analyzer import Analyzer
from rag_eval.measures.arrays import BoolArray, FloatArray, IntArray, csr
from rag_eval.measures.content import (
    FUNCTION_WORDS,
    NUMBER_WORDS,
    answer_sentences,
    comparable,
    names,
    numbers,
)
from rag_eval.measures.windows import Offered, Texts, Wanted, best_windows, distinct

_BLOCK = 256  # documents read at a time

SUPPORTED = 0.5
"""Score from which a sentence counts as supported."""

_NUMBER_MISSING = 0.5  # what a number that the window lacks leaves of the score
_NO_NAME = 0.25  # what is left when the text has none of the names


class DocumentFrequencies(NamedTuple):
    """In how many of `n_texts` texts each term of the analyzer stands."""

    n_texts: int
    counts: Mapping[str, int]


class Groundedness(NamedTuple):
    """Scores of every answer sentence, `[n_sentences]`, and of every answer, `[n_answers]`.

    Parameters
    ----------
    answer_of
        Answer of each sentence, rising.
    sentences
        The sentences.
    score
        In [0, 1]; NaN where the sentence has no content word.
    share
        Weighted share of its content words in the best window; NaN likewise.
    share_anywhere
        The same over all evidence of the answer; NaN likewise.
    numbers_share, names_share
        Share of its numbers and of its names that stand in the text of the best window; NaN where it has none.
    n_words
        Number of its distinct content words.
    text, first
        Where the best window is: place of the text among the answer's evidence and the window's first sentence in it; -1 without evidence.
    value, supported
        Of each answer: mean score and share of supported sentences, over the sentences with a score; NaN where there is none.
    """

    answer_of: IntArray
    sentences: list[str]
    score: FloatArray
    share: FloatArray
    share_anywhere: FloatArray
    numbers_share: FloatArray
    names_share: FloatArray
    n_words: IntArray
    text: IntArray
    first: IntArray
    value: FloatArray
    supported: FloatArray


def document_frequencies(
    texts: Sequence[str], analyzer: Analyzer | None = None
) -> DocumentFrequencies:
    """Count in how many of the texts each term stands, for `groundedness`."""
    analyzer = analyzer or Analyzer()
    rows = analyzer.index([comparable(text) for text in texts])
    counts = np.bincount(
        np.fromiter(itertools.chain.from_iterable(map(set, rows)), np.int64),
        minlength=len(analyzer.vocabulary),
    )
    return DocumentFrequencies(
        len(texts), dict(zip(analyzer.vocabulary, counts.tolist(), strict=True))
    )


def groundedness(
    answers: Sequence[str],
    evidence: Sequence[Sequence[str]],
    frequencies: DocumentFrequencies | None = None,
) -> Groundedness:
    """Score every sentence of every answer on the answer's evidence.

    Parameters
    ----------
    answers
        Texts.
    evidence
        The texts that each answer was given; texts that are equal are read once.
    frequencies
        Document frequencies of the corpus. Default: those of the distinct texts of `evidence`; then scores depend on what else is scored
        in the same call.

    Returns
    -------
    Groundedness

    Notes
    -----
    A term weighs its BM25 idf, ``log(1 + (N - n + 0.5) / (n + 0.5))`` (as Lucene has it), where n, the texts that have the term, is at
    least 1: a word that no text has weighs as much as a word of a single one, so with a single text all words weigh the same. Stop and
    function words weigh nothing. The share is the weight of the sentence's distinct words that stand in the best window of three
    consecutive sentences of one evidence text, over the weight of all of them.

    ``score = share * max(names_share, 0.25)``, halved when one of the sentence's numbers is missing: a sentence whose number is not in the
    sources is not supported by them, whatever else is. Names and numbers are looked for in the whole text that has the best window, because
    texts name a thing once and then say "it". Without names their factor is 1. An answer without evidence scores 0.

    The comparison is of words: a translated answer scores near 0 unless it quotes.

    Examples
    --------
    >>> found = groundedness(["Paris is the capital of France.", "The capital of Germany is Berlin."], [["The capital of France is Paris."]] * 2)
    >>> found.value.round(2).tolist()
    [1.0, 0.08]
    """
    if len(answers) != len(evidence):
        raise ValueError(f"{len(answers)} answers but evidence for {len(evidence)}")
    analyzer = Analyzer()
    function_words = analyzer.index([" ".join(FUNCTION_WORDS)])[0]
    pieces = [answer_sentences(answer) for answer in answers]
    flat = list(itertools.chain.from_iterable(pieces))
    answer_of = np.repeat(np.arange(len(answers)), [len(piece) for piece in pieces])
    rows, terms = _flat(analyzer.index([comparable(sentence) for sentence in flat]))
    name_rows, name_terms = _flat(
        analyzer.index([" ".join(map(comparable, names(sentence))) for sentence in flat])
    )
    number_codes: dict[str, int] = {}
    number_rows, number_terms = _flat(
        [
            [number_codes.setdefault(number, len(number_codes)) for number in numbers(sentence)]
            for sentence in flat
        ]
    )

    place: dict[str, int] = {}
    offers, offered = _flat(
        [[place.setdefault(text, len(place)) for text in texts] for texts in evidence]
    )
    asked = np.zeros(len(place), dtype=bool)
    asked[offered[np.isin(offers, answer_of[number_rows])]] = True
    texts = _read(list(place), analyzer, number_codes, asked)
    n_terms, width = len(analyzer.vocabulary), len(analyzer.vocabulary) + len(number_codes)
    weights = np.zeros(width)  # numbers are words too; as numbers they only say yes or no
    weights[:n_terms] = (
        idf(*_counts(texts, n_terms)) if frequencies is None else _corpus_idf(frequencies, analyzer)
    )
    weights[function_words] = 0.0

    keys = distinct(
        np.concatenate([rows * width + terms, number_rows * width + number_terms + n_terms])
    )
    row, term = np.divmod(keys, max(width, 1))
    is_number, is_name, weight = (
        term >= n_terms,
        np.isin(keys, name_rows * width + name_terms),
        weights[term],
    )
    wanted = Wanted(np.searchsorted(row, np.arange(len(flat) + 1)), term, weight, answer_of)
    found = best_windows(
        wanted, texts, Offered(np.searchsorted(offers, np.arange(len(answers) + 1)), offered)
    )

    def per_sentence(values: FloatArray | BoolArray) -> FloatArray:
        return np.bincount(row, weights=values, minlength=len(flat)).astype(np.float64)

    def share(part: FloatArray, whole: FloatArray) -> FloatArray:
        quotient: FloatArray = np.divide(
            part, whole, out=np.full(len(flat), np.nan), where=whole > 0
        )
        return quotient

    whole = per_sentence(weight)
    best = np.minimum(share(per_sentence(weight * found.inside), whole), 1.0)
    numbers_share = share(per_sentence(is_number & found.beside), per_sentence(is_number))
    names_share = share(per_sentence(is_name & found.beside), per_sentence(is_name))
    score = (
        best
        * np.where(np.isnan(names_share), 1.0, np.maximum(names_share, _NO_NAME))
        * np.where(numbers_share < 1, _NUMBER_MISSING, 1.0)
    )
    value, supported = _per_answer(score, answer_of, len(answers))
    return Groundedness(
        answer_of=answer_of,
        sentences=flat,
        score=score,
        share=best,
        share_anywhere=np.minimum(share(per_sentence(weight * found.anywhere), whole), 1.0),
        numbers_share=numbers_share,
        names_share=names_share,
        n_words=per_sentence(weight > 0).astype(np.int64),
        text=found.text,
        first=found.first,
        value=value,
        supported=supported,
    )


def _flat(rows: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    """Row and value of every entry."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return np.repeat(np.arange(len(rows)), lengths), np.fromiter(
        itertools.chain.from_iterable(rows), np.int64, int(lengths.sum())
    )


def _read(
    documents: list[str], analyzer: Analyzer, number_codes: Mapping[str, int], asked: BoolArray
) -> Texts:
    """Terms of every evidence sentence; the numbers of the answers are terms after the vocabulary, whether in digits or in words.

    `asked` says which documents are evidence of an answer with numbers; only those are searched for numbers.
    """
    spelled = np.array([ids[0] for ids in analyzer.index(NUMBER_WORDS)], dtype=np.int64)
    blocks = [
        _read_block(documents[at : at + _BLOCK], analyzer, number_codes, asked[at : at + _BLOCK])
        for at in range(0, len(documents), _BLOCK)
    ]
    n_sentences, lengths, terms = (
        np.concatenate([np.zeros(0, dtype=np.int64), *parts])
        for parts in (zip(*blocks, strict=True) if blocks else ((), (), ()))
    )
    n_terms, rows = len(analyzer.vocabulary), np.repeat(np.arange(len(lengths)), lengths)
    terms = np.where(terms < 0, n_terms - 1 - terms, terms)
    code_of_term = np.full(n_terms + len(number_codes), -1, dtype=np.int64)
    code_of_term[spelled] = [number_codes.get(str(number), -1) for number in range(len(spelled))]
    words = np.flatnonzero(code_of_term[terms] >= 0)
    term_indptr, ordered = csr(
        np.concatenate([rows, rows[words]]),
        len(lengths),
        np.concatenate([terms, n_terms + code_of_term[terms[words]]]),
    )
    return Texts(np.concatenate([[0], np.cumsum(n_sentences)]), term_indptr, ordered)


def _read_block(
    documents: list[str], analyzer: Analyzer, number_codes: Mapping[str, int], asked: BoolArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Number of sentences of each document, number of terms of each sentence, and the terms; number c is the term -1 - c for now.

    In blocks, because ten thousand lists at a time cost the garbage collector more than they hold.
    """
    spans = [sentences.spans(document) for document in documents]
    parts = [
        document[start:end]
        for document, pieces in zip(documents, spans, strict=True)
        for start, end in pieces
    ]
    n_sentences = np.fromiter(map(len, spans), np.int64, len(spans))
    rows = analyzer.index([part if part.isascii() else comparable(part) for part in parts])
    for at in np.flatnonzero(np.repeat(asked, n_sentences)).tolist():
        rows[at] += [
            -1 - number_codes[number] for number in numbers(parts[at]) if number in number_codes
        ]
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return (
        n_sentences,
        lengths,
        np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(lengths.sum())),
    )


def idf(counts: FloatArray | IntArray, n_texts: int) -> FloatArray:
    """BM25 idf of terms that stand in `counts` of `n_texts` texts; a term in none weighs as much as one in a single text."""
    n = np.clip(counts, 1, max(n_texts, 1))
    return np.log1p((n_texts - n + 0.5) / (n + 0.5)) if n_texts else np.ones(len(n))


def _counts(texts: Texts, n_terms: int) -> tuple[IntArray, int]:
    """Number of texts that have each term, and the number of texts."""
    n_texts = len(texts.sentence_indptr) - 1
    text = np.repeat(np.arange(n_texts), np.diff(texts.term_indptr[texts.sentence_indptr]))
    words = texts.terms < n_terms
    pairs = distinct(text[words] * n_terms + texts.terms[words])
    return np.bincount(pairs % max(n_terms, 1), minlength=n_terms), n_texts


def _corpus_idf(frequencies: DocumentFrequencies, analyzer: Analyzer) -> FloatArray:
    known = (frequencies.counts.get(term, 0) for term in analyzer.vocabulary)
    return idf(np.fromiter(known, np.int64, len(analyzer.vocabulary)), frequencies.n_texts)


def _per_answer(
    score: FloatArray, answer_of: IntArray, n_answers: int
) -> tuple[FloatArray, FloatArray]:
    """Mean score and share of supported sentences of each answer."""
    scored = ~np.isnan(score)
    counts = np.bincount(answer_of[scored], minlength=n_answers).astype(np.float64)
    counts[counts == 0] = np.nan
    total = np.bincount(answer_of[scored], weights=score[scored], minlength=n_answers)
    return total / counts, np.bincount(
        answer_of[scored], weights=score[scored] >= SUPPORTED, minlength=n_answers
    ) / counts
