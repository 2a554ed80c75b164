"""The nightly run states, records and calibrates miss rates.

A night states the rates that earlier nights earned. An unearned rate discounts no answer.
"""

import json
import re

import missing_project as made
import pytest
from cli_project import jsonl
from missing_project import call, configure, lines, night, vectors_file

from rag_eval.core.settings import Settings
from rag_eval.pipeline.evaluation import open_gold_set
from rag_eval.storage.sql import SqlStore
from rag_eval.uncertainty.outcomes import OutcomeStore
from rag_eval.uncertainty.status import promotions

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # raised inside MLflow's own SQLAlchemy models

ACCEPTED = ("calibrators", "accepted", "tiny")


@pytest.fixture
def missing(project):
    made.make(project)
    return project


@pytest.fixture
def learned(missing, shared_runs):
    """A project after its first night, which tests share."""
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
        (change.old_status, change.new_status)
        for change in promotions(SqlStore(project.home / "rag_eval.db"))
        if change.series.strategy == name
    ]


def unmet_of(entry, status):
    return [
        one["name"]
        for one in entry["standing"]["conditions"]
        if one["status"] == status and not one["met"]
    ]


def by_claim(project):
    return {line["claim_id"]: line for line in lines(project)}


def test_the_first_run_learns_the_rates_that_the_second_states(missing, tracking_store):
    first = night(missing)
    assert "absent -> provisional" in first.stdout
    entry = stated(missing)
    assert (
        entry["status"],
        entry["outcomes"]["added"],
        entry["outcomes"]["n_missed"],
        entry["n_absent"],
    ) == ("prior", 120, 40, 0)
    assert entry["observed"]["miss_any"]["value"] == pytest.approx(1 / made.MISSED_OF)
    assert entry["stated"]["value"] is None
    assert "prior" in entry["stated"]["reason"]
    known = calibrated(missing)
    assert (known["status"], known["counts"]["groups"], known["counts"]["groups_with_misses"]) == (
        "provisional",
        made.N,
        made.N // made.MISSED_OF,
    )
    assert known["promotion"]["new_status"] == "provisional"
    assert known["validation"]["skill"]["value"] > 0.3
    assert known["heuristic_v0"]["skill"]["value"] < known["validation"]["skill"]["value"]
    answered = [line["answer"] for line in lines(missing) if "answer" in line]
    assert len(answered) == made.N
    assert {answer["calibrated_confidence"]["kind"] for answer in answered} == {"absent"}
    assert all(
        answer["final_confidence"]["value"] < answer["synthesis_confidence"]["value"]
        for answer in answered
        if answer["final_confidence"]["kind"] == "derived"
        and answer["synthesis_confidence"]["value"] > 0
    )
    before = missing.report()["content_hash"]

    second = night(missing)
    entry = stated(missing)
    assert f"provisional, from {known['calibrator'][:24]}" in re.sub(r"\s+", " ", second.stdout)
    assert (entry["status"], entry["calibrator"]) == ("provisional", known["calibrator"])
    assert (entry["outcomes"]["added"], entry["outcomes"]["already_there"]) == (0, 120)
    assert missing.report()["content_hash"] == before  # which calibrator spoke is no finding
    assert calibrated(missing)["promotion"] is None
    assert calibrated(missing)["calibrator"] == known["calibrator"]
    assert climbed(missing) == [("absent", "provisional")]
    found = lines(missing)
    lost = {f"q{number:02d}" for number in range(made.N) if made.is_lost(number)}
    rates = {
        side: [line["miss_rate"]["value"] for line in found if (line["query_id"] in lost) is side]
        for side in (True, False)
    }
    assert min(rates[True]) > max(rates[False])
    for line in found:
        if "answer" in line:
            assert line["answer"]["calibrated_confidence"]["kind"] == "derived"
            assert (
                line["answer"]["calibrated_confidence"]["value"]
                <= line["answer"]["synthesis_confidence"]["value"]
            )
    assert entry["stated"]["value"] == pytest.approx(1 / made.MISSED_OF, abs=0.1)

    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=tracking_store)
    experiment = client.get_experiment_by_name("rag_eval/tiny")
    runs = client.search_runs(
        [experiment.experiment_id], f"tags.`rag_eval.run_id` = '{missing.report()['run_id']}'"
    )
    child = next(run for run in runs if run.data.params.get("miss_rate_status") == "provisional")
    assert {"brier", "brier_skill", "auroc", "ece", "miss_any_at_10", "outcomes"} <= set(
        child.data.metrics
    )
    assert child.data.metrics["miss_any_at_10"] == pytest.approx(1 / made.MISSED_OF)
    parent = next(run for run in runs if "mlflow.parentRunId" not in run.data.tags)
    assert {"reliability.svg", "learning-curve.svg"} <= {
        item.path for item in client.list_artifacts(parent.info.run_id)
    }
    assert (missing.reports / "tiny" / "reliability.svg").read_text().startswith("<svg")


