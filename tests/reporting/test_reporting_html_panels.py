"""Panels show the figures of the report; an absent part gives its reason."""

import copy
import re
from typing import get_args

import panel_reports
import pytest
from panel_pages import (
    HIDDEN,
    HOSTILE,
    absent,
    at,
    exports,
    figures,
    renamed,
    rendered,
    rows,
    titles,
)

from rag_eval.core import config as records
from rag_eval.core.types import CODES, OUTCOMES
from rag_eval.gates.gate import ChangeCode
from rag_eval.reporting.tables import panel_words

NO_ANSWERS = {"value": None, "reason": "the gold set configures no answers"}


@pytest.fixture
def made():
    """Return the report that is written by hand; `report` is the one of a run."""
    return panel_reports.full()


def change(report, changes):
    """Set values at JSON pointers; the reason of a null stands beside it."""
    for pointer, value in changes.items():
        parent, _, key = pointer.rpartition("/")
        place = at(report, parent)
        place[int(key) if isinstance(place, list) else key] = value


def names(panel):
    return [table.name for table in exports(panel)]


def by(panel, table, key):
    return {row[key]: row for row in rows(panel, table)}


def pick(row, *keys):
    return tuple(row[key] for key in keys)


# --- Parts that are absent say why


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
            "not available: FEATURE_RAGAS_EVAL is off",
            "not available: no question is answered by a model",
        ],
        [
            "answer-measures",
            "answer-outcomes",
            "citation-codes",
            "unsupported",
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
            "/trust/poisoning/quarantine": "none",
            **{f"/trust/retrieved/{name}/blocked": [] for name in ("bm25", "vector", "rrf")},
            **{
                f"/trust/retrieved/{name}/avg_trust": panel_reports.estimate(None)
                for name in ("bm25", "vector", "rrf")
            },
        },
        [
            *("nobody is trusted", "no trust.threshold is configured", "no manifest is configured"),
            *("No check found a chunk", "No document is blocked"),
            "chunks are only reported, and stay in",
        ],
        ["trust-retrieved", "trust-states"],
    ),
}


@pytest.mark.parametrize("case", ABSENT)
def test_an_absent_part_says_why(made, case):
    name, changes, texts, tables = ABSENT[case]
    change(made, changes)
    panel, markup = rendered(name, made)
    assert [text for text in texts if text not in markup] == []
    assert names(panel) == tables


# --- Citations and answers


def test_measures_carry_interval_denominators_target_and_gate(made):
    panel, markup = rendered("citations", made)
    found = by(panel, "answer-measures", "measure")
    precision = found["citation precision"]
    assert pick(precision, "value", "value_low", "scored", "units") == ("0.9", "0.4", "20", "31")
    assert pick(precision, "target", "gate", "status") == (">= 0.85", ">= 0.8", "pass")
    assert pick(found["citation match rate"], "gate", "target") == ("none", ">= 0.95")
    assert found["citation validity"]["value"] == ""
    assert "nothing was scored" in markup
    assert "failures" in found  # the table of codes holds the failure rates of single codes
    assert not any(name.startswith("failure_rate_") for name in found)


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
    assert all(code.endswith("_changed") for code in get_args(ChangeCode))


def test_confidences_usage_and_faithfulness(made):
    panel, markup = rendered("citations", made)
    found = by(panel, "answer-confidence", "confidence")
    assert pick(found["right when missed"], "mean", "mean_low", "mean_n") == ("0.2", "0.1", "33")
    assert found["calibrated"]["mean"] == ""
    usage = by(panel, "answer-usage", "setting")
    assert usage["answers.usage.cost_per_1k"]["value"] == "1.7045"
    assert "judge-2" in markup
    assert (11, "/answers/faithfulness/n_sampled") in figures(markup)


# --- Trust


def test_trust_tables(made):
    panel, markup = rendered("trust", made)
    assert set(names(panel)) == {
        *("trust-retrieved", "trust-states", "trust-reasons"),
        *("quarantined", "blocked-retrieved", "trust-filter"),
    }
    assert rows(panel, "trust-filter")[1]["difference"] == "-0.02"
    assert rows(panel, "blocked-retrieved")[0]["rank"] == "3"
    assert [row["code"] for row in rows(panel, "trust-reasons")] == [
        "topic_shift.inside_document",
        "pattern.reply.your_reply",
    ]  # the most frequent reason first
    assert {place for _, place in figures(markup)} >= {
        "/trust/poisoning/manifest/n_changed",
        "/trust/filter/n_below",
        "/trust/scores/mean",
    }


# --- Recall


def test_a_level_that_was_not_measured_says_why(report):
    reason = "the source names no section for 9 of 9 retrieved units <b>"
    for entry in report["strategies"]:
        for record in entry["measures"]:
            if record["level"] == "section":
                record.update(absent(reason))
    _, html = rendered("measures", report)
    assert "9 of 9 retrieved units &lt;b&gt;" in html
    assert "Recall@K at section level" not in titles(html)


# --- Verdict

GATE = {
    "id": "recall",
    "required": True,
    "severity": "block",
    "status": "pass",
    "reason_code": "ok",
    "evidence": {"accepted": "at least 0.5", "value": 0.6},
}
REGRESSION = {
    "accepted": "relative drop < 0.05",
    "measure": "mrr",
    "baseline_run": "20260101T000000000Z-00000000",
    "relative_drop": 0.0442,
    "value": -0.019,
    "ci_low": -0.045,
    "ci_high": 0.004,
    "n_effective": 113,
    "different": ["the index differs of bm25"],
}


