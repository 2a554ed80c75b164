"""Malformed inputs: each ends in an InputError that names code and line, or in a documented result; never in another exception."""

import pytest

from rag_eval.gold.configuration import load_config
from rag_eval.gold.loading import load_beir_gold, load_gold
from rag_eval.records.problems import InputError

QUERY = '{"query_id": "q1", "text": "why?", "answerable": true}\n'
QRELS = "query-id\tcorpus-id\tscore\nq1\ta.md\t1\n"
LONG = b'{"query_id": "' + b"x" * 10_000_001 + b'"}\n'
CONFIG = """\
name: mine
corpus: {loader: folder, path: docs}
strategies:
  - {name: bm25, kind: bm25}
"""

# (what is wrong, file, content, [(code, line), ...]); the other files of the gold set are well formed
OWN = [
    ("no questions file", "queries.jsonl", None, [("missing_file", None)]),
    ("empty questions file", "queries.jsonl", "", [("empty_file", 1)]),
    ("only blank lines", "queries.jsonl", "\n  \n\n", [("empty_file", 1)]),
    ("not JSON", "queries.jsonl", QUERY + "{oops\n", [("bad_json", 2)]),
    ("cut short", "queries.jsonl", QUERY + '{"query_id": "q2", "te', [("bad_json", 2)]),
    ("a list, not an object", "queries.jsonl", QUERY + "[1, 2]\n", [("not_an_object", 2)]),
    ("deep nesting", "queries.jsonl", QUERY + "[" * 200_000 + "\n", [("too_deep", 2)]),
    ("NUL byte", "queries.jsonl", QUERY.encode() + b'{"query_id": "q\x002"}\n', [("nul_byte", 2)]),
    (
        "NUL as an escape",
        "queries.jsonl",
        QUERY + '{"query_id": "q2", "text": "a\\u0000b", "answerable": true}\n',
        [("bad_text", 2)],
    ),
    (
        "lone surrogate in text",
        "queries.jsonl",
        QUERY + '{"query_id": "q2", "text": "a\\ud800b", "answerable": true}\n',
        [("bad_text", 2)],
    ),
    (
        "lone surrogate in id",
        "queries.jsonl",
        QUERY + '{"query_id": "q\\ud800", "text": "a", "answerable": true}\n',
        [("bad_id", 2)],
    ),
    (
        "not UTF-8",
        "queries.jsonl",
        QUERY.encode() + b'{"query_id": "q\xff"}\n',
        [("bad_encoding", 2)],
    ),
    ("UTF-16", "queries.jsonl", QUERY.encode("utf-16"), [("bad_encoding", 1)]),
    (
        "10 MB line",
        "queries.jsonl",
        QUERY.encode() + LONG + b"{oops\n",
        [("line_too_long", 2), ("bad_json", 3)],
    ),
    ("duplicate query id", "queries.jsonl", QUERY + QUERY, [("duplicate_id", 2)]),
    (
        "duplicate key",
        "queries.jsonl",
        '{"query_id": "q1", "query_id": "q2", "text": "a"}\n',
        [("duplicate_key", 1)],
    ),
    (
        "id is a number",
        "queries.jsonl",
        '{"query_id": 1, "text": "a", "answerable": true}\n',
        [("wrong_type", 1)],
    ),
    ("id missing", "queries.jsonl", '{"text": "a", "answerable": true}\n', [("missing_key", 1)]),
    (
        "text missing",
        "queries.jsonl",
        '{"query_id": "q1", "answerable": true}\n',
        [("missing_key", 1)],
    ),
    ("text is null", "queries.jsonl", '{"query_id": "q1", "text": null}\n', [("wrong_type", 1)]),
    (
        "text too long",
        "queries.jsonl",
        '{"query_id": "q1", "text": "' + "a" * 20_001 + '"}\n',
        [("text_too_long", 1)],
    ),
    (
        "path traversal in query id",
        "queries.jsonl",
        '{"query_id": "../../etc/passwd", "text": "a"}\n',
        [("bad_id", 1)],
    ),
    ("dots as query id", "queries.jsonl", '{"query_id": "..", "text": "a"}\n', [("bad_id", 1)]),
    (
        "white space in query id",
        "queries.jsonl",
        '{"query_id": "a b", "text": "a"}\n',
        [("bad_id", 1)],
    ),
    (
        "line break in query id",
        "queries.jsonl",
        '{"query_id": "a\\nb", "text": "a"}\n',
        [("bad_id", 1)],
    ),
    (
        "escape sequence in query id",
        "queries.jsonl",
        '{"query_id": "\\u001b[2J", "text": "a"}\n',
        [("bad_id", 1)],
    ),
    (
        "answerable is a text",
        "queries.jsonl",
        '{"query_id": "q1", "text": "a", "answerable": "yes"}\n',
        [("wrong_type", 1)],
    ),
    (
        "tags are a text",
        "queries.jsonl",
        '{"query_id": "q1", "text": "a", "answerable": true, "tags": "x"}\n',
        [("wrong_type", 1)],
    ),
    (
        "NaN in JSON",
        "queries.jsonl",
        '{"query_id": "q1", "text": "a", "weight": NaN}\n',
        [("bad_number", 1)],
    ),
    (
        "infinite number",
        "queries.jsonl",
        '{"query_id": "q1", "text": "a", "weight": 1e999}\n',
        [("bad_number", 1)],
    ),
    (
        "integer of 5,000 digits",
        "queries.jsonl",
        '{"query_id": "q1", "text": "a", "weight": ' + "9" * 5_000 + "}\n",
        [("bad_number", 1)],
    ),
    (
        "several faults at once",
        "queries.jsonl",
        '{"query_id": 1}\n{"query_id": "a/b", "text": "a"}\nnull\n',
        [("wrong_type", 1), ("missing_key", 1), ("bad_id", 2), ("not_an_object", 3)],
    ),
    (
        "reserved paraphrase id",
        "paraphrases.jsonl",
        '{"query_id": "q1", "paraphrase_id": "original", "text": "a"}\n',
        [("reserved_id", 1)],
    ),
    (
        "duplicate paraphrase id",
        "paraphrases.jsonl",
        '{"query_id": "q1", "paraphrase_id": "p", "text": "a"}\n' * 2,
        [("duplicate_id", 2)],
    ),
    (
        "paraphrase of nothing",
        "paraphrases.jsonl",
        '{"query_id": "q9", "paraphrase_id": "p", "text": "a"}\n',
        [("unknown_query", 1)],
    ),
    (
        "paraphrase without id",
        "paraphrases.jsonl",
        '{"query_id": "q1", "text": "a"}\n',
        [("missing_key", 1)],
    ),
    ("empty judgements", "qrels.tsv", "", [("empty_file", 1)]),
    ("no header", "qrels.tsv", "q1\ta.md\t1\n", [("missing_header", 1)]),
    ("another header", "qrels.tsv", "query\tdocument\tgrade\nq1\ta.md\t1\n", [("bad_header", 1)]),
    ("commas, not tabs", "qrels.tsv", "query-id,corpus-id,score\n", [("bad_columns", 1)]),
    ("two columns", "qrels.tsv", QRELS + "q1\tb.md\n", [("bad_columns", 3)]),
    ("five columns", "qrels.tsv", QRELS + "q1\tb.md\t1\t2\t3\n", [("bad_columns", 3)]),
    ("grade is a fraction", "qrels.tsv", QRELS + "q1\tb.md\t0.5\n", [("bad_grade", 3)]),
    ("grade is NaN", "qrels.tsv", QRELS + "q1\tb.md\tNaN\n", [("bad_grade", 3)]),
    ("grade is negative", "qrels.tsv", QRELS + "q1\tb.md\t-1\n", [("bad_grade", 3)]),
    ("grade is huge", "qrels.tsv", QRELS + "q1\tb.md\t" + "9" * 30 + "\n", [("bad_grade", 3)]),
    ("grade in other digits", "qrels.tsv", QRELS + "q1\tb.md\t1e0\n", [("bad_grade", 3)]),
    ("pair judged twice", "qrels.tsv", QRELS + "q1\ta.md\t0\n", [("duplicate_judgement", 3)]),
    ("judgement of no question", "qrels.tsv", QRELS + "q7\ta.md\t1\n", [("unknown_query", 3)]),
    (
        "path traversal in document id",
        "qrels.tsv",
        QRELS + "q1\t../../secret\t1\n",
        [("bad_id", 3)],
    ),
    ("document id empty", "qrels.tsv", QRELS + "q1\t\t1\n", [("bad_id", 3)]),
    ("NUL byte in judgements", "qrels.tsv", QRELS + "q1\ta\x00b\t1\n", [("nul_byte", 3)]),
    (
        "control character in document id",
        "qrels.tsv",
        QRELS + "q1\ta\x1b[2Jb\t1\n",
        [("bad_id", 3)],
    ),
    ("four columns among three", "qrels.tsv", QRELS + "q1\t0\tb.md\t1\n", [("bad_columns", 3)]),
    (
        "answer without document",
        "answers.jsonl",
        '{"query_id": "q1", "anchors": [{"quote": "a"}]}\n',
        [("missing_key", 1)],
    ),
    (
        "answer of nothing",
        "answers.jsonl",
        '{"query_id": "q9", "doc_id": "a.md"}\n',
        [("unknown_query", 1)],
    ),
    (
        "anchors are a text",
        "answers.jsonl",
        '{"query_id": "q1", "doc_id": "a.md", "anchors": "x"}\n',
        [("wrong_type", 1)],
    ),
    (
        "anchor without quote",
        "answers.jsonl",
        '{"query_id": "q1", "doc_id": "a.md", "anchors": [{}]}\n',
        [("missing_key", 1)],
    ),
    (
        "anchor is blank",
        "answers.jsonl",
        '{"query_id": "q1", "doc_id": "a.md", "anchors": [{"quote": "  "}]}\n',
        [("empty_anchor", 1)],
    ),
    (
        "offsets the wrong way round",
        "answers.jsonl",
        '{"query_id": "q1", "doc_id": "a.md", "spans": [{"start": 9, "end": 3}]}\n',
        [("bad_offsets", 1)],
    ),
    (
        "offsets are negative",
        "answers.jsonl",
        '{"query_id": "q1", "doc_id": "a.md", "spans": [{"start": -1, "end": 3}]}\n',
        [("bad_offsets", 1)],
    ),
    (
        "offsets are fractions",
        "answers.jsonl",
        '{"query_id": "q1", "doc_id": "a.md", "spans": [{"start": 0.5, "end": 3}]}\n',
        [("wrong_type", 1)],
    ),
    (
        "offsets are truth values",
        "answers.jsonl",
        '{"query_id": "q1", "doc_id": "a.md", "spans": [{"start": false, "end": true}]}\n',
        [("wrong_type", 1)],
    ),
    (
        "offsets count tokens",
        "answers.jsonl",
        '{"query_id": "q1", "doc_id": "a.md", "spans": [{"start": 0, "end": 3, "unit": "token"}]}\n',
        [("bad_unit", 1)],
    ),
    (
        "answer without text",
        "answers.jsonl",
        '{"query_id": "q1", "doc_id": "a.md", "answers": [{"text": "", "start": 0, "end": 3}]}\n',
        [("empty_anchor", 1)],
    ),
    (
        "decoy is a text",
        "answers.jsonl",
        '{"query_id": "q1", "decoy": "b.md"}\n',
        [("wrong_type", 1)],
    ),
    (
        "path traversal in a decoy",
        "answers.jsonl",
        '{"query_id": "q1", "decoy": {"doc_id": "docs/../../x"}}\n',
        [("bad_id", 1)],
    ),
]