def refused(project, code, reports=None):
    result = project.invoke("run", "tiny")
    assert result.exit_code == 1, result.output
    assert code in result.stderr
    assert "no report was written" in result.stderr
    assert "Traceback" not in result.output + result.stderr
    if reports is not None:
        assert {
            path.name: path.read_bytes() for path in (project.reports / "tiny").iterdir()
        } == reports


def test_few_questions_stay_uncalibrated(project):
    night(project)
    for name in ("bm25", "vector"):
        entry, known = stated(project, name), calibrated(project, name)
        assert (entry["status"], entry["calibrator"], known["status"], known["calibrator"]) == (
            "uncalibrated",
            "heuristic_v0",
            "uncalibrated",
            None,
        )
        assert "50" in entry["reason"]
        assert known["calibrator_reason"]
        assert climbed(project, name) == [("absent", "uncalibrated")]
    confidence = project.report()["uncertainty"]["answers"]["calibrated_confidence"]
    assert confidence["value"] is None
    assert "uncalibrated" in confidence["value_reason"]
    assert not (project.home / "calibrators").exists()
    assert not (project.reports / "tiny" / "reliability.svg").exists()
    path = project.home.joinpath(*ACCEPTED, "bm25", "miss_any@10.json")
    path.parent.mkdir(parents=True)
    for damage in (
        b"",
        b"{}",
        b"\xff\xfe",
        (
            b'{"calibrator_id": "../../x", "strategy_fingerprint": "x", "status": "measured", '
            b'"at": ""}'
        ),
    ):
        path.write_bytes(damage)
        refused(project, "accepted_damaged")


HOSTILE = (
    "\x1b[31m\x1b]8;;http://x\x07[bold red]alert[/] [link=file:///etc/passwd]\r\n"
    "forged line\u2028\u202e <script>alert(1)</script> ${{7*7}} %s '); DROP TABLE "
    "retrieval_outcomes; --"
)


def test_markup_and_control_characters_stay_data(project):
    queries = [
        {"query_id": "keep", "text": f"{HOSTILE} How long do results stay?", "answerable": True},
        {"query_id": "[red]q[blink]", "text": "failed job " + "x" * 19_900, "answerable": True},
    ]
    (project.gold / "queries.jsonl").write_text(jsonl(queries), encoding="utf-8")
    (project.gold / "paraphrases.jsonl").write_text(
        jsonl(
            [
                {
                    "query_id": "keep",
                    "paraphrase_id": "[bold]p",
                    "text": "[blink]deletion[/blink] of old results \x1b[2J",
                    "source": "hand",
                }
            ]
        ),
        encoding="utf-8",
    )
    (project.corpus / "[bold]storage[blink].md").write_text(
        f"# {HOSTILE}\n\nResults stay on the disk. {HOSTILE}\n", encoding="utf-8"
    )
    (project.gold / "qrels.tsv").write_text(
        "query-id\tcorpus-id\tscore\nkeep\t[bold]storage[blink].md\t1\n[red]q[blink]\tretries.md\t1\n",
        encoding="utf-8",
    )
    (project.gold / "answers.jsonl").write_text("", encoding="utf-8")
    (project.gold / "gold_set.yaml").write_text(
        (project.gold / "gold_set.yaml")
        .read_text(encoding="utf-8")
        .replace(
            "gates:", "  - {name: rounds, kind: iterative, base: bm25, min_recall: 1.0}\ngates:"
        ),
        encoding="utf-8",
    )
    result = night(project)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u2028\u202e]", result.stdout + result.stderr)
    text = (project.reports / "tiny" / "uncertain-retrievals.jsonl").read_text(encoding="utf-8")
    assert not re.search(r"[^\n\x20-\x7e]", text)
    assert len(text) < 2_000_000
    assert (
        max(len(step["expanded"]) for line in lines(project) for step in line["query_expansions"])
        <= 201
    )
    assert {line["query_id"] for line in lines(project)} == {"keep", "[red]q[blink]"}
    standing = outcomes_of(project).current()
    assert set(standing["query_id"]) == {"keep", "[red]q[blink]"}


