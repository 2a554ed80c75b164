"""Public answers with numbered citations, and the same answers with exchanged markers."""

import dataclasses
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

from rag_eval.core.types import Answer, CitedSpan, Evidence, Offsets, ScoredChunk
from rag_eval.corpus.markers import read_marks

_SOURCE = re.compile(r"\[(\d+)\]\s+\S+\s+(?=\S)")


def _lines(path: Path) -> Iterator[dict]:
    return map(json.loads, path.read_text(encoding="utf-8").splitlines())


def numbered(query_id: str, answer: str, sources: dict[int, str]) -> Answer:
    """Make a recorded answer whose markers cite whole sources; other numbers are left out."""
    place = {number: at for at, number in enumerate(sources)}
    shown = []
    for rank, (number, text) in enumerate(sources.items(), 1):
        names = (f"d{number}",) * 3
        chunk = ScoredChunk(
            *names, "", Offsets(0, len(text)), 1, "", "", "", "", text, 1.0, 1.0, rank, rank
        )
        shown.append(Evidence(f"d{number}:1", chunk, "recorded", 1, 1))
    text, marks, _ = read_marks(answer)
    cited = tuple(
        CitedSpan(segment, place[number], f"d{number}", 0, len(sources[number]))
        for segment, number in marks
        if number in place
    )
    return Answer(
        query_id, "recorded", "answered", text=text, citations=cited, evidence=tuple(shown)
    )


def quotesum(data: Path) -> list[Answer]:
    """Return the human answers of QuoteSum, each quote with the marker of its source."""
    found = []
    for row in _lines(data / "quotesum" / "dev.jsonl"):
        sources = {
            n: f"{row[f'title{n}']}\n{row[f'source{n}']}" for n in range(1, 9) if row[f"source{n}"]
        }
        marked = re.sub(r"\[ (\d+) (.+?) \]", r"\2 [\1]", row["summary"])
        found.append(numbered(row["qid"], re.sub(r" +([.,;])", r"\1", marked), sources))
    return found


def expertqa(data: Path) -> list[Answer]:
    """Return the answers of ExpertQA's systems with the evidence that their numbers stand for."""
    samples = {}
    for part in ("rand_test", "rand_val"):
        for row in _lines(data / "expertqa" / f"{part}.jsonl"):
            samples.setdefault(row["question"], row["answers"])
    found = []
    for question, systems in samples.items():
        for held in systems.values():
            sources: dict[int, str] = {}
            for text in (text for claim in held["claims"] for text in claim["evidence"]):
                if match := _SOURCE.match(text):
                    sources.setdefault(int(match[1]), text[match.end() :])
            found.append(numbered(question, held["answer_string"], sources))
    return found


def with_exchanged_markers(answers: list[Answer], seed: int) -> list[tuple[Answer, Answer]]:
    """Pair each answer with a copy whose sentences cite other sources of the answer.

    Sentences that leave no other source lose their citations in both.
    """
    rng, pairs = random.Random(seed), []
    for answer in answers:
        texts = [item.chunk.text for item in answer.evidence]
        true, exchanged = [], []
        for segment in sorted({span.segment for span in answer.citations}):
            own = [span for span in answer.citations if span.segment == segment]
            used = {texts[span.evidence] for span in own}
            others = [at for at, text in enumerate(texts) if text not in used]
            if others:
                true += own
                for at in rng.sample(others, min(len(own), len(others))):
                    name = answer.evidence[at].chunk.doc_id
                    exchanged.append(CitedSpan(segment, at, name, 0, len(texts[at])))
        if true:
            both = (dataclasses.replace(answer, citations=tuple(one)) for one in (true, exchanged))
            pairs.append(tuple(both))
    return pairs
