"""A gold set from a stranger steals nothing: no request leaves, no file outside is read."""

import json
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cli_project import CONFIG

SECRET = "s3cr3t-of-the-owner"
FUNCTION = {"model_name": "text-embedding-3-small", "api_key_env_var": "OWNERS_SECRET"}


@pytest.fixture
def listener():
    """Start an OpenAI-like embedding service.

    `received` lists the headers and texts of each request.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.received.append((self.headers, body["input"]))
            rows = [
                {"object": "embedding", "index": number, "embedding": [1.0, float(len(text))]}
                for number, text in enumerate(body["input"])
            ]
            reply = json.dumps({"object": "list", "data": rows, "model": "m"}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.received = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def address(listener, monkeypatch):
    monkeypatch.setenv("OWNERS_SECRET", SECRET)
    return f"http://127.0.0.1:{listener.server_port}/v1"


def configure(project, old, new):
    assert old in CONFIG
    project.write("gold_set.yaml", CONFIG.replace(old, new))


def refused(project, *told):
    result = project.command("run", "tiny", exit_code=1)
    assert SECRET not in result.output
    for text in told:
        assert text in result.output
    assert not (project.reports / "tiny").exists()


@pytest.mark.parametrize(
    ("embedding", "told"),
    [
        ('{"model": "chroma:openai", "config": %s}', "[strategies[1].embedding.config]"),
        ('{"model": "chroma:openai"}', "[strategies[1].embedding.model]"),
        (
            '{"model": "lsa-8", "api_base": "http://elsewhere"}',
            "[strategies[1].embedding.api_base]",
        ),
        ('{"model": "company"}', "[strategies[1].embedding.model]"),
    ],
)
def test_a_gold_set_sends_nothing(project, listener, address, embedding, told):
    config = json.dumps({**FUNCTION, "api_base": address})
    configure(project, "{model: lsa-8}", embedding.replace("%s", config))
    refused(project, "gold_set.yaml:9", told, "`embeddings` in settings.toml")
    assert listener.received == []


def test_an_embedding_of_the_settings_is_used(project, listener, address):
    configure(project, "lsa-8", "company")
    lines = ["[embeddings.company]", 'function = "openai"', "[embeddings.company.config]"]
    lines += [f'{key} = "{value}"' for key, value in {**FUNCTION, "api_base": address}.items()]
    (project.root / "settings.toml").write_text("\n".join(lines), encoding="utf-8")
    project.command("run", "tiny")
    assert any("A failed job is tried" in text for _, texts in listener.received for text in texts)
    assert {headers["Authorization"] for headers, _ in listener.received} == {f"Bearer {SECRET}"}
    written = [path.read_bytes() for path in project.reports.rglob("*") if path.is_file()]
    assert not [data for data in written if SECRET.encode() in data or address.encode() in data]
    before = len(listener.received)
    project.run()
    assert len(listener.received) == before  # the second run embeds nothing


CORPUS = "{loader: folder, path: corpus, chunker: {kind: markdown, max_tokens: 64}}"
VECTOR = "  - {name: vector, kind: vector, embedding: {model: lsa-8}}\n"
ANSWERS = "answers: {mode: deterministic, top_k: 5}"
OUTSIDE = {
    "a parent folder": (CORPUS, "{loader: folder, path: ../../private}", "corpus.path"),
    "an absolute path": (CORPUS, "{loader: folder, path: %s/private}", "corpus.path"),
    "a link": (CORPUS, "{loader: folder, path: link}", "corpus.path"),
    "below a link": (CORPUS, "{loader: folder, path: link/sub}", "corpus.path"),
    "BEIR": (CORPUS, "{loader: beir, path: ../../private}", "corpus.path"),
    "a data set": (CORPUS, "{loader: hf_datasets, path: ../../private/a.jsonl}", "corpus.path"),
    "an object store": (CORPUS, "{loader: parquet, path: 's3://private/a'}", "corpus.path"),
    "recorded contexts": (CORPUS, "{loader: recorded, path: ../../private/a.jsonl}", "corpus.path"),
    "vectors": ("{model: lsa-8}", "{vectors: ../../private/a.npz}", "embedding.vectors"),
    "a run file": (
        VECTOR,
        "  - {name: mine, kind: external, run_file: ../../private/a.trec}\n",
        "strategies[1].run_file",
    ),
    "recorded contexts as a strategy": (
        VECTOR,
        "  - {name: mine, kind: external, recorded: ../../private/a.jsonl}\n",
        "strategies[1].recorded",
    ),
    "recorded answers": (
        ANSWERS,
        "answers: {mode: recorded, recorded: ../../private/a.jsonl}",
        "answers.recorded",
    ),
    "the signature of a manifest": (ANSWERS, "trust: {manifest: in/m.json}", "trust.manifest"),
    "a manifest": (ANSWERS, "trust: {manifest: ../../private/m.json}", "trust.manifest"),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_a_path_outside_is_refused(project, case):
    private = project.root / "private"
    (private / "sub").mkdir(parents=True)
    (private / "a.md").write_text(SECRET, encoding="utf-8")
    (private / "a.jsonl").write_text(f'{{"_id": "{SECRET}"', encoding="utf-8")
    (project.gold / "link").symlink_to(private)
    (project.gold / "in").mkdir()
    (project.gold / "in" / "m.json.sig").symlink_to(private / "a.jsonl")
    old, new, field = OUTSIDE[case]
    configure(project, old, new.replace("%s", str(project.root)))
    refused(project, "outside_gold_set", f"{field}]", "`corpus_roots` in settings.toml")


def test_a_link_in_place_of_a_gold_file_is_refused(project):
    (project.root / "elsewhere.jsonl").write_text(SECRET, encoding="utf-8")
    (project.gold / "queries.jsonl").unlink()
    (project.gold / "queries.jsonl").symlink_to(project.root / "elsewhere.jsonl")
    refused(project, "outside_gold_set", "queries.jsonl")


def test_a_listed_root_is_accepted_and_its_neighbour_is_not(project, monkeypatch):
    project.corpus.rename(project.root / "docs")
    configure(project, "path: corpus", "path: ../../docs")
    monkeypatch.setenv("RAG_EVAL_CORPUS_ROOTS", json.dumps([str(project.root / "doc")]))
    refused(project, "outside_gold_set")
    monkeypatch.setenv("RAG_EVAL_CORPUS_ROOTS", json.dumps([str(project.root / "docs")]))
    project.command("lint", "tiny")


def test_folders_and_files_of_the_command_line_count_as_listed(project, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    project.make_beir().rename(elsewhere / "collection")
    result = project.command("run", "--beir", str(elsewhere / "collection"), "--strategy", "bm25")
    assert "collection-test: " in result.output  # the name that other commands know the run by
    project.command("show", "collection-test")
    (elsewhere / "collection" / "queries.jsonl").rename(elsewhere / "queries.jsonl")
    (elsewhere / "collection" / "queries.jsonl").symlink_to(elsewhere / "queries.jsonl")
    result = project.invoke("run", "--beir", str(elsewhere / "collection"), "--strategy", "bm25")
    assert (result.exit_code, "outside_gold_set" in result.output) == (1, True)


def test_init_lists_the_folder_and_the_gold_set_runs(project, tmp_path_factory):
    docs = tmp_path_factory.mktemp("docs")
    for path in project.corpus.iterdir():
        (docs / path.name).write_bytes(path.read_bytes())
    settings = project.root / "settings.toml"
    content = '# ours\nwait_s = 3  # few\n\n[sources]\nmine = "http://127.0.0.1:1/"\n'
    settings.write_text(content, encoding="utf-8")
    settings.chmod(0o600)
    result = project.command("init", "mine", "--docs", str(docs))
    assert f"added {docs} to corpus_roots in settings.toml" in result.output
    written = settings.read_text(encoding="utf-8")
    assert [line for line in written.splitlines() if "corpus_roots" not in line and line] == [
        line for line in content.splitlines() if line
    ]
    assert tomllib.loads(written) == {**tomllib.loads(content), "corpus_roots": [str(docs)]}
    assert settings.stat().st_mode & 0o777 == 0o600
    assert "corpus_roots" not in project.invoke("init", "second", "--docs", str(docs)).output
    assert tomllib.loads(settings.read_text(encoding="utf-8"))["corpus_roots"] == [str(docs)]
