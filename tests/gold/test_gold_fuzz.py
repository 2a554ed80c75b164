"""Whatever the bytes, reading ends in a result or an InputError."""

import contextlib
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rag_eval.gold.configuration import load_config
from rag_eval.gold.loading import load_gold
from rag_eval.records.problems import InputError

settings.register_profile(
    "gold",
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
PROFILE = settings.get_profile("gold")

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["q1", "a.md", "bm25", "hybrid", "folder", "lsa-16"])
)
keys = st.sampled_from(
    [
        "query_id",
        "_id",
        "text",
        "answerable",
        "tags",
        "paraphrase_id",
        "source",
        "doc_id",
        "section_id",
        "anchors",
        "answers",
        "spans",
        "start",
        "end",
        "unit",
        "quote",
        "decoy",
        "label",
    ]
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=8,
)
rows = st.lists(st.dictionaries(keys, values, max_size=6), max_size=5)
config_keys = st.sampled_from(
    [
        "name",
        "version",
        "corpus",
        "loader",
        "path",
        "chunker",
        "kind",
        "strategies",
        "embedding",
        "model",
        "k",
        "seeds",
        "depth",
        "acceptance",
        "gates",
        "required",
        "rerank",
        "lambda",
        "primary",
        "level",
    ]
)
config_values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(config_keys, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    "file",
    [
        "queries.jsonl",
        "paraphrases.jsonl",
        "answers.jsonl",
        "qrels.tsv",
        "topics.tsv",
        "gold_set.yaml",
    ],
)
@PROFILE
@given(
    data=st.binary(max_size=300)
    | st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
def test_any_bytes(tmp_path, file, data):
    (tmp_path / "queries.jsonl").write_text('{"query_id": "q1", "text": "a"}\n')
    (tmp_path / file).write_bytes(data)
    with contextlib.suppress(InputError):
        (load_config if file == "gold_set.yaml" else load_gold)(tmp_path)


@PROFILE
@given(queries=rows, paraphrases=rows, answers=rows)
def test_any_objects(tmp_path, queries, paraphrases, answers):
    for file, content in (
        ("queries.jsonl", queries),
        ("paraphrases.jsonl", paraphrases),
        ("answers.jsonl", answers),
    ):
        (tmp_path / file).write_text("".join(json.dumps(row) + "\n" for row in content))
    with contextlib.suppress(InputError):
        load_gold(tmp_path)


@settings(PROFILE, max_examples=200)
@given(data=st.dictionaries(config_keys, config_values, max_size=8))
def test_any_configuration(tmp_path, data):
    base = {
        "name": tmp_path.name,
        "corpus": {"loader": "folder", "path": "x"},
        "strategies": [{"name": "b", "kind": "bm25"}],
    }
    (tmp_path / "gold_set.yaml").write_text(json.dumps({**base, **data}))  # JSON is YAML
    try:
        load_config(tmp_path)
    except InputError as error:
        assert all(problem.line for problem in error.problems)  # noqa: PT017  the result is as good as the error
