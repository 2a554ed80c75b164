"""A rollout from its plan to its end: stages, the same evidence twice, other gold and other indexes, and the record on disk."""

import json
import shutil

import pytest
from cli_project import CONFIG, QUERIES, jsonl

from rag_eval.evaluation.rollout_records import read_record, record_path
from rag_eval.evaluation.rollouts import decide_rollout, plan_rollout
from rag_eval.gates.rollout_assignment import STAGES, assignment
from rag_eval.gates.rollout_record import standing
from rag_eval.records.problems import InputError
from rag_eval.settings import Settings
from rag_eval.storage.locking import home_lock

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]  # raised inside MLflow's own SQLAlchemy models

MANY = 700
MANY_CONFIG = """\
name: many
corpus: {loader: folder, path: corpus, chunker: {kind: markdown, max_tokens: 64}}
k: [1, 5]
depth: 10
seeds: [13]
strategies:
  - {name: bm25, kind: bm25}
  - {name: same, kind: bm25}
  - {name: worse, kind: external, run_file: worse.trec}
gates: {required: [], advisory: []}
nightly: false
"""


def settings_of(project):
    return Settings(
        home=project.home, reports=project.reports, gold_sets=project.root / "gold_sets"
    )


def planned(project, **more):
    return plan_rollout(settings_of(project), "tiny", "bm25", "vector", **more)


def decided(project, **more):
    return decide_rollout(settings_of(project), "tiny", "vector", **more)[1]


def production(project, plan, name="pairs.jsonl", *, n=4000, lost=0.0, below=1.0):
    """Outcomes of production: every fifth question is missed now, of the others the candidate loses a share."""
    rows = []
    for at in range(n):
        query = f"{name}: question {at}"
        place = assignment(query, plan.plan_id)
        hit = at % 5 != 0
        if place < below:
            rows.append(
                {
                    "query": query,
                    "current": hit,
                    "candidate": hit and (at * 7919 % 1000) / 1000 >= lost,
                }
            )
    path = project.root / name
    path.write_text(jsonl(rows), encoding="utf-8")
    return path


def test_a_plan_without_a_run_says_what_it_assumes(project):
    plan = planned(project)
    assert (plan.basis.run_id, plan.basis.base, plan.basis.spread) == (None, 0.5, 2.0)
    assert "no kept run" in plan.basis.sentence
    assert plan.index_hashes == {"bm25": None, "vector": None}
    assert [stage.share for stage in plan.stages] == list(STAGES)
    assert plan.stages[2].gold_questions == 3  # the fourth has no answer
    record = read_record(project.home, "tiny", "vector")
    assert record.events == (plan,)
    assert standing(record).share == 0.1


def test_equal_inputs_give_an_equal_assignment_and_the_next_plan_another(project):
    one = planned(project)
    shutil.rmtree(project.home)
    again, restarted = planned(project), planned(project, restart=True)
    assert one.plan_id == again.plan_id != restarted.plan_id


def test_from_ten_to_a_hundred_percent_and_no_further(project):
    plan = planned(project, detect=0.5)
    needed = plan.stages[0].needed
    shares = []
    for at, share in enumerate(STAGES):
        found = decided(project, evidence=production(project, plan, f"night{at}.jsonl"))
        assert (found.action, found.share) == ("promote", share), found.reasons
        assert found.figures["n_new_groups"] >= needed
        assert (found.figures["n_given"], found.figures["n_assigned"]) == (
            4000,
            found.figures["n_questions"],
        )
        shares.append(found.next_share)
    assert shares == [0.5, 1.0, None]
    with pytest.raises(InputError, match=r"rollout_ended.*promoted"):
        decided(project, evidence=production(project, plan, "night4.jsonl"))
    assert [event.event for event in read_record(project.home, "tiny", "vector").events] == [
        "planned",
        "decided",
        "decided",
        "decided",
    ]
    assert planned(project).plan_id != plan.plan_id  # after the end a new one may begin


