"""Measure how well support tells supported sentences from others.

support.py                 on the judged half of the questions
support.py --development   on the other half, where weights and limits are chosen
support.py --only markers  one part: sets or markers

sets: expertqa has claims of real systems that experts found supported or not by the cited text. The
others have sentences that people wrote or found supported, against the evidence of another question
that is most like theirs, alone or (10) among ten texts.
`passes` and `partly` are shares of the supported sentences with these verdicts, `noticed` is the
share of passing sentences that no longer pass with the first words of another one added.
markers: answers of people (QuoteSum) and of real systems (ExpertQA) with the numbers of their
sources, right or exchanged for other sources of the answer.
Intervals are 95 %, over questions.
"""

import argparse
import hashlib
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from timing import data_folder, emit, indexed_text, json_lines, skipped

from rag_eval.measures.support import (
    Groundedness,
    answer_sentences,
    citation_support,
    groundedness,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "reference"))
import cited_answers

HEADER = re.compile(r"\s*\[\d+\]\s*\S+\s*")
"""Number and address in front of the text of ExpertQA's evidence."""
QUOTED = re.compile(r"\[ ?\d+ |\]")
SHORTEST, MANY, SEED, RESAMPLES = 40, 10, 13, 2000
CLAUSE = 8
"""Words of an invented clause."""


class Pair(NamedTuple):
    """A sentence with evidence, and whether the evidence supports it."""

    question: str
    sentence: str
    evidence: list[str]
    is_supported: bool = True


def is_judged(question: str) -> bool:
    """Tell whether a question is in the half that is judged, not in the development half."""
    return hashlib.sha256(question.encode()).digest()[-1] % 2 == 1


def expertqa(data: Path) -> Iterator[Pair]:
    """Yield the claims with text as evidence; partly supported ones are left out."""
    files = (data / "expertqa" / f"{part}.jsonl" for part in ("rand_val", "rand_test"))
    rows = {row["question"]: row for file in files for row in json_lines(file)}
    for question, row in rows.items():
        for claim in itertools.chain(*(answer["claims"] for answer in row["answers"].values())):
            texts = [HEADER.sub("", text, count=1) for text in claim["evidence"]]
            texts = [text for text in texts if len(text) > SHORTEST]
            if texts and claim["support"] in {"Complete", "Incomplete"}:
                sentence = " ".join(answer_sentences(claim["claim_string"]))
                yield Pair(question, sentence, texts, claim["support"] == "Complete")


def clapnq(data: Path) -> Iterator[Pair]:
    """Yield the sentences of the human answers, each with the passage."""
    for row in json_lines(data / "clapnq" / "clapnq_dev_answerable.jsonl"):
        for answer in dict.fromkeys(output["answer"] for output in row["output"]):
            for sentence in answer_sentences(answer):
                yield Pair(row["id"], sentence, [indexed_text(row["passages"][0])])


def quotesum(data: Path) -> Iterator[Pair]:
    """Yield the sentences of the human answers, each with all sources of the question."""
    for row in json_lines(data / "quotesum" / "dev.jsonl"):
        sources = [(row[f"title{n}"], row[f"source{n}"]) for n in range(1, 9)]
        evidence = "\n\n".join(f"{title}\n{text}" for title, text in sources if text)
        plain = re.sub(r" +([.,;])", r"\1", " ".join(QUOTED.sub(" ", row["summary"]).split()))
        for sentence in answer_sentences(plain):
            yield Pair(row["qid"], sentence, [evidence])


def scifact(data: Path, label: str) -> Iterator[Pair]:
    """Yield the claims with a rationale of the label, each with its abstract."""
    corpus = {row["_id"]: row for row in json_lines(data / "scifact" / "corpus.jsonl")}
    claims = {row["_id"]: row["text"] for row in json_lines(data / "scifact" / "queries.jsonl")}
    rows = json_lines(data / "scifact" / "evidence.jsonl")
    keys = ((row["query_id"], row["doc_id"]) for row in rows if row["label"] == label)
    for claim, doc in dict.fromkeys(keys):
        yield Pair(claim, claims[claim], [indexed_text(corpus[doc])])


