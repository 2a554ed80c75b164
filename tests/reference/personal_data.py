"""Two hundred made-up personal values, documents and outputs that hold them, and a search for them in everything that a run leaves behind.

The values are put together here, so that no scanner takes the tests for a leak; none belongs to anybody.
"""

import json
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

N_EACH = 40
KINDS = ("email", "phone", "card", "iban", "key")
RUN = 200
"""More characters of a source in a row than this must not leave the home."""


def _luhn(head: str) -> str:
    return next(
        head + digit
        for digit in string.digits
        if sum(
            value - 9 if value > 9 else value
            for value in [
                int(c) * (2 if place % 2 else 1) for place, c in enumerate(reversed(head + digit))
            ]
        )
        % 10
        == 0
    )


def _iban(number: int) -> str:
    account = f"{37040044:08d}{532013000 + 7919 * number:010d}"
    check = 98 - int("".join(str(int(c, 36)) for c in f"{account}DE00")) % 97
    whole = f"DE{check:02d}{account}"
    return whole if number % 2 else " ".join(whole[at : at + 4] for at in range(0, len(whole), 4))


def _card(number: int) -> str:
    whole = _luhn(f"4{111 + number:03d}{22220000 + 1013 * number:08d}{100 + number:03d}")
    return whole if number % 2 else " ".join(whole[at : at + 4] for at in range(0, 16, 4))


def _key(number: int) -> str:
    letters = "".join(
        (string.ascii_letters + string.digits)[(7 * place + 11 * number) % 62]
        for place in range(34)
    )
    return (
        f"gh{'p'}_{letters}7Z",
        f"A{'KIA'}{letters.upper()[:14]}Q7",
        f"s{'k'}-{letters[:24]}9a",
        f"hf{'_'}{letters}8B",
    )[number % 4]


def values(number: int) -> dict[str, str]:
    """Five values of one document, each of another kind."""
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
WORDS = (
    "meadow",
    "copper",
    "lantern",
    "harvest",
    "violin",
    "granite",
    "orchard",
    "compass",
    "feather",
    "harbour",
)


def subject(number: int) -> str:
    """Words that only one document has."""
    return f"{WORDS[number % 10]} {WORDS[(number // 10 + 3 + number) % 10]}{number}"


def sentence(number: int) -> str:
    """One long sentence of the document, far over what may leave, with two values in it."""
    held = values(number)
    return (
        f"The {subject(number)} service is looked after by the team that reads {held['email']} every morning and can be called at {held['phone']} until late in the evening, and "
        f"whoever finds the {subject(number)} service broken on a weekend writes down what was seen, when it was seen and which of the many parts of the service did not answer number {number} at all."
    )


def body(number: int) -> str:
    held = values(number)
    return (
        f"# Service {subject(number)} of {held['email']}\n\n## Care\n\n{sentence(number)}\n\n## Bills\n\nBills of the {subject(number)} service are paid from {held['iban']} or with the card {held['card']} "
        f"before the month ends.\n\n## Access\n\nScripts that ask the {subject(number)} service use {held['key']} as their key.\n"
    )


def address(number: int) -> str:
    """Address of a document, with a value in it in one of several ways."""
    held = values(number)
    return (
        f"https://example.org/people/{held['email']}",
        f"https://example.org/d{number}?to={held['email'].replace('@', '%40')}",
        f"https://example.org/d{number}?card={held['card'].replace(' ', '')}&x=1",
        f"https://example.org/k/{held['key']}#top",
    )[number % 4]


def markdown(number: int) -> str:
    """Document with front matter, of which every part holds a value."""
    held = values(number)
    return f"---\ntitle: Service {subject(number)} of {held['email']}\nauthor: Vorname Name <{held['email']}>\nurl: {address(number)}\n---\n\n{body(number)}"


def beir(number: int) -> dict[str, object]:
    return {
        "_id": f"d{number}",
        "title": f"Service of {values(number)['email']}",
        "text": body(number),
        "metadata": {"url": address(number), "author": values(number)["email"]},
    }


def question(number: int) -> str:
    return (
        f"Who looks after the {subject(number)} service and can be called when the {subject(number)} service is broken on a weekend?"
        + (f" Is it {values(number)['email']}?" if number % 5 == 0 else "")
    )


def output(number: int, document: str) -> dict[str, object]:
    """What a system of one's own says: it copies the source, quotes it, and gives its place in a document's text."""
    text, care = body(number), sentence(number)
    start = document.index(care)
    payload = {
        "doc_id": f"d{number}.md",
        "quote": care,
        "source_url": address(number),
        "offsets": {"start": start, "end": start + len(care), "unit": "char"},
    }
    contexts = [
        {
            "doc_id": f"d{number}.md",
            "id": f"part-{number}",
            "text": text,
            "url": address(number),
            "title": f"of {values(number)['email']}",
        }
    ]
    answer = f"It is said that {care} Ask {values(number)['phone'].removeprefix('+')} or {values(number)['email']} [1]."
    return {
        "query_id": f"q{number}",
        "question": question(number),
        "answer": answer,
        "contexts": contexts,
        "citations": [payload, f"as {values(number)['email']} says: {care}"],
    }


def _texts(path: Path) -> Iterator[str]:
    """What a file says: as it stands, with its JSON read, and the cells of a Parquet file."""
    if path.suffix == ".parquet":
        yield pd.read_parquet(path).to_json(force_ascii=False)
        return
    raw = path.read_bytes().decode("utf-8", "replace")
    yield raw
    yield re.sub(
        r"\\u([0-9a-fA-F]{4})|\\n", lambda match: chr(int(match[1], 16)) if match[1] else " ", raw
    )


def outputs(*places: Path) -> Iterator[tuple[str, str]]:
    """(file, text) of every file below the places."""
    for place in places:
        for path in sorted(place.rglob("*") if place.is_dir() else [place]):
            if path.is_file():
                for text in _texts(path):
                    yield path.name, text


def leaked(found: Iterator[tuple[str, str]]) -> set[tuple[str, str]]:
    """(file, value) of every value that stands in what a run left behind, blanks and percent signs aside."""
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
    """(file, run) of every run of more than RUN characters of a source, white space evened out.

    Such a run holds one whole block of half its length, wherever the blocks of the output begin: only around these is looked closer.
    """
    plain_sources = [" ".join(source.split()) for source in sources]
    halves = {piece for source in plain_sources for _, piece in _windows(source, RUN // 2)}
    wholes = {piece for source in plain_sources for _, piece in _windows(source, RUN + 1)}
    seen = set()
    for name, text in found:
        plain = " ".join(
            re.sub(r"\n {5,}(?=\S)", "\n| ", text).split()
        )  # an address at the end of one line of `explain` is no part of the next
        for at, block in _windows(plain, RUN // 2, RUN // 2):
            if block in halves:
                seen |= {
                    (name, piece)
                    for _, piece in _windows(plain[max(0, at - RUN) : at + 2 * RUN], RUN + 1)
                    if piece in wholes
                }
    return seen


def jsonl(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
