"""A tiny gold set in our layout, a BEIR folder and the command line, in-process or as a process."""

import base64
import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from rag_eval.cli.app import app
from rag_eval.reporting.report import _first_fault

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
PAGES = "RAG_EVAL_HTML_REPORT"
BEIR_CORPUS = [
    {"_id": name, "title": name.removesuffix(".md"), "text": text}
    for name, text in DOCUMENTS.items()
]
BEIR_QUERIES = [{"_id": row["query_id"], "text": row["text"]} for row in QUERIES[:3]]


def jsonl(rows: Iterable[object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def make_key(path: Path) -> str:
    """Write an Ed25519 private key, and return its public key in base64."""
    key = Ed25519PrivateKey.generate()
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(*form, serialization.NoEncryption()))
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


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

    def write(self, name: str, text: str) -> Path:
        """Write a file of the gold set."""
        path = self.gold / name
        path.write_text(text, encoding="utf-8")
        return path

    def ask(self, questions: dict[str, str], relevant: str | dict[str, str]) -> None:
        """Ask these questions alone, each answered by one document."""
        documents = relevant if isinstance(relevant, dict) else dict.fromkeys(questions, relevant)
        rows = [{"query_id": name, "text": text} for name, text in questions.items()]
        self.write("queries.jsonl", jsonl({**row, "answerable": True} for row in rows))
        self.write("paraphrases.jsonl", "")
        self.write("answers.jsonl", "")
        judged = "".join(f"{name}\t{document}\t1\n" for name, document in documents.items())
        self.write("qrels.tsv", f"query-id\tcorpus-id\tscore\n{judged}")

    def arguments(self, command: str, *more: str | Path) -> list[str]:
        folders = {"home": self.home, "reports": self.reports, "gold-sets": self.gold.parent}
        options = {
            "run": ("home", "reports", "gold-sets"),
            "lint": ("home", "gold-sets"),
            "trust": ("home", "gold-sets"),
            "init": ("home", "gold-sets"),
            "validate": (),
        }
        given = [(f"--{name}", folders[name]) for name in options.get(command, ("home",))]
        every = ["--verbose"] if command == "run" else []
        return [command, *map(str, more), *every, *(str(part) for pair in given for part in pair)]

    def invoke(self, command: str, *more: str | Path) -> Result:
        """Run a command in this process; let every exception except an exit through."""
        return CliRunner().invoke(app, self.arguments(command, *more), catch_exceptions=False)

    def command(self, *words: str | Path, exit_code: int | None = 0) -> Result:
        """Run a command in this process and check its exit code; None accepts every code."""
        result = self.invoke(str(words[0]), *words[1:])
        assert exit_code in {None, result.exit_code}, result.output
        assert "Traceback" not in result.output + result.stderr
        return result

    def run(self, *more: str | Path, exit_code: int | None = 0) -> Result:
        """Evaluate the tiny gold set."""
        return self.command("run", "tiny", *more, exit_code=exit_code)

    def process(
        self, command: str, *more: str | Path, env: dict[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command in its own process, as a user would."""
        return subprocess.run(
            [sys.executable, "-m", "rag_eval", *self.arguments(command, *more)],
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

    def text(self, name: str, gold_set: str = "tiny") -> str:
        """Read a file of the report, also a compressed one."""
        path = self.reports / gold_set / name
        packed = path.with_name(f"{name}.gz")
        if packed.exists():
            return gzip.decompress(packed.read_bytes()).decode()
        return path.read_text(encoding="utf-8")

    def lines(self, name: str, gold_set: str = "tiny") -> list[dict[str, Any]]:
        """Read a file of JSON lines of the report; only a line feed ends a line."""
        return [json.loads(line) for line in self.text(name, gold_set).split("\n")[:-1]]

    def strategies(self, name: str = "tiny") -> dict[str, dict[str, Any]]:
        """Read the report's entries of strategies, after a check of the report's schema."""
        report = self.report(name)
        assert _first_fault(report) is None
        return {entry["name"]: entry for entry in report["strategies"]}

    def files(self) -> list[Path]:
        """List everything that runs left behind."""
        found = [*self.home.rglob("*"), *self.reports.rglob("*")]
        return [path for path in found if path.is_file()]


def set_apart(patch: pytest.MonkeyPatch, root: Path, tracking_store: str) -> Project:
    """Make a project that reads no settings and no folder of the machine."""
    kept = {"RAG_EVAL_TEST_DATA", PAGES}
    for name in {name for name in os.environ if name.startswith("RAG_EVAL_")} - kept:
        patch.delenv(name)
    patch.setenv("RAG_EVAL_TRACKING_URI", tracking_store)
    patch.setenv("RAG_EVAL_PRIMARY_GOLD_SET", "tiny")
    patch.chdir(root)
    return Project(root)


def measure(entry: dict[str, Any], label: str = "R@5", level: str = "document") -> dict[str, Any]:
    """Find a measure of a strategy by its label."""
    wanted = (label, level)
    return next(part for part in entry["measures"] if (part["label"], part["level"]) == wanted)


def answer_measures(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the measures of answers and citations by name."""
    parts = [*report["answers"]["measures"], *report["citations"]["measures"]]
    return {part["name"]: part for part in parts}


def nulls_without_reason(value: Any, path: str = "") -> Iterator[str]:
    """Find null figures of a report, alone or in a list, that have no reason beside them."""
    if isinstance(value, dict):
        for key, part in value.items():
            in_list = isinstance(part, list) and not any(isinstance(one, dict) for one in part)
            empty = part is None or (in_list and "None" in re.findall("None", repr(part)))
            reasoned = key == "rerank" or value.get(f"{key}_reason")
            if empty and not (reasoned or (key == "value" and value.get("reason"))):
                yield f"{path}.{key}"
            yield from nulls_without_reason(part, f"{path}.{key}")
    elif isinstance(value, list):
        for place, part in enumerate(value):
            yield from nulls_without_reason(part, f"{path}[{place}]")
