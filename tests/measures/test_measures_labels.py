import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.measures.bounds import judged_label
from rag_eval.measures.labels import label, machine_name, parse_label, sweep
from rag_eval.records.problems import InputError

PAIRS = [
    ("R@10", "recall_at_10"),
    ("Success@5", "success_at_5"),
    ("P@5", "precision_at_5"),
    ("RR", "mrr"),
    ("RR@10", "mrr_at_10"),
    ("nDCG@10", "ndcg_at_10"),
    ("nDCG", "ndcg"),
    ("AP", "map"),
    ("Judged@10", "judged_at_10"),
]


@pytest.mark.parametrize(("screen", "machine"), PAIRS)
def test_names_translate_both_ways(screen, machine):
    assert machine_name(screen) == machine
    assert label(machine) == screen


@given(
    st.sampled_from(["R", "Success", "P", "RR", "nDCG", "AP", "Judged"]), st.integers(1, 999_999)
)
@settings(deadline=None)
def test_every_cutoff_survives_the_round_trip(name, k):
    assert label(machine_name(f"{name}@{k}")) == f"{name}@{k}"
    assert parse_label(f"{name}@{k}") == (name, k)


@pytest.mark.parametrize(
    "bad",
    [
        "R",
        "P",
        "Success",
        "R@0",
        "R@-1",
        "R@1.5",
        "recall_at_10",
        "R@10 ",
        "R(rel=2)@10",
        "",
        "Foo@3",
        "R@010",
    ],
)
def test_other_labels_are_refused_with_what_is_accepted(bad):
    with pytest.raises(InputError) as caught:
        machine_name(bad)
    assert caught.value.problems[0].found == bad
    assert "nDCG@k" in caught.value.problems[0].accepted


@pytest.mark.parametrize(
    "bad", ["recall", "R@10", "recall_at_0", "recall_at_", "delta_s", "mrr_at_x"]
)
def test_other_machine_names_are_refused(bad):
    with pytest.raises(InputError) as caught:
        label(bad)
    assert "recall_at_<k>" in caught.value.problems[0].accepted


def test_labels_are_those_of_ir_measures():
    import ir_measures

    for screen, _ in PAIRS:
        name, k = parse_label(screen)
        measure = getattr(ir_measures, name)
        assert str(measure if k is None else measure @ k) == screen


def test_sweep_names_every_k():
    assert sweep([1, 5]) == (
        "R@1",
        "R@5",
        "Success@1",
        "Success@5",
        "P@1",
        "P@5",
        "Judged@1",
        "Judged@5",
        "RR",
        "nDCG@10",
    )


def test_judged_stands_beside_measures_with_the_same_cutoff():
    assert [judged_label(name) for name in ("R@10", "RR", "Judged@10", "delta_s")] == [
        "Judged@10",
        "Judged",
        None,
        None,
    ]
