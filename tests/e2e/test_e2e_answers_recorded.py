"""The command line evaluates another system's recorded answers: alone, over a corpus, hostile."""

import json
import unicodedata
from types import SimpleNamespace

import jsonschema
import pytest
from cli_project import CONFIG, answer_measures, jsonl
from schemas import published
from trace_lines import parse

from rag_eval.reporting.report import _first_fault

HOSTILE = (
    "a\nevent=run.start \x1b[31m\x07\u202egnp\u2066 <script>alert(1)</script> [bold]x[/bold] "
    "\ud83d\ude00 '; DROP TABLE rag_traces; --"
)
FACT = "A failed job is tried three more times."
PAUSE = "The pause between two tries doubles each time."
QUIET = {"doc_id": "alerts.md", "text": "Quiet hours hold every alert back until morning."}
AUDITABLE = {
    "snippet_id": "tries",
    "section_id": "retries.md#tries",
    "source_url": "https://example.org/retries",
    "offsets": {"start": 0, "end": len(FACT), "unit": "char"},
    "tokens": 8,
}
OUTPUTS = [
    {
        "query_id": "again",
        "question": "How often is a failed job tried again?",
        "answer": f"{FACT} [1] {PAUSE} [2]",
        "contexts": [
            {"doc_id": "retries.md", "id": "tries", "text": FACT},
            {"doc_id": "pause.md", "text": PAUSE},
        ],
        "citations": [AUDITABLE],
        "ΔS": 0.25,
        "λ": "chaotic",
    },
    {
        "query_id": "night",
        "question": "Can alerts be silent at night?",
        "answer": "Yes, they wait [3].",
        "contexts": [QUIET],
    },
    {
        "query_id": "price",
        "question": "What does a licence cost?",
        "answer": "NOT FOUND",
        "contexts": [QUIET],
    },
    {
        "query_id": "none",
        "question": "What is the answer?",
        "answer": None,
        "error": "timeout",
        "contexts": [],
    },
]


def printable(text):
    """Check that the text has no control sequence and no change of direction."""
    kinds = {unicodedata.category(char) for char in text if char != "\n"}
    return not kinds & {"Cc", "Cf", "Cs"}


def write_outputs(project, rows, **files):
    """Write a system's outputs and the given files; return their folder."""
    folder = project.root / "my-system"
    folder.mkdir(exist_ok=True)
    for name, text in {"outputs.jsonl": jsonl(rows), **files}.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def run_recorded(project, folder, exit_code=0):
    return project.command("run", "--recorded", folder, exit_code=exit_code)


def by_id(project, folder="my-system"):
    return {row["query_id"]: row for row in project.lines("answers.jsonl", folder)}


# --- outputs alone


@pytest.fixture(scope="module")
def alone(scenario):
    """Evaluate a folder of outputs twice; return the results and the explanations."""
    project = scenario.project
    folder = write_outputs(project, OUTPUTS)
    result = run_recorded(project, folder)
    found = SimpleNamespace(
        project=project,
        out=result.stdout,
        report=project.report("my-system"),
        answers=by_id(project),
        explained={
            row["query_id"]: project.command("show", "--question", row["query_id"])
            for row in OUTPUTS
        },
    )
    run_recorded(project, folder)
    found.again = project.report("my-system")
    return found


def test_a_folder_of_outputs_is_enough(alone):
    assert _first_fault(alone.report) is None
    outcomes = {name: (row["outcome"], row["codes"]) for name, row in alone.answers.items()}
    assert outcomes == {
        "again": ("answered", []),
        "night": ("answered", []),
        "price": ("not_found", []),
        "none": ("failed", ["no_answer"]),
    }
    again = alone.answers["again"]
    assert again["text"] == f"{FACT} {PAUSE}"
    cited = [(one["segment"], one["doc_id"]) for one in again["citations"]]
    assert cited == [(0, "retries.md"), (1, "pause.md")]
    # [3] has no context
    assert alone.report["citations"]["codes"] == {"ok": 2, "unknown_snippet": 1}
    assert "my-system" in alone.out
    assert alone.again["content_hash"] == alone.report["content_hash"]


