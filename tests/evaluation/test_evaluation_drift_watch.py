"""The drift watch of a project: over nights with a refit in each, over audits of traffic, and nothing counted twice or by accident."""

import dataclasses

import missing_project as made
import pytest
from cli_project import jsonl
from missing_project import call
from test_evaluation_traffic import audit, bring, opened

from rag_eval.evaluation.calibrating import calibrate_gold_set
from rag_eval.evaluation.calibration_steps import miss_rate_calibration
from rag_eval.evaluation.calibrator_files import accepted_calibrator, kept_watch
from rag_eval.evaluation.index_steps import IndexOpener
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.outcome_store import outcome_store
from rag_eval.uncertainty.drift import watch

PLACE = ("tiny", "bm25", "miss_any", 10)

pytestmark = pytest.mark.slow  # whole nights one after the other


@pytest.fixture
def missing(project):
    made.make(project)
    made.configure(project, more="")
    return project


def ask(project, numbers):
    """Put further questions, like those that find their documents in all but the order of words; the gold says that another document was meant."""
    found = [number for number in range(made.N) if not made.is_lost(number)]
    parts = {
        name: (project.gold / name).read_text(encoding="utf-8")
        for name in ("queries.jsonl", "paraphrases.jsonl", "qrels.tsv")
    }
    for number in numbers:
        name, word = f"shifted{number}", made.word(found[number])
        parts["queries.jsonl"] += jsonl(
            [{"query_id": name, "text": f"found where is {word}", "answerable": True}]
        )
        parts["paraphrases.jsonl"] += jsonl(
            [
                {
                    "query_id": name,
                    "paraphrase_id": "terse",
                    "text": f"valve {word} the place of",
                    "source": "hand",
                }
            ]
        )
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
    return {
        name: watch(
            part["shown_value"].to_numpy(), part["missed"].to_numpy(), part["query_id"].tolist()
        ).alarm
        for name, part in frame.groupby("shown_calibrator")
    }


@pytest.mark.slow
def test_a_shift_is_noticed_over_nights_with_a_refit_in_each(missing):
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
    assert (entry["status"], entry["promotion"]["new_status"], entry["drift"]["direction"]) == (
        "stale",
        "stale",
        "more misses than predicted",
    )
    assert accepted_calibrator(missing.home, *PLACE).status == "stale"
    assert state_of(missing).demoted_at
    after = calibrated(missing)  # earned back by all outcomes, and watched anew
    assert (
        after["status"],
        after["drift"]["alarm"],
        after["drift"]["n_groups"],
        after["promotion"]["new_status"],
    ) == ("provisional", False, 0, "provisional")
    assert after["drift"]["since"] == state_of(missing).since != ""
    assert calibrated(missing)["drift"]["n_groups"] == 0


def test_a_night_that_was_killed_counts_once_a_partial_one_not_at_all_and_damage_is_told(
    missing, monkeypatch
):
    calibrated(missing)
    assert state_of(missing) is None  # a watch that has seen nothing leaves nothing
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
    assert (counted.drift.n, len(counted.drift.groups)) == (6, 3)
    again = calibrated(missing)
    assert accepted_calibrator(missing.home, *PLACE) != before
    assert (again["drift"]["n"], again["drift"]["n_groups"]) == (6, 3)
    assert state_of(missing) == counted
    path = missing.home / "calibrators" / "watches" / "tiny" / "bm25" / "miss_any@10.json"
    stamp, whole = path.stat().st_mtime_ns, path.read_bytes()
    assert calibrated(missing)["drift"]["n"] == 6
    assert path.stat().st_mtime_ns == stamp

    ask(missing, range(3, 5))
    runs = opened(missing)
    part = Runs(dataclasses.replace(runs.evaluation, partial=True), IndexOpener(runs.evaluation))
    assert miss_rate_calibration(part)["bm25"]["drift"]["n_groups"] == 5
    assert path.read_bytes() == whole

    path.write_bytes(whole[:-30])
    told = call(
        missing, "calibrate", "--gold-set", "tiny", "--gold-sets", missing.gold.parent, exit_code=1
    )
    assert "drift_damaged" in told.output + told.stderr
    assert "Traceback" not in told.output + told.stderr
    path.unlink()
    assert calibrated(missing)["drift"]["n_groups"] == 5
    assert set(counted.fed) < set(state_of(missing).fed)

    kept = state_of(missing)
    (missing.home / "rag_eval.db").write_bytes(b"no database at all" * 100)
    entry = miss_rate_calibration(opened(missing))["bm25"]
    assert "can neither be read nor written" in entry["refused"]
    assert entry["drift"]["n_groups"] == 5
    assert state_of(missing) == kept


@pytest.mark.slow
def test_another_index_starts_another_watch(missing):
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
    assert (
        calibrated(missing)["drift"]["n"] == 0
    )  # what the first watch had counted is not counted again
    assert state_of(missing).fingerprint == old["fingerprint"]


def test_audits_of_traffic_are_watched_by_the_calibrator_that_had_not_seen_them(missing):
    calibrated(missing)
    found = [number for number in range(made.N) if not made.is_lost(number)]
    claims = [
        (f"the {made.word(number)} is found where", [f"d{number:02d}.md"], {}) for number in found
    ]
    bring(missing, "bm25", claims)
    audit(missing, "bm25", 20, lambda _: True)
    entry = calibrated(missing)
    assert entry["drift"]["n"] == 20
    assert entry["drift"]["mean_missed"] == 1
    assert entry["drift"]["mean_predicted"] < 0.2
    assert (entry["drift"]["alarm"], entry["status"]) == (True, "stale")
    assert entry["counts"]["outcomes"] == 140
    assert state_of(missing).demoted_at
    audit(
        missing, "bm25", 4, lambda _: False
    )  # watched by nobody: what states miss rates now is not the calibrator
    after = calibrated(missing)
    assert (after["status"], after["drift"]["n"], after["drift"]["alarm"]) == (
        "provisional",
        0,
        False,
    )


@pytest.mark.slow
def test_audits_that_fitted_the_calibrator_are_never_watched(missing):
    found = [number for number in range(made.N) if not made.is_lost(number)]
    bring(
        missing,
        "bm25",
        [
            (f"the {made.word(number)} is found where", [f"d{number:02d}.md"], {})
            for number in found
        ],
    )
    audit(missing, "bm25", 10, lambda _: False)
    assert calibrated(missing)["counts"]["outcomes"] == 130  # fits the first calibrator
    for _ in range(2):
        assert calibrated(missing)["drift"]["n"] == 0
    audit(missing, "bm25", 7, lambda _: False)
    for _ in range(2):
        assert calibrated(missing)["drift"]["n"] == 7
