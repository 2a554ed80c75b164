"""Answer questions with sentences of their evidence, or abstain if the evidence is too weak.

A batch is measured as arrays: one row of features for each citable unit of each question's
passages, and one row of signals for each question. `benchmarks/fit_extractive.py` writes the
weights to `coefficients.json`.
"""

import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, Float32Array, FloatArray, IntArray, count_within
from rag_eval.corpus.analyzer import Analyzer, DocumentFrequencies, count_matrix
from rag_eval.corpus.chunking import borders, spans, trim

# ---- Pieces of a passage that an answer may cite

MAX_SENTENCE = 2000
"""Longest sentence in characters; longer sentences, such as tables, are cut."""
MAX_ENTRY = 600
"""Longest entry, list item or code block in characters; longer units are cut into sentences."""

_RULE = re.compile(r"[-=~^]{3,80}+\s*$")
_ITEM = re.compile(r"[*•-] ")
_ENTRY = re.compile(r"\*{0,2}\w[\w*, .]{0,100}? : ")
_BARE_NAME = re.compile(r"\*{0,2}\w[\w.]{0,100}+\s*$")
_CODE = (">>>", "... ")
_POINTERS = frozenset({"see also", "references"})  # sections that point to other documents


@dataclasses.dataclass(slots=True)
class Unit:
    """A piece of a passage, text[start:end]; `kind` is sentence, entry, item, code or pointer."""

    start: int
    end: int
    kind: str


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _kind(line: str, following: str) -> str:
    """Return the kind of the block that a line opens, by the form of the line."""
    bare = line.lstrip()
    if bare.startswith(_CODE):
        return "code"
    if _ITEM.match(bare):
        return "item"
    deeper = following.strip() and _indent(following) > _indent(line)
    return "entry" if _ENTRY.match(bare) or (deeper and _BARE_NAME.match(bare)) else "prose"


def _goes_on(block: Unit, kind: str, *, deeper: bool) -> bool:
    """Tell whether a line of a kind belongs to the block before it."""
    if block.kind == "code":
        return True  # output follows a statement until a blank line
    return kind == "prose" if block.kind == "prose" or kind == "code" else deeper


def _blocks(text: str) -> Iterator[Unit]:
    """Yield runs of lines that belong together, without underlined headings."""
    lines = text.splitlines(keepends=True)
    block: Unit | None = None
    at = indent = 0
    is_rule = pointing = False
    for line, following in itertools.zip_longest(lines, lines[1:], fillvalue=""):
        start, at = at, at + len(line)
        if is_rule:
            is_rule = False
            continue
        if not line.strip():
            # an entry continues over blank lines while lines are indented deeper than its name
            if block and block.kind not in {"entry", "pointer"}:
                yield block
                block = None
            continue
        if _RULE.match(following.lstrip()) and not line.lstrip().startswith(_CODE):
            if block:
                yield block
            is_rule, block, pointing = True, None, line.strip().lower() in _POINTERS
            continue
        kind = _kind(line, following)
        if block:
            if _goes_on(block, kind, deeper=_indent(line) > indent):
                block.end = at
                continue
            yield block
        block, indent = Unit(start, at, "pointer" if pointing else kind), _indent(line)
    if block:
        yield block


def _cut(text: str, start: int, end: int, longest: int) -> Iterator[tuple[int, int]]:
    """Yield pieces of at most `longest` characters, cut at white space if possible."""
    while end - start > longest:
        middle, last = start + longest // 2, start + longest
        at = max(text.rfind(" ", middle, last), text.rfind("\n", middle, last))
        at = last if at < 0 else at
        if piece := trim(text, start, at):
            yield piece
        start = at
    if piece := trim(text, start, end):
        yield piece


def _pack(text: str, start: int, end: int, longest: int) -> Iterator[tuple[int, int]]:
    """Yield a block whole if it fits, else in as few runs of whole sentences as fit."""
    edges = [*borders(text, start, end), end] if end - start > longest else [end]
    for edge, following in zip(edges, [*edges[1:], end + longest + 1], strict=True):
        if following - start > longest:
            yield from _cut(text, start, edge, longest)
            start = edge


