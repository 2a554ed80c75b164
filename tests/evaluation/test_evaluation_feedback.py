"""What users say is counted, named, held against gold and stated miss rates, and never fitted."""

import json

import missing_project as made
import pytest
from cli_project import jsonl
from missing_project import call, lines, night
from test_evaluation_drift_watch import calibrated
from test_evaluation_traffic import bring, opened

from rag_eval.evaluation.claim_steps import miss_rate_claims
from rag_eval.evaluation.feedback_steps import NAMED, NOTHING_STATED
from rag_eval.evaluation.traffic_steps import traffic
from rag_eval.reporting.miss_rate_lines import feedback_lines


@pytest.fixture
def missing(project):
    made.make(project)
    made.configure(project, more="")
    return project


def say(project, rows, name="fb"):
    path = project.root / f"{name}.jsonl"
    path.write_text(
        jsonl({"gold_source": "user_feedback", **row} for row in rows), encoding="utf-8"
    )
    call(project, "outcome", "import", path)


def of(claim, feedback="something_missing"):
    return {
        **{
            key: claim[key]
            for key in ("claim_id", "query_id", "strategy", "strategy_fingerprint", "k")
        },
        "feedback": feedback,
    }


def claims(project):
    """Claims of the gold set by query id, the original wording."""
    frame = miss_rate_claims(opened(project)).frame("claims")
    return {
        row["query_id"]: row
        for row in frame[frame["paraphrase_id"] == "original"].to_dict("records")
    }


def test_feedback_is_counted_and_the_fit_is_what_it_was(missing):
    first = calibrated(missing)
    assert first["feedback"] == {
        "n_claims": 0,
        "something_missing": 0,
        "evidence_not_relevant": 0,
        "nothing_missing": 0,
        "audits_due": 0,
        "contradicts_gold": {"n_claims": 0, "n_questions": 0, "query_ids": []},
        "watch": None,
        "watch_reason": NOTHING_STATED,
        "earlier": dict.fromkeys(
            (
                "n_claims",
                "something_missing",
                "evidence_not_relevant",
                "nothing_missing",
                "audits_due",
            ),
            0,
        ),
    }
    assert feedback_lines("bm25", first["feedback"]) == []
    known = claims(missing)
    hits, lost = (
        [q for q in known if not made.is_lost(int(q[1:]))],
        [q for q in known if made.is_lost(int(q[1:]))],
    )
    kinds = {
        hits[0]: "something_missing",
        hits[1]: "evidence_not_relevant",
        hits[2]: "nothing_missing",
        lost[0]: "something_missing",
    }
    say(missing, [of(known[query], kind) for query, kind in kinds.items()])
    second = calibrated(missing)
    said = second["feedback"]
    assert [
        said[name]
        for name in (
            "n_claims",
            "something_missing",
            "evidence_not_relevant",
            "nothing_missing",
            "audits_due",
        )
    ] == [4, 2, 1, 1, 2]
    assert said["contradicts_gold"] == {"n_claims": 1, "n_questions": 1, "query_ids": [hits[0]]}
    watched = said["watch"]["every_claim"]
    assert (watched["n_claims"], watched["n_groups"], watched["complaints"], watched["alarm"]) == (
        120,
        60,
        2,
        False,
    )
    assert 15 < watched["expected"] < 60
    assert (second["calibrator"], second["counts"], second["validation"]) == (
        first["calibrator"],
        first["counts"],
        first["validation"],
    )
    # one of them is audited, one complaint is taken back
    row = of(known[hits[0]]) | {
        "feedback": None,
        "missed": False,
        "gold_source": "human",
        "audit_depth": 20,
    }
    say(missing, [{key: value for key, value in row.items() if value is not None}], "audit")
    wrong = [
        line
        for line in call(
            missing, "outcome", "list", "--json", "--gold-source", "user_feedback"
        ).stdout.splitlines()
        if f'"{lost[0]}"' in line
    ]
    call(missing, "outcome", "add", "--correct", json.loads(wrong[0])["outcome_id"])
    third = calibrated(missing)["feedback"]
    assert [third[name] for name in ("n_claims", "something_missing", "audits_due")] == [3, 1, 0]


