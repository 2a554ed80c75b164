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
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.core.arrays import BoolArray, Float32Array, FloatArray, IntArray, count_within
from rag_eval.corpus.analyzer import Analyzer, DocumentFrequencies, count_matrix
from rag_eval.corpus.chunking import borders, spans, trim
from rag_eval.retrieval.synonyms import Expansion, Mean, Phrase

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


def cut_units(text: str) -> list[Unit]:
    r"""Cut a passage into units in order, without overlaps, each with a letter or digit.

    Prose gives sentences. A parameter with its description, a list item, and a doctest with its
    output are one unit each, because half a description answers nothing.

    Examples
    --------
    >>> text = "Sort it. Or not.\n\nParameters\n----------\nkey : callable\n    Applied to it.\n"
    >>> [(unit.kind, text[unit.start : unit.end]) for unit in cut_units(text)][1:]
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

SATURATION, LENGTH_SHARE = 0.9, 0.4
"""BM25's k1 and b, as for retrieval."""
AVERAGE_TERMS = 12.0
"""Average number of terms of a sentence without stop words (12.6 on CLAPnq, SciFact, XQuAD)."""
LONGEST_EMBEDDED = 2000
"""Longest beginning of a text that is embedded; sentence models read fewer characters."""

LEXICAL = (
    *("unit_coverage", "titled_coverage", "passage_coverage", "evidence_coverage"),
    *("local_coverage", "frequency", "pairs", "missing", "number_fits", "number_lacks"),
    *("name_fits", "first", "position", "length"),
)
DENSE = ("similarity", "window_similarity", "passage_similarity")

Embed = Callable[[Sequence[str]], Float32Array]
"""Texts -> float32 [n, d], rows of unit norm (or zero)."""

