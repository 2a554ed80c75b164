"""Measure how often a wrong detail is noticed in a sentence that people found supported.

perturbations.py                 on the judged half of the questions
perturbations.py --development   on the other half, where words and thresholds are chosen

Sentences are SciFact claims with their SUPPORT abstract, and sentences of the human answers of
CLAPnq and QuoteSum. Each gets at most one change of each class, by rule (`perturbations.json`). A
change is noticed if the sentence was supported (score >= 0.5) before it and is not after it. A
false alarm is an unchanged sentence that only the conflicts with its window make unsupported.
SciFact's CONTRADICT labels show the same on claims that people wrote to be wrong. Intervals are
95 %, over questions.
"""

import argparse
import functools
import hashlib
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
from timing import data_folder, emit, indexed_text, json_lines, skipped

from rag_eval.measures import groundedness
from rag_eval.measures.groundedness import SUPPORTED, answer_sentences, numbers

SEED, RESAMPLES = 13, 2000
LISTS = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
NUMBER_WORDS, MONTHS = LISTS["number_words"], LISTS["months"]
NOT_NAMES = frozenset(LISTS["not_names"])
UNITS = [line.split() for line in LISTS["units"]]
OPPOSITE: dict[str, list[str]] = {}
for _pair in LISTS["antonyms"]:
    _left, _right = _pair.split()
    OPPOSITE.setdefault(_left, []).append(_right)
    OPPOSITE.setdefault(_right, []).append(_left)

NUMBER = re.compile(r"(?<![\w.,-])\d{1,3}(?:,\d{3})+(?![\w-])|(?<![\w.,-])\d+(?:\.\d+)?(?![\w-])")
NAME = re.compile(r"[A-Z][\w'’-]*\w(?: [A-Z][\w'’-]*\w)*")
WORD = re.compile(r"[A-Za-z]+")
AUXILIARY = re.compile(
    r"\b(?:is|are|was|were|can|could|will|would|may|might|should|must|does|do|did"
    r"|(?:has|have|had)(?= been\b| \w+ed\b))\b(?! not\b|n['’]t)"
)
NEGATED = re.compile(r"\b(is|are|was|were|could|will|would|does|did|has|have|had|can) ?not\b")
JOINED = re.compile(r"\W*(?:(?:and|or|the|of|vs|,)\W*)*")
"""Text between two names that may change places without a change of meaning."""
QUOTED = re.compile(r"\[ ?\d+ |\]")


class Item(NamedTuple):
    """A sentence that people found supported, its question and its evidence."""

    question: str
    sentence: str
    evidence: str


def is_judged(question: str) -> bool:
    """Tell whether a question is in the half that is judged, not in the development half."""
    return hashlib.sha256(question.encode()).digest()[-1] % 2 == 1


def scifact(data: Path, label: str) -> Iterator[tuple[Item, str]]:
    """Yield the claims with a rationale of the label, each with its abstract and its rationale."""
    corpus = {row["_id"]: row for row in json_lines(data / "scifact" / "corpus.jsonl")}
    claims = {row["_id"]: row["text"] for row in json_lines(data / "scifact" / "queries.jsonl")}
    rationales: dict[tuple[str, str], list[str]] = {}
    for row in json_lines(data / "scifact" / "evidence.jsonl"):
        if row["label"] == label:
            text = corpus[row["doc_id"]]["text"]
            spans = [text[span["start"] : span["end"]].strip() for span in row["spans"]]
            rationales.setdefault((row["query_id"], row["doc_id"]), []).extend(spans)
    for (claim, doc), spans in rationales.items():
        yield Item(claim, claims[claim], indexed_text(corpus[doc])), " ".join(spans)


def clapnq(data: Path) -> Iterator[Item]:
    """Yield the sentences of the human answers, each with the passage."""
    for row in json_lines(data / "clapnq" / "clapnq_dev_answerable.jsonl"):
        evidence = indexed_text(row["passages"][0])
        for answer in dict.fromkeys(output["answer"] for output in row["output"]):
            for sentence in answer_sentences(answer):
                yield Item(row["id"], sentence, evidence)


def quotesum(data: Path) -> Iterator[Item]:
    """Yield the sentences of the human answers, each with all sources of the question."""
    for row in json_lines(data / "quotesum" / "dev.jsonl"):
        sources = [(row[f"title{n}"], row[f"source{n}"]) for n in range(1, 9)]
        evidence = "\n\n".join(f"{title}\n{text}" for title, text in sources if text)
        plain = re.sub(r" +([.,;])", r"\1", " ".join(QUOTED.sub(" ", row["summary"]).split()))
        for sentence in answer_sentences(plain):
            yield Item(row["qid"], sentence, evidence)