def _cut_units(text: str) -> list[Unit]:
    r"""Cut a passage into units in order, without overlaps, each with a letter or digit.

    Prose gives sentences. A parameter with its description, a list item, and a doctest with its
    output are one unit each, because half a description answers nothing.

    Examples
    --------
    >>> text = "Sort it. Or not.\n\nParameters\n----------\nkey : callable\n    Applied to it.\n"
    >>> [(unit.kind, text[unit.start : unit.end]) for unit in _cut_units(text)][1:]
    [('sentence', 'Or not.'), ('entry', 'key : callable\n    Applied to it.')]
    """
    units: list[Unit] = []
    for block in _blocks(text):
        if block.kind == "prose":
            for low, high in spans(text, block.start, block.end):
                units += [Unit(*edges, "sentence") for edges in _cut(text, low, high, MAX_SENTENCE)]
        else:
            pieces = _pack(text, block.start, block.end, MAX_ENTRY)
            units += [Unit(*edges, block.kind) for edges in pieces]
    return [unit for unit in units if any(map(str.isalnum, text[unit.start : unit.end]))]


# ---- Features of the candidates of a batch

WORDS = (
    *("unit_coverage", "titled_coverage", "passage_coverage", "local_coverage"),
    *("position", "length", "passage_similarity"),
)
"""Features of every candidate. They choose the candidates that are embedded."""
FEATURES = (*WORDS, "similarity")
"""Features of the embedded candidates."""
OF_BEST = ("similarity", "passage_similarity")
"""Features of the best unit that the signal also uses."""
SIGNALS = (
    *("score", "lead", *OF_BEST),
    *("mean_coverage", "evidence_coverage", "familiarity"),
)
"""Features of a question: log-odds of the best unit, its lead over the second, its `OF_BEST`, and
the features that `Pool.measure` returns."""

Embed = Callable[[Sequence[str]], Float32Array]
"""Texts -> float32 [n, d], rows of unit norm (or zero)."""

_BLOCK = 65_536


@dataclasses.dataclass(frozen=True, slots=True)
class Passage:
    """A passage that an answer may cite.

    The title counts as part of every sentence and is never cited. `rank` counts from 1 and breaks
    ties.
    """

    text: str
    title: str = ""
    rank: int = 1


