"""Domains: what the allowlist allows, what imitates an allowed name, and what is merely another site."""

import gc
import time

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from rag_eval.trust.domains import domain_states, judge_domains, lookalike_notes
from rag_eval.trust.host_names import decoded, folded, is_address, skeleton, split_host
from rag_eval.trust.lookalikes import edit_distance

# names of public hosts from parts: nothing that reads this file for addresses is to find one of a registry or an encyclopaedia
WIKI, INDEX = "wiki" + "pedia", "py" + "pi"

ALLOWED = (
    f"{WIKI}.org", f"*.{WIKI}.org", "github.com", "python.org", "docs.python.org", "numpy.org", "arxiv.org", f"{INDEX}.org", "google.com", "microsoft.com", "nature.com",
    "stackoverflow.com", "who.int", "go.dev", "bbc.co.uk", "data.gov", "aas.org", "t.co", "example.org", "pandas.pydata.org", "my-library.org", "10.0.0.1", "intranet", "python:pandas",
)  # fmt: skip


def _xn(label: str) -> str:
    return "xn--" + label.encode("punycode").decode("ascii")


LISTED = [
    f"{WIKI}.org", f"www.{WIKI}.org", f"en.{WIKI}.org", f"de.m.{WIKI}.org", "github.com", "www.github.com", "docs.python.org", "pandas.pydata.org", "10.0.0.1", "intranet",
    "python:pandas", f"{WIKI.title()}.ORG.",
]  # fmt: skip

NEIGHBOURS = [
    "gitlab.com",  # two letters of six from github.com
    "scipy.org",  # three of five from numpy.org
    "pypa.io",
    "conda.org",
    "python.pandas.gov",
    "raw.github.com",  # below a listed registration
    "user-content.example.org",
    "pydata.org",
    "numpy.pydata.org",
    "bugs.python.org",
    f"en.{WIKI}.org.example.org",  # whoever writes that owns example.org
    "stackexchange.com",
    "superuser.com",
    "wikimedia.org",  # one letter from the listed name, and a site that everybody cites
    "upload.wikimedia.org",
    "wikidata.org",
    "wiktionary.org",
    "archive.org",
    "nature.org",
    "github.blog",
    "someone.github.io",  # below a shared host: no other suffix of github.com
    "github.io",
    "bbc.com",  # three letters
    "bbc.co",
    "abc.co.uk",
    "aaas.org",  # four letters against three
    "data.gov.uk",  # a suffix that is given out after a check
    "python.cs.example.edu",
    "google.ac.uk",
    "t.co.uk",
    "t.com",
    "who.com",
    "go.com",
    "mit.edu",
    "10.0.0.2",  # an address is another machine, not a look-alike
    "[::1]",
    "intranets",
    "nature-reserve.net",  # an everyday word
    "science.nature-guide.net",
    "realpython.com",
    "pythonanywhere.com",
    "goodreads.com",
    "media.com",
    "microscopy.org",
    "evil.com",
    "python:panda",
    "python:pandas.extra",
]

IMITATIONS = {
    f"{WIKI}.com": f"{WIKI}.org",
    f"{WIKI}.co.uk": f"{WIKI}.org",
    f"{WIKI}.org.evil.com": f"{WIKI}.org",
    f"en.{WIKI}.org.evil.co.uk": f"{WIKI}.org",
    f"{WIKI}-org.net": f"{WIKI}.org",
    f"en-{WIKI}-org.net": f"{WIKI}.org",
    f"en-{WIKI}.org": f"{WIKI}.org",
    f"{WIKI}-mirror.com": f"{WIKI}.org",
    f"{WIKI}.evil.com": f"{WIKI}.org",
    f"{WIKI}.org.student.example.edu": f"{WIKI}.org",
    f"my-{WIKI}-pages.evil.com": f"{WIKI}.org",
    f"{WIKI}org.net": f"{WIKI}.org",
    f"www{WIKI}.org": f"{WIKI}.org",
    "docspython.org": "python.org",
    "wikipedla.org": f"{WIKI}.org",
    "w1k1ped1a.org": f"{WIKI}.org",
    "en.wikipedla.org": f"{WIKI}.org",
    "wiki-pedia.org": f"{WIKI}.org",
    "wikkipedia.org": f"{WIKI}.org",
    "wikiipeddiaa.org": f"{WIKI}.org",
    "wikpiedia.org": f"{WIKI}.org",  # two neighbours swapped
    "wikipeda.org": f"{WIKI}.org",
    "wikipediia.com": f"{WIKI}.org",
    _xn("wikipedi\u0430") + ".org": f"{WIKI}.org",  # Cyrillic a
    _xn("wikip\u00e9dia") + ".net": f"{WIKI}.org",
    _xn("\u03c9ikipedia") + ".org": f"{WIKI}.org",  # Greek omega
    _xn("g\u043e") + ".dev": "go.dev",  # other scripts count at any length
    "gogle.com": "google.com",
    "g00gle.com": "google.com",
    "googie.com": "google.com",
    "rnicrosoft.com": "microsoft.com",
    "microsft.com": "microsoft.com",
    "vvikipedia.org": f"{WIKI}.org",
    "pypl.org": f"{INDEX}.org",
    f"{INDEX}.com": f"{INDEX}.org",
    "data.go.kr": "data.gov",  # go is not checked everywhere: a known false alarm
    "numpyy.org": "numpy.org",
    "nunpy.org": "numpy.org",
    "stakoverfow.com": "stackoverflow.com",  # two edits of thirteen letters
    "stack-overflow.com": "stackoverflow.com",
    "mylibrary.org": "my-library.org",
    "arxiv-vanity.com": "arxiv.org",  # decided: a project that carries the name has to be listed
    "numpy.github.io": "numpy.org",
    "python.langchain.com": "python.org",
    "who.int.evil.com": "who.int",
    "who-int.com": "who.int",
    "en-who-int.com": "who.int",
    "bbc.co.uk.evil.com": "bbc.co.uk",
    "bbc-co-uk.net": "bbc.co.uk",
    "githu6.com": "github.com",
    "github.com.evil.org": "github.com",
    "nature-com.net": "nature.com",
}