def _write(folder, file, content):
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def _faults(call):
    with pytest.raises(InputError) as caught:
        call()
    for problem in caught.value.problems:
        assert str(problem).isprintable()
        assert len(str(problem)) < 2_000
    return caught.value.problems


@pytest.mark.parametrize(
    ("file", "content", "expected"), [pytest.param(*case[1:], id=case[0]) for case in OWN]
)
def test_malformed_gold_names_code_and_line(tmp_path, file, content, expected):
    _write(tmp_path, "queries.jsonl", QUERY)
    _write(tmp_path, "qrels.tsv", QRELS)
    path = _write(tmp_path, file, content)
    problems = [
        problem for problem in _faults(lambda: load_gold(tmp_path)) if problem.file == str(path)
    ]
    assert [(problem.code, problem.line) for problem in problems] == expected


YAML = [
    ("no file", None, [("missing_file", None, None)]),
    ("empty", "", [("empty_file", 1, None)]),
    ("only a comment", "# nothing\n", [("empty_file", 1, None)]),
    ("a list", "- name: mine\n", [("not_a_mapping", 1, None)]),
    ("a text", "mine\n", [("not_a_mapping", 1, None)]),
    ("syntax", CONFIG + "k: [1, 5\n", [("bad_yaml", 6, None)]),
    ("tab as indentation", CONFIG + "gates:\n\trequired: []\n", [("bad_yaml", 6, None)]),
    ("floor without quotes", CONFIG + "acceptance:\n  mrr: >= 0.6\n", [("bad_yaml", 6, None)]),
    ("NUL byte", CONFIG + "description: a\x00b\n", [("nul_byte", 5, None)]),
    ("control character", CONFIG + "description: a\x1bb\n", [("control_character", 5, None)]),
    (
        "control character as an escape",
        CONFIG + 'description: "a\\eb"\n',
        [("control_character", 5, "description")],
    ),
    (
        "lone surrogate",
        CONFIG + 'description: "a\\ud800b"\n',
        [("control_character", 5, "description")],
    ),
    ("not UTF-8", CONFIG.encode() + b"description: \xff\n", [("bad_encoding", 5, None)]),
    ("too large", CONFIG + "#" * 1_000_000, [("file_too_large", 1, None)]),
    ("too many values", CONFIG + "k: [" + "1," * 30_000 + "]\n", [("file_too_large", 5, None)]),
    ("deep nesting", CONFIG + "k: " + "[" * 2_000 + "\n", [("too_deep", 5, None)]),
    ("deep nesting of mappings", CONFIG + "k: " + "{a: " * 2_000 + "\n", [("too_deep", 5, None)]),
    ("alias bomb", "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n", [("alias_refused", 1, None)]),
    ("two documents", CONFIG + "---\nname: other\n", [("several_documents", 5, None)]),
    (
        "Python object",
        CONFIG + 'description: !!python/object/apply:os.system ["true"]\n',
        [("bad_tag", 5, "description")],
    ),
    ("binary", CONFIG + "description: !!binary aGk=\n", [("bad_tag", 5, "description")]),
    ("duplicate key", CONFIG + "depth: 20\ndepth: 30\n", [("duplicate_key", 6, "depth")]),
    (
        "duplicate key inside",
        CONFIG.replace("kind: bm25", "kind: bm25, b: 0.1, b: 0.2"),
        [("duplicate_key", 4, "strategies[0].b")],
    ),
    ("merge key", CONFIG + "<<: {depth: 20}\n", [("bad_key", 5, None)]),
    ("number as a key", CONFIG + "1: 2\n", [("bad_key", 5, None)]),
    ("list as a key", CONFIG + "? [a]\n: 2\n", [("bad_key", 5, None)]),
    ("unknown key", CONFIG + "sedes: [1]\n", [("unknown_key", 5, "sedes")]),
    (
        "unknown key inside a strategy",
        CONFIG.replace("kind: bm25", "kind: bm25, alpah: 1"),
        [("unknown_key", 4, "strategies[0].alpah")],
    ),
    (
        "unknown key named as the tag",
        CONFIG.replace("kind: bm25", "kind: bm25, bm25: 1"),
        [("unknown_key", 4, "strategies[0].bm25")],
    ),
    (
        "unknown kind",
        CONFIG.replace("kind: bm25", "kind: bm52"),
        [("bad_value", 4, "strategies[0].kind")],
    ),
    ("unknown loader", CONFIG.replace("folder", "foldre"), [("bad_value", 2, "corpus.loader")]),
    (
        "loader missing",
        CONFIG.replace("loader: folder, ", ""),
        [("missing_key", 2, "corpus.loader")],
    ),
    ("path missing", CONFIG.replace(", path: docs", ""), [("missing_key", 2, "corpus.path")]),
    ("name missing", CONFIG.replace("name: mine\n", ""), [("missing_key", 1, "name")]),
    (
        "name of another folder",
        CONFIG.replace("name: mine", "name: other"),
        [("name_mismatch", 1, "name")],
    ),
    (
        "path traversal in the name",
        CONFIG.replace("name: mine", "name: ../mine"),
        [("bad_value", 1, "name")],
    ),
    (
        "name is a truth value",
        CONFIG.replace("name: mine", "name: no"),
        [("wrong_type", 1, "name")],
    ),
    ("version is a list", CONFIG + "version: [1]\n", [("wrong_type", 5, "version")]),
    (
        "corpus is empty",
        "name: mine\ncorpus:\nstrategies:\n  - {name: b, kind: bm25}\n",
        [("wrong_type", 2, "corpus")],
    ),
    (
        "strategies are empty",
        CONFIG.replace("\n  - {name: bm25, kind: bm25}", " []"),
        [("bad_value", 3, "strategies")],
    ),
    (
        "strategies are a text",
        CONFIG.replace("\n  - {name: bm25, kind: bm25}", " bm25"),
        [("wrong_type", 3, "strategies")],
    ),
    (
        "equal strategy names",
        CONFIG + "  - {name: bm25, kind: vector}\n",
        [("bad_value", 3, "strategies")],
    ),
    ("numbers as texts", CONFIG + 'depth: "20"\n', [("wrong_type", 5, "depth")]),
    ("truth value as a number", CONFIG + "nightly: 1\n", [("wrong_type", 5, "nightly")]),
    ("fraction for a whole number", CONFIG + "depth: 20.0\n", [("wrong_type", 5, "depth")]),
    (
        "NaN",
        CONFIG.replace("kind: bm25", "kind: bm25, k1: .nan"),
        [("bad_number", 4, "strategies[0].k1")],
    ),
    (
        "infinity",
        CONFIG.replace("kind: bm25", "kind: bm25, k1: .inf"),
        [("bad_number", 4, "strategies[0].k1")],
    ),
    ("number of 5,000 digits", CONFIG + f"depth: {'9' * 5_000}\n", [("bad_value", 5, "depth")]),
    ("k is zero", CONFIG + "k: [0, 5]\n", [("bad_value", 5, "k[0]")]),
    ("k falls", CONFIG + "k: [5, 1]\n", [("bad_value", 5, "k")]),
    ("depth below k", CONFIG + "k: [1, 50]\ndepth: 20\n", [("bad_value", 6, "depth")]),
    ("seed out of range", CONFIG + f"seeds:\n  - 1\n  - {2**40}\n", [("bad_value", 7, "seeds[1]")]),
    ("unknown level", CONFIG + "level: chunk\n", [("bad_value", 5, "level")]),
    (
        "unknown gate",
        CONFIG + "gates:\n  required:\n    - poisning\n",
        [("bad_value", 7, "gates.required[0]")],
    ),
    ("unknown primary", CONFIG + "primary: hybrid\n", [("bad_value", 5, "primary")]),
    (
        "floors of several kinds",
        CONFIG + 'acceptance:\n  mrr: "about 0.5"\n  recall_at_10: 0.6\n',
        [("bad_value", 6, "acceptance.mrr"), ("wrong_type", 7, "acceptance.recall_at_10")],
    ),
    (
        "unknown model",
        CONFIG + "  - {name: v, kind: vector, embedding: {model: gpt}}\n",
        [("bad_value", 5, "strategies[1].embedding.model")],
    ),
    (
        "lambda out of range",
        CONFIG.replace("kind: bm25", "kind: bm25, rerank: {kind: mmr, lambda: 2}"),
        [("bad_value", 4, "strategies[0].rerank.lambda")],
    ),
    (
        "no weight",
        CONFIG + "  - name: h\n    kind: hybrid\n    alpha: 0\n    beta: 0\n",
        [("bad_value", 7, "strategies[1].alpha")],
    ),
    (
        "overlap too large",
        CONFIG.replace(
            "path: docs", "path: docs, chunker: {kind: text, max_tokens: 8, overlap: 8}"
        ),
        [("bad_value", 2, "corpus.chunker.overlap")],
    ),
    (
        "several mistakes at once",
        "name: mine\ncorpus: {loader: folder}\nstrategies:\n  - {name: b, kind: bm25, k1: -1}\nlevle: span\nnightly: yse\nnightly: true\n",
        [
            ("duplicate_key", 7, "nightly"),
            ("missing_key", 2, "corpus.path"),
            ("bad_value", 4, "strategies[0].k1"),
            ("wrong_type", 6, "nightly"),
            ("unknown_key", 5, "levle"),
        ],
    ),
]


