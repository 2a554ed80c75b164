"""The nightly run states, records and calibrates miss rates.

A night states the rates that earlier nights earned. An unearned rate discounts no answer.
"""

import itertools
import json
import re

import missing_project as made
import pytest
from missing_project import call, configure, lines, night, vectors_file

from rag_eval.core.settings import Settings
from rag_eval.storage.sql import SqlStore
from rag_eval.uncertainty.outcomes import OutcomeStore
from rag_eval.uncertainty.status import promotions

ACCEPTED = ("calibrators", "accepted", "tiny")


@pytest.fixture
def missing(project):
    made.make(project)
    return project


@pytest.fixture
def learned(missing, shared_runs):
    """Return a project after its first night. Tests share the evaluation of that night."""
    shared_runs.run(missing)
    made.fits(missing)
    return missing


def stated(project, name="bm25"):
    return project.report()["uncertainty"]["strategies"][name]


def calibrated(project, name="bm25"):
    return project.report()["calibration"]["strategies"][name]


def outcomes_of(project):
    return OutcomeStore(SqlStore(project.home / "rag_eval.db"))


def climbed(project, name="bm25"):
    return [
        (change["old_status"], change["new_status"])
        for change in promotions(SqlStore(project.home / "rag_eval.db"))
        if change["strategy"] == name
    ]


def unmet_of(entry, status):
    return [
        one["name"]
        for one in entry["standing"]["conditions"]
        if one["status"] == status and not one["met"]
    ]


def test_the_first_run_learns_the_rates_that_the_second_states(missing, tracking_store):
    first = night(missing)
    assert "(prior)" in first.stdout
    entry, outcomes = stated(missing), stated(missing)["outcomes"]
    assert (entry["status"], entry["n_absent"]) == ("prior", 0)
    assert (outcomes["added"], outcomes["n_missed"]) == (120, 40)
    assert entry["observed"]["miss_any"]["value"] == pytest.approx(1 / made.MISSED_OF)
    # a prior does not know the level of a collection
    assert entry["stated"]["ci_low"] < 0.05 < entry["stated"]["value"] < 0.6
    assert entry["stated"]["ci_high"] > 0.6
    known, counts = calibrated(missing), calibrated(missing)["counts"]
    assert known["status"] == known["promotion"]["new_status"] == "provisional"
    assert (counts["groups"], counts["groups_with_misses"]) == (made.N, made.N // made.MISSED_OF)
    assert known["validation"]["skill"]["value"] > 0.3
    assert known["heuristic_v0"]["skill"]["value"] < known["validation"]["skill"]["value"]
    answered = [line["answer"] for line in lines(missing) if "answer" in line]
    assert len(answered) == made.N
    assert {answer["calibrated_confidence"]["type"] for answer in answered} == {"absent"}
    for answer in answered:
        final, synthesis = answer["final_confidence"], answer["synthesis_confidence"]
        if final["type"] == "derived" and synthesis.get("value", 0) > 0:
            assert final["value"] < synthesis["value"]
    before = missing.report()["content_hash"]

    second = night(missing)
    entry, outcomes = stated(missing), stated(missing)["outcomes"]
    assert f"provisional, by {known['calibrator'][:24]}" in re.sub(r"\s+", " ", second.stdout)
    assert (entry["status"], entry["calibrator"]) == ("provisional", known["calibrator"])
    assert (outcomes["added"], outcomes["already_there"]) == (0, 120)
    assert missing.report()["content_hash"] == before  # the hash ignores the calibrator
    assert calibrated(missing)["promotion"] is None
    assert calibrated(missing)["calibrator"] == known["calibrator"]
    assert climbed(missing) == [("absent", "provisional")]
    rates, discounted = {True: [], False: []}, []
    for line in lines(missing):
        rates[made.is_lost(int(line["query_id"][1:]))].append(line["miss_rate"]["value"])
        answer = line.get("answer", {})
        if answer.get("synthesis_confidence", {}).get("value") is not None:
            calibrated_, synthesis = answer["calibrated_confidence"], answer["synthesis_confidence"]
            assert calibrated_["value"] <= synthesis["value"]
            discounted.append(line["query_id"])
    assert discounted
    assert min(rates[True]) > max(rates[False])
    assert entry["stated"]["value"] == pytest.approx(1 / made.MISSED_OF, abs=0.1)

    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=tracking_store)
    experiment = client.get_experiment_by_name("rag_eval/tiny").experiment_id
    chosen = f"tags.`rag_eval.run_id` = '{missing.report()['run_id']}'"
    runs = client.search_runs([experiment], chosen)
    child = next(run for run in runs if run.data.params.get("miss_rate_status") == "provisional")
    wanted = {"brier", "brier_skill", "auroc", "ece", "miss_any_at_10", "outcomes"}
    assert wanted <= set(child.data.metrics)
    assert child.data.metrics["miss_any_at_10"] == pytest.approx(1 / made.MISSED_OF)


