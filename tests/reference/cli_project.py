"""A tiny gold set in our layout, a BEIR folder and the command line, in-process or as a process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from rag_eval.cli.app import app

DOCUMENTS = {
    "storage.md": (
        "# Storage\n\n## Folder\n\nResults are kept in the folder named by the setting "
        "`results`.\n\n## Clean-up\n\nResults older than thirty days are deleted at midnight.\n"
    ),
    "retries.md": (
        "# Retries\n\n## Count\n\nA failed job is tried three more times.\n\n## Pause\n\n"
        "The pause between two tries doubles each time.\n"
    ),
    "alerts.md": (
        "# Alerts\n\n## Channels\n\nAlerts leave by e-mail or as an HTTP POST.\n\n## Silence\n\n"
        "Quiet hours hold every alert back until morning.\n"
    ),
}
QUERIES: list[dict[str, Any]] = [
    {
        "query_id": "keep",
        "text": "How long do results stay on the disk?",
        "answerable": True,
        "tags": ["storage"],
    },
    {"query_id": "again", "text": "How often is a failed job tried again?", "answerable": True},
    {"query_id": "night", "text": "Can alerts be silent at night?", "answerable": True},
    {"query_id": "price", "text": "What does a licence cost?", "answerable": False},
]
PARAPHRASES = [
    {
        "query_id": "keep",
        "paraphrase_id": "terse",
        "text": "deletion of old results",
        "source": "hand",
    },
    {"query_id": "again", "paraphrase_id": "terse", "text": "number of retries", "source": "hand"},
]
QRELS = (
    "query-id\tcorpus-id\tscore\nkeep\tstorage.md\t1\nagain\tretries.md\t1\nnight\talerts.md\t1\n"
)
ANSWERS = [
    {
        "query_id": "again",
        "doc_id": "retries.md",
        "anchors": [{"quote": "A failed job is tried three more times."}],
    }
]
CONFIG = """\
name: tiny
version: 1
corpus: {loader: folder, path: corpus, chunker: {kind: markdown, max_tokens: 64}}
k: [1, 5]
depth: 20
seeds: [13]
strategies:
  - {name: bm25, kind: bm25}
  - {name: vector, kind: vector, embedding: {model: lsa-8}}
gates: {required: [], advisory: [acceptance], min_queries: 50}
nightly: false
answers: {mode: deterministic, top_k: 5}
"""
BEIR_CORPUS = [
    {"_id": name, "title": name.removesuffix(".md"), "text": text}
    for name, text in DOCUMENTS.items()
]
BEIR_QUERIES = [{"_id": row["query_id"], "text": row["text"]} for row in QUERIES[:3]]


def jsonl(rows: Iterable[object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


class Project:
    """Folders of one test: gold sets, home and reports, and the command line over them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.gold = root / "gold_sets" / "tiny"
        self.corpus = self.gold / "corpus"
        self.beir = root / "collection"
        self.home = root / "home"
        self.reports = root / "reports"
        self.corpus.mkdir(parents=True)
        for name, text in DOCUMENTS.items():
            (self.corpus / name).write_text(text, encoding="utf-8")
        for name, text in (
            ("queries.jsonl", jsonl(QUERIES)),
            ("paraphrases.jsonl", jsonl(PARAPHRASES)),
            ("answers.jsonl", jsonl(ANSWERS)),
            ("qrels.tsv", QRELS),
            ("gold_set.yaml", CONFIG),
        ):
            (self.gold / name).write_text(text, encoding="utf-8")

    def make_beir(self) -> Path:
        (self.beir / "qrels").mkdir(parents=True)
        (self.beir / "corpus.jsonl").write_text(jsonl(BEIR_CORPUS), encoding="utf-8")
        (self.beir / "queries.jsonl").write_text(jsonl(BEIR_QUERIES), encoding="utf-8")
        (self.beir / "qrels" / "test.tsv").write_text(QRELS, encoding="utf-8")
        return self.beir

    def arguments(self, command: str, *more: str) -> list[str]:
        places = {
            "run": ("home", "reports", "gold_sets"),
            "lint": ("home", "gold_sets"),
            "init": ("gold_sets",),
            "compare": ("home",),
            "show": ("home",),
        }[command]
        folders = {"home": self.home, "reports": self.reports, "gold_sets": self.root / "gold_sets"}
        return [
            command,
            *more,
            *(
                part
                for place in places
                for part in (f"--{place.replace('_', '-')}", str(folders[place]))
            ),
        ]

    def invoke(self, command: str, *more: str) -> Result:
        """Run in this process; let every exception except an exit through."""
        return CliRunner().invoke(app, self.arguments(command, *more), catch_exceptions=False)

    def process(
        self, command: str, *more: str, env: dict[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run in its own process, as a user would."""
        return subprocess.run(
            [sys.executable, "-m", "rag_eval.cli", *self.arguments(command, *more)],
            capture_output=True,
            text=True,
            timeout=200,
            env={**os.environ, **(env or {})},
            cwd=self.root,
            check=False,
        )

    def report(self, name: str = "tiny") -> dict[str, Any]:
        return json.loads(
            (self.reports / name / "retrieval-metrics.json").read_text(encoding="utf-8")
        )
