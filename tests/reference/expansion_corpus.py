"""A small corpus in which the right expansion of a question is known."""

from collections.abc import Sequence
from itertools import product
from typing import Any

from corpora import table

from rag_eval.retrieval.lexical import Bm25s
from rag_eval.uncertainty.expansion import CorpusWords, ExpansionContext
from rag_eval.uncertainty.signals import RankedBatch, TermSpace

STONES = "granite basalt marble slate chalk gneiss schist tuff pumice flint".split()
PLACES = "quarry cliff ridge ledge gorge dune".split()
FILLER = [
    f"{stone} {place} lies {where} number{i}"
    for i, (where, stone, place) in enumerate(product(("north", "south"), STONES, PLACES))
]
ANIMALS = [
    f"the {breed} is a dog of {colour} fur"
    for breed, colours in (
        ("spaniel", "brown white golden black"),
        ("poodle", "grey silver apricot red"),
    )
    for colour in colours.split()
]


def make_context(
    texts: Sequence[str], questions: Sequence[str], depth: int = 20, **more: Any
) -> ExpansionContext:
    """Return the context of questions with their BM25 lists over the texts."""
    chunks = table(texts)
    words = CorpusWords(chunks, TermSpace(chunks.terms, chunks.n_terms))
    asked = chunks.query_terms(list(questions))
    first = Bm25s(chunks.terms, chunks.n_terms, k1=0.9, b=0.4).search(asked, depth)
    batch = RankedBatch(
        first.rows, first.raw, first.norm, cosine=False, space=words.space, query_terms=asked
    )
    return ExpansionContext(batch, list(questions), words, **more)