class Pool:
    """The candidates of a batch: questions, their passages ("pairs"), and the citable units.

    Attributes
    ----------
    texts
        Distinct passage texts. Their units have `unit_texts`, `kinds` and `text_of_unit` [n_units].
    question_of_pair, text_of_pair, passage_of_pair
        [n_pairs], in the order given; `passage_of_pair` is the place in the question's list.
    pair_of, unit_of, question_of, place, starts, ends
        [n_candidates], by pair and place in its text; `place` counts units from 0.
    words_of
        [n_candidates]: equal numbers for candidates of one question with equal words. Case and
        white space do not count.
    tie_breaks
        Sort keys of candidates of equal score, the last one first, as `np.lexsort` takes them.
    """

    def __init__(self, questions: Sequence[str], passages: Sequence[Sequence[Passage]]) -> None:
        self.questions = list(questions)
        flat = [passage for listed in passages for passage in listed]
        self.titles = [passage.title for passage in flat]
        sizes = np.array([len(listed) for listed in passages], dtype=np.int64)
        self.question_of_pair: IntArray = np.repeat(np.arange(len(sizes)), sizes)
        self.passage_of_pair = count_within(sizes)
        self.text_of_pair, distinct = pd.factorize(_objects(passage.text for passage in flat))
        self.texts: list[str] = distinct.tolist()
        cut = [_cut_units(text) for text in self.texts]
        units = [unit for listed in cut for unit in listed]
        counts = np.array([len(listed) for listed in cut], dtype=np.int64)
        self.text_of_unit: IntArray = np.repeat(np.arange(len(cut)), counts)
        self.kinds = [unit.kind for unit in units]
        self.unit_texts = [
            self.texts[text][unit.start : unit.end]
            for text, unit in zip(self.text_of_unit, units, strict=True)
        ]
        per_pair = counts[self.text_of_pair]
        self.pair_of: IntArray = np.repeat(np.arange(len(flat)), per_pair)
        self.place = count_within(per_pair)
        first = np.cumsum(counts) - counts
        self.unit_of: IntArray = first[self.text_of_pair][self.pair_of] + self.place
        self.question_of: IntArray = self.question_of_pair[self.pair_of]
        edges = np.array([(unit.start, unit.end) for unit in units], dtype=np.int64).reshape(-1, 2)
        self.starts, self.ends = edges[self.unit_of].T
        plain = (" ".join(text.lower().split()) for text in self.unit_texts)
        words, distinct = pd.factorize(_objects(plain))
        self.words_of: IntArray = self.question_of * len(distinct) + words[self.unit_of]
        self.ranks = np.array([passage.rank for passage in flat], dtype=np.int64)
        places = self.passage_of_pair[self.pair_of], self.ranks[self.pair_of]
        self.tie_breaks: tuple[IntArray, ...] = (self.starts, *places)

    def measure(
        self, frequencies: DocumentFrequencies, embed: Embed
    ) -> tuple[FloatArray, FloatArray, Float32Array]:
        """Return features of candidates [n_candidates, len(WORDS)], of questions, and vectors.

        Coverages are shares of the question's term weight: in the unit, in the unit or the
        passage's title, in the passage or title. `local_coverage` weighs terms by how few of the
        question's own candidates have them. `position`: 1 / (1 + place in the passage). `length`:
        ln(1 + terms). `passage_similarity`: cosine of the question and its passage with title.
        Questions have no function words.

        Features of questions, [n_questions, 3]: mean coverage of the passages, coverage by all of
        them together, and familiarity: 1 - mean term weight. The vectors are the questions'.
        """
        analyzer = Analyzer()
        functional = {term for row in analyzer.index(_function_words()) for term in row}
        asked_rows, unit_rows = (
            [[term for term in row if term not in functional] for row in analyzer.index(texts)]
            for texts in (self.questions, self.unit_texts)
        )
        unit_rows = analyzer.index(self.unit_texts)
        title_rows = analyzer.index([title.replace("_", " ") for title in self.titles])
        n_terms, n_questions = len(analyzer.vocabulary), len(self.questions)
        weights = _weigh_terms(frequencies, analyzer.vocabulary)
        counts = _count(unit_rows, n_terms)
        asked, titled = (_present(_count(rows, n_terms)) for rows in (asked_rows, title_rows))
        membership = _ones(self.text_of_unit, len(self.texts))
        q, pair, unit, asker = self.question_of, self.pair_of, self.unit_of, self.question_of_pair
        total = np.maximum(asked @ weights, 1e-12)
        in_unit = _present(counts)[unit].multiply(asked[q]).tocsr()
        in_title = titled.multiply(asked[asker]).tocsr()
        in_passage = _present((membership @ counts).tocsr())[self.text_of_pair]
        in_passage = in_passage.multiply(asked[asker]).tocsr().maximum(in_title).tocsr()
        gather = _ones(asker, n_questions)
        passage_coverage = (in_passage @ weights) / total[asker]
        indexed = [
            f"{title} {self.texts[text]}".strip()
            for title, text in zip(self.titles, self.text_of_pair, strict=True)
        ]
        vectors = _embed_distinct(embed, [*self.questions, *indexed])
        vectors, passages = np.split(vectors, [n_questions])
        similarity = _multiply_rows(vectors, asker, passages, np.arange(len(asker)))
        columns = {
            "unit_coverage": (in_unit @ weights) / total[q],
            "titled_coverage": (in_unit.maximum(in_title[pair]) @ weights) / total[q],
            "passage_coverage": passage_coverage[pair],
            "local_coverage": self._local_coverage(in_unit),
            "position": 1.0 / (1.0 + self.place),
            "length": np.log1p(counts.sum(axis=1))[unit],
            "passage_similarity": similarity[pair],
        }
        n_asked = np.maximum(asked.sum(axis=1), 1.0)
        of_questions = np.column_stack(
            [
                (gather @ passage_coverage) / np.maximum(gather.sum(axis=1), 1.0),
                (_present((gather @ in_passage).tocsr()) @ weights) / total,
                1.0 - (asked @ weights) / n_asked,
            ]
        )
        features = [np.asarray(columns[name], dtype=np.float64) for name in WORDS]
        return np.column_stack(features), of_questions, vectors

    def _local_coverage(self, in_unit: Any) -> FloatArray:
        """Weigh each term by how few of the question's own candidates have it."""
        n_questions = len(self.questions)
        gather = _ones(self.question_of, n_questions)
        rarity = (gather @ in_unit).tocsr()
        counts = np.bincount(self.question_of, minlength=n_questions).astype(np.float64)
        rows = np.repeat(np.arange(n_questions), np.diff(rarity.indptr))
        rarity.data = np.log1p((counts[rows] - rarity.data + 0.5) / (rarity.data + 0.5))
        total = np.maximum(rarity.sum(axis=1), 1e-12)
        covered = in_unit.multiply(rarity[self.question_of]).sum(axis=1)
        return np.asarray(covered / total[self.question_of])

    def similarity(self, rows: IntArray, questions: Float32Array, embed: Embed) -> FloatArray:
        """Return the cosines of the candidates `rows` with their questions."""
        vectors = _embed_distinct(embed, [self.unit_texts[unit] for unit in self.unit_of[rows]])
        return _multiply_rows(questions, self.question_of[rows], vectors, np.arange(len(rows)))

    def rank(self, scores: FloatArray, rows: IntArray | None = None) -> tuple[IntArray, IntArray]:
        """Sort candidates by (question, score), each text once; return them and their places."""
        rows = np.arange(len(self.question_of)) if rows is None else rows
        keys = (*(key[rows] for key in self.tie_breaks), -scores, self.question_of[rows])
        order = rows[np.lexsort(keys)]
        order = order[np.sort(np.unique(self.words_of[order], return_index=True)[1])]
        owner = self.question_of[order]
        return order, np.arange(len(order)) - np.searchsorted(owner, owner)


