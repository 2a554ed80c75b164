"""A second run computes only changed parts; changes of the content_hash; the files of a run."""

import datetime as dt
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pytest
from cli_project import BEIR_CORPUS, BEIR_QUERIES, CONFIG, DOCUMENTS, QRELS, QUERIES, Project, jsonl

from rag_eval.core.report import make_schema
from rag_eval.core.settings import Settings
from rag_eval.pipeline.evaluation import Evaluation, open_beir, open_gold_set
from rag_eval.pipeline.retrieval import chroma_store
from rag_eval.pipeline.run import Outcome, evaluate_all
from rag_eval.pipeline.stages import STAGES
from rag_eval.reporting.metrics_report import content_hash, finish, stable_part
from rag_eval.storage.hashing import text_hash

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # raised inside MLflow's own SQLAlchemy models


def settings(project: Project, home: str = "home") -> Settings:
    return Settings(
        home=project.root / home,
        reports=project.root / f"{home}-reports",
        gold_sets=project.root / "gold_sets",
    )


def run(project: Project, home: str = "home", **options: Any) -> Outcome:
    return run_of(open_gold_set(project.gold, settings(project, home), **options))


def run_of(evaluation: Evaluation) -> Outcome:
    return evaluate_all([evaluation], evaluation.settings)[0]


def made(home: Path) -> dict[str, tuple[int, int]]:
    """Return the inode and time of every stored file, which change with a new write."""
    return {
        str(path.relative_to(home)): (path.stat().st_ino, path.stat().st_mtime_ns)
        for part in ("artifacts", "embeddings")
        for path in (home / part).rglob("*")
        if path.is_file()
    }


def test_a_second_run_finds_the_same_and_makes_nothing(project):
    first = run(project)
    before = made(project.home)
    again = run(project)
    assert again.report.dump()["content_hash"] == first.report.dump()["content_hash"]
    assert again.report.dump()["embeddings"]["embedded"] == 0
    assert (
        first.report.dump()["embeddings"]["embedded"]
        == first.report.dump()["embeddings"]["needed"]
        > 0
    )
    assert again.report.dump()["reused"] == {"index": True, "runs": {"bm25": True, "vector": True}}
    assert first.report.dump()["reused"] == {
        "index": False,
        "runs": {"bm25": False, "vector": False},
    }
    written = {path for path, stamp in made(project.home).items() if before.get(path) != stamp}
    live = {stage.name for stage in STAGES if stage.live}
    # the explorer names the previous run, which has changed
    assert "explorer" in {path.split("/")[1] for path in written} <= {"explorer", *live}
    assert before.items() <= made(project.home).items()
    assert again.report.dump()["run_id"] != first.report.dump()["run_id"]
    assert stable_part(again.report.dump()) == stable_part(first.report.dump())


def test_another_home_and_another_place_find_the_same(project):
    first = run(project)
    elsewhere = project.root / "moved" / "deeper"
    shutil.copytree(project.root / "gold_sets", elsewhere / "gold_sets")
    moved = Settings(
        home=elsewhere / "h", reports=elsewhere / "r", gold_sets=elsewhere / "gold_sets"
    )
    again = run_of(open_gold_set(elsewhere / "gold_sets" / "tiny", moved))
    assert again.report.dump()["content_hash"] == first.report.dump()["content_hash"]
    assert {
        path.name: path.read_bytes()
        for path in again.folder.glob("*.*")
        if path.suffix in {".csv", ".trec"}
    } == {
        path.name: path.read_bytes()
        for path in first.folder.glob("*.*")
        if path.suffix in {".csv", ".trec"}
    }


