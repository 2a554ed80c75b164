"""Small corpora built by hand, in the schemas that the corpus stage hands over."""

import json
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest

from rag_eval.core.frames import DOCUMENTS, SECTIONS, make_frame
from rag_eval.core.loader import Chunker
from rag_eval.corpus.chunking import _markdown_sections, chunk_documents
from rag_eval.corpus.loading import load_corpus
from rag_eval.gold.configuration import load_config
from rag_eval.storage.hashing import text_hash


class CorpusFrames(NamedTuple):
    documents: pd.DataFrame
    sections: pd.DataFrame
    chunks: pd.DataFrame


def build_frames(texts: dict[str, str], aliases: dict[str, list[str]] | None = None):
    """Return DOCUMENTS, SECTIONS (one for each heading) and CHUNKS of Markdown texts."""
    documents, sections = [], []
    for doc_id, text in texts.items():
        names = [doc_id, *(aliases or {}).get(doc_id, [])]
        hashed = text_hash(text)
        row = (doc_id, doc_id, text, hashed, hashed, f"file:{doc_id}", "markdown", names, "")
        documents.append(row)
        for name, title, start, end in _markdown_sections(doc_id, doc_id, text):
            sections.append((name, doc_id, title, start, end))
    frames = (make_frame(DOCUMENTS, documents), make_frame(SECTIONS, sections))
    return CorpusFrames(*frames, chunk_documents(*frames, Chunker(kind="text", max_tokens=12)))


@pytest.fixture(scope="session")
def corpus_frames():
    return build_frames


def write_rows(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")


@pytest.fixture
def make_gold(tmp_path):
    """Return a function that writes a gold set in our own layout and returns its folder."""

    def make(queries, qrels="", answers=None, paraphrases=None):
        folder = tmp_path / "mine"
        files = {"queries": queries, "answers": answers, "paraphrases": paraphrases}
        for name, rows in files.items():
            if rows is not None:
                write_rows(folder / f"{name}.jsonl", rows)
        if qrels:
            (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + qrels)
        return folder

    return make


@pytest.fixture
def smoke(project_root) -> Path:
    return project_root / "gold_sets" / "smoke"


@pytest.fixture
def smoke_frames(smoke) -> CorpusFrames:
    spec = load_config(smoke).corpus
    loaded = load_corpus(spec, smoke)
    chunks = chunk_documents(loaded.documents, loaded.sections, spec.chunker)
    return CorpusFrames(loaded.documents, loaded.sections, chunks)
