"""Find planted text: sentences off the topic of their document, and passages for a question.

Topic shifts are questions, orders and code about something else than their document. The check
guesses from words and form, so every finding is a warning. Passages planted for a question are
searched among its first chunks: `ranked`, int64 [n_questions, k], best first, -1 in an empty place.
`vouched`, bool [n_chunks], marks the chunks of sources that the allowlist or a signature vouches
for, which are not read; None where nothing is configured to trust.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.config import FINDINGS
from rag_eval.core.frames import make_frame
from rag_eval.corpus.analyzer import Analyzer, TermRows, count_matrix
from rag_eval.corpus.chunking import spans
from rag_eval.trust.spelling import load_words
from rag_eval.trust.text import plain

_LISTS = {name: frozenset(words) for name, words in load_words("sentences").items()}
_CLOSED_CLASS, _TASK_VERBS = _LISTS["closed"], _LISTS["tasks"]
"""Closed word classes and word order decide for English; in other languages only question marks and
question words count."""

# ---- Sentences, told from code, tables, parameters and headings

_LEAST_WORDS = 3
_MOST_CHARACTERS = 2_000
"""Most characters of a sentence; a sentence without an end is cut."""

_LINE = re.compile(r"[^\r\n]*+(?:\r\n?|\n|\Z)")
_PROSE_WORD = re.compile(r"[^\W\d_]{2,}")
_FENCE = ("```", "~~~")
_BULLET = re.compile(r"(?:[-*+•]|\d{1,3}[.)])\s++")
_RULE = re.compile(r"([=\-~^\"'`#*+_.:])\1{2,}+\Z")
_NAME = r"[*`]{0,2}[\w.\[\]]{1,80}+[*`]{0,2}"
_PROMPT = (">>>", "...", "$ ")
_NO_PROSE = re.compile(
    r"#{1,6}\s|\.\.\s|\||\+[-=]|:[\w .-]{1,60}:|In \[\d|Out\[\d|https?://\S++\Z|[=\-]{3,}\s"
    r"|from [\w.]+ import |import \w|(?:def|class|for|if|while|with|return)\b.*[:)]\Z"
)
_PARAMETER = re.compile(rf"{_NAME}(?:, {{0,4}}{_NAME}){{0,12}}\s?:(?:\s|\Z)")
_SENTENCE_ENDS = (".", "?", "!", ":")


class _Sentence(NamedTuple):
    """Characters [start, end) of a document; a fenced block of code may follow them."""

    start: int
    end: int
    introduces_code: bool


def _is_prose(line: str, below: str) -> bool:
    """Tell whether a stripped line is no markup, code or parameter, heading or its underline."""
    if _RULE.match(line) or _NO_PROSE.match(line) or line.startswith(_PROMPT):
        return False
    if _PARAMETER.match(line) and not line.endswith("?"):
        return False
    return bool(line) and (not _RULE.match(below) or line.endswith(_SENTENCE_ENDS))


def _find_paragraphs(text: str) -> Iterator[tuple[int, int, bool]]:
    """Yield (start, end, whether a fenced block follows) of runs of prose lines."""
    lines = [(match.start(), match[0]) for match in _LINE.finditer(text)]
    is_fenced = is_output = False
    literal = -1  # indentation of the line above a literal block; -1 outside
    start, end, level = 0, 0, -1  # the present run; level -1 means no run
    for (at, whole), (_, following) in itertools.pairwise([*lines, (len(text), "")]):
        line, below = whole.strip(), following.strip()
        indent = len(whole) - len(whole.lstrip())
        literal = -1 if line and indent <= literal else literal
        is_fence = line.startswith(_FENCE)
        is_output = bool(line) and (is_output or line.startswith(_PROMPT))
        is_code = is_fence or is_fenced or literal >= 0
        is_code = is_code or (is_output and not line.endswith(_SENTENCE_ENDS))
        if is_code or not _is_prose(line, below):
            # a blank line before a fence does not end the run
            if level >= 0 and (line or not below.startswith(_FENCE)):
                yield start, end, is_fence and not is_fenced
                level = -1
        else:
            bullet = _BULLET.match(line)
            here = indent + (bullet.end() if bullet else 0)
            if level >= 0 and (bullet or here != level):
                yield start, end, False
                level = -1
            if level < 0:
                start, level = at + here, here
            end = at + indent + len(line)
        if literal < 0 and (line.endswith("::") or line.startswith(".. code")):
            literal = indent
        is_fenced ^= is_fence
    if level >= 0:
        yield start, end, False


def _sentences_of(text: str) -> list[_Sentence]:
    """Return the sentences of a document with three words or more, in order."""
    sentences = []
    for start, end, before_code in _find_paragraphs(text):
        parts = spans(text, start, end)
        for place, (low, high) in enumerate(parts, start=1):
            cut = min(high, low + _MOST_CHARACTERS)
            if len(_PROSE_WORD.findall(text, low, cut)) >= _LEAST_WORDS:
                sentences.append(_Sentence(low, cut, before_code and place == len(parts)))
    return sentences


# ---- The form of a sentence

_INVERTED = _LISTS["inverted"]
_AUXILIARY = _INVERTED | {"'s", "be"}
_FORBIDS = frozenset(("don't", "dont", "never", "let", "let's", "lets"))
_NO_OBJECT = frozenset(("of", "and", "or", ":", "=", "(", ")", ","))
_ADDRESS = frozenset(("you", "your", "yours", "yourself", "me", "my"))
_ASKED_OF_READER = frozenset(("can", "could", "would", "will"))
_BROKEN = frozenset(".,;)]}>")
_TOKEN = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*|[?？¿,:;=()]")
_ENDS_ASKING = re.compile(r"[?？؟][\"'”’»)\]\s!.…]*\Z")
_OPENINGS, _READ_FORM, _BEGINNING, _SHORT, _END_CHARACTERS = 8, 600, 8, 14, 12


class _SentenceForm(NamedTuple):
    """Whether a sentence asks, orders, and addresses its reader; several may be true."""

    asks: bool
    orders: bool
    addresses: bool


def _orders(words: list[str], lowered: list[str]) -> bool:
    """Tell whether the words of a sentence, without openings, begin like an order."""
    first, following = (*lowered[:2], "")[:2]
    if first in _FORBIDS or (first == "do" and following == "not"):
        return following != "alone"
    # an acronym is a name; "state is" and "use of" mention a thing
    is_mention = words[0].isupper() or following in _AUXILIARY or following in _NO_OBJECT
    if is_mention or first not in _TASK_VERBS:
        return False
    is_other = first in _LISTS["nouns_too"] or first in _LISTS["adjectives_too"]
    return not is_other or following in _LISTS["objects"] or first in _LISTS["takes_preposition"]


def _asks(sentence: str, words: list[str], lowered: list[str]) -> bool:
    """Tell whether a sentence asks, by question mark and word order; `words` lack openings."""
    begins = lowered[:_BEGINNING]
    asking = _LISTS["asking"]
    if _ENDS_ASKING.search(sentence[-_END_CHARACTERS:]):
        # A long statement can end with a quoted question, so check the first words too. Only the
        # mark counts in a sentence without an English word.
        return (
            len(words) <= _SHORT
            or not (asking | _INVERTED).isdisjoint(begins)
            or _CLOSED_CLASS.isdisjoint(begins)
        )
    if len(lowered) < 3 or not words[0][:1].isupper():  # noqa: PLR2004 - asking word, verb, subject
        return False
    if lowered[0] in asking:
        return lowered[1] in _AUXILIARY and lowered[2] in _LISTS["after_inversion"]
    return lowered[0] in _ASKED_OF_READER and lowered[1] in {"you", "we"}


def _form_of(sentence: str) -> _SentenceForm:
    """Tell the form of a sentence by its first words, last mark and pronouns."""
    words = [match[0].replace("’", "'") for match in _TOKEN.finditer(sentence[:_READ_FORM])]
    lowered = [word.lower() for word in words]
    # a sentence that begins with a mark is the rest of another sentence
    is_whole = sentence[:1] not in _BROKEN
    addresses = is_whole and not _ADDRESS.isdisjoint(lowered)
    openings = _LISTS["openings"]
    at, limit = 0, min(len(words) - 1, _OPENINGS)
    while at < limit and (lowered[at] in openings or lowered[at] in {",", ":"}):
        at += 1
    remaining, small = words[at:], lowered[at:]
    if not remaining:
        return _SentenceForm(asks=False, orders=False, addresses=addresses)
    asks = _asks(sentence, remaining, small)
    orders = not asks and is_whole and _orders(remaining, small)
    return _SentenceForm(asks, orders, addresses)


# ---- Sentences off the topic of their document

_LIMIT = 0.955
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
    """Return the shares of the words of each sentence that are foreign, weighed by idf.

    The first is of words that its document has nowhere else, the second of words that no other
    document has. Equal sentences do not make each other's words known.
    """
    from scipy.sparse import csr_array

    analyzer = Analyzer()
    closed = set(analyzer.index([" ".join(sorted(_CLOSED_CLASS))])[0])
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
    """Return how rare the forms [m, 4] of each sentence are in other documents: -ln, summed."""
    # Compare first and later sentences separately, because docstrings begin with an order. A form
    # surprises less in a document with other sentences of this form.
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
    """
    spans = [(row, sentence) for row, text in enumerate(texts) for sentence in _sentences_of(text)]
    if not spans:
        return make_frame(FINDINGS, [])
    document_of = np.array([row for row, _ in spans], dtype=np.int64)
    wordings = [texts[row][sentence.start : sentence.end] for row, sentence in spans]
    forms = np.array(
        [
            (*_form_of(wording), sentence.introduces_code)
            for wording, (_, sentence) in zip(wordings, spans, strict=True)
        ],
        dtype=np.float64,
    )
    uncovered, unknown = _share_foreign_words(texts, wordings, document_of)
    surprise = _rate_surprise(forms, document_of)
    scores = uncovered + _UNKNOWN_WEIGHT * unknown + _SURPRISE_WEIGHT * surprise
    enough = np.bincount(document_of)[document_of] >= _LEAST_SENTENCES
    rows = np.flatnonzero(forms.any(axis=1) & enough & (scores > _LIMIT))
    breaks = (np.diff(rows) > 1) | (np.diff(document_of[rows]) > 0)
    findings = []
    for group in np.split(rows, np.flatnonzero(breaks) + 1) if len(rows) else ():
        best = group[int(np.argmax(scores[group]))]
        verbs = [verb for verb, holds in zip(_VERBS, forms[best], strict=True) if holds]
        does = f"{' and '.join(verbs)}, unlike the rest of its document"
        detail = f"a sentence {does} (score {scores[best]:.2f}, limit {_LIMIT})"
        place = spans[group[0]][1].start, spans[group[-1]][1].end
        rule = "topic_shift", "inside_document", "warning", detail
        findings.append((int(document_of[best]), *place, *rule))
    return make_frame(FINDINGS, findings)


