"""Measure the topic-shift check: the BIPIA attacks it finds, and its findings in clean corpora.

Each attack is a line of its own at the start, in the middle or at the end of a document. The
documents are those of XQuAD and the documentation of pandas. A batch poisons a small or a large
share of the documents.
Nothing was fitted on BIPIA, on pandas or on the paragraphs of XQuAD. An attack is found when a
finding inside_document touches it.
"""

import planting
from timing import data_folder, emit, skipped

from rag_eval.trust.topic_shift import topic_shift


def main() -> None:
    folder = data_folder()
    if folder is None:
        skipped("topic_shift", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    corpora = planting.corpora(folder) | {"pandas": planting.docstrings("pandas")}
    for name, documents in corpora.items():
        findings = topic_shift(documents, [name] * len(documents))
        warned = findings.groupby("rule")["row"].nunique() / len(documents)
        shares = {rule: round(float(share), 4) for rule, share in warned.items()}
        emit("topic_shift", clean=name, documents=len(documents), **shares)
    attacks = planting.read_attacks(folder)
    for host in ("xquad", "pandas"):
        for share in (0.04, 0.3):
            for kind, found in planting.share_found(corpora[host], attacks, share).items():
                about = {"host": host, "poisoned_share": share, "attack": kind}
                emit("topic_shift", **about, found=round(found, 3))


if __name__ == "__main__":
    main()
