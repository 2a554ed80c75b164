"""Rankings and values are those of ir_measures, ties and missing queries included."""

import ir_measures
import numpy as np
import pytest

from rag_eval.api.inputs import Run
from rag_eval.api.judged import JudgedQuestions
from rag_eval.core.errors import InputError
from rag_eval.measures.intervals import within_query

LABELS = (
    "R@10 R@3 Success@1 Success@5 P@5 P@30 RR RR@3 RR@10 nDCG nDCG@10 AP AP@10 Judged@5 Judged"
).split()
IDS = "ab cd é ß Ω z Z 0 00 9 doc-1 doc-10 doc-2 𝔸 ~".split()


def draw(n: int, seed: int) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, int]]]:
    """Draw runs and qrels with tied and nearly tied scores, and queries that only one side has."""
    rng = np.random.default_rng(seed)
    names = np.array([f"{part}{i}" for i in range(3) for part in IDS])
    run, qrels = {}, {}
    for i in range(n):
        documents = rng.permutation(names)[: rng.integers(1, len(names))].tolist()
        scores = rng.integers(1, 9, len(documents)) + rng.choice([0, 1e-9, 0.25], len(documents))
        if rng.random() < 0.95:
            run[f"q{i}"] = dict(zip(documents, scores.tolist(), strict=True))
        judged = rng.permutation(names)[: rng.integers(1, 9)].tolist()
        if rng.random() < 0.95:
            grades = rng.integers(-1, 4, len(judged)).tolist()
            qrels[f"q{i}"] = dict(zip(judged, grades, strict=True))
    return run, qrels


def differences(n: int, seed: int) -> float:
    """Return the largest difference of a value from ir_measures'."""
    run, qrels = draw(n, seed)
    judged = JudgedQuestions.read(qrels)
    ranked = judged.match(Run.read(run))
    ours = within_query(ranked.score(LABELS), ranked.question, len(judged))
    parts = [label.partition("@") for label in LABELS]
    measures = [
        getattr(ir_measures, name) @ int(k) if k else getattr(ir_measures, name)
        for name, _, k in parts
    ]
    theirs = np.full(ours.shape, np.nan)
    for metric in ir_measures.iter_calc(measures, qrels, run):
        row = judged.names.index(metric.query_id)
        theirs[row, measures.index(metric.measure)] = metric.value
    assert len(judged) == len(qrels)
    return float(np.abs(ours - theirs).max())


def test_values_equal_ir_measures():
    assert differences(300, seed=1) <= 1e-12


QRELS = {"q1": {"d1": 1}, "q2": {"d2": 1}, "q3": {"d1": 1, "d3": 0}, "q4": {"d9": 0}}


def test_questions_that_share_a_relevant_document_form_a_group():
    judged = JudgedQuestions.read(QRELS)
    assert dict(zip(judged.names, judged.groups, strict=True)) == {
        "q1": "q1",
        "q2": "q2",
        "q3": "q1",
        "q4": "q4",
    }


def test_wordings_that_the_run_lacks_have_empty_rankings():
    wordings = {"q1-a": "q1", "q1-b": "q1", "other": "q9"}
    ranked = JudgedQuestions.read(QRELS, wordings).match(
        Run.read({"q1-a": {"d1": 1.0}, "q3": {"d1": 1.0}, "q8": {"d1": 1.0}})
    )
    values = dict(zip(ranked.ranked.query_ids, ranked.score(["R@10"])[:, 0].tolist(), strict=True))
    assert values == {"q1-a": 1.0, "q3": 1.0, "q1-b": 0.0, "q2": 0.0, "q4": 0.0}
    assert ranked.is_missing.tolist() == [False, False, True, True, True]
    assert ranked.n_unjudged == 1


def test_qrels_may_name_wordings():
    both = {"q1-a": {"d1": 1}, "q1-b": {"d1": 1, "d2": 2}}
    judged = JudgedQuestions.read(both, {"q1-a": "q1", "q1-b": "q1"})
    assert list(judged.names) == ["q1"]
    assert judged.n_relevant.tolist() == [2]
    with pytest.raises(InputError, match="different grades"):
        JudgedQuestions.read({"q1-a": {"d1": 1}, "q1-b": {"d1": 2}}, {"q1-a": "q", "q1-b": "q"})


def test_a_run_without_a_judged_query_is_refused():
    with pytest.raises(InputError, match=r"no query of bm25 has judgements .*found: 1; .*q1"):
        JudgedQuestions.read(QRELS).match(Run.read({1: {"d1": 1.0}}), "bm25")