def test_an_iterative_strategy_alone_brings_its_base(project):
    config = (project.gold / "gold_set.yaml").read_text(encoding="utf-8")
    (project.gold / "gold_set.yaml").write_text(
        config.replace(
            "gates:",
            "  - {name: rounds, kind: iterative, base: bm25, min_recall: 1.0, max_iterations: "
            "2, max_expansions: 1}\ngates:",
        ),
        encoding="utf-8",
    )
    night(project, "--strategy", "rounds")
    report = project.report()
    assert [entry["name"] for entry in report["strategies"]] == ["bm25", "rounds"]
    found = report["uncertainty"]["iterative"]["rounds"]
    assert (found["base"], found["basis"]) == (
        "bm25",
        "heuristic_v0@9",
    )  # the loop's heuristic reads the whole list, here of 9 chunks
    assert {step["basis"] for line in lines(project) for step in line["iterations"]} == {
        "heuristic_v0@9"
    }
    steps = [line["iterations"] for line in lines(project) if line["strategy"] == "rounds"]
    assert any(steps)
    assert max(map(len, steps)) <= 1
    assert all(
        line["iterations"] == line["query_expansions"] == []
        for line in lines(project)
        if line["strategy"] == "bm25"
    )
    judged = [
        line
        for line in lines(project)
        if line["strategy"] == "rounds" and line["query_id"] != "price"
    ]  # that question has no answer to miss
    assert found["accounts"][0]["triggered"] == sum(bool(line["iterations"]) for line in judged)
    assert sum(found["stops"].values()) == 6


@pytest.mark.slow
def test_a_damaged_calibrator_ends_the_run_before_it_writes(
    learned,
):
    known = calibrated(learned)
    body = learned.home / "calibrators" / f"{known['calibrator']}.json"
    kept = body.read_bytes()
    reports = {path.name: path.read_bytes() for path in (learned.reports / "tiny").iterdir()}
    for damage in (
        kept.replace(b'"k":10', b'"k":11'),
        kept[:-20],
        b"[]",
        b"\xff\xfe",
        b'{"calibrator_id": NaN}',
        b'{"calibrator_id": "\\ud800"}',
    ):
        assert damage != kept
        body.write_bytes(damage)
        refused(learned, "calibrator_damaged", reports)
    body.unlink()
    refused(learned, "calibrator_missing", reports)


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
    told = call(
        project, "calibrate", "--gold-set", "tiny", "--gold-sets", project.gold.parent, exit_code=1
    )
    assert "database_failed" in told.output + told.stderr


@pytest.mark.slow
def test_another_index_makes_a_rate_stale_for_one_run(learned):
    night(learned)
    old = stated(learned)
    path = learned.corpus / "d01.md"
    kept = path.read_text(encoding="utf-8")
    path.write_text(f"{kept}\nIt was painted green.\n", encoding="utf-8")
    changed = night(learned)
    entry = stated(learned)
    assert (entry["status"], entry["calibrator"].split(":")[0], entry["outcomes"]["added"]) == (
        "stale",
        "prior",
        120,
    )
    assert entry["fingerprint"] != old["fingerprint"]
    assert "no longer holds" in entry["reason"]
    assert {
        line["answer"]["calibrated_confidence"]["kind"]
        for line in lines(learned)
        if "answer" in line
    } == {"absent"}
    assert climbed(learned) == [
        ("absent", "provisional"),
        ("provisional", "stale"),
        ("stale", "provisional"),
    ]
    assert "stale -> provisional" in changed.stdout
    night(learned)
    assert (stated(learned)["status"], stated(learned)["outcomes"]["added"]) == ("provisional", 0)


