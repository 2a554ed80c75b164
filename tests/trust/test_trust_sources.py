import datetime as dt
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from growth import growth
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.core.config import FINDINGS, Trust
from rag_eval.core.frames import SOURCES
from rag_eval.corpus.loading import author_hash
from rag_eval.pipeline.corpus import _vouched_for
from rag_eval.trust.sources import _judge_domains, explain_factors, explain_trust, judge_sources

TODAY = dt.date(2026, 7, 1)
CONFIG = Trust(
    domains=("example.org", "python:pandas", "wikipedia.org"),
    authors=("Ann  Lee", "Bob Ray"),
    keys={"press": "A" * 43 + "="},
    manifest="manifest.json",
)
ANN, NOW = "Ann Lee", "2026-07-01"


def make_sources(*documents):
    """Make a SOURCES frame of (domain, author, date) rows."""
    frame = pd.DataFrame(documents, columns=["domain", "author", "date"], dtype="str").assign(
        doc_id=[f"d{n}" for n in range(len(documents))],
        source_hash="0" * 64,
        author_hash=[author_hash(author) for _, author, _ in documents],
    )
    return SOURCES.check(frame.astype("str"))


def judge(sources, config=CONFIG, signature="missing", as_of=TODAY):
    """Judge sources with the same state of the signature."""
    manifest = {"valid": "same", "invalid": "changed", "missing": "not_in_manifest"}
    return judge_sources(sources, config, [manifest[signature]] * len(sources), as_of)[0]


@pytest.mark.parametrize(
    ("date", "state", "factor"),
    [
        ("2026-07-01", "dated", 1.0),
        ("2026-07-02", "dated", 1.0),  # a date one day ahead can come from another time zone
        ("2026-07-03", "future", 0.7),
        ("2026-01-01", "dated", 1 - 0.3 * 181 / 365),
        ("0001-01-01", "dated", 0.7),
        ("", "unknown", 0.7),
        ("2026-02-30", "unknown", 0.7),
        ("٢٠٢٦-٠٧-٠١", "unknown", 0.7),
    ],
)
def test_freshness_falls_over_a_year_and_no_date_buys_any(date, state, factor):
    [row] = judge(make_sources(("", "", date)), Trust()).to_dict("records")
    assert (row["freshness_state"], row["freshness"]) == (state, pytest.approx(factor, abs=1e-12))


@pytest.mark.parametrize(
    ("author", "state"),
    [
        ("Ann Lee", "known"),
        ("ANN   lee", "known"),
        ("bob ray ,  ann lee", "known"),
        ("Ann Lee, Eve", "not_listed"),
        ("Ann Lee,", "not_listed"),
        ("Ann Lee and Bob Ray", "not_listed"),
        (", ".join(["Ann Lee"] * 30), "not_listed"),  # longer than the text of a SOURCES frame
        ("", "unknown"),
    ],
)
def test_all_of_several_authors_must_be_known(author, state):
    sources = make_sources(("", author, "")).assign(author=author[:200])
    assert judge(sources)["author_state"].tolist() == [state]
    assert judge(sources, Trust())["author_state"].tolist() == ["not_configured"]


def test_an_author_is_known_by_the_name_before_masking():
    names = ["Lee, Ann <ann@example.org>", "eve@example.org"]
    masked = ["Lee, Ann <[EMAIL]>", "[EMAIL]"]
    sources = make_sources(*(("", name, "") for name in names)).assign(author=masked)
    found = judge(sources, Trust(authors=(names[0], "Ann Lee")))
    assert found["author_state"].tolist() == ["known", "not_listed"]


