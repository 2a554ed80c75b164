"""Addresses: the domain that one names, and what of one may be shown."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rag_eval.corpus.addresses import MAX_DOMAIN_CHARS, domain_of, masked, without_user

HOST = re.compile(
    r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*|[0-9a-f:.]+|python:[A-Za-z_][A-Za-z0-9_]*"
)
LONG = ".".join(["a" * 63] * 3)


@pytest.mark.parametrize(
    ("address", "domain"),
    [
        ("https://example.org/a/b?c#d", "example.org"),
        ("HTTPS://Docs.Example.ORG", "docs.example.org"),
        ("http://example.org:8080/", "example.org"),
        ("http://example.org:/", "example.org"),
        ("ftp://files.example.org./x", "files.example.org"),
        ("https://user:pa%20ss@example.org/", "example.org"),
        ("https://good.example@evil.example/", "evil.example"),
        ("https://a@b@evil.example/", "evil.example"),
        ("  https://example.org  ", "example.org"),
        ("https://example.org?next=https://other.example", "example.org"),
        ("https://example.org#@other.example", "example.org"),
        ("https://b\u00fccher.example/", "xn--bcher-kva.example"),
        ("https://B\u00dcCHER.example/", "xn--bcher-kva.example"),
        ("https://XN--BCHER-KVA.example/", "xn--bcher-kva.example"),
        ("https://p\u0430ypal.example/", "xn--pypal-4ve.example"),
        ("https://\uff45xample\u3002org/", "example.org"),
        ("https://127.0.0.1:9/", "127.0.0.1"),
        ("https://[2001:DB8::0:1]:443/", "2001:db8::1"),
        (f"https://{LONG}.{'b' * 61}/", f"{LONG}.{'b' * 61}"),
        ("python:pandas.DataFrame.merge", "python:pandas"),
        ("python:pandas", "python:pandas"),
    ],
)
def test_domains(address, domain):
    assert domain_of(address) == domain


@pytest.mark.parametrize(
    "address",
    [
        "", "guide/a.md", "corpus.jsonl#7", "file:///etc/passwd", "mailto:a@example.org", "//example.org/a", "https:/example.org", "https:example.org",
        "https://", "https:///a", "https://:80/", "https://user@/", "https://.example.org/", "https://example..org/", "https://example.org../",
        "https://example.org:port/", "https://example.org:80:80/", "https://-example.org/", f"https://{'a' * 64}.org/", f"https://{LONG}.{'b' * 62}/",
        "https://[::1", "https://[::1]x/", "https://[not:ipv6]/", "https://exam ple.org/", "python:", "python:pandas/x", "python:1x", "python: pandas",
        "https://good.example\\@evil.example/", "https://evil.example\\.good.example/", "https://go\tod.example/", "https://good.example%2eevil.example/",
        "https://stra\u00dfe.example/", "https://\u2100.example/", "https://\ufffd.example/", f"https://{chr(0xD800)}.example/", "https://a\u200db.example/",
        "https://good.example\x00.evil.example/", "https://\u00ad/", "javascript://example.org/%0aalert(1)",
    ],
)  # fmt: skip
def test_no_domain(address):
    assert domain_of(address) == ""


def hosts():
    return st.text(
        st.sampled_from(
            "aZ09-_.:@[]\\%/?# \t\u00df\u0130\u3002\uff0e\u2100\u0430\ud800\u200d\ufffd\x00"
        ),
        max_size=40,
    )


@given(
    st.sampled_from(["https://", "HTTP://", "ftp://", "python:", "//", ""]),
    st.one_of(hosts(), st.text(st.characters(), max_size=300)),
)
@example("https://", "a" * 100_000)
@example("https://", "\u00fc" * 100_000)
@example("https://", "@" * 100_000)
@example("https://", "%" * 100_000 + "@")
@example("https://", "\u0130" * 80)
def test_any_text_has_a_domain_of_a_known_form_or_none(scheme, rest):
    domain = domain_of(scheme + rest)
    assert domain == "" or (HOST.fullmatch(domain) and len(domain) <= MAX_DOMAIN_CHARS)
    assert without_user(without_user(scheme + rest)) == without_user(scheme + rest)
    masked(scheme + rest)


@given(
    st.text("abcXYZ:!$&'*%20.\u00fc", max_size=30),
    st.sampled_from(["https", "postgresql+psycopg", "ftp"]),
)
def test_user_and_password_leave_the_address_and_the_domain_stays(user, scheme):
    address = f"{scheme}://{user}@example.org:80/a@b?c@d"
    assert without_user(address) == f"{scheme}://example.org:80/a@b?c@d"
    assert domain_of(without_user(address)) == ("" if scheme.startswith("p") else "example.org")


@pytest.mark.parametrize(
    "address",
    [
        "https://example.org/@jane",
        "https://example.org?u=a@b",
        "guide/a@b.md",
        "mailto:jane@example.org",
        "//example.org/a@b",
    ],
)
def test_what_is_no_user_stays(address):
    assert without_user(address) == address


@pytest.mark.parametrize(
    ("address", "shown", "counts"),
    [
        (
            "https://example.org/u/jane@example.org",
            "https://example.org/u/[email██████████",
            {"email": 1},
        ),
        (
            "https://example.org/u?mail=jane%40example.org&b=%2F",
            "https://example.org/u?mail=[email██████████&b=/",
            {"email": 1},
        ),
        ("tel:+1 415 555 0123", "tel:[phone█████████", {"phone": 1}),
        (
            "https://example.org/?n=4111%201111%201111%201111&m=a@example.org",
            "https://example.org/?n=[card██████████████&m=[email███████",
            {"card": 1, "email": 1},
        ),
        ("https://example.org/a%20b%0Ac", "https://example.org/a%20b%0Ac", {}),
    ],
)
def test_personal_data_is_masked_percent_encoded_or_not(address, shown, counts):
    assert masked(address) == (shown, counts)


def test_no_line_end_comes_out_of_a_decoded_address():
    assert (
        masked("https://example.org/%0A%0D%00%7f/jane%40example.org").address
        == "https://example.org/%0A%0D%00%7f/[email██████████"
    )
