"""Panels of citations, trust, slices, history and cost: figures, absent parts and their reasons."""

import re

import panel_reports
import pytest
from panel_pages import at, figures, rendered, rows

from rag_eval.core import config as records
from rag_eval.core.types import CODES, FIXES, OUTCOMES
from rag_eval.pipeline.history import CODES as CHANGE_CODES
from rag_eval.reporting.html.panel import panel_words
from rag_eval.reporting.html.panels.run import split

NO_ANSWERS = {"value": None, "reason": "the gold set configures no answers"}
NO_LATENCY = {"n": 0, "p50": None, "p95": 0.0, "p99": None, "measured_at": None}


@pytest.fixture
def report():
    return panel_reports.full()


def change(report, changes):
    """Set values at JSON pointers; the reason of a null stands beside it."""
    for pointer, value in changes.items():
        parent, _, key = pointer.rpartition("/")
        place = at(report, parent)
        place[int(key) if isinstance(place, list) else key] = value


def names(panel):
    return [table.name for table in panel.exports]


def by(panel, table, key):
    return {row[key]: row for row in rows(panel, table)}


def pick(row, *keys):
    return tuple(row[key] for key in keys)


# --- Parts that are absent say why


NIGHT = "/history/runs/0/strategies/bm25"
ABSENT = {
    "faithfulness is off": (
        "citations",
        {
            "/faithfulness": None,
            "/faithfulness_reason": "FEATURE_RAGAS_EVAL is off",
            "/answers/faithfulness": {"value": None, "value_reason": "FEATURE_RAGAS_EVAL is off"},
            "/answers/usage": {},
            "/answers/codes": {},
            "/answers/model": None,
            "/answers/model_reason": "no question is answered by a model",
        },
        [
            "not measured: FEATURE_RAGAS_EVAL is off",
            "none: no question is answered by a model",
        ],
        [
            "answer-measures",
            "answer-outcomes",
            "citation-codes",
            "retrieval-gap",
            "answer-confidence",
        ],
    ),
    "no answers": (
        "citations",
        {"/answers": NO_ANSWERS, "/citations": NO_ANSWERS, "/uncertainty/answers": NO_ANSWERS},
        ["the gold set configures no answers"],
        [],
    ),
    "nobody is trusted and nothing was found": (
        "trust",
        {
            "/trust/scores": {"value": None, "reason": "nobody is trusted"},
            "/trust/filter": {"value": None, "reason": "no trust.threshold is configured"},
            "/trust/poisoning/manifest": {"value": None, "reason": "no manifest is configured"},
            "/trust/poisoning/reasons": {},
            "/trust/poisoning/quarantined": [],
            "/trust/poisoning/n_blocked": 0,
            "/trust/poisoning/quarantine": False,
            **{f"/trust/retrieved/{name}/blocked": [] for name in ("bm25", "vector", "rrf")},
            **{
                f"/trust/retrieved/{name}/avg_trust": panel_reports.estimate(None)
                for name in ("bm25", "vector", "rrf")
            },
        },
        [
            *("nobody is trusted", "no trust.threshold is configured", "no manifest is configured"),
            *("No check found a chunk", "No document is blocked"),
            "off: blocked chunks are reported",
        ],
        ["trust-retrieved", "trust-states"],
    ),
    "nothing was timed": (
        "cost",
        {
            "/strategies/0/cost_per_1k": None,
            "/strategies/0/cost_per_1k_reason": "what an external retriever costs is not known",
            **{
                f"/strategies/{place}/latency_ms": {**NO_LATENCY, "reason": "a file has no latency"}
                for place in range(3)
            },
            **{f"/strategies/{place}/ann_recall": None for place in range(3)},
            "/gates": [],
            "/cacheHitRate": None,
            "/cacheHitRate_reason": "no vectors were needed",
            "/embeddings": {"models": [], "needed": 0, "embedded": 0},
            "/answers": NO_ANSWERS,
        },
        [
            *("a file has no latency", "what an external retriever costs"),
            *("no vectors were needed", "No strategy searches approximately"),
        ],
        ["latency-cost"],
    ),
    "nobody could abstain": (
        "slices",
        {"/slices/by/0/abstention": NO_ANSWERS},
        ["nothing was scored", "the gold set configures no answers"],
        ["slices-answerability", "slices-length", "slices-tag", "slices-strategies"],
    ),
    "runs cannot be paired": (
        "history",
        {
            "/previous/deltas": None,
            "/previous/deltas_reason": "judged by different gold",
            "/previous/comparable": False,
            "/previous/reason_codes": ["gold_changed"],
            "/previous/reasons": ["the gold differs"],
        },
        ["No paired differences:", "judged by different gold", "the gold differs"],
        ["history"],
    ),
    "an old run lacks parts and another cannot be read": (
        "history",
        {
            **{f"{NIGHT}/{key}": None for key in ("recall", "skill", "status", "latency_p95_ms")},
            **{
                f"{NIGHT}/{key}_reason": "the run does not say it"
                for key in ("recall", "skill", "status", "latency_p95_ms")
            },
            "/history/runs/0/rev": None,
            "/history/runs/0/rev_reason": "likewise",
            "/history/n_left_out": 7,
            "/history/n_unreadable": 1,
            "/history/unreadable": [{"run_id": "<b>", "reason": "not a run as it was kept"}],
        },
        ["<code><bdi", "not a run as it was kept", 'data-at="/history/n_left_out"'],
        ["history", "previous-differences"],
    ),
}