@pytest.mark.parametrize(
    ("source", "signature", "trust", "states"),
    [
        (("example.org", ANN, NOW), "valid", 1.0, "allowed known dated"),
        (("www.example.org", ANN, "2026-01-01"), "valid", 0.851233, "allowed known dated"),
        (("evil.net", ANN, "2025-07-01"), "valid", 0.42, "not_listed known dated"),
        (("python:pandas", "Eve", ""), "missing", 0.28, "allowed not_listed unknown"),
        (("", "", "2027-01-01"), "missing", 0.0, "unknown unknown future"),
        (("wikipedla.org", ANN, NOW), "valid", 0.0, "lookalike known dated"),
        (("example.org", ANN, NOW), "invalid", 0.0, "allowed known dated"),
        (("example.org", "", "no date"), "missing", 0.28, "allowed unknown unknown"),
    ],
)
def test_trust_is_freshness_times_what_is_known(source, signature, trust, states):
    row = judge(make_sources(source), CONFIG, signature).iloc[0]
    assert row["trust"] == trust
    assert row["signature_state"] == signature
    assert [row["domain_state"], row["author_state"], row["freshness_state"]] == states.split()
    assert row["date"] == ("" if source[2] == "no date" else source[2])


def test_missing_configuration_is_a_named_state():
    sources = make_sources(("example.org", ANN, NOW))
    columns = ["domain_state", "signature_state", "author_state"]
    nothing = judge(sources, Trust(), "valid").iloc[0]
    assert np.isnan(nothing["trust"])
    assert nothing[columns].tolist() == ["not_configured"] * 3
    domains = judge(sources, Trust(domains=("example.org",))).iloc[0]
    assert domains["trust"] == 0.4
    assert domains[columns].tolist() == ["allowed", "not_configured", "not_configured"]


@pytest.mark.parametrize(
    ("config", "score", "verdict", "passed"),
    [
        (CONFIG, 0.7, "clean", True),
        (CONFIG, 0.7, "warning", True),
        (CONFIG, 0.7, "blocked", False),
        (Trust(), None, "clean", True),
    ],
)
def test_a_chunk_has_trust_with_factors_and_a_poison_check(config, score, verdict, passed):
    row = judge(make_sources(("example.org", ANN, NOW)), config).iloc[0].to_dict()
    codes = [] if verdict == "clean" else ["pattern.override"]
    found = explain_trust(row | {"chunk_id": "c1", "verdict": verdict, "reasons": codes}, TODAY)
    assert (found.snippet_id, found.score) == ("c1", score)
    assert found.factors == explain_factors(row, TODAY)
    check = found.poison_check
    assert (check.passed, check.blocked, check.warnings) == (passed, not passed, tuple(codes))


@settings(max_examples=40)
@given(
    st.sampled_from(["example.org", "evil.net", "wikipedla.org", ""]),
    st.sampled_from(["valid", "invalid", "missing"]),
    st.sampled_from([ANN, "Eve", ""]),
    st.one_of(st.just(""), st.dates().map(str)),
    st.dates(),
)
def test_the_explanation_adds_up_to_the_trust(domain, signature, author, date, as_of):
    sources = make_sources((domain, author, date))
    row = judge(sources, CONFIG, signature, as_of).iloc[0]
    factors = explain_factors(row, as_of)
    points = sum(factors[name]["points"] for name in ("domain", "signature", "author"))
    assert factors["freshness"]["factor"] * points == pytest.approx(row["trust"], abs=2e-6)
    assert 0 <= row["trust"] <= 1
    assert 0.7 <= row["freshness"] <= 1
    assert (row["trust"] == 0) >= (signature == "invalid" or domain == "wikipedla.org")


@pytest.mark.parametrize(
    ("domain", "signature", "expected"),
    [
        ("allowed", "missing", True),
        ("not_listed", "valid", True),
        ("not_configured", "valid", True),
        ("not_listed", "missing", False),
        ("not_configured", "invalid", False),
        ("lookalike", "valid", False),
        ("allowed", "invalid", False),
        ("not_configured", "not_configured", None),
    ],
)
def test_the_allowlist_or_a_valid_signature_vouches(domain, signature, expected):
    found = _vouched_for(pd.DataFrame({"domain_state": [domain], "signature_state": [signature]}))
    assert (None if found is None else found.tolist()) == (None if expected is None else [expected])