@pytest.mark.slow
def test_changed_gold_supersedes_outcomes(learned):
    store = outcomes_of(learned)
    was = store.current().set_index("claim_id")["missed"]
    made.gold(learned, only_gold={1: 0})  # what question 1 finds is no longer what is asked for
    for again in (False, True):
        night(learned)
        now = store.current().set_index("claim_id")["missed"]
        changed = set(was.index[was != now.reindex(was.index)])
        owners = set(store.current(claim_ids=sorted(changed))["query_id"])
        assert owners == {"q01"}
        assert stated(learned)["outcomes"]["added"] == (0 if again else len(changed))
        assert (
            stated(learned)["outcomes"]["already_there"]
            == 120 - stated(learned)["outcomes"]["added"]
        )
    assert calibrated(learned)["counts"]["outcomes"] == 120
    history = store.history(claim_ids=sorted(changed))
    assert len(history) == 2 * len(changed)
    assert set(history.loc[history["supersedes"] != "", "supersedes"]) == set(
        history.loc[history["supersedes"] == "", "outcome_id"]
    )
    # A person's correction stays unchanged.
    claim = min(changed)
    standing = store.current(claim_ids=[claim]).iloc[0]
    call(
        learned,
        "outcome",
        "add",
        "--correct",
        standing["outcome_id"],
        "--hit" if standing["missed"] else "--missed",
        "--note",
        "looked at it myself",
    )
    night(learned)
    assert store.current(claim_ids=[claim]).iloc[0]["missed"] != standing["missed"]


@pytest.mark.slow
def test_the_calibrated_base_steers_iterative_rounds(missing):
    configure(
        missing,
        "{name: rounds, kind: iterative, base: bm25, max_iterations: 2, max_expansions: 3}",
        made.BM25,
        made.VECTOR,
    )
    night(missing)
    assert missing.report()["uncertainty"]["iterative"]["rounds"]["basis"] == "heuristic_v0@20"
    entry = calibrated(
        missing, "rounds"
    )  # its base learned in this night, so the next night has other rankings
    assert (entry["status"], entry["promotion"]["new_status"]) == ("stale", "stale")
    assert unmet_of(entry, "stale") == ["same_base_calibrator"]
    night(missing)
    assert unmet_of(calibrated(missing, "rounds"), "stale") == []
    found = missing.report()["uncertainty"]["iterative"]["rounds"]
    assert found["basis"] == "calibrated"
    assert stated(missing, "rounds")["status"] == "stale"  # another calibrator steers it now
    history = [line for line in lines(missing) if line["strategy"] == "rounds"]
    assert all(len(line["iterations"]) <= 3 for line in history)
    widened = [line for line in history if line["iterations"]]
    assert widened
    for line in widened:
        assert [step["iteration"] for step in line["iterations"]] == list(
            range(1, len(line["iterations"]) + 1)
        )
        assert line["iterations"][-1]["stopped"]
        assert len(line["query_expansions"]) == len(line["iterations"])
        assert all(step["confidence_before"] < 0.7 for step in line["iterations"])
    whole = found["accounts"][0]
    assert (whole["questions"], whole["triggered"], whole["extra_queries"]) == (
        120,
        len(widened),
        sum(len(line["iterations"]) for line in widened),
    )
    assert (
        whole["recovered"] > whole["lost"]
    )  # the company words of each bay lead to the lost documents
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
def test_imported_outcomes_change_the_calibration(learned):
    before, entry = calibrated(learned), stated(learned)
    rows = [
        {
            "query": f"asked by a person, number {number}",
            "strategy": "bm25",
            "strategy_fingerprint": entry["fingerprint"],
            "missed": number % 2 == 0,
            "gold_source": "qrels",
            "inclusion_probability": 1.0,
        }
        for number in range(15)
    ]
    for number, row in enumerate(rows[:12]):
        row["signals"] = {"tail_ratio": number / 12, "idf_mean": 3.0}
    (learned.root / "more.jsonl").write_text(jsonl(rows), encoding="utf-8")
    assert (
        "15 outcomes recorded"
        in call(learned, "outcome", "import", learned.root / "more.jsonl").stdout
    )
    night(learned)
    after = calibrated(learned)
    assert (before["counts"]["outcomes"], after["counts"]["outcomes"]) == (120, 132)
    assert (before["n_without_signals"], after["n_without_signals"]) == (
        0,
        3,
    )  # only the outcome is known
    assert after["counts"]["groups"] == before["counts"]["groups"] + 12
    assert after["calibrator"] != before["calibrator"]
    night(learned)
    assert stated(learned)["calibrator"] == after["calibrator"]
    told = call(learned, "outcome", "list", "--json").stdout.splitlines()
    assert len(told) == 135


