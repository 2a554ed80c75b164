"""Gold set -> variants: every wording that is sent to the retriever, the question's own first."""

import numpy as np
import pandas as pd

from rag_eval.gold.files import ORIGINAL
from rag_eval.gold.loading import GoldSet
from rag_eval.records.frames import VARIANTS


def variants(gold: GoldSet) -> pd.DataFrame:
    """Wordings (VARIANTS), in the order of the queries; within one the `original` first, then its paraphrases by paraphrase_id.

    The row number is what RUN.variant names, so the order is part of the contract.
    """
    queries = gold.queries
    others = gold.paraphrases[["query_id", "paraphrase_id", "text"]]
    row = pd.Index(queries["query_id"]).get_indexer(pd.Index(others["query_id"]))
    others, row = others[row >= 0], row[row >= 0]
    originals = pd.DataFrame(
        {
            "query_id": queries["query_id"],
            "paraphrase_id": pd.Series(ORIGINAL, index=queries.index, dtype="str"),
            "text": queries["text"],
        }
    )
    both = pd.concat([originals, others], ignore_index=True)
    both["row"] = np.concatenate([np.arange(len(queries)), row])
    both["later"] = np.concatenate(
        [np.zeros(len(queries), dtype=bool), np.ones(len(others), dtype=bool)]
    )
    both = both.sort_values(["row", "later", "paraphrase_id"], kind="stable", ignore_index=True)
    both["group_id"] = queries["group_id"].to_numpy()[both["row"]]
    both["answerable"] = queries["answerable"].to_numpy()[both["row"]]
    return VARIANTS.check(both.drop(columns=["row", "later"]))
