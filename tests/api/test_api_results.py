"""Results carry the figures of the measures, with denominators, and are drawn and written."""

import sys

import numpy as np
import pandas as pd
import pytest

import rag_eval
from rag_eval.core.errors import InputError
from rag_eval.measures.intervals import holm, paired_comparison
from rag_eval.measures.overlap import SharedGold, mean_interval

N = 60
QRELS = {f"q{i}": {f"d{i // 2}": 1} for i in range(N)}
"""Two questions share each document."""
GOLD = SharedGold.of_groups(np.arange(N) // 2)


def make_run(every: int) -> dict[str, dict[str, float]]:
    """Find the document of every n-th question."""
    return {
        query: {document if i % every == 0 else "other": 1.0 for document in documents}
        for i, (query, documents) in enumerate(QRELS.items())
    }


RUNS = {"a_1": make_run(3), "<b>": make_run(2), "c": make_run(1)}


def test_one_run_has_a_row_for_each_measure():
    run = {**RUNS["<b>"], "unknown": {"d": 1.0}}
    del run["q1"]
    result = rag_eval.evaluate(run, QRELS, ["R@10", "RR"])
    row = result.table.loc["R@10"]
    values = result.per_query["R@10"].to_numpy()
    expected = np.concatenate(mean_interval(values, GOLD))
    assert row[["value", "ci_low", "ci_high", "effective_questions"]].tolist() == pytest.approx(
        expected
    )
    counts = "questions missing without_relevant unjudged wordings".split()
    assert row[counts].tolist() == [N, 1, 0, 1, N]
    assert result.per_query.loc[1, ["query_id", "group_id", "R@10"]].tolist() == ["q1", "q0", 0.0]


def test_wordings_are_averaged_inside_their_question():
    wordings = {f"{query}-{i}": query for query in QRELS for i in range(2)}
    run = {f"{query}-0": documents for query, documents in RUNS["c"].items()}
    result = rag_eval.evaluate(run, QRELS, "R@10", wordings=wordings)
    row = result.table.loc["R@10"]
    assert (row["value"], row["questions"], row["wordings"], row["missing"]) == (0.5, N, 2 * N, N)
    assert set(result.per_query["n_wordings"]) == {2}


def test_pairs_are_compared_on_the_same_questions_with_holm():
    found = rag_eval.compare(RUNS, QRELS, ["R@10", "RR"])
    table = found.table
    pairs = [("<b>", "a_1"), ("c", "a_1"), ("c", "<b>")]
    assert table.index.tolist() == [(*pair, label) for pair in pairs for label in ("R@10", "RR")]
    for label in ("R@10", "RR"):
        rows = table.xs(label, level="measure")
        assert rows["p_holm"].tolist() == holm(rows["p"]).tolist()
    assert "Holm over 3 comparisons, each measure by itself" in repr(found)
    values = {
        name: np.array([run[q].keys() == QRELS[q].keys() for q in QRELS], dtype=float)
        for name, run in RUNS.items()
    }
    expected = paired_comparison(values["c"], values["a_1"], GOLD)
    row = table.loc[("c", "a_1", "R@10")]
    figures = row[["difference", "ci_low", "ci_high", "p", "smallest_detectable", "better"]]
    names = "delta ci_low ci_high p minimum_detectable n_better".split()
    assert figures.tolist() == pytest.approx([getattr(expected, name)[0] for name in names])
    differing = found.per_query.query("difference != 0 and against == 'a_1' and measure == 'RR'")
    assert len(differing[differing["strategy"] == "c"]) == row["better"] == 2 * N / 3


def test_a_baseline_limits_the_comparisons_and_their_family():
    labels = ["R@10", "RR", "nDCG@10"]
    everything = rag_eval.compare(RUNS, QRELS, labels).table
    found = rag_eval.compare(RUNS, QRELS, labels, against="<b>")
    assert found.table.index.unique("strategy").tolist() == ["a_1", "c"]
    assert set(found.table.index.get_level_values("against")) == {"<b>"}
    assert set(found.per_query["against"]) == {"<b>"}
    for label in labels:
        rows = found.table.xs(label, level="measure")
        assert rows["p_holm"].tolist() == holm(rows["p"]).tolist()
    same = [("c", "<b>", label) for label in labels]
    assert found.table.loc[same, "p"].tolist() == everything.loc[same, "p"].tolist()
    # Two comparisons share one family, in place of three measures of three pairs.
    assert found.table.loc[("a_1", "<b>", "RR"), "p_holm"] < 2.1 * found.table["p"].max()
    assert "Holm over 2 comparisons with &lt;b&gt;" in found._repr_html_()


def test_without_intervals_the_table_keeps_values_and_denominators():
    whole = rag_eval.evaluate(RUNS, QRELS)
    plain = rag_eval.evaluate(RUNS, QRELS, intervals=False)
    absent = ["ci_low", "ci_high", "effective_questions"]
    pd.testing.assert_frame_equal(plain.table, whole.table.drop(columns=absent))
    assert "c & 1.000 (no interval)" in plain.to_latex()
    assert plain.plot().get_supxlabel() == "value, no interval (60 questions)"


CALLS = {
    "an unknown baseline": (
        lambda: rag_eval.compare(RUNS, QRELS, against="bm25"),
        r"\[against\]: no run has this name .*found: bm25; accepted: a_1, <b>, c",
    ),
    "a single run": (lambda: rag_eval.compare({"a": RUNS["c"]}, QRELS), "at least two named runs"),
    "an unknown measure": (lambda: rag_eval.evaluate(RUNS, QRELS, ["R"]), "no such ranking meas"),
    "a double": (lambda: rag_eval.evaluate(RUNS, QRELS, ["RR", "RR"]), "has a double"),
    "no measure": (lambda: rag_eval.evaluate(RUNS, QRELS, []), "list of measures is empty"),
    "a bad run": (lambda: rag_eval.evaluate({"a": 5}, QRELS), r"bad_form \[a\]: this is no run"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_makes_no_sense_is_refused(call):
    made, message = CALLS[call]
    with pytest.raises(InputError, match=message):
        made()


def test_latex_has_a_row_for_each_strategy_and_escapes_names():
    text = rag_eval.evaluate(RUNS, QRELS).to_latex()
    assert r"a\_1 & 0.333 [0." in text
    assert "strategy & nDCG@10 & R@10" in text
    assert r"& 0.167 [" in rag_eval.compare(RUNS, QRELS).to_latex()
    assert r"run & 1.000 [" in rag_eval.evaluate(RUNS["c"], QRELS).to_latex()


def test_a_single_group_has_no_interval():
    result = rag_eval.evaluate({"q": {"d": 1.0}}, {"q": {"d": 1}}, "R@10")
    assert "run & 1.000 (no interval)" in result.to_latex()
    assert np.isnan(result.table.loc["R@10", "ci_low"])
    assert result.plot()._repr_png_().startswith(b"\x89PNG")


def test_charts_show_in_notebooks_without_pyplot():
    drawn = rag_eval.evaluate(RUNS, QRELS).plot(), rag_eval.compare(RUNS, QRELS).plot()
    for chart in drawn:
        assert chart._repr_png_().startswith(b"\x89PNG")
        assert [panel.get_title() for panel in chart.axes] == ["nDCG@10", "R@10"]
    labels = [text.get_text() for text in drawn[0].axes[0].get_yticklabels()]
    assert labels == list(RUNS)
    assert "60 questions" in drawn[0].get_supxlabel()
    assert "matplotlib.pyplot" not in sys.modules


def test_results_show_in_notebooks_with_escaped_names():
    for result in (rag_eval.evaluate(RUNS, QRELS), rag_eval.compare(RUNS, QRELS)):
        assert "&lt;b&gt;" in result._repr_html_()
        assert "<b>" not in result._repr_html_()
        assert "nDCG@10" in repr(result)
