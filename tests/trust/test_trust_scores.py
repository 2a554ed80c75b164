"""Trust: hand-computed values, named states for what is missing, and nothing that a false claim could buy."""

import dataclasses
import datetime as dt
import gc
import itertools
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.corpus.authors import author_hash
from rag_eval.corpus.loading import load_corpus
from rag_eval.records.gold_set import Folder
from rag_eval.records.trust import FINDINGS, SOURCES, Trust
from rag_eval.trust.domains import judge_domains, lookalike_notes
from rag_eval.trust.freshness import age_days, freshness
from rag_eval.trust.scores import author_states, explain_factors, source_trust
from rag_eval.trust.signatures import generate_key
from rag_eval.trust.source_findings import source_findings

TODAY = dt.date(2026, 7, 1)
KEY = generate_key()[1]
CONFIG = Trust(
    domains=("example.org", "python:pandas", "wikipedia.org"),
    authors=("Ann  Lee", "Bob Ray"),
    keys={"press": KEY},
)


@dataclasses.dataclass(frozen=True)
class Source:
    domain: str = ""
    author: str = ""
    date: str = ""


def _sources(*documents: Source) -> pd.DataFrame:
    columns = {
        "doc_id": [f"d{n}" for n in range(len(documents))],
        "source_hash": ["0" * 64] * len(documents),
        "author": [one.author for one in documents],
        "author_hash": [author_hash(one.author) for one in documents],
        "date": [one.date for one in documents],
        "domain": [one.domain for one in documents],
    }
    return SOURCES.check(pd.DataFrame(columns, dtype="str"))


@pytest.mark.parametrize(
    ("date", "state", "factor", "age"),
    [
        ("2026-07-01", "dated", 1.0, 0),
        ("2026-06-30", "dated", 1 - 0.3 / 365, 1),
        ("2026-07-02", "dated", 1.0, -1),  # a day ahead is another time zone
        ("2026-07-03", "future", 0.7, -2),
        ("9999-12-31", "future", 0.7, -2912261),
        ("2026-01-01", "dated", 1 - 0.3 * 181 / 365, 181),
        ("2025-07-01", "dated", 0.7, 365),
        ("2025-07-02", "dated", 1 - 0.3 * 364 / 365, 364),
        ("0001-01-01", "dated", 0.7, 739797),
        ("", "unknown", 0.7, None),
        ("2026-02-30", "unknown", 0.7, None),
        ("0000-01-01", "unknown", 0.7, None),
        ("2026-7-1", "unknown", 0.7, None),
        ("20260701", "unknown", 0.7, None),
        ("٢٠٢٦-٠٧-٠١", "unknown", 0.7, None),
        ("2026-07-01\n", "unknown", 0.7, None),
    ],
)
def test_freshness_falls_over_a_year_and_no_date_buys_any(date, state, factor, age):
    frame = freshness([date], TODAY)
    assert frame["state"].tolist() == [state]
    assert frame["factor"].tolist() == [pytest.approx(factor, abs=1e-12)]
    assert age_days(date, TODAY) == age


@pytest.mark.parametrize(
    ("author", "state"),
    [
        ("Ann Lee", "known"),
        ("ANN   lee", "known"),
        ("Ann Lee, Bob Ray", "known"),
        ("bob ray ,  ann lee", "known"),
        ("Ann Lee, Eve", "not_listed"),
        ("Eve, Ann Lee", "not_listed"),
        ("Ann Lee,", "not_listed"),
        (",", "not_listed"),
        ("Ann Lee and Bob Ray", "not_listed"),
        ("AnnLee", "not_listed"),
        (", ".join(["Ann Lee"] * 30), "not_listed"),  # longer than what a SOURCES frame shows
        ("", "unknown"),
    ],
)
def test_all_of_several_authors_must_be_known(author, state):
    assert author_states([author[:200]], [author_hash(author)], CONFIG.authors) == [state]
    assert author_states([author[:200]], [author_hash(author)], ()) == ["not_configured"]


def test_a_list_of_authors_that_was_cut_is_not_known_by_what_is_left():
    known = ["a" * 9, "b" * 10]
    author = ",".join([known[0]] * 19 + [known[1], "Eve"])
    assert author[:200].endswith("," + known[1])
    assert author_states([author[:200]], [author_hash(author)], known) == ["not_listed"]


def test_an_author_is_known_by_the_whole_name_before_masking():
    known = ["Lee, Ann <ann@example.org>", "Ann Lee"]
    assert author_states(
        ["Lee, Ann <[EMAIL]>", "[EMAIL]"],
        [author_hash(known[0]), author_hash("eve@example.org")],
        known,
    ) == ["known", "not_listed"]