def test_the_auditable_block_is_completed_and_written(alone):
    lines = alone.project.lines("auditable-answers.jsonl", "my-system")
    check = jsonschema.Draft202012Validator(published("auditable-answer-line"))
    assert [error.message for row in lines for error in check.iter_errors(row)] == []
    again, night, none, price = lines
    assert (again["ΔS"], again["λ"], again["citations"][0]) == (0.25, "chaotic", AUDITABLE)
    assert alone.answers["again"]["delta_s"] == 0.25
    (record, _) = alone.project.lines("citations.jsonl", "my-system")[:2]
    assert {name: record[name] for name in AUDITABLE} == AUDITABLE
    assert (record["doc_id"], record["k_pos"], record["segment"]) == ("retries.md", 1, 0)
    assert set(night["citations"][0].values()) == {None}  # [3] has no context
    assert none["error"].startswith("no_answer: ")
    assert (price["answer"], price["citations"]) == ("NOT FOUND", [])


def test_measures_that_need_judgements_say_so(alone):
    measured = answer_measures(alone.report)
    # the question without an answer is a miss
    assert measured["citation_validity_rate"]["value"] == pytest.approx(2 / 4)
    assert measured["groundedness"]["value"] == alone.report["groundedness"]
    assert measured["failure_rate"]["value"] == 0.25
    for name in (
        "citation_precision",
        "citation_recall",
        "coverage",
        "abstention_rate",
        "answered_anyway",
    ):
        assert measured[name]["value"] is None
        assert measured[name]["value_reason"]
    assert (alone.report["recallAt10"], alone.report["mrr"]) == (None, None)
    assert alone.report["recallAt10_reason"]


def test_explain_reads_like_a_page(alone):
    shown = {name: result.stdout for name, result in alone.explained.items()}
    question = "How often is a failed job tried again?"
    for part in (question, f"{FACT} {PAUSE}", "1. retries.md:1", "Evidence  (2 pieces)"):
        assert part in shown["again"]
    assert "unknown_snippet [snippet_id]: reject the answer" in shown["night"]
    assert "not found" in shown["price"]
    assert "failed (no_answer)" in shown["none"]
    unknown = alone.project.command("show", "--question", "agian", exit_code=1).stderr
    assert "unknown_query" in unknown


@pytest.mark.slow
def test_gold_beside_the_outputs_judges_them(project):
    queries = [
        {
            "query_id": row["query_id"],
            "text": row["question"],
            "answerable": row["query_id"] != "price",
        }
        for row in OUTPUTS
    ]
    gold = [{"query_id": "again", "doc_id": "retries.md", "anchors": [{"quote": FACT}]}]
    qrels = "query-id\tcorpus-id\tscore\nagain\tretries.md\t1\nnight\talerts.md\t1\n"
    files = {"queries.jsonl": jsonl(queries), "qrels.tsv": qrels, "answers.jsonl": jsonl(gold)}
    run_recorded(project, write_outputs(project, OUTPUTS, **files))
    report = project.report("my-system")
    assert _first_fault(report) is None
    assert report["recallAt10"] == 1.0
    expected = {"citation_precision": 0.5, "citation_recall": 1.0, "coverage": 1.0}
    expected |= {"abstention_rate": 1.0, "answered_anyway": 0.0}
    measured = answer_measures(report)
    assert {name: measured[name]["value"] for name in expected} == expected


@pytest.mark.slow
def test_hostile_text_is_data_everywhere(project):
    hostile_citation = {
        "doc_id": f"../../etc/{HOSTILE}\ud800",
        "snippet_id": HOSTILE,
        "quote": f"{HOSTILE}\x00",
        "segment": 0,
        "rev": {"a": {"b": {"c": [HOSTILE]}}},
        "tokens": 10**300,
        "index_hash": "x" * 100_000,
        HOSTILE: 1,
    }
    context = {"doc_id": "\u202ed <b>", "text": f"Text. {HOSTILE}", "url": f"http://x/{HOSTILE}"}
    rows = [
        {
            "query_id": "q",
            "question": HOSTILE,
            "answer": f"{HOSTILE} [1]",
            "contexts": [context],
        },
        {
            "query_id": "p",
            "question": "plain?",
            "answer": "Plain.",
            "contexts": ["Plain."],
            "citations": [hostile_citation, f"{HOSTILE}:1-2"],
        },
        {"query_id": "n", "question": "null?", "answer": None, "error": HOSTILE, "contexts": []},
    ]
    # The gate `poisoning` fails, because the system returned text that the guard blocks.
    result = run_recorded(project, write_outputs(project, rows), exit_code=2)
    assert printable(result.stdout + result.stderr)
    report = project.report("my-system")
    assert _first_fault(report) is None
    assert [gate["id"] for gate in report["gates"] if gate["status"] == "fail"] == ["poisoning"]
    assert report["answers"]["outcomes"] == {"answered": 2, "failed": 1}
    assert report["citations"]["n_citations"] == 3
    events, traces = (project.text(name, "my-system") for name in ("events.log", "traces.log"))
    assert events.isascii()
    for log in (events, traces):
        assert log.count("\n") == len(log.splitlines())
        assert printable(log)
        assert [line[:15] for line in log.splitlines()].count("event=run.start") <= 1
    assert [parse(line)["qid"] for line in traces.splitlines()] == ["q", "p", "n"]
    # a text of 100,000 characters is cut
    assert sum(path.stat().st_size for path in project.reports.rglob("*.jsonl")) < 100_000
    for query_id in ("q", "p", "n"):
        shown = project.command("show", "--question", query_id).stdout
        assert printable(shown)
        assert "<script>" in shown or query_id == "n"
    citations = project.reports / "my-system" / "citations.jsonl"
    assert printable(project.command("validate", citations, exit_code=2).stdout)
    # ids that would break a path, a line or a command are refused with their line
    bad = [
        {"query_id": f"q{number}", "answer": "x", "contexts": [{"doc_id": name, "text": "t"}]}
        for number, name in enumerate(["a\x00b", "a\nb", "a\x1b[31m"])
    ]
    bad.append({"query_id": HOSTILE, "answer": "x", "contexts": ["t"]})
    refused = run_recorded(project, write_outputs(project, bad), exit_code=1).stderr
    assert printable(refused)
    assert [line for line in (1, 2, 3, 4) if f"outputs.jsonl:{line}" not in refused] == []