# ---- Changes by rule. Each returns the changed sentence, or None if the rule does not apply.


def replaced(text: str, span: tuple[int, int], by: str) -> str:
    """Replace a part of a text, with its capital."""
    old = text[slice(*span)]
    return (
        text[: span[0]] + (by[:1].upper() + by[1:] if old[:1].isupper() else by) + text[span[1] :]
    )


def names_of(text: str) -> list[re.Match[str]]:
    """Find runs of capitalised words, except a single word at the start of the text."""
    found = []
    for match in NAME.finditer(text):
        words = match[0].split()
        is_start = match.start() == 0 and not match[0][1:2].isupper() and len(words) == 1
        if not is_start and not NOT_NAMES & {word.lower() for word in words}:
            found.append(match)
    return found


def other_number(item: Item, rng: random.Random, *, known: bool) -> str | None:
    """Put a number of the evidence, or an absent one of the same length, for a known number."""
    own, given = set(numbers(item.sentence)), set(numbers(item.evidence))
    spans = [m for m in NUMBER.finditer(item.sentence) if given.issuperset(numbers(m[0]))]
    if not spans:
        return None
    old = rng.choice(spans)
    if known:
        is_year = re.fullmatch(r"1\d{3}|20\d{2}", old[0]) is not None
        same = [
            match[0]
            for match in NUMBER.finditer(item.evidence)
            if not own.intersection(numbers(match[0]))
            and (re.fullmatch(r"1\d{3}|20\d{2}", match[0]) is not None) == is_year
        ]
        return replaced(item.sentence, old.span(), rng.choice(sorted(set(same)))) if same else None
    for _ in range(50):
        digits = [char if char in ".," else rng.choice("123456789") for char in old[0]]
        if re.fullmatch(r"1\d{3}|20\d{2}", old[0]):
            digits = list(str(rng.randint(1800, 2015)))
        new = "".join(digits)
        if not given.intersection(numbers(new)):
            return replaced(item.sentence, old.span(), new)
    return None


def other_word(item: Item, rng: random.Random, words: Sequence[str]) -> str | None:
    """Put another word of the list, absent from the evidence, for a word of the list."""
    known = {word.lower() for word in WORD.findall(item.evidence)}
    listed = {word.lower() for word in words}
    spans = [m for m in WORD.finditer(item.sentence) if m[0].lower() in listed & known]
    if words is MONTHS:
        spans = [match for match in spans if match[0] in words]
    given = {str(NUMBER_WORDS.index(word) + 2) for word in NUMBER_WORDS[:11] if word in known}
    shown = known | {
        w
        for w, n in zip(NUMBER_WORDS[:11], range(2, 13), strict=True)
        if str(n) in set(numbers(item.evidence)) | given
    }
    if not spans:
        return None
    old = rng.choice(spans)
    ordinal = old[0].lower().endswith(("d", "th")) and old[0].lower() not in {"hundred", "thousand"}
    same = [
        word
        for word in words
        if word.lower() not in shown
        and (
            words is not NUMBER_WORDS
            or (word.endswith(("d", "th")) and word not in {"hundred", "thousand"}) == ordinal
        )
    ]
    return replaced(item.sentence, old.span(), rng.choice(same)) if same else None


def other_unit(item: Item, rng: random.Random) -> str | None:
    """Put another unit of the same dimension, absent from the evidence, behind a number."""
    known = {word.lower() for word in WORD.findall(item.evidence)}
    for match in re.finditer(r"\b(\d[\d,.]*|[a-z]+)[ -]([A-Za-z]+)\b", item.sentence):
        if not match[1][0].isdigit() and match[1] not in NUMBER_WORDS:
            continue
        for line in UNITS:
            others = [unit for unit in line if unit not in known]
            if match[2] in line and match[2] in known and others:
                return replaced(item.sentence, match.span(2), rng.choice(others))
    return None


