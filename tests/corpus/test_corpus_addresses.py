"""Addresses: the domain of an address, and its parts that may be shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.corpus.masking import domain_of, mask_decoded, without_user

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
        (f"https://{LONG}.{'b' * 61}/", f"{LONG}.{'b' * 61}"),
        ("python:pandas.DataFrame.merge", "python:pandas"),
        ("python:pandas", "python:pandas"),
    ],
)
def test_domains(address, domain):
    assert domain_of(address) == domain


NO_DOMAIN = f"""
guide/a.md corpus.jsonl#7 file:///etc/passwd mailto:a@example.org //example.org/a https:example.org
https:// https:///a https://:80/ https://user@/ https://.example.org/ https://example..org/
https://example.org:port/ https://example.org:80:80/ https://-example.org/ https://{"a" * 64}.org/
https://{LONG}.{"b" * 62}/ https://[2001:DB8::1]:443/ https://[::1 https://[not:ipv6]/ python:
python:pandas/x
https://good.example\\@evil.example/ https://good.example%2eevil.example/ https://stra\u00dfe.example/
https://\u2100.example/ https://\ufffd.example/ https://a\u200db.example/ javascript://example.org/
https://good.example\x00.evil.example/ https://\u00ad/
"""


@pytest.mark.parametrize("address", ["", "https://exam ple.org/", *NO_DOMAIN.split()])
def test_no_domain(address):
    assert domain_of(address) == ""


@given(
    st.text("abcXYZ:!$&'*%20.\u00fc", max_size=30),
    st.sampled_from(["https", "postgresql+psycopg", "ftp"]),
)
def test_user_and_password_leave_the_address_and_the_domain_stays(user, scheme):
    address = f"{scheme}://{user}@example.org:80/a@b?c@d"
    assert without_user(address) == f"{scheme}://example.org:80/a@b?c@d"
    assert domain_of(without_user(address)) == ("" if scheme.startswith("p") else "example.org")


@pytest.mark.parametrize(
    ("address", "shown", "counts"),
    [
        (
            "https://example.org/u/jane@example.org",
            "https://example.org/u/[email██████████",
            {"email": 1},
        ),
        (
            "https://example.org/u?mail=jane.doe%40example.org&b=%2F",
            "https://example.org/u?mail=[email████████████████&b=%2F",
            {"email": 1},
        ),
        ("tel:+1 415 555 0123", "tel:[phone█████████", {"phone": 1}),
        (
            "https://example.org/?n=4111%201111%201111%201111&m=a@example.org",
            "https://example.org/?n=[card████████████████████&m=[email███████",
            {"card": 1, "email": 1},
        ),
        ("https://example.org/a%20b%0Ac", "https://example.org/a%20b%0Ac", {}),
    ],
)
def test_personal_data_is_masked_percent_encoded_or_not(address, shown, counts):
    assert mask_decoded(address) == (shown, counts)
