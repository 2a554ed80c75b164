"""A project whose retrieval misses a third of its questions on purpose.

It has enough outcomes for a provisional miss rate and is small enough for a test.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
from cli_project import Project, jsonl, nulls_without_reason
from click.testing import Result
from schemas import published
from typer.testing import CliRunner

from rag_eval.cli.app import app
from rag_eval.core.settings import Settings
from rag_eval.pipeline.corpus import AdmittedChunks
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.miss_rate_stages import MissRateClaims, RetrievalSignals, calibrate_gold_set
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.retrieval import open_index
from rag_eval.pipeline.stages import open_runner
from rag_eval.reporting.report import _first_fault
from rag_eval.storage.hashing import text_hash
from rag_eval.uncertainty.opened_index import OpenIndex

N, MISSED_OF = 60, 3
"""Number of questions; every third question uses words of other documents only."""
BAYS = ("heron", "otter", "badger", "marten", "curlew", "plover", "weasel", "linnet")
COMPANY = ("crimson", "indigo", "ochre", "umber", "sable", "russet", "azure", "violet")
"""A word for each bay. Lost documents hold such a word too, so a query with the word finds them."""
GATES = "gates: {required: [], advisory: [acceptance], min_queries: 50}\n"
ANSWERS = "answers: {mode: deterministic, top_k: 5}\n"
BM25 = "{name: bm25, kind: bm25}"
VECTOR = "{name: vector, kind: vector, embedding: {model: lsa-8}}"
ITERATIVE = "{name: rounds, kind: iterative, base: bm25}"


def word(number: int) -> str:
    """Return a word that occurs in one document only."""
    return f"quon{chr(97 + number // 26)}{chr(97 + number % 26)}zu"


def is_lost(number: int) -> bool:
    return number % MISSED_OF == 0


def document(number: int) -> str:
    if is_lost(number):  # a lost document does not answer its question
        return (
            f"# Notes {word(number)}\n\n"
            f"The entry {word(number)} was written by the keeper in "
            f"{COMPANY[number // MISSED_OF % len(BAYS)]} ink. It is read once a year.\n"
        )
    turn, bay = divmod(number - number // MISSED_OF - 1, len(BAYS))
    paint = f"It is painted {COMPANY[bay]}. " if turn < MISSED_OF else ""
    return (
        f"# Valve {word(number)}\n\nThe valve {word(number)} is found beside tank {number} in bay "
        f"{BAYS[bay]}. {paint}It is opened with a key.\n"
    )


def question(number: int, wording: int = 0) -> str:
    if is_lost(number):
        bay = BAYS[number // MISSED_OF % len(BAYS)]
        return f"which valve belongs to {bay}" if wording == 0 else f"the key of {bay}"
    return (
        f"where is {word(number)} found" if wording == 0 else f"place of the valve {word(number)}"
    )


def gold(project: Project, *, only_gold: dict[int, int] | None = None) -> None:
    """Write questions and judgements; `only_gold` gives some questions another document."""
    given = only_gold or {}
    project.write(
        "queries.jsonl",
        jsonl(
            {"query_id": f"q{number:02d}", "text": question(number), "answerable": True}
            for number in range(N)
        ),
    )
    project.write(
        "paraphrases.jsonl",
        jsonl(
            {
                "query_id": f"q{number:02d}",
                "paraphrase_id": "terse",
                "text": question(number, 1),
                "source": "hand",
            }
            for number in range(N)
        ),
    )
    rows = "".join(
        f"q{number:02d}\td{given.get(number, number):02d}.md\t1\n" for number in range(N)
    )
    project.write("qrels.tsv", f"query-id\tcorpus-id\tscore\n{rows}")
    project.write("answers.jsonl", "")


def configure(project: Project, *strategies: str, more: str = ANSWERS, extra: str = "") -> None:
    head = (
        "name: tiny\nversion: 1\ncorpus: {loader: folder, path: corpus, chunker: {kind: markdown, "
        "max_tokens: 64}}\nk: [1, 5, 10]\ndepth: 20\nseeds: [13]\nnightly: false\nstrategies:\n"
    )
    project.write(
        "gold_set.yaml",
        head + "".join(f"  - {one}\n" for one in strategies or (BM25,)) + GATES + more + extra,
    )


def make(project: Project) -> None:
    """Replace the project's corpus and questions."""
    for path in project.corpus.glob("*.md"):
        path.unlink()
    for number in range(N):
        project.write(f"corpus/d{number:02d}.md", document(number))
    gold(project)
    configure(project)


def lines(project: Project, name: str = "tiny") -> list[dict[str, Any]]:
    return project.lines("uncertain-retrievals.jsonl", name)


def night(project: Project, *more: str, exit_code: int = 0) -> Result:
    """Evaluate the gold set and check all resulting files against their contracts."""
    result = project.invoke("run", "tiny", *more)
    assert result.exit_code == exit_code, result.output
    fits(project)
    return result


