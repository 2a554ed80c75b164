"""Write a gold set whose texts all attack the page that shows them.

The texts try to run, to lead away, to break the layout or to be misread. This file holds the texts
and the files made of them. The tests that open a page assert its behaviour.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

FAR = "https://evil.invalid"
"""Address that payloads try to reach. Its host name does not resolve."""
_TEXTS = json.loads(Path(__file__).with_name("hostile_texts.json").read_text(encoding="utf-8"))
PAYLOADS: dict[str, str] = _TEXTS["payloads"]
"""Payloads (name -> text).

A payload that runs sets `window.__pwned`, opens a dialog or fetches from FAR.
"""
ADDRESSES: list[str] = _TEXTS["addresses"]
"""Source addresses. Only the http and https addresses may become links."""
NAMES: list[str] = _TEXTS["names"]
"""Ids and tags with names of JavaScript's built-in properties.

A lookup in a plain object would find the built-in property.
"""
QUERY_IDS: list[str] = _TEXTS["query_ids"]
"""Query ids that the files allow: no white space, no slashes, no control characters.

Pages show the last ids in another form, and two of these ids look alike.
"""

_SYLLABLES = tuple("ba de fi go hu ka le mi no pu ra se ti vo zu".split())
LOUD_EVERY: int = 6
"""Every n-th topic has documents that match better than its gold, so that the gold is missed."""
N_PLAIN = 6
"""Number of questions without an answer in the gold."""

CONFIG = """\
name: hostile
version: "1 </script><script>window.__pwned=40</script> of {{7*7}} \\u202e"
corpus: {loader: beir, path: collection, chunker: {kind: text, max_tokens: 64}}
k: [1, 5, 10]
depth: 20
seeds: [13]
primary: toString
strategies:
  - {name: constructor, kind: bm25}
  - {name: toString, kind: vector, embedding: {model: lsa-16}}
  - {name: mine, kind: external, recorded: outputs.jsonl}