_BLOCK = 65_536
_WANTS_NUMBER = re.compile(
    r"\b(?:when|what (?:year|date|day|time|age|percentage|number)|which year"
    r"|how (?:many|much|long|old|far|often|tall|big|large|high|fast))\b",
    re.IGNORECASE,
)
_WANTS_NAME = re.compile(
    r"\b(?:who|whom|whose|where|(?:which|what) (?:country|city|state|team|person|company|name))\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|hundred|thousand"
    r"|million|billion|dozen|half|twice|percent)\b",
    re.IGNORECASE,
)
_NAME = re.compile(r"[a-z0-9,;:] [A-Z][a-z]+")


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
        cut = [cut_units(text) for text in self.texts]
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
        ranks = np.array([passage.rank for passage in flat], dtype=np.int64)
        places = self.passage_of_pair[self.pair_of], ranks[self.pair_of]
        self.tie_breaks: tuple[IntArray, ...] = (self.starts, *places)

    @functools.cached_property
    def _membership(self) -> Any:
        """CSR [n_texts, n_units]: the units of each passage."""
        n = len(self.unit_texts)
        return _ones(self.text_of_unit, np.arange(n), (len(self.texts), n))

    def lexical(
        self, frequencies: DocumentFrequencies, expansion: Expansion | None = None
    ) -> FloatArray:
        """Measure words, [n_candidates, len(LEXICAL)].

        Coverages are shares of the question's term weight: in the unit, in the unit or the
        passage's title, in the passage or title, in all of the question's evidence.
        `local_coverage` weighs terms by how few of the question's own candidates have them.
        `frequency` is `unit_coverage` with counts saturated as in BM25. `pairs`: share of the
        question's neighbouring terms that are neighbours in the unit. `missing`: the heaviest term
        that neither passage nor title has, as a share of the heaviest of all. `number_*`,
        `name_fits`: the question asks for a number or a name, and the unit has or lacks it.
        `position`: 1 / (1 + place in the passage). `length`: ln(1 + terms). Questions have no
        function words. A synonym counts its weight.
        """
        analyzer = Analyzer()
        functional = {term for row in analyzer.index(_function_words()) for term in row}
        questions, units = analyzer.index(self.questions), analyzer.index(self.unit_texts)
        asked_rows, unit_rows = (
            [[term for term in row if term not in functional] for row in rows]
            for rows in (questions, units)
        )
        titles = analyzer.index([title.replace("_", " ") for title in self.titles])
        widening = _Widening(expansion, analyzer, questions, asked_rows) if expansion else None
        n_terms = len(analyzer.vocabulary)
        weights = _weigh_terms(frequencies, analyzer.vocabulary)
        counts = _count(units, n_terms)
        asked, titled = (_present(_count(rows, n_terms)) for rows in (asked_rows, titles))
        has, passages = _present(counts), _present((self._membership @ counts).tocsr())
        lengths = counts.sum(axis=1)
        # compare the length with an average sentence, because an answer must not depend on the
        # other questions of the batch
        longer = 1.0 - LENGTH_SHARE + LENGTH_SHARE * lengths / AVERAGE_TERMS
        rows = np.repeat(np.arange(len(units)), np.diff(counts.indptr))
        saturated = counts.copy()
        saturated.data = counts.data / (counts.data + SATURATION * longer[rows])
        if widening:
            asked = _count(widening.asked, n_terms + len(widening.terms))
            has, titled, passages, saturated = map(
                widening.widen, (has, titled, passages, saturated)
            )
            weights = np.concatenate([weights, weights[widening.terms]])

        q, pair, unit, asker = self.question_of, self.pair_of, self.unit_of, self.question_of_pair
        total = np.maximum(asked @ weights, 1e-12)
        in_unit = has[unit].multiply(asked[q]).tocsr()
        in_title = titled.multiply(asked[asker]).tocsr()
        in_passage = passages[self.text_of_pair].multiply(asked[asker]).tocsr()
        in_passage = in_passage.maximum(in_title).tocsr()
        n_questions = len(self.questions)
        in_evidence = _ones(asker[:0], asker[:0], (n_questions, in_passage.shape[1]))
        for place in range(int(self.passage_of_pair.max()) + 1):  # n-th passages of all questions
            rows = np.flatnonzero(self.passage_of_pair == place)
            nth = _ones(asker[rows], rows, (n_questions, len(asker))) @ in_passage
            in_evidence = in_evidence.maximum(nth)
        absent = _heaviest((asked[asker] - in_passage).tocsr(), weights)
        missing = absent / np.maximum(_heaviest(asked, weights), 1e-12)[asker]
        wants_number = _flag(_WANTS_NUMBER, self.questions)[q]
        wants_name = _flag(_WANTS_NAME, self.questions)[q]
        has_number = _flag(_NUMBER, self.unit_texts)[unit]
        columns = {
            "unit_coverage": (in_unit @ weights) / total[q],
            "titled_coverage": (in_unit.maximum(in_title[pair]) @ weights) / total[q],
            "passage_coverage": ((in_passage @ weights) / total[asker])[pair],
            "evidence_coverage": ((in_evidence @ weights) / total)[q],
            "local_coverage": self._local_coverage(in_unit),
            "frequency": (saturated[unit].multiply(asked[q]).tocsr() @ weights) / total[q],
            "pairs": self._share_pairs(asked_rows, unit_rows),
            "missing": missing[pair],
            "number_fits": wants_number & has_number,
            "number_lacks": wants_number & ~has_number,
            "name_fits": wants_name & _flag(_NAME, self.unit_texts)[unit],
            "first": self.place == 0,
            "position": 1.0 / (1.0 + self.place),
            "length": np.log1p(lengths[unit]),
        }
        return np.column_stack([np.asarray(columns[name], dtype=np.float64) for name in LEXICAL])

    def _local_coverage(self, in_unit: Any) -> FloatArray:
        """Weigh each term by how few of the question's own candidates have it."""
        n_questions, n_candidates = len(self.questions), len(self.question_of)
        gather = _ones(self.question_of, np.arange(n_candidates), (n_questions, n_candidates))
        rarity = (gather @ in_unit).tocsr()
        counts = np.bincount(self.question_of, minlength=n_questions).astype(np.float64)
        rows = np.repeat(np.arange(n_questions), np.diff(rarity.indptr))
        rarity.data = np.log1p((counts[rows] - rarity.data + 0.5) / (rarity.data + 0.5))
        total = np.maximum(rarity.sum(axis=1), 1e-12)
        covered = in_unit.multiply(rarity[self.question_of]).sum(axis=1)
        return np.asarray(covered / total[self.question_of])

    def _share_pairs(self, asked: list[list[int]], units: list[list[int]]) -> FloatArray:
        """Return the share of neighbouring terms of questions that are neighbours in a unit."""
        codes: dict[frozenset[int], int] = {}
        wanted_rows, unit_rows = (
            [
                [codes.setdefault(frozenset(two), len(codes)) for two in itertools.pairwise(row)]
                for row in rows
            ]
            for rows in (asked, units)
        )
        wanted, present = (_present(_count(rows, len(codes))) for rows in (wanted_rows, unit_rows))
        shared = present[self.unit_of].multiply(wanted[self.question_of]).sum(axis=1)
        return np.asarray(shared / np.maximum(wanted.sum(axis=1), 1.0)[self.question_of])

    def dense(self, embed: Embed) -> FloatArray:
        """Measure nearness of vectors, [n_candidates, len(DENSE)]; one call embeds each text once.

        The features are cosines of the question with three vectors: the unit, the mean of the unit
        and its neighbours, and the mean of all units of the passage.
        """
        texts = [text[:LONGEST_EMBEDDED] for text in [*self.questions, *self.unit_texts]]
        vectors = np.asarray(embed(texts), dtype=np.float32)
        asked, units = np.split(vectors, [len(self.questions)])
        at = np.arange(len(units))
        later = at[1:][self.text_of_unit[1:] == self.text_of_unit[:-1]]
        rows, columns = np.concatenate([[at, at], [later, later - 1], [later - 1, later]], axis=1)
        windows = _normalise(_ones(rows, columns, (len(at), len(at))) @ units)
        passages = _normalise(self._membership @ units)
        near = _multiply_rows(asked, self.question_of, units, self.unit_of)
        around = _multiply_rows(asked, self.question_of, windows, self.unit_of)
        whole = _multiply_rows(asked, self.question_of_pair, passages, self.text_of_pair)
        return np.column_stack([near, around, whole[self.pair_of]])

    def signals(
        self, names: tuple[str, ...], measured: FloatArray, log_odds: FloatArray, order: IntArray
    ) -> FloatArray:
        """Compute the signal's features of each question, [n_questions, len(signal_names(names))].

        `measured` [n_candidates, len(names)] has the features of the candidates, `log_odds` the
        log-odds that each answers, and `order` the candidates by (question, best first). Rows of
        questions without a candidate are 0.
        """
        counts = np.bincount(self.question_of, minlength=len(self.questions))
        rows = np.zeros((len(counts), len(signal_names(names))))
        asked = np.flatnonzero(counts)
        first = (np.cumsum(counts) - counts)[asked]
        best, second = order[first], order[np.minimum(first + 1, len(order) - 1)]
        lead = np.where(counts[asked] > 1, log_odds[best] - log_odds[second], ALONE)
        rows[asked, :3] = np.column_stack([log_odds[best], lead, np.log1p(counts[asked])])
        columns = [names.index(name) for name in OF_BEST if name in names]
        rows[asked, 3:] = measured[best][:, columns]
        return rows


