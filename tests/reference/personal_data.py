"""Two hundred made-up personal values, documents that hold them, and a search for them.

The code joins the values from parts, so that no scanner reports the tests as a leak.
"""

import gzip
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

N_EACH = 40
KINDS = ("email", "phone", "card", "iban", "key")
RUN = 200
"""Largest number of consecutive characters of a source that may leave the home."""


def _luhn(head: str) -> str:
    digits = [int(c) * (1 + place % 2) for place, c in enumerate(reversed(head), 1)]
    return head + str(-sum(sum(divmod(value, 10)) for value in digits) % 10)


def _iban(number: int) -> str:
    account = f"{37040044:08d}{532013000 + 7919 * number:010d}"
    check = 98 - int("".join(str(int(c, 36)) for c in f"{account}DE00")) % 97
    whole = f"DE{check:02d}{account}"
    return whole if number % 2 else " ".join(whole[at : at + 4] for at in range(0, len(whole), 4))


def _card(number: int) -> str:
    whole = _luhn(f"4{111 + number:03d}{22220000 + 1013 * number:08d}{100 + number:03d}")
    return whole if number % 2 else " ".join(whole[at : at + 4] for at in range(0, 16, 4))


def _key(number: int) -> str:
    alphabet = string.ascii_letters + string.digits
    letters = "".join(alphabet[(7 * place + 11 * number) % 62] for place in range(34))
    return (
        f"gh{'p'}_{letters}7Z",
        f"A{'KIA'}{letters.upper()[:14]}Q7",
        f"s{'k'}-{letters[:24]}9a",
        f"hf{'_'}{letters}8B",
    )[number % 4]


def values(number: int) -> dict[str, str]:
    """Return the five values of one document, each of another kind."""
    return {
        "email": f"vorname.name{number}@" + f"abteilung{number}.example.org",
        "phone": (
            f"+49 30 {1234500 + number}",
            f"(0{300 + number}) 55{1000 + number}0",
            f"+1 (415) 555-{1000 + number}",
            f"415-555-{2000 + number}",
        )[number % 4],
        "card": _card(number),
        "iban": _iban(number),
        "key": _key(number),
    }


EVERY = [value for number in range(N_EACH) for value in values(number).values()]
WORDS = "meadow copper lantern harvest violin granite orchard compass feather harbour".split()


def subject(number: int) -> str:
    """Return words that only one document has."""
    return f"{WORDS[number % 10]} {WORDS[(number // 10 + 3 + number) % 10]}{number}"


def sentence(number: int) -> str:
    """Return a sentence of the document that holds two values and is much longer than RUN."""
    held, name = values(number), subject(number)
    return (
        f"The {name} service is looked after by the team that reads {held['email']} every morning "
        f"and can be called at {held['phone']} until late in the evening, and whoever finds the "
        f"{name} service broken on a weekend writes down what was seen, when it was seen and which "
        f"of the many parts of the service did not answer number {number} at all."
    )


def body(number: int) -> str:
    held, name = values(number), subject(number)
    return (
        f"# Service {name} of {held['email']}\n\n## Care\n\n{sentence(number)}\n\n"
        f"## Bills\n\nBills of the {name} service are paid from {held['iban']} or with the card "
        f"{held['card']} before the month ends.\n\n"
        f"## Access\n\nScripts that ask the {name} service use {held['key']} as their key.\n"
    )


def address(number: int) -> str:
    """Return the address of a document, which holds a value in one of several ways."""
    held = values(number)
    return (
        f"https://example.org/people/{held['email']}",
        f"https://example.org/d{number}?to={held['email'].replace('@', '%40')}",
        f"https://example.org/d{number}?card={held['card'].replace(' ', '')}&x=1",
        f"https://example.org/k/{held['key']}#top",
    )[number % 4]


def markdown(number: int) -> str:
    """Return a document with front matter; title, author, address and body hold values."""
    email = values(number)["email"]
    front = (
        f"title: Service {subject(number)} of {email}\nauthor: Vorname Name <{email}>\n"
        f"url: {address(number)}"
    )
    return f"---\n{front}\n---\n\n{body(number)}"


def question(number: int) -> str:
    name = subject(number)
    asked = (
        f"Who looks after the {name} service and can be called when the {name} service is broken"
    )
    more = f" Is it {values(number)['email']}?" if number % 5 == 0 else ""
    return f"{asked} on a weekend?{more}"


def output(number: int, document: str) -> dict[str, object]:
    """Return a system's answer that copies and quotes the source, with the place of the quote."""
    name, held, care = f"d{number}.md", values(number), sentence(number)
    start = document.index(care)
    payload = {
        "doc_id": name,
        "quote": care,
        "source_url": address(number),
        "offsets": {"start": start, "end": start + len(care), "unit": "char"},
    }
    context = {"doc_id": name, "id": f"part-{number}", "title": f"of {held['email']}"}
    context |= {"text": body(number), "url": address(number)}
    phone = held["phone"].removeprefix("+")
    return {
        "query_id": f"q{number}",
        "question": question(number),
        "answer": f"It is said that {care} Ask {phone} or {held['email']} [1].",
        "contexts": [context],
        "citations": [payload, f"as {held['email']} says: {care}"],
    }


def _texts(path: Path) -> Iterator[str]:
    """Return the text of a file: raw, with its JSON read, and the cells of a Parquet file."""
    if path.suffix == ".parquet":
        yield pd.read_parquet(path).to_json(force_ascii=False)
        return
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    raw = data.decode("utf-8", "replace")
    yield raw
    yield re.sub(
        r"\\u([0-9a-fA-F]{4})|\\n", lambda match: chr(int(match[1], 16)) if match[1] else " ", raw
    )


def outputs(*places: Path) -> Iterator[tuple[str, str]]:
    """Yield (file, text) of every file below the places."""
    for place in places:
        for path in sorted(place.rglob("*") if place.is_dir() else [place]):
            if path.is_file():
                for text in _texts(path):
                    yield path.name, text


def leaked(found: Iterator[tuple[str, str]]) -> set[tuple[str, str]]:
    """List (file, value) of every planted value in the files of a run.

    White space is ignored, and `%40` counts as `@`.
    """
    wanted = {value: re.sub(r"\s", "", value) for value in EVERY}
    seen = set()
    for name, text in found:
        plain = re.sub(r"\s", "", text).replace("%40", "@")
        seen |= {(name, value) for value, bare in wanted.items() if bare in plain}
    return seen


def _windows(text: str, width: int, step: int = 1) -> Iterator[tuple[int, str]]:
    for at in range(0, len(text) - width + 1, step):
        yield at, text[at : at + width]


def copied(found: Iterator[tuple[str, str]], sources: list[str]) -> set[tuple[str, str]]:
    """List (file, run) of every run of more than RUN characters of a source.

    White space is normalised. Such a run holds a whole block of RUN // 2 characters, so the search
    looks closer only around such blocks.
    """
    plain_sources = [" ".join(source.split()) for source in sources]
    halves = {piece for source in plain_sources for _, piece in _windows(source, RUN // 2)}
    wholes = {piece for source in plain_sources for _, piece in _windows(source, RUN + 1)}
    seen = set()
    for name, text in found:
        # An address at the end of a line of `explain` is no part of the next line.
        plain = " ".join(re.sub(r"\n {5,}(?=\S)", "\n| ", text).split())
        for at, block in _windows(plain, RUN // 2, RUN // 2):
            if block in halves:
                near = _windows(plain[max(0, at - RUN) : at + 2 * RUN], RUN + 1)
                seen |= {(name, piece) for _, piece in near if piece in wholes}
    return seen
