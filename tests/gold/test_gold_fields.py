"""Every reader applies the same rules to ids, grades, titles and encodings."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rag_eval
from rag_eval.core import rows
from rag_eval.core.errors import InputError, ProblemList
from rag_eval.corpus.loaders.beir import Beir
from rag_eval.corpus.loaders.hf_datasets import HuggingFace
from rag_eval.corpus.loaders.parquet import Parquet
from rag_eval.corpus.loaders.recorded import read_outputs
from rag_eval.gold.files import read_qrels, read_queries
from rag_eval.gold.loading import load_gold

HEADER = "query-id{0}corpus-id{0}score\n"


def checked(read, path):
    problems = ProblemList()
    result = read(path, problems)
    problems.raise_errors()
    return result


def write(path, *values):
    path.write_text("".join(json.dumps(row) + "\n" for row in values), encoding="utf-8")
    return path


def text_cells(value):
    """Return the text of a table's cell; None where a table cannot hold the value."""
    is_text = isinstance(value, str) and value.isprintable() and '"' not in value
    return value if is_text else str(value) if type(value) is int else None


# Each reads one document id, as the name says, and returns the id.


def from_tsv(folder, value):
    path = folder / "qrels.tsv"
    path.write_text(HEADER.format("\t") + f"q\t{text_cells(value)}\t1\n", encoding="utf-8")
    return checked(read_qrels, path)["target"][0]


def from_csv(folder, value):
    path = folder / "qrels.csv"
    path.write_text(HEADER.format(",") + f"q,{text_cells(value)},1\n", encoding="utf-8")
    return rag_eval.read_qrels(path)["doc_id"][0]


def from_csv_corpus(folder, value):
    (folder / "c.csv").write_text(f"id,text\n{text_cells(value)},x\n", encoding="utf-8")
    return HuggingFace(loader="hf_datasets", path="c.csv").read(folder).documents[0].doc_id


def from_jsonl_corpus(folder, value):
    write(folder / "c.jsonl", {"id": value, "text": "x"})
    return HuggingFace(loader="hf_datasets", path="c.jsonl").read(folder).documents[0].doc_id


def from_beir(folder, value):
    write(folder / "corpus.jsonl", {"_id": value, "title": None, "text": "x"})
    return Beir(loader="beir", path=".").read(folder).documents[0].doc_id


def from_parquet(folder, value):
    pq.write_table(pa.table({"id": [value], "text": ["x"]}), folder / "c.parquet")
    return Parquet(loader="parquet", path="c.parquet").read(folder).documents[0].doc_id


def from_query(folder, value):
    path = write(folder / "queries.jsonl", {"_id": value, "text": "x"})
    return checked(read_queries, path).queries["query_id"][0]


def from_output(folder, value):
    row = {"query_id": value, "answer": "a", "contexts": [{"id": value, "text": "x"}]}
    (output,) = read_outputs(write(folder / "outputs.jsonl", row), ProblemList())
    assert output.query_id == output.contexts[0].document
    return output.query_id


def from_dict(folder, value):
    del folder
    return rag_eval.read_qrels({"q": {value: 1}})["doc_id"][0]


def from_jsonl_run(folder, value):
    path = write(folder / "run.jsonl", {"query_id": "q", "doc_id": value, "score": 1})
    return rag_eval.read_run(path)["doc_id"][0]


def from_parquet_run(folder, value):
    table = pa.table({"query_id": ["q"], "doc_id": [value], "score": [1.0]})
    pq.write_table(table, folder / "run.parquet")
    return rag_eval.read_run(folder / "run.parquet")["doc_id"][0]


OF_TEXT = [from_tsv, from_csv, from_csv_corpus]
OF_JSON = [
    from_jsonl_corpus,
    from_beir,
    from_query,
    from_output,
    from_jsonl_run,
]
OF_VALUES = [from_parquet, from_dict, from_parquet_run]
IDS = [
    *("d1", "007", "NA", "null", "1.0", "5% off", "a%20b", "überblick — 日本.md"),
    *("/data/docs/a.md", "C:\\docs\\a.md", "../a.md", "https://example.org/a?b=c#d", "two words"),
    *(7, 2**53 + 1),
]
NOT_IDS = [True, 1.5, 1.0, "", "  ", "a\x07b", "a\u2028b", "x" * 1001]


@pytest.mark.parametrize("read", [*OF_TEXT, *OF_JSON, *OF_VALUES])
@pytest.mark.parametrize("value", IDS, ids=ascii)
def test_each_reader_accepts_the_same_ids(tmp_path, read, value):
    assert read(tmp_path, value) == str(value)


@pytest.mark.parametrize("read", [*OF_JSON, *OF_VALUES])
@pytest.mark.parametrize("value", NOT_IDS, ids=lambda value: ascii(value)[:9])
def test_each_reader_refuses_the_same_ids(tmp_path, read, value):
    with pytest.raises(InputError, match=r"not an id|wrong_type"):
        read(tmp_path, value)


