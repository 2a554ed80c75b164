"""Spans of runs and of live questions reach a receiver over HTTP; a file of them is traffic."""

import json

import pytest
from cli_project import CONFIG, QUERIES
from fake_llm import FakeLLM
from otlp_receiver import receive
from requirements import need_package

from rag_eval.core.settings import Settings
from rag_eval.core.types import RetrievalOptions
from rag_eval.pipeline import spans
from rag_eval.pipeline.evaluation import open_gold_set
from rag_eval.pipeline.live import open_live, open_port

ONE_STRATEGY = CONFIG.replace("  - {name: vector, kind: vector, embedding: {model: lsa-8}}\n", "")


@pytest.fixture
def receiver(monkeypatch):
    need_package("openinference.semconv")
    with receive() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.address)
        yield running


def of_kind(found, kind):
    return [one for one in found if one["attributes"]["openinference.span.kind"] == kind]


def documents(span):
    prefix, suffix = "retrieval.documents.", ".document.id"
    names = {name: value for name, value in span["attributes"].items() if name.endswith(suffix)}
    places = sorted(names, key=lambda name: int(name.removeprefix(prefix).split(".")[0]))
    return [names[place] for place in places]


@pytest.mark.slow
def test_a_run_sends_its_retrievals_and_answers(project, receiver):
    project.run()
    found, report = receiver.spans(), project.report()
    retrievals, answers = of_kind(found, "RETRIEVER"), of_kind(found, "CHAIN")
    assert len(found) == len(retrievals) + len(answers) == 8 + 4
    about = [json.loads(one["attributes"]["metadata"]) for one in retrievals]
    assert {(one["strategy"], one["query_id"]) for one in about} == {
        (name, row["query_id"]) for name in ("bm25", "vector") for row in QUERIES
    }
    hashes = {part["name"]: part["index_hash"] for part in report["strategies"]}
    assert {(one["strategy"], one["index_hash"]) for one in about} == set(hashes.items())
    assert {(one["run_id"], one["rev"]) for one in about} == {
        (report["run_id"], report["index"]["rev"])
    }
    assert all(0 <= one["miss_rate"] <= 1 for one in about)
    lines = {row["query_id"]: row for row in project.lines("answers.jsonl")}
    for span in answers:
        facts = json.loads(span["attributes"]["metadata"])
        line = lines[facts["query_id"]]
        assert span["attributes"]["output.value"] == line["text"]
        assert facts["outcome"] == line["outcome"]
        assert bool(facts["citations"]) == bool(line["citations"])
    children = {one["parentSpanId"] for one in retrievals if "parentSpanId" in one}
    assert children == {one["spanId"] for one in answers}
    # a run that reuses every stage sends the spans of its own report
    receiver.batches.clear()
    project.run()
    again = of_kind(receiver.spans(), "RETRIEVER")
    assert [documents(one) for one in again] == [documents(one) for one in retrievals]
    assert json.loads(again[0]["attributes"]["metadata"])["run_id"] != report["run_id"]


@pytest.mark.slow
def test_spans_of_a_run_are_read_back_as_its_claims(project, receiver):
    project.write("gold_set.yaml", ONE_STRATEGY)
    project.run()
    exported = project.root / "spans.jsonl"
    exported.write_text(receiver.lines(), encoding="utf-8")
    said = project.invoke("claim", "import", exported).stdout
    assert "4 claims imported, 0 were there already" in said
    shown = project.invoke("claim", "list", "--json").stdout
    claims = {row["query"]: row for row in map(json.loads, shown.splitlines())}
    retrievals = of_kind(receiver.spans(), "RETRIEVER")
    assert claims.keys() == {row["text"] for row in QUERIES}
    for span in retrievals:
        claim = claims[span["attributes"]["input.value"]]
        facts = json.loads(span["attributes"]["metadata"])
        assert [name for name, _ in claim["retrieved"]] == documents(span)
        assert claim["strategy"] == "bm25"
        assert claim["strategy_fingerprint"] == facts["strategy_fingerprint"]
        assert claim["miss_rate"] == facts["miss_rate"]
    said = project.invoke("claim", "import", exported).stdout
    assert "0 claims imported, 4 were there already" in said
    # the answers and what they cite are read from the same file
    project.command("run", "--recorded", exported)


@pytest.mark.slow
def test_without_a_receiver_the_report_is_complete(project, receiver, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:s3cr3t-pw@127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    result = project.run()
    assert result.stderr.count("warning: spans: 0 sent, 12 not: ") == 1
    assert "s3cr3t" not in result.output + result.stderr
    assert project.report()["run_id"] in result.stdout


def test_served_questions_send_spans(project, receiver):
    spans._served_spans.cache_clear()
    settings = Settings.model_validate({"home": project.home, "reports": project.reports})
    evaluation = open_gold_set(project.gold, settings)
    port, live = open_port(evaluation), open_live(evaluation, "bm25")
    asked = [row["text"] for row in QUERIES]
    results = port.batch_retrieve(asked[:2], RetrievalOptions(top_k=2))
    stated = live.retrieve(asked[2])
    spans._served_spans().close()
    spans._served_spans.cache_clear()
    found = receiver.spans()
    assert [one["attributes"]["input.value"] for one in found] == asked[:3]
    for result, span in zip(results, found[:2], strict=True):
        assert documents(span) == [chunk.snippet_id for chunk in result.chunks]
    *port_facts, facts = (json.loads(span["attributes"]["metadata"]) for span in found)
    assert facts["strategy"] == "bm25"
    assert facts["miss_rate"] == stated.miss_rate.value
    for one in port_facts:  # a claim needs both names
        assert one["strategy"] == "bm25"
        assert one["strategy_fingerprint"] == facts["strategy_fingerprint"]


@pytest.mark.slow
def test_the_chat_behind_an_answer_is_a_span(project, receiver, monkeypatch):
    part = {"mode": "llm", "endpoint": "local", "top_k": 3}
    text = ONE_STRATEGY.replace("{mode: deterministic, top_k: 5}", json.dumps(part))
    project.write("gold_set.yaml", text)
    project.ask({"again": "How often is a failed job tried again?"}, "retries.md")
    with FakeLLM() as model:
        entry = {"base_url": model.base_url, "model": "good", "api_key": "sk-0123456789-secret"}
        monkeypatch.setenv("RAG_EVAL_ENDPOINTS", json.dumps({"local": entry}))
        project.run()
        (asked,) = model.received
    (chat,), (answer,) = (of_kind(receiver.spans(), kind) for kind in ("LLM", "CHAIN"))
    assert chat["parentSpanId"] == answer["spanId"]
    found = chat["attributes"]
    assert found["llm.model_name"] == "good"
    messages = [found[f"llm.input_messages.{n}.message.content"] for n in range(2)]
    assert messages == [message["content"] for message in asked.body["messages"]]
    assert int(found["llm.token_count.prompt"]) > 0
    assert "sk-0123456789-secret" not in receiver.lines()
