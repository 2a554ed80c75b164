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


def _slug(title: str) -> str:
    return title.lower().replace(" ", "-")


def build_frames(
    texts: dict[str, str], aliases: dict[str, list[str]] | None = None, size: int = 80
) -> CorpusFrames:
    """DOCUMENTS, SECTIONS (one a heading, `doc#slug`) and CHUNKS of `size` characters."""
    documents, sections, chunks = [], [], []
    for doc_id, text in texts.items():
        digest = hashlib.sha256(text.encode()).hexdigest()
        documents.append(
            (
                doc_id,
                doc_id,
                text,
                digest,
                digest,
                f"file:{doc_id}",
                "markdown",
                [doc_id, *(aliases or {}).get(doc_id, [])],
            )
        )
        heads = _headings(text)
        if not heads:
            sections.append((doc_id, doc_id, doc_id, 0, len(text)))
        for (start, title), end in zip(
            heads, [*(start for start, _ in heads[1:]), len(text)], strict=False
        ):
            sections.append((f"{doc_id}#{_slug(title)}", doc_id, title, start, end))
        for start in range(0, len(text), size):
            body = text[start : start + size]
            chunks.append(
                (
                    f"{doc_id}:{start}",
                    doc_id,
                    doc_id,
                    start,
                    start + len(body),
                    len(body.split()),
                    doc_id,
                    body,
                    digest,
                )
            )
    frame = {
        name: pd.DataFrame(rows, columns=list(schema.columns))
        for name, schema, rows in (
            ("d", DOCUMENTS, documents),
            ("s", SECTIONS, sections),
            ("c", CHUNKS, chunks),
        )
    }
    frame["s"] = frame["s"].astype({"start": "int64", "end": "int64"})
    return CorpusFrames(
        DOCUMENTS.check(frame["d"]), SECTIONS.check(frame["s"]), CHUNKS.check(frame["c"])
    )


@pytest.fixture(scope="session")
def corpus_frames():
    return build_frames


def write_rows(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )


@pytest.fixture
def make_gold(tmp_path):
    """Write a gold set of our own layout and give its folder."""

    def make(
        queries: list[dict],
        qrels: str = "",
        answers: list[dict] | None = None,
        paraphrases: list[dict] | None = None,
    ) -> Path:
        folder = tmp_path / "mine"
        write_rows(folder / "queries.jsonl", queries)
        if qrels:
            (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + qrels)
        if answers is not None:
            write_rows(folder / "answers.jsonl", answers)
        if paraphrases is not None:
            write_rows(folder / "paraphrases.jsonl", paraphrases)
        return folder

    return make


@pytest.fixture
def smoke(project_root) -> Path:
    return project_root / "gold_sets" / "smoke"


@pytest.fixture
def smoke_frames(smoke) -> CorpusFrames:
    return build_frames(
        {path.name: path.read_text() for path in sorted((smoke / "corpus").glob("*.md"))}, size=200
    )