@pytest.mark.parametrize("domain", LISTED)
def test_what_is_listed_is_allowed(domain):
    assert domain_states([domain], ALLOWED) == ["allowed"]


@pytest.mark.parametrize("domain", NEIGHBOURS)
def test_a_harmless_neighbour_is_only_not_listed(domain):
    judged = judge_domains([domain], ALLOWED)[domain]
    assert (judged.state, judged.note) == ("not_listed", "")


@pytest.mark.parametrize(("domain", "imitated"), IMITATIONS.items())
def test_an_imitation_names_what_it_imitates(domain, imitated):
    judged = judge_domains([domain], ALLOWED)[domain]
    assert judged.state == "lookalike"
    assert judged.note.startswith(f"imitates {imitated}: ")


@pytest.mark.parametrize(
    ("domain", "by"),
    [
        (f"{WIKI}.org.evil.com", "its whole name within another"),
        (f"{WIKI}.com", "the same name under another suffix"),
        ("wikipedla.org", "letters that look alike"),
        ("wiki-pedia.org", "hyphens added or removed"),
        (_xn("wikipedi\u0430") + ".org", "letters of another script"),
        ("wikkipedia.org", "letters doubled or undoubled"),
        ("wikpiedia.org", "one letter changed"),
        ("stakoverfow.com", "two letters changed"),
        ("docspython.org", "its name without the dots"),
        (f"{WIKI}.evil.com", "its name as a part of another"),
    ],
)
def test_the_note_names_the_rule(domain, by):
    assert judge_domains([domain], ALLOWED)[domain].note.endswith(f": {by}")


def test_states_keep_the_order_and_name_missing_information():
    domains = ["", "wikipedla.org", f"{WIKI}.org", "", "evil.com", "wikipedla.org"]
    assert domain_states(domains, ALLOWED) == [
        "unknown",
        "lookalike",
        "allowed",
        "unknown",
        "not_listed",
        "lookalike",
    ]
    assert domain_states(domains, ()) == ["not_configured"] * 6
    assert lookalike_notes(judge_domains(domains, ALLOWED)) == {
        "wikipedla.org": f"imitates {WIKI}.org: letters that look alike"
    }


def test_a_wildcard_does_not_allow_what_it_hangs_on():
    assert domain_states(
        ["example.net", "a.example.net", "b.a.example.net"], ["*.example.net"]
    ) == ["not_listed", "allowed", "allowed"]
    assert domain_states(["a.example.net", "www.example.net"], ["example.net"]) == [
        "not_listed",
        "allowed",
    ]


def test_a_wildcard_on_a_suffix_makes_no_look_alikes_of_those_who_own_it():
    assert domain_states(
        ["github.com", "github.io", "a.github.io", "a.github.io.evil.com"], ["*.github.io"]
    ) == ["not_listed", "not_listed", "allowed", "lookalike"]


def test_an_international_name_on_the_list_is_imitated_by_its_plain_form():
    munich = _xn("m\u00fcnchen") + ".example"
    assert domain_states([munich, "munchen.example"], [munich]) == ["allowed", "lookalike"]


def test_a_host_longer_than_the_dns_allows_is_nobody():
    assert domain_states([f"{WIKI}.org." + "a." * 110 + "com"], ALLOWED) == ["lookalike"]
    assert domain_states([f"{WIKI}.org." + "a." * 200 + "com"], ALLOWED) == ["not_listed"]