def test_the_same_evidence_promotes_once(project):
    plan = planned(project, detect=0.5)
    path = production(project, plan)
    assert decided(project, evidence=path).next_share == 0.5
    lines = path.read_text(encoding="utf-8").splitlines()
    other = project.root / "another-name.jsonl"
    other.write_text("\n".join(reversed(lines)) + "\n", encoding="utf-8")
    for again in (path, other):
        found = decided(project, evidence=again)
        assert (found.action, found.reasons[0][0], found.next_share) == (
            "hold",
            "evidence_seen",
            None,
        )
    assert any("look 2 at this stage" in note for note in found.notes)


def test_one_question_under_many_groups_decides_nothing(project):
    plan = planned(project, detect=0.5)
    asked = next(
        query for query in map(str, range(1000)) if assignment(query, plan.plan_id) < STAGES[0]
    )
    path = project.root / "one.jsonl"
    path.write_text(
        jsonl(
            {"query": asked, "current": at % 3 == 0, "candidate": True, "group": f"session{at}"}
            for at in range(1040)
        ),
        encoding="utf-8",
    )
    found = decided(project, evidence=path, dry_run=True)
    assert (found.action, found.reasons[0][0]) == ("hold", "too_few_questions")
    assert (found.figures["n_questions"], found.figures["n_groups"]) == (1040, 1)


def test_questions_of_the_stage_before_promote_nothing_however_they_are_packed(project):
    plan = planned(project, detect=0.5)
    path = production(project, plan, n=12_000, below=0.1)
    assert decided(project, evidence=path).next_share == 0.5
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"query": "one more", "current": 1, "candidate": 1}) + "\n")
    found = decided(project, evidence=path)
    assert (found.action, found.reasons[0][0]) == ("hold", "more_questions")
    assert found.figures["n_new_groups"] <= 1
    assert found.figures["n_groups"] > 1000


def test_a_worse_candidate_is_rolled_back_and_that_is_the_end(project):
    plan = planned(project, detect=0.5)
    assert decided(project, evidence=production(project, plan, "first.jsonl")).action == "promote"
    found = decided(project, evidence=production(project, plan, "second.jsonl", lost=0.2))
    assert (found.action, found.next_share, found.reasons[0][0]) == ("roll_back", None, "degraded")
    assert found.figures["degradation"] == pytest.approx(0.2, abs=0.05)
    with pytest.raises(InputError, match=r"rollout_ended.*rolled_back"):
        decided(project, evidence=production(project, plan, "third.jsonl"))


def test_only_questions_of_the_stage_are_looked_at(project):
    """Beyond 10 % the candidate loses everything; at 10 % that is nobody's loss yet."""
    plan = planned(project, detect=0.5)
    rows = [
        {
            "query": f"q{at}",
            "current": at % 5 != 0,
            "candidate": at % 5 != 0 and assignment(f"q{at}", plan.plan_id) < 0.1,
        }
        for at in range(3000)
    ]
    path = project.root / "pairs.jsonl"
    path.write_text(jsonl(rows), encoding="utf-8")
    found = decided(project, evidence=path)
    assert (found.action, found.figures["n_worse"]) == ("promote", 0)
    assert 200 < found.figures["n_questions"] < 400


def test_a_dry_run_writes_nothing_and_needs_no_lock(project):
    plan = planned(project, detect=0.5)
    path, before = (
        production(project, plan),
        record_path(project.home, "tiny", "vector").read_bytes(),
    )
    with home_lock(project.home):
        found = decided(project, evidence=path, dry_run=True)
        with pytest.raises(InputError, match="home_busy"):
            decided(project, evidence=path)
    assert found.action == "promote"
    assert record_path(project.home, "tiny", "vector").read_bytes() == before


