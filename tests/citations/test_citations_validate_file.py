"""`validate` checks files of citations against the newest run of a home and prints the outcome."""

import json
import re

import pytest

from rag_eval.citations.checking import _citation_records
from rag_eval.citations.payload import payload, validate
from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.core.types import AUDITABLE_FIELDS, FIXES, CitedSpan, Evidence, RetrievalOptions
from rag_eval.pipeline.live_questions import open_port
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.review import live_index, validate_file
from rag_eval.storage.home import Home

QUESTION = "How often is a job tried again?"


@pytest.fixture
def found(project, shared_runs):
    """Return what the strategies of an evaluated project retrieve by its own port."""
    shared_runs.run(project)
    settings = Settings.model_validate({"home": project.home, "reports": project.reports})
    port = open_port(open_gold_set(project.gold, settings))
    options = (RetrievalOptions(top_k=2, strategy=kind) for kind in ("bm25", "vector"))
    return [chunk for one in options for chunk in port.retrieve(QUESTION, one).chunks]


@pytest.fixture
def ran(project, found):
    """Return an evaluated project and citations from its own port."""
    own = {"query_id": "again"}
    return project, [
        {**payload(chunk), **own, "segment": segment, "quote": chunk.text}
        for segment, chunk in enumerate(found)
    ]


