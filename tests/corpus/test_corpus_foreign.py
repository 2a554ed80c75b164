"""Formats of other tools: every example of `foreign/` asks one question and retrieves two texts."""

import datetime as dt
import json
from pathlib import Path

import pandas as pd
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
    """Read outputs without the name of their file."""
    outputs = recorded.read_outputs(path, ProblemList())
    assert {one.file for one in outputs} == {str(path)}
    return [one.model_copy(update={"file": ""}) for one in outputs]


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
    claims = read_claims(
        [EXAMPLES / name], ProblemList(), strategy="mine", fingerprint="v1", k=5
    ).claims
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
    (SEARCH + CHAT + CHAT + LOST, ["1 of 2 traces without", "1 of 3 spans without"]),
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


# ---- Spans as production exports them: twice, cut over files, without parents, as tables.

SPANS = [json.loads(line) for line in (EXAMPLES / "openinference.jsonl").read_text().splitlines()]


def write_spans(path, spans):
    path.write_text("".join(f"{json.dumps(span)}\n" for span in spans), encoding="utf-8")
    return path


def test_a_span_that_was_exported_twice_counts_once(tmp_path):
    again = write_spans(tmp_path / "again.jsonl", [*SPANS, *SPANS])
    assert [len(one.contexts) for one in read_outputs(again)] == [2]


def test_a_trace_may_be_cut_over_files(tmp_path):
    root, search = (
        write_spans(tmp_path / f"{place}.jsonl", [span]) for place, span in enumerate(SPANS)
    )
    warnings = ProblemList()
    (output,) = recorded.read_outputs(root, warnings, search)
    (whole,) = read_outputs(EXAMPLES / "openinference.jsonl")
    assert not warnings.listed()
    assert output.model_copy(update={"file": ""}) == whole
    # the part without its root asks what the retrieval asked
    (alone,) = read_outputs(search)
    assert (alone.question, alone.answer) == ("ferry time", None)
    assert alone.contexts == whole.contexts


def test_traces_without_a_retrieval_are_named(tmp_path):
    other = [{**SPANS[0], "context": {"trace_id": f"t{n}\u202e", "span_id": "s"}} for n in range(7)]
    warnings = ProblemList()
    recorded.read_outputs(write_spans(tmp_path / "more.jsonl", [*SPANS, *other]), warnings)
    (warning,) = warnings.listed()
    assert warning.message.count("7 of 8 traces without a retrieval span") == 1
    assert warning.found == ", ".join([*(f"t{n}\\u202e" for n in range(5)), "..."])


def phoenix_rows():
    """Rows of Phoenix's data frame of spans: documents are a list with dotted names."""
    rows = [flatten(json.loads(json.dumps(span))) for span in SPANS]
    kept = "attributes.retrieval.documents"
    listed = [
        {
            f"document.{key}": rows[1].pop(f"{kept}.{place}.document.{key}")
            for key in ("id", "content", "score")
        }
        for place in range(2)
    ]
    for row in rows:
        row["start_time"] = dt.datetime.fromisoformat(row["start_time"])
        row["end_time"] = dt.datetime.fromisoformat(row["end_time"])
    return [rows[0], rows[1] | {kept: listed}]


def test_a_table_of_spans_is_read(tmp_path):
    path = tmp_path / "spans.parquet"
    pd.DataFrame(phoenix_rows()).to_parquet(path)
    (output,), (whole,) = read_outputs(path), read_outputs(EXAMPLES / "openinference.jsonl")
    assert output.contexts == whole.contexts
    assert (output.question, output.answer, output.query_id) == (
        "When is the ferry?",
        "At noon.",
        "t1",
    )
    moments = (dt.datetime.fromisoformat(one.at) for one in (output, whole))
    assert len(set(moments)) == 1


def test_a_broken_table_is_refused(tmp_path):
    path = tmp_path / "spans.parquet"
    path.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(InputError) as caught:
        read_claims([path], ProblemList(), strategy="mine", fingerprint="v1")
    (problem,) = caught.value.problems
    assert (problem.code, problem.file) == ("unreadable_file", str(path))


def test_a_table_of_something_else_is_refused(tmp_path):
    path = tmp_path / "numbers.parquet"
    pd.DataFrame({"query": ["q"], "n": [1]}).to_parquet(path)
    with pytest.raises(InputError) as caught:
        read_outputs(path)
    (problem,) = caught.value.problems
    assert (problem.code, problem.file) == ("no_retrieval", str(path))


def annotated(**marks):
    attributes = SPANS[0]["attributes"] | marks
    return [{**SPANS[0], "attributes": attributes}, SPANS[1]]


def test_cited_ids_and_labels_of_people_are_read(tmp_path):
    prefix = "annotations.0.annotation"
    spans = annotated(
        **{
            "metadata": json.dumps({"citations": ["timetable", 3], "strategy": 5}),
            f"{prefix}.label": "something_missing",
            f"{prefix}.annotator_kind": "HUMAN",
            "annotations.1.annotation.label": "nothing_missing",
            "annotations.1.annotation.annotator_kind": "LLM",
        }
    )
    (output,) = read_outputs(write_spans(tmp_path / "spans.jsonl", spans))
    assert [one.token for one in output.citations] == ["timetable"]
    assert output.traced.labels == ("something_missing",)
    assert output.traced.strategy is None


def test_a_trace_has_one_claim_however_much_of_it_is_known(tmp_path):
    whole = write_spans(tmp_path / "whole.jsonl", SPANS)
    part = write_spans(tmp_path / "part.jsonl", SPANS[1:])
    other = write_spans(
        tmp_path / "other.jsonl", [{**SPANS[1], "context": {"trace_id": "t2", "span_id": "s2"}}]
    )
    ids = [
        read_claims([path], ProblemList(), strategy="mine", fingerprint="v1").claims[0].claim_id
        for path in (whole, part, other)
    ]
    assert ids[0] == ids[1] != ids[2]


def test_labels_that_say_nothing_of_retrieval_are_counted(tmp_path):
    prefix = "trace.annotations.0.annotation"
    for label, feedback in (("thumbs-down", 0), ("evidence_not_relevant", 1)):
        marks = {f"{prefix}.label": label, f"{prefix}.annotator_kind": "HUMAN"}
        path, warnings = write_spans(tmp_path / "spans.jsonl", annotated(**marks)), ProblemList()
        found = read_claims([path], warnings, strategy="mine", fingerprint="v1")
        assert list(found.feedback.values()) == [label][:feedback]
        assert [one.code for one in warnings.listed()] == ["other_labels"][feedback:]
