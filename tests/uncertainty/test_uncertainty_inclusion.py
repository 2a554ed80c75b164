"""Outcomes of several draws stand for all claims together: a claim that was there for many draws counts no more than one that came late."""

import datetime as dt
import json

import numpy as np
import pandas as pd
import pytest
from cli_project import jsonl

from rag_eval.storage.sql import SqlStore
from rag_eval.uncertainty.audits import AuditStore
from rag_eval.uncertainty.claims import ClaimStore, read_claims
from rag_eval.uncertainty.inclusion import chances
from rag_eval.uncertainty.outcome_lines import read_outcomes
from rag_eval.uncertainty.outcome_rows import of_frame
from rag_eval.uncertainty.outcome_use import fit_rows
from rag_eval.uncertainty.outcomes import OutcomeStore
from rag_eval.uncertainty.sampling import sample

NOW = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)


class Traffic:
    """A store with claims of months, whose questions begin with `m` and the month."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.sql = SqlStore(folder / "store.db")
        self.claims, self.audits, self.outcomes = (
            ClaimStore(self.sql),
            AuditStore(self.sql),
            OutcomeStore(self.sql),
        )
        self.missed, self.draws = {}, 0

    def arrive(self, month, n, rate, *, fingerprint="f1", risk=None):
        rows = [
            {
                "query": f"m{month} question {number}",
                "retrieved": [{"id": "d1", "score": 1.0}],
                "miss_rate": None if risk is None else risk(number),
            }
            for number in range(n)
        ]
        self.missed |= {row["query"]: number < rate * n for number, row in enumerate(rows)}
        path = self.folder / f"traffic-{month}-{fingerprint}.jsonl"
        path.write_text(jsonl(rows), encoding="utf-8")
        self.claims.add(
            *read_claims(path, strategy="bm25", fingerprint=fingerprint, now=NOW), now=NOW
        )

    def draw(self, n, seed=0, **more):
        self.draws += 1
        path = self.folder / f"audit-{self.draws}.jsonl"
        self.audits.draw(
            n, seed=seed, depth=10, path=path, now=NOW, **{"fingerprint": "f1", **more}
        )
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def judge(self, rows):
        path = self.folder / "judged.jsonl"
        path.write_text(
            jsonl(
                {**row, "missed": self.missed[row["query"]], "gold_source": "human"} for row in rows
            ),
            encoding="utf-8",
        )
        self.outcomes.record(read_outcomes(path, self.claims, self.audits, now=NOW).outcomes)

    def probability(self):
        """Of each month, the probabilities of its judged claims."""
        month = {claim["claim_id"]: claim["query"][:2] for claim in self.claims.claims()}
        frame = self.outcomes.current()
        return {
            name: sorted(set(part["inclusion_probability"].round(12)))
            for name, part in frame.groupby(frame["claim_id"].map(month))
        }


def _risks(traffic):
    return pd.DataFrame(
        [
            {"claim_id": claim["claim_id"], "miss_rate": claim["miss_rate"]}
            for claim in traffic.claims.claims()
        ]
    )


@pytest.fixture
def traffic(tmp_path):
    return Traffic(tmp_path)


@pytest.mark.parametrize(
    "months", [(0.3,), (0.1, 0.1, 0.6)], ids=["one draw", "claims arrive between draws"]
)
def test_the_weighted_miss_rate_is_that_of_all_claims(tmp_path, months):
    rates, totals, n = [], [], 40
    for seed in range(30):
        traffic = Traffic(tmp_path / str(seed))
        for month, rate in enumerate(months):
            traffic.arrive(month, n, rate)
            traffic.judge(traffic.draw(20, seed=seed * len(months) + month))
        rows = fit_rows(traffic.outcomes.current())
        rates.append(np.average(rows["missed"], weights=rows["weight"]))
        totals.append(rows["weight"].sum())
    for found, true in ((rates, np.mean(months)), (totals, n * len(months))):
        error = np.std(found, ddof=1) / len(found) ** 0.5
        assert (
            abs(np.mean(found) - true) <= 3 * error + 1e-9
        )  # the total of one draw does not vary at all
    assert np.std(rates) > 0


def test_a_claim_that_several_draws_could_take_has_the_chance_of_any(traffic):
    traffic.arrive(0, 40, 0.5)
    traffic.judge(traffic.draw(10))
    assert traffic.probability() == {"m0": [0.25]}
    traffic.arrive(1, 30, 0.5)
    traffic.judge(
        traffic.draw(20)
    )  # of the 30 that are left of the first month, and the 30 of the second
    assert traffic.probability() == {"m0": [0.5], "m1": [pytest.approx(1 / 3, abs=1e-11)]}
    traffic.judge(traffic.draw(100))  # all that is left
    assert traffic.probability() == {"m0": [1.0], "m1": [1.0]}


def test_a_draw_that_took_all_of_the_newest_claims_was_of_them_too(traffic):
    traffic.arrive(0, 10, 0.5)
    traffic.arrive(1, 1, 1.0)
    place = [
        claim["query"][:2]
        for claim in sorted(traffic.claims.claims(), key=lambda claim: claim["claim_id"])
    ].index("m1")
    seed = next(
        seed
        for seed in range(100)
        if place in sample(np.full(11, np.nan), 5, seed, stratified=False)[0]
    )
    traffic.judge(traffic.draw(5, seed=seed))
    traffic.judge(traffic.draw(3))
    assert traffic.probability() == {
        "m0": [pytest.approx(8 / 11, abs=1e-11)],
        "m1": [pytest.approx(8 / 11, abs=1e-11)],
    }  # as likely as any other


def test_a_draw_that_nobody_judged_counts_for_nothing_and_one_judged_in_part_by_its_part(traffic):
    traffic.arrive(0, 40, 0.5)
    first = traffic.draw(10)
    traffic.judge(first[:4])
    assert traffic.probability() == {"m0": [0.25]}  # what is judged stands for the draw
    traffic.arrive(1, 30, 0.5)
    second = traffic.draw(30)
    assert traffic.probability() == {"m0": [0.25]}
    traffic.judge(first[4:])
    traffic.judge(second[:15])
    assert traffic.probability() == {"m0": [0.25 + 0.75 * 0.5 * 0.5], "m1": [0.25]}
    traffic.judge(second[15:])
    assert traffic.probability() == {"m0": [0.25 + 0.75 * 0.5], "m1": [0.5]}


def test_strata_of_each_draw_and_draws_of_other_strategies_and_targets(traffic):
    traffic.arrive(0, 40, 0.5, risk=lambda number: 0.5 if number < 20 else 0.02)
    traffic.arrive(0, 40, 0.5, fingerprint="f2")
    traffic.judge(traffic.draw(20, stratified=True))
    first = (
        traffic.outcomes.current()
        .merge(_risks(traffic), on="claim_id")
        .groupby("miss_rate")["inclusion_probability"]
        .first()
    )
    assert first[0.5] > first[0.02]
    traffic.judge(traffic.draw(10))
    both = (
        traffic.outcomes.current()
        .merge(_risks(traffic), on="claim_id")
        .groupby("miss_rate")["inclusion_probability"]
        .unique()
    )
    assert {
        risk: [pytest.approx(first[risk] + (1 - first[risk]) * 10 / 20)] for risk in first.index
    } == {risk: list(values) for risk, values in both.items()}
    before = traffic.probability()
    traffic.judge(traffic.draw(30, fingerprint="f2"))
    traffic.judge(traffic.draw(30, target="miss_some"))
    now = traffic.outcomes.current(strategy_fingerprint="f1", target="miss_any")
    assert sorted(set(now["inclusion_probability"].round(12))) == before["m0"]
    assert set(traffic.outcomes.current(strategy_fingerprint="f2")["inclusion_probability"]) == {
        0.75
    }


def test_claims_that_came_after_the_last_draw_have_no_chance(traffic):
    traffic.arrive(0, 40, 0.5)
    traffic.judge(traffic.draw(10))
    traffic.arrive(1, 5, 0.5)
    assert sorted(chances(traffic.sql, "f1", "miss_any").values()) == [0.0] * 5 + [0.25] * 40


def test_what_was_drawn_elsewhere_keeps_its_probability(traffic, tmp_path):
    traffic.arrive(0, 40, 0.5)
    traffic.judge(traffic.draw(10))
    other = OutcomeStore(SqlStore(tmp_path / "other.db"))
    other.record(of_frame(traffic.outcomes.current()))
    assert set(other.current()["inclusion_probability"]) == {0.25}
    assert set(traffic.outcomes.history()["inclusion_probability"]) == {0.25}


def test_rows_to_be_recorded_anew_keep_the_chance_of_their_own_draw(traffic):
    traffic.arrive(0, 40, 0.5)
    traffic.judge(traffic.draw(10))
    traffic.judge(traffic.draw(15))
    found = traffic.outcomes.current()
    assert set(found["inclusion_probability"].round(12)) == {0.625}
    again = traffic.outcomes.as_recorded(found)
    assert sorted(again["inclusion_probability"].round(12).value_counts().items()) == [
        (0.25, 10),
        (0.375, 15),
    ]
    pd.testing.assert_frame_equal(again, traffic.outcomes.history())
