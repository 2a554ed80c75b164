"""Small corpora built by hand, in the schemas that the corpus stage hands over."""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest

from rag_eval.core.frames import CHUNKS, DOCUMENTS, SECTIONS


class CorpusFrames(NamedTuple):
    documents: pd.DataFrame
    sections: pd.DataFrame
    chunks: pd.DataFrame


def _headings(text: str) -> list[tuple[int, str]]:
    found, place, fenced = [], 0, False
    for line in text.splitlines(keepends=True):
        fenced ^= line.startswith("```")
        if line.startswith("#") and not fenced:
            found.append((place, line.strip("# \n")))
        place += len(line)
    return found


def build_frames(
    texts: dict[str, str], aliases: dict[str, list[str]] | None = None, size: int = 80
) -> CorpusFrames:
    """Return DOCUMENTS, SECTIONS (one per heading, `doc#slug`) and CHUNKS of `size` characters."""
    documents, sections, chunks = [], [], []
    for doc_id, text in texts.items():
        digest = hashlib.sha256(text.encode()).hexdigest()
        names = [doc_id, *(aliases or {}).get(doc_id, [])]
        source = (digest, digest, f"file:{doc_id}", "markdown", names)
        documents.append((doc_id, doc_id, text, *source))
        heads = _headings(text)
        if not heads:
            sections.append((doc_id, doc_id, doc_id, 0, len(text)))
        ends = [*(start for start, _ in heads[1:]), len(text)]
        for (start, title), end in zip(heads, ends, strict=False):
            slug = title.lower().replace(" ", "-")
            sections.append((f"{doc_id}#{slug}", doc_id, title, start, end))
        for start in range(0, len(text), size):
            body = text[start : start + size]
            place = (f"{doc_id}:{start}", doc_id, doc_id, start, start + len(body))
            chunks.append((*place, len(body.split()), doc_id, body, digest))
    tables = ((DOCUMENTS, documents), (SECTIONS, sections), (CHUNKS, chunks))
    frames = [pd.DataFrame(rows, columns=list(schema.columns)) for schema, rows in tables]
    frames[1] = frames[1].astype({"start": "int64", "end": "int64"})
    return CorpusFrames(
        *(schema.check(frame) for (schema, _), frame in zip(tables, frames, strict=True))
    )


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
    paths = sorted((smoke / "corpus").glob("*.md"))
    return build_frames({path.name: path.read_text() for path in paths}, size=200)
