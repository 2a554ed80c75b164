"""How a semantic gap is described: bounded sentences in which the question's own words are quoted.

Belongs here: wording. Which gaps there are is `gaps`.
"""

from rag_eval.records.problems import quoted
from rag_eval.records.uncertainty import ExpansionName
from rag_eval.uncertainty.expansion.code_pattern import is_identifier, runs_of
from rag_eval.uncertainty.expansion.context import ExpansionContext

NAMED = 5
"""Words of the question that a description names."""
WORD_CHARS = 40


def named_words(
    name: ExpansionName, question: str, uncovered: list[str], context: ExpansionContext
) -> str:
    """Words of the question that a gap is about, quoted and few; empty for gaps that are about none."""
    if name in {"synonym", "hypernym", "negative_sampling"}:
        its = uncovered
    elif name == "code_pattern":
        n_terms = context.batch.space.n_terms
        runs = runs_of(question)
        its = [
            run
            for run, row in zip(runs, context.words.table.query_terms(runs), strict=True)
            if is_identifier(run) or any(term >= n_terms for term in row)
        ]
    else:
        its = []
    return ", ".join(
        f"“{quoted(word, WORD_CHARS)}”" for word in list(dict.fromkeys(filter(None, its)))[:NAMED]
    )


def sentence(name: ExpansionName, extent: float, k: int, named: str) -> str:
    """Say what a gap is.

    Parameters
    ----------
    name
        The expansion that may mend it.
    extent
        In [0, 1].
    k
        Ranks that count as retrieved.
    named
        Words of the question, quoted; may be empty.
    """
    share = f"{100 * extent:.0f} %"
    words = f": {named}" if named else ""
    return {
        "synonym": f"the first {k} results leave out {share} of what the question asks, by rarity of its words{words}",
        "related_concept": f"no single result holds more than {100 * (1 - extent):.0f} % of what the question asks, by rarity of its words",
        "code_pattern": f"the question has identifiers or words that the corpus does not write that way{words}",
        "reformulation": f"{share} of the first {k} results are not among those of a second retriever",
        "hypernym": f"the question's words are rare and not all of them are found{words}",
        "negative_sampling": f"the first {k} results are much alike and leave out words of the question{words}",
        "hyponym": f"the question's words are general and no result stands out among the first {k}",
    }[name]