class _Widening:
    """Further columns for question terms that have synonyms.

    `rows` has the term ids of the questions with function words, because phrases are made of them,
    `asked` the ids that count. The attribute `asked` has the column ids of each question instead:
    term i of `terms` has a column of its own at (size of the vocabulary) + i.
    """

    def __init__(
        self,
        expansion: Expansion,
        analyzer: Analyzer,
        rows: Sequence[Sequence[int]],
        asked: Sequence[Sequence[int]],
    ) -> None:
        bound = expansion.bind(analyzer)
        columns: dict[tuple[int, Phrase], int] = {}
        self.terms: list[int] = []
        self._means: list[tuple[Mean, ...]] = []
        self.asked: list[list[int]] = []
        for phrases, counted in zip(bound.phrases(rows), asked, strict=True):
            column_of = {term: term for term in counted}
            for phrase in phrases:
                for term in phrase:
                    alone = () if phrase == (term,) else bound.means((term,))
                    means = (*bound.means(phrase), *alone)
                    if means and column_of.get(term) == term:
                        if (term, phrase) not in columns:
                            columns[term, phrase] = len(analyzer.vocabulary) + len(columns)
                            self.terms.append(term)
                            self._means.append(means)
                        column_of[term] = columns[term, phrase]
            self.asked.append(list(column_of.values()))

    def widen(self, values: Any) -> Any:
        """Append the widened columns to a CSR matrix [n, n_terms].

        A widened column has the largest of several values: the value of the term, and the mean
        value of each meaning whose terms are all in the text, times its weight.
        """
        from scipy.sparse import csr_array, hstack

        by_term = values.tocsc()

        @functools.cache
        def value_of(terms: Phrase) -> FloatArray:
            parts = by_term[:, list(dict.fromkeys(terms))].toarray()
            return np.asarray(parts.mean(axis=1) * (parts > 0).all(axis=1))

        columns = [
            np.maximum.reduce(
                [value_of((term,)), *(mean.weight * value_of(mean.terms) for mean in means)]
            )
            for term, means in zip(self.terms, self._means, strict=True)
        ]
        return hstack([values, *(csr_array(column[:, None]) for column in columns)], format="csr")


def _objects(values: Iterator[str]) -> "pd.Series[Any]":
    return pd.Series(list(values), dtype=object)


