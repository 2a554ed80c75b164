"""The comparison of golden records."""

import importlib

import pytest

OLD = {"s/recall": 0.5, "s/count": 3, "s/name": "bm25", "s/files/a.csv": "file"}


@pytest.fixture
def golden(project_root, monkeypatch):
    monkeypatch.syspath_prepend(project_root / "benchmarks")
    return importlib.import_module("golden_record")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"s/recall": 0.5 + 1e-10}, None),
        ({"s/recall": 0.5 + 1e-8}, "changed"),
        ({"s/count": 3.0}, None),
        ({"s/count": True}, "changed"),
        ({"s/recall": None}, "changed"),
        ({"s/name": "vector"}, "changed"),
        ({"s/files/b.csv": "file"}, "added"),
        ({"s/report/latency_ms/p95": 4.0}, None),
    ],
)
def test_each_kind_of_difference_is_listed(golden, change, kind):
    lines = golden.differences(OLD, {**OLD, **change})
    assert [line.split()[0] for line in lines] == ([kind] if kind else [])
    lines = golden.differences({**OLD, **change}, OLD)
    assert [line.split()[0] for line in lines] == (
        [{"added": "removed"}.get(kind, kind)] if kind else []
    )


def test_list_elements_are_named_by_their_identity(golden):
    measures = [{"label": "R@10", "level": level, "value": 1} for level in ("document", "span")]
    paths = [path for path, _ in golden.flatten({"measures": measures, "k": [5]}, "r")]
    assert paths[2] == "r/measures/R@10|document/value"
    assert paths[-1] == "r/k/0"


def test_one_changed_value_changes_its_column_only(golden, tmp_path):
    found = []
    for score in ("1.0", "1", "2"):
        path = tmp_path / "table.csv"
        path.write_text(f"query,score\nq1,{score}\n")
        checkout = golden.Checkout(golden.ROOT, tmp_path)
        found.append(golden.file_values(checkout, path, "table.csv"))
    assert found[0] == found[1]
    changed = [path for path in found[0] if found[0][path] != found[2][path]]
    assert changed == ["table.csv/score"]


def test_a_part_that_was_not_recorded_is_a_difference(golden, capsys):
    records = [{"parts": {"smoke": OLD}}, {"parts": {"smoke": OLD}}]
    assert golden.print_differences(*records, []) == 0
    assert golden.print_differences(*records, ["smoke", "graph"]) == 1
    assert "missing  graph" in capsys.readouterr().out