# ---- Paraphrases: passages that say the same

FIRST = 10
"""Number of first chunks of a question among which paraphrases are searched."""
_GROUP = 3
"""Least number of passages in a group."""
_PARAPHRASE, _COPY = 0.25, 0.8
"""Least cosine of paraphrases, and of copies such as one page at two addresses."""
_LEAST_TERMS, _PASSAGE_WORDS = 8, 100
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
    document count once, and so do copies when nothing is configured to trust, because honest pages
    have several addresses. `frequency` [n_terms] counts the chunks (CHUNKS) with each term. Returns
    FINDINGS by chunk row: warnings, or blocks when other sources are trusted.
    """
    words = chunks["tokens"].to_numpy()
    compared = (words >= _LEAST_TERMS) & (words <= _PASSAGE_WORDS)
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
    """Mark the chunks in chains of paraphrases [n_questions, k]; each term weighs its idf once."""
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
_ASKING = load_words("questions")
_QUESTION_WORDS = frozenset((*_ASKING["wh"], *_ASKING["other_languages"]))
_OPENERS = _QUESTION_WORDS | frozenset(_ASKING["auxiliaries"])


def _words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _restates(question: str, text: str) -> bool:
    """Tell whether a text has a question's exact words, or a sentence with nearly all of them."""
    words = _words_of(question)
    is_question = (bool(words) and words[0] in _OPENERS) or question.rstrip().endswith("?")
    if len(words) < _LEAST_QUESTION or not is_question:
        return False
    # A line that holds only the question is a heading, which honest pages have too.
    running = "\n".join(
        line
        for line, read in ((line, _words_of(line)) for line in text.splitlines())
        if read[-len(words) :] != words or len(read) > len(words) + _LABEL_WORDS
    )
    if f" {' '.join(words)} " in f" {' '.join(_words_of(running))} ":
        return True
    asked = set(words)
    asking = asked & _QUESTION_WORDS  # an answer shares all other words
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
