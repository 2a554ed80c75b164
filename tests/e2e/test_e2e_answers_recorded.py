"""Recorded answers of another system pass the command line, alone, over a corpus, and hostile."""

import json
import unicodedata

import pytest
from cli_project import CONFIG, jsonl
from trace_lines import parse
from typer.testing import CliRunner

from rag_eval.cli.app import app
from rag_eval.core.report import first_fault
from rag_eval.core.types import REQUIRED

HOSTILE = (
    "a\nevent=run.start \x1b[31m\x07\u202egnp\u2066 <script>alert(1)</script> [bold]x[/bold] "
    "\ud83d\ude00 '; DROP TABLE rag_traces; --"
)
FACT = "A failed job is tried three more times."
PAUSE = "The pause between two tries doubles each time."
OUTPUTS = [
    {
        "query_id": "again",
        "question": "How often is a failed job tried again?",
        "answer": f"{FACT} [1] {PAUSE} [2]",
        "contexts": [{"doc_id": "retries.md", "text": FACT}, {"doc_id": "pause.md", "text": PAUSE}],
    },
    {
        "query_id": "night",
        "question": "Can alerts be silent at night?",
        "answer": "Yes, they wait [3].",
        "contexts": [
            {"doc_id": "alerts.md", "text": "Quiet hours hold every alert back until morning."}
        ],
    },
    {
        "query_id": "price",
        "question": "What does a licence cost?",
        "answer": "NOT FOUND",
        "contexts": [
            {"doc_id": "alerts.md", "text": "Quiet hours hold every alert back until morning."}
        ],
    },
    {
        "query_id": "none",
        "question": "What is the answer?",
        "answer": None,
        "error": "timeout",
        "contexts": [],
    },
]


def command(*arguments, exit_code=0):
    result = CliRunner().invoke(
        app, [str(argument) for argument in arguments], catch_exceptions=False
    )
    assert result.exit_code == exit_code, result.output
    assert "Traceback" not in result.output
    return result


def printable(text):
    """Check that the text has no control sequence and no change of direction."""
    return all(
        char == "\n" or unicodedata.category(char) not in {"Cc", "Cf", "Cs"} for char in text
    )