def card(markup, name):
    return next(part for part in re.findall(r"<li>(.*?)</li>", markup, re.DOTALL) if name in part)


def test_a_verdict_counts_gates_and_passes_only_required_ones(report):
    report["gates"] = [copy.deepcopy(GATE)]
    assert '<div class="verdict"><strong>required 1 of 1 met</strong>' in verdict(report)
    report["gates"].append({**GATE, "required": False, "status": "fail"})
    counts = "required 1 of 1 met, advisory 0 of 1 met"
    assert f'<div class="verdict none"><strong>{counts}</strong>' in verdict(report)
    report["gates"][0]["required"] = False
    assert '<div class="verdict none"><strong>No verdict' in verdict(report)
    assert "requires no gate" in verdict(report)
    report["gates"] = [{**GATE, "status": "insufficient_evidence"}]
    counts = "required 0 of 1 met (1 without enough evidence)"
    assert f"<strong>Fails: {counts}</strong>" in verdict(report)


def verdict(report):
    return rendered("verdict", report)[1]


def test_cards_hold_interval_and_denominator(report):
    measures = [one["name"] for one in report["answers"]["measures"]]
    place = {
        "groundedness of answers": f"/answers/measures/{measures.index('groundedness')}",
        "average trust": f"/trust/retrieved/{report['strategy']}/avg_trust",
    }
    for name, pointer in place.items():
        if at(report, pointer)["value"] is not None:
            for key in ("value", "ci_low", "ci_high", "n_scored", "n_effective"):
                assert f'data-at="{pointer}/{key}"' in card(verdict(report), name), key
    names = [one["name"] for one in report["citations"]["measures"]]
    place = names.index("citation_precision")
    known = {"value": 0.25, "ci_low": 0.1, "ci_high": 0.5, "n_units": 8, "reason": None}
    report["citations"]["measures"][place] |= known
    pointer = f"/citations/measures/{place}"
    assert f'data-at="{pointer}/value"' in card(verdict(report), "citations right")
    reason = "the gold set configures no answers"
    report["answers"] = report["citations"] = {"value": None, "reason": reason}
    report |= {"groundedness": None, "groundedness_reason": reason}
    assert reason in card(verdict(report), "groundedness")


def test_the_verdict_says_what_changed_and_where_it_fails(made, report):
    name, lost = report["strategy"], {"fusion": 2, "cutoff": 5}
    report["previous"] = made["previous"] | {
        "deltas": [made["previous"]["deltas"][0] | {"strategy": name}]
    }
    report["misses"] = {name: {"n_judged": 20, "n_failed": 0, "n_missed": 7, "lost": lost}}
    found = {"strategy": name, "n_found": 0, "n_runs": 4}
    question = {"query_id": "a b", "text": "why?", "primary": found, "other": None}
    report["look_first"] = [
        {**question, "miss_rate": 0.4, "status": "prior", "lost": "No list had it."}
    ]
    panel, markup = rendered("verdict", report)
    assert 'data-at="/previous/deltas/0/n_better"' in card(markup, "since the last run")
    assert "</code>: comparable" in markup
    assert rows(panel, "previous-differences")[0]["difference"] == "0.02"
    assert re.search(r">5</data> ranked below 10, .*>2</data> lost by fusion", markup)
    assert 'href="#explorer?open=a%20b"' in markup
    assert "No list had it." in card(markup, "why?")


def test_a_drop_stands_beside_the_drop_that_is_accepted(report):
    report["gates"] = [{**GATE, "evidence": REGRESSION}]
    panel, markup = rendered("verdict", report)
    (row,) = rows(panel, "gates")
    found = pick(row, "found", "found_low", "found_high", "relative_drop", "accepted")
    assert found == ("-0.019", "-0.045", "0.004", "0.0442", "relative drop < 0.05")
    assert "+0.004" in markup
    places = ("baseline_run", "different/0")
    assert all(f'data-at="/gates/0/evidence/{place}"' in markup for place in places)


# --- Texts of strangers


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_data(report, name):
    report = renamed(report, "bm25", name)
    found = {panel: rendered(panel, report)[0] for panel in ("miss-rates", "measures", "stability")}
    for table in ("miss-rates", "measures"):
        assert rows(found[table], table)[0]["strategy"].lstrip("'") == name


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_data(report, text):
    report["answers"]["gap"]["flagged"] = [{"query_id": text, "reason": text, "answer": text}]
    report["answers"] |= {"model": text, "codes": {text: 1}, "outcomes": {text: 1}}
    report["citations"]["codes"] = {text: 1}
    report["trust"]["notes"] = [text]
    report["trust"]["poisoning"] |= {"reasons": {text: 1}, "rules_version": text}
    for part in report["slices"]["by"]:
        part["tag"] = text
    for panel in ("citations", "trust", "slices"):
        rendered(panel, report)


def test_invisible_characters_are_written_out(report):
    report["calibration"]["strategies"]["bm25"]["refused"] = HIDDEN
    html = rendered("miss-rates", report)[1]
    assert "a[U+202E]b[U+0000]c" in html
    assert "\u202e" not in html
