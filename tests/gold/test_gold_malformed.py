"""Malformed inputs: each ends in an InputError that names code and line."""

import json
from pathlib import Path

import pytest

from rag_eval.core.errors import InputError
from rag_eval.core.rows import REMOVED_KEYS
from rag_eval.gold.configuration import load_config
from rag_eval.gold.loading import load_gold

QUERY = '{"query_id": "q1", "text": "why?", "answerable": true}\n'
QRELS = "query-id\tcorpus-id\tscore\nq1\ta.md\t1\n"
BEIR_QUERY = '{"_id": "1", "text": "a", "metadata": {}}\n'
LAYOUTS = {
    "own": {"queries.jsonl": QUERY, "qrels.tsv": QRELS},
    "beir": {
        "queries.jsonl": BEIR_QUERY,
        "qrels/test.tsv": "query-id\tcorpus-id\tscore\n1\td\t1\n",
    },
    "trec": {"topics.tsv": "301\twhat is a tern\n", "qrels.txt": "301 0 d1 1\n"},
}
CONFIG = """\
name: mine
corpus: {loader: folder, path: docs}
strategies:
  - {name: bm25, kind: bm25}
"""
HERE = Path(__file__).parent


def _with_key(key):
    """Return the configuration with a dotted key, and the line of the key."""
    part, *rest = key.split(".")
    if part == "corpus":
        return CONFIG.replace("path: docs", f"path: docs, {rest[0]}: 1"), 2
    if key == "answers.preflights.patterns":  # of an item of a list
        return f"{CONFIG}answers: {{preflights: [{{kind: grep, patterns: [x]}}]}}\n", 5
    nested = "".join(f"{{{inner}: " for inner in rest) + "1" + "}" * len(rest)
    return f"{CONFIG}{part}: {nested}\n", 5


LONG_LINE = QUERY.encode() + b'{"query_id": "' + b"x" * 17_000_000 + b'"}\n{oops\n'

# Layout, fault, file, content, [(code, line), ...]; the other files are well formed.
ROWS = [
    *json.loads((HERE / "malformed_rows.json").read_text()),
    ["own", "deep nesting", "queries.jsonl", QUERY + "[" * 200_000 + "\n", [["too_deep", 2]]],
    ["own", "not UTF-8", "queries.jsonl", b'{"query_id": "q\xff"}\n', [["bad_encoding", 1]]],
    ["own", "UTF-16", "queries.jsonl", QUERY.encode("utf-16"), [["bad_encoding", 1]]],
    ["own", "17 MB line", "queries.jsonl", LONG_LINE, [["line_too_long", 2], ["bad_json", 3]]],
    [
        "own",
        "text too long",
        "queries.jsonl",
        QUERY.replace("why?", "a" * 20_001),
        [["bad_value", 1]],
    ],
    ["own", "grade is huge", "qrels.tsv", QRELS + f"q1\tb.md\t{'9' * 30}\n", [["bad_grade", 3]]],
    ["own", "5,000 digits", "queries.jsonl", f'{{"weight": {"9" * 5_000}}}\n', [["bad_number", 1]]],
]
# Fault, content of gold_set.yaml, [(code, line, field), ...]
YAML = [
    *json.loads((HERE / "malformed_yaml.json").read_text()),
    ["not UTF-8", CONFIG.encode() + b"primary: \xff\n", [["bad_encoding", 5, None]]],
    *(
        [
            f"removed {key}",
            text,
            [["removed_key", line, key.replace("preflights", "preflights[0]")]],
        ]
        for key in REMOVED_KEYS
        if "preflights" not in key
        for text, line in [_with_key(key)]
    ),
    [
        "removed from a list",
        CONFIG + "answers: {preflights: [{kind: grep, patterns: 1}]}\n",
        [["removed_key", 5, "answers.preflights[0].patterns"]],
    ],
    ["too large", CONFIG + "#" * 400_000, [["file_too_large", None, None]]],
    ["deep lists", CONFIG + "k: " + "[" * 2_000 + "\n", [["too_deep", 1, None]]],
    ["deep mappings", CONFIG + "k: " + "{a: " * 2_000 + "\n", [["too_deep", 1, None]]],
    *(
        [f"5,000 digits: {start}", CONFIG + f"depth: {text}\n", [["bad_number", 5, "depth"]]]
        for start, text in (
            ("9", "9" * 5_000),
            ("0x", "0x" + "f" * 5_000),
            (":", "1" + ":9" * 5_000),
        )
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


def _faults(read, *arguments):
    with pytest.raises(InputError) as caught:
        read(*arguments)
    for problem in caught.value.problems:
        assert str(problem).isprintable()
        assert len(str(problem)) < 2_000
    return caught.value.problems


def _places(path, read, *arguments):
    problems = _faults(read, *arguments)
    return [[problem.code, problem.line] for problem in problems if problem.file == str(path)]


@pytest.mark.parametrize("case", ROWS, ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_row_with_a_fault_is_named_by_code_and_line(tmp_path, case):
    layout, _, file, content, expected = case
    for path, text in LAYOUTS[layout].items():
        _write(tmp_path, path, text)
    path = _write(tmp_path, file, content)
    split = "test" if layout == "beir" else None
    assert _places(path, load_gold, tmp_path, None, split) == expected


@pytest.mark.parametrize("case", YAML, ids=lambda case: case[0])
def test_a_configuration_fault_has_code_line_and_field(tmp_path, case):
    _, content, expected = case
    path = _write(tmp_path / "mine", "gold_set.yaml", content)
    problems = _faults(load_config, path.parent)
    found = [[problem.code, problem.line, problem.field] for problem in problems]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert {problem.file for problem in problems} == {str(path)}


@pytest.mark.parametrize("split", ["../test", "a/b", "", "..", "x\x00y", "x" * 300])
def test_a_split_is_a_name(tmp_path, split):
    assert _faults(load_gold, tmp_path, None, split)[0].code == "missing_file"


def test_negative_trec_grades_count_as_not_relevant(tmp_path):
    _write(tmp_path, "topics.tsv", "301\twhat is a tern\n")
    _write(tmp_path, "qrels.txt", "301 0 d1 -2\n301 0 d2 2\n")
    assert load_gold(tmp_path).judgements["gain"].tolist() == [0, 2]


def test_a_fault_says_what_is_accepted(tmp_path):
    wrong = CONFIG.replace("kind: bm25", "kind: bm52") + "levle: span\nlevel: spam\n"
    path = _write(tmp_path / "mine", "gold_set.yaml", wrong)
    found = {
        problem.field: (problem.message, problem.found, problem.accepted)
        for problem in _faults(load_config, path.parent)
    }
    assert found["strategies[0].kind"] == (
        "this value is not accepted; did you mean bm25?",
        "bm52",
        "bm25, external, hybrid, iterative, opensearch, pgvector, qdrant, vector",
    )
    assert found["level"][1:] == ("spam", "document, section, span")
    assert "did you mean level?" in found["levle"][0]
    assert found["levle"][2].startswith("name, version, corpus, k, depth")
    assert sorted(found) == ["level", "levle", "strategies[0].kind"]
