"""Random audits of production traffic stand for all of its claims."""

import datetime as dt
import json

import numpy as np
import pytest
from cli_project import jsonl

from rag_eval.core.errors import InputError, ProblemList
from rag_eval.storage.sql import SqlStore
from rag_eval.uncertainty.outcome_files import read_claims, read_outcomes
from rag_eval.uncertainty.outcomes import OutcomeStore, fit_rows, question_id
from rag_eval.uncertainty.traffic import TrafficStore

NOW = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)


class Traffic:
    """A store with claims of several months; each question begins with `m` and its month."""

    def __init__(self, folder, sql=None):
        folder.mkdir(exist_ok=True)
        self.folder, self.sql = folder, sql or SqlStore(folder / "store.db")
        self.store = TrafficStore(self.sql)
        self.outcomes = OutcomeStore(self.sql)
        self.missed, self.draws, self.now = {}, 0, NOW

    def tick(self):
        self.now += dt.timedelta(seconds=1)
        return self.now

    def arrive(self, month, n, rate=0.5, *, fingerprint="f1"):
        retrieved = [{"id": "d1", "score": 1.0}]
        rows = [
            {"query": f"m{month} question {number}", "retrieved": retrieved} for number in range(n)
        ]
        self.missed |= {row["query"]: number < rate * n for number, row in enumerate(rows)}
        path = self.folder / f"traffic-{month}-{fingerprint}.jsonl"
        path.write_text(jsonl(rows), encoding="utf-8")
        claims = read_claims([path], ProblemList(), strategy="bm25", fingerprint=fingerprint).claims
        self.store.add(claims, now=self.tick())

    def draw(self, n=10, seed=0, path=None, **more):
        self.draws += 1
        path = path or self.folder / f"audit-{self.draws}.jsonl"
        options = {"n": n, "seed": seed, "fingerprint": "f1", **more}
        self.made = self.store.draw(path, now=self.tick(), **options)
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def judge(self, rows, **judgement):
        path = self.folder / "judged.jsonl"
        lines = (
            {**row, "missed": self.missed[row["query"]], "gold_source": "human", **judgement}
            for row in rows
        )
        path.write_text(jsonl(lines), encoding="utf-8")
        self.outcomes.record(self.read(path)[0])

    def read(self, path):
        return read_outcomes(path, self.sql, now=NOW)

    def drawn(self):
        return self.store.find_drawn(claim.claim_id for claim in self.store.claims())


@pytest.fixture
def traffic(tmp_path):
    return Traffic(tmp_path)


@pytest.fixture
def either(place, tmp_path):
    return Traffic(tmp_path, SqlStore(place))


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
        assert abs(np.mean(found) - true) <= 3 * error + 1e-9
    assert np.std(rates) > 0


def test_the_last_draw_is_of_the_claims_that_came_before_it(traffic):
    assert traffic.store.last_draw("f1", "miss_any") is None
    traffic.arrive(0, 40)
    traffic.draw(10)
    traffic.arrive(1, 30)
    drawn = {row["claim_id"] for row in traffic.draw(20)}
    traffic.arrive(2, 5)
    found = traffic.store.last_draw("f1", "miss_any")
    by_id = traffic.store.by_id(found.population)
    assert {claim.query[:2] for claim in by_id.values()} == {"m1"}
    assert (len(found.population), found.drawn) == (30, drawn)
    assert traffic.store.last_draw("f1", "miss_some") is None


def test_an_audit_becomes_outcomes_with_their_probability(either):
    either.arrive(0, 40)
    rows = either.draw(10)
    assert (either.made.n, either.made.population) == (10, 40)
    assert either.read(either.folder / "audit-1.jsonl") == ([], 10)
    content = "ask jane.doe@example.org"
    searched = {"gold_source": "deep_audit", "gold_strategies": []}
    either.judge(rows[:1], **searched, missed=True, missed_content=content)
    either.judge(rows[1:2])
    fit = fit_rows(either.outcomes.current())
    assert fit["weight"].tolist() == [4.0, 4.0]
    first = fit.set_index("claim_id").loc[rows[0]["claim_id"]]
    assert first["missed_content"] == "ask [email██████████████"
    assert (first["query_id"], first["gold_strategies"]) == (question_id(rows[0]["query"]), [])


def test_only_the_store_knows_the_probability_of_an_audit(traffic):
    traffic.arrive(0, 20)
    drawn = {row["claim_id"] for row in traffic.draw(2)}
    for claim in traffic.store.claims():
        line = {"claim_id": claim.claim_id, "query": claim.query}
        with pytest.raises(InputError, match="inclusion_probability"):
            traffic.judge([line], inclusion_probability=1.0)
        traffic.judge([line])
    frame = traffic.outcomes.current()
    is_drawn = frame["claim_id"].isin(drawn)
    assert frame.loc[is_drawn, "inclusion_probability"].tolist() == [0.1, 0.1]
    assert frame.loc[~is_drawn, "inclusion_probability"].isna().all()


def test_equal_seeds_draw_equal_samples_of_the_new_claims(either, tmp_path):
    other = Traffic(tmp_path / "other")
    for one in (either, other):
        one.arrive(0, 30)
    assert either.draw(10, seed=7) == other.draw(10, seed=7)
    with pytest.raises(InputError, match="no_claims"):
        either.draw(10)
    either.arrive(1, 20)
    later = either.draw(5)
    assert {row["query"][:2] for row in later} == {"m1"}
    drawn = either.store.find_drawn([row["claim_id"] for row in later])
    assert {row.inclusion_probability for row in drawn.values()} == {0.25}
    either.draw(5, target="miss_some")
    assert either.made.population == 50


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"fingerprint": "none"}, "no_claims"),
        ({"fingerprint": None}, "several_strategies"),
        ({"path": "traffic-0-f1.jsonl"}, "file_exists"),
    ],
)
def test_a_draw_that_cannot_be_made_keeps_nothing(traffic, options, code):
    traffic.arrive(0, 10)
    traffic.arrive(0, 10, fingerprint="f2")
    if "path" in options:
        options = {"path": traffic.folder / options["path"]}
    with pytest.raises(InputError, match=code):
        traffic.draw(**options)
    assert traffic.drawn() == {}


def test_no_draw_is_kept_without_its_file(either):
    either.arrive(0, 10)
    (either.folder / "folder").write_text("a file where the folder should be")
    with pytest.raises(OSError, match="folder"):
        either.draw(path=either.folder / "folder" / "audit.jsonl")
    assert either.drawn() == {}