@pytest.fixture
def system(project):
    folder = project.root / "my-system"
    folder.mkdir()

    def write(rows, **files):
        (folder / "outputs.jsonl").write_text(jsonl(rows), encoding="utf-8")
        for name, text in files.items():
            (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")
        return folder

    return write


def run_recorded(project, folder, exit_code=0):
    result = project.invoke("run", "--recorded", str(folder))
    assert result.exit_code == exit_code, result.output
    assert "Traceback" not in result.output
    return result


def figures(report):
    return {
        record["name"]: record
        for record in [*report["answers"]["measures"], *report["citations"]["measures"]]
    }


def lines(project, name, folder):
    return [
        json.loads(line)
        for line in (project.reports / folder / name).read_text(encoding="utf-8").splitlines()
    ]


def answers(project, folder="my-system"):
    return {row["query_id"]: row for row in lines(project, "answers.jsonl", folder)}


def explain(project, query_id, *more, exit_code=0):
    return command("explain", query_id, "--home", project.home, *more, exit_code=exit_code)


def test_a_folder_of_outputs_is_enough(project, system):
    folder = system(OUTPUTS)
    result = run_recorded(project, folder)
    report, found = project.report("my-system"), answers(project)
    assert first_fault(report) is None
    assert {name: (row["outcome"], row["codes"]) for name, row in found.items()} == {
        "again": ("answered", []),
        "night": ("answered", []),
        "price": ("not_found", []),
        "none": ("failed", ["no_answer"]),
    }
    assert found["again"]["text"] == f"{FACT} {PAUSE}"
    assert [(cited["segment"], cited["doc_id"]) for cited in found["again"]["citations"]] == [
        (0, "retries.md"),
        (1, "pause.md"),
    ]
    assert report["citations"]["codes"] == {"ok": 2, "unknown_snippet": 1}  # [3] of one context
    measured = figures(report)
    assert measured["citation_validity_rate"]["value"] == pytest.approx(
        2 / 4
    )  # and the question without an answer is a miss
    assert measured["groundedness"]["value"] == report["groundedness"]
    for name in (
        "citation_precision",
        "citation_recall",
        "coverage",
        "abstention_rate",
        "answered_anyway",
    ):  # nobody has judged anything
        assert measured[name]["value"] is None
        assert measured[name]["value_reason"]
    assert measured["failure_rate"]["value"] == 0.25
    assert (report["recallAt10"], report["mrr"]) == (None, None)
    assert report["recallAt10_reason"]
    assert "my-system" in result.stdout
    first = report["content_hash"]
    run_recorded(project, folder)
    assert project.report("my-system")["content_hash"] == first


@pytest.mark.slow
def test_gold_beside_the_outputs_judges_them(project, system):
    queries = [
        {
            "query_id": row["query_id"],
            "text": row["question"],
            "answerable": row["query_id"] != "price",
        }
        for row in OUTPUTS
    ]
    gold = [{"query_id": "again", "doc_id": "retries.md", "anchors": [{"quote": FACT}]}]
    folder = system(
        OUTPUTS,
        queries_jsonl=jsonl(queries),
        qrels_tsv="query-id\tcorpus-id\tscore\nagain\tretries.md\t1\nnight\talerts.md\t1\n",
        answers_jsonl=jsonl(gold),
    )
    run_recorded(project, folder)
    report, measured = project.report("my-system"), figures(project.report("my-system"))
    assert first_fault(report) is None
    assert report["recallAt10"] == 1.0
    assert (measured["citation_precision"]["value"], measured["citation_recall"]["value"]) == (
        0.5,
        1.0,
    )
    assert measured["coverage"]["value"] == 1.0
    assert (measured["abstention_rate"]["value"], measured["answered_anyway"]["value"]) == (
        1.0,
        0.0,
    )


def test_hostile_text_is_data_everywhere(project, system):
    rows = [
        {
            "query_id": "q",
            "question": HOSTILE,
            "answer": f"{HOSTILE} [1]",
            "contexts": [
                {"doc_id": "\u202ed <b>", "text": f"Text. {HOSTILE}", "url": f"http://x/{HOSTILE}"}
            ],
        },
        {
            "query_id": "p",
            "question": "plain?",
            "answer": "Plain.",
            "contexts": ["Plain."],
            "citations": [
                {
                    "doc_id": f"../../etc/{HOSTILE}\ud800",
                    "snippet_id": HOSTILE,
                    "quote": f"{HOSTILE}\x00",
                    "segment": 0,
                    "rev": {"a": {"b": {"c": [HOSTILE]}}},
                    "tokens": 10**400,
                    "index_hash": "x" * 100_000,
                    HOSTILE: 1,
                },
                f"{HOSTILE}:1-2",
            ],
        },
        {"query_id": "n", "question": "null?", "answer": None, "error": HOSTILE, "contexts": []},
    ]
    result = run_recorded(
        project, system(rows), exit_code=2
    )  # the guard blocks it, and the system returned it
    assert printable(result.stdout)
    assert printable(result.stderr)
    report = project.report("my-system")
    assert first_fault(report) is None
    assert [gate["id"] for gate in report["gates"] if gate["status"] == "fail"] == ["poisoning"]
    assert report["answers"]["outcomes"] == {"answered": 2, "failed": 1}
    assert report["citations"]["n_citations"] == 3
    for name in ("events.log", "traces.log"):
        log = (
            (project.reports / "my-system" / name)
            .read_bytes()
            .decode("ascii" if name == "events.log" else "utf-8")
        )
        assert log.count("\n") == len(log.splitlines())
        assert printable(log)
        assert [line[:15] for line in log.splitlines()].count("event=run.start") <= 1
    traces = (project.reports / "my-system" / "traces.log").read_text(encoding="utf-8").splitlines()
    assert [parse(line)["qid"] for line in traces] == ["q", "p", "p", "n"]
    assert (
        sum(path.stat().st_size for path in project.reports.rglob("*.jsonl")) < 100_000
    )  # a text of 100,000 characters is cut
    for query_id in ("q", "p", "n"):
        shown = explain(project, query_id)
        assert printable(shown.stdout)
        assert "<script>" in shown.stdout or query_id == "n"
    checked = command("validate", project.reports / "my-system" / "citations.jsonl", exit_code=2)
    assert printable(checked.stdout)
    # ids that would break a path, a line or a command are refused with their line
    bad = [
        {"query_id": f"q{number}", "answer": "x", "contexts": [{"doc_id": name, "text": "t"}]}
        for number, name in enumerate(["../up", "a\n", "a\x1b[31m"])
    ]
    refused = run_recorded(
        project,
        system([*bad, {"query_id": HOSTILE, "answer": "x", "contexts": ["t"]}]),
        exit_code=1,
    )
    assert printable(refused.stderr)
    assert [number for number in (1, 2, 3, 4) if f"outputs.jsonl:{number}" in refused.stderr] == [
        1,
        2,
        3,
        4,
    ], refused.stderr


# over a corpus


def over_corpus(project, rows, exit_code=0, extra=None):
    part = {"mode": "recorded", "recorded": "mine.jsonl", "top_k": 5, **(extra or {})}
    (project.gold / "gold_set.yaml").write_text(
        CONFIG.replace("answers: {mode: deterministic, top_k: 5}", f"answers: {json.dumps(part)}"),
        encoding="utf-8",
    )
    (project.gold / "mine.jsonl").write_text(jsonl(rows), encoding="utf-8")
    result = project.invoke("run", "tiny")
    assert result.exit_code == exit_code, result.output
    return result


def own_payloads(project):
    """Return the citations of a system that reads our port: payloads of a real run, by question."""
    assert project.invoke("run", "tiny").exit_code == 0
    found = {}
    for row in lines(project, "citations.jsonl", "tiny"):
        payload = {
            name: value for name, value in row.items() if name not in {"query_id", "in_evidence"}
        }
        found.setdefault(row["query_id"], []).append(payload)
    return found


CONTEXTS = {
    "again": [{"doc_id": "retries.md", "text": FACT}],
    "keep": [
        {"doc_id": "storage.md", "text": "Results older than thirty days are deleted at midnight."}
    ],
}


@pytest.mark.slow
def test_recorded_answers_over_a_corpus(project):
    rows = [
        {"query_id": "again", "answer": f"{FACT} [1]", "contexts": CONTEXTS["again"]},
        {
            "query_id": "keep",
            "answer": "Thirty days [1].",
            "contexts": CONTEXTS["keep"],
            "tokens_in": 10,
            "tokens_out": 2,
            "seconds": 0.5,
        },
        {
            "query_id": "night",
            "answer": "Bananas are yellow fruit from Ecuador.",
            "contexts": [
                {"doc_id": "alerts.md", "text": "Quiet hours hold every alert back until morning."}
            ],
        },
    ]
    over_corpus(project, rows)
    report, found = project.report(), answers(project, "tiny")
    assert first_fault(report) is None
    assert (found["price"]["outcome"], found["price"]["codes"]) == ("failed", ["no_output"])
    assert report["answers"]["outcomes"] == {"answered": 3, "failed": 1}
    assert report["citations"]["codes"] == {"ok": 2}
    assert figures(report)["citation_recall"]["value"] == 1.0
    assert [row["query_id"] for row in report["answers"]["gap"]["flagged"]] == ["night"]
    assert {row["rev"] for row in lines(project, "citations.jsonl", "tiny")} != {""}
    over_corpus(project, rows, exit_code=2, extra={"fail_closed": True})
    (project.gold / "mine.jsonl").unlink()
    part = project.invoke("run", "tiny")
    assert part.exit_code == 1
    assert "missing_file" in part.stderr


def without(payload, name):
    return {key: value for key, value in payload.items() if key != name}


BROKEN = {
    **{f"missing_{name}": (lambda payload, name=name: without(payload, name)) for name in REQUIRED},
    "bad_offsets": lambda payload: {**payload, "offsets": {**payload["offsets"], "end": 10**6}},
    "missing_score": lambda payload: without(without(payload, "score_raw"), "score_norm"),
    "trace_incomplete": lambda payload: without(payload, "k_pos"),
    "mismatch_index_hash": lambda payload: {**payload, "index_hash": "bm25s:0"},
    "rev_mismatch": lambda payload: {**payload, "rev": "older"},
    "unknown_snippet": lambda payload: {**payload, "snippet_id": "0" * 32},
    "quote_mismatch": lambda payload: {**payload, "quote": "Never said."},
    "explained_before_cited": lambda payload: {**payload, "order": ["answer", "citations"]},
    "empty_citations": None,
}


@pytest.mark.slow
def test_stated_payloads_are_what_is_validated(project):
    (payload, *_) = own_payloads(project)["again"]
    contexts = [{"doc_id": payload["doc_id"], "id": payload["snippet_id"], "text": ""}]
    queries = [
        {"query_id": code, "text": "How often is a failed job tried again?", "answerable": True}
        for code in ("fine", *BROKEN)
    ]
    (project.gold / "queries.jsonl").write_text(jsonl(queries), encoding="utf-8")
    for name, text in (
        ("paraphrases.jsonl", ""),
        ("answers.jsonl", ""),
        (
            "qrels.tsv",
            "query-id\tcorpus-id\tscore\n"
            + "".join(f"{row['query_id']}\tretries.md\t1\n" for row in queries),
        ),
    ):
        (project.gold / name).write_text(text, encoding="utf-8")
    rows = [{"query_id": "fine", "answer": FACT, "contexts": contexts, "citations": [payload]}]
    rows += [
        {
            "query_id": code,
            "answer": FACT,
            "contexts": contexts,
            "citations": [{**change(payload), "segment": 0}],
        }
        for code, change in BROKEN.items()
        if change
    ]
    rows += [{"query_id": "empty_citations", "answer": FACT, "contexts": contexts, "citations": []}]
    over_corpus(project, rows)
    report = project.report()
    records = lines(project, "citations.jsonl", "tiny")
    result = command(
        "validate",
        project.reports / "tiny" / "citations.jsonl",
        "--index",
        project.home,
        exit_code=2,
    )
    first = {}
    for number, record in enumerate(records, 1):
        shown = next(
            (line for line in result.stdout.splitlines() if line.startswith(f"  line {number}: ")),
            f"line {number}: ok",
        )
        first[record["query_id"]] = shown.split(": ", 1)[1].split(" ")[0].rstrip(";")
    assert first == {"fine": "ok", **{code: code for code, change in BROKEN.items() if change}}
    # The run and the command agree, and a record holds the statements of the system.
    for code in BROKEN:
        if code != "empty_citations":
            assert report["citations"]["codes"][code] >= 1, code
    assert report["citations"]["codes"]["ok"] == 1
    stated = {record["query_id"]: record for record in records}
    assert stated["rev_mismatch"]["rev"] == "older"
    assert "tokens" not in stated["missing_tokens"]
    assert explain(project, "rev_mismatch").stdout.count("rev_mismatch") >= 2


@pytest.mark.slow
def test_payloads_of_a_run_come_back_valid(project):
    found = own_payloads(project)
    rows = []
    for query_id, payloads in found.items():
        contexts = [
            {"doc_id": payload["doc_id"], "id": payload["snippet_id"], "text": ""}
            for payload in payloads
        ]
        rows.append(
            {
                "query_id": query_id,
                "answer": " ".join(payload["quote"] for payload in payloads),
                "contexts": contexts,
                "citations": payloads,
            }
        )
    over_corpus(project, rows)
    report = project.report()
    assert report["citations"]["codes"] == {"ok": sum(map(len, found.values()))}
    command("validate", project.reports / "tiny" / "citations.jsonl", "--index", project.home)
    (row,) = [row for row in rows if row["query_id"] == "again"]
    # of two units the rarer one is at fault; two sections for one sentence are
    row["citations"] = [
        {
            **row["citations"][0],
            "segment": 0,
            "offsets": {"start": 1, "end": 3, "unit": "token"},
            "quote": None,
        }
    ]
    over_corpus(project, rows)
    assert project.report()["citations"]["codes"].get("mixed_units") == 1


# explain, validate


@pytest.mark.slow
def test_explain_reads_like_a_page(project, system):
    run_recorded(project, system(OUTPUTS))
    shown = explain(project, "again").stdout
    assert "How often is a failed job tried again?" in shown
    assert f"{FACT} {PAUSE}" in shown
    assert "1. retries.md:1" in shown
    assert "Evidence  (2 pieces)" in shown
    assert "unknown_snippet [snippet_id]: reject the answer" in explain(project, "night").stdout
    assert "not found" in explain(project, "price").stdout
    assert "failed (no_answer)" in explain(project, "none").stdout
    unknown = explain(project, "agian", exit_code=1)
    assert "unknown_query" in unknown.stderr
    assert "again" in unknown.stderr
    assert printable(explain(project, HOSTILE, exit_code=1).stderr)
    assert "run_not_found" in explain(project, "again", "--gold-set", "nowhere", exit_code=1).stderr
    assert explain(project, "again", "--gold-set", "my-system").stdout == shown


@pytest.mark.slow
def test_explain_knows_gold_and_verdicts(project):
    assert project.invoke("run", "tiny").exit_code == 0
    shown = explain(project, "again").stdout
    assert "matches the gold" in shown
    assert "documents: retries.md" in shown
    assert "cited   retries.md" in shown
    assert "the corpus holds no answer: NOT FOUND is right" in explain(project, "price").stdout


def test_validate_what_a_run_wrote_and_what_was_broken_since(project):
    assert project.invoke("run", "tiny").exit_code == 0
    path = project.reports / "tiny" / "citations.jsonl"
    assert "ok" in command("validate", path).stdout
    assert "ok" in command("validate", path, "--index", project.home, "--gold-set", "tiny").stdout
    rows = lines(project, "citations.jsonl", "tiny")
    other = project.root / "mine.jsonl"
    other.write_text(
        jsonl([rows[0], {**rows[0], "quote": "Never said."}])
        + "{\n"
        + jsonl([without(rows[0], "rev")]),
        encoding="utf-8",
    )
    shown = command("validate", other, "--index", project.home, exit_code=2).stdout
    assert "line 2: quote_mismatch" in shown
    assert "mine.jsonl:3: error bad_json" in shown
    assert "line 4: missing_rev" in shown
    # The corpus changes, so right citations name an old revision.
    (project.corpus / "retries.md").write_text(
        "# Retries\n\n## Count\n\nA failed job is tried twice.\n", encoding="utf-8"
    )
    (project.gold / "answers.jsonl").write_text("", encoding="utf-8")
    kept = project.root / "kept.jsonl"
    kept.write_bytes(path.read_bytes())
    assert project.invoke("run", "tiny").exit_code == 0
    assert "rev_mismatch" in command("validate", kept, "--index", project.home, exit_code=2).stdout
    assert (
        "run_not_found"
        in command("validate", kept, "--index", project.root / "nowhere", exit_code=1).stderr
    )
    command("validate", project.root / "absent.jsonl", exit_code=1)