trust: {domains: [example.org], quarantine: none}
gates: {required: [], advisory: [poisoning, trust, stability], min_queries: 10}
nightly: false
answers: {mode: recorded, recorded: outputs.jsonl, strategy: mine}
"""


def subject(number: int) -> str:
    """Return three made-up words that only this topic has."""
    n = len(_SYLLABLES)
    places = (number % n, number // n % n, (7 * number + 3) % n)
    first, second, third = (_SYLLABLES[place] for place in places)
    return f"{first}{second}rok {second}{third}lim {third}{first}dast"


def topics() -> list[tuple[str, str]]:
    """List (query id, payload) of every question with gold, each payload once.

    The ids are as hostile as the files allow.
    """
    ids = [*NAMES, *QUERY_IDS]
    return [
        (ids[number] if number < len(ids) else f"topic-{number}", payload)
        for number, payload in enumerate(PAYLOADS.values())
    ]


def fact(number: int, payload: str) -> str:
    """Return the sentence of the document that answers the question.

    The payload is inside the sentence, so that the page sets its marks around the payload.
    """
    return f"The {subject(number)} {payload[:120]} is kept for {number + 2} days."


def _is_plain(payload: str) -> bool:
    return payload.isprintable() and "/" not in payload and "\\" not in payload


def _document(number: int, payload: str) -> dict[str, object]:
    name = (
        NAMES[number]
        if number < len(NAMES)
        else f"doc <b onclick=window.__pwned=50>{number}</b> ' \" & {{{{7*7}}}}"
    )
    text = (
        f"{payload} opens the page of {subject(number)}.\n\n"
        f"\U0001f469\u200d\U0001f467 {fact(number, payload)} More of it: {payload}\n\n"
        f"Nothing else of {subject(number)} is said here, lone \ud800 surrogate."
    )
    url = ADDRESSES[number % len(ADDRESSES)]
    section = f"{name}#{payload[:40]}" if _is_plain(payload) else None
    return {
        "_id": name,
        "title": f"{payload[:300]} title",
        "text": text,
        "metadata": {"url": url, "author": payload[:200], "section_id": section},
    }


def _decoys(number: int, payload: str) -> list[dict[str, object]]:
    """List documents that no gold names; for some topics they match better than the gold."""
    texts = [f"Others say of {subject(number)}: {payload}"]
    if number % LOUD_EVERY == 0:
        question = f"How long is {subject(number)} kept, how long, {subject(number)}"
        texts = [f"{question}, in case {again}" for again in range(12)]
    url = ADDRESSES[-1 - number % len(ADDRESSES)]
    return [
        {
            "_id": f"decoy\u202e-{number}-{again}",
            "title": "=1+1",
            "text": text,
            "metadata": {"url": url},
        }
        for again, text in enumerate(texts)
    ]


def _documents() -> list[dict[str, object]]:
    rows = [
        row
        for number, (_, payload) in enumerate(topics())
        for row in (_document(number, payload), *_decoys(number, payload))
    ]
    text, url = f"{subject(0)} " + "W" * 1_000_000, "https://example.org/" + "a" * 100_000
    endless = {"_id": "endless", "title": "A" * 1_000_000, "text": text, "metadata": {"url": url}}
    return [*rows, endless]


def _questions() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for number, (query_id, payload) in enumerate(topics()):
        tags = [NAMES[number % len(NAMES)], payload[:200], "all <b>of</b> them"]
        rows.append(
            {
                "query_id": query_id,
                "text": f"How long is the {subject(number)} kept {payload}",
                "answerable": True,
                "tags": tags,
            }
        )
    rows += [
        {
            "query_id": f"open-{n}",
            "text": f"Who paints <i>{n}</i> {'=1+1' * n}?",
            "answerable": False,
            "tags": ["__proto__"],
        }
        for n in range(N_PLAIN)
    ]
    return rows


def _wordings() -> list[dict[str, object]]:
    named = ("__proto__", "<img-src=x-onerror=alert(1)>")
    return [
        {
            "query_id": query_id,
            "paraphrase_id": named[again],
            "text": f"{payload} {('days of', 'keep')[again]} {subject(number)}",
            "source": payload[:100],
        }
        for number, (query_id, payload) in enumerate(topics())
        for again in range(1 + number % 2)
    ]


def _outputs() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for number, (query_id, payload) in enumerate(topics()):
        document = _document(number, payload)
        own = {
            "doc_id": document["_id"],
            "text": str(document["text"]).rpartition("\n\n")[0],  # a lone surrogate is refused
            "url": ADDRESSES[number % len(ADDRESSES)],
            "title": payload[:200],
        }
        other = {
            "doc_id": f"own-{payload[:20] if _is_plain(payload) else number}",
            "text": f"{payload} of a system of one's own",
            "score": 9e15,
        }
        quoted = {
            "doc_id": document["_id"],
            "quote": fact(number, payload),
            "source_url": "javascript:window.__pwned=60",
            "offsets": {"start": 0, "end": 10, "unit": "char"},
        }
        text = f"{payload} It is kept for {number + 2} days [1]. {payload} [7]."
        contexts = [other, own] if number % 4 == 3 else [own, other]
        rows.append(
            {
                "query_id": query_id,
                "question": f"How long is the {subject(number)} kept {payload}",
                "answer": text,
                "contexts": contexts,
                "citations": [quoted, f"token {payload[:100]}"],
            }
        )
    rows += [
        {
            "query_id": f"open-{n}",
            "question": "?",
            "answer": "NOT FOUND" if n % 2 else f"It is <b>{n}</b> [1]",
            "contexts": [{"text": "<b>none</b>"}],
        }
        for n in range(N_PLAIN)
    ]
    return rows


def _lines(rows: Iterable[object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write(folder: Path) -> None:
    """Write the gold set `hostile` below a folder."""
    gold = folder / "hostile"
    (gold / "collection").mkdir(parents=True, exist_ok=True)
    named = [str(_document(number, payload)["_id"]) for number, (_, payload) in enumerate(topics())]
    pairs = list(zip(topics(), named, strict=True))
    answers = [
        {"query_id": query_id, "doc_id": name, "anchors": [{"quote": fact(number, payload)}]}
        for number, ((query_id, payload), name) in enumerate(pairs)
    ]
    files = {
        "gold_set.yaml": CONFIG,
        "collection/corpus.jsonl": _lines(_documents()),
        "queries.jsonl": _lines(_questions()),
        "paraphrases.jsonl": _lines(_wordings()),
        "outputs.jsonl": _lines(_outputs()),
        "answers.jsonl": _lines(answers),
        "qrels.tsv": "query-id\tcorpus-id\tscore\n"
        + "".join(f"{query_id}\t{name}\t1\n" for (query_id, _), name in pairs),
    }
    for name, text in files.items():
        (gold / name).write_text(text, encoding="utf-8")


def command(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command line in a process that does not see the machine's own settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAG_EVAL_")}
    env |= {
        f"RAG_EVAL_{name.upper()}": str(root / name) for name in ("home", "reports", "gold_sets")
    }
    return subprocess.run(
        [sys.executable, "-m", "rag_eval", *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        env=env,
        cwd=root,
        check=False,
    )