def test_trust_is_freshness_times_what_is_known():
    sources = _sources(
        Source("example.org", "Ann Lee", "2026-07-01"),
        Source("www.example.org", "Ann Lee", "2026-01-01"),
        Source("evil.net", "Ann Lee", "2025-07-01"),
        Source("python:pandas", "Eve", ""),
        Source("", "", "2027-01-01"),
        Source("wikipedla.org", "Ann Lee", "2026-07-01"),
        Source("example.org", "Ann Lee", "2026-07-01"),
        Source("example.org", "", "2026-07-01"),
        Source("example.org", "", "not a date"),
    )
    states = {
        "d0": "valid",
        "d1": "valid",
        "d2": "valid",
        "d3": "missing",
        "d5": "valid",
        "d6": "invalid",
        "d7": "unknown_key",
    }
    frame = source_trust(sources, CONFIG, states, TODAY)
    expected = [
        1.0,
        round(1 - 0.3 * 181 / 365, 6),
        0.42,  # 0.7 x (0.3 + 0.3)
        0.28,  # 0.7 x 0.4
        0.0,
        0.0,  # a look-alike
        0.0,  # an invalid signature
        0.4,
        0.28,
    ]
    assert frame["trust"].tolist() == expected
    assert frame["trust"].tolist()[1] == 0.851233
    assert frame.columns.tolist() == [
        "doc_id",
        "domain",
        "domain_state",
        "signature_state",
        "author_state",
        "freshness_state",
        "freshness",
        "date",
        "trust",
    ]
    assert frame["domain_state"].tolist() == [
        "allowed",
        "allowed",
        "not_listed",
        "allowed",
        "unknown",
        "lookalike",
        "allowed",
        "allowed",
        "allowed",
    ]
    assert frame["signature_state"].tolist() == [
        "valid",
        "valid",
        "valid",
        "missing",
        "missing",
        "valid",
        "invalid",
        "unknown_key",
        "missing",
    ]
    assert frame["author_state"].tolist() == [
        "known",
        "known",
        "known",
        "not_listed",
        "unknown",
        "known",
        "known",
        "unknown",
        "unknown",
    ]
    assert frame["freshness_state"].tolist() == [
        "dated",
        "dated",
        "dated",
        "unknown",
        "future",
        "dated",
        "dated",
        "dated",
        "unknown",
    ]
    assert frame["date"].tolist()[-2:] == ["2026-07-01", ""]


def test_without_a_configuration_trust_has_no_value():
    frame = source_trust(
        _sources(Source("example.org", "Ann Lee", "2026-07-01")), Trust(), {"d0": "valid"}, TODAY
    )
    assert np.isnan(frame["trust"]).all()
    assert frame[
        ["domain_state", "signature_state", "author_state", "freshness_state"]
    ].to_numpy().tolist() == [["not_configured"] * 3 + ["dated"]]


def test_a_part_of_a_configuration_names_what_it_does_not_know():
    frame = source_trust(
        _sources(Source("example.org", "Ann Lee", "2026-07-01")),
        Trust(domains=("example.org",)),
        None,
        TODAY,
    )
    assert frame.loc[0, ["domain_state", "signature_state", "author_state"]].tolist() == [
        "allowed",
        "not_configured",
        "not_configured",
    ]
    assert frame.loc[0, "trust"] == 0.4
    assert (
        source_trust(_sources(Source()), CONFIG, None, TODAY).loc[0, "signature_state"] == "missing"
    )


def test_no_documents_are_no_rows():
    frame = source_trust(_sources(), CONFIG, {}, TODAY)
    assert len(frame) == 0
    assert len(source_findings(_sources(), frame, CONFIG, (), {})) == 0


@given(
    st.sampled_from(["example.org", "evil.net", "wikipedla.org", ""]),
    st.sampled_from(["valid", "invalid", "unknown_key", "missing"]),
    st.sampled_from(["Ann Lee", "Eve", ""]),
    st.one_of(st.just(""), st.dates().map(str)),
    st.dates(),
)
def test_the_explanation_adds_up_to_the_trust(domain, signature, author, date, as_of):
    row = source_trust(
        _sources(Source(domain, author, date)), CONFIG, {"d0": signature}, as_of
    ).iloc[0]
    factors = explain_factors(row, as_of)
    points = sum(factors[name]["points"] for name in ("domain", "signature", "author"))
    assert factors["freshness"]["factor"] * points == pytest.approx(row["trust"], abs=2e-6)
    assert 0 <= row["trust"] <= 1
    assert 0.7 <= row["freshness"] <= 1
    assert (row["trust"] == 0) >= (signature == "invalid" or domain == "wikipedla.org")