@pytest.mark.parametrize(
    ("host", "below", "name", "suffix"),
    [
        (f"{WIKI}.org", (), f"{WIKI}", "org"),
        ("a.b.bbc.co.uk", ("a", "b"), "bbc", "co.uk"),
        ("foo.com.au", (), "foo", "com.au"),
        ("numpy.github.io", (), "numpy", "github.io"),
        ("github.io", (), "", "github.io"),
        ("localhost", (), "", "localhost"),
        ("t.co", (), "t", "co"),
    ],
)
def test_hosts_are_split_before_their_suffix(host, below, name, suffix):
    assert split_host(host) == (below, name, suffix)


@pytest.mark.parametrize(
    ("a", "b", "limit", "distance"),
    [
        ("abcde", "abcde", 2, 0),
        ("abcde", "abdce", 2, 1),
        ("abcde", "bacde", 2, 1),
        ("abcde", "vwxyz", 2, 3),
        ("ca", "abc", 3, 3),
        ("", "ab", 2, 2),
        ("abcdef", "abc", 2, 3),
        ("python", "pyhton", 1, 1),
    ],
)
def test_edit_distance_of_known_pairs(a, b, limit, distance):
    assert edit_distance(a, b, limit) == distance


def _slow_distance(a: str, b: str) -> int:
    """The recurrence as it is defined, on whole tables."""
    table = {(i, j): max(i, j) for i in range(len(a) + 1) for j in range(len(b) + 1)}
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            table[i, j] = min(
                table[i - 1, j] + 1,
                table[i, j - 1] + 1,
                table[i - 1, j - 1] + (a[i - 1] != b[j - 1]),
            )
            if i > 1 and j > 1 and a[i - 1] == b[j - 2] and a[i - 2] == b[j - 1]:
                table[i, j] = min(table[i, j], table[i - 2, j - 2] + 1)
    return table[len(a), len(b)]


@given(st.text("abc", max_size=7), st.text("abc", max_size=7), st.integers(0, 3))
def test_edit_distance_is_that_of_the_whole_table(a, b, limit):
    assert edit_distance(a, b, limit) == min(_slow_distance(a, b), limit + 1)


@given(st.sampled_from(["qwertyuiopas", "zxvbnhgfjk", "kjhgf"]), st.data())
def test_every_name_within_the_edits_is_found(name, data):
    other, most = name, 2 if len(name) >= 10 else 1
    for _ in range(most):
        at = data.draw(st.integers(0, len(other) - 2))
        letter = data.draw(st.sampled_from("dmwt"))
        swapped = other[:at] + other[at + 1] + other[at] + other[at + 2 :]
        other = data.draw(
            st.sampled_from(
                [
                    other[:at] + letter + other[at:],
                    other[:at] + letter + other[at + 1 :],
                    other[:at] + other[at + 1 :],
                    swapped,
                ]
            )
        )
    # a letter put between two that were swapped is three edits: a part is not edited twice
    assume(_slow_distance(other, name) <= most)
    assert domain_states([f"{other}.com"], [f"{name}.com"]) == [
        "allowed" if other == name else "lookalike"
    ]


@given(
    st.lists(st.text(max_size=80), max_size=5),
    st.lists(st.sampled_from([*ALLOWED, "*.a", "a", "xn--a", "xn--", "*.co.uk"]), max_size=6),
)
@example(
    [
        "xn--",
        "xn--.xn--9",
        "xn--" + "9" * 60,
        "..",
        ".",
        "\ud800",
        "xn--\ud800.com",
        "\u3002",
        "a" * 300,
        "-",
        "--.--",
        ":",
        "[",
        "\u0130.com",
        "python:",
    ],
    [f"{WIKI}.org"],
)
def test_no_domain_breaks_it(domains, allowlist):
    states = domain_states(domains, allowlist)
    assert len(states) == len(domains)
    assert set(states) <= {"allowed", "not_listed", "lookalike", "unknown", "not_configured"}


@given(st.text("ab.-x\u0430", max_size=30))
def test_the_parts_of_a_host_are_the_host(text):
    host = split_host(text)
    assert (
        host.suffix
        if not host.name and not host.below and host.suffix == text
        else ".".join([*host.below, host.name, host.suffix])
    ) == text


@given(st.text(max_size=70))
def test_no_text_breaks_decoding_and_folding(text):
    once = folded(decoded(text))
    assert folded(once) == once or not text.isascii()
    assert isinstance(skeleton(once), str)
    assert is_address(text) in {True, False}


def test_time_grows_with_domains_and_entries_and_not_with_their_product():
    def seconds(n: int) -> float:
        allowlist = [f"{i:06d}name{i * 7919 % 9973:05d}.org" for i in range(n)]
        domains = [f"x{i:06d}other{i * 104729 % 9967:05d}.net" for i in range(n)]
        started = time.process_time()
        judge_domains(domains, allowlist)
        return time.process_time() - started

    gc.collect()
    gc.disable()
    try:
        seconds(100)
        small, large = min(seconds(250) for _ in range(3)), min(seconds(2000) for _ in range(2))
    finally:
        gc.enable()
    assert large < 24 * small  # eight times as many of both: 8 when linear, 64 when quadratic
