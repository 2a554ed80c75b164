"""The drift watch of a project: over nights with a refit in each, over audits of traffic, and nothing counted twice or by accident."""

import json

import missing_project as made
import pytest
from cli_project import jsonl
from missing_project import call
from test_evaluation_traffic import audit, bring, opened, shown

from rag_eval.evaluation.calibrating import calibrate_gold_set
from rag_eval.evaluation.calibrator_files import accepted_calibrator, kept_watch
from rag_eval.evaluation.inputs import adjust
from rag_eval.evaluation.outcome_store import outcome_store
from rag_eval.records.problems import InputError
from rag_eval.uncertainty.drift import watch

PLACE = ("tiny", "bm25", "miss_any", 10)


@pytest.fixture
def missing(project):
    made.make(project)
    return project


def ask(project, numbers):
    """Put further questions, like those that find their documents in all but the order of words; the gold says that another document was meant."""
    found = [number for number in range(made.N) if not made.is_lost(number)]
    parts = {name: (project.gold / name).read_text(encoding="utf-8") for name in ("queries.jsonl", "paraphrases.jsonl", "qrels.tsv")}
    for number in numbers:
        name, word = f"shifted{number}", made.word(found[number])
        parts["queries.jsonl"] += jsonl([{"query_id": name, "text": f"found where is {word}", "answerable": True}])
        parts["paraphrases.jsonl"] += jsonl([{"query_id": name, "paraphrase_id": "terse", "text": f"valve {word} the place of", "source": "hand"}])
        parts["qrels.tsv"] += f"{name}\td{found[number - 1]:02d}.md\t1\n"
    for name, text in parts.items():
        (project.gold / name).write_text(text, encoding="utf-8")


def calibrated(project, name="bm25"):
    runs = opened(project)
    return calibrate_gold_set(runs.evaluation).strategies[name]


def state_of(project):
    return kept_watch(project.home, *PLACE)


def alone(project):
    """Whether the outcomes that any one calibrator had stated rates for would have raised the alarm: all that a watch can see that a refit restarts."""
    frame = outcome_store(opened(project).evaluation).current()
    frame = frame[frame["shown_status"] == "provisional"]
    return {name: watch(part["shown_value"].to_numpy(), part["missed"].to_numpy(), part["query_id"].tolist()).alarm for name, part in frame.groupby("shown_calibrator")}


@pytest.mark.slow
def test_a_shift_is_noticed_over_nights_with_a_refit_in_each(missing):
    made.configure(missing, more="")
    assert calibrated(missing)["status"] == "provisional"
    calibrators, fed = [], [0]
    for night in range(12):
        ask(missing, range(3 * night, 3 * night + 3))
        entry = calibrated(missing)
        calibrators.append(entry["calibrator"])
        if entry["drift"]["alarm"]:
            break
        assert entry["drift"]["n_groups"] > fed[-1]
        fed.append(entry["drift"]["n_groups"])
    assert len(fed) > 2
    assert len(set(calibrators)) == len(calibrators)
    assert not any(alone(missing).values())
    assert (entry["status"], entry["promotion"]["new_status"], entry["drift"]["direction"]) == ("stale", "stale", "more misses than predicted")
    assert accepted_calibrator(missing.home, *PLACE).status == "stale"
    assert state_of(missing).demoted_at
    after = calibrated(missing)  # earned back by all outcomes, and watched anew
    assert (after["status"], after["drift"]["alarm"], after["drift"]["n_groups"], after["promotion"]["new_status"]) == ("provisional", False, 0, "provisional")
    assert after["drift"]["since"] == state_of(missing).since != ""
    assert calibrated(missing)["drift"]["n_groups"] == 0


def test_a_night_that_was_killed_is_run_again_and_counts_once(missing, monkeypatch):
    made.configure(missing, more="")
    calibrated(missing)
    ask(missing, range(3))
    before = accepted_calibrator(missing.home, *PLACE)

    class Killed(BaseException):
        pass

    def die(*_args, **_more):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("rag_eval.evaluation.calibration_steps.accept_calibrator", die)
        with pytest.raises(Killed):
            calibrated(missing)
    assert accepted_calibrator(missing.home, *PLACE) == before
    counted = state_of(missing)
    assert counted.drift.n == 3
    again = calibrated(missing)
    assert accepted_calibrator(missing.home, *PLACE) != before
    assert again["drift"]["n"] == 3
    assert state_of(missing) == counted


