"""Questions can override the answer settings of the gold set."""

import json

import pytest

from rag_eval.core.config import AnswerOverride, GoldSetConfig, Grep, Retrieve
from rag_eval.core.errors import InputError
from rag_eval.gold.loading import load_gold


@pytest.fixture
def folder(tmp_path):
    def _write(*rows):
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        given = {"answerable": False}
        lines = [
            json.dumps({"query_id": f"q{n}", "text": f"What is {n}?", **given, **values})
            for n, values in enumerate(rows, start=1)
        ]
        (folder / "queries.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return folder

    return _write


def config(**answers):
    return GoldSetConfig.model_validate(
        {
            "name": "mine",
            "corpus": {"loader": "folder", "path": "docs"},
            "strategies": [{"name": "bm25", "kind": "bm25"}],
            **({"answers": answers} if answers else {}),
        }
    )


def test_overrides_are_carried_by_query(folder):
    values = {
        "answer_mode": "deterministic",
        "preflights": [{"kind": "retrieve", "top_k": 3}, {"kind": "grep", "terms": ["isna"]}],
        "response_schema": "verdict",
        "verdicts": ["YES", "NOT FOUND"],
        "top_k": 5,
        "schema_retry_attempts": 0,
    }
    gold = load_gold(folder({}, values, {"top_k": None, "metadata": {"top_k": "x"}}))
    assert gold.overrides == {
        "q2": AnswerOverride(
            answer_mode="deterministic",
            preflights=(Retrieve(kind="retrieve", top_k=3), Grep(kind="grep", terms=("isna",))),
            response_schema="verdict",
            verdicts=("YES", "NOT FOUND"),
            top_k=5,
            schema_retry_attempts=0,
        )
    }
    assert gold.queries["query_id"].tolist() == ["q1", "q2", "q3"]


def test_a_mode_needs_what_the_configuration_lacks(folder):
    modes = ("llm", "recorded", "deterministic")
    place = folder(*({"answer_mode": mode} for mode in modes))
    with pytest.raises(InputError) as caught:
        load_gold(place, config(mode="deterministic"))
    problems = caught.value.problems
    assert [(problem.code, problem.line, problem.field) for problem in problems] == [
        ("unmet_override", 1, "answer_mode"),
        ("unmet_override", 2, "answer_mode"),
    ]
    assert "endpoint" in problems[0].accepted
    complete = config(mode="llm", endpoint="mine", recorded="outputs.jsonl")
    assert len(load_gold(place, complete).overrides) == 3


def test_overrides_without_answers_are_a_warning(folder):
    gold = load_gold(folder({"top_k": 3}), config())
    assert [(problem.code, problem.severity, problem.field) for problem in gold.problems] == [
        ("unmet_override", "warning", "top_k")
    ]
