"""Miss rates of one report and of several stand in one table, as frames, files and a page."""

import copy
import io

import numpy as np
import pandas as pd
import pytest

from rag_eval.reporting.miss_rates import MissRateTables
from rag_eval.reporting.report import Report

HOSTILE = "=<script>alert(1)</script>\u202e"
KEYS = ["strategy", "target", "k"]


@pytest.fixture
def read(report):
    """Return a function that reads the report, changed for another gold set or night."""

    def read(**changed):
        values = copy.deepcopy(report)
        values["gold"]["name"] = changed.pop("gold_set", values["gold"]["name"])
        return Report.model_validate({**values, **changed})

    return read


def test_every_target_and_k_is_observed(read):
    report = read()
    table = MissRateTables([report]).figures
    assert set(table["k"]) == {*report.evaluation.k, 10}
    assert set(table["target"]) == {"miss_any", "miss_some"}
    assert len(table) == len(table.drop_duplicates(KEYS)) == 2 * table["k"].nunique() * 3
    found = table.set_index(KEYS)
    for part in report.strategies:
        for k in set(table["k"]):
            success = part.measure(f"Success@{k}", report.evaluation.level)
            row = found.loc[part.name, "miss_any", k]
            assert row["observed"] == pytest.approx(1 - success.value)
            assert row["questions"] == success.n_scored
            assert row["observed_low"] <= row["observed"] <= row["observed_high"]
            assert found.loc[part.name, "miss_some", k]["observed"] >= row["observed"]


def test_the_calibrated_target_has_its_figures_first(read):
    report = read()
    table = MissRateTables([report]).figures
    about = report.uncertainty
    is_calibrated = (table["target"] == about.target) & (table["k"] == about.k)
    assert is_calibrated.tolist() == sorted(is_calibrated, reverse=True)
    for row in table[is_calibrated].to_dict("records"):
        seen = about.strategies[row["strategy"]]
        entry = report.calibration.strategies[row["strategy"]]
        assert (row["status"], row["earned"]) == (seen.status, entry.status)
        assert row["observed"] == seen.observed[about.target].value
        assert row["stated"] == seen.stated.value
        if entry.validation:
            assert row["skill"] == entry.validation.skill.value
            assert row["auroc_high"] == entry.validation.auroc.high
        k = entry.conformal[1].k
        assert row["k_for_90"] == k or (k is None and np.isnan(row["k_for_90"]))
    others = table[~is_calibrated]
    assert others[["stated", "status"]].isna().all(axis=None)
    assert others["reason"].str.contains(f"only {about.target}@{about.k}").all()


def test_differences_are_those_of_the_observed_rates(read):
    report = read()
    tables = MissRateTables([report])
    table, differences = tables.figures, tables.differences
    observed = table.set_index(KEYS)["observed"]
    rows = differences[differences["measure"] == "observed"]
    assert len(rows) == 3 * len(table) / 3
    for row in rows.to_dict("records"):
        a, b = (observed[row[name], row["target"], row["k"]] for name in ("strategy", "against"))
        assert row["difference"] == pytest.approx(a - b)
    assert set(differences["measure"]) == {"observed", "raw", "calibrated", "brier", "skill"}


def test_holm_adjusts_over_all_rows_of_a_figure(read):
    one, two = (MissRateTables([read()] * n).differences.to_dict("records") for n in (1, 2))
    least = min(row["p"] for row in one if row["measure"] == "observed")
    n = sum(row["measure"] == "observed" and row["p"] == row["p"] for row in one)
    adjusted = [
        min(row["p_holm"] for row in rows if row["measure"] == "observed") for rows in (one, two)
    ]
    assert adjusted == pytest.approx([min(least * n, 1), min(least * 2 * n, 1)])


def test_a_single_strategy_has_no_differences(read):
    alone = read()
    named = MissRateTables([alone]).differences.columns
    about = alone.uncertainty.model_copy(update={"pairs": []})
    part = alone.calibration.model_copy(update={"comparison": None})
    tables = MissRateTables([alone.model_copy(update={"uncertainty": about, "calibration": part})])
    differences = tables.differences
    assert differences.columns.tolist() == named.tolist()
    assert differences.empty
    assert tables.files()["calibrated-miss-rate-differences.csv"].count("\n") == 1


def test_files_hold_the_frames(read, tmp_path):
    tables = MissRateTables([read()])
    assert tables.write(tmp_path / "new") == [tmp_path / "new" / name for name in tables.files()]
    for name, frame in zip(
        ("calibrated-miss-rates", "calibrated-miss-rate-differences"),
        (tables.figures, tables.differences),
        strict=True,
    ):
        back = pd.read_csv(tmp_path / "new" / f"{name}.csv")
        assert list(back) == list(frame)
        assert len(back) == len(frame)
        assert r"miss\_any" in (tmp_path / "new" / f"{name}.tex").read_text("utf-8")


def test_a_reason_from_outside_is_no_formula(report):
    report["uncertainty"]["strategies"]["bm25"]["stated"] = {"value": None, "reason": HOSTILE}
    files = MissRateTables([Report.model_validate(report)]).files()
    reasons = pd.read_csv(io.StringIO(files["calibrated-miss-rates.csv"]))["reason"].dropna()
    assert reasons.str.startswith("'=").any()
    assert not reasons.str.startswith("=").any()