def test_many_complaints_about_safe_claims_call_for_an_audit_and_change_no_status(missing):
    calibrated(missing)
    known = claims(missing)
    hits = [query for query in known if not made.is_lost(int(query[1:]))]
    say(missing, [of(known[query]) for query in hits[:30]])
    entry = calibrated(missing)
    said = entry["feedback"]
    assert said["watch"]["least_risky_third"]["alarm"]
    assert said["watch"]["alarm"]
    assert said["contradicts_gold"]["n_questions"] == 30
    assert said["contradicts_gold"]["query_ids"] == sorted(hits[:30])[:NAMED]
    assert (entry["status"], entry["promotion"], entry["drift"]["n"]) == ("provisional", None, 0)
    text = "\n".join(feedback_lines("bm25", said))
    assert "AUDIT NOW" in text
    assert "rag-eval audit list --feedback" in text
    assert f"and {30 - NAMED} more" in text


@pytest.mark.slow
def test_complaints_about_traffic_count_too(missing):
    calibrated(missing)
    found = [number for number in range(made.N) if not made.is_lost(number)][:12]
    bring(
        missing,
        "bm25",
        [
            (f"the {made.word(number)} is found where", [f"d{number:02d}.md"], {})
            for number in found
        ],
    )
    before = calibrated(missing)["feedback"]["watch"]["every_claim"]
    assert before["n_claims"] == 132
    frame = traffic(opened(missing), "bm25").frame
    say(
        missing,
        [{"claim_id": claim, "feedback": "something_missing"} for claim in frame["claim_id"]],
    )
    after = calibrated(missing)["feedback"]
    assert (
        after["audits_due"],
        after["watch"]["every_claim"]["complaints"],
        after["contradicts_gold"]["n_claims"],
    ) == (12, 12, 0)


@pytest.mark.slow
def test_end_to_end_feedback_is_said_by_calibrate_and_by_the_report(missing):
    night(missing)
    before = missing.report()["calibration"]["strategies"]["bm25"]
    line = next(line for line in lines(missing) if line["query_id"] == "q01")
    fingerprint = missing.report()["uncertainty"]["strategies"]["bm25"]["fingerprint"]
    call(
        missing, "outcome", "add", "--claim", line["claim_id"], "--query-id", "q01", "--strategy", "bm25", "--fingerprint", fingerprint,
        "--gold-source", "user_feedback", "--feedback", "something_missing", "--note", "the key of the other bay",
    )  # fmt: skip
    told = call(
        missing, "calibrate", "--gold-set", "tiny", "--gold-sets", missing.gold.parent
    ).stdout
    assert (
        "feedback on 1 claims (1 something missing), which fits no calibrator; 1 to audit: rag-eval audit list --feedback"
        in told
    )
    assert "users miss something where the gold says hit, questions q01" in told
    after = night(missing)
    assert "1 to audit" in " ".join(after.stdout.split())
    entry = missing.report()["calibration"]["strategies"]["bm25"]
    assert entry["feedback"]["n_claims"] == entry["feedback"]["audits_due"] == 1
    assert entry["feedback"]["contradicts_gold"]["query_ids"] == ["q01"]
    assert (entry["calibrator"], entry["counts"]) == (before["calibrator"], before["counts"])