def test_one_rollout_of_a_candidate_at_a_time(project):
    first = planned(project)
    with pytest.raises(InputError, match=r"rollout_running.*at 10 %"):
        planned(project)
    second = planned(project, restart=True)
    record = read_record(project.home, "tiny", "vector")
    assert [(event.event, event.plan_id) for event in record.events] == [
        ("planned", first.plan_id),
        ("abandoned", first.plan_id),
        ("planned", second.plan_id),
    ]
    assert standing(record).plan == second


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"current": "none"}, "bm25, vector"),
        ({"candidate": "../x"}, "bm25, vector"),
        ({"candidate": "bm25"}, "against itself"),
        ({"measure": "recall"}, "unknown_measure"),
        ({"measure": "hits"}, "unknown_measure"),
        ({"detect": 0.0}, "--detect"),
        ({"detect": float("nan")}, "--detect"),
        ({"power": 1.0}, "--power"),
        ({"gold_set": "../tiny"}, "bad_name"),
        ({"gold_set": "none"}, "unknown_gold_set"),
    ],
)
def test_what_cannot_be_planned_is_refused_and_nothing_written(project, more, says):
    arguments = {"gold_set": "tiny", "current": "bm25", "candidate": "vector", **more}
    with pytest.raises(InputError, match=says.replace("-", r"\-")):
        plan_rollout(settings_of(project), **arguments)
    assert not (project.home / "rollouts").exists()


def test_what_cannot_be_decided_is_refused(project):
    with pytest.raises(InputError, match="no_rollout"):
        decided(project)
    with pytest.raises(InputError, match="bad_name"):
        decide_rollout(settings_of(project), "tiny", "../../x")
    plan = planned(project)
    with pytest.raises(InputError, match="not both"):
        decided(project, run="latest", evidence=production(project, plan))
    with pytest.raises(InputError, match="run_not_found"):
        decided(project)
    with pytest.raises(InputError, match="file_missing"):
        decided(project, evidence=project.root / "none.jsonl")
    assert len(read_record(project.home, "tiny", "vector").events) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"schema_version": 2}',
        '{"schema_version": 1, "gold_set": "tiny", "candidate": "other", "events": []}',
        "\ud800",
        "[" * 100_000,
    ],
)
def test_a_record_of_another_hand_is_refused_and_left_alone(project, text):
    path = record_path(project.home, "tiny", "vector")
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    for act in (planned, decided):
        with pytest.raises(InputError, match="rollout_damaged"):
            act(project)
    assert path.read_bytes() == text.encode("utf-8", "surrogatepass")


def test_a_changed_event_is_refused(project):
    planned(project)
    path = record_path(project.home, "tiny", "vector")
    record = json.loads(path.read_text(encoding="utf-8"))
    record["events"][0]["event"] = "promoted"
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(InputError, match=r"rollout_damaged.*events\.0"):
        decided(project)


def test_other_gold_is_refused_and_another_index_is_named(project):
    assert project.invoke("run", "tiny").exit_code == 0
    plan = planned(project)
    assert plan.basis.n_groups == 0  # three questions tell no spread
    assert "too few questions" in plan.basis.sentence
    assert plan.index_hashes["bm25"].startswith("bm25s:")
    found = decided(project)
    assert (found.action, found.reasons[0][0], found.notes, found.evidence.kind) == (
        "hold",
        "too_few_questions",
        (),
        "run",
    )
    (project.corpus / "more.md").write_text("# More\n\nSomething else.\n", encoding="utf-8")
    assert project.invoke("run", "tiny").exit_code == 0
    found = decided(project)
    assert [
        note.startswith(f"DIFFERENT index of {name}: planned with {plan.index_hashes[name][:8]}")
        for name, note in zip(("bm25", "vector"), found.notes, strict=True)
    ] == [True, True]
    (project.gold / "queries.jsonl").write_text(
        jsonl([{**QUERIES[0], "text": "When do results go?"}, *QUERIES[1:]]), encoding="utf-8"
    )
    assert project.invoke("run", "tiny").exit_code == 0
    with pytest.raises(InputError, match=r"gold_differs.*--restart"):
        decided(project)
    shutil.rmtree(project.home / "artifacts" / "gold")
    with pytest.raises(InputError, match="run_incomplete"):
        decided(project)


