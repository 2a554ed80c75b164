"""A small corpus of numbered lines, a plain ranking and a scripted chat for the answer tests."""

import functools
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from corpora import documents_frame

from rag_eval.answers.evidence import Library, Question, apply_override
from rag_eval.core.config import AnswerOverride, Answers
from rag_eval.core.frames import CHUNKS, SECTIONS
from rag_eval.core.strategy import Identity
from rag_eval.core.types import (
    Evidence,
    Message,
    Offsets,
    Reply,
    RetrievalMetadata,
    RetrievalResult,
    ScoredChunk,
)
from rag_eval.corpus.analyzer import ANALYZER, count_tokens
from rag_eval.storage.hashing import digest, text_hash

DOCS = {
    "docs/capitals.md": (
        "# Capitals\nParis is the capital of France.\nBerlin is the capital of Germany.\n \n"
        "Rome is the capital of Italy.\nIt lies on the Tiber.\n"
    ),
    "docs/setup.md": (
        "# Setup\nInstall it with pip.\nSettings live in config/app.yaml.\nRun ./run.sh to start.\n"
    ),
    "api/frame.py": "def sort_values(by):\n    '''Sort by a column.'''\n    return by\n",
}
SECTION_LINES = {
    "docs/capitals.md": [("west", 1, 4), ("south", 5, 6)],
    "docs/setup.md": [("setup", 1, 4)],
    "api/frame.py": [("frame", 1, 3)],
}


def _place(text: str, first: int, last: int) -> tuple[int, int]:
    lines = text.split("\n")
    start = sum(len(line) + 1 for line in lines[: first - 1])
    return start, start + len("\n".join(lines[first - 1 : last]))


def library(
    docs: dict[str, str] | None = None,
    sections: dict[str, list[tuple[str, int, int]]] | None = None,
) -> Library:
    """Return a library with one chunk for each section."""
    docs = DOCS if docs is None else docs
    rows = [
        (f"{doc}#{name}", doc, name, *_place(docs[doc], first, last))
        for doc, parts in (SECTION_LINES if sections is None else sections).items()
        for name, first, last in parts
    ]
    texts = [docs[doc][start:end] for _, doc, _, start, end in rows]
    spans = pd.DataFrame(rows, columns=["section_id", "doc_id", "title", "start", "end"])
    spans = spans.astype({"start": np.int64, "end": np.int64})
    chunks = spans.assign(
        chunk_id=[digest(list(row)) for row in rows],
        tokens=np.array(list(map(count_tokens, texts)), dtype=np.int64),
        text=texts,
        text_hash=list(map(text_hash, texts)),
    )
    ordered = CHUNKS.check(chunks.sort_values(["section_id", "chunk_id"], ignore_index=True))
    documents = documents_frame(docs)
    return Library(documents, SECTIONS.check(spans), ordered, Identity("bm25s:0", ""))


@functools.cache
def small_library() -> Library:
    """Return the library of DOCS, which is made once and never changed."""
    return library()


def scored(doc_id: str, section: str, text: str, start: int = 0, rank: int = 1) -> ScoredChunk:
    """Return a chunk as a ranking gives it."""
    return ScoredChunk(
        doc_id,
        f"{doc_id}#{section}",
        digest([doc_id, start, text]),
        f"https://example.org/{doc_id}",
        Offsets(start, start + len(text)),
        count_tokens(text),
        "bm25s:0",
        "",
        ANALYZER,
        f"rev-{doc_id}",
        text,
        1.0,
        1.0,
        rank,
        rank,
    )


class Ranking:
    """Ranks chunks by the words that they share with the query, and remembers its queries.

    Chunks that share no word are left out.
    """

    def __init__(self, corpus: Library) -> None:
        self.corpus = corpus
        self.calls: list[tuple[str, int]] = []

    def __call__(self, query: str, top_k: int) -> RetrievalResult:
        self.calls.append((query, top_k))
        words = set(query.lower().strip("?").split())
        shared = [
            len(words & set(text.lower().replace(".", " ").replace("\n", " ").split()))
            for text in self.corpus.texts
        ]
        rows = sorted(
            (row for row, count in enumerate(shared) if count), key=lambda row: (-shared[row], row)
        )[:top_k]
        chunks = tuple(
            self.corpus.payload(row, rank, float(shared[row]), 1.0 / rank)
            for rank, row in enumerate(rows, 1)
        )
        return RetrievalResult(chunks, RetrievalMetadata("words", 0.0, len(chunks)))


def evidence(*tokens: str) -> tuple[Evidence, ...]:
    """Return evidence of the small corpus by section (`docs/capitals.md#west`), or all of it."""
    corpus = small_library()
    rows = {str(section): row for row, section in enumerate(corpus.chunks["section_id"].tolist())}
    found = [
        corpus.evidence(corpus.payload(rows[token], rank, 1.0, 1.0), "retrieve")
        for rank, token in enumerate(tokens or list(rows), 1)
    ]
    return tuple(item for item in found if item is not None)


def question(query_id: str, text: str, override: dict | None = None, **options) -> Question:
    """Return a question of a gold set with these options of `answers`."""
    config = Answers.model_validate({"mode": "llm", "endpoint": "local", **options})
    own = None if override is None else AnswerOverride.model_validate(override)
    return Question(query_id, text, apply_override(config, own))


class ScriptedChat:
    """Plays a list of replies for each question and repeats the last reply.

    A reply is a text, a Reply, an exception, or a function of the messages.
    """

    def __init__(
        self,
        scripts: dict[str, Sequence[str | Reply | Exception | Callable[[Sequence[Message]], str]]],
    ) -> None:
        self.scripts = {key: list(value) for key, value in scripts.items()}
        self.asked: list[tuple[str, tuple[Message, ...]]] = []
        self._lock = threading.Lock()

    def ask(self, messages: Sequence[Message]) -> Reply:
        question = messages[1].content.rsplit("Question: ", 1)[1]
        with self._lock:
            self.asked.append((question, tuple(messages)))
            script = self.scripts[question]
            reply = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(reply, Exception):
            raise reply
        if callable(reply):
            reply = reply(messages)
        return reply if isinstance(reply, Reply) else Reply(reply, tokens_in=10, tokens_out=5)
