"""all-MiniLM-L6-v2 through onnxruntime, from the model file that Chroma uses.

The same vectors as Chroma's own function (mean pooling over the attention mask, unit norm, at most 256 tokens), several times faster: texts
are sorted by length and a batch is padded only to its own longest text.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rag_eval.retrieval.embedding.base import Advance, Vectors, no_advance, unit

MODEL = "all-MiniLM-L6-v2"
DIMENSIONS = 384
MAX_TOKENS = 256
BATCH_TOKENS = 4096
"""Tokens of one batch, padding included: large enough to keep the cores busy, small enough to stay in their caches."""


class MiniLmEmbedder:
    """Embeds texts with the ONNX model in `folder` (`model.onnx`, `tokenizer.json`)."""

    model = MODEL
    dimensions = DIMENSIONS

    def __init__(self, folder: Path) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(max_length=MAX_TOKENS)
        self._tokenizer.no_padding()

    def embed(self, texts: Sequence[str], advance: Advance = no_advance) -> Vectors:
        """Embed texts in batches of like length, returned in the order given."""
        encoded = self._tokenizer.encode_batch_fast(list(texts))
        ids = [np.asarray(item.ids, dtype=np.int64) for item in encoded]
        lengths = np.array([len(row) for row in ids], dtype=np.int64)
        vectors = np.zeros((len(texts), DIMENSIONS), dtype=np.float32)
        place = np.argsort(lengths, kind="stable")
        start = 0
        while start < len(place):
            stop = start + 1
            while stop < len(place) and (stop + 1 - start) * lengths[place[stop]] <= BATCH_TOKENS:
                stop += 1
            batch = place[start:stop]
            vectors[batch] = self._forward([ids[i] for i in batch], int(lengths[batch[-1]]))
            advance(len(batch))
            start = stop
        return vectors

    def _forward(self, ids: list[np.ndarray], width: int) -> Vectors:
        tokens = np.zeros((len(ids), width), dtype=np.int64)
        mask = np.zeros((len(ids), width), dtype=np.int64)
        for row, values in enumerate(ids):
            tokens[row, : len(values)] = values
            mask[row, : len(values)] = 1
        feed = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros_like(tokens)}
        hidden = self._session.run(None, feed)[0]
        weights = mask[:, :, None].astype(np.float32)
        pooled = (hidden * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-9)
        return unit(pooled)