@pytest.mark.parametrize("loader", ["beir", "hf_datasets", "parquet"])
@pytest.mark.parametrize("title", ["Tern", "", None])
def test_a_null_text_is_empty_beside_a_title(tmp_path, loader, title):
    row = {"id": "a", "_id": "a", "title": title, "text": None}
    write(tmp_path / "corpus.jsonl", row)
    columns = {name: pa.array([value], pa.string()) for name, value in row.items()}
    pq.write_table(pa.table(columns), tmp_path / "c.parquet")
    spec = {
        "beir": Beir(loader="beir", path="."),
        "hf_datasets": HuggingFace(loader="hf_datasets", path="corpus.jsonl"),
        "parquet": Parquet(loader="parquet", path="c.parquet"),
    }[loader]
    if title:
        (document,) = spec.read(tmp_path).documents
        assert (document.title, document.text) == ("Tern", "")
        return
    with pytest.raises(InputError, match=r"wrong_type \[text\]"):
        spec.read(tmp_path)


# Each reads one grade.


def grade_of_tsv(folder, value):
    (folder / "q.tsv").write_text(HEADER.format("\t") + f"q\td\t{value}\n", encoding="utf-8")
    return checked(read_qrels, folder / "q.tsv")["gain"][0]


def grade_of_trec(folder, value):
    (folder / "q.txt").write_text(f"q 0 d {value}\n", encoding="utf-8")
    return rag_eval.read_qrels(folder / "q.txt")["relevance"][0]


def grade_of_csv(folder, value):
    (folder / "q.csv").write_text(HEADER.format(",") + f"q,d,{value}\n", encoding="utf-8")
    return rag_eval.read_qrels(folder / "q.csv")["relevance"][0]


def grade_of_jsonl(folder, value):
    path = write(folder / "q.jsonl", {"qid": "q", "docno": "d", "label": value})
    return rag_eval.read_qrels(path)["relevance"][0]


def grade_of_dict(folder, value):
    del folder
    return rag_eval.read_qrels({"q": {"d": value}})["relevance"][0]


GRADED = [grade_of_tsv, grade_of_trec, grade_of_csv, grade_of_jsonl, grade_of_dict]


@pytest.mark.parametrize("read", GRADED)
@pytest.mark.parametrize(
    ("value", "grade"),
    [(0, 0), (1, 1), (1000, 1000), (1.0, 1), ("1", 1), ("2.0", 2), ("+1", 1), (-2, 0), ("-1", 0)],
)
def test_each_reader_accepts_the_same_grades(tmp_path, read, value, grade):
    assert read(tmp_path, value) == grade


@pytest.mark.parametrize("read", GRADED)
@pytest.mark.parametrize("value", [0.5, "0.5", True, "x", "nan", "1e0", 1001, "9" * 30])
def test_each_reader_refuses_the_same_grades(tmp_path, read, value):
    with pytest.raises(InputError, match="not a relevance grade"):
        read(tmp_path, value)


# ---- Encodings of text files.

TEXT = "q 0 d1 1\nq 0 é 0\n"
ENCODINGS = {
    "plain": TEXT.encode(),
    "mark and CRLF": b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode(),
    "gzip": gzip.compress(TEXT.encode()),
    "gzip with mark": gzip.compress(b"\xef\xbb\xbf" + TEXT.encode()),
}
REFUSED = {
    "UTF-16": (TEXT.encode("utf-16"), "the text is UTF-16"),
    "UTF-16 without mark": (TEXT.encode("utf-16-le"), "the text is UTF-16 or UTF-32"),
    "Latin-1": (TEXT.encode("latin-1"), "perhaps it is Latin-1"),
    "cut gzip": (gzip.compress(TEXT.encode())[:-4], "the file cannot be read"),
    "damaged gzip": (b"\x1f\x8b" + b"x" * 50, "the file cannot be read"),
}


@pytest.mark.parametrize("name", ["qrels", "qrels.trec.gz"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_text_file_may_have_a_mark_and_be_compressed(tmp_path, name, encoding):
    (tmp_path / name).write_bytes(ENCODINGS[encoding])
    assert rag_eval.read_qrels(tmp_path / name)["doc_id"].tolist() == ["d1", "é"]


@pytest.mark.parametrize("encoding", REFUSED)
def test_another_encoding_is_refused_by_name(tmp_path, encoding):
    data, message = REFUSED[encoding]
    (tmp_path / "qrels").write_bytes(data)
    with pytest.raises(InputError, match=message):
        rag_eval.read_qrels(tmp_path / "qrels")


@pytest.mark.parametrize("read", [rows.read_text, lambda *given: list(rows.read_lines(*given))])
@pytest.mark.parametrize("size", [1001, 10**8])
def test_the_content_of_a_compressed_file_is_bounded(tmp_path, read, size):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"x" * size))
    problems = ProblemList()
    read(tmp_path / "a.gz", problems, 1000)
    assert [problem.code for problem in problems.listed()] == ["file_too_large"]


FILES = {
    "corpus.jsonl": '{"_id": 1, "title": null, "text": "a tern"}\n',
    "queries.jsonl": '{"_id": 1, "text": "tern?"}\n',
    "qrels/test.tsv": HEADER.format("\t") + "1\t1\t1.0\n",
}


def test_a_beir_folder_may_be_compressed(tmp_path):
    (tmp_path / "qrels").mkdir()
    for name, text in FILES.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    gold = load_gold(tmp_path, None, "test")
    assert gold.judgements[["query_id", "target", "gain"]].to_numpy().tolist() == [["1", "1", 1]]
    assert [one.doc_id for one in Beir(loader="beir", path=".").read(tmp_path).documents] == ["1"]
