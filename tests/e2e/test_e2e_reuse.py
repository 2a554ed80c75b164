"""A second run computes only changed parts; changes of the content_hash; the files of a run."""

import datetime as dt
import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import numpy as np
import pytest
from cli_project import (
    BEIR_CORPUS,
    BEIR_QUERIES,
    CONFIG,
    DOCUMENTS,
    QRELS,
    QUERIES,
    Project,
    jsonl,
    measure,
    nulls_without_reason,
)

from rag_eval.core.settings import Settings
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.history import accept_baseline
from rag_eval.pipeline.opening import open_beir, open_gold_set
from rag_eval.pipeline.stages import STAGES, Outcome, evaluate_all, open_runner
from rag_eval.reporting.report import (
    Report,
    _stable_part,
    content_hash,
    make_schema,
)
from rag_eval.storage.hashing import text_hash


class Night(NamedTuple):
    """Outcome and report of a run, and a copy of the run's folder."""

    outcome: Outcome
    report: dict[str, Any]
    folder: Path


def settings(root: Path, gold_sets: Path | None = None) -> Settings:
    return Settings(
        home=root / "home", reports=root / "reports", gold_sets=gold_sets or root / "gold_sets"
    )


def run_of(evaluation: Evaluation) -> Outcome:
    return evaluate_all([evaluation], evaluation.settings)[0]


def run(project: Project) -> Outcome:
    return run_of(open_gold_set(project.gold, settings(project.root)))


def stamps(home: Path) -> dict[str, tuple[int, int]]:
    """Return path -> (inode, modification time in ns) of every stored file.

    A new write changes both numbers.
    """
    return {
        str(path.relative_to(home)): (path.stat().st_ino, path.stat().st_mtime_ns)
        for part in ("artifacts", "embeddings")
        for path in (home / part).rglob("*")
        if path.is_file()
    }


def one_question(project: Project) -> None:
    project.write("queries.jsonl", jsonl(QUERIES[1:2]))
    (project.gold / "paraphrases.jsonl").unlink()
    (project.gold / "qrels.tsv").unlink()


APPROXIMATE = CONFIG.replace("seeds: [13]", "seeds: [13, 29]").replace(
    "{model: lsa-8}}", "{model: lsa-8}, search: approximate, rerank: {kind: mmr}}"
)
VARIANTS = {
    "first": lambda _: None,
    "again": lambda _: None,
    "no paraphrases": lambda project: (project.gold / "paraphrases.jsonl").unlink(),
    "one question": one_question,
    "approximate, reranked, two seeds": lambda project: project.write("gold_set.yaml", APPROXIMATE),
}


class Nights(NamedTuple):
    """Runs over variants of a gold set in one home, and its files after the first two runs."""

    project: Project
    by_name: dict[str, Night]
    files: list[dict[str, tuple[int, int]]]


@pytest.fixture(scope="module")
def nights(scenario) -> Nights:
    project, found, files = scenario.project, {}, []
    saved = shutil.copytree(project.gold, project.root / "saved")
    for name, change in VARIANTS.items():
        change(project)
        outcome = run(project)
        folder = shutil.copytree(outcome.folder, project.root / "kept" / name)
        found[name] = Night(outcome, outcome.report.dump(), folder)
        if len(files) < 2:
            files.append(stamps(project.home))
        shutil.rmtree(project.gold)
        shutil.copytree(saved, project.gold)
    return Nights(project, found, files)


def test_a_second_run_finds_the_same_and_makes_nothing(nights):
    first, again = nights.by_name["first"].report, nights.by_name["again"].report
    assert again["content_hash"] == first["content_hash"]
    assert again["embeddings"]["embedded"] == 0
    assert first["embeddings"]["embedded"] == first["embeddings"]["needed"] > 0
    assert again["reused"] == {"index": True, "runs": {"bm25": True, "vector": True}}
    assert first["reused"] == {"index": False, "runs": {"bm25": False, "vector": False}}
    before, after = nights.files
    written = {path for path, stamp in after.items() if before.get(path) != stamp}
    # the first run's outcomes were recorded, and the cache has every vector: a second report
    live = {stage.name for stage in STAGES if stage.live}
    later = {"miss_rate_claims", "calibrated_miss_rates", "mlflow_record", "gate_verdict"}
    # the explorer names the previous run, which has changed
    assert "explorer" in {path.split("/")[1] for path in written} <= {"explorer", *live, *later}
    assert before.items() <= after.items()
    assert again["run_id"] != first["run_id"]
    assert _stable_part(again) == _stable_part(first)


