"""The miss-rate panel: status, observed and stated rates, reliability, conformal K."""

import pytest
from panel_pages import exports, rendered, rows, titles

from rag_eval.reporting.tables import panel_words

UNFITTED = {
    "validation": None,
    "heuristic_v0": None,
    "estimator": None,
    "calibrator": None,
}


def unfitted(report, status="absent"):
    for entry in report["calibration"]["strategies"].values():
        entry.update(
            UNFITTED
            | {
                f"{key}_reason": "2 distinct groups with outcomes: too few to fit a calibrator"
                for key in UNFITTED
            }
        )
        entry.update({"conformal": [], "status": status})
        entry["standing"]["status"] = status
    for entry in report["uncertainty"]["strategies"].values():
        entry |= {
            "status": status,
            "stated": {"value": None, "reason": f"the stated miss rates are {status}"},
            "reason": "no outcomes yet; 6 queries, the prior needs 50",
        }
    report["calibration"] |= {
        "comparison": None,
        "comparison_reason": "0 strategies have outcomes enough",
    }
    return report


def test_everything_that_was_calibrated_stands_there(report):
    panel, html = rendered("miss-rates", report)
    assert [row["strategy"] for row in rows(panel, "miss-rates")] == ["bm25", "vector", "rounds"]
    found, about = rows(panel, "miss-rate-quality"), report["calibration"]["strategies"]
    assert [(row["strategy"], row["predicted_by"]) for row in found][:2] == [
        ("bm25", "calibrated"),
        ("bm25", "heuristic_v0"),
    ]
    assert float(found[0]["skill"]) == about["bm25"]["validation"]["skill"]["value"]
    assert float(found[0]["ece_by_chance"]) == about["bm25"]["validation"]["ece"]["null_limit"]
    assert float(found[1]["auroc_high"]) == about["bm25"]["heuristic_v0"]["auroc"]["high"]
    assert (
        sum(title.startswith("Reliability of predicted miss rates") for title in titles(html)) == 3
    )
    assert 'class="chip provisional"' in html
    assert "Iterative retrieval" in html
    levels = [row["level"] for row in rows(panel, "conformal-k") if row["strategy"] == "bm25"]
    assert levels == ["0.8", "0.9", "0.95"]


def test_a_status_says_what_the_next_one_needs(report):
    panel, html = rendered("miss-rates", report)
    unmet = [
        one
        for one in report["calibration"]["strategies"]["bm25"]["standing"]["conditions"]
        if not one["met"]
    ]
    assert unmet
    assert rows(panel, "miss-rate-status")[0] == {
        "strategy": "bm25",
        "needed_for": unmet[0]["status"],
        "condition": panel_words()["conditions"][unmet[0]["name"]],
        "needed": unmet[0]["needed"],
        "found": unmet[0]["found"],
    }
    assert "independent groups with outcomes" in html


@pytest.mark.parametrize("status", ["absent", "stale"])
def test_nothing_is_shown_that_is_not_known(report, status):
    panel, html = rendered("miss-rates", unfitted(report, status))
    assert f'class="chip {status}"' in html
    assert html.count("too few to fit a calibrator") >= 1
    assert "0 strategies have outcomes enough" in html
    assert "miss-rates-compared" not in {table.name for table in exports(panel)}
    assert {row["skill"] for row in rows(panel, "miss-rate-quality")} == {""}
    assert titles(html) == []
    assert rows(panel, "miss-rates")[0]["stated"] == ""


def test_a_refusal_is_named(report):
    entry = report["calibration"]["strategies"]["bm25"]
    entry["refused"] = "gold comes only from this strategy <b>"
    _, html = rendered("miss-rates", report)
    assert "gold comes only from this strategy &lt;b&gt;" in html
