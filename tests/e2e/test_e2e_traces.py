"""The log line and the SQL row of a trace agree with the report, on SQLite and PostgreSQL."""

import sqlite3

import postgres_server
import pytest
from trace_lines import parse, read_traces

from rag_eval.storage.sql import SqlStore

ANSWERS = "answers: {mode: deterministic, top_k: 5}\n"
COLUMNS = (
    "ts qid seg deltaS lambda_state store index_hash embed_model analyzer section_id rev "
    "citations scores kpos kfinal run_id strategy paraphrase_id seed"
).split()
RENAMED = {"deltaS": "delta_s", "lambda": "lambda_state", "embed": "embed_model"}


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, project, monkeypatch):
    """Return the place of the rows: the home's SQLite file, or a new database of a server."""
    if request.param == "sqlite":
        return project.home / "rag_eval.db"
    url = postgres_server.new_database(request.getfixturevalue("postgres"))
    monkeypatch.setenv("RAG_EVAL_DATABASE_URL", url)
    return url


def log_of(project):
    return project.text("traces.log").splitlines()


def agree(project, found):
    """Compare rows with the log lines, the report and the answers."""
    report = project.report()
    answers = {row["query_id"]: row for row in project.lines("answers.jsonl")}
    rows = {(trace.qid, trace.seg): trace for trace in found}
    lines = [parse(line) for line in log_of(project)]
    assert len(lines) == len(found) == len(rows)
    for line in lines:
        trace = rows[line["qid"], line["seg"]]
        for key, value in line.items():
            held = getattr(trace, RENAMED.get(key, key))
            if key == "deltaS" and value is not None:
                assert value == pytest.approx(held, rel=1e-5)
            elif key == "k":
                assert held in {None, value}  # only the log line holds k
            elif key == "scores":
                assert value == pytest.approx(list(held), rel=1e-5)
            else:
                assert (value or None) == (held or None), key
    index = report["index"]
    expected = (report["run_id"], report["timestamp"], index["hash"], index["analyzer"])
    expected = (*expected, report["answers"]["strategy"])
    assert {(one.run_id, one.ts, one.index_hash, one.analyzer, one.strategy) for one in found} == {
        expected
    }
    assert {trace.qid for trace in found} == set(answers)
    for query_id, answer in answers.items():
        own = [rows[key] for key in sorted(rows) if key[0] == query_id]
        assert sum(len(trace.citations) for trace in own) == len(answer["citations"])
        segments = {cited["segment"] + 1 for cited in answer["citations"]}
        assert [trace.seg for trace in own] == sorted(segments or {0})
        for trace in own:
            assert len(trace.citations) == len(trace.scores) == len(trace.kpos) == len(trace.kfinal)
            assert bool(trace.section_id) == bool(trace.rev) == bool(trace.citations)


@pytest.mark.slow
def test_lines_rows_and_report_agree(project, database):
    assert "traces were not written" not in project.run().stderr
    found = read_traces(SqlStore(database))
    agree(project, found)
    n_cited = sum(bool(trace.citations) for trace in found)
    assert n_cited
    # A second run adds its own rows, and the log holds only the last run.
    project.run()
    assert len(read_traces(SqlStore(database))) == 2 * len(found)
    agree(project, read_traces(SqlStore(database), run_id=project.report()["run_id"]))
    if isinstance(database, str):
        names = postgres_server.execute(
            database,
            "SELECT column_name FROM information_schema.columns WHERE table_name = "
            "'rag_traces' ORDER BY ordinal_position",
        )
        assert [name for (name,) in names] == [name.lower() for name in COLUMNS]
        assert not (project.home / "rag_eval.db").exists()
        cited = "SELECT count(*) FROM rag_traces WHERE citations ->> 0 IS NOT NULL"
        assert postgres_server.execute(database, cited)[0][0] == 2 * n_cited
    else:
        connection = sqlite3.connect(database)
        columns = connection.execute("PRAGMA table_info(rag_traces)").fetchall()
        connection.close()
        assert [row[1] for row in columns] == COLUMNS
