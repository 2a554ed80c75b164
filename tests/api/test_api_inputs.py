"""Every form of the field becomes the same frame, and faults name their place."""

import json

import datasets
import ir_measures
import pandas as pd
import pyarrow as pa
import pytest

from rag_eval.api.inputs import read_qrels, read_run
from rag_eval.core.errors import InputError

RUN = {"q1": {"d1": 2.5, "d2": 1.0}, "2": {"d1": 0.5}}
QRELS = {"q1": {"d1": 2, "d2": 0}, "2": {"d1": 1}}


def long(nested: dict, columns: str) -> pd.DataFrame:
    rows = [(query, doc, value) for query, docs in nested.items() for doc, value in docs.items()]
    return pd.DataFrame(rows, columns=columns.split())


FRAME = long(RUN, "query_id doc_id score")
GRADES = long(QRELS, "query_id doc_id relevance")

RUNS = {
    "ours": FRAME,
    "pyterrier": long(RUN, "qid docno score").assign(docid=0, rank=1),
    "numbered": FRAME.assign(query_id=FRAME["query_id"].replace("2", 2).astype(object)),
    "nested": RUN,
    "scored": [ir_measures.ScoredDoc(*row) for row in FRAME.itertuples(index=False)],
    "datasets": datasets.Dataset.from_pandas(FRAME),
}
JUDGED = {
    "ours": GRADES,
    "pyterrier": long(QRELS, "qid docno label"),
    "beir": long(QRELS, "query-id corpus-id score"),
    "nested": QRELS,
    "qrels": (ir_measures.Qrel(*row) for row in GRADES.itertuples(index=False)),
    "datasets": datasets.Dataset.from_pandas(GRADES),
    "arrow": pa.Table.from_pandas(GRADES).cast(
        pa.schema({"query_id": pa.large_string(), "doc_id": pa.string_view(), "relevance": "int8"})
    ),
    "mappings": GRADES.to_dict(orient="records"),
}


@pytest.mark.parametrize("form", RUNS)
def test_each_form_of_a_run_gives_the_same_frame(form):
    pd.testing.assert_frame_equal(read_run(RUNS[form]), FRAME)


@pytest.mark.parametrize("form", JUDGED)
def test_each_form_of_qrels_gives_the_same_frame(form):
    pd.testing.assert_frame_equal(read_qrels(JUDGED[form]), GRADES)


FILES = {
    "run.trec": "q1 Q0 d1 1 2.5 tag\nq1\tQ0\td2 2 1e0 tag\n\n2 Q0 d1 1 .5 tag\n",
    "run.json": json.dumps(RUN),
    "run.jsonl": FRAME.to_json(orient="records", lines=True),
    "run.csv": FRAME.to_csv(index=False),
    "run-capitals.csv": FRAME.to_csv(index=False, header=["Query-ID", "DocNo", "SCORE"]),
    "run-trec.tsv": "q1\tQ0\td1\t1\t2.5\ttag\nq1 Q0 d2 2 1 tag\n2 Q0 d1 1 .5 tag\n",
    "run.tsv": FRAME.to_csv(index=False, sep="\t"),
    "qrels.trec": "q1 0 d1 2\nq1 0 d2 -1\n2 0 d1 1\n",
    "qrels.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\n2\td1\t1\n",
    "qrels.jsonl": GRADES.to_json(orient="records", lines=True),
}


@pytest.mark.parametrize("name", FILES)
def test_each_kind_of_file_gives_the_same_frame(tmp_path, name):
    path = tmp_path / name
    path.write_text(FILES[name], encoding="utf-8")
    read, frame = (read_run, FRAME) if name.startswith("run") else (read_qrels, GRADES)
    pd.testing.assert_frame_equal(read(path), frame)
    pd.testing.assert_frame_equal(read(str(path)), frame)


def test_parquet_is_read_with_the_types_of_our_frames(tmp_path):
    FRAME.to_parquet(tmp_path / "run.parquet")
    GRADES.to_parquet(tmp_path / "qrels.parquet")
    pd.testing.assert_frame_equal(read_run(tmp_path / "run.parquet"), FRAME)
    pd.testing.assert_frame_equal(read_qrels(tmp_path / "qrels.parquet"), GRADES)


FAULTS = {
    "no run": (5, r"bad_form \[run\]: this is no run \(found: int"),
    "tuples": ([("q", "d", 1.0)], r"run has no column query_id \(found: 0, 1, 2; accepted: query"),
    "flat": ({"q": 1.0}, "the values of this mapping are no mappings"),
    "empty": ({"q": {}}, "run holds no row"),
    "nan": ({"q": {"d": 1.0, "e": float("nan")}}, r"score, row 2\]: a score is not finite"),
    "text": (FRAME.assign(score="high"), r"score, row 1\]: a score is not finite"),
    "double": (pd.concat([FRAME, FRAME[1:2]]), r"row 4\]: the query has this document twice"),
    "null": (
        pa.table({"qid": ["q", "q"], "docno": [1, None], "score": [2, 1]}),
        r"doc_id, row 2\]: this is not an id \(found: .*\"doc_id\": null",
    ),
    "no id": (FRAME.assign(doc_id=[None, "a", "b"]), r"doc_id, row 1\]: this is not an id"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_run_names_its_place(fault):
    given, message = FAULTS[fault]
    with pytest.raises(InputError, match=message):
        read_run(given)


def test_a_grade_is_a_whole_number():
    with pytest.raises(InputError, match=r"relevance, row 1\]: this is not a relevance grade"):
        read_qrels({"q": {"d": 0.5}})


BAD_FILES = {
    "run.trec": ("q1 Q0 d1 1 2.5 tag\nq1 d2 1.0\n", r"run.trec:2: error bad_columns: .*TREC run"),
    "run.json": ("[1]", "not_an_object"),
    "run.parquet": ("no parquet", "the file cannot be read"),
    "run.csv": ('query_id,doc_id,score\n"q', "run.csv:2: error bad_csv"),
    "score.csv": ("qid,docno,score\nq,d,1\n\nq,e,high\n", r"score.csv:4: error .*\[run: score\]"),
    "id.jsonl": (
        '{"qid": 1, "docno": 5, "score": 1}\n{"qid": 1, "score": 1}\n',
        r"id.jsonl:2: error bad_id \[run: doc_id\]",
    ),
    "twice.trec": ("q 0 d 1 2 t\nq 0 d 2 1 t\n", "twice.trec:2: error .*this document twice"),
    "names.csv": ("qid,docno,score,qid\nq,d,1,r\n", "names.csv:1: error duplicate_column"),
    "blanks.csv": ("qid;docno;score\nq;d;1\n", r"blanks.csv: error missing_column \[run\]"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_fault_of_a_file_names_the_file(tmp_path, name):
    text, message = BAD_FILES[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_run(tmp_path / name)
    with pytest.raises(InputError, match="there is no such file"):
        read_run(tmp_path / "absent" / name)