@pytest.mark.slow
def test_few_questions_stay_uncalibrated(project):
    night(project)
    for name in ("bm25", "vector"):
        entry, known = stated(project, name), calibrated(project, name)
        assert (entry["status"], entry["calibrator"]) == ("uncalibrated", "heuristic_v0")
        assert (known["status"], known["calibrator"]) == ("uncalibrated", None)
        assert "50" in entry["reason"]
        assert known["calibrator_reason"]
        assert climbed(project, name) == [("absent", "uncalibrated")]
    confidence = project.report()["uncertainty"]["answers"]["calibrated_confidence"]
    assert confidence["value"] is None
    assert "uncalibrated" in confidence["value_reason"]
    assert not (project.home / "calibrators").exists()
    path = project.home.joinpath(*ACCEPTED, "bm25", "miss_any@10.json")
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"calibrator_id": "../../x", "strategy_fingerprint": "x"}')
    result = project.invoke("run", "tiny")
    assert (result.exit_code, "accepted_damaged" in result.stderr) == (1, True)
    assert "no report was written" in result.stderr


@pytest.mark.slow
def test_a_damaged_database_leaves_the_report(project):
    project.home.mkdir()
    (project.home / "rag_eval.db").write_bytes(b"no database at all" * 100)
    result = night(project)
    assert "can neither be read nor written" in calibrated(project)["refused"]
    assert stated(project)["outcomes"] == {
        "added": 0,
        "already_there": 0,
        "n_claims": 6,
        "n_judged": 5,
        "n_missed": stated(project)["outcomes"]["n_missed"],
    }
    assert str(project.root) not in json.dumps(project.report())
    assert "is not calibrated" in result.stdout
    told = call(project, "calibrate", "tiny", "--gold-sets", project.gold.parent, exit_code=1)
    assert "database_failed" in told.output + told.stderr


@pytest.mark.slow
def test_another_index_makes_a_rate_stale_for_one_run(learned):
    night(learned)
    old = stated(learned)
    with (learned.corpus / "d01.md").open("a", encoding="utf-8") as file:
        file.write("\nIt was painted green.\n")
    night(learned)
    entry = stated(learned)
    assert (entry["status"], entry["outcomes"]["added"]) == ("stale", 120)
    assert entry["calibrator"].startswith("prior:")
    assert entry["fingerprint"] != old["fingerprint"]
    assert "is stale" in entry["reason"]
    answers = [line["answer"] for line in lines(learned) if "answer" in line]
    assert {answer["calibrated_confidence"]["type"] for answer in answers} == {"absent"}
    steps = ["absent", "provisional", "stale", "provisional"]
    assert climbed(learned) == list(itertools.pairwise(steps))
    change = calibrated(learned)["promotion"]
    assert (change["old_status"], change["new_status"]) == ("stale", "provisional")
    night(learned)
    assert (stated(learned)["status"], stated(learned)["outcomes"]["added"]) == ("provisional", 0)


@pytest.mark.slow
def test_changed_gold_supersedes_outcomes(learned):
    store = outcomes_of(learned)
    was = store.current().set_index("claim_id")["missed"]
    made.gold(learned, only_gold={1: 0})  # question 1 gets another gold document
    for again in (False, True):
        night(learned)
        now = store.current().set_index("claim_id")
        changed = set(was.index[was != now["missed"].reindex(was.index)])
        assert set(now.loc[list(changed), "query_id"]) == {"q01"}
        outcomes = stated(learned)["outcomes"]
        assert outcomes["added"] == (0 if again else len(changed))
        assert outcomes["already_there"] == 120 - outcomes["added"]
    assert calibrated(learned)["counts"]["outcomes"] == 120
    history = store.history()
    history = history[history["claim_id"].isin(changed)]
    assert len(history) == 2 * len(changed)
    is_first = history["supersedes"] == ""
    assert set(history.loc[~is_first, "supersedes"]) == set(history.loc[is_first, "outcome_id"])


@pytest.mark.slow
def test_outcomes_do_not_change_rounds_that_the_heuristic_steers(missing):
    rounds = "{name: rounds, kind: iterative, base: bm25, steered_by: heuristic_v0}"
    configure(missing, rounds, made.BM25)
    night(missing)
    assert calibrated(missing, "rounds")["status"] == "provisional"
    before = missing.report()["content_hash"]
    night(missing)
    assert missing.report()["uncertainty"]["iterative"]["rounds"]["basis"] == "heuristic_v0@20"
    assert stated(missing, "rounds")["status"] == "provisional"
    assert missing.report()["content_hash"] == before


