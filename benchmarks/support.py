"""Measure how well groundedness tells supported sentences from others, and its throughput.

support.py                 on the judged half of the questions
support.py --development   on the other half, where the weights were chosen
support.py --only speed    4,000 sentences against ten contexts each

expertqa: claims of real systems that experts found supported or not by the cited text. clapnq,
quotesum and scifact: sentences that people wrote or found supported by their evidence, against the
most similar evidence of another question. The sets with 10 have nine or ten such contexts each.
Each set has three layouts of the same evidence: joined, as given, and one sentence a context.
`overlap` is the plain share of distinct words found anywhere. Intervals are 95 %, over questions.
"""

import argparse
import itertools
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import perturbations
from timing import data_folder, emit, indexed_text, json_lines, skipped

from rag_eval.corpus import chunking
from rag_eval.corpus.analyzer import Analyzer
from rag_eval.measures.groundedness import (
    FUNCTION_WORDS,
    answer_sentences,
    comparable,
    groundedness,
)

HEADER = re.compile(r"\s*\[\d+\]\s*\S+\s*")
"""Number and address in front of the text of ExpertQA's evidence."""
SHORTEST = 40
MANY = 10
SENTENCES, BAR = 4000, 20.0


class Pair(NamedTuple):
    """A sentence with evidence, and whether the evidence supports it."""

    question: str
    sentence: str
    evidence: list[str]
    is_supported: bool


def expertqa(data: Path) -> Iterator[Pair]:
    """Yield the claims with text as evidence; partly supported ones are left out."""
    rows = {
        row["question"]: row
        for part in ("rand_val", "rand_test")
        for row in json_lines(data / "expertqa" / f"{part}.jsonl")
    }
    for question, row in rows.items():
        for claim in itertools.chain(*(answer["claims"] for answer in row["answers"].values())):
            texts = [HEADER.sub("", text, count=1) for text in claim["evidence"]]
            texts = [text for text in texts if len(text) > SHORTEST]
            if texts and claim["support"] in {"Complete", "Incomplete"}:
                sentence = " ".join(answer_sentences(claim["claim_string"]))
                yield Pair(question, sentence, texts, claim["support"] == "Complete")


