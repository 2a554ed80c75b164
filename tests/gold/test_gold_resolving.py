import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.gold.loading import load_gold
from rag_eval.gold.resolving import _carrying_chunks, resolve

TEXTS = {
    "a.md": "# Alpha\nThe tern flies far.\n# Food\nTerns eat fish. Terns eat fish at sea.\n"
    "# Nest\nA scrape in the sand.\n",
    "b.md": "plain text about gulls, without headings",
    "c.md": "# Gamma\nsomething else\n",
}


def _q(*ids: str, answerable: bool = True) -> list[dict]:
    return [
        {"query_id": query_id, "text": f"{query_id}?", "answerable": answerable, "tags": []}
        for query_id in ids
    ]


def _pairs(frame: pd.DataFrame) -> dict[tuple[str, str], int]:
    return {(query_id, item): gain for query_id, item, gain in frame.itertuples(index=False)}


SCRAPE = {"anchors": [{"quote": "A scrape in the sand."}]}


@pytest.fixture
def resolve_rows(make_gold, corpus_frames):
    """Return a function that resolves qrels and answer rows of `a.md` on the corpus of `TEXTS`."""

    def run(*ids, qrels="", answers=None, aliases=None):
        given = [{"query_id": "q1", "doc_id": "a.md", **row} for row in answers or ()] or None
        gold = load_gold(make_gold(_q(*ids), qrels, given))
        return resolve(gold, *corpus_frames(TEXTS, {"a.md": aliases or []}))

    return run


def test_several_names_of_one_document_collapse_to_the_highest_grade(resolve_rows):
    qrels = "q1\talpha\t1\nq1\ta.md\t2\nq2\tthe-alpha\t1\n"
    resolved = resolve_rows("q1", "q2", qrels=qrels, aliases=["alpha", "the-alpha"])
    assert _pairs(resolved.qrels["document"]) == {("q1", "a.md"): 2, ("q2", "a.md"): 1}
    # two names of one document join their questions
    assert resolved.gold.queries["group_id"].tolist() == ["q1", "q1"]


def test_sections_by_id_alias_heading_and_only_section(resolve_rows):
    qrels = (
        "q1\ta.md#food\t2\nq2\talpha#nest\t1\nq3\talpha#Food\t1\nq4\ta.md#gone\t1\n"
        "q5\tb.md\t3\nq6\ta.md\t1\n"
    )
    resolved = resolve_rows(*(f"q{n}" for n in range(1, 7)), qrels=qrels, aliases=["alpha"])
    assert _pairs(resolved.qrels["section"]) == {
        ("q1", "a.md#food"): 2,
        ("q2", "a.md#nest"): 1,
        ("q3", "a.md#food"): 1,
        ("q5", "b.md"): 3,
    }
    document = _pairs(resolved.qrels["document"])
    assert [document["q1", "a.md"], document["q2", "a.md"], document["q3", "a.md"]] == [2, 1, 1]
    assert [(problem.code, problem.line) for problem in resolved.problems] == [
        ("dangling_target", 5)
    ]


def test_anchor_gives_span_section_and_document(resolve_rows):
    resolved = resolve_rows("q1", answers=[SCRAPE])
    start = TEXTS["a.md"].index("A scrape")
    spans = resolved.spans[["doc_id", "start", "end"]].to_numpy().tolist()
    assert spans == [["a.md", start, start + 21]]
    assert _pairs(resolved.qrels["section"]) == {("q1", "a.md#nest"): 1}
    assert _pairs(resolved.qrels["document"]) == {("q1", "a.md"): 1}
    assert _pairs(resolved.qrels["span"]) == {("q1", resolved.spans["span_id"][0]): 1}


def test_explicit_grade_wins_over_the_anchor(resolve_rows):
    resolved = resolve_rows("q1", qrels="q1\ta.md\t0\n", answers=[SCRAPE])
    assert _pairs(resolved.qrels["document"]) == {("q1", "a.md"): 0}


NEST, ZZ = {"section_id": "a.md#nest"}, {"section_id": "a.md#zz"}


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"anchors": [{"quote": "no such words"}]}, "anchor_not_found"),
        ({"anchors": [{"quote": "Terns eat fish"}]}, "anchor_ambiguous"),
        (NEST | {"anchors": [{"quote": "Terns eat fish."}]}, "anchor_not_found"),
        (SCRAPE | {"section_id": "c.md#gamma"}, "section_of_other_document"),
        ({"doc_id": "zz.md", "anchors": [{"quote": "x"}]}, "dangling_target"),
        (SCRAPE | ZZ, "dangling_target"),
        ({"spans": [{"start": 5, "end": 9_999, "unit": "char"}]}, "bad_offsets"),
        ({"answers": [{"text": "Terns eat", "start": 0, "end": 9}]}, "offset_mismatch"),
        ({"decoy": {"doc_id": "zz.md"}}, "dangling_target"),
    ],
)
def test_faults_of_anchors(resolve_rows, row, code):
    resolved = resolve_rows("q0", "q1", answers=[{"query_id": "q0", "doc_id": "b.md"}, row])
    assert [(problem.code, problem.line) for problem in resolved.problems] == [(code, 2)]
    assert len(resolved.spans) == 0
    assert resolved.problems[0].file.endswith("answers.jsonl")


