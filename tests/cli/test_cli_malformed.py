"""Inputs that are broken, hostile or extreme, through the command line: a clear error or a documented result, never a traceback.

An error ends with exit status 1, names its place on standard error, and leaves neither a report nor a half-written artifact. What is merely
unusual (a corpus of one document, a question of stop words) is evaluated.
"""

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from cli_project import (
    ANSWERS,
    BEIR_CORPUS,
    BEIR_QUERIES,
    CONFIG,
    DOCUMENTS,
    PARAPHRASES,
    QRELS,
    QUERIES,
    Project,
    jsonl,
)

from rag_eval.storage.hashing import text_hash

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # raised inside MLflow's own SQLAlchemy models

FINE, ERROR = 0, 1


class Case(NamedTuple):
    name: str
    spoil: Callable[[Project], list[str] | None]
    says: tuple[str, ...]
    status: int = ERROR


def put(path: str, data: bytes | str) -> Callable[[Project], None]:
    """Write a file of the gold set (or, below `collection/`, of the BEIR folder)."""

    def spoil(project: Project) -> None:
        target = project.root / path if path.startswith("collection/") else project.gold / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data if isinstance(data, bytes) else data.encode())

    return spoil


def query(**changes: object) -> str:
    """Questions file whose first question is changed."""
    return jsonl([{**QUERIES[0], **changes}, *QUERIES[1:]])


def config(old: str, new: str) -> Callable[[Project], None]:
    assert old in CONFIG
    return put("gold_set.yaml", CONFIG.replace(old, new))


def replaced_by_folder(name: str) -> Callable[[Project], None]:
    def spoil(project: Project) -> None:
        (project.gold / name).unlink()
        (project.gold / name).mkdir()

    return spoil


def removed(name: str) -> Callable[[Project], None]:
    return lambda project: (project.gold / name).unlink()


def linked(name: str, target: str) -> Callable[[Project], None]:
    def spoil(project: Project) -> None:
        (project.gold / name).unlink(missing_ok=True)
        (project.gold / name).symlink_to(target)

    return spoil


