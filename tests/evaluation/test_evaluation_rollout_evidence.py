"""Outcomes that a rollout is decided by: what a file may hold, and every fault with its line and field."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.evaluation.rollout_evidence import (
    MAX_LINE_BYTES,
    _paired,
    file_evidence,
    run_evidence,
)
from rag_eval.records.problems import InputError


def written(tmp_path, *rows):
    path = tmp_path / "pairs.jsonl"
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows),
        encoding="utf-8",
    )
    return path


def row(query="why?", current=1, candidate=0.5, **more):
    return {"query": query, "current": current, "candidate": candidate, **more}


def test_outcomes_are_numbers_or_yes_and_no(tmp_path):
    found = file_evidence(
        written(tmp_path, row("a", True, False), "", row("b", 0.25, 3), row("c", -1, 0, group="g"))
    )
    assert found.queries == ("a", "b", "c")
    assert (found.current.tolist(), found.candidate.tolist()) == ([1, 0.25, -1], [0, 3, 0])
    assert (found.source.kind, found.source.name, found.source.n_questions, found.report) == (
        "file",
        "pairs.jsonl",
        3,
        None,
    )


def test_one_question_on_many_lines_is_one_group_and_a_group_ties_questions(tmp_path):
    found = file_evidence(
        written(
            tmp_path,
            row("Why?"),
            row(" why?"),
            row("when?"),
            row("who?", group="why?"),
            row("how?", group="why?"),
        )
    )
    assert len(set(found.groups.tolist())) == 3
    assert found.groups[0] == found.groups[1]
    assert found.groups[3] == found.groups[4] != found.groups[0]


def test_one_question_under_many_groups_is_one_and_ties_them_all(tmp_path):
    under = [row("Why?", group=f"session{number}") for number in range(104)]
    assert set(file_evidence(written(tmp_path, *under)).groups.tolist()) == {0}
    chained = [
        row("a", group="x"),
        row("b", group="x"),
        row("B ", group="y"),
        row("c", group="y"),
        row("c"),
        row("d"),
        row("e", group="z"),
    ]
    groups = file_evidence(written(tmp_path, *chained)).groups.tolist()
    assert len(set(groups[:5])) == 1
    assert len(set(groups)) == 3


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # raised inside MLflow's own SQLAlchemy models
def test_a_repeated_run_that_found_the_same_is_the_same_evidence(project):
    found = []
    for _ in range(2):
        assert project.invoke("run", "tiny").exit_code == 0
        found.append(
            run_evidence(
                project.home,
                "tiny",
                "latest",
                "bm25",
                "vector",
                measure="recall_at_1",
                level="document",
            ).source
        )
    assert found[0].name != found[1].name
    assert found[0].fingerprint == found[1].fingerprint


def test_the_fingerprint_is_that_of_the_outcomes_and_not_of_the_file(tmp_path):
    one = file_evidence(written(tmp_path, row("a"), row("b", 0))).source.fingerprint
    assert (
        file_evidence(
            written(tmp_path, row(" B", 0.0), "", row("A", True, 0.50))
        ).source.fingerprint
        == one
    )
    for other in (
        [row("a"), row("b", 0), row("b", 0)],
        [row("a"), row("b", 1)],
        [row("a"), row("b", 0, group="x")],
        [row("a", 0.5, 1), row("b", 0)],
    ):
        assert file_evidence(written(tmp_path, *other)).source.fingerprint != one


@pytest.mark.parametrize(
    ("line", "code", "field"),
    [
        ("{", "bad_json", None),
        ("[]", "bad_json", None),
        ('{"query": "a", "query": "b", "current": 1, "candidate": 1}', "bad_json", None),
        ('{"query": "a", "current": NaN, "candidate": 1}', "bad_json", None),
        ("[" * 30_000, "bad_json", None),
        ("x" * (MAX_LINE_BYTES + 5), "too_long", None),
        ({"current": 1, "candidate": 1}, "missing_field", "query"),
        (row(query=" \t"), "bad_value", "query"),
        (row(query=7), "bad_value", "query"),
        ({"query": "a", "candidate": 1}, "missing_field", "current"),
        ({"query": "a", "current": 1}, "missing_field", "candidate"),
        (row(current="1"), "bad_value", "current"),
        (row(current=None), "bad_value", "current"),
        (row(candidate=1e300), "bad_value", "candidate"),
        ('{"query": "a", "current": 1, "candidate": 1e999}', "bad_value", "candidate"),
        ('{"query": "a", "current": 1, "candidate": ' + "9" * 4000 + "}", "bad_value", "candidate"),
        (row(group=""), "bad_value", "group"),
        (row(group=3), "bad_value", "group"),
        (row(group="x" * 501), "bad_value", "group"),
        (row(score=1), "unknown_key", "score"),
    ],
)
def test_every_fault_names_its_line_and_field(tmp_path, line, code, field):
    path = written(tmp_path, row("fine"), line)
    with pytest.raises(InputError) as caught:
        file_evidence(path)
    (problem,) = caught.value.problems
    assert (problem.code, problem.file, problem.line, problem.field) == (code, str(path), 2, field)
    assert len(str(problem)) < 2000


def test_all_faults_are_told_at_once_and_many_are_counted(tmp_path):
    with pytest.raises(InputError) as caught:
        file_evidence(written(tmp_path, *[{"query": "", "current": "x"}] * 200))
    assert [problem.code for problem in caught.value.problems][:3] == [
        "bad_value",
        "bad_value",
        "missing_field",
    ]
    assert (len(caught.value.problems), caught.value.problems[-1].code) == (101, "more_problems")


def test_what_is_no_file_of_outcomes(tmp_path):
    for make, code in (
        (lambda: tmp_path / "none.jsonl", "file_missing"),
        (lambda: tmp_path, "file_missing"),
        (lambda: written(tmp_path, "", " "), "no_evidence"),
    ):
        with pytest.raises(InputError, match=code):
            file_evidence(make())
    path = tmp_path / "bytes.jsonl"
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(InputError, match="not_utf8"):
        file_evidence(path)


def test_hostile_text_is_shown_bounded_and_escaped(tmp_path):
    with pytest.raises(InputError) as caught:
        file_evidence(
            written(
                tmp_path,
                {**row(), "\x1b[2J\u202e" + "k" * 9000: 1},
                row(query=["\x1b]0;x\x07" * 500]),
                row(current="\ud800\x9b"),
            )
        )
    told = str(caught.value)
    assert not {"\x1b", "\x07", "\u202e", "\x9b", "\ud800"} & set(told)
    assert len(told) < 3000


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["query", "current", "candidate", "group", "x"]), inner
            )
        ),
    )
)
def test_any_json_is_read_or_refused(tmp_path_factory, value):
    path = written(tmp_path_factory.mktemp("any"), json.dumps(value))
    fine = isinstance(value, dict) and {"query", "current", "candidate"} <= value.keys() <= {
        "query",
        "current",
        "candidate",
        "group",
    }
    fine = (
        fine
        and isinstance(value["query"], str)
        and bool(value["query"].strip())
        and all(
            isinstance(value[side], (int, float)) and abs(value[side]) <= 1e9
            for side in ("current", "candidate")
        )
    )
    group = value.get("group") if fine else None
    if fine and (group is None or (isinstance(group, str) and 0 < len(group) <= 500)):
        assert np.isfinite([*file_evidence(path).current, *file_evidence(path).candidate]).all()
        return
    with pytest.raises(InputError) as caught:
        file_evidence(path)
    assert caught.value.problems[0].file == str(path)


def test_strategies_are_paired_on_the_wordings_that_both_ran():
    def rows(strategy, query, wording, value):
        return {
            "strategy": strategy,
            "query_id": query,
            "group_id": f"g{query}",
            "paraphrase_id": wording,
            "seed": 1,
            "recall_at_10": value,
        }

    frame = pd.DataFrame(
        [
            *(rows("now", "a", *part) for part in (("original", 1.0), ("terse", 0.0))),
            *(rows("now", "b", *part) for part in (("original", 1.0), ("terse", 0.0))),
            rows("now", "c", "original", np.nan),
            rows("new", "a", "original", 0.5),
            rows("new", "c", "original", np.nan),
        ]
    )
    found = _paired(frame, "now", "new", "recall_at_10").set_index("query_id")
    assert found.loc["a", ["current", "candidate"]].tolist() == [1.0, 0.5]
    assert (
        found.loc["b", "current"] == 0.5
    )  # scored now and not at all with the candidate: unpaired
    assert np.isnan(found.loc["b", "candidate"])
    assert found.loc["c", ["current", "candidate"]].isna().all()
    assert found["group"].tolist() == ["ga", "gb", "gc"]