CHANGES = {
    "a judgement": lambda project: (project.gold / "qrels.tsv").write_text(
        QRELS.replace("storage.md\t1", "storage.md\t2")
    ),
    "a question": lambda project: (project.gold / "queries.jsonl").write_text(
        jsonl([{**QUERIES[0], "text": "When are results deleted?"}, *QUERIES[1:]])
    ),
    "a document": lambda project: (project.corpus / "alerts.md").write_text(
        DOCUMENTS["alerts.md"] + "\nAlerts are kept too.\n"
    ),
    "a parameter": lambda project: (project.gold / "gold_set.yaml").write_text(
        CONFIG.replace("kind: bm25}", "kind: bm25, k1: 1.2}")
    ),
    "the model": lambda project: (project.gold / "gold_set.yaml").write_text(
        CONFIG.replace("lsa-8", "lsa-4")
    ),
}


@pytest.mark.slow
def test_each_change_of_an_input_changes_the_content_hash(project):
    first = run(project).report.content_hash
    saved = project.root / "saved"
    shutil.copytree(project.root / "gold_sets", saved)
    hashes = {"nothing": first}
    for name, change in CHANGES.items():
        change(project)
        hashes[name] = run(project).report.content_hash
        shutil.rmtree(project.root / "gold_sets")
        shutil.copytree(saved, project.root / "gold_sets")
    assert len(set(hashes.values())) == len(hashes), hashes
    assert run(project).report.content_hash == first


def write_vectors(project: Project, corpus: list[dict[str, str]]) -> Path:
    """Vectors of a text depend on the text alone, as those of a model that is not fitted."""
    texts = [f"{row['title']} {row['text']}".strip() for row in corpus] + [
        row["text"] for row in BEIR_QUERIES
    ]
    keys = [text_hash(text) for text in texts]
    path = project.root / "vectors.npz"
    np.savez(
        path,
        sha256=np.array(keys),
        vectors=np.stack(
            [np.random.default_rng(int(key[:8], 16)).normal(size=8) for key in keys]
        ).astype(np.float32),
    )
    return path


def test_only_new_texts_are_embedded_and_gone_chunks_leave_the_store(project):
    folder = project.make_beir()
    more = [
        *BEIR_CORPUS,
        {"_id": "more.md", "title": "More", "text": "A page that comes and goes."},
    ]
    vectors = write_vectors(project, more)

    def beir() -> tuple[Outcome, Evaluation]:
        evaluation = open_beir(
            folder, "test", settings(project), strategies=("vector",), vectors=vectors
        )
        return run_of(evaluation), evaluation

    first, _ = beir()
    needed = len(BEIR_CORPUS) + len(BEIR_QUERIES)
    assert (
        first.report.dump()["embeddings"]["needed"],
        first.report.dump()["embeddings"]["embedded"],
    ) == (
        needed,
        needed,
    )
    (folder / "corpus.jsonl").write_text(jsonl(more))
    second, evaluation = beir()
    assert second.report.dump()["embeddings"]["embedded"] == 1
    ((collection, change),) = [
        (entry["collection"], entry)
        for entry in second.report.dump()["vector_store"]["collections"].values()
    ]
    assert (change["added"], change["removed"], change["kept"]) == (1, 0, len(BEIR_CORPUS))
    ids = chroma_store(evaluation.settings).ids(collection)
    assert len(ids) == len(more)
    (folder / "corpus.jsonl").write_text(jsonl(more[1:]))
    (folder / "qrels" / "test.tsv").write_text(
        QRELS.replace(f"keep\t{BEIR_CORPUS[0]['_id']}", f"keep\t{more[-1]['_id']}")
    )
    third, evaluation = beir()
    assert third.report.dump()["embeddings"]["embedded"] == 0
    ((collection, change),) = [
        (entry["collection"], entry)
        for entry in third.report.dump()["vector_store"]["collections"].values()
    ]
    assert (change["added"], change["removed"], change["kept"]) == (0, 1, len(BEIR_CORPUS))
    assert chroma_store(evaluation.settings).ids(collection) < ids


