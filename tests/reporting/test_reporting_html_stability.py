"""The stability panel: variance, states, semantic distance, wordings and flips between them."""

import copy

from panel_pages import absent, rendered, rows, titles


def wordings(report, count, name="w"):
    for entry in report["stability"]["strategies"].values():
        share = [
            [None if one == other == 0 else abs(one - other) / count for other in range(count)]
            for one in range(count)
        ]
        entry["flip_matrix"] = {
            "wordings": [f"{name}{at}" for at in range(count)],
            "share": share,
            "n": [[60] * count for _ in range(count)],
        }
    return report


def test_everything_that_was_measured_stands_there(report):
    panel, html = rendered("stability", report)
    about = report["stability"]["strategies"]["bm25"]
    found = rows(panel, "stability-wordings")[0]
    assert found["strategy"] == "bm25"
    assert float(found["r_at_10_worst"]) == about["recall_at_10_by_wording"]["worst"]["value"]
    assert float(found["variance_query"]) == about["variance_shares"]["query"]
    assert float(rows(panel, "delta-s")[0]["delta_s_low"]) == about["delta_s"]["ci_low"]
    assert rows(panel, "delta-s")[0]["target"] == about["delta_s"]["target"]
    assert (
        int(rows(panel, "lambda-states")[0]["convergent_n"]) == about["lambda"]["convergent"]["n"]
    )
    assert [row["one"] for row in rows(panel, "flips") if row["strategy"] == "bm25"] == ["original"]
    assert {
        "Semantic distance with its zones",
        "Recall of the worst, mean and best wording",
        "Flips between wordings, bm25",
    } <= set(titles(html))
    assert about["reasons"]
    assert all(one["cause"] in html.replace("&#39;", "'") for one in about["reasons"].values())


def test_what_seeds_change_is_said(report):
    entries = report["stability"]["strategies"]
    entries["bm25"]["seeds_change_nothing"], entries["vector"]["seeds_change_nothing"] = True, False
    entries["rounds"] |= {
        "seeds_change_nothing": None,
        "seeds_change_nothing_reason": "one seed was configured",
    }
    _, html = rendered("stability", report)
    assert (
        html.index("Another seed gives the same lists")
        < html.index("The seed changes the lists of")
        < html.index("one seed was configured")
    )


def test_one_wording_has_nothing_to_flip(report):
    wordings(report, 1)
    for entry in report["stability"]["strategies"].values():
        sources = ("query", "paraphrase", "seed")
        entry["variance_shares"] = dict.fromkeys(sources) | {
            f"{name}_reason": "too few questions" for name in sources
        }
        for record in (
            *entry["hit_changes_with_wording"].values(),
            *entry["recall_at_10_by_wording"].values(),
            *(entry["rbo"], entry["convergent_and_hit"]),
        ):
            record.update(absent("no question has several wordings"))
    panel, html = rendered("stability", report)
    assert "nothing can flip" in html
    assert "no question has several wordings" in html
    assert not any(title.startswith(("Flips", "Questions whose hit")) for title in titles(html))
    assert "flips" not in {table.name for table in panel.exports}


def test_a_matrix_that_cannot_be_read_is_a_table_of_the_worst_pairs(report):
    _, html = rendered("stability", wordings(copy.deepcopy(report), 12))
    assert "Flips between wordings, bm25" in titles(html)
    panel, html = rendered("stability", wordings(report, 13))
    assert "Flips between wordings, bm25" not in titles(html)
    assert "too many wordings" in html
    found = [float(row["share"]) for row in rows(panel, "flips") if row["strategy"] == "bm25"]
    assert len(found) == 20
    assert found == sorted(found, reverse=True)
    assert found[0] == 12 / 13


def test_what_could_not_be_compared_says_why(report):
    entry = report["stability"]["strategies"]["vector"]["delta_s"]
    reason = "7 of 9 retrieved units are no chunks of this corpus"
    for record in (entry, entry["to_anchor"], entry["to_decoy"]):
        record.update(absent(reason))
    _, html = rendered("stability", report)
    assert reason in html
    assert "Semantic distance with its zones" in titles(html)


def apart(report, shared):
    """Set counts of 150 questions: 18 have a decoy but no gold, and `shared` have both."""
    for entry in report["stability"]["strategies"].values():
        about = entry["delta_s"]
        decoys = 18 + shared
        about["to_anchor"] |= {"value": 0.56, "ci_low": 0.53, "ci_high": 0.58}
        about["to_anchor"] |= {"n_attempted": 150, "n_scored": 132, "n_groups": 113}
        about["to_decoy"] |= {"value": 0.58, "ci_low": 0.48, "ci_high": 0.67}
        about["to_decoy"] |= {"n_attempted": 150, "n_scored": decoys, "n_groups": decoys}
        close = about["anchor_and_decoy_equally_close"]
        close |= absent("no question was scored") | {"n_attempted": 150}
        close |= {"value": 0.1 if shared else None, "n_scored": shared, "n_groups": shared}
    return report


def test_each_distance_stands_with_its_own_questions(report):
    panel, html = rendered("stability", apart(report, 0))
    row = rows(panel, "delta-s")[0]
    assert (row["to_anchor_n"], row["to_anchor_groups"]) == ("132", "113")
    assert (row["to_decoy_n"], row["to_decoy_groups"]) == ("18", "18")
    for key in ("to_anchor", "to_decoy"):
        assert f'data-at="/stability/strategies/bm25/delta_s/{key}/n_scored"' in html


def test_distances_of_different_questions_are_not_held_against_each_other(report):
    _, html = rendered("stability", apart(copy.deepcopy(report), 0))
    assert "share no question" in html
    assert "as close to the decoy as to the gold do not tell them apart" not in html
    _, html = rendered("stability", apart(report, 5))
    assert "share no question" not in html
    assert "as close to the decoy as to the gold do not tell them apart" in html
    assert (
        'data-at="/stability/strategies/bm25/delta_s/anchor_and_decoy_equally_close/n_scored"'
        in html
    )
