"""Traces of other tools: every example of `foreign/` asks one question and retrieves two texts."""

import datetime as dt
import json
from pathlib import Path

import pytest

from rag_eval.core.errors import InputError, ProblemList
from rag_eval.corpus.loaders import recorded
from rag_eval.corpus.loaders.recorded import _context_id
from rag_eval.uncertainty.outcome_files import read_claims

EXAMPLES = Path(__file__).parent / "foreign"
TEXTS = ("The ferry leaves at noon.", "Bicycles are free.")
CASES = {
    "ragas.jsonl": {"ids", "texts"},
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


@pytest.mark.parametrize(("name", "has"), CASES.items())
def test_an_example_becomes_a_recorded_output(name, has):
    output = read_outputs(EXAMPLES / name)[0]
    assert (output.question, output.answer) == ("When is the ferry?", "At noon.")
    ids = ("timetable", "bicycles") if "ids" in has else tuple(map(_context_id, TEXTS))
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
    (OTLP % ODD % DEEP, "no_retrieval", 1, None),
    (OTLP % '{"traceId": "t", "name": "GET"}', "no_retrieval", 1, None),
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
NO_RETRIEVAL = "1 trace left out and 1 trace read: the trace has no retrieval span"
LEFT_OUT = [
    (SEARCH + LOST + LOST, ["2 spans left out and 1 trace read: the span names no trace"]),
    (SEARCH + CHAT + CHAT + LOST, ["1 span left out", NO_RETRIEVAL]),
    (f'{{"data": [{FOUND}, {{"type": "SPAN"}}]}}', ["1 span left out"]),
    # A page without observations and a batch without spans are no spans.
    (f'{{"data": [{FOUND}]}}\n{{"data": [], "meta": {{}}}}', []),
    (f'{GENAI}\n{{"resourceSpans": []}}', [NO_RETRIEVAL]),
    (GENAI + "\n" + OTLP % '{"name": "GET"}', ["1 span left out", NO_RETRIEVAL]),
    # A trace with a fault is left out alone: a score that is no number, no question, a bad id.
    (SEARCH + SEARCH.replace("t1", "t2").replace('"page', '"score": NaN, "page'), ["1 trace left"]),
    (SEARCH + SEARCH.replace("t1", "t2").replace('"x"', "null"), ["the trace has no question"]),
    (
        SEARCH + SEARCH.replace("t1", "t\\u00072") + SEARCH.replace("t1", "t\\u00073"),
        ["2 traces left out"],
    ),
]


@pytest.mark.parametrize(("text", "messages"), LEFT_OUT)
def test_traces_and_spans_left_out_are_counted_by_reason(text, messages, tmp_path):
    path, warnings = tmp_path / "export.json", ProblemList()
    path.write_text(text)
    assert len(recorded.read_outputs(path, warnings)) == 1
    for warning, message in zip(warnings.listed(), messages, strict=True):
        assert (warning.code, warning.severity, warning.file) == ("left_out", "warning", str(path))
        assert message in warning.message
        assert warning.line
        assert warning.accepted


def test_a_file_without_a_good_trace_is_an_error(tmp_path):
    path = tmp_path / "export.jsonl"
    path.write_text(CHAT + LOST + SEARCH.replace("t1", "t\\u00071"))
    with pytest.raises(InputError) as caught:
        read_outputs(path)
    codes = {problem.code: problem.line for problem in caught.value.problems}
    assert codes == {"no_trace": 2, "no_retrieval": 1, "bad_id": 3}


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


# ---- Messages, rerankings and names, as tools nest them.


def run(place, parent="", kind="chain", **more):
    """Make a run of LangSmith; the ids sort as the times do."""
    parents = {"parent_run_id": parent} if parent else {}
    times = {"trace_id": "t", "start_time": f"2026-01-01T00:00:0{place[0]}"}
    return {"id": place, "run_type": kind, **parents, **times, **more}


def documents(*names):
    found = [{"page_content": f"Text of {name}.", "metadata": {"source": name}} for name in names]
    return {"outputs": {"documents": found}}


def search(inputs, outputs):
    """Make a trace of a root run and a retrieval."""
    retrieval = run("1", "0", "retriever", inputs={"query": "asked"}, **documents("a"))
    return [run("0", inputs=inputs, outputs=outputs), retrieval]


MESSAGES = (Path(__file__).parent / "messages.jsonl").read_text("utf-8").splitlines()


@pytest.mark.parametrize(("inputs", "outputs"), [*map(json.loads, MESSAGES)])
@pytest.mark.parametrize("tool", ["LangSmith", "Langfuse", "OpenInference", "GenAI"])
def test_messages_give_question_and_answer(inputs, outputs, tool, tmp_path):
    if tool == "LangSmith":
        spans = search(inputs, outputs)
    elif tool == "Langfuse":
        found = {"id": "s", "traceId": "t", "type": "RETRIEVER", "output": [{"id": "a"}]}
        spans = [{"id": "t", "input": inputs, "output": outputs, "observations": [found]}]
    else:
        names = ("gen_ai.input.messages", "gen_ai.output.messages")
        names = names if tool == "GenAI" else ("input.value", "output.value")
        root = dict(zip(names, map(json.dumps, (inputs, outputs)), strict=True))
        spans = [SPANS[0] | {"attributes": root}, SPANS[1]]
    (output,) = read_outputs(write_spans(tmp_path / "spans.jsonl", spans))
    assert (output.question, output.answer) == ("Q?", "A.")


def test_messages_without_an_answer_are_no_answer(tmp_path):
    asked = {"messages": [{"type": "human", "content": "Q?"}]}
    (output,) = read_outputs(write_spans(tmp_path / "spans.jsonl", search(asked, asked)))
    assert (output.question, output.answer) == ("Q?", None)


RERANKED = {
    "a reranked list": ("found ab, Reranker b", "b"),
    "one list of two searches": ("found a, found b, rerank ba", "ba"),
    "reranked twice": ("found ab, rerank ba, rerank a", "a"),
    "a search after it": ("found ab, rerank b, found c", "bc"),
    "a retriever inside of another": ("found b, found/3 ab, chain/1", "b"),
}
"""Name and documents of each step, perhaps with the step around it -> documents of the context."""


def make_steps(text):
    for place, step in enumerate(text.split(", "), 1):
        name, _, names = step.partition(" ")
        name, _, parent = name.partition("/")
        kind = {"found": "retriever", "llm": "llm"}.get(name, "chain")
        name = "rerank" if name == "llm" else name
        found = documents(*names) if names else {}
        yield run(str(place), parent or "0", kind, name=name, **found)


@pytest.mark.parametrize("name", RERANKED)
def test_the_last_list_of_a_retrieval_is_its_context(name, tmp_path):
    steps, names = RERANKED[name]
    root = run(
        "0",
        name="rag with rerank",
        inputs={"question": "Q?"},
        outputs={"answer": "A.", **documents("z")["outputs"]},
    )
    (output,) = read_outputs(
        write_spans(tmp_path / "spans.jsonl", [root, *make_steps(steps)][::-1])
    )
    assert [item.document for item in output.contexts] == list(names)
    assert (output.question, output.answer) == ("Q?", "A.")


def test_a_reranked_passage_of_openinference_keeps_its_text(tmp_path):
    marks = {
        "openinference.span.kind": "RERANKER",
        "reranker.output_documents.0.document.id": "bicycles",
        "reranker.output_documents.0.document.score": 7,
    }
    reranking = SPANS[1] | {
        "attributes": marks,
        "context": {"trace_id": "t1", "span_id": "s3"},
        "start_time": "2026-01-01T00:00:01Z",
    }
    (output,) = read_outputs(write_spans(tmp_path / "spans.jsonl", [reranking, *SPANS]))
    (context,) = output.contexts
    assert (context.id, context.text, context.score) == ("bicycles", TEXTS[1], 7)


SOURCES = ("/srv/a.pdf", "../a.md", "C:\\docs\\a.pdf", "file:///a", "https://x.org/a?b=c#d")
PASSAGES = [
    *(({"page_content": "x", "metadata": {"source": name}}, name, None) for name in SOURCES),
    ({"page_content": "x", "metadata": {"source": ""}}, _context_id("x"), None),
    ({"node": {"id_": "n", "text": "x"}, "score": 1}, "n", 1),
]


@pytest.mark.parametrize(("passage", "name", "score"), PASSAGES)
def test_a_passage_is_named_by_its_id_or_source(passage, name, score, tmp_path):
    spans = search({"question": "Q?"}, {"answer": "A."})
    spans[1] |= {"outputs": {"documents": [None, passage]}}
    (output,) = read_outputs(write_spans(tmp_path / "spans.jsonl", spans))
    (context,) = output.contexts
    assert (context.document, context.text, context.score) == (name, "x", score)


TIMES = [
    ("1767225600", "2026-01-01T00:00:00+00:00"),
    (1767225600000, "2026-01-01T00:00:00+00:00"),
    ("2026-01-01T00:00:00", "2026-01-01T00:00:00+00:00"),
    ("yesterday", ""),
]


@pytest.mark.parametrize(("start", "at"), TIMES)
def test_times_are_read_in_every_unit(start, at, tmp_path):
    spans = search({"question": "Q?"}, {"answer": "A."})
    spans[0]["start_time"] = spans[1]["start_time"] = start
    (output,) = read_outputs(write_spans(tmp_path / "spans.jsonl", spans))
    assert output.at == at


def test_a_question_asked_twice_is_two_claims(tmp_path):
    sample = json.loads((EXAMPLES / "ragas.jsonl").read_text())
    path = tmp_path / "samples.json"
    path.write_text(json.dumps([sample, sample, sample | {"user_input": "Who steers?"}]))
    first, again, _ = read_outputs(path)
    assert again.query_id == f"{first.query_id}-2"
    options = {"strategy": "mine", "fingerprint": "v1"}
    imports = [read_claims([path], ProblemList(), **options).claims for _ in range(2)]
    ids = [[claim.claim_id for claim in claims] for claims in imports]
    assert len(set(ids[0])) == 3
    assert ids[0] == ids[1]
    spans = [json.loads(json.dumps(SPANS).replace('"t1"', f'"t{place}"')) for place in range(2)]
    both = write_spans(tmp_path / "spans.jsonl", [*spans[0], *spans[1]])
    claims = read_claims([both], ProblemList(), **options).claims
    assert len({claim.claim_id for claim in claims}) == 2
    assert len({claim.query_id for claim in claims}) == 1


def test_a_trace_that_makes_no_claim_is_left_out_alone(tmp_path):
    late = SPANS[1] | {
        "context": {"trace_id": "t2", "span_id": "s"},
        "start_time": "2999-01-01T00:00:00Z",
    }
    path, warnings = write_spans(tmp_path / "spans.jsonl", [*SPANS, late]), ProblemList()
    claims = read_claims([path], warnings, strategy="mine", fingerprint="v1").claims
    assert len(claims) == 1
    (warning,) = warnings.listed()
    assert (warning.code, warning.found.startswith("2999")) == ("left_out", True)
    with pytest.raises(InputError, match="future"):
        read_claims([write_spans(path, [late])], warnings, strategy="mine", fingerprint="v1")