@pytest.mark.slow
def test_outcomes_of_an_llm_judge_alone_are_refused(learned):
    fingerprint = stated(learned)["fingerprint"]
    (learned.home / "rag_eval.db").unlink()
    (learned.gold / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n", encoding="utf-8")
    (learned.gold / "queries.jsonl").write_text(
        jsonl(
            {"query_id": f"q{number:02d}", "text": made.question(number), "answerable": False}
            for number in range(made.N)
        ),
        encoding="utf-8",
    )
    rows = [
        {
            "query": f"asked {n}",
            "strategy": "bm25",
            "strategy_fingerprint": fingerprint,
            "missed": n % 3 == 0,
            "gold_source": "llm_judge",
            "inclusion_probability": 1.0,
            "signals": {"idf_mean": 3.0},
        }
        for n in range(60)
    ]
    (learned.root / "own.jsonl").write_text(jsonl(rows), encoding="utf-8")
    call(learned, "outcome", "import", learned.root / "own.jsonl")
    result = night(learned)
    entry = calibrated(learned)
    assert stated(learned)["fingerprint"] == fingerprint
    assert "itself retrieved" in entry["refused"]
    assert entry["calibrator"] is None
    assert entry["status"] not in {"provisional", "measured"}
    assert "is not calibrated" in result.stdout
    condition = next(
        one for one in entry["standing"]["conditions"] if one["name"] == "gold_of_others"
    )
    assert not condition["met"]


@pytest.mark.slow
def test_outside_retrievers_have_miss_rates_too(missing, monkeypatch):
    (missing.root / "outside_port.py").write_text(
        PORT.format(root=str(missing.root)), encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(missing.root))
    monkeypatch.delitem(__import__("sys").modules, "outside_port", raising=False)
    monkeypatch.setenv("RAG_EVAL_SOURCES", json.dumps({"port": "outside_port:Port"}))
    inner = missing.root / "inner" / "tiny"
    inner.mkdir(parents=True)
    for path in missing.gold.rglob("*"):
        if path.is_file():
            (inner / path.relative_to(missing.gold)).parent.mkdir(parents=True, exist_ok=True)
            (inner / path.relative_to(missing.gold)).write_bytes(path.read_bytes())
    configure(missing, made.BM25, "{name: outside, kind: external, source: port}")
    night(missing)
    assert stated(missing, "outside")["outcomes"]["added"] == 120
    assert calibrated(missing, "outside")["status"] == "provisional"
    assert stated(missing, "outside")["observed"]["miss_any"]["value"] == pytest.approx(
        stated(missing)["observed"]["miss_any"]["value"]
    )
    night(missing)
    assert (
        stated(missing, "outside")["status"],
        stated(missing, "outside")["outcomes"]["added"],
    ) == ("provisional", 0)
    own = [line for line in lines(missing) if line["strategy"] == "outside"]
    assert own
    for line in own:  # units of other chunks have no vectors of ours
        assert line["uncertainty"]["semantic_gaps"] is None
        assert line["uncertainty"]["semantic_gaps_reason"]


PORT = """
from pathlib import Path
from types import SimpleNamespace as Made
from rag_eval.pipeline.evaluation import open_gold_set
from rag_eval.pipeline.retrieval import open_port
from rag_eval.core.settings import Settings

ROOT = Path({root!r})

class Port:
    version = 1

    def __init__(self):
        self.port = open_port(
            open_gold_set(ROOT / "inner" / "tiny", Settings(home=ROOT / "inner_home"))
        )

    def retrieve(self, query, options):
        found = self.port.retrieve(query, options)
        return Made(
            chunks=[
                Made(
                    snippet_id=f"own-{{at}}-{{one.doc_id}}",
                    doc_id=one.doc_id,
                    section_id="",
                    text=one.text[: len(one.text) // 2],
                    score_raw=one.score_raw,
                )
                for at, one in enumerate(found.chunks)
            ]
        )

    def batch_retrieve(self, queries, options):
        return [self.retrieve(query, options) for query in queries]

    def stats(self):
        return self.port.stats()
"""


@pytest.mark.slow
def test_failed_retrievals_have_no_miss_rate_and_no_outcome(missing, monkeypatch):
    (missing.root / "failing_rerank.py").write_text(
        "class Mine:\n    name = 'mine'\n    def scores(self, queries, texts):\n"
        "        if any('quonabzu' in query for query in queries):\n"
        "            raise RuntimeError('no \\x1b[31m')\n"
        "        return [[-float(len(text)) for text in row] for row in texts]\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(missing.root))
    monkeypatch.delitem(__import__("sys").modules, "failing_rerank", raising=False)
    monkeypatch.setenv("RAG_EVAL_RERANKERS", json.dumps({"mine": "failing_rerank:Mine"}))
    configure(
        missing,
        "{name: bm25, kind: bm25, rerank: {kind: mine, depth: 10}}",
        "{name: rounds, kind: iterative, base: bm25, min_recall: 1.0}",
    )
    night(missing)
    for name in ("bm25", "rounds"):
        entry = stated(missing, name)
        assert (entry["n_claims"], entry["n_absent"], entry["outcomes"]["n_judged"]) == (
            120,
            2,
            118,
        )
        failed = [
            line
            for line in lines(missing)
            if line["strategy"] == name and line["miss_rate"]["status"] == "absent"
        ]
        assert {line["query_id"] for line in failed} == {"q01"}
        assert all(
            line["miss_rate"]["value"] is None
            and line["retrieval_confidence"]["kind"] == "absent"
            and line["documents"] == []
            for line in failed
        )


@pytest.mark.slow
def test_a_partial_run_accepts_no_calibrator(missing):
    """Fewer strategies together meet a lower bar; other vectors make another strategy of a name."""
    configure(missing, made.BM25, made.VECTOR)
    vectors_file(missing, missing.root / "other.npz")
    night(missing)
    accepted = {
        path: path.read_bytes() for path in missing.home.joinpath(*ACCEPTED).rglob("*.json")
    }
    assert len(accepted) == 2
    for part in (("--strategy", "bm25"), ("--vectors", str(missing.root / "other.npz"))):
        result = night(missing, *part)
        assert (
            stated(missing)["status"] == "provisional"
        )  # it speaks as the nights before have earned it
        assert "decides nothing for later runs" in calibrated(missing)["calibrator_reason"]
        assert "decides nothing for later runs" in result.stdout
        assert calibrated(missing)["promotion"] is None
        assert {
            path: path.read_bytes() for path in missing.home.joinpath(*ACCEPTED).rglob("*.json")
        } == accepted
    night(missing)
    assert {stated(missing, name)["status"] for name in ("bm25", "vector")} == {"provisional"}
    assert climbed(missing, "bm25") == climbed(missing, "vector") == [("absent", "provisional")]


@pytest.mark.slow
def test_a_run_killed_before_calibration_is_resumed(missing, monkeypatch):
    """A process dies between outcomes and calibration; the next run ends as if undisturbed."""
    program = (
        "import os, signal, sys\n"
        "import rag_eval.pipeline.calibration as steps\n"
        "steps.calibrate = lambda *args, **more: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from rag_eval.cli import app\n"
        "app(sys.argv[1:])\n"
    )
    import signal
    import subprocess
    import sys

    died = subprocess.run(
        [sys.executable, "-c", program, *missing.arguments("run", "tiny")],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=missing.root,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert not (missing.reports / "tiny").exists()
    assert len(outcomes_of(missing).current()) == 120
    night(missing)
    assert (
        stated(missing)["status"],
        stated(missing)["outcomes"]["added"],
        stated(missing)["outcomes"]["already_there"],
    ) == ("prior", 0, 120)
    taken_up = calibrated(missing)["calibrator"]
    assert climbed(missing) == [("absent", "provisional")]
    for path in (missing.home / "rag_eval.db", *missing.home.glob("rag_eval.db-*")):
        path.unlink(missing_ok=True)
    night(missing)
    assert calibrated(missing)["calibrator"] == taken_up
    evaluation = open_gold_set(
        missing.gold,
        Settings(home=missing.home, reports=missing.reports, gold_sets=missing.gold.parent),
    )
    assert evaluation.config.uncertainty.k == 10


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
        latency_queries=2,
    )
    known = next(
        gold_set for gold_set in known_gold_sets(settings.gold_sets) if gold_set.name == "tiny"
    )
    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(2):
            result = (
                build_definitions(settings, {})
                .resolve_job_def(JOB)
                .execute_in_process(
                    partition_key="tiny",
                    instance=instance,
                    raise_on_error=False,
                    asset_selection=known.assets,
                )
            )
            assert result.success
        told = {
            key.path[-1]: instance.get_latest_materialization_event(
                key
            ).asset_materialization.metadata
            for key in known.assets
        }
    by_job = json.loads(
        (settings.reports / "tiny" / "retrieval-metrics.json").read_text(encoding="utf-8")
    )
    by_hand = missing.report()
    assert by_job["content_hash"] == by_hand["content_hash"]
    for part in ("uncertainty", "calibration"):
        assert without(by_job[part]) == without(by_hand[part])
    assert (settings.reports / "tiny" / "uncertain-retrievals.jsonl").read_bytes() == (
        missing.reports / "tiny" / "uncertain-retrievals.jsonl"
    ).read_bytes()
    assert told["miss_rate_claims"]["stated"].records[0].data["status"] == "provisional"
    assert told["retrieval_outcomes"]["outcomes"].records[0].data["already_there"] == 120
    assert told["miss_rate_calibration"]["calibration"].records[0].data["status"] == "provisional"
    assert {
        row.data["name"] for row in told["miss_rate_calibration"]["conditions_not_met"].records
    } >= {"outcomes"}
    assert told["calibrated_miss_rates"]["observed"].records[0].data["n_scored"] == made.N
    assert {"reliability", "learning_curve"} <= set(told["miss_rate_calibration"])


def without(part, keys=("age_days", "at", "found", "measured_at", "fitted_at")):
    """Everything but the moments of the two runs."""
    if isinstance(part, dict):
        return {key: without(value, keys) for key, value in part.items() if key not in keys}
    return [without(value, keys) for value in part] if isinstance(part, list) else part


@pytest.fixture(scope="module")
def server():
    import postgres_server

    with postgres_server.running() as url:
        yield url


@pytest.mark.slow
def test_postgresql_and_sqlite_hold_the_same_outcomes(learned, server, monkeypatch):
    import postgres_server

    in_sqlite, calibrator = outcomes_of(learned).current(), calibrated(learned)["calibrator"]
    address = postgres_server.new_database(server)
    monkeypatch.setenv("RAG_EVAL_DATABASE_URL", address)
    night(learned)
    assert stated(learned)["outcomes"]["added"] == 120
    assert stated(learned)["status"] == "provisional"  # the calibrator lies in the home
    store = OutcomeStore(SqlStore(address))
    kept = [
        "outcome_id",
        "claim_id",
        "missed",
        "group_id",
        "signals",
        "gold_source",
        "inclusion_probability",
    ]
    by_name = [
        frame[kept].sort_values("outcome_id", ignore_index=True)
        for frame in (in_sqlite, store.current())
    ]
    assert by_name[0].equals(by_name[1])
    assert calibrated(learned)["calibrator"] == calibrator
    night(learned)
    assert stated(learned)["outcomes"]["added"] == 0
    assert [(change.old_status, change.new_status) for change in promotions(SqlStore(address))] == [
        ("absent", "provisional")
    ]


@pytest.mark.slow
def test_personal_data_of_questions_does_not_leave(project, monkeypatch):
    from personal_data import EVERY, N_EACH, beir, values

    folder = project.root / "people"
    monkeypatch.setenv("RAG_EVAL_CORPUS_ROOTS", json.dumps([str(folder)]))
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(
        jsonl([beir(number) for number in range(N_EACH)]), encoding="utf-8"
    )
    (folder / "queries.jsonl").write_text(
        jsonl(
            {"_id": f"q{n}", "text": f"whose are {' and '.join(values(n).values())}"}
            for n in range(N_EACH)
        ),
        encoding="utf-8",
    )
    (folder / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(N_EACH)),
        encoding="utf-8",
    )
    config = (
        f"name: tiny\nversion: 1\ncorpus: {{loader: beir, path: {folder}, chunker: {{kind: text, "
        f"max_tokens: 64}}}}\nk: [1, 5, 10]\ndepth: 20\nseeds: [13]\nnightly: false\nstrategies:\n"
    )
    (project.gold / "gold_set.yaml").write_text(
        config
        + f"  - {made.BM25}\n  - {{name: rounds, kind: iterative, base: bm25, min_recall: 1.0}}\n"
        + made.GATES,
        encoding="utf-8",
    )
    (project.gold / "queries.jsonl").write_text(
        jsonl(
            {
                "query_id": f"q{n}",
                "text": f"whose are {' and '.join(values(n).values())}",
                "answerable": True,
            }
            for n in range(N_EACH)
        ),
        encoding="utf-8",
    )
    for name in ("paraphrases.jsonl", "answers.jsonl"):
        (project.gold / name).write_text("", encoding="utf-8")
    (project.gold / "qrels.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(N_EACH)),
        encoding="utf-8",
    )
    result = night(project)
    assert any(line["query_expansions"] for line in lines(project))
    for path in (project.reports / "tiny").iterdir():
        if path.suffix in {".json", ".jsonl", ".csv", ".md", ".xml"}:
            text = re.sub(r"\s", "", path.read_text(encoding="utf-8"))
            assert [value for value in EVERY if re.sub(r"\s", "", value) in text] == [], path.name
    assert [value for value in EVERY if value in result.output] == []
    database = (project.home / "rag_eval.db").read_bytes()
    assert [value for value in EVERY if value.encode() in database] == []


@pytest.mark.slow
def test_words_of_a_megabyte_are_cut(project):
    word = "w" * 1_000_000
    (project.corpus / "long.md").write_text(
        f"# Long\n\n{word} results {word[:500_000]}\n", encoding="utf-8"
    )
    queries = [
        {"query_id": "keep", "text": f"results {'w' * 19_000}", "answerable": True},
        {"query_id": "again", "text": "How often is a failed job tried again?", "answerable": True},
    ]
    (project.gold / "queries.jsonl").write_text(jsonl(queries), encoding="utf-8")
    for name in ("paraphrases.jsonl", "answers.jsonl"):
        (project.gold / name).write_text("", encoding="utf-8")
    (project.gold / "qrels.tsv").write_text(
        "query-id\tcorpus-id\tscore\nkeep\tlong.md\t1\nagain\tretries.md\t1\n", encoding="utf-8"
    )
    config = (project.gold / "gold_set.yaml").read_text(encoding="utf-8")
    (project.gold / "gold_set.yaml").write_text(
        config.replace(
            "gates:", "  - {name: rounds, kind: iterative, base: bm25, min_recall: 1.0}\ngates:"
        ),
        encoding="utf-8",
    )
    result = night(project)
    assert any(row["doc_id"] == "long.md" for line in lines(project) for row in line["documents"])
    assert (project.reports / "tiny" / "uncertain-retrievals.jsonl").stat().st_size < 200_000
    assert len(result.output) < 50_000
    (project.gold / "queries.jsonl").write_text(
        jsonl([{**queries[0], "text": word}]), encoding="utf-8"
    )
    told = project.invoke("run", "tiny")  # a question of this length is no question
    assert (told.exit_code, "text_too_long" in told.stderr, len(told.stderr) < 2_000) == (
        1,
        True,
        True,
    )