@pytest.mark.parametrize(
    ("content", "expected"), [pytest.param(*case[1:], id=case[0]) for case in YAML]
)
def test_malformed_configuration_names_code_line_and_field(tmp_path, content, expected):
    folder = tmp_path / "mine"
    folder.mkdir()
    _write(folder, "gold_set.yaml", content)
    problems = _faults(lambda: load_config(folder))
    assert sorted((problem.code, problem.line, problem.field) for problem in problems) == sorted(
        expected, key=lambda item: (item[0], item[1])
    )
    assert {problem.file for problem in problems} == {str(folder / "gold_set.yaml")}


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        pytest.param("qrels/test.tsv", None, ("missing_file", None), id="no such split"),
        pytest.param(
            "qrels/test.tsv",
            "query-id\tcorpus-id\tscore\n1\td\tnan\n",
            ("bad_grade", 2),
            id="NaN score",
        ),
        pytest.param(
            "qrels/test.tsv",
            "query-id\tcorpus-id\tscore\n8\td\t1\n",
            ("unknown_query", 2),
            id="judgement of no query",
        ),
        pytest.param(
            "queries.jsonl",
            '{"_id": "1", "text": "a"}\n{"_id": "1", "text": "b"}\n',
            ("duplicate_id", 2),
            id="duplicate _id",
        ),
        pytest.param(
            "queries.jsonl", '{"_id": 1, "text": "a"}\n', ("wrong_type", 1), id="_id is a number"
        ),
        pytest.param(
            "evidence.jsonl",
            '{"query_id": "1", "doc_id": "d", "spans": [{"start": "0", "end": 3}]}\n',
            ("wrong_type", 1),
            id="offsets are texts",
        ),
    ],
)
def test_malformed_beir(tmp_path, file, content, expected):
    _write(tmp_path, "queries.jsonl", '{"_id": "1", "text": "a", "metadata": {}}\n')
    _write(tmp_path, "qrels/test.tsv", "query-id\tcorpus-id\tscore\n1\td\t1\n")
    path = _write(tmp_path, file, content)
    problems = [
        problem
        for problem in _faults(lambda: load_beir_gold(tmp_path, "test"))
        if problem.file == str(path)
    ]
    assert [(problem.code, problem.line) for problem in problems] == [expected]


