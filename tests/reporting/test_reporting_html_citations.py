"""The panel of citations and groundedness shows outcomes, codes with remedies, and measures.

Measures stand beside their targets, and an absent part has a text.
"""

import panel_reports
import pytest
from panel_pages import rows

from rag_eval.core.types import CODES, FIXES, OUTCOMES
from rag_eval.reporting.html.panel import panel_words


@pytest.fixture
def report():
    return panel_reports.full()


def test_measures_carry_interval_denominators_target_and_gate(report):
    panel, markup = panel_reports.check("citations", report)
    found = {row["measure"]: row for row in rows(panel, "answer-measures")}
    precision = found["citation precision"]
    assert (
        precision["value"],
        precision["value_low"],
        precision["scored"],
        precision["units"],
    ) == ("0.9", "0.4", "20", "31")
    assert (precision["target"], precision["gate"], precision["status"]) == (
        ">= 0.85",
        ">= 0.8",
        "pass",
    )
    assert (found["citation match rate"]["gate"], found["citation match rate"]["target"]) == (
        "none",
        ">= 0.95",
    )
    assert found["citation validity"]["value"] == ""
    assert "nothing was scored" in markup
    assert "failures" in found
    assert not any(
        name.startswith("failure_rate_") for name in found
    )  # those are the table of codes
    assert markup.count('<svg class="plot"') == 2


def test_codes_come_in_the_order_of_the_rules_with_what_mends_them(report):
    panel, markup = panel_reports.check("citations", report)
    found = rows(panel, "citation-codes")
    assert [(row["code"], row["n"]) for row in found] == [
        ("unknown_snippet", "4"),
        ("quote_mismatch", "2"),
        ("ok", "25"),
    ]
    assert found[0]["fix"] == FIXES["unknown_snippet"]
    assert rows(panel, "contract-codes")[0] == {
        "code": "not_json",
        "n": "2",
        "meaning": "the reply is not JSON",
        "fix": rows(panel, "contract-codes")[0]["fix"],
    }
    assert "<code>missing_score</code>" in markup  # among those that no citation has


def test_every_code_and_outcome_has_its_words():
    assert set(panel_words()["citation_codes"]) == set(CODES)
    assert set(panel_words()["outcomes"]) == set(OUTCOMES)
    assert len(set(panel_words()["citation_codes"].values())) == len(CODES)


def test_confidences_usage_and_faithfulness(report):
    panel, markup = panel_reports.check("citations", report)
    found = {row["confidence"]: row for row in rows(panel, "answer-confidence")}
    assert (
        found["right when missed"]["value"],
        found["right when missed"]["value_low"],
        found["right when missed"]["n"],
    ) == ("0.2", "0.1", "33")
    assert found["calibrated"]["value"] == ""
    assert {row["what"]: row["value"] for row in rows(panel, "answer-usage")}[
        "cost of a thousand questions without the cache"
    ] == "1.7045"
    assert "judge-2" in markup
    assert (11, "/answers/faithfulness/n_sampled") in panel_reports.figures(markup)


def test_faithfulness_that_is_off_says_why(report):
    report |= {"faithfulness": None, "faithfulness_reason": "FEATURE_RAGAS_EVAL is off"}
    report["answers"] |= {
        "faithfulness": {"value": None, "value_reason": "FEATURE_RAGAS_EVAL is off"},
        "usage": {},
        "codes": {},
        "model": None,
        "model_reason": "no question is answered by a model",
    }
    panel, markup = panel_reports.check("citations", report)
    assert "not measured: FEATURE_RAGAS_EVAL is off" in markup
    assert "none: no question is answered by a model" in markup
    assert not {"answer-usage", "contract-codes"} & {each.name for each in panel.exports}


def test_a_run_without_answers_says_so(report):
    absent = {"value": None, "reason": "the gold set configures no answers"}
    report |= {"answers": absent, "citations": absent}
    report["uncertainty"]["answers"] = absent
    panel, markup = panel_reports.check("citations", report)
    assert "the gold set configures no answers" in markup
    assert panel.exports == ()
