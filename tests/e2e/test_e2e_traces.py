"""The log line and the SQL row of a trace agree with the report, on SQLite and PostgreSQL."""

import json
import re
import socket
import sqlite3

import postgres_server
import pytest
from cli_project import CONFIG, jsonl
from trace_lines import parse, read_traces

from rag_eval.storage.sql import SqlStore

COLUMNS = (
    "ts qid seg deltaS lambda_state store index_hash embed_model analyzer section_id rev "
    "citations scores kpos kfinal run_id strategy paraphrase_id seed"
).split()
RENAMED = {"deltaS": "delta_s", "lambda": "lambda_state", "embed": "embed_model"}


@pytest.fixture(scope="module")
def server():
    with postgres_server.running() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, project, monkeypatch):
    """Where the rows are: the SQLite file of the home, or a fresh database of a real server."""
    if request.param == "sqlite":
        return project.home / "rag_eval.db"
    url = postgres_server.new_database(request.getfixturevalue("server"))
    monkeypatch.setenv("RAG_EVAL_DATABASE_URL", url)
    return url


def log_of(project):
    return (project.reports / "tiny" / "traces.log").read_text(encoding="utf-8").splitlines()


def answers_of(project):
    return {
        row["query_id"]: row
        for row in map(
            json.loads,
            (project.reports / "tiny" / "answers.jsonl").read_text(encoding="utf-8").splitlines(),
        )
    }


def agree(project, found):
    """Hold rows against the lines, the report and the answers."""
    report, answers = project.report(), answers_of(project)
    lines = [parse(line) for line in log_of(project)]
    assert len(lines) == len(found)
    rows = {(trace.qid, trace.seg): trace for trace in found}
    assert len(rows) == len(found)
    for line in lines:
        trace = rows[line["qid"], line["seg"]]
        for key, value in line.items():
            held = getattr(trace, RENAMED.get(key, key))
            if key == "deltaS" and value is not None:
                assert value == pytest.approx(held, rel=1e-5)
            elif key == "k":
                assert held in {None, value}  # stands in the line only
            elif key == "scores":
                assert value == pytest.approx(list(held), rel=1e-5)
            else:
                assert (value or None) == (held or None), key
    assert {trace.run_id for trace in found} == {report["run_id"]}
    assert {trace.ts for trace in found} == {report["timestamp"]}
    assert {trace.index_hash for trace in found} == {report["index"]["hash"]}
    assert {trace.analyzer for trace in found} == {report["index"]["analyzer"]}
    assert {trace.strategy for trace in found} == {report["answers"]["strategy"]}
    assert {trace.qid for trace in found} == set(answers)
    for query_id, answer in answers.items():
        own = sorted(
            (trace for trace in found if trace.qid == query_id), key=lambda trace: trace.seg
        )
        assert sum(len(trace.citations) for trace in own) == len(answer["citations"])
        assert [trace.seg for trace in own] == sorted(
            {cited["segment"] for cited in answer["citations"]} or {0}
        )
        for trace in own:
            assert len(trace.citations) == len(trace.scores) == len(trace.kpos) == len(trace.kfinal)
            assert bool(trace.section_id) == bool(trace.rev) == bool(trace.citations)


@pytest.mark.slow
def test_lines_rows_and_report_agree(project, database):
    result = project.invoke("run", "tiny")
    assert result.exit_code == 0, result.output
    assert "traces were not written" not in result.stderr
    found = read_traces(SqlStore(database))
    agree(project, found)
    assert any(trace.citations for trace in found)
    # A second run adds its own rows, and the log holds only the last run.
    assert project.invoke("run", "tiny").exit_code == 0
    store = SqlStore(database)
    assert len(read_traces(store)) == 2 * len(found)
    agree(project, read_traces(store, run_id=project.report()["run_id"]))
    if isinstance(database, str):
        names = [
            row[0]
            for row in postgres_server.execute(
                database,
                "SELECT column_name FROM information_schema.columns WHERE table_name = "
                "'rag_traces' ORDER BY ordinal_position",
            )
        ]
        assert not (project.home / "rag_eval.db").exists()
        assert postgres_server.execute(
            database, "SELECT count(*) FROM rag_traces WHERE citations::jsonb ->> 0 IS NOT NULL"
        )[0][0] == 2 * sum(bool(trace.citations) for trace in found)
    else:
        with sqlite3.connect(database) as connection:
            names = [row[1] for row in connection.execute("PRAGMA table_info(rag_traces)")]
        connection.close()
    assert names == COLUMNS