@pytest.mark.parametrize("case", ABSENT)
def test_an_absent_part_says_why(report, case):
    name, changes, texts, tables = ABSENT[case]
    change(report, changes)
    panel, markup = rendered(name, report)
    assert [text for text in texts if text not in markup] == []
    assert names(panel) == tables
    if name in {"trust", "cost"}:
        assert "<svg" not in markup
    if NIGHT + "/recall" in changes:
        assert rows(panel, "history")[3]["recall"] == ""


# --- Citations and answers


def test_measures_carry_interval_denominators_target_and_gate(report):
    panel, markup = rendered("citations", report)
    found = by(panel, "answer-measures", "measure")
    precision = found["citation precision"]
    assert pick(precision, "value", "value_low", "scored", "units") == ("0.9", "0.4", "20", "31")
    assert pick(precision, "target", "gate", "status") == (">= 0.85", ">= 0.8", "pass")
    assert pick(found["citation match rate"], "gate", "target") == ("none", ">= 0.95")
    assert found["citation validity"]["value"] == ""
    assert "nothing was scored" in markup
    assert "failures" in found  # the table of codes holds the failure rates of single codes
    assert not any(name.startswith("failure_rate_") for name in found)
    assert markup.count('<svg class="plot"') == 2


def test_codes_come_in_the_order_of_the_rules_with_what_mends_them(report):
    panel, markup = rendered("citations", report)
    codes = rows(panel, "citation-codes")
    assert [pick(row, "code", "n") for row in codes] == [
        ("unknown_snippet", "4"),
        ("quote_mismatch", "2"),
        ("ok", "25"),
    ]
    assert codes[0]["fix"] == FIXES["unknown_snippet"]
    contract = rows(panel, "contract-codes")[0]
    meaning = "the reply is not exactly one JSON value"
    assert pick(contract, "code", "n", "meaning") == ("not_json", "2", meaning)
    assert "<code>missing_score</code>" in markup  # listed among the codes that no citation has


def test_every_code_outcome_state_and_check_has_its_words():
    words = panel_words()
    assert set(words["citation_codes"]) == set(CODES)
    assert set(words["outcomes"]) == set(OUTCOMES)
    assert len(set(words["citation_codes"].values())) == len(CODES)
    known = {
        "domain_state": records.DomainState,
        "signature_state": records.SignatureState,
        "author_state": records.AuthorState,
        "freshness_state": records.FreshnessState,
    }
    assert set(words["trust_factors"]) == set(known)
    for factor, states in known.items():
        assert set(words["trust_states"][factor]) == set(states.__args__)
    assert set(records.CHECKS) < set(words["trust_checks"])
    assert all(code.endswith("_changed") for code in CHANGE_CODES)


def test_confidences_usage_and_faithfulness(report):
    panel, markup = rendered("citations", report)
    found = by(panel, "answer-confidence", "confidence")
    assert pick(found["right when missed"], "value", "value_low", "n") == ("0.2", "0.1", "33")
    assert found["calibrated"]["value"] == ""
    usage = by(panel, "answer-usage", "what")
    assert usage["cost of a thousand questions without the cache"]["value"] == "1.7045"
    assert "judge-2" in markup
    assert (11, "/answers/faithfulness/n_sampled") in figures(markup)


# --- Trust


