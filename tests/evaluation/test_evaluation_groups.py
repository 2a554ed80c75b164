"""Audited traffic joins the gold's groups: what the gold has asked already buys no status, and no fold sees it on both sides."""

import datetime as dt
import json

import missing_project as made
import pytest
from cli_project import jsonl
from missing_project import call

from rag_eval.evaluation.calibrating import calibrate_gold_set
from rag_eval.evaluation.calibration_steps import fitting, stored_calibration
from rag_eval.evaluation.calibrator_files import accepted_calibrator, keep_watch, read_calibrator
from rag_eval.evaluation.group_steps import groups_of, groups_of_traffic
from rag_eval.evaluation.index_steps import IndexOpener
from rag_eval.evaluation.inputs import open_gold_set
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.signal_steps import fingerprint_of
from rag_eval.evaluation.traffic_steps import traffic
from rag_eval.settings import Settings
from rag_eval.uncertainty.drift_state import WatchState, question_mark
from rag_eval.uncertainty.naming import question_id

FOUND = [number for number in range(made.N) if not made.is_lost(number)]
"""Questions in words that no other question has."""


@pytest.fixture
def missing(project):
    made.make(project)
    return project


def opened(project):
    evaluation = open_gold_set(
        project.gold,
        Settings(
            home=project.home,
            reports=project.reports,
            gold_sets=project.gold.parent,
            latency_queries=1,
        ),
    )
    return Runs(evaluation, IndexOpener(evaluation))


def audited(project, questions, *, judge=None):
    """Import questions (words -> gold documents) as claims of bm25 with what it retrieves for them, draw all and judge those of `judge`."""
    runs = opened(project)
    rows, documents = (
        runs.opened().strategies["bm25"].search(list(questions), 10, 13).rows,
        runs.opened().table.doc_ids,
    )
    path = project.root / "traffic.jsonl"
    path.write_text(
        jsonl(
            {
                "query": text,
                "retrieved": [{"id": documents[row], "score": 1.0} for row in rows[at] if row >= 0],
            }
            for at, text in enumerate(questions)
        ),
        encoding="utf-8",
    )
    call(
        project,
        "claim",
        "import",
        path,
        "--strategy",
        "bm25",
        "--fingerprint",
        fingerprint_of(runs, "bm25"),
    )
    path = project.root / f"audit-{len(questions)}.jsonl"
    call(project, "audit", "draw", "--n", "1000", "--seed", "1", "--depth", "20", "--out", path)
    told = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    judged = [row for row in told if judge is None or row["query"] in judge]
    path.write_text(
        jsonl(
            {
                **row,
                "missed": False,
                "gold_source": "deep_audit",
                "audit_depth": 20,
                "gold_strategies": [],
                "gold_documents": questions[row["query"]],
            }
            for row in judged
        ),
        encoding="utf-8",
    )
    call(project, "outcome", "import", path)


def counts(project):
    found = calibrate_gold_set(opened(project).evaluation).strategies["bm25"]["counts"]
    return found["outcomes"], found["groups"]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["words", "documents"])
def test_the_golds_questions_as_traffic_buy_no_group(missing, by):
    assert counts(missing) == (120, 60)
    if by == "words":
        audited(missing, {made.question(number).upper(): [] for number in FOUND})
    else:
        audited(
            missing, {f"{made.question(number)} today": [f"d{number:02d}.md"] for number in FOUND}
        )
    assert counts(missing) == (160, 60)
    runs = opened(missing)
    frame = fitting(runs, "bm25", dt.datetime.now(dt.UTC)).frame
    assert set(frame["group_id"]) == set(runs.gold.queries["group_id"])
    assert frame["group_id"].value_counts().to_dict() == {
        f"q{number:02d}": 3 if number in FOUND else 2 for number in range(made.N)
    }
    calibrate_gold_set(runs.evaluation)
    kept = accepted_calibrator(missing.home, "tiny", "bm25", "miss_any", 10)
    body = read_calibrator(missing.home, kept.calibrator_id)
    assert set(body["model"]["fold_of_group"]) == set(frame["group_id"])
    assert (
        stored_calibration(runs, "bm25").frame("predictions")["group_id"].tolist()
        == frame["group_id"].tolist()
    )


@pytest.mark.slow
def test_traffic_without_a_tie_has_groups_of_its_own_and_one_with_ties_to_two_makes_them_one(
    missing,
):
    assert counts(missing) == (120, 60)
    audited(
        missing,
        {
            f"in what place is {made.word(number)} kept": ["new.md"] if number in {5, 7} else []
            for number in (5, 7, 8)
        },
    )
    assert counts(missing) == (123, 62)
    audited(missing, {f"where are {made.word(10)} and {made.word(11)}": ["d10.md", "d11.md"]})
    assert counts(missing) == (124, 61)
    groups = groups_of(opened(missing), "bm25").of_gold
    assert {query: group for query, group in groups.items() if group != query} == {"q11": "q10"}


def test_traffic_that_nobody_judged_is_in_the_group_of_its_words_too(missing):
    both = {made.question(1): [], made.question(2): [], f"in what place is {made.word(4)} kept": []}
    audited(missing, both, judge={made.question(1)})
    runs = opened(missing)
    of = {question_id(text): text for text in both}
    frame, found = traffic(runs, "bm25").frame, groups_of_traffic(runs, "bm25")
    other = question_id(f"in what place is {made.word(4)} kept")
    assert {
        of[query]: found[claim]
        for claim, query in zip(frame["claim_id"], frame["query_id"], strict=True)
    } == {made.question(1): "q01", made.question(2): "q02", of[other]: other}


@pytest.mark.slow
def test_a_question_of_the_gold_that_was_watched_is_not_watched_again_as_traffic(missing):
    """What the drift watch saw of a gold question it has seen of its words in traffic, and of what shares its document."""
    made.night(missing)
    fingerprint = fingerprint_of(opened(missing), "bm25")
    seen = WatchState(fingerprint, fed=frozenset(map(question_mark, ("q01", "q02"))))
    keep_watch(missing.home, "tiny", "bm25", "miss_any", 10, state=seen)
    other = f"in what place is {made.word(4)} kept"
    audited(missing, {made.question(1): [], f"the place of {made.word(2)}": ["d02.md"], other: []})
    of = fitting(opened(missing), "bm25", dt.datetime.now(dt.UTC))
    assert len(of.frame) == 123
    assert of.watch.fed - seen.fed == {question_mark(question_id(other))}
    assert of.watch.drift.n == 1