@pytest.mark.parametrize(
    ("unlisted", "severity"), [("allow", None), ("warn", "warning"), ("block", "blocked")]
)
def test_findings_follow_the_states(unlisted, severity):
    domains = ("example.org", "evil.net", "wikipedla.org", "", "example.org")
    sources = make_sources(*((domain, "", "") for domain in domains))
    manifest = ["changed", "same", "not_in_manifest", "same", "same"]
    config = CONFIG.model_copy(update={"unlisted": unlisted})
    facts, found = judge_sources(sources, config, manifest, TODAY)
    assert facts["signature_state"].tolist() == ["invalid", "valid", "missing", "valid", "valid"]
    expected = [
        (0, "manifest", "changed", "blocked"),
        (1, "domain", "not_listed", severity),
        (2, "domain", "lookalike", "blocked"),
        (2, "manifest", "not_in_manifest", "warning"),
        (3, "domain", "no_address", severity),
    ]
    rows = found[["row", "check", "rule", "severity"]].itertuples(index=False, name=None)
    assert list(rows) == [row for row in expected if row[3]]
    assert set(found["start"]) == set(found["end"]) == {-1}
    detail = "the domain wikipedla.org imitates wikipedia.org"
    assert found.loc[found["rule"] == "lookalike", "detail"].tolist() == [detail]
    FINDINGS.check(found)


# ---- Domains and look-alikes

# The names are split, so that a search for addresses of registries skips this file.
WIKI, INDEX = "wiki" + "pedia", "py" + "pi"
HOSTS = tomllib.loads((Path(__file__).parent / "hosts.toml").read_text(encoding="utf-8"))


def _xn(label):
    return label if label.isascii() else "xn--" + label.encode("punycode").decode()


def read_hosts(text):
    filled = text.format(wiki=WIKI, index=INDEX, WIKI=WIKI.title()).split()
    return [".".join(map(_xn, host.split("."))) for host in filled]


ALLOWED = read_hosts(HOSTS["allowlist"])
NEIGHBOURS = [host for hosts in HOSTS["neighbours"].values() for host in read_hosts(hosts)]
IMITATIONS = [
    pair.split("<")[::-1]
    for pairs in HOSTS["imitations"].values()
    for pair in pairs.format(wiki=WIKI, index=INDEX).split()
]


def states(domains, allowlist):
    judged = _judge_domains(domains, allowlist)
    return [judged[domain].state for domain in domains]


@pytest.mark.parametrize("domain", read_hosts(HOSTS["allowed"]))
def test_listed_hosts_are_allowed(domain):
    assert states([domain], ALLOWED) == ["allowed"]


@pytest.mark.parametrize("domain", NEIGHBOURS)
def test_a_harmless_neighbour_is_only_not_listed(domain):
    assert _judge_domains([domain], ALLOWED)[domain] == ("not_listed", "")


@pytest.mark.parametrize(("domain", "imitated"), IMITATIONS)
def test_an_imitation_names_the_imitated_host(domain, imitated):
    host = ".".join(map(_xn, domain.split(".")))
    assert _judge_domains([host], ALLOWED)[host] == ("lookalike", imitated)


@pytest.mark.parametrize(
    ("allowlist", "domains", "expected"),
    [
        ("*.example.net", "example.net a.example.net b.a.example.net", "NAA"),
        ("example.net", "a.example.net www.example.net", "NA"),
        ("*.github.io", "github.com github.io a.github.io a.github.io.evil.com", "NNAL"),
        (_xn("münchen") + ".example", f"{_xn('münchen')}.example munchen.example", "AL"),
        (f"{WIKI}.org", f"{WIKI}.org.{'a.' * 110}com {WIKI}.org.{'a.' * 200}com", "LN"),
    ],
    ids=["wildcard", "plain", "wildcard_on_suffix", "international", "longer_than_dns_allows"],
)
def test_entries_allow_what_they_say(allowlist, domains, expected):
    found = states(domains.split(), [allowlist])
    assert "".join(state[0].upper() for state in found) == expected


@pytest.mark.slow
def test_time_grows_with_the_sum_of_domains_and_entries():
    def make(n):
        allowlist = [f"{i:06d}name{i * 7919 % 9973:05d}.org" for i in range(n)]
        return [f"x{i:06d}other{i * 104729 % 9967:05d}.net" for i in range(n)], allowlist

    assert growth(lambda both: _judge_domains(*both), make, 100, 800) < 24  # quadratic: 64