@pytest.mark.parametrize("split", ["../test", "a/b", "", "..", "x\x00y", "x" * 300])
def test_split_is_a_name(tmp_path, split):
    assert _faults(lambda: load_beir_gold(tmp_path, split))[0].code == "bad_value"


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        pytest.param("topics.tsv", "301 no tab\n", ("bad_columns", 1), id="no tab"),
        pytest.param("topics.tsv", "301\ta\n301\tb\n", ("duplicate_id", 2), id="duplicate topic"),
        pytest.param("topics.tsv", "", ("empty_file", 1), id="no topics"),
        pytest.param("topics.tsv", "../1\ta\n301\tb\n", ("bad_id", 1), id="path traversal"),
        pytest.param("qrels.txt", "301 0 d1 1\n301 0 d2\n", ("bad_columns", 2), id="three columns"),
        pytest.param("qrels.txt", "301 0 d1 one\n", ("bad_grade", 1), id="grade is a word"),
        pytest.param(
            "qrels.txt",
            "301 0 d1 1\n301 1 d1 0\n",
            ("duplicate_judgement", 2),
            id="pair judged twice",
        ),
    ],
)
def test_malformed_trec(tmp_path, file, content, expected):
    _write(tmp_path, "topics.tsv", "301\twhat is a tern\n")
    _write(tmp_path, "qrels.txt", "301 0 d1 1\n")
    path = _write(tmp_path, file, content)
    problems = [
        problem for problem in _faults(lambda: load_gold(tmp_path)) if problem.file == str(path)
    ]
    assert [(problem.code, problem.line) for problem in problems] == [expected]


