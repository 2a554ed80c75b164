"""Reading any bytes ends in a result or an InputError."""

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rag_eval.core.errors import InputError
from rag_eval.gold.configuration import load_config
from rag_eval.gold.loading import load_gold

settings.register_profile(
    "gold",
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
PROFILE = settings.get_profile("gold")


@pytest.mark.parametrize(
    "file",
    ["queries.jsonl", "answers.jsonl", "qrels.tsv", "gold_set.yaml"],
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
