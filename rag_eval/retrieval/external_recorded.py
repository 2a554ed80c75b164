"""The contexts of recorded outputs as a strategy: their order is the ranking of the question's own wording.

Belongs here: recorded outputs -> rankings by wording. Reading them is `rag_eval.corpus.recorded`.
"""

from pathlib import Path

from rag_eval.corpus.recorded import rankings, read_outputs
from rag_eval.records.problems import quoted
from rag_eval.retrieval.external import Failure, Item, QueryError
from rag_eval.retrieval.external_lists import ORIGINAL, Key, items_of


def read_recorded(path: Path, shown: str) -> dict[Key, list[Item] | Failure]:
    """Rankings of recorded outputs by (query_id, original). An output that is an error and has no context is a failed retrieval.

    Raises
    ------
    InputError
        Those of `rag_eval.corpus.recorded.read_outputs`.
    """
    outputs = read_outputs(path, shown)
    errors = {
        output.query_id: output.error for output in outputs if output.error and not output.contexts
    }
    return {
        (query_id, ORIGINAL): QueryError("recorded_error", quoted(errors[query_id])).failure
        if query_id in errors
        else items_of(rows)
        for query_id, rows in rankings(outputs).items()
    }