def test_another_home_and_another_place_find_the_same(nights, tmp_path):
    shutil.copytree(nights.project.root / "gold_sets", tmp_path / "deeper" / "gold_sets")
    moved = settings(tmp_path / "h", tmp_path / "deeper" / "gold_sets")
    again = run_of(open_gold_set(moved.gold_sets / "tiny", moved))
    first = nights.by_name["first"]
    assert again.report.content_hash == first.report["content_hash"]

    def tables(folder):
        wanted = (path for path in folder.iterdir() if path.suffix in {".csv", ".trec", ".gz"})
        return {path.name: path.read_bytes() for path in wanted}

    assert "run-bm25.trec" in tables(first.folder)
    assert tables(again.folder) == tables(first.folder)


CHANGES = {
    "a judgement": ("qrels.tsv", QRELS.replace("storage.md\t1", "storage.md\t2")),
    "a question": (
        "queries.jsonl",
        jsonl([{**QUERIES[0], "text": "When are results deleted?"}, *QUERIES[1:]]),
    ),
    "a document": ("corpus/alerts.md", DOCUMENTS["alerts.md"] + "\nAlerts are kept too.\n"),
    "a parameter": ("gold_set.yaml", CONFIG.replace("kind: bm25}", "kind: bm25, k1: 1.2}")),
    "the model": ("gold_set.yaml", CONFIG.replace("lsa-8", "lsa-4")),
}


@pytest.mark.slow
def test_each_change_of_an_input_changes_the_content_hash(nights):
    project, first = nights.project, nights.by_name["first"].report["content_hash"]
    hashes = {"nothing": first}
    for name, (file, text) in CHANGES.items():
        kept = (project.gold / file).read_text(encoding="utf-8")
        project.write(file, text)
        hashes[name] = run(project).report.content_hash
        project.write(file, kept)
    assert len(set(hashes.values())) == len(hashes), hashes
    assert run(project).report.content_hash == first


@pytest.mark.parametrize("name", VARIANTS)
def test_the_report_keeps_its_schema_and_explains_every_null(nights, name):
    night = nights.by_name[name]
    text = (night.folder / "retrieval-metrics.json").read_text(encoding="utf-8")
    assert json.loads(text) == night.report
    errors = jsonschema.Draft202012Validator(make_schema()).iter_errors(night.report)
    assert [f"{list(one.absolute_path)}: {one.message[:200]}" for one in errors] == []
    assert list(nulls_without_reason(night.report)) == []
    assert night.report["content_hash"] == content_hash(night.report)


def test_paths_and_time_are_not_hashed(nights):
    report = nights.by_name["no paraphrases"].report
    assert report["gold"]["warnings"]  # the warnings name files
    text = json.dumps(_stable_part(report))
    assert str(nights.project.root) not in text
    assert not re.search(r'"/(?:tmp|dev|home|root|work|private|var)/', text)

    stamped = {"content_hash", "run_id", "timestamp"}
    body = {key: part for key, part in report.items() if key not in stamped}
    draft = Report.draft({**body, "cacheHitRate": 0.5}, dt.datetime(2031, 1, 1, tzinfo=dt.UTC))
    later = draft.finish(draft.gates).dump()
    assert later["content_hash"] == report["content_hash"]
    assert later["run_id"] == f"20310101T000000000Z-{report['content_hash'][:8]}"
    draft = Report.draft({**body, "mrr": 0.123}, dt.datetime.now(dt.UTC))
    other = draft.finish(draft.gates).dump()
    assert other["content_hash"] != report["content_hash"]