def other_name(item: Item, rng: random.Random, foreign: Sequence[str] = ()) -> str | None:
    """Put a name of `foreign`, or another name of the evidence, for a name of the evidence."""
    spans = [match for match in names_of(item.sentence) if match[0] in item.evidence]
    if not spans:
        return None
    old = rng.choice(spans)
    pool = foreign or sorted({match[0] for match in names_of(item.evidence)})
    known = {word.lower() for word in WORD.findall(item.evidence if foreign else item.sentence)}
    size = len(old[0].split())
    others = [
        name
        for name in pool
        if not known & {word.lower() for word in WORD.findall(name)}
        and name.isupper() == old[0].isupper()
        and (size > 1) == (len(name.split()) > 1)
    ]
    return replaced(item.sentence, old.span(), rng.choice(others)) if others else None


def antonym(item: Item, rng: random.Random) -> str | None:
    """Put the opposite for a word."""
    spans = [match for match in WORD.finditer(item.sentence) if match[0].lower() in OPPOSITE]
    if not spans:
        return None
    old = rng.choice(spans)
    return replaced(item.sentence, old.span(), rng.choice(OPPOSITE[old[0].lower()]))


def swapped_roles(item: Item, rng: random.Random) -> str | None:
    """Let two names change places, or what stands before and behind a verb."""
    text = item.sentence
    found = [m for m in names_of(text) if m[0] in item.evidence]
    if text[:1].isupper() and (first := NAME.match(text)) and first[0] in item.evidence[1:]:
        words = {word.lower() for word in first[0].split()}
        if not words & NOT_NAMES and first.span() not in [m.span() for m in found]:
            found = [first, *found]
    pairs = [
        (a, b)
        for at, a in enumerate(found)
        for b in found[at + 1 :]
        if a[0] != b[0] and not JOINED.fullmatch(text[a.end() : b.start()])
    ]
    if pairs:
        a, b = rng.choice(pairs)
        middle = text[a.end() : b.start()]
        return text[: a.start()] + b[0] + middle + a[0] + text[b.end() :]
    verbs = [m for verb in LISTS["transitive"] for m in re.finditer(rf" {verb} ", text)]
    if len(verbs) == 1 and "," not in text:
        before, behind = text[: verbs[0].start()], text[verbs[0].end() :].rstrip(". ")
        if len(before.split()) <= 6 and len(behind.split()) <= 6:
            return f"{behind[:1].upper()}{behind[1:]}{verbs[0][0]}{before}."
    return None


def negated(item: Item, _rng: random.Random) -> str | None:
    """Remove "not", or add it behind an auxiliary or before a main verb in the present tense."""
    text = item.sentence
    if match := NEGATED.search(text):
        return text[: match.start()] + match[1] + text[match.end() :]
    if match := AUXILIARY.search(text):
        return f"{text[: match.end()]}{'' if match[0] == 'can' else ' '}not{text[match.end() :]}"
    for match in WORD.finditer(text):
        if match[0] in LISTS["verbs"] and match.start():
            verb = match[0]
            base = (
                verb[:-2]
                if verb.endswith(("sses", "oes", "zes")) and verb != "stabilizes"
                else verb[:-1]
            )
            return f"{text[: match.start()]}does not {base}{text[match.end() :]}"
    return None


Change = Callable[[Item, random.Random], str | None]


def changes(items: Sequence[Item]) -> dict[str, Change]:
    """Return the classes of changes; foreign names come from the evidence of all items."""
    pool = sorted({match[0] for item in items for match in names_of(item.evidence)})
    return {
        "number absent from the evidence": functools.partial(other_number, known=False),
        "number from elsewhere in the evidence": functools.partial(other_number, known=True),
        "number word": functools.partial(other_word, words=NUMBER_WORDS),
        "foreign name": functools.partial(other_name, foreign=pool),
        "other name from the evidence": other_name,
        "antonym": antonym,
        "roles swapped": swapped_roles,
        "negation": negated,
        "unit": other_unit,
        "month": functools.partial(other_word, words=MONTHS),
    }


# ---- Figures with intervals over questions


def grouped(group: Sequence[str]) -> np.ndarray:
    """Return how often each row is drawn in each bootstrap sample of groups."""
    _, code = np.unique(list(group), return_inverse=True)
    n = int(code.max()) + 1
    drawn = np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    return drawn[:, code]


def rate(hits: np.ndarray, group: Sequence[str]) -> dict[str, object]:
    """Return a share with its interval and its denominator."""
    if not len(hits):
        return {"n": 0}
    weights = grouped(group)
    low, high = np.quantile(weights @ hits / np.maximum(weights.sum(axis=1), 1), (0.025, 0.975))
    shown = [round(float(hits.mean()), 3), round(float(low), 3), round(float(high), 3)]
    return {"n": len(hits), "questions": len(set(group)), "rate": shown}