def fits(project: Project, name: str = "tiny") -> None:
    report = project.report(name)
    assert _first_fault(report) is None
    parts = {name: report[name] for name in ("uncertainty", "calibration")}
    bare = list(nulls_without_reason(parts))
    assert not bare, bare
    found = lines(project, name)
    validator = jsonschema.Draft202012Validator(published("uncertain-line"))
    assert [error.message for line in found for error in validator.iter_errors(line)] == []
    stated = report["uncertainty"]["strategies"]
    assert len(found) == sum(entry["n_claims"] for entry in stated.values())
    for line in found:
        if line["miss_rate"]["status"] not in {"provisional", "measured"} and "answer" in line:
            assert (
                line["answer"]["calibrated_confidence"]["type"] == "absent"
            )  # an unearned rate discounts no answer
        if line["miss_rate"]["calibrator"] == "heuristic_v0":
            assert line["miss_rate"]["status"] in {"uncalibrated", "stale", "absent"}


def call(project: Project, *words: str | Path, exit_code: int | None = 0) -> Result:
    """Run another command of the tool over the home of the project."""
    result = CliRunner().invoke(
        app, [*map(str, words), "--home", str(project.home)], catch_exceptions=False
    )
    assert exit_code is None or result.exit_code == exit_code, result.output
    return result


def opened(project: Project) -> Evaluation:
    """Open the project's gold set in this process."""
    settings = Settings(
        home=project.home,
        reports=project.reports,
        gold_sets=project.gold.parent,
    )
    return open_gold_set(project.gold, settings)


def opened_index(project: Project) -> OpenIndex:
    """Open the index of the project."""
    evaluation = opened(project)
    return open_index(evaluation, open_runner(evaluation).get(AdmittedChunks))


def calibrated(project: Project, name: str = "bm25") -> dict[str, Any]:
    """Calibrate, and return the report's part of a strategy."""
    return calibrate_gold_set(open_runner(opened(project))).strategies[name].dump()


def signals_of(project: Project) -> RetrievalSignals:
    return open_runner(opened(project)).get(RetrievalSignals)


def first_claims(project: Project, name: str = "bm25") -> dict[str, dict[str, Any]]:
    """Return the claims of the original questions, without paraphrases, by query id."""
    frame = open_runner(opened(project)).get(MissRateClaims).claims_of(name)
    first = frame[frame["paraphrase_id"] == "original"]
    return {row["query_id"]: row for row in first.to_dict("records")}


def bring(project: Project, name: str, claims: list[tuple[str, list[str], dict[str, Any]]]) -> None:
    """Import claims of the current strategy; a claim is (query, ids, more fields of its line)."""
    at, path = "2026-01-31T12:00:00Z", project.root / "traffic.jsonl"
    rows = [
        {"query": query, "retrieved": [{"id": one, "score": 1.0} for one in ids], "at": at, **more}
        for query, ids, more in claims
    ]
    path.write_text(jsonl(rows), encoding="utf-8")
    fingerprint = signals_of(project).about[name].fingerprint
    call(project, "claim", "import", path, "--strategy", name, "--fingerprint", fingerprint)


def audit(
    project: Project,
    n: int,
    missed: Callable[[str], bool],
    *,
    name: str = "bm25",
    gold: Mapping[str, list[str]] | None = None,
) -> None:
    """Draw claims of a strategy at random and judge those in `gold` (question -> documents)."""
    path = project.root / f"audit-{len(list(project.root.glob('audit-*')))}.jsonl"
    words = ["--n", str(n), "--seed", "1", "--strategy", name, "--out", path]
    call(project, "audit", "draw", *words)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    judged = {"gold_source": "human", "gold_strategies": []}
    told = []
    for row in rows:
        if gold is not None and row["query"] not in gold:
            continue
        is_missed = missed(row["query"])
        more = {"missed_content": "it"} if is_missed else {}
        documents = {} if gold is None else {"gold_documents": gold[row["query"]]}
        told.append({**row, **judged, "missed": is_missed, **more, **documents})
    path.write_text(jsonl(told), encoding="utf-8")
    call(project, "outcome", "import", path)


def vectors_file(project: Project, path: Path) -> None:
    """Write a file that holds a vector for each text that a run embeds, and no other vector."""
    chunks = open_runner(opened(project)).get(AdmittedChunks).chunks
    asked = [
        json.loads(line)["text"]
        for name in ("queries", "paraphrases")
        for line in (project.gold / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    titled = (chunks["title"] + " " + chunks["text"]).str.strip()
    names = sorted({text_hash(text) for text in [*titled, *chunks["text"], *asked]})
    vectors = np.random.default_rng(3).normal(size=(len(names), 8)).astype(np.float32)
    np.savez(path, sha256=np.array(names), vectors=vectors)
