"""A whole run over a table of pgvector: measured, kept while equal, asked again after a change."""

import json
import re
import sys

import postgres_server
import pytest
from cli_project import CONFIG, DOCUMENTS, measure

pytestmark = pytest.mark.slow

EMBED = """
import re
import zlib

def embed(texts):
    vectors = []
    for text in texts:
        vectors.append([0.01] * 64)
        for word in re.findall(r"\\w+", text.lower()):
            vectors[-1][zlib.crc32(word.encode()) % 64] += 1
    return vectors
"""
VECTOR = "  - {name: vector, kind: vector, embedding: {model: lsa-8}}\n"
STRATEGIES = (
    "  - {name: table, kind: pgvector, engine: notes}\n"
    "  - {name: down, kind: pgvector, engine: gone}\n"
)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Return the address of a database with the sections of DOCUMENTS in the table notes."""
    psycopg = pytest.importorskip("psycopg")
    made = {}
    exec(EMBED, made)  # noqa: S102 - the text above
    with postgres_server.running_with_pgvector() as server:
        url = postgres_server.new_database(server)
        sections = [
            (doc, text.strip())
            for doc, whole in DOCUMENTS.items()
            for text in re.split(r"\n(?=## )", whole)
        ]
        vectors = made["embed"]([text for _, text in sections])
        with psycopg.connect(url) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE EXTENSION vector")
            cursor.execute(
                "CREATE TABLE notes (id serial, doc text, text text, embedding vector(64))"
            )
            cursor.executemany(
                "INSERT INTO notes (doc, text, embedding) VALUES (%s, %s, %s::text::vector)",
                [(*row, str(vector)) for row, vector in zip(sections, vectors, strict=True)],
            )
        yield url


def test_a_table_is_measured_and_asked_again_only_after_a_change(project, table, monkeypatch):
    (project.root / "own_embedding.py").write_text(EMBED, encoding="utf-8")
    monkeypatch.syspath_prepend(str(project.root))
    monkeypatch.delitem(sys.modules, "own_embedding", raising=False)
    entry = {"kind": "pgvector", "index": "notes", "fields": {"doc_id": "doc"}}
    entry |= {"embedding": "own_embedding:embed"}
    down = "postgresql://user:secret@127.0.0.1:9/notes"
    engines = {"notes": entry | {"url": table}, "gone": entry | {"url": down}}
    monkeypatch.setenv("RAG_EVAL_ENGINES", json.dumps(engines))
    quick = {"timeout_s": 5, "max_retries": 0, "concurrency": 2}
    monkeypatch.setenv("RAG_EVAL_EXTERNAL", json.dumps(quick))
    project.write("gold_set.yaml", CONFIG.replace(VECTOR, STRATEGIES))

    def run():
        told = project.run()
        assert "secret" not in told.stdout + told.stderr + json.dumps(project.report())
        return project.report(), project.strategies()

    first, found = run()
    assert (found["table"]["n_runs"], found["table"]["n_failed"]) == (6, 0)
    assert all(level["measured"] for level in found["table"]["levels"].values())
    assert measure(found["table"])["value"] == 1.0
    assert found["table"]["source"]["kind"] == "pgvector"
    assert re.fullmatch("[0-9a-f]{32}", found["table"]["source"]["version"])
    assert found["down"]["failures"] == {"connection": 6}
    assert measure(found["down"])["value"] == 0.0

    second, _ = run()
    assert second["reused"]["runs"] == {"bm25": True, "table": True, "down": False}
    assert second["content_hash"] == first["content_hash"]

    postgres_server.execute(table, "UPDATE notes SET text = 'other' WHERE doc = 'alerts.md'")
    third, changed = run()
    assert third["reused"]["runs"]["table"] is False
    assert changed["table"]["index_hash"] != found["table"]["index_hash"]
