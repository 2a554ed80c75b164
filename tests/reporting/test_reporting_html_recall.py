"""The recall panel: curves at three levels, missing measurements, and overlap of strategies."""

from panel_pages import absent, only, rendered, rows, titles

CURVES = {"Recall@K at document level", "Recall@K at section level", "Recall@K at span level"}


def measured(report, name, label, level):
    entry = next(entry for entry in report["strategies"] if entry["name"] == name)
    return next(
        record
        for record in entry["measures"]
        if record["label"] == label and record["level"] == level
    )


def test_every_level_has_its_curve_and_its_rows(report):
    panel, html = rendered("recall", report)
    there = {
        f"Recall@K at {record['level']} level"
        for entry in report["strategies"]
        for record in entry["measures"]
        if record["label"] == "R@1" and record["value"] is not None
    }
    assert there == CURVES & set(titles(html))
    assert there
    found = next(
        row
        for row in rows(panel, "recall")
        if row["strategy"] == "vector" and row["level"] == "document"
    )
    record = measured(report, "vector", "R@5", "document")
    assert [float(found[key]) for key in ("r_at_5", "r_at_5_low", "r_at_5_high")] == [
        record["value"],
        record["ci_low"],
        record["ci_high"],
    ]
    assert int(found["questions"]) == record["n_scored"]


def test_a_level_that_could_not_be_measured_says_why(report):
    for entry in report["strategies"]:
        if entry["name"] == "vector":
            for record in entry["measures"]:
                if record["level"] == "section":
                    record.update(
                        absent("the source names no section for 9 of 9 retrieved units <b>")
                    )
            entry["measures"] = [
                record for record in entry["measures"] if record["level"] != "span"
            ]
    _, html = rendered("recall", report)
    assert "section level: " in html
    assert "9 of 9 retrieved units &lt;b&gt;" in html
    assert "this strategy was not measured at this level" in html


def test_no_recall_at_all_is_said(report):
    for entry in report["strategies"]:
        for record in entry["measures"]:
            record.update(absent("no question was scored"))
    _, html = rendered("recall", report)
    assert "No recall was measured at any level" in html
    assert not CURVES & set(titles(html))


def test_overlap_says_what_each_pair_finds(report):
    panel, html = rendered("recall", report)
    pair, row = report["overlap"]["pairs"][0], rows(panel, "overlap")[0]
    assert [row[key] for key in ("a", "b", "both", "only_a", "only_b", "neither", "questions")] == [
        pair["a"],
        pair["b"],
        *(str(pair[key]) for key in ("both", "only_a", "only_b", "neither", "n")),
    ]
    assert row["overlap"] == str(pair["overlap"]["value"])
    assert "What two strategies find" in titles(html)


def test_overlap_that_is_not_there(report):
    _, html = rendered("recall", only(report, "vector"))
    assert "one strategy has no other" in html
    report["overlap"] = None
    report["overlap_reason"] = "the lists are gone"
    _, html = rendered("recall", report)
    assert "the lists are gone" in html
    del report["overlap"], report["overlap_reason"]
    _, html = rendered("recall", report)
    assert "Overlap between strategies" not in html