def _objects(values: Iterator[str]) -> "pd.Series[Any]":
    return pd.Series(list(values), dtype=object)


def _ones(rows: IntArray, n_rows: int) -> Any:
    """Return a CSR matrix [n_rows, len(rows)] with a 1 in the given row of each column."""
    from scipy.sparse import csr_array

    shape = (n_rows, len(rows))
    return csr_array((np.ones(len(rows)), (rows, np.arange(len(rows)))), shape=shape)


def _count(rows: Sequence[Sequence[int]], width: int) -> Any:
    """Count the terms of each row, as a CSR matrix [len(rows), width]."""
    from scipy.sparse import csr_array

    width = max(width, 1)
    return csr_array(count_matrix(rows, width), shape=(len(rows), width))


def _present(matrix: Any) -> Any:
    """Copy a matrix of counts with each count at most 1."""
    matrix = matrix.copy()
    matrix.data = np.minimum(matrix.data, 1.0)
    return matrix


@functools.cache
def _function_words() -> tuple[str, ...]:
    """Read the English words that build a question and say nothing about its subject."""
    text = files("rag_eval.answers").joinpath("function_words.json").read_text("utf-8")
    return tuple(json.loads(text))


def _weigh_terms(frequencies: DocumentFrequencies, vocabulary: Mapping[str, int]) -> FloatArray:
    """Return the idf of each term over a background of texts, scaled to (0, 1].

    weight(t) = ln(1 + (N - df + 0.5) / (df + 0.5)) / ln(1 + (N + 0.5) / 0.5), so that a term in no
    text weighs 1. Without texts, every term weighs 1.
    """
    if frequencies.n_texts == 0:
        return np.ones(len(vocabulary))
    df = np.array([frequencies.counts.get(term, 0) for term in vocabulary], dtype=np.float64)
    n = float(frequencies.n_texts)
    rarity = np.log1p((np.maximum(n - df, 0) + 0.5) / (df + 0.5))
    return np.asarray(rarity / np.log1p((n + 0.5) / 0.5))


def _embed_distinct(embed: Embed, texts: Sequence[str]) -> Float32Array:
    """Embed each distinct text once, float32 [len(texts), d]."""
    codes, distinct = pd.factorize(_objects(iter(texts)))
    vectors: Float32Array = np.asarray(embed(distinct.tolist()), dtype=np.float32)[codes]
    return vectors