def _ones(rows: IntArray, columns: IntArray, shape: tuple[int, int]) -> Any:
    """Return a CSR matrix with a 1 at each (row, column)."""
    from scipy.sparse import csr_array

    return csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)


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


def _heaviest(matrix: Any, weights: FloatArray) -> FloatArray:
    """Return the largest weight among the terms of each row, 0 for an empty row."""
    weighed = matrix.copy()
    weighed.data = weighed.data * weights[weighed.indices]
    return np.asarray(weighed.max(axis=1).toarray(), dtype=np.float64).ravel()


def _flag(pattern: re.Pattern[str], texts: Sequence[str]) -> BoolArray:
    return np.array([pattern.search(text) is not None for text in texts], dtype=bool)


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


def _normalise(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))[:, None]
    return np.asarray(vectors / np.where(norms > 0, norms, 1.0))


def _multiply_rows(
    left: npt.NDArray[np.floating],
    left_rows: IntArray,
    right: npt.NDArray[np.floating],
    right_rows: IntArray,
) -> FloatArray:
    """Multiply chosen rows in blocks, so that memory does not grow with the candidates."""
    products = np.zeros(len(left_rows))
    for start in range(0, len(left_rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        one, other = left[left_rows[part]], right[right_rows[part]]
        products[part] = np.einsum("ij,ij->i", one, other, dtype=np.float64)
    return products


# ---- The fitted weights of units and of the signal, which tells whether the evidence carries it

FILE = "coefficients.json"
Model = Literal["lexical", "lsa", "sentence"]
FEATURES: dict[Model, tuple[str, ...]] = {
    "lexical": LEXICAL,
    **dict.fromkeys(("lsa", "sentence"), (*LEXICAL, *DENSE)),
}
"""The features that each model weighs."""
OF_BEST = (*LEXICAL[:11], *DENSE)
"""Features of the best unit that the signal also uses. The fit of the best unit says more about the
evidence than the rank."""
OF_QUESTION = ("score", "lead", "candidates")
"""Log-odds of the best unit, lead of the best over the second unit, ln(1 + number of candidates).
The number counts because the best of many candidates can fit by chance."""
ALONE = 2.0
"""Lead of the best unit if the question has a single candidate."""


def signal_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the columns of `Pool.signals` for the features `names` of units."""
    return (*OF_QUESTION, *(name for name in OF_BEST if name in names))


@dataclasses.dataclass(frozen=True)
class _Weights:
    """A fitted model."""

    features: tuple[str, ...]
    sentence: FloatArray
    """Log-odds that a unit answers: features @ sentence + sentence_bias."""
    sentence_bias: float
    signal: FloatArray
    """Log-odds that the best unit is right, over `signal_names(features)`."""
    signal_bias: float
    threshold: float
    """Default threshold of the signal."""


@functools.cache
def _load(model: Model) -> _Weights:
    text = files("rag_eval.answers").joinpath(FILE).read_text(encoding="utf-8")
    names, fitted = FEATURES[model], json.loads(text)["models"][model]
    return _Weights(
        names,
        np.array([fitted["sentence"][name] for name in names]),
        fitted["sentence"]["bias"],
        np.array([fitted["signal"][name] for name in signal_names(names)]),
        fitted["signal"]["bias"],
        fitted["threshold"],
    )


# ---- The answerer

CITED_FROM = 0.12
"""Probability from which a second sentence of a single passage is cited. Chosen by hand between 0.1
and 0.25 on CLAPnq, SciFact and XQuAD, with their held-out parts. A higher value
removes sentences that people selected faster than other sentences."""
CITED_FROM_AMONG_MANY = 0.5
"""Probability from which a second sentence of several passages is cited. If the passage of the best
sentence is wrong, the second sentence is wrong too."""
HANDICAP = {"code": 1.0, "pointer": 2.0}
"""Log-odds subtracted from units of these kinds. Code illustrates a sentence, and a "See Also"
entry describes another document. The values are not fitted, because no data set has such units."""
ROUNDING = 6
"""Decimals of a probability, because the last bits of a sum depend on the rest of the batch."""


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """A sentence to cite, with the probability that it answers."""

    passage: int  # number within the question's list, from 0
    start: int
    end: int
    score: float


@dataclasses.dataclass(frozen=True, slots=True)
class Extract:
    """Sentences of the evidence for one question.

    `sentences` stand best first, even if `answered` is false, so that a person can look at a near
    miss. `signal` in [0, 1] is the probability that the best sentence is right, fitted on
    public sets. `answered` is false if the signal is under the threshold.
    """

    sentences: tuple[Chosen, ...]
    signal: float
    answered: bool


def _probability(log_odds: FloatArray) -> FloatArray:
    return np.asarray(np.round(1.0 / (1.0 + np.exp(-np.clip(log_odds, -50, 50))), ROUNDING))


class Extractive:
    """Answers questions with sentences of their evidence.

    `embed` None measures words only. `embedding` is its kind, `sentence` (a sentence model such as
    MiniLM) or `lsa`, because their cosines mean different things. `abstain_below` None takes the
    fitted threshold of the signal. Without `frequencies` of the corpus, every content word weighs
    the same. The weights were fitted without the synonyms of `expansion`, so the signal is
    calibrated only without them.
    """

    def __init__(
        self,
        embed: Embed | None = None,
        *,
        embedding: Literal["sentence", "lsa"] = "sentence",
        max_sentences: int = 3,
        abstain_below: float | None = None,
        frequencies: DocumentFrequencies | None = None,
        expansion: Expansion | None = None,
    ) -> None:
        self._embed = embed
        self._weights = _load("lexical" if embed is None else embedding)
        self._max_sentences = max_sentences
        self.abstain_below = self._weights.threshold if abstain_below is None else abstain_below
        self._frequencies = frequencies or DocumentFrequencies(0, {})
        self._expansion = expansion

    def answer(
        self, questions: Sequence[str], passages: Sequence[Sequence[Passage]]
    ) -> list[Extract]:
        """Answer a batch: one extract for each question from its own passages.

        An answer has no sentence twice. Of copies of a sentence, the best-ranked copy is cited.
        """
        pool = Pool(questions, passages)
        if len(pool.question_of) == 0:
            return [Extract((), 0.0, answered=False)] * len(pool.questions)
        weights = self._weights
        measured, is_askable = self._measure(pool)
        handicaps = np.array([HANDICAP.get(kind, 0.0) for kind in pool.kinds])[pool.unit_of]
        log_odds = measured @ weights.sentence + weights.sentence_bias - handicaps
        scores = _probability(log_odds)
        order = np.lexsort((*pool.tie_breaks, -scores, pool.question_of))
        rows = pool.signals(weights.features, measured, log_odds, order)
        signals = _probability(rows @ weights.signal + weights.signal_bias)
        signals = np.where(is_askable, signals, 0.0)
        cited = self._choose(pool, scores, order)
        cited = cited[is_askable[pool.question_of[cited]]]
        # cite the copy of a text that the retrieval ranked best
        by_rank = np.lexsort((*pool.tie_breaks, pool.words_of))
        copies = by_rank[np.searchsorted(pool.words_of[by_rank], pool.words_of[cited])]
        columns = (
            pool.question_of[cited],
            pool.passage_of_pair[pool.pair_of[copies]],
            pool.starts[copies],
            pool.ends[copies],
            scores[cited],
        )
        chosen: list[list[Chosen]] = [[] for _ in pool.questions]
        for question, *place in zip(*(column.tolist() for column in columns), strict=True):
            chosen[question].append(Chosen(*place))
        return [
            Extract(tuple(own), signal, answered=bool(own) and signal >= self.abstain_below)
            for own, signal in zip(chosen, signals.tolist(), strict=True)
        ]

    def _measure(self, pool: Pool) -> tuple[FloatArray, BoolArray]:
        """Return the features of all candidates, and whether each question can be answered."""
        words = pool.lexical(self._frequencies, self._expansion)
        has_words = np.array([any(map(str.isalnum, question)) for question in pool.questions])
        is_reached = np.zeros(len(pool.questions), dtype=bool)
        if self._embed is None:
            is_reached[pool.question_of] = words[:, LEXICAL.index("evidence_coverage")] > 0
            return words, has_words & is_reached
        is_reached[pool.question_of] = True
        return np.hstack([words, pool.dense(self._embed)]), has_words & is_reached

    def _choose(self, pool: Pool, scores: FloatArray, order: IntArray) -> IntArray:
        """Return the candidates to cite, by (question, best first), each text once."""
        order = order[np.sort(np.unique(pool.words_of[order], return_index=True)[1])]
        owner = pool.question_of[order]
        place = np.arange(len(order)) - np.searchsorted(owner, owner)
        several = np.bincount(pool.question_of_pair, minlength=len(pool.questions)) > 1
        needed = np.where(several, CITED_FROM_AMONG_MANY, CITED_FROM)[owner]
        is_probable = (place < self._max_sentences) & (scores[order] >= needed)
        return np.asarray(order[(place == 0) | is_probable])
