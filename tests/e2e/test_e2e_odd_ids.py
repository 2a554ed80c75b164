"""A BEIR folder as people bring it: odd ids, titles without text, questions that are documents.

Every exported file, read back, gives the figures of the report.
"""

import json

import pandas as pd
import pytest
import yaml
from rich.console import Console

import rag_eval
from rag_eval.core.settings import Settings
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.stages import evaluate_all
from rag_eval.reporting.terminal import show_report

TEXTS = {
    "two words.md": "the pump runs at forty bar",
    "100%.md": "the valve closes in two seconds",
    "a%20b.md": "a filter is cleaned every month",
    "a b.md": "gauges are read by a person",
    "/data/überblick/水.md": "water is kept at ten degrees",
    "C:\\docs\\pump.md": "an old pump of another maker",
    "7": "trains are late in winter",
    "zebra": "",
}
QUESTIONS = {
    "q 1": ("pump bar", {"two words.md": 1, "C:\\docs\\pump.md": -1}),
    "50%": ("valve seconds filter", {"100%.md": "1.0", "a%20b.md": 2}),
    "f/é": ("filter month gauges", {"a%20b.md": 1}),
    "水": ("water degrees", {"/data/überblick/水.md": 1}),
    "title": ("zebra stripes", {"zebra": 1}),
    "zeros": ("maker of the old pump", {"C:\\docs\\pump.md": 0}),
    "7": ("trains are late in winter", {"a b.md": 1}),
}
MEASURES = ["R@1", "RR", "nDCG@10"]


def make_set(folder, **more):
    (folder / "qrels").mkdir(parents=True)
    corpus = [
        {"_id": name, "title": None if text else "Zebra stripes", "text": text}
        for name, text in TEXTS.items()
    ]
    queries = [{"_id": name, "text": text} for name, (text, _) in QUESTIONS.items()]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = [
        f"{query}\t{document}\t{grade}\n"
        for query, (_, grades) in QUESTIONS.items()
        for document, grade in grades.items()
    ]
    head = "query-id\tcorpus-id\tscore\n"
    (folder / "qrels" / "test.tsv").write_text(head + "".join(judged), encoding="utf-8")
    config = {
        "name": "odd",
        "split": "test",
        "k": [1, 10],
        "seeds": [13],
        "nightly": False,
        "corpus": {"loader": "beir", "path": "."},
        "strategies": [{"name": "bm25", "kind": "bm25"}],
        **more,
    }
    (folder / "gold_set.yaml").write_text(yaml.safe_dump(config))
    return folder


def evaluate(root, **more):
    """Return the outcome of a run over the folder, and its reports."""
    folder = make_set(root / "gold_sets" / "odd", **more)
    settings = Settings(home=root / "home", reports=root / "reports", gold_sets=folder.parent)
    (outcome,) = evaluate_all([open_gold_set(folder, settings)], settings)
    return outcome, root / "reports" / "odd"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    return evaluate(tmp_path_factory.mktemp("odd"))


def test_every_exported_file_gives_the_figures_of_the_report(ran):
    _, reports = ran
    run = pd.read_parquet(reports / "runs.parquet").drop(columns="query_id")
    runs = [reports / "run-bm25.trec", run]
    plain = reports.parents[1] / "gold_sets" / "odd" / "qrels" / "test.tsv"
    judged = [reports / "qrels.trec", reports / "qrels.parquet", plain]
    columns = dict(zip(MEASURES, ["recall_at_1", "mrr", "ndcg_at_10"], strict=True))
    table = pd.read_parquet(reports / "per-query.parquet").query("level == 'document'")
    wanted = {label: table[name].mean() for label, name in columns.items()}
    assert 0 < wanted["R@1"] < wanted["RR"] < 1
    for one in runs:
        for qrels in judged:
            found = rag_eval.evaluate(one, qrels, MEASURES).table["value"]
            assert found.to_dict() == pytest.approx(wanted), (one, qrels)


def test_a_literal_percent_sign_of_another_tool_stays():
    qrels = {"q": {"https://example.org/a%20b": 1, "c d": 0}}
    run = {"q": {"https://example.org/a%20b": 2.0, "c%20d": 1.0}}
    assert rag_eval.evaluate(run, qrels, ["R@1"]).table["value"].tolist() == [1.0]
    other = {"q": {"a%2Fb": 1.0}}
    assert rag_eval.evaluate(other, {"q": {"a/b": 1}}, ["R@1"]).table["value"].tolist() == [0.0]


def test_a_document_is_found_by_its_title_alone(ran):
    lines = (ran[1] / "run-bm25.trec").read_text(encoding="utf-8").splitlines()
    assert [line.split()[2] for line in lines if line.startswith("title ")] == ["zebra"]


def test_a_question_judged_not_relevant_scores_zero_and_is_named(ran):
    outcome, reports = ran
    rows = pd.read_parquet(reports / "per-query.parquet").set_index(["level", "query_id"])
    row = rows.loc["document", "zeros"]
    assert (row["eligible"], row["mrr"], row["judged_at_10"] > 0) == (True, 0.0, True)
    assert codes(outcome) >= {"nothing_relevant"}


def codes(outcome):
    return {warning["code"] for warning in outcome.report.dump()["gold"]["warnings"]}


def own(reports):
    rows = map(
        str.split,
        (reports / "run-bm25.trec").read_text(encoding="utf-8").splitlines(),
    )
    return [row[0] for row in rows if row[0] == row[2]]


def test_a_question_that_is_a_document_is_named_and_can_be_ignored(ran, tmp_path):
    outcome, reports = ran
    (warning,) = (
        one for one in outcome.report.dump()["gold"]["warnings"] if one["code"] == "identical_ids"
    )
    assert "1 of 7 questions have the id of a document, 1 of them also its text" in str(warning)
    console = Console(record=True, width=200)
    show_report(console, outcome.report, short=True)
    assert "identical_ids" in console.export_text()
    assert own(reports) == ["7"]
    outcome, reports = evaluate(tmp_path, ignore_identical_ids=True)
    assert own(reports) == []
    assert "identical_ids" not in codes(outcome)
