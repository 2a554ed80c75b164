"""The panel of trust and poisoning: histogram, states, strategies, blocked documents and cost."""

import panel_reports
import pytest
from panel_pages import rows

from rag_eval.core import config as records
from rag_eval.reporting.html.panel import panel_words


@pytest.fixture
def report():
    return panel_reports.full()


def test_everything_is_there(report):
    panel, markup = panel_reports.check("trust", report)
    assert {each.name for each in panel.exports} == {
        "trust-retrieved",
        "trust-states",
        "trust-reasons",
        "quarantined",
        "blocked-retrieved",
        "trust-filter",
    }
    assert markup.count('<svg class="plot"') == 3
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
    ]  # the most first
    for place in (
        "/trust/poisoning/manifest/n_changed",
        "/trust/poisoning/at_retrieval/n_blocked_pairs",
        "/trust/filter/n_below",
        "/trust/scores/mean",
    ):
        assert place in {each for _, each in panel_reports.figures(markup)}


def test_every_state_and_check_has_its_words():
    known = {
        "domain_state": records.DomainState,
        "signature_state": records.SignatureState,
        "author_state": records.AuthorState,
        "freshness_state": records.FreshnessState,
    }
    assert set(panel_words()["trust_factors"]) == set(known)
    assert {
        (factor, state)
        for factor, words in panel_words()["trust_states"].items()
        for state in words
    } == {(name, state) for name, states in known.items() for state in states.__args__}
    assert set(records.CHECKS) < set(panel_words()["trust_checks"])


def test_nothing_configured_and_nothing_found(report):
    report["trust"]["scores"] = {"value": None, "reason": "nobody is trusted"}
    report["trust"]["filter"] = {"value": None, "reason": "no trust.threshold is configured"}
    report["trust"]["poisoning"] |= {
        "manifest": {"value": None, "reason": "no trust.manifest is configured"},
        "reasons": {},
        "quarantined": [],
        "n_blocked": 0,
        "quarantine": False,
    }
    for found in report["trust"]["retrieved"].values():
        found |= {"blocked": [], "avg_trust": panel_reports.estimate(None)}
    panel, markup = panel_reports.check("trust", report)
    for reason in (
        "nobody is trusted",
        "no trust.threshold is configured",
        "no trust.manifest is configured",
        "No check found anything",
        "No document is blocked",
        "off: blocked chunks are reported",
    ):
        assert reason in markup
    assert {each.name for each in panel.exports} == {"trust-retrieved", "trust-states"}
    assert "<svg" not in markup


def test_a_filter_that_changes_nothing_is_drawn(report):
    for row in report["trust"]["filter"]["rows"]:
        row |= {"delta": 0.0, "ci_low": 0.0, "ci_high": 0.0, "minimum_detectable": None}
    _, markup = panel_reports.check("trust", report)
    assert 'aria-labelledby="trust-filter-title' in markup