def auroc(high: np.ndarray, low: np.ndarray, groups: Sequence[str]) -> list[float]:
    """Return the AUROC of two samples, with an interval over the groups of both, `high` first."""
    wins = (high[:, None] > low) + 0.5 * (high[:, None] == low)
    drawn = grouped(groups)
    first, second = drawn[:, : len(high)], drawn[:, len(high) :]
    sums = ((first @ wins) * second).sum(axis=1) / (first.sum(axis=1) * second.sum(axis=1))
    bounds = np.quantile(sums, (0.025, 0.975))
    return [round(float(value), 3) for value in (wins.mean(), *bounds)]


def scores(items: Sequence[Item]) -> tuple[np.ndarray, np.ndarray]:
    """Return the score of each item with and without the check of conflicts; no words score 0.

    The mean counts where an item has several sentences.
    """
    texts, evidence = [item.sentence for item in items], [[item.evidence] for item in items]
    checked = groundedness.groundedness(texts, evidence).value
    with mock.patch.object(groundedness, "find_conflicts", return_value=[]):
        plain = groundedness.groundedness(texts, evidence).value
    return np.nan_to_num(checked), np.nan_to_num(plain)


def measure_changes(name: str, items: Sequence[Item]) -> None:
    """Print the rate of false alarms, and the rate of noticed changes of each class."""
    score, plain = scores(items)
    group = [item.question for item in items]
    before = plain >= SUPPORTED
    kept = [q for q, is_kept in zip(group, before, strict=True) if is_kept]
    emit(
        "false alarms",
        set=name,
        supported=rate(before, group),
        **rate((score < SUPPORTED)[before], kept),
    )
    stays = np.flatnonzero(score >= SUPPORTED)
    for kind, change in changes(items).items():
        made = []
        for at in np.flatnonzero(before).tolist():
            item = items[at]
            seed = hashlib.sha256(f"{kind}|{item.question}|{item.sentence}".encode()).hexdigest()
            if (text := change(item, random.Random(seed))) is not None and text != item.sentence:
                made.append((at, item._replace(sentence=text)))
        places, changed = [at for at, _ in made], [item for _, item in made]
        if not made:
            continue
        score_now, plain_now = scores(changed)
        of = [item.question for item in changed]
        is_kept = np.isin(places, stays)
        emit(
            "perturbations",
            set=name,
            kind=kind,
            without_check=rate(plain_now < SUPPORTED, of)["rate"],
            noticed=rate(
                (score_now < SUPPORTED)[is_kept], [q for q, k in zip(of, is_kept, strict=True) if k]
            ),
        )


def measure_labels(data: Path, *, judged: bool) -> None:
    """Print how SciFact's SUPPORT and CONTRADICT claims are told apart, before and after."""
    found = {
        label: [pair for pair in scifact(data, label) if is_judged(pair[0].question) == judged]
        for label in ("SUPPORT", "CONTRADICT")
    }
    for evidence in ("abstract", "rationale"):
        parts = {
            label: [
                item if evidence == "abstract" else item._replace(evidence=rationale)
                for item, rationale in pairs
            ]
            for label, pairs in found.items()
        }
        shown: dict[str, object] = {}
        values = {}
        for label, items in parts.items():
            values[label] = score, plain = scores(items)
            group = [item.question for item in items]
            shown[f"flagged of {label}"] = rate(score < plain, group)
            own = plain >= SUPPORTED
            shown[f"no longer supported of {label}"] = rate(
                (score < SUPPORTED)[own], [q for q, k in zip(group, own, strict=True) if k]
            )
        groups = [item.question for label in parts for item in parts[label]]
        for at, when in enumerate(("after", "before")):
            shown[f"AUROC {when}"] = auroc(values["SUPPORT"][at], values["CONTRADICT"][at], groups)
        emit("scifact labels", evidence=evidence, **shown)


def main() -> None:
    """Print one JSON line for each set and class."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--development", action="store_true", help="use the development half")
    judged = not parser.parse_args().development
    data = data_folder()
    if data is None:
        skipped("perturbations", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    sets = {
        "scifact": [item for item, _ in scifact(data, "SUPPORT")],
        "clapnq": list(clapnq(data)),
        "quotesum": list(quotesum(data)),
    }
    for name, items in sets.items():
        own = [item for item in dict.fromkeys(items) if is_judged(item.question) == judged]
        measure_changes(name, own)
    measure_labels(data, judged=judged)


if __name__ == "__main__":
    main()
