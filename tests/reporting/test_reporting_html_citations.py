"""The panel of citations and groundedness: outcomes, codes with what mends them, measures with their targets, and what is said where there is nothing."""

import csv
import io

import panel_reports
import pytest

from rag_eval.records.answers import OUTCOMES
from rag_eval.records.citation import CODES, FIXES
from rag_eval.reporting.html.panels import citation_words, citations


@pytest.fixture
def report():
    return panel_reports.full()


def table(panel, name):
    return next(each for each in panel.tables if each.name == name)


def rows(panel, name):
    return list(csv.DictReader(io.StringIO(table(panel, name).csv())))


def test_the_hand_made_report_is_one_that_the_schema_knows(report):
    assert panel_reports.schema_problems(report) == []
    report["answers"]["outcomes"] = 3
    assert any("$.answers" in problem for problem in panel_reports.schema_problems(report))


def test_measures_carry_interval_denominators_target_and_gate(report):
    panel, markup = panel_reports.check(citations, report)
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
    panel, markup = panel_reports.check(citations, report)
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
    assert set(citation_words.MEANINGS) == set(CODES)
    assert set(citation_words.OUTCOMES) == set(OUTCOMES)
    assert len(set(citation_words.MEANINGS.values())) == len(CODES)


def test_confidences_usage_and_faithfulness(report):
    panel, markup = panel_reports.check(citations, report)
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
    panel, markup = panel_reports.check(citations, report)
    assert "not measured: FEATURE_RAGAS_EVAL is off" in markup
    assert "none: no question is answered by a model" in markup
    assert not {"answer-usage", "contract-codes"} & {each.name for each in panel.tables}


def test_a_run_without_answers_says_so(report):
    absent = {"value": None, "reason": "the gold set configures no answers"}
    report |= {"answers": absent, "citations": absent}
    report["uncertainty"]["answers"] = absent
    panel, markup = panel_reports.check(citations, report)
    assert "the gold set configures no answers" in markup
    assert panel.tables == ()


def test_confidences_that_are_absent_have_their_reason(report):
    report["uncertainty"]["answers"] = {"value": None, "reason": "nobody asked"}
    _, markup = panel_reports.check(citations, report)
    assert 'Not stated: <bdi data-at="/uncertainty/answers/reason">nobody asked</bdi>' in markup
    report["uncertainty"]["answers"] = panel_reports.full()["uncertainty"]["answers"] | {
        "right_when_missed": None,
        "right_when_missed_reason": "too few",
    }
    _, markup = panel_reports.check(citations, report)
    assert "not available: too few" in markup


@pytest.mark.parametrize("text", panel_reports.HOSTILE)
def test_hostile_texts_are_shown_and_do_nothing(report, text):
    report["answers"]["gap"]["flagged"] = [{"query_id": text, "reason": text, "answer": text}]
    report["answers"] |= {"model": text, "codes": {text: 1}, "outcomes": {text: 1}}
    report["citations"]["codes"] = {text: 1}
    report["answers"]["faithfulness"]["failures"] = {text: 1}
    panel, _ = panel_reports.check(citations, report)
    assert rows(panel, "citation-codes")[0]["meaning"] == citation_words.UNKNOWN
    assert not rows(panel, "retrieval-gap")[0]["answer"].startswith("=")