@pytest.mark.slow
def test_the_calibrated_base_steers_iterative_rounds(missing):
    rounds = "{name: rounds, kind: iterative, base: bm25, max_iterations: 2, max_expansions: 3}"
    configure(missing, rounds, made.BM25, made.VECTOR)
    night(missing)
    assert missing.report()["uncertainty"]["iterative"]["rounds"]["basis"] == "heuristic_v0@20"
    entry = calibrated(missing, "rounds")
    # The base of `rounds` was calibrated this night, so the next night has other rankings.
    assert (entry["status"], entry["promotion"]["new_status"]) == ("stale", "stale")
    assert unmet_of(entry, "stale") == ["same_base_calibrator"]
    night(missing)
    assert unmet_of(calibrated(missing, "rounds"), "stale") == []
    found = missing.report()["uncertainty"]["iterative"]["rounds"]
    assert found["basis"] == "calibrated"
    assert stated(missing, "rounds")["status"] == "stale"  # another calibrator now steers it
    history = [line for line in lines(missing) if line["strategy"] == "rounds"]
    widened = [line for line in history if line["iterations"]]
    assert widened
    for line in widened:
        steps = line["iterations"]
        assert [step["iteration"] for step in steps] == list(range(1, len(steps) + 1))
        assert (len(steps) <= 3, bool(steps[-1]["stopped"])) == (True, True)
        assert len(line["query_expansions"]) == len(steps)
        assert all(step["confidence_before"] < 0.7 for step in steps)
    whole = found["accounts"][0]
    assert (whole["questions"], whole["triggered"]) == (120, len(widened))
    assert whole["extra_queries"] == sum(len(line["iterations"]) for line in widened)
    # Each bay's word of COMPANY leads to the lost documents.
    assert whole["recovered"] > whole["lost"]
    assert sum(found["stops"].values()) == 120
    night(missing)
    assert stated(missing, "rounds")["status"] == "provisional"
    assert calibrated(missing, "rounds")["promotion"] is None
    assert climbed(missing, "rounds") == [("absent", "stale"), ("stale", "provisional")]
    assert {line["strategy"] for line in lines(missing)} == {"bm25", "vector", "rounds"}
    comparison = missing.report()["calibration"]["comparison"]
    assert comparison is not None
    assert {(row["a"], row["b"]) for row in comparison["differences"]} >= {("bm25", "vector")}


@pytest.mark.slow
def test_a_partial_run_accepts_no_calibrator(missing):
    """Fewer strategies meet a lower bar, and other vectors make another strategy of this name."""
    configure(missing, made.BM25, made.VECTOR)
    vectors_file(missing, missing.root / "other.npz")
    night(missing)
    folder = missing.home.joinpath(*ACCEPTED)
    accepted = {path: path.read_bytes() for path in folder.rglob("*.json")}
    assert len(accepted) == 2
    for part in (("--strategy", "bm25"), ("--vectors", str(missing.root / "other.npz"))):
        night(missing, *part)
        # The calibrator of the earlier nights still gives the miss rates.
        assert stated(missing)["status"] == "provisional"
        assert "does not change later runs" in calibrated(missing)["calibrator_reason"]
        assert calibrated(missing)["promotion"] is None
        assert {path: path.read_bytes() for path in folder.rglob("*.json")} == accepted
    night(missing)
    assert {stated(missing, name)["status"] for name in ("bm25", "vector")} == {"provisional"}
    assert climbed(missing, "bm25") == climbed(missing, "vector") == [("absent", "provisional")]


@pytest.mark.slow
def test_the_job_states_the_rates_of_the_command_line(missing, tmp_path):
    import dagster as dg

    from rag_eval.defs.build import JOB, build_definitions, known_gold_sets

    for _ in range(2):
        night(missing)
    settings = Settings(
        home=tmp_path / "job-home",
        reports=tmp_path / "job-reports",
        gold_sets=missing.gold.parent,
        primary_gold_set="tiny",
    )
    known = next(one for one in known_gold_sets(settings.gold_sets) if one.name == "tiny")
    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(2):
            job = build_definitions(settings).resolve_job_def(JOB)
            result = job.execute_in_process(
                partition_key="tiny",
                instance=instance,
                raise_on_error=False,
                asset_selection=known.assets,
            )
            assert result.success
        events = {
            key.path[-1]: instance.get_latest_materialization_event(key) for key in known.assets
        }
    assert all(events[name].asset_materialization.metadata for name in events)
    by_job = json.loads(
        (settings.reports / "tiny" / "retrieval-metrics.json").read_text(encoding="utf-8")
    )
    by_hand = missing.report()
    assert by_job["content_hash"] == by_hand["content_hash"]
    for part in ("uncertainty", "calibration"):
        assert without(by_job[part]) == without(by_hand[part])
    assert (settings.reports / "tiny" / "uncertain-retrievals.jsonl.gz").read_bytes() == (
        missing.reports / "tiny" / "uncertain-retrievals.jsonl.gz"
    ).read_bytes()


def without(part, keys=("age_days", "at", "found", "measured_at", "fitted_at")):
    """Return a part of a report without the keys that hold times."""
    if isinstance(part, dict):
        return {key: without(value, keys) for key, value in part.items() if key not in keys}
    return [without(value, keys) for value in part] if isinstance(part, list) else part