# --- outputs over a corpus


def over_corpus(project, rows, exit_code=0, **extra):
    part = {"mode": "recorded", "recorded": "mine.jsonl", "top_k": 5, **extra}
    text = CONFIG.replace("{mode: deterministic, top_k: 5}", json.dumps(part))
    project.write("gold_set.yaml", text)
    project.write("mine.jsonl", jsonl(rows))
    return project.run(exit_code=exit_code)


@pytest.mark.slow
def test_recorded_answers_over_a_corpus(project):
    disk = "Results older than thirty days are deleted at midnight."
    counts = {"tokens_in": 10, "tokens_out": 2, "seconds": 0.5}
    rows = [
        {
            "query_id": "again",
            "answer": f"{FACT} [1]",
            "contexts": [{"doc_id": "retries.md", "text": FACT}],
        },
        {
            "query_id": "keep",
            "answer": "Thirty days [1].",
            "contexts": [{"doc_id": "storage.md", "text": disk}],
            **counts,
        },
        {
            "query_id": "night",
            "answer": "Bananas are yellow fruit from Ecuador.",
            "contexts": [QUIET],
        },
    ]
    over_corpus(project, rows)
    report, price = project.report(), by_id(project, "tiny")["price"]
    assert _first_fault(report) is None
    assert (price["outcome"], price["codes"]) == ("failed", ["no_output"])
    assert report["answers"]["outcomes"] == {"answered": 3, "failed": 1}
    assert report["citations"]["codes"] == {"ok": 2}
    assert answer_measures(report)["citation_recall"]["value"] == 1.0
    assert [row["query_id"] for row in report["answers"]["gap"]["flagged"]] == ["night"]
    assert {row["rev"] for row in project.lines("citations.jsonl")} != {""}
    (project.gold / "mine.jsonl").unlink()
    assert "missing_file" in project.run(exit_code=1).stderr


@pytest.mark.slow
def test_auditable_answers_of_a_run_come_back_as_they_are(project):
    project.run()
    lines = project.lines("auditable-answers.jsonl")
    codes = project.report()["citations"]["codes"]
    assert codes["ok"]
    over_corpus(project, lines)
    assert project.report()["citations"]["codes"] == codes
    assert project.lines("auditable-answers.jsonl") == lines
    refused = {"query_id": "again", "error": "no atlas", "fix": "index one"}
    invented = {**lines[1], "citations": [AUDITABLE], "answer": "Yes.", "segments": None}
    wrong = {"query_id": "keep", "answer": "Yes.", "citations": [], "λ": "undefined"}
    over_corpus(project, [refused, invented])
    found = {row["query_id"]: row for row in project.lines("auditable-answers.jsonl")}
    assert found["again"] == {**refused, "schema_version": 1}
    assert by_id(project, "tiny")["again"]["outcome"] == "contract_error_reply"
    assert project.report()["citations"]["codes"] == {"unknown_snippet": 1}
    stderr = over_corpus(project, [wrong], exit_code=1).stderr
    assert "mine.jsonl:1" in stderr
    assert "λ" in stderr
