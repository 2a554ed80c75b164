"""Formats of other tools: every example of `foreign/` asks one question and retrieves two texts."""

import datetime as dt
import json
from pathlib import Path

import pytest

from rag_eval.core.errors import InputError, ProblemList
from rag_eval.corpus.loaders import recorded
from rag_eval.corpus.loaders.foreign import FORMATS, find_format
from rag_eval.corpus.loaders.recorded import RecordedOutput, context_id
from rag_eval.uncertainty.outcome_files import read_claims

EXAMPLES = Path(__file__).parent / "foreign"
TEXTS = ("The ferry leaves at noon.", "Bicycles are free.")
CASES = {
    "ragas.jsonl": {"ids", "texts"},
    "deepeval.json": {"texts"},
    "genai.json": {"ids", "scores", "spans"},
    "openinference.jsonl": {"ids", "texts", "scores", "spans"},
    "langfuse.json": {"ids", "texts", "scores", "spans"},
    "langsmith.jsonl": {"ids", "texts", "scores", "spans"},
}


def read_outputs(path):
    return recorded.read_outputs(path, ProblemList())


def test_every_format_has_an_example():
    assert {path.name for path in EXAMPLES.iterdir()} == set(CASES)
    assert {find_format(EXAMPLES / name).name for name in CASES} == {one.name for one in FORMATS}


@pytest.mark.parametrize(("name", "has"), CASES.items())
def test_an_example_becomes_a_recorded_output(name, has):
    output = read_outputs(EXAMPLES / name)[0]
    assert (output.question, output.answer) == ("When is the ferry?", "At noon.")
    ids = ("timetable", "bicycles") if "ids" in has else tuple(map(context_id, TEXTS))
    assert tuple(item.document for item in output.contexts) == ids
    assert tuple(item.text for item in output.contexts) == (TEXTS if "texts" in has else ("", ""))
    scores = (0.9, 0.4) if "scores" in has else (None, None)
    assert tuple(item.score for item in output.contexts) == scores
    if "spans" in has:
        assert output.query_id == "t1"
        assert dt.datetime.fromisoformat(output.at) == dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(("name", "has"), CASES.items())
def test_an_example_becomes_a_claim(name, has):
    claims, _ = read_claims(EXAMPLES / name, ProblemList(), strategy="mine", fingerprint="v1", k=5)
    claim = claims[0]
    assert (claim.query, claim.k, len(claim.retrieved)) == ("When is the ferry?", 5, 2)
    assert claim.query_id != "t1"
    assert (claim.at is not None) == ("spans" in has)


def test_nested_runs_and_dotted_columns_are_spans(tmp_path):
    child, root = map(json.loads, (EXAMPLES / "langsmith.jsonl").read_text().splitlines())
    nested = tmp_path / "nested.json"
    nested.write_text(json.dumps([root | {"child_runs": [child]}], indent=1))
    assert read_outputs(nested) == read_outputs(EXAMPLES / "langsmith.jsonl")
    spans = map(json.loads, (EXAMPLES / "openinference.jsonl").read_text().splitlines())
    flat = tmp_path / "flat.jsonl"
    flat.write_text("".join(f"{json.dumps(flatten(span))}\n" for span in spans))
    assert read_outputs(flat) == read_outputs(EXAMPLES / "openinference.jsonl")


def flatten(span: dict[str, object]) -> dict[str, object]:
    rows = {f"context.{name}": value for name, value in span.pop("context").items()}
    rows |= {f"attributes.{name}": value for name, value in span.pop("attributes").items()}
    return rows | span