def only(documents: dict[str, str | bytes], *, gold: bool = True) -> Callable[[Project], None]:
    """Corpus of exactly these documents; with `gold=False` every question is unanswerable, so that nothing dangles."""

    def spoil(project: Project) -> None:
        for path in project.corpus.iterdir():
            path.unlink()
        for name, text in documents.items():
            (project.corpus / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        if not gold:
            unanswerable(project)

    return spoil


def unanswerable(project: Project) -> None:
    (project.gold / "queries.jsonl").write_text(
        jsonl([{**row, "answerable": False} for row in QUERIES])
    )
    for name in ("answers.jsonl", "qrels.tsv"):
        (project.gold / name).unlink()


def fifo(project: Project) -> None:
    (project.gold / "queries.jsonl").unlink()
    os.mkfifo(project.gold / "queries.jsonl")


GOLD = [
    Case(
        "queries: NUL byte",
        put("queries.jsonl", jsonl(QUERIES).replace("disk", "di\0sk")),
        ("queries.jsonl:1", "nul_byte"),
    ),
    Case(
        "queries: NUL as JSON escape",
        put("queries.jsonl", query(text="a\0b")),
        ("queries.jsonl:1", "[text]"),
    ),
    Case(
        "queries: byte-order mark",
        put("queries.jsonl", b"\xef\xbb\xbf" + jsonl(QUERIES).encode()),
        (),
        FINE,
    ),
    Case("queries: CRLF", put("queries.jsonl", jsonl(QUERIES).replace("\n", "\r\n")), (), FINE),
    Case(
        "queries: UTF-16",
        put("queries.jsonl", jsonl(QUERIES).encode("utf-16")),
        ("queries.jsonl:1", "UTF-16"),
    ),
    Case(
        "queries: Latin-1",
        put("queries.jsonl", jsonl(QUERIES).replace("disk", "disqué").encode("latin-1")),
        ("queries.jsonl:1", "bad_encoding"),
    ),
    Case(
        "queries: line above 10 MB",
        put("queries.jsonl", query(text="x" * 10_000_001)),
        ("queries.jsonl:1", "line_too_long"),
    ),
    Case(
        "queries: text of 30,000 characters",
        put("queries.jsonl", query(text="word " * 6_000)),
        ("queries.jsonl:1", "text_too_long"),
    ),
    Case("queries: one huge word", put("queries.jsonl", query(text="x" * 19_999)), (), FINE),
    Case("queries: only stop words", put("queries.jsonl", query(text="the of and to a")), (), FINE),
    Case("queries: only punctuation", put("queries.jsonl", query(text="?!")), (), FINE),
    Case(
        "queries: id twice",
        put("queries.jsonl", query(query_id="again")),
        ("queries.jsonl:2", "duplicate_id", "again"),
    ),
    Case(
        "queries: id walks out of the folder",
        put("queries.jsonl", query(query_id="../../etc/passwd")),
        ("queries.jsonl:1", "bad_id", "[query_id]"),
    ),
    Case(
        "queries: id with a bidi control",
        put("queries.jsonl", query(query_id="ab\u202ecd")),
        ("queries.jsonl:1", "bad_id", "\\u202e"),
    ),
    Case(
        "queries: text with bidi controls",
        put("queries.jsonl", query(text="How long \u202edo results\u202c stay?")),
        (),
        FINE,
    ),
    Case(
        "queries: lone surrogate",
        put("queries.jsonl", query(text="results \ud800 disk")),
        ("queries.jsonl:1", "bad_text", "U+D800"),
    ),
    Case(
        "queries: lone surrogate in the id",
        put("queries.jsonl", query(query_id="\udfff")),
        ("queries.jsonl:1", "bad_id"),
    ),
    Case(
        "queries: id is a number",
        put("queries.jsonl", query(query_id=7)),
        ("queries.jsonl:1", "wrong_type", "[query_id]"),
    ),
    Case(
        "queries: flag is a text",
        put("queries.jsonl", query(answerable="yes")),
        ("queries.jsonl:1", "wrong_type", "[answerable]"),
    ),
    Case(
        "queries: no flag",
        put("queries.jsonl", jsonl([{"query_id": "keep", "text": "How long?"}, *QUERIES[1:]])),
        ("queries.jsonl:1", "missing_answerable"),
    ),
    Case(
        "queries: NaN", put("queries.jsonl", query(weight=float("nan"))), ("queries.jsonl:1", "NaN")
    ),
    Case(
        "queries: number of 5,000 digits",
        put("queries.jsonl", '{"query_id": ' + "9" * 5_000 + "}\n" + jsonl(QUERIES[1:])),
        ("queries.jsonl:1", "bad_number"),
    ),
    Case(
        "queries: nested 100,000 deep",
        put("queries.jsonl", "[" * 100_000 + "\n" + jsonl(QUERIES)),
        ("queries.jsonl:1",),
    ),
    Case(
        "queries: a list",
        put("queries.jsonl", "[1, 2]\n" + jsonl(QUERIES)),
        ("queries.jsonl:1", "not_an_object"),
    ),
    Case(
        "queries: key twice",
        put("queries.jsonl", '{"query_id": "a", "query_id": "b", "text": "?"}\n' + jsonl(QUERIES)),
        ("queries.jsonl:1", "duplicate_key"),
    ),
    Case(
        "queries: cut in the middle",
        put("queries.jsonl", jsonl(QUERIES)[:-20]),
        ("queries.jsonl:4", "bad_json"),
    ),
    Case("queries: empty file", put("queries.jsonl", ""), ("queries.jsonl:1", "empty_file")),
    Case(
        "queries: empty text",
        put("queries.jsonl", query(text=" ")),
        ("queries.jsonl:1", "empty_text"),
    ),
    Case("queries: missing", removed("queries.jsonl"), ("queries.jsonl", "missing_file")),
    Case("queries: a folder", replaced_by_folder("queries.jsonl"), ("queries.jsonl", "not_a_file")),
    Case("queries: a named pipe", fifo, ("queries.jsonl", "not_a_file")),
    Case("queries: a link to itself", linked("queries.jsonl", "queries.jsonl"), ("queries.jsonl",)),
    Case(
        "queries: a link to nothing",
        linked("queries.jsonl", "gone.jsonl"),
        ("queries.jsonl", "missing_file"),
    ),
    Case(
        "queries: draft",
        put("queries.jsonl", query(tags=["draft"])),
        ("queries.jsonl:1", "draft_question"),
    ),
    Case(
        "paraphrases: unknown question",
        put("paraphrases.jsonl", jsonl([{**PARAPHRASES[0], "query_id": "nobody"}])),
        ("paraphrases.jsonl:1", "unknown_query"),
    ),
    Case(
        "paraphrases: id twice",
        put("paraphrases.jsonl", jsonl([PARAPHRASES[0], PARAPHRASES[0]])),
        ("paraphrases.jsonl:2", "duplicate_id"),
    ),
    Case(
        "paraphrases: reserved id",
        put("paraphrases.jsonl", jsonl([{**PARAPHRASES[0], "paraphrase_id": "original"}])),
        ("paraphrases.jsonl:1", "reserved_id"),
    ),
    Case(
        "paraphrases: no text",
        put("paraphrases.jsonl", jsonl([{"query_id": "keep", "paraphrase_id": "p"}])),
        ("paraphrases.jsonl:1", "[text]"),
    ),
    Case("paraphrases: empty file", put("paraphrases.jsonl", ""), (), FINE),
    Case("paraphrases: none at all", removed("paraphrases.jsonl"), (), FINE),
    Case(
        "qrels: byte-order mark and CRLF",
        put("qrels.tsv", b"\xef\xbb\xbf" + QRELS.replace("\n", "\r\n").encode()),
        (),
        FINE,
    ),
    Case(
        "qrels: no header",
        put("qrels.tsv", QRELS.partition("\n")[2]),
        ("qrels.tsv:1", "missing_header"),
    ),
    Case(
        "qrels: spaces for tabs",
        put("qrels.tsv", QRELS.replace("\t", " ")),
        ("qrels.tsv:1", "bad_columns"),
    ),
    Case(
        "qrels: grade NaN",
        put("qrels.tsv", QRELS.replace("\t1\n", "\tnan\n", 1)),
        ("qrels.tsv:2", "bad_grade", "[score]"),
    ),
    Case(
        "qrels: grade 1e9",
        put("qrels.tsv", QRELS.replace("\t1\n", "\t1000000000\n", 1)),
        ("qrels.tsv:2", "bad_grade"),
    ),
    Case(
        "qrels: negative grade",
        put("qrels.tsv", QRELS.replace("\t1\n", "\t-1\n", 1)),
        ("qrels.tsv:2", "bad_grade"),
    ),
    Case(
        "qrels: pair twice",
        put("qrels.tsv", QRELS + "keep\tstorage.md\t1\n"),
        ("qrels.tsv:5", "duplicate_judgement"),
    ),
    Case(
        "qrels: document that does not exist",
        put("qrels.tsv", QRELS.replace("storage.md", "storge.md")),
        ("qrels.tsv:2", "dangling_target", "storage.md"),
    ),
    Case(
        "qrels: target walks out",
        put("qrels.tsv", QRELS.replace("storage.md", "../../etc/passwd")),
        ("qrels.tsv:2", "bad_id"),
    ),
    Case(
        "qrels: unknown question",
        put("qrels.tsv", QRELS + "nobody\tstorage.md\t1\n"),
        ("qrels.tsv:5", "unknown_query"),
    ),
    Case(
        "qrels: judges nothing relevant",
        put("qrels.tsv", QRELS.replace("\t1\n", "\t0\n")),
        ("queries.jsonl:1", "answerable_without_target"),
    ),
    Case(
        "qrels: thousand faults",
        put("qrels.tsv", QRELS + "".join(f"keep\tgone-{i}.md\t1\n" for i in range(1_000))),
        ("qrels.tsv:5", "more errors are not listed"),
    ),
    Case(
        "answers: quote is not there",
        put("answers.jsonl", jsonl([{**ANSWERS[0], "anchors": [{"quote": "Never tried again."}]}])),
        ("answers.jsonl:1", "anchor_not_found"),
    ),
    Case(
        "answers: quote stands twice",
        put("answers.jsonl", jsonl([{**ANSWERS[0], "anchors": [{"quote": "tri"}]}])),
        ("answers.jsonl:1", "anchor_ambiguous"),
    ),
    Case(
        "answers: empty quote",
        put("answers.jsonl", jsonl([{**ANSWERS[0], "anchors": [{"quote": ""}]}])),
        ("answers.jsonl:1", "empty_anchor"),
    ),
    Case(
        "answers: offsets beyond the document",
        put(
            "answers.jsonl",
            jsonl(
                [
                    {
                        "query_id": "again",
                        "doc_id": "retries.md",
                        "spans": [{"start": 0, "end": 10**6, "unit": "char"}],
                    }
                ]
            ),
        ),
        ("answers.jsonl:1", "bad_offsets"),
    ),
    Case(
        "answers: offsets beyond int64",
        put(
            "answers.jsonl",
            jsonl(
                [
                    {
                        "query_id": "again",
                        "doc_id": "retries.md",
                        "spans": [{"start": 0, "end": 10**30, "unit": "char"}],
                    }
                ]
            ),
        ),
        ("answers.jsonl:1", "bad_offsets"),
    ),
    Case(
        "answers: offsets in tokens",
        put(
            "answers.jsonl",
            jsonl(
                [
                    {
                        "query_id": "again",
                        "doc_id": "retries.md",
                        "spans": [{"start": 0, "end": 3, "unit": "token"}],
                    }
                ]
            ),
        ),
        ("answers.jsonl:1", "bad_unit"),
    ),
    Case(
        "answers: decoy is a target",
        put("answers.jsonl", jsonl([{**ANSWERS[0], "decoy": {"doc_id": "retries.md"}}])),
        ("answers.jsonl:1", "decoy_is_target"),
    ),
    Case(
        "answers: unanswerable question",
        put("answers.jsonl", jsonl([{**ANSWERS[0], "query_id": "price"}])),
        ("queries.jsonl:4", "unanswerable_with_target"),
    ),
    Case("all questions unanswerable", unanswerable, (), FINE),
]

CONFIGURATION = [
    Case("yaml: missing", removed("gold_set.yaml"), ("no such gold set", "tiny")),
    Case("yaml: a folder", replaced_by_folder("gold_set.yaml"), ("gold_set.yaml", "not_a_file")),
    Case("yaml: empty", put("gold_set.yaml", ""), ("gold_set.yaml:1", "empty_file")),
    Case("yaml: a list", put("gold_set.yaml", "- 1\n"), ("gold_set.yaml:1", "not_a_mapping")),
    Case(
        "yaml: bomb of aliases",
        put(
            "gold_set.yaml",
            "a: &a [x]\n"
            + "".join(
                f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n"
                for i in range(9)
            ),
        ),
        ("gold_set.yaml:1", "alias_refused"),
    ),
    Case(
        "yaml: nested too deeply",
        put("gold_set.yaml", "name: " + "[" * 5_000),
        ("gold_set.yaml:1", "too_deep"),
    ),
    Case(
        "yaml: runs code",
        put(
            "gold_set.yaml",
            CONFIG.replace("version: 1", "version: !!python/object/apply:os.system [ls]"),
        ),
        ("gold_set.yaml:2", "bad_tag"),
    ),
    Case(
        "yaml: NUL byte",
        put("gold_set.yaml", CONFIG.encode() + b"\0"),
        ("gold_set.yaml:13", "nul_byte"),
    ),
    Case(
        "yaml: byte-order mark", put("gold_set.yaml", b"\xef\xbb\xbf" + CONFIG.encode()), (), FINE
    ),
    Case(
        "yaml: two megabytes",
        put("gold_set.yaml", CONFIG + "#" * 2_000_000),
        ("gold_set.yaml:1", "file_too_large"),
    ),
    Case(
        "yaml: tab", config("  - {name: bm25", "\t- {name: bm25"), ("gold_set.yaml:8", "bad_yaml")
    ),
    Case(
        "yaml: key twice",
        put("gold_set.yaml", CONFIG + "depth: 5\n"),
        ("gold_set.yaml:13", "duplicate_key"),
    ),
    Case(
        "yaml: unknown key",
        put("gold_set.yaml", CONFIG + "strategy: bm25\n"),
        ("gold_set.yaml:13", "unknown_key", "strategies"),
    ),
    Case(
        "yaml: unknown strategy kind",
        config("kind: bm25", "kind: bm52"),
        ("gold_set.yaml:8", "[strategies[0].kind]", "did you mean bm25"),
    ),
    Case(
        "yaml: strategy name runs in a terminal",
        config("name: bm25", 'name: "\\e[2Jbm25"'),
        ("gold_set.yaml:8",),
    ),
    Case(
        "yaml: strategies empty",
        config(CONFIG[CONFIG.index("strategies:") : CONFIG.index("gates:")], "strategies: []\n"),
        ("gold_set.yaml:7", "[strategies]"),
    ),
    Case(
        "yaml: unknown loader",
        config("loader: folder", "loader: web"),
        ("gold_set.yaml:3", "[corpus.loader]"),
    ),
    Case("yaml: unknown model", config("lsa-8", "gpt-9"), ("gold_set.yaml:9", "lsa-<dimensions>")),
    Case(
        "yaml: unknown Chroma function",
        config("model: lsa-8", 'model: "chroma:nothing"'),
        ("unknown_embedding_function", "nothing"),
    ),
    Case(
        "yaml: unknown reranker",
        config("kind: bm25}", "kind: bm25, rerank: {kind: magic}}"),
        ("unknown_reranker", "magic"),
    ),
    Case(
        "yaml: k larger than the depth",
        config("k: [1, 5]", "k: [1, 50]"),
        ("gold_set.yaml", "depth must be at least the largest k"),
    ),
    Case("yaml: k is zero", config("k: [1, 5]", "k: [0, 5]"), ("gold_set.yaml:4", "[k[0]]")),
    Case("yaml: k is NaN", config("k: [1, 5]", "k: [.nan]"), ("gold_set.yaml:4", "bad_number")),
    Case(
        "yaml: k and depth larger than the corpus",
        config("k: [1, 5]\ndepth: 20", "k: [1, 1000]\ndepth: 10000"),
        (),
        FINE,
    ),
    Case(
        "yaml: negative seed",
        config("seeds: [13]", "seeds: [-1]"),
        ("gold_set.yaml:6", "[seeds[0]]"),
    ),
    Case(
        "yaml: another name",
        config("name: tiny", "name: other"),
        ("gold_set.yaml:1", "name_mismatch"),
    ),
    Case(
        "yaml: floor that is NaN",
        put("gold_set.yaml", CONFIG + 'acceptance: {recall_at_10: ">= nan"}\n'),
        ("gold_set.yaml:13", "[acceptance.recall_at_10]"),
    ),
    Case(
        "yaml: floor on an unknown measure",
        put("gold_set.yaml", CONFIG + 'acceptance: {recal_at_10: ">= 0.5"}\n'),
        ("gold_set.yaml:13", "did you mean recall_at_10"),
    ),
    Case(
        "yaml: floor at a k that is not swept",
        put("gold_set.yaml", CONFIG + 'acceptance: {recall_at_7: ">= 0.5"}\n'),
        ("acceptance.recall_at_7",),
    ),
    Case(
        "yaml: floors that no gate judges",
        put(
            "gold_set.yaml",
            CONFIG.replace("advisory: [acceptance]", "advisory: []")
            + 'acceptance: {mrr: ">= 0.5"}\n',
        ),
        ("nothing would judge them",),
    ),
    Case(
        "yaml: required gate without a floor",
        put("gold_set.yaml", CONFIG.replace("required: []", "required: [acceptance]")),
        ("there is no floor",),
    ),
    Case(
        "yaml: corpus is missing",
        config("path: corpus,", "path: elsewhere,"),
        ("missing_input", "elsewhere"),
    ),
    Case(
        "yaml: corpus path with NUL",
        config("path: corpus,", 'path: "cor\\0pus",'),
        ("gold_set.yaml:3",),
    ),
    Case(
        "yaml: pattern leaves the folder",
        config("path: corpus,", 'path: corpus, pattern: ["../*.jsonl"],'),
        ("bad_pattern",),
    ),
    Case(
        "yaml: package that is not installed",
        config(
            "{loader: folder, path: corpus, chunker: {kind: markdown, max_tokens: 64}}",
            "{loader: package_docs, package: no_such_package_here}",
        ),
        ("no_such_package_here",),
    ),
]

CORPUS = [
    Case("corpus: empty folder", only({}), ("empty_corpus",)),
    Case(
        "corpus: a file in place of the folder",
        lambda project: (
            only({})(project),
            project.corpus.rmdir(),
            project.corpus.write_text("x"),
            None,
        )[-1],
        ("missing_input", "corpus"),
    ),
    Case(
        "corpus: one document",
        only({"one.md": "# One\n\nThe only page speaks of results.\n"}, gold=False),
        (),
        FINE,
    ),
    Case(
        "corpus: documents without text",
        only({"one.md": "", "two.md": "  \n"}, gold=False),
        ("empty_index",),
    ),
    Case(
        "corpus: only stop words",
        only({"one.md": "the of and to", "two.md": "is it"}, gold=False),
        (),
        FINE,
    ),
    Case("corpus: one huge word", only({**DOCUMENTS, "big.md": "x" * 1_000_000}), (), FINE),
    Case("corpus: 2 MB line", only({**DOCUMENTS, "big.md": "word " * 400_000}), (), FINE),
    Case("corpus: NUL byte", only({**DOCUMENTS, "nul.md": "a\nb\0"}), ("nul.md:2", "nul_byte")),
    Case(
        "corpus: not UTF-8",
        only({**DOCUMENTS, "latin.md": "caf\xe9".encode("latin-1")}),
        ("latin.md:1", "not_utf8"),
    ),
    Case(
        "corpus: byte-order mark",
        only({**DOCUMENTS, "bom.md": b"\xef\xbb\xbf# Title\n\nText.\n"}),
        (),
        FINE,
    ),
    Case(
        "corpus: bidi controls and emoji",
        only({**DOCUMENTS, "odd.md": "# \u202etitle\u202c \U0001f9ea\n\nA\u0301 text\u200b.\n"}),
        (),
        FINE,
    ),
    Case(
        "corpus: unclosed front matter",
        only({**DOCUMENTS, "front.md": "---\ntitle: [\n# Text\n"}),
        (),
        FINE,
    ),
    Case(
        "corpus: front matter bomb",
        only(
            {
                **DOCUMENTS,
                "front.md": "---\na: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b]\ntitle: *c\n---\n# Text\n",
            }
        ),
        (),
        FINE,
    ),
    Case(
        "corpus: link out of the folder",
        lambda project: (project.corpus / "out.md").symlink_to("/etc/hostname"),
        ("out.md", "outside_folder"),
    ),
    Case(
        "corpus: link to nothing",
        lambda project: (project.corpus / "out.md").symlink_to("gone.md"),
        ("out.md",),
    ),
    Case(
        "corpus: file name with a line break",
        only({**DOCUMENTS, "a\nb.md": "text"}),
        ("a\\nb.md", "bad_id"),
    ),
    Case(
        "corpus: file name with an escape", only({**DOCUMENTS, "a\x1b[31m.md": "text"}), ("bad_id",)
    ),
    Case(
        "corpus: file name that is not UTF-8",
        lambda project: (
            Path(os.fsdecode(os.fsencode(project.corpus) + b"/\xff.md")).write_text("text") and None
        ),
        ("bad_id",),
    ),
]


def vectors_of(project: Project, dimensions: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Keys and vectors of every text that the tiny BEIR folder needs."""
    texts = [f"{row['title']} {row['text']}".strip() for row in BEIR_CORPUS] + [
        row["text"] for row in BEIR_QUERIES
    ]
    rng = np.random.default_rng(0)
    return np.array([text_hash(text) for text in texts]), rng.normal(
        size=(len(texts), dimensions)
    ).astype(np.float32)


def npz(
    change: Callable[[np.ndarray, np.ndarray], dict[str, np.ndarray]],
) -> Callable[[Project], list[str]]:
    def spoil(project: Project) -> list[str]:
        project.make_beir()
        np.savez(project.root / "vectors.npz", **change(*vectors_of(project)))
        return ["--beir", str(project.beir), "--vectors", str(project.root / "vectors.npz")]

    return spoil


def vector_file(data: bytes) -> Callable[[Project], list[str]]:
    def spoil(project: Project) -> list[str]:
        project.make_beir()
        (project.root / "vectors.npz").write_bytes(data)
        return ["--beir", str(project.beir), "--vectors", str(project.root / "vectors.npz")]

    return spoil


def with_value(
    place: int, value: float, dtype: str = "float32"
) -> Callable[[np.ndarray, np.ndarray], dict[str, np.ndarray]]:
    def change(keys: np.ndarray, vectors: np.ndarray) -> dict[str, np.ndarray]:
        changed = vectors.astype(dtype)
        changed[place, 0] = value
        return {"sha256": keys, "vectors": changed}

    return change


def _zip(name: str, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, data)
    return buffer.getvalue()


def _header(shape: str) -> bytes:
    """Start of a .npy file of float32 with this shape and hardly any data."""
    return (
        b"\x93NUMPY\x01\x00v\x00"
        + f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117)
        + b"\n"
        + bytes(16)
    )


VECTORS = [
    Case(
        "vectors: fine", npz(lambda keys, vectors: {"sha256": keys, "vectors": vectors}), (), FINE
    ),
    Case(
        "vectors: not normalised",
        npz(lambda keys, vectors: {"sha256": keys, "vectors": vectors * 100}),
        (),
        FINE,
    ),
    Case(
        "vectors: half precision",
        npz(lambda keys, vectors: {"sha256": keys, "vectors": vectors.astype("float16")}),
        (),
        FINE,
    ),
    Case(
        "vectors: all zero",
        npz(lambda keys, vectors: {"sha256": keys, "vectors": vectors * 0}),
        (),
        FINE,
    ),
    Case(
        "vectors: keys as bytes",
        npz(lambda keys, vectors: {"sha256": keys.astype("S64"), "vectors": vectors}),
        (),
        FINE,
    ),
    Case(
        "vectors: NaN", npz(with_value(2, np.nan)), ("vectors.npz", "vectors_not_finite", "row 2")
    ),
    Case(
        "vectors: infinity",
        npz(with_value(1, np.inf)),
        ("vectors.npz", "vectors_not_finite", "row 1"),
    ),
    Case(
        "vectors: float64 beyond float32",
        npz(with_value(1, 1e300, "float64")),
        ("vectors.npz", "vectors_not_finite"),
    ),
    Case("vectors: float32 whose norm overflows", npz(with_value(1, 3e38)), (), FINE),
    Case(
        "vectors: tiny values",
        npz(lambda keys, vectors: {"sha256": keys, "vectors": vectors * np.float32(1e-30)}),
        (),
        FINE,
    ),
    Case(
        "vectors: one dimension",
        npz(lambda keys, vectors: {"sha256": keys, "vectors": vectors[:, 0]}),
        ("vectors.npz", "vectors_bad_shape"),
    ),
    Case(
        "vectors: no columns",
        npz(lambda keys, vectors: {"sha256": keys, "vectors": vectors[:, :0]}),
        ("vectors.npz", "vectors_bad_shape"),
    ),
    Case(
        "vectors: whole numbers",
        npz(lambda keys, vectors: {"sha256": keys, "vectors": vectors.astype(int)}),
        ("vectors.npz", "vectors_bad_shape"),
    ),
    Case(
        "vectors: complex numbers",
        npz(lambda keys, vectors: {"sha256": keys, "vectors": vectors.astype(complex)}),
        ("vectors.npz", "vectors_bad_shape"),
    ),
    Case(
        "vectors: fewer rows than hashes",
        npz(lambda keys, vectors: {"sha256": keys, "vectors": vectors[:-1]}),
        ("vectors.npz", "vectors_bad_shape"),
    ),
    Case(
        "vectors: some texts are missing",
        npz(lambda keys, vectors: {"sha256": keys[:-1], "vectors": vectors[:-1]}),
        ("vectors.npz", "vectors_incomplete", "silent at night"),
    ),
    Case(
        "vectors: none at all",
        npz(lambda keys, vectors: {"sha256": keys[:0], "vectors": vectors[:0]}),
        ("vectors.npz", "vectors_incomplete"),
    ),
    Case(
        "vectors: hash twice",
        npz(
            lambda keys, vectors: {
                "sha256": np.concatenate([keys, keys[:1]]),
                "vectors": np.concatenate([vectors, vectors[:1]]),
            }
        ),
        ("vectors.npz", "vectors_duplicate"),
    ),
    Case(
        "vectors: upper-case hash",
        npz(lambda keys, vectors: {"sha256": np.char.upper(keys), "vectors": vectors}),
        ("vectors.npz", "vectors_bad_keys"),
    ),
    Case(
        "vectors: hashes are numbers",
        npz(lambda keys, vectors: {"sha256": np.arange(len(keys)), "vectors": vectors}),
        ("vectors.npz", "vectors_bad_keys"),
    ),
    Case(
        "vectors: a part is missing",
        npz(lambda keys, vectors: {"sha256": keys, "embeddings": vectors}),
        ("vectors.npz", "vectors_part_missing", "[vectors]"),
    ),
    Case(
        "vectors: pickled objects",
        npz(lambda keys, vectors: {"sha256": keys.astype(object), "vectors": vectors}),
        ("vectors.npz", "vectors_unreadable"),
    ),
    Case(
        "vectors: a text", vector_file(b"sha256,vectors\n"), ("vectors.npz", "vectors_unreadable")
    ),
    Case("vectors: an empty file", vector_file(b""), ("vectors.npz", "vectors_unreadable")),
    Case(
        "vectors: a plain array",
        vector_file(_header("(4,)")),
        ("vectors.npz", "vectors_unreadable"),
    ),
    Case(
        "vectors: an archive of something else",
        vector_file(_zip("vectors.npy", b"no array")),
        ("vectors.npz",),
    ),
    Case(
        "vectors: an archive that is cut",
        vector_file(_zip("vectors.npy", b"no array" * 100)[:-60]),
        ("vectors.npz", "vectors_unreadable"),
    ),
    Case(
        "vectors: a header that claims a petabyte",
        vector_file(_zip("vectors.npy", _header("(125000000000000, 2)"))),
        ("vectors.npz", "vectors_unreadable"),
    ),
    Case(
        "vectors: missing",
        lambda project: ["--beir", str(project.make_beir()), "--vectors", "gone.npz"],
        ("gone.npz", "vectors_missing"),
    ),
    Case(
        "vectors: a folder",
        lambda project: ["--beir", str(project.make_beir()), "--vectors", str(project.root)],
        ("vectors_missing",),
    ),
    Case(
        "vectors: those of other texts for a gold set",
        lambda project: (
            npz(lambda keys, vectors: {"sha256": keys, "vectors": vectors})(project),
            ["--vectors", str(project.root / "vectors.npz")],
        )[1],
        ("vectors.npz", "vectors_incomplete"),
    ),
]


def beir(
    *spoils: Callable[[Project], object], split: str = "test"
) -> Callable[[Project], list[str]]:
    def spoil(project: Project) -> list[str]:
        project.make_beir()
        for one in spoils:
            one(project)
        return ["--beir", str(project.beir), "--split", split]

    return spoil


def beir_corpus(*rows: object) -> Callable[[Project], list[str]]:
    return beir(put("collection/corpus.jsonl", jsonl([*rows, *BEIR_CORPUS])))


BEIR = [
    Case("beir: fine", beir(), (), FINE),
    Case(
        "beir: folder is missing",
        lambda project: ["--beir", str(project.root / "gone")],
        ("gone", "not_beir", "corpus.jsonl"),
    ),
    Case(
        "beir: no corpus",
        beir(lambda project: (project.beir / "corpus.jsonl").unlink()),
        ("collection", "corpus.jsonl"),
    ),
    Case(
        "beir: no queries",
        beir(lambda project: (project.beir / "queries.jsonl").unlink()),
        ("collection", "queries.jsonl"),
    ),
    Case("beir: split is missing", beir(split="dev"), ("dev.tsv", "[split]", "test")),
    Case("beir: split walks out", beir(split="../../qrels"), ("collection", "[split]")),
    Case(
        "beir: split of bidi controls",
        beir(split="te\u202est"),
        ("collection", "[split]", "\\u202e"),
    ),
    Case(
        "beir: qrels is a file",
        beir(
            lambda project: (
                (project.beir / "qrels" / "test.tsv").unlink(),
                (project.beir / "qrels").rmdir(),
                (project.beir / "qrels").write_text("x"),
            )
        ),
        ("test.tsv",),
    ),
    Case(
        "beir: a gold set besides",
        lambda project: ["tiny", "--beir", str(project.make_beir())],
        ("[--beir]", "not both"),
    ),
    Case(
        "beir: unknown strategy",
        lambda project: [*beir()(project), "--strategy", "bm52"],
        ("[--strategy]", "bm25, vector, hybrid"),
    ),
    Case("beir: id twice", beir_corpus(BEIR_CORPUS[0]), ("corpus.jsonl:2", "duplicate_id")),
    Case(
        "beir: id walks out",
        beir_corpus({"_id": "../../etc", "title": "", "text": "x"}),
        ("corpus.jsonl:1", "path_traversal"),
    ),
    Case(
        "beir: id is a number",
        beir_corpus({"_id": 5, "title": "", "text": "x"}),
        ("corpus.jsonl:1", "[_id]"),
    ),
    Case("beir: no text", beir_corpus({"_id": "a", "title": ""}), ("corpus.jsonl:1", "[text]")),
    Case("beir: no title", beir_corpus({"_id": "a", "text": "results"}), (), FINE),
    Case(
        "beir: title is null",
        beir_corpus({"_id": "a", "title": None, "text": "results"}),
        ("corpus.jsonl:1", "[title]"),
    ),
    Case(
        "beir: NaN in the metadata",
        beir_corpus({"_id": "a", "title": "", "text": "x", "metadata": {"score": float("nan")}}),
        (),
        FINE,
    ),
    Case(
        "beir: metadata is a list",
        beir_corpus({"_id": "a", "title": "", "text": "x", "metadata": []}),
        ("corpus.jsonl:1", "[metadata]"),
    ),
    Case(
        "beir: lone surrogate in a text",
        beir_corpus({"_id": "a", "title": "", "text": "x \ud83d y"}),
        (),
        FINE,
    ),
    Case(
        "beir: lone surrogate in an id",
        beir_corpus({"_id": "\ud83d", "title": "", "text": "x"}),
        ("corpus.jsonl:1", "bad_id"),
    ),
    Case(
        "beir: two documents in one section",
        beir_corpus(
            *(
                {"_id": name, "title": "", "text": "x", "metadata": {"section_id": "s"}}
                for name in "ab"
            )
        ),
        ("corpus.jsonl:2", "duplicate_section_id"),
    ),
    Case(
        "beir: line above 10 MB",
        beir_corpus({"_id": "a", "title": "", "text": "x" * 11_000_000}),
        ("corpus.jsonl:1", "too_long"),
    ),
    Case(
        "beir: line is not JSON",
        beir(put("collection/corpus.jsonl", "no JSON\n")),
        ("corpus.jsonl:1", "bad_json"),
    ),
    Case(
        "beir: line is not UTF-8",
        beir(put("collection/corpus.jsonl", b'{"_id": "\xff"}\n')),
        ("corpus.jsonl:1", "not_utf8"),
    ),
    Case(
        "beir: nested 100,000 deep",
        beir(put("collection/corpus.jsonl", "[" * 100_000)),
        ("corpus.jsonl:1",),
    ),
    Case(
        "beir: number of 5,000 digits",
        beir(put("collection/corpus.jsonl", '{"_id": ' + "9" * 5_000 + "}\n")),
        ("corpus.jsonl:1",),
    ),
    Case(
        "beir: corpus is empty",
        beir(put("collection/corpus.jsonl", "\n\n")),
        ("corpus.jsonl", "empty_corpus"),
    ),
    Case(
        "beir: byte-order marks",
        beir(
            *(
                put(f"collection/{name}", b"\xef\xbb\xbf" + jsonl(rows).encode())
                for name, rows in (("corpus.jsonl", BEIR_CORPUS), ("queries.jsonl", BEIR_QUERIES))
            )
        ),
        (),
        FINE,
    ),
    Case(
        "beir: nothing is judged",
        beir(put("collection/qrels/test.tsv", "query-id\tcorpus-id\tscore\n")),
        ("test.tsv:1", "nothing_judged"),
    ),
    Case(
        "beir: judged documents are gone",
        beir(put("collection/qrels/test.tsv", QRELS.replace("storage.md", "gone.md"))),
        (),
        FINE,
    ),
    Case(
        "beir: all judged documents are gone",
        beir(put("collection/qrels/test.tsv", QRELS.replace(".md", ".gone"))),
        ("test.tsv:4", "dangling_target", "3 errors"),
    ),
]


def trec(topics: bytes | str, qrels: bytes | str | None) -> Callable[[Project], None]:
    def spoil(project: Project) -> None:
        for name in ("queries.jsonl", "paraphrases.jsonl", "answers.jsonl", "qrels.tsv"):
            (project.gold / name).unlink()
        put("topics.tsv", topics)(project)
        if qrels is not None:
            put("qrels.txt", qrels)(project)

    return spoil


TOPICS = "".join(f"{row['query_id']}\t{row['text']}\n" for row in QUERIES[:3])
TREC_QRELS = "keep 0 storage.md 1\nagain 0 retries.md 1\nnight 0 alerts.md 1\n"

TREC = [
    Case("trec: fine", trec(TOPICS, TREC_QRELS), (), FINE),
    Case(
        "trec: negative grade is junk", trec(TOPICS, TREC_QRELS + "keep 0 alerts.md -2\n"), (), FINE
    ),
    Case("trec: one column", trec("keep\n", TREC_QRELS), ("topics.tsv:1", "bad_columns")),
    Case("trec: topic twice", trec(TOPICS + TOPICS, TREC_QRELS), ("topics.tsv:4", "duplicate_id")),
    Case(
        "trec: id walks out", trec("../x\tWhat?\n" + TOPICS, TREC_QRELS), ("topics.tsv:1", "bad_id")
    ),
    Case("trec: no qrels", trec(TOPICS, None), ("qrels", "missing_file")),
    Case(
        "trec: five columns",
        trec(TOPICS, TREC_QRELS.replace(" 1\n", " 1 1\n")),
        ("qrels.txt:1", "bad_columns"),
    ),
    Case(
        "trec: grade is a word",
        trec(TOPICS, TREC_QRELS.replace(" 1\n", " yes\n", 1)),
        ("qrels.txt:1", "bad_grade"),
    ),
    Case(
        "trec: columns change",
        trec(TOPICS, TREC_QRELS + "keep 0 alerts.md\n"),
        ("qrels.txt:4", "bad_columns"),
    ),
    Case(
        "trec: NUL byte",
        trec(TOPICS, TREC_QRELS.replace("keep", "ke\0ep")),
        ("qrels.txt:1", "nul_byte"),
    ),
    Case("trec: empty topics", trec("", TREC_QRELS), ("topics.tsv:1", "empty_file")),
    Case("trec: empty qrels", trec(TOPICS, ""), ("qrels.txt:1", "empty_file")),
]

ALL = [*GOLD, *CONFIGURATION, *CORPUS, *VECTORS, *BEIR, *TREC]


def whole(folder: Path) -> bool:
    """Whether nothing half-written lies below a folder."""
    stages = folder / "artifacts"
    return not list(folder.rglob(".partial-*")) and all(
        (artifact / "artifact.json").is_file() for artifact in stages.glob("*/*")
    )


def shown_raw(text: str) -> list[str]:
    """Characters of an output that a terminal would act on."""
    return sorted(
        {
            char
            for char in text
            if (ord(char) < 32 and char != "\n")
            or 0x7F <= ord(char) < 0xA0
            or char in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
        }
    )


def test_there_are_enough_cases():
    assert len(ALL) == len({case.name for case in ALL})
    assert len(ALL) >= 60


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow if case.status == FINE else (), id=case.name)
        for case in ALL
    ],
)
def test_ends_in_a_clear_error_or_a_result(project, case):
    arguments = case.spoil(project) or []
    named = (
        arguments[:1] if arguments[:1] == ["tiny"] else ([] if "--beir" in arguments else ["tiny"])
    )
    result = project.invoke(
        "run", *named, *(arguments[1:] if arguments[:1] == ["tiny"] else arguments)
    )
    assert result.exit_code == case.status, result.stderr
    assert "Traceback" not in result.output
    assert not shown_raw(result.output)
    assert whole(project.home)
    reports = sorted(project.reports.rglob("*.json"))
    if case.status == FINE:
        whole_primary = named == ["tiny"] and "--vectors" not in arguments
        assert (
            len(reports) == 1 + whole_primary
        )  # the gold set's own, and the one at the top where it is the whole primary gold set
        json.loads(
            reports[0].read_text(encoding="utf-8"),
            parse_constant=lambda name: pytest.fail(f"{name} in the report"),
        )
        return
    missing = [part for part in case.says if part not in result.stderr]
    assert not missing, result.stderr
    assert "no report was written" in result.stderr.splitlines()[-1]
    assert not project.reports.exists()


PROCESSES = [
    "queries: NUL byte",
    "yaml: bomb of aliases",
    "corpus: file name that is not UTF-8",
    "vectors: NaN",
    "queries: lone surrogate",
]


@pytest.mark.parametrize(
    "case", [case for case in ALL if case.name in PROCESSES], ids=lambda case: case.name
)
def test_a_process_of_its_own_ends_the_same_way(project, case):
    arguments = case.spoil(project) or ["tiny"]
    done = project.process("run", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    assert all(part in done.stderr for part in case.says)
    assert not project.reports.exists()
