"""Groundedness of 10,000 pairs of a sentence and its evidence, against one bm25s tokenisation of the same text.

Evidence is half an abstract of SciFact, each half once; the sentence is the first of another half. Ours is everything from texts to
scores; the reference is `bm25s.tokenize` with the same stemmer and stop words. The bar is a ratio of 3.
"""

import bm25s
import Stemmer
from timing import alternate, data_folder, json_lines, report, skipped

from rag_eval.corpus import sentences
from rag_eval.corpus.analyzer import STOP_WORDS
from rag_eval.measures.groundedness import groundedness

PAIRS, SHORTEST, REPEATS = 10_000, 100, 7


def halves(text: str) -> list[str]:
    """Both halves of a text, cut at a sentence's end."""
    cut = text.find(". ", len(text) // 2) + 2
    return [half for half in (text[:cut], text[cut:]) if len(half) > SHORTEST]


def main() -> None:
    folder = data_folder()
    if folder is None:
        skipped("groundedness", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    evidence = [
        half
        for document in json_lines(folder / "scifact" / "corpus.jsonl")
        for half in halves(document["text"])
    ][:PAIRS]
    first = [text[slice(*sentences.spans(text)[0])] for text in evidence]
    answers = first[PAIRS // 2 :] + first[: PAIRS // 2]
    shown = [[text] for text in evidence]
    how = {
        "stopwords": sorted(STOP_WORDS),
        "stemmer": Stemmer.Stemmer("porter"),
        "show_progress": False,
    }
    seconds = alternate(
        {
            "ours": lambda: groundedness(answers, shown),
            "reference": lambda: bm25s.tokenize(answers + evidence, **how),
        },
        REPEATS,
    )
    characters = sum(map(len, answers)) + sum(map(len, evidence))
    report(
        "groundedness",
        seconds["ours"],
        seconds["reference"],
        3.0,
        pairs=len(answers),
        characters=characters,
    )


if __name__ == "__main__":
    main()