def test_a_forged_line_stays_one_line_and_one_row(project, database):
    hostile = (
        "a b\nts=2026-01-01T00:00:00Z qid=forged seg=0 \x1b[31m'); DROP TABLE rag_traces; "
        "--\x00\ud800"
    )
    rows = [
        {
            "query_id": "again",
            "answer": "A failed job is tried three more times.",
            "contexts": [
                {"doc_id": "retries.md", "text": "A failed job is tried three more times."}
            ],
            "citations": [{"doc_id": hostile, "snippet_id": "s"}, {"number": 1}],
        }
    ]
    (project.gold / "mine.jsonl").write_text(jsonl(rows), encoding="utf-8")
    (project.gold / "gold_set.yaml").write_text(
        CONFIG.replace(
            "answers: {mode: deterministic, top_k: 5}",
            "answers: {mode: recorded, recorded: mine.jsonl}",
        ),
        encoding="utf-8",
    )
    result = project.invoke("run", "tiny")
    assert result.exit_code == 0, result.output
    assert "traces were not written" not in result.stderr
    found = read_traces(SqlStore(database))
    assert {trace.qid for trace in found} == {"keep", "again", "night", "price"}
    assert not any(re.match(r"ts=2026-01-01", line) for line in log_of(project))
    assert len(log_of(project)) == len(found)
    assert any("forged" in name for trace in found for name in trace.citations)


@pytest.mark.parametrize(
    "place",
    [
        "postgresql://me:s3cr3t-pw@127.0.0.1:{port}/db",
        "not an address s3cr3t-pw",
    ],
)
def test_a_database_that_cannot_be_used_leaves_the_report(project, monkeypatch, place):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("RAG_EVAL_DATABASE_URL", place.format(port=port))
    result = project.invoke("run", "tiny")
    assert result.exit_code == 0, result.output
    assert "warning: the traces were not written" in result.stderr
    assert "the report is complete" in result.stderr
    assert "s3cr3t-pw" not in result.output
    assert "s3cr3t-pw" not in result.stderr
    assert project.report()["run_id"]
    assert len(log_of(project)) >= 4  # the lines do not need the database
    for path in (
        path
        for folder in (project.home, project.reports)
        for path in folder.rglob("*")
        if path.is_file()
    ):
        assert b"s3cr3t-pw" not in path.read_bytes(), path


@pytest.mark.slow
def test_no_trace_lines_without_answers_or_by_setting(project, monkeypatch):
    assert project.invoke("run", "tiny").exit_code == 0
    assert log_of(project)
    monkeypatch.setenv("RAG_EVAL_TRACE_LOG", "false")
    assert project.invoke("run", "tiny").exit_code == 0
    assert not (
        project.reports / "tiny" / "traces.log"
    ).exists()  # lines of an earlier run do not stand beside this report
    monkeypatch.delenv("RAG_EVAL_TRACE_LOG")
    assert project.invoke("run", "tiny").exit_code == 0
    before = len(read_traces(SqlStore(project.home / "rag_eval.db")))
    (project.gold / "gold_set.yaml").write_text(
        CONFIG.replace("answers: {mode: deterministic, top_k: 5}\n", ""), encoding="utf-8"
    )
    assert project.invoke("run", "tiny").exit_code == 0
    assert not (project.reports / "tiny" / "traces.log").exists()
    assert len(read_traces(SqlStore(project.home / "rag_eval.db"))) == before