def nulls(value: Any, place: str = "") -> Iterator[str]:
    """Null figures, alone or in a list, without a reason beside them."""
    if isinstance(value, dict):
        for key, part in value.items():
            null = part is None or (
                isinstance(part, list)
                and "None" in re.findall(r"None", repr(part))
                and not any(isinstance(x, dict) for x in part)
            )
            reasoned = (
                key == "rerank"
                or value.get(f"{key}_reason")
                or (key == "value" and value.get("reason"))
            )
            if null and not reasoned:
                yield f"{place}.{key}"
            yield from nulls(part, f"{place}.{key}")
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from nulls(part, f"{place}[{number}]")


def all_unanswerable(project: Project) -> None:
    (project.gold / "queries.jsonl").write_text(
        jsonl([{**row, "answerable": False} for row in QUERIES])
    )
    (project.gold / "answers.jsonl").unlink()
    (project.gold / "qrels.tsv").unlink()


REPORTS = {
    "as it is": lambda project: (project.gold / "gold_set.yaml").write_text(CONFIG),
    "nothing answerable": all_unanswerable,
    "one question": lambda project: (
        (project.gold / "queries.jsonl").write_text(jsonl(QUERIES[1:2])),
        (project.gold / "paraphrases.jsonl").unlink(),
        (project.gold / "qrels.tsv").unlink(),
    ),
    "approximate, reranked, two seeds": lambda project: (project.gold / "gold_set.yaml").write_text(
        CONFIG.replace("seeds: [13]", "seeds: [13, 29]").replace(
            "{model: lsa-8}}", "{model: lsa-8}, search: approximate, rerank: {kind: mmr}}"
        )
    ),
}


@pytest.mark.parametrize("change", REPORTS.values(), ids=REPORTS.keys())
def test_the_report_keeps_its_schema_and_explains_every_null(project, change):
    change(project)
    report = run(project).report.dump()
    on_disk = json.loads(
        (project.root / "home-reports" / "tiny" / "retrieval-metrics.json").read_text(
            encoding="utf-8"
        )
    )
    assert on_disk == report
    errors = [
        f"{list(error.absolute_path)}: {error.message[:200]}"
        for error in jsonschema.Draft202012Validator(make_schema()).iter_errors(report)
    ]
    assert not errors
    assert list(nulls(report)) == []
    assert report["content_hash"] == content_hash(report)


def test_paths_and_time_are_not_hashed(project):
    (project.gold / "paraphrases.jsonl").unlink()  # a set with warnings, which name files
    report = run(project).report.dump()
    assert report["gold"]["warnings"]
    text = json.dumps(stable_part(report))
    assert str(project.root) not in text
    assert not re.search(r'"/(?:tmp|home|root|work|private|var)/', text)

    stamped = {"content_hash", "run_id", "timestamp"}
    body = {key: part for key, part in report.items() if key not in stamped}
    later = finish({**body, "cacheHitRate": 0.5}, dt.datetime(2031, 1, 1, tzinfo=dt.UTC)).dump()
    assert later["content_hash"] == report["content_hash"]
    assert later["run_id"] == f"20310101T000000000Z-{report['content_hash'][:8]}"
    other = finish({**body, "mrr": 0.123}, dt.datetime.now(dt.UTC)).dump()
    assert other["content_hash"] != report["content_hash"]


