"""Hyponyms: the narrower terms that the corpus, or a thesaurus, puts under the terms of a question."""

from rag_eval.uncertainty.expansion.context import ExpansionContext, IntArray
from rag_eval.uncertainty.expansion.hierarchy import widened_by
from rag_eval.uncertainty.expansion.subsumption import narrower


def expand(context: ExpansionContext, which: IntArray) -> list[str | None]:
    """Add the terms that the question's own subsume, those nearest to the whole question first."""
    return widened_by(
        context, which, narrower, None if context.thesaurus is None else context.thesaurus.narrower
    )
