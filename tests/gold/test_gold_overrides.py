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


FAULTS = [
    ({"answer_mode": "magic"}, "bad_value", "answer_mode", "magic", "deterministic"),
    ({"top_k": 1001}, "bad_value", "top_k", "1001", "1000"),
    ({"top_k": "5"}, "wrong_type", "top_k", "5", "valid integer"),
    ({"verdicts": []}, "bad_value", "verdicts", "empty list", "at least 1 item"),
    ({"verdicts": ["ok", "1st"]}, "bad_value", "verdicts[1]", "1st", "pattern"),
    ({"preflights": [{"kind": "ask"}]}, "bad_value", "preflights[0].kind", "ask", "grep"),
    ({"preflights": [{"terms": ["a"]}]}, "missing_key", "preflights[0].kind", None, "grep"),
    (
        {"preflights": [{"kind": "grep", "depth": 3}]},
        "unknown_key",
        "preflights[0].depth",
        "depth",
        "kind",
    ),
]


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: f"{case[2]}-{case[3]}")
def test_a_fault_names_its_place(folder, case):
    values, code, field, found, accepted = case
    with pytest.raises(InputError) as caught:
        load_gold(folder({}, values))
    (problem,) = caught.value.problems
    assert (problem.code, problem.line, problem.field) == (code, 2, field)
    assert problem.file.endswith("queries.jsonl")
    assert problem.found is None if found is None else found in problem.found
    assert accepted in problem.accepted


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