def test_a_partial_evaluation_and_a_night_without_news_change_nothing(missing):
    made.configure(missing, made.BM25, made.VECTOR, more="")
    calibrated(missing)
    assert state_of(missing) is None
    ask(missing, range(3))
    runs = opened(missing)
    part = calibrate_gold_set(adjust(runs.evaluation, strategies=("bm25",))).strategies["bm25"]
    assert part["drift"]["n"] == 3
    assert state_of(missing) is None
    assert calibrated(missing)["drift"]["n"] == 3
    path = missing.home / "calibrators" / "watches" / "tiny" / "bm25" / "miss_any@10.json"
    stamp = path.stat().st_mtime_ns
    assert calibrated(missing)["drift"]["n"] == 3
    assert path.stat().st_mtime_ns == stamp


def test_another_index_starts_another_watch(missing):
    made.configure(missing, more="")
    calibrated(missing)
    ask(missing, range(3))
    old = calibrated(missing)
    path = missing.corpus / "d01.md"
    was = path.read_text(encoding="utf-8")
    path.write_text(f"{was}\nIt was painted green.\n", encoding="utf-8")
    changed = calibrated(missing)
    assert changed["fingerprint"] != old["fingerprint"]
    assert changed["drift"]["n"] == 0
    path.write_text(was, encoding="utf-8")
    assert calibrated(missing)["drift"]["n"] == 0  # what the first watch had counted is not counted again
    assert state_of(missing).fingerprint == old["fingerprint"]


def test_a_damaged_state_is_told_and_one_that_was_moved_away_is_made_again(missing):
    made.configure(missing, more="")
    calibrated(missing)
    ask(missing, range(3))
    calibrated(missing)
    path = missing.home / "calibrators" / "watches" / "tiny" / "bm25" / "miss_any@10.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    told = call(missing, "calibrate", "--gold-set", "tiny", "--gold-sets", missing.gold.parent, exit_code=1)
    assert "drift_damaged" in told.output + told.stderr
    assert "Traceback" not in told.output + told.stderr
    path.unlink()
    assert calibrated(missing)["drift"]["n"] == 3
    assert json.loads(path.read_bytes())["drift"]["groups"] == json.loads(whole)["drift"]["groups"]


def test_audits_of_traffic_are_watched_by_the_calibrator_that_had_not_seen_them(missing):
    made.configure(missing, more="")
    first = opened(missing)
    calibrate_gold_set(first.evaluation)
    found = [number for number in range(made.N) if not made.is_lost(number)]
    claims = [(f"the {made.word(number)} is found where", [f"d{number:02d}.md"], {}) for number in found]
    bring(missing, "bm25", claims)
    audit(missing, "bm25", 20, lambda _: True)
    entry = calibrated(missing)
    assert entry["drift"]["n"] == 20
    assert entry["drift"]["mean_missed"] == 1
    assert entry["drift"]["mean_predicted"] < 0.2
    assert (entry["drift"]["alarm"], entry["status"]) == (True, "stale")
    assert entry["counts"]["outcomes"] == 140
    assert "DRIFT, more misses than predicted" in shown(calibrate_gold_set(opened(missing).evaluation)) or state_of(missing).demoted_at


def test_audits_that_fitted_the_calibrator_are_never_watched(missing):
    made.configure(missing, more="")
    found = [number for number in range(made.N) if not made.is_lost(number)]
    bring(missing, "bm25", [(f"the {made.word(number)} is found where", [f"d{number:02d}.md"], {}) for number in found])
    audit(missing, "bm25", 10, lambda _: False)
    assert calibrated(missing)["counts"]["outcomes"] == 130  # fits the first calibrator
    for _ in range(2):
        assert calibrated(missing)["drift"]["n"] == 0
    audit(missing, "bm25", 7, lambda _: False)
    for _ in range(2):
        assert calibrated(missing)["drift"]["n"] == 7


def test_without_its_outcomes_the_watch_stays_as_it_is(missing):
    made.configure(missing, more="")
    calibrated(missing)
    ask(missing, range(3))
    calibrated(missing)
    kept = state_of(missing)
    (missing.home / "rag_eval.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(InputError):
        calibrated(missing)
    assert state_of(missing) == kept
