"""Documents of one source that begin with the same words and go on differently.

Belongs here: first sentences. Poisoned passages carry the question that they wait for in front; five passages for one question begin alike.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from rag_eval.corpus import markdown
from rag_eval.trust.question_forms import Asking, Form, asks, place
from rag_eval.trust.token_stream import word_spans

HEAD = 1_000
"""Characters in which a document's first sentence is looked for."""
QUESTION_WORDS, TYPED_WORDS, STATEMENT_WORDS, MOST_WORDS = 5, 7, 8, 40
_CONTINUATION = 8
_END = re.compile(r"[.!?。？؟](?=\s|\Z)|\n|\Z")
_LABEL = re.compile(r"\s{0,9}(?:q|question)\s?\d{0,3}\s?[:.)]", re.IGNORECASE)


class Lead(NamedTuple):
    """The first words of a document: where they stand in its text, how they ask, their form, how many documents share them, and which group these are."""

    row: int
    start: int
    end: int
    asking: Asking
    form: Form
    documents: int
    group: int


class _Opening(NamedTuple):
    row: int
    start: int
    end: int
    asking: Asking
    form: Form
    continuation: str


def shared_leads(texts: Sequence[str], sources: Sequence[str], least: int) -> list[Lead]:
    """Find first sentences that `least` documents of one source or more have in common, with as many different continuations.

    Questions count with five words or more, statements with eight. A question without a mark may run into what follows ("who wrote it
    It was ..."): then its first seven words count. Reads the first `HEAD` characters of every text.
    """
    groups: dict[tuple[str, str], list[_Opening]] = {}
    for row, (text, source) in enumerate(zip(texts, sources, strict=True)):
        for words, opening in _openings(row, text):
            groups.setdefault((source, words), []).append(opening)
    found: dict[int, Lead] = {}
    for group, its in enumerate(groups.values()):
        documents = len({opening.continuation for opening in its})
        if documents >= least:
            for it in its:
                found.setdefault(
                    it.row, Lead(it.row, it.start, it.end, it.asking, it.form, documents, group)
                )
    return [found[row] for row in sorted(found)]


def _openings(row: int, text: str) -> list[tuple[str, _Opening]]:
    """First sentence of a text and, of a question without a mark, its first words; each with what follows."""
    begin = markdown.front_matter(text)[1] if text.startswith(("---", "+++")) else 0
    label = _LABEL.match(text, begin)
    begin = label.end() if label else begin
    head = text[begin : begin + HEAD]
    spans = word_spans(head)
    if not spans:
        return []
    stop = next(match.start() for match in _END.finditer(head, spans[0][1]))
    sentence = [(low, high) for low, high in spans if high <= stop]
    words = [head[low:high].lower() for low, high in spans]
    asking = asks(words[: len(sentence)], head[: stop + 1])
    sizes = []
    if (QUESTION_WORDS if asking else STATEMENT_WORDS) <= len(sentence) <= MOST_WORDS:
        sizes.append(len(sentence))
    if (
        asking == "wording"
        and len(sentence) > TYPED_WORDS
        and head[stop : stop + 1] not in {"?", "？", "؟"}
    ):
        sizes.append(TYPED_WORDS)
    found = []
    for size in sizes:
        start, end = begin + spans[0][0], begin + spans[size - 1][1]
        after = " ".join(words[size : size + _CONTINUATION])
        found.append(
            (
                " ".join(words[:size]),
                _Opening(row, start, end, asking, place(text, start, end).form, after),
            )
        )
    return found
