"""Asking the language model first, the corpus where it has no answer."""

from rag_eval.uncertainty.expansion.context import (
    Expand,
    ExpansionContext,
    IntArray,
    SuggestionKind,
)

SNIPPETS = 5
"""Retrieved texts that a language model is shown of each question."""


def suggested(
    kind: SuggestionKind, context: ExpansionContext, which: IntArray, otherwise: Expand
) -> list[str | None]:
    """Texts of the suggester, and for the questions without one those of `otherwise`; of `otherwise` alone where there is no suggester."""
    if context.suggester is None:
        return otherwise(context, which)
    texts = context.words.table.texts
    snippets = [
        [texts[row] for row in rows if row >= 0]
        for rows in context.batch.rows[which, :SNIPPETS].tolist()
    ]
    found = context.suggester.suggest(kind, context.asked(which), snippets)
    if len(found) != len(which):
        raise ValueError(f"the suggester gave {len(found)} texts for {len(which)} questions")
    left = [place for place, text in enumerate(found) if text is None]
    for place, text in zip(left, otherwise(context, which[left]), strict=True):
        found[place] = text
    return found