def test_mlflow_holds_a_parent_and_a_child_for_each_strategy(nights, tracking_store):
    from mlflow import MlflowClient

    night = nights.by_name["first"]
    report, mlflow_run = night.report, night.outcome.recorded.mlflow_run
    assert night.outcome.recorded.error == ""
    client = MlflowClient(tracking_uri=tracking_store)
    parent = client.get_run(mlflow_run)
    children = client.search_runs(
        [parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{mlflow_run}'"
    )
    assert client.get_experiment(parent.info.experiment_id).name == "rag_eval/tiny"
    assert {child.info.run_name for child in children} == {"bm25", "vector"}
    assert {one.info.status for one in (parent, *children)} == {"FINISHED"}
    index, gold = report["index"], report["gold"]
    wanted = {"index_hash": index["hash"], "rev": index["rev"], "gold_hash": gold["hash"]}
    wanted |= {"chunks_hash": index["chunks_hash"], "content_hash": report["content_hash"]}
    assert wanted.items() <= parent.data.tags.items()
    inputs = {entry.dataset.name: entry.dataset.digest for entry in parent.inputs.dataset_inputs}
    assert inputs == {"tiny/corpus": index["chunks_hash"], "tiny/gold": gold["hash"]}
    hashes = {entry["name"]: entry["index_hash"] for entry in report["strategies"]}
    assert {child.info.run_name: child.data.tags["index_hash"] for child in children} == hashes
    entries = {entry["name"]: entry for entry in report["strategies"]}
    for child in children:
        recall = measure(entries[child.info.run_name], "R@10")
        assert child.data.metrics["recall_at_10"] == pytest.approx(recall["value"])
        assert child.data.metrics["recall_at_10.ci_low"] == pytest.approx(recall["ci_low"])
    assert {item.path for item in client.list_artifacts(mlflow_run)} == {
        "retrieval-metrics.json",
        "per-query.parquet",
        "answers.jsonl",
        "auditable-answers.jsonl",
        "citations.jsonl",
        "evidence-trust.jsonl",
    }
    measured = {"groundedness", "citation_precision", "citation_validity_rate", "failure_rate"}
    assert measured <= set(parent.data.metrics)


@pytest.mark.slow
def test_only_new_texts_are_embedded(project):
    folder = project.make_beir()
    more = [*BEIR_CORPUS, {"_id": "more.md", "title": "More", "text": "A page comes and goes."}]
    texts = [f"{row['title']} {row['text']}".strip() for row in more]
    keys = [text_hash(text) for text in [*texts, *(row["text"] for row in BEIR_QUERIES)]]
    # Each vector depends on its text alone, as with a model that is not fitted to the corpus.
    made = [np.random.default_rng(int(key[:8], 16)).normal(size=8) for key in keys]
    vectors = project.root / "vectors.npz"
    np.savez(vectors, sha256=np.array(keys), vectors=np.stack(made).astype(np.float32))

    def embedded():
        options = {"strategies": ("vector",), "vectors": vectors}
        evaluation = open_beir(folder, "test", settings(project.root), **options)
        found = run_of(evaluation).report.dump()["embeddings"]
        return found["needed"], found["embedded"]

    needed = len(BEIR_CORPUS) + len(BEIR_QUERIES)
    assert embedded() == (needed, needed)
    (folder / "corpus.jsonl").write_text(jsonl(more))
    assert embedded() == (needed + 1, 1)
    (folder / "corpus.jsonl").write_text(jsonl(more[1:]))
    (folder / "qrels" / "test.tsv").write_text(
        QRELS.replace(f"keep\t{BEIR_CORPUS[0]['_id']}", f"keep\t{more[-1]['_id']}")
    )
    assert embedded() == (needed, 0)


@pytest.mark.usefixtures("pages")
def test_a_night_repeats_only_what_a_change_outside_asks_for(project):
    def night() -> set[str]:
        """Run all stages, and return those that were made anew."""
        evaluation = open_gold_set(project.gold, settings(project.root))
        with evaluation.lock:
            return {made.stage.name for made in open_runner(evaluation).run() if not made.reused}

    reports = project.root / "reports" / project.gold.name
    later = {"retrieval_metrics_report", "html_report", "mlflow_record", "gate_verdict"}
    night()
    night()  # counts no text as embedded, so it has another cache hit rate
    stamp = (reports / "retrieval-metrics.json").stat().st_mtime_ns
    assert night() == set()
    assert (reports / "retrieval-metrics.json").stat().st_mtime_ns == stamp
    (reports / "index.html").unlink()
    assert night() == {"html_report"}
    assert (reports / "index.html").is_file()
    (reports / "retrieval-metrics.json").unlink()
    assert night() == later
    report = json.loads((reports / "retrieval-metrics.json").read_text(encoding="utf-8"))
    accept_baseline(
        settings(project.root),
        report["run_id"],
        "a person",
        "a test",
        gold_set=project.gold.name,
        force=True,
    )
    assert night() == later
    assert night() == set()
