"""Embedding 600 SciFact and XQuAD texts against Chroma's own function for the same model file.

The texts are drawn evenly from all that an evaluation of the two sets embeds: documents, queries and paraphrases. Chroma pads every text to
256 tokens, so the gain depends on their lengths: `tokens` and `padded_tokens` stand beside it. Prints one JSON line; `ratio` is ours /
reference, and the bar says that ours is at least 3.5 times faster with vectors that differ by at most 1e-5.
"""

import random
from pathlib import Path

import numpy as np
from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2
from timing import alternate, data_folder, indexed_text, json_lines, report, skipped

from rag_eval.retrieval.embedding.minilm import MAX_TOKENS, MiniLmEmbedder

SAMPLE, REPEATS = 600, 3


def main() -> None:
    folder = data_folder()
    model = Path(ONNXMiniLM_L6_V2.DOWNLOAD_PATH) / ONNXMiniLM_L6_V2.EXTRACTED_FOLDER_NAME
    if folder is None or not (model / "model.onnx").is_file():
        skipped(
            "minilm",
            "the public data is not there; set RAG_EVAL_TEST_DATA"
            if folder is None
            else "the model file is not on this machine",
        )
        return
    texts = [
        indexed_text(document)
        for name in ("scifact", "xquad")
        for document in json_lines(folder / name / "corpus.jsonl")
    ]
    texts += [
        query["text"]
        for name in ("scifact/queries", "xquad/queries", "xquad/paraphrases")
        for query in json_lines(folder / f"{name}.jsonl")
    ]
    texts = random.Random(13).sample(texts, SAMPLE)
    ours, theirs = MiniLmEmbedder(model), ONNXMiniLM_L6_V2()
    vectors = {}

    def keep(name: str, found: object) -> None:
        vectors[name] = np.asarray(found)

    seconds = alternate(
        {
            "ours": lambda: keep("ours", ours.embed(texts)),
            "reference": lambda: keep("reference", theirs(texts)),
        },
        REPEATS,
    )
    report(
        "minilm",
        seconds["ours"],
        seconds["reference"],
        round(1 / 3.5, 3),
        texts=len(texts),
        tokens=sum(len(row.ids) for row in ours._tokenizer.encode_batch_fast(texts)),  # noqa: SLF001 - the tokens that are embedded
        padded_tokens=MAX_TOKENS * len(texts),
        times_faster=round(seconds["reference"] / seconds["ours"], 2),
        times_faster_bar=3.5,
        max_abs_difference=float(np.abs(vectors["ours"] - vectors["reference"]).max()),
        max_abs_difference_bar=1e-5,
    )


if __name__ == "__main__":
    main()