def test_the_explanation_names_states_points_and_age():
    row = (
        source_trust(
            _sources(Source("example.org", "Eve", "2026-01-01")), CONFIG, {"d0": "valid"}, TODAY
        )
        .iloc[0]
        .to_dict()
    )
    assert explain_factors(row, TODAY) == {
        "domain": {"state": "allowed", "points": 0.4},
        "signature": {"state": "valid", "points": 0.3},
        "author": {"state": "not_listed", "points": 0.0},
        "freshness": {"state": "dated", "factor": 0.851233, "age_days": 181},
    }
    void = source_trust(
        _sources(Source("wikipedla.org", "Ann Lee")), CONFIG, {"d0": "valid"}, TODAY
    ).iloc[0]
    assert [
        explain_factors(void, TODAY)[name]["points"] for name in ("domain", "signature", "author")
    ] == [0.0, 0.0, 0.0]
    assert explain_factors(void, TODAY)["freshness"] == {
        "state": "unknown",
        "factor": 0.7,
        "age_days": None,
    }


def _unlisted(severity):
    return [(1, "domain", "not_listed", severity), (3, "domain", "no_address", severity)]


@pytest.mark.parametrize(
    ("unlisted", "expected"),
    [("allow", []), ("warn", _unlisted("warning")), ("block", _unlisted("blocked"))],
)
def test_findings_follow_the_states(unlisted, expected):
    sources = _sources(
        Source("example.org"),
        Source("evil.net"),
        Source("wikipedla.org"),
        Source(),
        Source("example.org"),
    )
    config = CONFIG.model_copy(update={"unlisted": unlisted})
    frame = source_trust(sources, config, {"d0": "invalid", "d4": "valid"}, TODAY)
    notes = lookalike_notes(judge_domains(sources["domain"], config.domains))
    found = source_findings(
        sources, frame, config, ["changed", "same", "not_in_manifest", "same", "same"], notes
    )
    always = [
        (0, "signature", "invalid", "blocked"),
        (0, "manifest", "changed", "blocked"),
        (2, "domain", "lookalike", "blocked"),
        (2, "manifest", "not_in_manifest", "warning"),
    ]
    assert sorted(
        found[["row", "check", "rule", "severity"]].itertuples(index=False, name=None)
    ) == sorted(always + expected)
    assert found["row"].is_monotonic_increasing
    assert set(found["start"]) == set(found["end"]) == {-1}
    assert found.loc[found["rule"] == "lookalike", "detail"].tolist() == [
        "the domain wikipedla.org imitates wikipedia.org: letters that look alike"
    ]
    assert FINDINGS.check(found) is not None


def test_without_a_manifest_nothing_is_said_about_it():
    sources = _sources(Source("example.org"))
    assert source_findings(
        sources, source_trust(sources, CONFIG, None, TODAY), CONFIG, None, {}
    ).empty


@given(st.text(max_size=400), st.text(max_size=300))
def test_details_are_short_and_have_no_control_characters(domain, note):
    sources = _sources(Source("evil.net"), Source("wikipedla.org")).assign(domain=[domain, domain])
    states = source_trust(
        _sources(Source("evil.net"), Source("wikipedla.org")), CONFIG, None, TODAY
    )
    found = source_findings(sources, states, CONFIG, None, {domain: note})
    assert len(found) == 2
    assert found["detail"].str.len().max() <= 200
    assert all(
        character.isprintable() for character in itertools.chain.from_iterable(found["detail"])
    )


def test_a_folder_corpus_is_judged_by_what_its_front_matter_says(tmp_path):
    (tmp_path / "corpus").mkdir()
    front = "---\nsource_url: {}\nauthor: {}\ndate: {}\n---\n# Title\n"
    (tmp_path / "corpus" / "a.md").write_text(
        front.format("https://example.org/a", "Ann Lee", "2026-07-01"), encoding="utf-8"
    )
    (tmp_path / "corpus" / "b.md").write_text(
        front.format("https://wikip\u0435dia.org/b", "[Ann Lee, Bob Ray]", "2025-01-01"),
        encoding="utf-8",
    )
    sources = load_corpus(Folder(loader="folder", path="corpus"), tmp_path).sources
    frame = source_trust(sources, CONFIG, None, TODAY)
    assert frame["domain_state"].tolist() == ["allowed", "lookalike"]
    assert frame["author_state"].tolist() == ["known", "known"]
    assert frame["trust"].tolist() == [0.7, 0.0]  # 1.0 x (0.4 + 0.3); an IDN with a Cyrillic letter


def test_time_grows_with_the_number_of_documents():
    def seconds(n: int) -> float:
        documents = [
            Source(
                f"site{i % 500}.example.org",
                f"Author {i % 700}",
                str(dt.date(2020, 1, 1) + dt.timedelta(days=i % 2000)),
            )
            for i in range(n)
        ]
        sources = _sources(*documents)
        started = time.process_time()
        source_findings(sources, source_trust(sources, CONFIG, {}, TODAY), CONFIG, ["same"] * n, {})
        return time.process_time() - started

    gc.collect()
    gc.disable()
    try:
        seconds(1000)
        small, large = min(seconds(5000) for _ in range(3)), min(seconds(40_000) for _ in range(2))
    finally:
        gc.enable()
    assert large < 24 * small  # eight times as many