def against_others(items: Sequence[Pair], pool: dict[str, set[str]], many: int) -> Iterator[Pair]:
    """Yield each sentence with its own evidence and with the most similar other evidence.

    `pool` maps each evidence text to the questions that it may support.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(stop_words="english", sublinear_tf=True)
    texts = list(pool)
    vectors = vectorizer.fit_transform(texts)
    likeness = vectorizer.transform([item.evidence[0] for item in items]) @ vectors.T
    for at, item in enumerate(items):
        order = np.argsort(-likeness[[at]].toarray().ravel(), kind="stable")
        others = [texts[one] for one in order if item.question not in pool[texts[one]]][:many]
        place = at % many
        shown = [*others[:place], *item.evidence, *others[place : many - 1]]
        yield item._replace(evidence=shown)
        yield item._replace(evidence=others, is_supported=False)


def read_sets(data: Path) -> Iterator[tuple[str, list[Pair]]]:
    yield "expertqa", list(expertqa(data))
    claims = list(scifact(data, "SUPPORT"))
    abstracts = {indexed_text(row): set() for row in json_lines(data / "scifact" / "corpus.jsonl")}
    for claim in (*claims, *scifact(data, "CONTRADICT")):
        abstracts[claim.evidence[0]].add(claim.question)
    sets = {"clapnq": list(clapnq(data)), "quotesum": list(quotesum(data)), "scifact": claims}
    for name, many in itertools.product(sets, (1, MANY)):
        pool = abstracts if name == "scifact" else {}
        for item in sets[name] if name != "scifact" else ():
            pool.setdefault(item.evidence[0], set()).add(item.question)
        if (name, many) != ("quotesum", MANY):
            yield f"{name}{many if many > 1 else ''}", list(against_others(sets[name], pool, many))


def drawn(groups: Sequence[str]) -> np.ndarray:
    """Return how often each row is drawn in each bootstrap sample of groups."""
    _, code = np.unique(list(groups), return_inverse=True)
    n = int(code.max()) + 1
    counts = np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    return counts[:, code]


def shown(value: float, samples: np.ndarray) -> list[float]:
    bounds = np.quantile(samples, (0.025, 0.975))
    return [round(float(number), 3) for number in (value, *bounds)]


def auroc(score: np.ndarray, is_high: np.ndarray, groups: Sequence[str]) -> list[float]:
    high, low = score[is_high], score[~is_high]
    wins = (high[:, None] > low) + 0.5 * (high[:, None] == low)
    weights = drawn(groups)
    first, second = weights[:, is_high], weights[:, ~is_high]
    sums = ((first @ wins) * second).sum(axis=1) / (first.sum(axis=1) * second.sum(axis=1))
    return shown(wins.mean(), sums)


def rate(hits: np.ndarray, groups: Sequence[str]) -> list[float]:
    weights = drawn(groups)
    return shown(hits.mean(), weights @ hits / np.maximum(weights.sum(axis=1), 1))


def verdicts(scored: Groundedness, verdict: str) -> np.ndarray:
    """Tell for each answer whether one of its sentences has a verdict."""
    hits = [support.verdict() == verdict for support in scored.supports]
    return np.bincount(scored.answer_of, hits, len(scored.value)) > 0


def measure_set(name: str, pairs: Sequence[Pair]) -> None:
    groups = [pair.question for pair in pairs]
    is_supported = np.array([pair.is_supported for pair in pairs])
    evidence = [pair.evidence for pair in pairs]
    scored = groundedness([pair.sentence for pair in pairs], evidence)
    invented = [
        f"{pair.sentence.rstrip('. ')}, and {' '.join(other.sentence.split()[:CLAUSE])}."
        for pair, other in zip(pairs, [*pairs[len(pairs) // 2 :], *pairs], strict=False)
    ]
    changed = groundedness(invented, evidence)
    passes = is_supported & ~verdicts(scored, "partly") & ~verdicts(scored, "unsupported")
    fails = verdicts(changed, "partly") | verdicts(changed, "unsupported")
    own = [group for group, is_own in zip(groups, is_supported, strict=True) if is_own]
    emit(
        "support",
        set=name,
        supported=int(is_supported.sum()),
        other=int((~is_supported).sum()),
        auroc=auroc(np.nan_to_num(scored.value), is_supported, groups),
        passes=rate(passes[is_supported], own),
        partly=rate(verdicts(scored, "partly")[is_supported], own),
        noticed=rate(fails[passes], list(itertools.compress(groups, passes))),
    )


def measure_markers(data: Path) -> None:
    """Print how far citation support tells right markers from exchanged ones."""
    for name in ("quotesum", "expertqa"):
        pairs = cited_answers.with_exchanged_markers(getattr(cited_answers, name)(data), SEED)
        rows = [
            (answer.query_id, sentence, kind == 0)
            for kind, answers in enumerate(zip(*pairs, strict=True))
            for answer, sentences in zip(answers, citation_support(answers), strict=True)
            for sentence in sentences
            if sentence.places
        ]
        groups, sentences, is_right = (list(part) for part in zip(*rows, strict=True))
        right = np.array(is_right)
        passes = np.array([sentence.verdict == "supported" for sentence in sentences])
        score = np.array([sentence.score for sentence in sentences])
        by_markers = (("right", right), ("exchanged", ~right))
        rates = {
            kind: rate(passes[rows], list(itertools.compress(groups, rows)))
            for kind, rows in by_markers
        }
        emit("markers", set=name, n=len(rows), auroc=auroc(score, right, groups), **rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--development", action="store_true")
    parser.add_argument("--only", choices=("sets", "markers"))
    chosen, data = parser.parse_args(), data_folder()
    if data is None:
        skipped("support", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    for name, pairs in read_sets(data) if chosen.only in (None, "sets") else ():
        measure_set(name, [p for p in pairs if is_judged(p.question) != chosen.development])
    if chosen.only in (None, "markers"):
        measure_markers(data)


if __name__ == "__main__":
    main()