@pytest.mark.slow
def test_feedback_stays_known_when_the_configuration_changes(missing):
    """A changed index or configuration is another fingerprint: what users said before is counted apart, and held against nothing."""
    night(missing)
    before = missing.report()["calibration"]["strategies"]["bm25"]["fingerprint"]
    known = {
        line["query_id"]: {
            "claim_id": line["claim_id"],
            "query_id": line["query_id"],
            "strategy": "bm25",
            "strategy_fingerprint": before,
            "k": 10,
        }
        for line in lines(missing)
    }
    say(
        missing, [of(known["q01"]) | {"note": "the other bay"}, of(known["q02"], "nothing_missing")]
    )
    foreign = of(known["q04"]) | {
        "claim_id": "0" * 32,
        "strategy_fingerprint": "f" * 32,
    }  # a strategy of this name in another gold set
    say(missing, [foreign], "foreign")
    made.configure(missing, "{name: bm25, kind: bm25, k1: 0.8}", more="")
    entry = calibrated(missing)
    assert entry["fingerprint"] != before
    said = entry["feedback"]
    assert (said["n_claims"], said["audits_due"], said["contradicts_gold"]["n_claims"]) == (0, 0, 0)
    assert said["earlier"] == {
        "n_claims": 2,
        "something_missing": 1,
        "evidence_not_relevant": 0,
        "nothing_missing": 1,
        "audits_due": 1,
    }
    words = "on an earlier index or configuration: feedback on 2 claims (1 something missing, 1 nothing missing), which fits no calibrator; 1 to audit: rag-eval audit list --feedback"
    assert feedback_lines("bm25", said) == [f"bm25: {words}"]
    told = call(
        missing, "calibrate", "--gold-set", "tiny", "--gold-sets", missing.gold.parent
    ).stdout
    assert words in told
    night(missing)
    assert (
        missing.report()["calibration"]["strategies"]["bm25"]["feedback"]["earlier"]
        == said["earlier"]
    )  # and it fits the schema
    row = {**known["q01"], "missed": False, "gold_source": "human", "audit_depth": 20}
    say(missing, [row], "audit")
    assert calibrated(missing)["feedback"]["earlier"]["audits_due"] == 0


@pytest.mark.slow
def test_feedback_stays_known_when_the_cutoff_changes(missing):
    night(missing)
    fingerprint = missing.report()["calibration"]["strategies"]["bm25"]["fingerprint"]
    line = next(line for line in lines(missing) if line["query_id"] == "q01")
    say(
        missing,
        [
            of(
                {
                    "claim_id": line["claim_id"],
                    "query_id": "q01",
                    "strategy": "bm25",
                    "strategy_fingerprint": fingerprint,
                    "k": 10,
                }
            )
        ],
    )
    made.configure(missing, more="", extra="uncertainty: {k: 5}\n")
    entry = calibrated(missing)
    assert entry["fingerprint"] == fingerprint
    assert [entry["feedback"][name] for name in ("n_claims", "audits_due")] == [0, 0]
    assert [entry["feedback"]["earlier"][name] for name in ("n_claims", "audits_due")] == [1, 1]


@pytest.mark.slow
def test_notes_are_listed_where_feedback_is_worked_on(missing, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    night(missing)
    line = next(line for line in lines(missing) if line["query_id"] == "q01")
    fingerprint = missing.report()["calibration"]["strategies"]["bm25"]["fingerprint"]
    claim = {
        "claim_id": line["claim_id"],
        "query_id": "q01",
        "strategy": "bm25",
        "strategy_fingerprint": fingerprint,
        "k": 10,
    }
    say(
        missing,
        [
            of(claim, "evidence_not_relevant")
            | {"note": "[red]bay[/red] 9\u202e, ask a.b@example.org"}
        ],
    )
    for words in (
        ["audit", "list", "--feedback"],
        ["outcome", "list", "--gold-source", "user_feedback"],
    ):
        told = "".join(call(missing, *words).stdout.split())
        assert "[red]bay[/red]9" in told
        assert "\u202e" not in told
        assert "a.b@example.org" not in told
    (found,) = map(
        json.loads,
        call(
            missing, "outcome", "list", "--json", "--gold-source", "user_feedback"
        ).stdout.splitlines(),
    )
    assert found["note"].startswith("[red]bay[/red] 9")