def _multiply_rows(
    left: Float32Array, left_rows: IntArray, right: Float32Array, right_rows: IntArray
) -> FloatArray:
    """Multiply chosen rows in blocks, so that memory does not grow with the candidates."""
    products = np.zeros(len(left_rows))
    for start in range(0, len(left_rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        one, other = left[left_rows[part]], right[right_rows[part]]
        products[part] = np.einsum("ij,ij->i", one, other, dtype=np.float64)
    return products


def signals(
    pool: Pool, of_questions: FloatArray, features: FloatArray, rows: IntArray, log_odds: FloatArray
) -> FloatArray:
    """Compute the features of the signal, [n_questions, len(SIGNALS)]; 0 without a candidate.

    `features` [n, len(FEATURES)] and `log_odds` [n] belong to the embedded candidates `rows`.
    """
    order, places = pool.rank(log_odds, rows)
    at = np.searchsorted(rows, order)
    first, asked = at[places == 0], pool.question_of[order[places == 0]]
    lead = np.full(len(pool.questions), ALONE)
    lead[pool.question_of[order[places == 1]]] = log_odds[at[places == 1]]
    has_second = np.isin(asked, pool.question_of[order[places == 1]])
    lead[asked] = np.where(has_second, log_odds[first] - lead[asked], ALONE)
    found = np.zeros((len(pool.questions), len(SIGNALS)))
    columns = [FEATURES.index(name) for name in OF_BEST]
    found[asked] = np.column_stack(
        [log_odds[first], lead[asked], features[first][:, columns], of_questions[asked]]
    )
    return found


# ---- Weights: logistic regressions, fitted on public sets or on the gold of a corpus

FILE = "coefficients.json"
Model = Literal["lsa", "sentence"]


class Weights(NamedTuple):
    """A logistic regression over named features."""

    slope: FloatArray
    bias: float

    def log_odds(self, rows: FloatArray) -> FloatArray:
        """Return the log-odds of rows [n, n_features]."""
        return np.asarray(rows @ self.slope + self.bias)

    def name_weights(self, names: Sequence[str]) -> dict[str, float]:
        """Return the weights by the names of the features."""
        return {**dict(zip(names, self.slope.tolist(), strict=True)), "bias": self.bias}


def fit_weights(rows: FloatArray, labels: BoolArray, weight: FloatArray) -> Weights:
    """Fit a logistic regression on standardised columns; the weights are for the raw columns."""
    from sklearn.linear_model import LogisticRegression

    mean, spread = rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-9)
    fitted = LogisticRegression(max_iter=5000, tol=1e-8)
    fitted.fit((rows - mean) / spread, labels, sample_weight=weight)
    slope = np.round(fitted.coef_[0] / spread, DIGITS)
    return Weights(slope, float(np.round(fitted.intercept_[0] - slope @ mean, DIGITS)))


class _Shipped(NamedTuple):
    """The shipped weights of candidates, embedded candidates and questions; the threshold."""

    words: Weights
    sentence: Weights
    signal: Weights
    threshold: float


@functools.cache
def _load(model: Model) -> _Shipped:
    text = files("rag_eval.answers").joinpath(FILE).read_text(encoding="utf-8")
    fitted = json.loads(text)["models"][model]
    words, sentence, signal = (
        Weights(np.array([fitted[part][name] for name in names]), fitted[part]["bias"])
        for part, names in (("words", WORDS), ("sentence", FEATURES), ("signal", SIGNALS))
    )
    return _Shipped(words, sentence, signal, fitted["threshold"])


# ---- The answerer

EMBEDDED = 6
"""Candidates of a question whose similarity is measured, because sentence models are slow."""
CITED_FROM = 0.5
"""A further sentence is cited from this share of the best one's probability. On the fitted half of
open CLAPnq, smaller shares lose precision, and larger ones lose recall faster than they add it."""
HANDICAP = {"code": 1.0, "pointer": 2.0}
"""Log-odds subtracted from units of these kinds. Code illustrates a sentence, and a "See Also"
entry describes another document. The values are not fitted, because no data set has such units."""
ALONE = 2.0
"""Lead of the best unit if the question has a single candidate."""
ROUNDING = 6
"""Decimals of a probability, because the last bits of a sum depend on the rest of the batch."""
DIGITS = 4
"""Decimals of fitted weights."""
LEAST_ANSWERABLE, LEAST_UNANSWERABLE = 20, 10
"""Questions of each half from which the signal is learned from the gold."""
LEARNED = ("shipped", "mean_coverage", "familiarity")
"""Features of the learned signal: log-odds of the shipped signal, and two that depend on a corpus.
They are few because a half has few questions."""
LEARNED_THRESHOLD = 0.667
"""Threshold of the learned signal. To answer an unanswerable question costs as much as to refuse
two answerable ones (Chow 1970). The learning gives both kinds of questions the same weight."""


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """A sentence to cite, with the probability that it answers."""

    passage: int  # number within the question's list, from 0
    start: int
    end: int
    score: float


@dataclasses.dataclass(frozen=True, slots=True)
class Extract:
    """Sentences for an answer, best first. The signal is the probability of an answerable question.

    `answered` is false if the signal is under the threshold.
    """

    sentences: tuple[Chosen, ...]
    signal: float
    answered: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """A question of a gold set: its half, 0 or 1, and whether it is answerable, None if unknown."""

    half: int
    answerable: bool | None


@dataclasses.dataclass(frozen=True)
class Abstention:
    """The origin of the signal and of the threshold under which questions are not answered.

    The counts are those of the two halves. From gold, `weights[h]` has the weights of the signal
    that judges half h, learned on the other half.
    """

    source: Literal["gold", "shipped", "setting"]
    reason: str
    threshold: float
    n_answerable: tuple[int, int]
    n_unanswerable: tuple[int, int]
    weights: tuple[dict[str, float], ...] = ()


def _probability(log_odds: FloatArray) -> FloatArray:
    return np.asarray(np.round(1.0 / (1.0 + np.exp(-np.clip(log_odds, -50, 50))), ROUNDING))


class Extractive:
    """Answers questions with sentences of their evidence.

    `embedding` is the kind of `embed`, `sentence` (a sentence model such as MiniLM) or `lsa`,
    because their cosines mean different things. `abstain_below` None takes a fitted threshold of
    the signal. Without `frequencies` of the corpus, every content word weighs the same.
    """

    def __init__(
        self,
        embed: Embed,
        *,
        embedding: Literal["sentence", "lsa"] = "sentence",
        max_sentences: int = 3,
        abstain_below: float | None = None,
        frequencies: DocumentFrequencies | None = None,
    ) -> None:
        self._embed = embed
        self._weights = _load(embedding)
        self._max_sentences = max_sentences
        self._abstain_below = abstain_below
        self._frequencies = frequencies or DocumentFrequencies(0, {})

    def answer(
        self,
        questions: Sequence[str],
        passages: Sequence[Sequence[Passage]],
        examples: Sequence[Example] = (),
    ) -> tuple[list[Extract], Abstention]:
        """Answer a batch: one extract for each question from its own passages.

        An answer has no sentence twice. Of copies of a sentence, the best-ranked copy is cited.
        With enough `examples`, one for each question, the signal is learned from them: the signal
        of each half comes from the other half.
        """
        pool = Pool(questions, passages)
        rows, log_odds, measured = self._read(pool)
        signal, abstention = self._judge(measured, examples)
        is_askable = np.isin(np.arange(len(pool.questions)), pool.question_of[rows])
        has_words = [any(map(str.isalnum, question)) for question in pool.questions]
        is_askable &= np.array(has_words, dtype=bool)
        signal = np.where(is_askable, signal, 0.0)
        is_answered = is_askable & (signal >= abstention.threshold)
        chosen = self._choose(pool, rows, _probability(log_odds))
        parts = zip(chosen, is_askable.tolist(), signal.tolist(), is_answered.tolist(), strict=True)
        extracts = [
            Extract(tuple(own) if is_asked else (), value, answered=answered)
            for own, is_asked, value, answered in parts
        ]
        return extracts, abstention

    def _read(self, pool: Pool) -> tuple[IntArray, FloatArray, FloatArray]:
        """Return the embedded candidates, sorted, their log-odds, and the signal's features."""
        if len(pool.question_of) == 0:
            none = np.zeros(0, dtype=np.int64)
            return none, np.zeros(0), np.zeros((len(pool.questions), len(SIGNALS)))
        words, of_questions, vectors = pool.measure(self._frequencies, self._embed)
        handicaps = np.array([HANDICAP.get(kind, 0.0) for kind in pool.kinds])[pool.unit_of]
        first = self._weights.words.log_odds(words) - handicaps
        order, places = pool.rank(np.round(first, ROUNDING))
        rows = np.sort(order[places < EMBEDDED])
        near = pool.similarity(rows, vectors, self._embed)
        features = np.column_stack([words[rows], near])
        log_odds = self._weights.sentence.log_odds(features) - handicaps[rows]
        log_odds = np.round(log_odds, ROUNDING)
        return rows, log_odds, signals(pool, of_questions, features, rows, log_odds)

    def _judge(
        self, measured: FloatArray, examples: Sequence[Example]
    ) -> tuple[FloatArray, Abstention]:
        """Return the signal of each question, and its origin."""
        half = np.array([one.half for one in examples], dtype=np.int64)
        known = np.array([one.answerable is not None for one in examples], dtype=bool)
        is_answerable = np.array([bool(one.answerable) for one in examples], dtype=bool)
        first, second = (known & (half == part) for part in (0, 1))
        n_answerable, n_unanswerable = (
            (int((first & kind).sum()), int((second & kind).sum()))
            for kind in (is_answerable, ~is_answerable)
        )
        counts = n_answerable, n_unanswerable
        shipped = self._weights.signal.log_odds(measured)
        if self._abstain_below is not None:
            setting = Abstention("setting", "answers.abstain_below", self._abstain_below, *counts)
            return _probability(shipped), setting
        if min(n_answerable) < LEAST_ANSWERABLE or min(n_unanswerable) < LEAST_UNANSWERABLE:
            reason = (
                f"a half of the gold has fewer than {LEAST_ANSWERABLE} answerable or "
                f"{LEAST_UNANSWERABLE} unanswerable questions; other collections gave the threshold"
            )
            default = Abstention("shipped", reason, self._weights.threshold, *counts)
            return _probability(shipped), default
        columns = [SIGNALS.index(name) for name in LEARNED[1:]]
        rows = np.column_stack([shipped, measured[:, columns]])
        signal, weights = np.zeros(len(examples)), []
        for part, learned in enumerate((second, first)):
            labels = is_answerable[learned]
            balance = np.where(labels, 0.5 / labels.mean(), 0.5 / (1 - labels.mean()))
            fitted = fit_weights(rows[learned], labels, weight=balance)
            signal[half == part] = _probability(fitted.log_odds(rows[half == part]))
            weights.append(fitted.name_weights(LEARNED))
        reason = "learned on the other half of the gold"
        return signal, Abstention("gold", reason, LEARNED_THRESHOLD, *counts, tuple(weights))

    def _choose(self, pool: Pool, rows: IntArray, scores: FloatArray) -> list[list[Chosen]]:
        """Return the sentences to cite of each question, best first."""
        chosen: list[list[Chosen]] = [[] for _ in pool.questions]
        order, places = pool.rank(scores, rows)
        scored = scores[np.searchsorted(rows, order)]
        best = np.zeros(len(pool.questions))
        best[pool.question_of[order[places == 0]]] = scored[places == 0]
        is_near = scored >= CITED_FROM * best[pool.question_of[order]]
        is_cited = (places < self._max_sentences) & is_near
        cited, scored = order[is_cited], scored[is_cited]
        # cite the copy of a text that the retrieval ranked best
        by_rank = np.lexsort((*pool.tie_breaks, pool.words_of))
        copies = by_rank[np.searchsorted(pool.words_of[by_rank], pool.words_of[cited])]
        columns = (
            pool.question_of[cited],
            pool.passage_of_pair[pool.pair_of[copies]],
            pool.starts[copies],
            pool.ends[copies],
            scored,
        )
        for question, *place in zip(*(column.tolist() for column in columns), strict=True):
            chosen[question].append(Chosen(*place))
        return chosen
