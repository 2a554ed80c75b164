"""Passages that restate a question are looked for only in chunks that are new."""

import json

import pytest

from rag_eval.core.settings import Settings
from rag_eval.pipeline import guard
from rag_eval.pipeline.evaluation import open_gold_set
from rag_eval.pipeline.guard import RestatedPassages

QUESTION = "How deep is the blue lake of the north"
CONFIG = """\
name: lakes
version: 1
corpus: {loader: beir, path: corpus, chunker: {kind: whole}}
strategies: [{name: bm25, kind: bm25}]
"""


@pytest.fixture
def lakes(tmp_path, monkeypatch):
    """Write a gold set; return a function from documents to pairs and the texts that it read."""
    folder, read = tmp_path / "lakes", []
    (folder / "corpus").mkdir(parents=True)
    (folder / "gold_set.yaml").write_text(CONFIG)
    query = {"query_id": "q", "text": QUESTION, "answerable": True}
    (folder / "queries.jsonl").write_text(json.dumps(query) + "\n")
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
    find = guard.find_sightings

    def counted(queries, texts, **more):
        read.extend(texts)
        return find(queries, texts, **more)

    monkeypatch.setattr(guard, "find_sightings", counted)

    def restated(documents, home):
        lines = [{"_id": name, "title": "", "text": text} for name, text in documents.items()]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (folder / "corpus" / "corpus.jsonl").write_text(text)
        read.clear()
        settings = Settings(home=tmp_path / home, gold_sets=tmp_path, reports=tmp_path / "reports")
        result = open_gold_set(folder, settings).runner.get(RestatedPassages)
        return result.pairs.to_dict("records"), list(read)

    return restated


def test_sightings_of_unchanged_chunks_are_taken_over(lakes):
    documents = {
        "a": "The lake is deep and blue.",
        "b": f"{QUESTION}? It is deep.",
        "c": "Another text about rivers.",
    }
    first, read = lakes(documents, "home")
    assert len(read) == len(documents)
    assert len(first) == 1
    documents |= {"aa": f"{QUESTION} is a thing to ask", "c": "Rivers run."}
    later, read = lakes(documents, "home")
    assert read == [documents["aa"], documents["c"]]
    anew, _ = lakes(documents, "other")
    assert later == anew
    assert len(anew) > len(first)