OTLP = '{"resourceSpans": [{"scopeSpans": [{"spans": [%s]}]}]}'
RETRIEVER = (
    '{"run_type": "retriever", "id": "a", "inputs": {"query": "x"}, "outputs": {"documents": [%s]}}'
)
DEEP = '{"arrayValue": {"values": [' * 90 + '{"intValue": "1"}' + "]}}" * 90
ODD = '{"traceId": "t", "attributes": [{"key": "a", "value": %s}, {"value": 3}, 4, {"key": 5}]}'
FAULTS = [
    (OTLP % ODD % DEEP, "no_retrieval", None, None),
    (
        OTLP % '{"traceId": "t", "attributes": {"a": {"kvlistValue": 3}}}',
        "no_retrieval",
        None,
        None,
    ),
    (
        '[{"input": "x",\n "actual_output": "y"},\n {"input": "z"}]',
        "missing_key",
        3,
        "actual_output",
    ),
    ('{"actual_output": "y"}', "missing_key", 1, "input"),
    ('{"input": "x", "retrieval_context": [3]}', "wrong_type", 1, "contexts[0]"),
    ('[{"input": "x", "actual_output": "y"},\n {"input": ]', "bad_json", 2, None),
    ('[{"input": "x", "actual_output": "y"}, 3]', "not_an_object", 1, None),
    ('{"input": "x", "actual_output": "y", "input": "z"}', "duplicate_key", 1, None),
    (OTLP % '{"traceId": "t", "name": "GET"}', "no_retrieval", None, None),
    (
        RETRIEVER % '{"page_content": "y", "metadata": {"score": "high"}}',
        "wrong_type",
        1,
        "contexts[0].score",
    ),
    (RETRIEVER % '{"metadata": {}}', "missing_key", 1, "contexts[0]"),
]


@pytest.mark.parametrize(("text", "code", "line", "field"), FAULTS)
def test_a_fault_names_file_line_and_field(text, code, line, field, tmp_path):
    path = tmp_path / "export.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_outputs(path)
    (problem,) = caught.value.problems
    assert (problem.code, problem.line, problem.field) == (code, line, field)
    assert problem.file.endswith("export.json")
    assert problem.accepted


def test_own_rows_are_never_another_format(tmp_path):
    path = tmp_path / "outputs.jsonl"
    path.write_text('{"query_id": "q", "answer": "a", "contexts": [], "attributes": {}}\n')
    assert find_format(path) is None
    assert read_outputs(path)[0] == RecordedOutput(query_id="q", answer="a", line=1)


SEARCH = (
    '{"run_type": "retriever", "id": "a", "trace_id": "t1", "inputs": {"query": "x"}, '
    '"outputs": {"documents": [{"page_content": "y"}]}}\n'
)
CHAT = '{"run_type": "llm", "id": "b", "trace_id": "t2"}\n'
LOST = '{"run_type": "llm"}\n'
FOUND = (
    '{"traceId": "t1", "id": "a", "type": "RETRIEVER", "input": "x", '
    '"output": [{"page_content": "y"}]}'
)
GENAI = (EXAMPLES / "genai.json").read_text(encoding="utf-8").replace("\n", "")
LEFT_OUT = [
    (SEARCH, []),
    (SEARCH + CHAT, ["1 of 2 traces without a retrieval span"]),
    (SEARCH + LOST + LOST, ["2 of 3 spans without a trace"]),
    (SEARCH + CHAT + CHAT + LOST, ["1 of 2 traces without", "1 of 4 spans without"]),
    (f'{{"data": [{FOUND}, {{"type": "SPAN"}}]}}', ["1 of 2 spans without a trace"]),
    # A page without observations and a batch without spans are no spans.
    (f'{{"data": [{FOUND}]}}\n{{"data": [], "meta": {{}}}}', []),
    (f'{GENAI}\n{{"resourceSpans": []}}', ["1 of 2 traces without a retrieval span"]),
    (GENAI + "\n" + OTLP % '{"name": "GET"}', ["1 of 2 traces without", "1 of 4 spans without"]),
]


@pytest.mark.parametrize(("text", "counts"), LEFT_OUT)
def test_traces_and_spans_left_out_are_counted(text, counts, tmp_path):
    path, warnings = tmp_path / "export.json", ProblemList()
    path.write_text(text)
    assert len(recorded.read_outputs(path, warnings)) == 1
    assert [warning.code for warning in warnings.listed()] == ["left_out"] * bool(counts)
    for warning in warnings.listed():
        assert (warning.severity, warning.file) == ("warning", str(path))
        assert warning.message.count(" of ") == len(counts)
        assert [count for count in counts if count not in warning.message] == []
        marks = ("retriev" in warning.accepted.lower(), "trace at" in warning.accepted)
        assert marks == ("traces" in warning.message, "spans without" in warning.message)


def test_an_error_of_the_file_names_the_counts(tmp_path):
    path = tmp_path / "export.jsonl"
    path.write_text(CHAT + LOST)
    with pytest.raises(InputError) as caught:
        read_outputs(path)
    (problem,) = caught.value.problems
    counts = "1 of 1 traces without a retrieval span and 1 of 2 spans without a trace"
    assert (problem.code, problem.found) == ("no_retrieval", counts)