def test_byte_order_marks_and_windows_line_ends_are_tolerated(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    _write(folder, "gold_set.yaml", b"\xef\xbb\xbf" + CONFIG.replace("\n", "\r\n").encode())
    _write(folder, "queries.jsonl", b"\xef\xbb\xbf" + QUERY.replace("\n", "\r\n").encode())
    _write(folder, "qrels.tsv", b"\xef\xbb\xbf" + QRELS.replace("\n", "\r\n").encode())
    gold = load_gold(folder)
    assert gold.judgements[["query_id", "target", "gain"]].to_numpy().tolist() == [
        ["q1", "a.md", 1]
    ]


def test_negative_trec_grades_count_as_not_relevant(tmp_path):
    _write(tmp_path, "topics.tsv", "301\twhat is a tern\n")
    _write(tmp_path, "qrels.txt", "301 0 d1 -2\n301 0 d2 2\n")
    assert load_gold(tmp_path).judgements["gain"].tolist() == [0, 2]


def test_empty_paraphrases_and_answers_are_none(tmp_path):
    _write(tmp_path, "queries.jsonl", QUERY)
    _write(tmp_path, "paraphrases.jsonl", "")
    _write(tmp_path, "answers.jsonl", "")
    gold = load_gold(tmp_path)
    assert (len(gold.queries), len(gold.paraphrases), len(gold.anchors)) == (1, 0, 0)


def test_a_folder_in_the_place_of_a_file(tmp_path):
    (tmp_path / "queries.jsonl").mkdir()
    assert _faults(lambda: load_gold(tmp_path))[0].code == "not_a_file"


def test_a_thousand_faults_are_listed_in_part_and_counted(tmp_path):
    _write(tmp_path, "queries.jsonl", QUERY + "{}\n" * 500)
    problems = _faults(lambda: load_gold(tmp_path))
    assert len(problems) == 101
    assert problems[-1].code == "more_problems"
    assert problems[-1].message.startswith("900 more")


def test_faults_of_all_files_come_together(tmp_path):
    for file in ("queries.jsonl", "paraphrases.jsonl", "answers.jsonl"):
        _write(tmp_path, file, "{oops\n")
    _write(tmp_path, "qrels.tsv", "x\n")
    assert [problem.file.rsplit("/", 1)[1] for problem in _faults(lambda: load_gold(tmp_path))] == [
        "queries.jsonl",
        "qrels.tsv",
        "answers.jsonl",
        "paraphrases.jsonl",
    ]


def test_accepted_is_said(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    _write(
        folder,
        "gold_set.yaml",
        CONFIG.replace("kind: bm25", "kind: bm52") + "levle: span\nlevel: spam\n",
    )
    said = {
        problem.field: (problem.message, problem.found, problem.accepted)
        for problem in _faults(lambda: load_config(folder))
    }
    assert said["strategies[0].kind"] == (
        "kind is not one of the known ones; did you mean bm25?",
        "bm52",
        "bm25, vector, hybrid, external, iterative",
    )
    assert said["level"][1:] == ("spam", "document, section, span")
    assert "did you mean level?" in said["levle"][0]
    assert said["levle"][2].startswith("name, version, description, corpus, k, depth")
    assert sorted(said) == ["level", "levle", "strategies[0].kind"]