def against_others(
    items: Sequence[perturbations.Item], pool: dict[str, set[str]], many: int
) -> Iterator[Pair]:
    """Yield each sentence with its own evidence and with the most similar other evidence.

    `pool` maps each evidence text to the questions that it may support.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(stop_words="english", sublinear_tf=True)
    texts = list(pool)
    vectors = vectorizer.fit_transform(texts)
    likeness = vectorizer.transform([item.evidence for item in items]) @ vectors.T
    for at, item in enumerate(items):
        order = np.argsort(-likeness[[at]].toarray().ravel(), kind="stable")
        others = [texts[one] for one in order if item.question not in pool[texts[one]]][:many]
        place = at % many
        own = [*others[:place], item.evidence, *others[place : many - 1]]
        yield Pair(item.question, item.sentence, own, is_supported=True)
        yield Pair(item.question, item.sentence, others, is_supported=False)


def read_sets(data: Path) -> Iterator[tuple[str, list[Pair]]]:
    yield "expertqa", list(expertqa(data))
    clapnq, quotesum = list(perturbations.clapnq(data)), list(perturbations.quotesum(data))
    scifact = [item for item, _ in perturbations.scifact(data, "SUPPORT")]
    abstracts: dict[str, set[str]] = {
        indexed_text(row): set() for row in json_lines(data / "scifact" / "corpus.jsonl")
    }
    for label in ("SUPPORT", "CONTRADICT"):
        for item, _ in perturbations.scifact(data, label):
            abstracts[item.evidence].add(item.question)
    for name, items, many in (
        ("clapnq", clapnq, 1),
        ("clapnq10", clapnq, MANY),
        ("quotesum", quotesum, 1),
        ("scifact", scifact, 1),
        ("scifact10", scifact, MANY),
    ):
        pool = abstracts if items is scifact else {}
        for item in items if items is not scifact else ():
            pool.setdefault(item.evidence, set()).add(item.question)
        yield name, list(against_others(items, pool, many))


def layouts(texts: list[str]) -> dict[str, list[str]]:
    split = [text[start:end] for text in texts for start, end in chunking.spans(text)]
    return {"joined": ["\n\n".join(texts)], "as_given": texts, "one_sentence_each": split}


def overlap(pairs: Sequence[Pair]) -> np.ndarray:
    """Return the share of the distinct content words of each sentence in its evidence."""
    analyzer = Analyzer()
    ignored = set(analyzer.index([" ".join(FUNCTION_WORDS)])[0])
    found = analyzer.index([comparable(" ".join(pair.evidence)) for pair in pairs])
    wanted = analyzer.index([comparable(pair.sentence) for pair in pairs])
    shares = []
    for own, known in zip(wanted, found, strict=True):
        words = set(own) - ignored
        shares.append(len(words.intersection(known)) / len(words) if words else 0.0)
    return np.array(shares)


def measure(name: str, pairs: Sequence[Pair]) -> None:
    """Print the AUROC in each layout, that of plain overlap, and the gains."""
    supported = np.array([pair.is_supported for pair in pairs])
    questions = [pair.question for pair in pairs]
    ordered = np.concatenate([np.flatnonzero(supported), np.flatnonzero(~supported)])
    groups = [questions[at] for at in ordered]
    drawn = perturbations.grouped(groups)
    high, low = drawn[:, : supported.sum()], drawn[:, supported.sum() :]

    def auroc(score: np.ndarray) -> tuple[float, np.ndarray]:
        own, other = score[supported], score[~supported]
        wins = (own[:, None] > other) + 0.5 * (own[:, None] == other)
        return wins.mean(), ((high @ wins) * low).sum(axis=1) / (high.sum(axis=1) * low.sum(axis=1))

    def shown(value: float, samples: np.ndarray) -> list[float]:
        return [round(float(one), 3) for one in (value, *np.quantile(samples, (0.025, 0.975)))]

    found = {}
    for layout in ("joined", "as_given", "one_sentence_each"):
        evidence = [layouts(pair.evidence)[layout] for pair in pairs]
        scored = groundedness([pair.sentence for pair in pairs], evidence)
        found[layout] = auroc(np.nan_to_num(scored.value))

    def gain(better: str, other: tuple[float, np.ndarray]) -> list[float]:
        return shown(found[better][0] - other[0], found[better][1] - other[1])

    plain = auroc(overlap(pairs))
    emit(
        "support",
        set=name,
        supported=int(supported.sum()),
        other=int((~supported).sum()),
        questions=len(set(questions)),
        **{layout: shown(*figures) for layout, figures in found.items()},
        overlap=shown(*plain),
        gain=gain("as_given", plain),
    )


def measure_speed(data: Path) -> None:
    """Time groundedness in ten contexts, and support by one cited context, of 4,000 sentences."""
    texts = [row["text"] for row in json_lines(data / "scifact" / "corpus.jsonl")]
    contexts = [
        [texts[(at * MANY + one) % len(texts)] for one in range(MANY)] for at in range(1000)
    ]
    sentences = [
        text[slice(*chunking.spans(text)[0])]
        for own in contexts
        for text in own[: SENTENCES // 1000]
    ]
    answers = [" ".join(sentences[at : at + 4]) for at in range(0, SENTENCES, 4)]
    cited = [[own[one]] for own in contexts for one in range(SENTENCES // 1000)]
    clocks = [(time.perf_counter(), time.process_time())]
    for sentences_of, evidence in ((answers, contexts), (sentences, cited)):
        groundedness(sentences_of, evidence)
        clocks.append((time.perf_counter(), time.process_time()))
    steps = np.diff(np.array(clocks), axis=0).round(2)
    emit(
        "support_speed",
        sentences=len(sentences),
        groundedness_s=steps[0, 0],
        citation_support_s=steps[1, 0],
        total_s=round(steps[:, 0].sum(), 2),
        total_cpu_s=round(steps[:, 1].sum(), 2),
        bar=BAR,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--development", action="store_true")
    parser.add_argument("--only", choices=("speed", "sets"))
    chosen, data = parser.parse_args(), data_folder()
    if data is None:
        skipped("support", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    if chosen.only != "speed":
        for name, pairs in read_sets(data):
            is_in_half = not chosen.development
            own = [one for one in pairs if perturbations.is_judged(one.question) == is_in_half]
            measure(name, own)
    if chosen.only != "sets":
        measure_speed(data)


if __name__ == "__main__":
    main()