def written(path, lines):
    text = (line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    path.write_text("".join(text), encoding="utf-8")
    return path


def code_of(function, *args):
    with pytest.raises(InputError) as caught:
        function(*args)
    (problem,) = caught.value.problems
    return problem.code


def test_citations_of_an_answer_say_what_the_answer_said(project, found):
    chunk = found[0]
    start = chunk.offsets.start
    cited = [
        CitedSpan(0, 0, chunk.doc_id, start, start + 10, chunk.text[:10]),
        CitedSpan(1, 0, chunk.doc_id, start, start + 10, "Never said"),
        CitedSpan(2, -1, "made-up.md", -1, -1),
    ]
    evidence = [Evidence(f"{chunk.doc_id}:1", chunk, "retrieve", 1, 1)]
    records = _citation_records("q", cited, evidence)
    codes = validate(records, live_index(Home(project.home))[0]).codes
    assert codes == ("ok", "quote_mismatch", "unknown_snippet")


def test_offenders_are_named_with_their_lines(ran):
    project, records = ran
    good = records[0]
    lines = [
        good,
        "\n",
        {**good, "quote": "Never said."},
        "{not json\n",
        "[1]\n",
        {**good, "rev": "old", "index_hash": "\u001b[31m old"},
        {"query_id": "again"},
    ]
    file = written(project.root / "citations.jsonl", lines)
    result = validate_file(file, live_index(Home(project.home))[0])
    assert not result.passed
    assert [number for number, _ in result.rows] == [1, 3, 6, 7]
    codes = "ok quote_mismatch mismatch_index_hash empty_citations"
    assert " ".join(result.verdicts.codes) == codes
    problems = [(problem.code, problem.line) for problem in result.problems]
    assert problems == [("bad_json", 4), ("not_an_object", 5)]
    text = "\n".join(result.lines())
    for shown in (
        "line 3: quote_mismatch [quote] found Never said.",
        "line 6: mismatch_index_hash [index_hash] found \\u001b[31m old; also rev_mismatch",
        "line 7: empty_citations",
        "citations.jsonl:4: error bad_json",
        "1 of 4   fix: index again, or answer again",
    ):
        assert shown in text
    assert "\u001b" not in text


def test_a_file_that_is_not_there_is_an_error_and_no_verdict(tmp_path):
    for path in (tmp_path, tmp_path / "none.jsonl"):
        assert code_of(validate_file, path) == "not_a_file"


def test_homes_without_a_whole_run_are_refused(ran, tmp_path):
    project, _ = ran
    assert code_of(live_index, Home(tmp_path / "nowhere")) == "run_not_found"
    assert code_of(live_index, Home(project.home), "other") == "run_not_found"
    (kept,) = (project.home / "runs").glob("*.json")
    whole = json.loads(kept.read_text(encoding="utf-8"))
    kept.write_text(json.dumps({**whole, "artifacts": {}}), encoding="utf-8")
    assert code_of(live_index, Home(project.home)) == "run_incomplete"
    kept.write_text("{", encoding="utf-8")  # a run that cannot be read is left out
    assert code_of(live_index, Home(project.home)) == "run_not_found"


def test_answers_are_read_and_markers_give_the_segments(ran):
    project, records = ran
    own = ("query_id", "segment")
    one, two = ({k: v for k, v in record.items() if k not in own} for record in records[:2])
    assert one["section_id"] != two["section_id"]
    apart = {"citations": [one, two], "answer": "It is tried [1]. It fails [2].", "ΔS": 0.2}
    together = {"citations": [one, two], "answer": "It is tried [1][2]."}
    bare = {"citations": [one, two], "answer": "It is tried."}
    given = {"citations": [{**one, "segment": 1}, two], "answer": "It is tried. It fails."}
    odd = {"citations": [one, 7], "answer": None}
    file = written(project.root / "answers.jsonl", [apart, together, bare, given, odd])
    result = validate_file(file, live_index(Home(project.home))[0])
    places = [(line, record.get("segment")) for line, record in result.rows]
    assert places[:2] == [(1, 0), (1, 1)]
    assert result.verdicts.codes == (
        *("ok", "ok"),
        *("ok", "cross_section_reuse"),
        *("ok", "cross_section_reuse"),
        *("ok", "ok"),
        *("ok", "empty_citations"),
    )
    assert validate_file(file, allow_cross_section=True).verdicts.codes == (
        *["ok"] * 9,
        "empty_citations",
    )


def test_the_index_completes_citations_of_the_auditable_block(ran):
    project, records = ran
    live = live_index(Home(project.home))[0]
    own = project.reports / "tiny" / "auditable-answers.jsonl"
    assert validate_file(own, live).passed
    assert validate_file(own, live).rows
    one, two = ({name: record[name] for name in AUDITABLE_FIELDS} for record in records[:2])
    by_section = {**one, "snippet_id": None}
    gone = {**one, "snippet_id": "gone"}
    for cited, codes in (
        ([one], ["ok"]),
        ([{"snippet_id": one["snippet_id"]}], ["ok"]),
        ([by_section], ["unknown_snippet"]),
        ([one, two], ["ok", "cross_section_reuse"]),
        ([gone], ["unknown_snippet"]),
        ([{**one, "section_id": two["section_id"]}], ["unknown_snippet"]),
        ([{**one, "source_url": "https://example.org"}], ["source_url_mismatch"]),
        ([dict.fromkeys(AUDITABLE_FIELDS)], ["unknown_snippet"]),
    ):
        block = {"citations": cited, "answer": "It is tried. It fails.", "ΔS": 0.2, "λ": "chaotic"}
        file = written(project.root / "answers.jsonl", [block])
        assert list(validate_file(file, live).verdicts.codes) == codes
    block["citations"], both = [one, two], {"segments": [0, 1]}
    assert validate_file(written(file, [{**block, **both}]), live).passed
    refused = [{"citations": [], "answer": "NOT FOUND"}, {"error": "no atlas", "fix": "index one"}]
    assert validate_file(written(file, [*refused, {**block, **both}]), live).passed
    assert not validate_file(written(file, [{"citations": [], "answer": "Yes."}]), live).passed
    late = {"answer": block["answer"], "citations": [one]}
    assert validate_file(written(file, [late]), live).verdicts.codes == ("explained_before_cited",)
    (problem,) = validate_file(written(file, [{**block, "segments": [0]}]), live).problems
    assert (problem.code, problem.line, problem.field) == ("wrong_length", 1, "segments")


@pytest.mark.parametrize(
    ("line", "is_valid"),
    [
        ({"error": "no atlas", "fix": "index one"}, True),
        ({"error": "no atlas", "fix": " "}, False),
        ({"citations": [], "answer": "The sources do not say it."}, True),
        ({"answer": "Das weiß ich nicht."}, True),
        ({"citations": [], "answer": "Paris."}, False),
        ({"error": "no atlas", "fix": "index one", "answer": "Paris."}, False),
    ],
)
def test_a_file_of_refusals_alone_is_valid(tmp_path, line, is_valid):
    result = validate_file(written(tmp_path / "answers.jsonl", [line]))
    assert result.passed is is_valid
    assert result.verdicts.counts["empty_citations"] == (not is_valid)
    assert (result.json_lines() == ["OK"]) is is_valid
    assert ("refusals: 1" in result.lines()[0]) is is_valid


def test_the_auditable_block_needs_an_index(ran):
    project, _ = ran
    result = validate_file(project.reports / "tiny" / "auditable-answers.jsonl")
    assert not result.passed
    (line,) = result.lines()
    assert "error no_index [--index]" in line
    assert "accepted: --index HOME" in line
    (found,) = map(json.loads, result.json_lines())
    assert (found["error"], found["field"]) == ("no_index", "--index")


def test_json_names_error_field_and_tip_of_each_failing_record(ran):
    project, records = ran
    good = records[0]
    lines = [good, {**good, "segment": 1.5}, {**good, "rev": "old"}, "{not json\n"]
    file = written(project.root / "citations.jsonl", lines)
    found = list(
        map(json.loads, validate_file(file, live_index(Home(project.home))[0]).json_lines())
    )
    assert all(list(one) == ["error", "field", "tip"] for one in found)
    assert [(one["error"], one["field"]) for one in found] == [
        ("bad_json", ""),
        ("bad_segment", "segment"),
        ("rev_mismatch", "rev"),
    ]
    assert found[2]["tip"] == "line 3: index again, or answer again; found old"
    assert validate_file(written(file, [good])).json_lines() == ["OK"]
    assert "empty_citations" in validate_file(written(file, [])).json_lines()[0]


def test_docs_list_every_code(project_root):
    codes = (project_root / "docs/recorded.md").read_text(encoding="utf-8").split("## Codes")[1]
    assert {code for code in re.findall(r"`(\w+)`", codes) if code in FIXES} == FIXES.keys()
