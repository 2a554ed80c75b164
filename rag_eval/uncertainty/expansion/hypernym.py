"""Hypernyms: the wider terms under which the corpus, or a thesaurus, puts the terms of a question."""

from rag_eval.uncertainty.expansion.context import ExpansionContext, IntArray
from rag_eval.uncertainty.expansion.hierarchy import widened_by
from rag_eval.uncertainty.expansion.subsumption import wider


def expand(context: ExpansionContext, which: IntArray) -> list[str | None]:
    """Add the terms that subsume the question's own."""
    return widened_by(
        context, which, wider, None if context.thesaurus is None else context.thesaurus.wider
    )