def test_the_feature_flags_stand_in_the_report(project, monkeypatch):
    assert project.invoke("run", "tiny", "--strategy", "bm25").exit_code == 0
    assert project.report()["features"] == {
        "FEATURE_HYBRID_RETRIEVAL": False,
        "FEATURE_RAGAS_EVAL": False,
    }
    for flag in ("FEATURE_HYBRID_RETRIEVAL", "FEATURE_RAGAS_EVAL"):
        monkeypatch.setenv(flag, "1")
        (project.gold / "gold_set.yaml").write_text(
            CONFIG.replace("answers: {mode: deterministic, top_k: 5}\n", ""), encoding="utf-8"
        )
        assert project.invoke("run", "tiny", "--strategy", "bm25").exit_code == 0
        assert project.report()["features"] == {
            name: name == flag for name in ("FEATURE_HYBRID_RETRIEVAL", "FEATURE_RAGAS_EVAL")
        }
        monkeypatch.delenv(flag)
    planned(project)
    with pytest.raises(InputError, match=r"strategy_missing.*vector"):
        decided(project)


@pytest.fixture
def many(project):
    """A gold set of 700 documents with a question each, run once; the strategy `worse` does not find every third."""
    folder = project.root / "gold_sets" / "many"
    (folder / "corpus").mkdir(parents=True)
    ids = [f"q{at}" for at in range(MANY)]
    for at in range(MANY):
        (folder / "corpus" / f"d{at}.md").write_text(
            f"# Item{at}\n\nThe value of item{at} is documented.\n", encoding="utf-8"
        )
    (folder / "gold_set.yaml").write_text(MANY_CONFIG, encoding="utf-8")
    (folder / "queries.jsonl").write_text(
        jsonl(
            {"query_id": one, "text": f"value of item{one[1:]}", "answerable": True} for one in ids
        ),
        encoding="utf-8",
    )
    (folder / "qrels.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"{one}\td{one[1:]}.md\t1\n" for one in ids),
        encoding="utf-8",
    )
    (folder / "worse.trec").write_text(
        "".join(f"{one} Q0 d{one[1:]}.md 1 1 x\n" for one in ids if int(one[1:]) % 3),
        encoding="utf-8",
    )
    assert project.invoke("run", "many").exit_code == 0
    return project


@pytest.mark.slow
def test_a_gold_set_that_is_large_enough_decides_by_its_own_runs(many):
    settings = settings_of(many)
    plan = plan_rollout(settings, "many", "bm25", "same", detect=0.5)
    assert (plan.basis.n_groups, plan.basis.base, plan.stages[2].gold_groups) == (MANY, 1.0, MANY)
    assert plan.basis.run_id in plan.basis.sentence
    found = decide_rollout(settings, "many", "same")[1]
    assert (found.action, found.next_share, found.figures["n_given"]) == ("promote", 0.5, MANY)
    assert found.figures["n_questions"] == plan.stages[0].gold_questions
    again = decide_rollout(settings, "many", "same")[1]
    assert (again.action, again.reasons[0][0], again.figures["n_questions"]) == (
        "hold",
        "evidence_seen",
        plan.stages[1].gold_questions,
    )
    assert many.invoke("run", "many").exit_code == 0
    repeated = decide_rollout(settings, "many", "same")[1]
    assert repeated.evidence.name != again.evidence.name
    assert (repeated.action, repeated.reasons[0][0]) == ("hold", "evidence_seen")
    plan_rollout(settings, "many", "bm25", "worse", measure="mrr")
    found = decide_rollout(settings, "many", "worse")[1]
    assert (found.action, found.evidence.kind) == ("roll_back", "run")
    assert found.figures["degradation"] == pytest.approx(1 / 3, abs=0.15)
    with pytest.raises(InputError, match=r"unknown_measure.*recall_at_5"):
        plan_rollout(settings, "many", "same", "bm25", measure="recall_at_7")