@pytest.mark.parametrize(
    ("quote", "span"),
    [
        ("two words", (4, 13)),  # exact wins over "two  words"
        ("it  has\n two lines", (26, 42)),
        ("lines\u00a0of text", (37, 51)),
    ],
)
def test_a_quote_may_differ_in_white_space(make_gold, corpus_frames, quote, span):
    frames = corpus_frames({"w.md": "The two words, two  words\nit has\ntwo\tlines\n\nof text"})
    answers = [{"query_id": "q1", "doc_id": "w.md", "anchors": [{"quote": quote}]}]
    resolved = resolve(load_gold(make_gold(_q("q1"), answers=answers)), *frames)
    assert resolved.problems == ()
    assert resolved.spans[["start", "end"]].to_numpy().tolist() == [list(span)]


def test_beir_evidence_adds_no_documents(tmp_path, corpus_frames):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "queries.jsonl").write_text(
        '{"_id": "1", "text": "a"}\n{"_id": "2", "text": "other split"}\n'
    )
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\ta.md\t1\n")
    (tmp_path / "evidence.jsonl").write_text(
        '{"query_id": "1", "doc_id": "b.md", "spans": [{"start": 0, "end": 5}]}\n'
        '{"query_id": "2", "doc_id": "zz", "spans": [{"start": 0, "end": 5}]}\n'
    )
    gold = load_gold(tmp_path, split="test")
    resolved = resolve(gold, *corpus_frames(TEXTS))
    assert gold.queries["query_id"].tolist() == ["1"]
    assert _pairs(resolved.qrels["document"]) == {("1", "a.md"): 1}
    assert resolved.spans["doc_id"].tolist() == ["b.md"]
    assert resolved.problems == ()


def test_nested_sections_give_the_innermost(make_gold, corpus_frames):
    frames = corpus_frames({"a.md": "x" * 30 + "needle" + "y" * 30})
    nested = pd.DataFrame(
        {
            "section_id": ["a#all", "a#one", "a#two"],
            "doc_id": "a.md",
            "title": ["all", "one", "two"],
            "start": [0, 5, 25],
            "end": [66, 20, 50],
        }
    )
    answers = [
        {"query_id": "q1", "doc_id": "a.md", "anchors": [{"quote": "needle"}]},
        {"query_id": "q2", "doc_id": "a.md", "spans": [{"start": 21, "end": 24}]},
    ]
    gold = load_gold(make_gold(_q("q1", "q2"), answers=answers))
    resolved = resolve(gold, frames.documents, nested, frames.chunks)
    assert _pairs(resolved.qrels["section"]) == {("q1", "a#two"): 1, ("q2", "a#all"): 1}


intervals = st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.integers(1, 25))


def _brute(spans, chunks):
    found = []
    for row, (document, start, end) in enumerate(spans):
        common = [
            min(end, last) - max(start, first) if document == other else 0
            for other, first, last in chunks
        ]
        enough = [
            place
            for place, (_, first, last) in enumerate(chunks)
            if common[place] > 0 and common[place] * 2 >= min(end - start, last - first)
        ]
        if not enough and max(common, default=0) > 0:
            enough = [common.index(max(common))]
        found.extend((row, place) for place in enough)
    return found


@given(spans=st.lists(intervals, max_size=8), chunks=st.lists(intervals, max_size=12))
def test_carrying_chunks_equal_the_definition(spans, chunks):
    spans, chunks = (
        [(document, start, start + length) for document, start, length in rows]
        for rows in (spans, chunks)
    )
    frames = [
        pd.DataFrame(rows, columns=["doc_id", "start", "end"]).astype(
            {"doc_id": "str", "start": "int64", "end": "int64"}
        )
        for rows in (spans, chunks)
    ]
    assert [tuple(row) for row in _carrying_chunks(*frames).to_numpy().tolist()] == _brute(
        spans, chunks
    )


def test_a_collection_keeps_judgements_of_documents_it_lacks(tmp_path, corpus_frames):
    frames = corpus_frames(TEXTS)
    write = {
        "queries.jsonl": '{"_id": "q1", "text": "one"}\n{"_id": "q2", "text": "two"}\n',
        "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\ta.md\t1\nq1\tgone\t1\nq2\tgone\t2\n",
    }
    for name, text in write.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    resolved = resolve(load_gold(tmp_path, split="test"), *frames)
    assert _pairs(resolved.qrels["document"]) == {
        ("q1", "a.md"): 1,
        ("q1", "gone"): 1,
        ("q2", "gone"): 2,
    }
    assert [(problem.code, problem.severity, problem.line) for problem in resolved.problems] == [
        ("dangling_target", "warning", 3),
        ("dangling_target", "warning", 4),
    ]
    lacking = "query-id\tcorpus-id\tscore\nq1\tgone\t1\nq2\tgone\t2\n"
    (tmp_path / "qrels" / "test.tsv").write_text(lacking, encoding="utf-8")
    problems = resolve(load_gold(tmp_path, split="test"), *frames).problems
    assert [problem.severity for problem in problems] == ["error", "error"]