def test_trust_tables_and_pictures(report):
    panel, markup = rendered("trust", report)
    assert set(names(panel)) == {
        *("trust-retrieved", "trust-states", "trust-reasons"),
        *("quarantined", "blocked-retrieved", "trust-filter"),
    }
    assert markup.count('<svg class="plot"') == 2
    assert rows(panel, "trust-retrieved")[0] == {
        "strategy": "bm25",
        "trust": "0.62",
        "trust_low": "0.4",
        "trust_high": "0.6",
        "n": "20",
        "groups": "17",
        "retrieved": "440",
        "blocked": "4",
        "warned": "7",
        "dropped": "1",
    }
    assert rows(panel, "trust-filter")[1]["delta"] == "-0.02"
    assert rows(panel, "blocked-retrieved")[0]["rank"] == "3"
    assert [row["code"] for row in rows(panel, "trust-reasons")] == [
        "topic_shift.inside_document",
        "pattern.reply_instruction",
    ]  # the most frequent reason first
    assert {place for _, place in figures(markup)} >= {
        "/trust/poisoning/manifest/n_changed",
        "/trust/poisoning/at_retrieval/n_blocked_pairs",
        "/trust/filter/n_below",
        "/trust/scores/mean",
    }


# --- Slices


def test_each_kind_of_slice_has_its_picture_and_its_table(report):
    panel, markup = rendered("slices", report)
    assert markup.count('<svg class="plot"') == 6
    assert rows(panel, "slices-tag")[0] == {
        "slice": "io",
        "questions": "10",
        "groups": "7",
        "about": "questions of io",
        "value": "0.4",
        "value_low": "0.2",
        "value_high": "0.65",
        "scored": "8",
        "miss": "0.4",
        "miss_low": "0.2",
        "miss_high": "0.65",
        "miss_scored": "8",
    }
    assert pick(rows(panel, "slices-answerability")[1], "value", "abstained") == ("", "0.3")
    assert len(rows(panel, "slices-strategies")) == 15
    assert "some slices differ by chance" in markup


# --- History


def test_runs_gates_and_differences(report):
    panel, markup = rendered("history", report)
    assert markup.count('<svg class="plot"') == 5
    found = rows(panel, "history")
    assert [row["run"][:8] for row in found] == ["20260104", "20260103", "20260102", "20260101"]
    comparable = ["comparable", "not comparable", "not comparable", "first"]
    assert [row["comparable"] for row in found] == comparable
    assert pick(found[0], "recall", "recall_low", "scored") == ("0.53", "0.4", "20")
    assert pick(found[0], "status", "failed") == ("provisional", "1")
    assert rows(panel, "previous-differences")[0]["delta"] == "0.02"
    assert '<span class="chip pass">comparable</span>' in markup


def test_breaks_are_named_in_every_picture(report):
    _, markup = rendered("history", report)
    pictures = re.findall(r'<svg class="plot".*?</svg>', markup, re.DOTALL)
    drawn = [picture for picture in pictures if "history-previous-title" not in picture]
    assert len(drawn) == 4
    assert all(">1</text>" in picture and ">2</text>" in picture for picture in drawn)
    captions = re.findall(r"Changed: ([^<]*)", markup)
    assert len(captions) == 4
    assert {"index, gold", "code"} == {part[2:] for part in captions[0].rstrip(".").split("; ")}


def test_a_line_does_not_go_through_a_break():
    assert split([0, 1, 2, 3], [2]) == [[0, 1], [2, 3]]
    assert split([0, 2, 3], []) == [[0], [2, 3]]
    assert split([], []) == []


def test_one_run_begins_the_history():
    report = panel_reports.full(nights=1)
    report |= {"previous": None, "previous_reason": "no run of this gold set is kept from before"}
    panel, markup = rendered("history", report)
    assert "History begins with this run" in markup
    assert "no run of this gold set is kept from before" in markup
    assert "<svg" not in markup
    assert names(panel) == ["history"]


# --- Cost


def test_latency_cost_gates_and_approximate_search(report):
    panel, markup = rendered("cost", report)
    first, second, _ = rows(panel, "latency-cost")
    assert first == {
        "strategy": "bm25",
        "n": "60",
        "cost_per_1k": "0.0",
        "run": "reused",
        "p50_ms": "1.25",
        "p95_ms": "3.75",
        "p99_ms": "6.25",
        "measured_at": "2026-01-02T03:04:05Z",
    }
    assert pick(second, "cost_per_1k", "run") == ("0.0125", "new")
    assert rows(panel, "cost-gates") == [
        {
            "gate": "acceptance.latency_p95_ms",
            "value": "3.75",
            "accepted": "<= 3",
            "status": "fail",
            "reason_code": "value_not_met",
        }
    ]
    assert [row["value"] for row in rows(panel, "approximate-search")] == ["0.97", "0.97"]
    assert markup.count('<svg class="plot"') == 1
    places = {place for _, place in figures(markup)}
    assert {"/cacheHitRate", "/embeddings/needed", "/answers/usage/cost_per_1k"} < places