def test_mlflow_holds_a_parent_and_a_child_for_each_strategy(project, tracking_store):
    outcome = run(project)
    assert outcome.mlflow_error is None
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=tracking_store)
    parent = client.get_run(outcome.mlflow_run)
    children = client.search_runs(
        [parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{outcome.mlflow_run}'"
    )
    report = outcome.report.dump()
    assert client.get_experiment(parent.info.experiment_id).name == "rag_eval/tiny"
    assert {child.info.run_name for child in children} == {"bm25", "vector"}
    assert {run_.info.status for run_ in (parent, *children)} == {"FINISHED"}
    wanted = {
        "index_hash": report["index"]["hash"],
        "rev": report["index"]["rev"],
        "gold_hash": report["gold"]["hash"],
        "content_hash": report["content_hash"],
    }
    assert wanted.items() <= parent.data.tags.items()
    hashes = {entry["name"]: entry["index_hash"] for entry in report["strategies"]}
    assert {child.info.run_name: child.data.tags["index_hash"] for child in children} == hashes
    inputs = {entry.dataset.name: entry.dataset.digest for entry in parent.inputs.dataset_inputs}
    assert inputs == {
        "tiny/corpus": report["index"]["chunks_hash"],
        "tiny/gold": report["gold"]["hash"],
    }
    for child in children:
        entry = next(
            entry for entry in report["strategies"] if entry["name"] == child.info.run_name
        )
        recall = next(
            record
            for record in entry["measures"]
            if record["name"] == "recall_at_10" and record["level"] == "document"
        )
        assert child.data.metrics["recall_at_10"] == pytest.approx(recall["value"])
        assert child.data.metrics["recall_at_10.ci_low"] == pytest.approx(recall["ci_low"])
    artifacts = {item.path for item in client.list_artifacts(outcome.mlflow_run)}
    assert artifacts == {
        "retrieval-metrics.json",
        "per-query.parquet",
        "measures.csv",
        "answers.jsonl",
        "citations.jsonl",
        "evidence-trust.jsonl",
        "per-question.json",
    }
    assert {"groundedness", "citation_precision", "citation_validity_rate", "failure_rate"} <= set(
        parent.data.metrics
    )


def corrupt_store(root: Path) -> str:
    (root / "broken.db").write_bytes(b"no database at all" * 100)
    return f"sqlite:///{root / 'broken.db'}"


@pytest.mark.parametrize(
    "uri",
    ["http://127.0.0.1:9", corrupt_store],
    ids=["unreachable", "corrupt"],
)
def test_a_failing_mlflow_never_loses_the_report(project, monkeypatch, uri):
    monkeypatch.setenv("RAG_EVAL_TRACKING_URI", uri if isinstance(uri, str) else uri(project.root))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    result = project.invoke("run", "tiny")
    assert result.exit_code == 0, result.stderr
    assert "MLflow did not record this run" in result.stderr
    assert "Traceback" not in result.stderr
    report = project.report()
    assert report["content_hash"] == content_hash(report)


def test_files_of_the_field_give_the_reports_figures(project):
    import ir_measures

    (
        project.gold / "paraphrases.jsonl"
    ).unlink()  # runs hold the questions' own wordings, so the report's means are over these alone
    outcome = run(project)
    qrels = list(ir_measures.read_trec_qrels(str(outcome.folder / "qrels.trec")))
    per_query = pd.read_parquet(outcome.folder / "per-query.parquet")
    for entry in outcome.report.dump()["strategies"]:
        ranking = list(ir_measures.read_trec_run(str(outcome.folder / f"run-{entry['name']}.trec")))
        records = {
            record["label"]: record for record in entry["measures"] if record["level"] == "document"
        }
        parsed = {label: ir_measures.parse_measure(label) for label in records}
        found = ir_measures.calc_aggregate(parsed.values(), qrels, ranking)
        assert {label: found[measure] for label, measure in parsed.items()} == pytest.approx(
            {label: record["value"] for label, record in records.items()}
        )
        assert len({row.query_id for row in qrels}) == records["R@10"]["n_scored"]
        rows = per_query[
            (per_query["strategy"] == entry["name"])
            & (per_query["level"] == "document")
            & per_query["eligible"]
        ]
        assert rows["recall_at_5"].mean() == pytest.approx(records["R@5"]["value"])
        table = pd.read_csv(outcome.folder / "measures.csv")
        shown = (
            table[(table["strategy"] == entry["name"]) & (table["level"] == "document")]
            .set_index("label")["value"]
            .dropna()
        )
        assert shown.to_dict() == pytest.approx(
            {label: record["value"] for label, record in records.items()}
        )
