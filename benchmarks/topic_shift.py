"""What the topic-shift check finds of BIPIA's attacks, what it says of clean corpora, and how its time grows.

Each attack stands on a line of its own at the start, in the middle and at the end of documents of XQuAD and of the documentation of
pandas, one attack a document, in so small a share of the corpus at a time (and once in a large one) that it stays what it is. Nothing here
was fitted on BIPIA, on pandas or on the paragraphs of XQuAD. Found: a finding inside_document that touches the attack.
"""

import json
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import planting
from timing import data_folder, skipped

from rag_eval.trust.topic_shift import topic_shift

PLAIN = (
    "Information Retrieval",
    "Content Creation",
    "Learning and Tutoring",
    "Language Translation",
    "Programming Help",
)
SHARE, LARGE_SHARE, DOCUMENTS_EACH, SEED = 0.04, 0.3, 3, 0
CHUNK_WORDS = 256


def chunks_warned(texts: list[str], findings: pd.DataFrame) -> tuple[int, int]:
    """Chunks that a finding touches, and all: pieces of at most CHUNK_WORDS words, a finding about the whole touches each of them."""
    total = touched = 0
    by_row = dict(list(findings.groupby("row")))
    for row, text in enumerate(texts):
        edges, words = [0], 0
        for at in planting.word_starts(text):
            words += 1
            if words > CHUNK_WORDS:
                edges.append(at)
                words = 1
        edges.append(len(text))
        total += len(edges) - 1
        if row in by_row:
            starts, ends = np.array(edges[:-1]), np.array(edges[1:])
            hit = np.zeros(len(starts), dtype=bool)
            for start, end in by_row[row][["start", "end"]].itertuples(index=False):
                hit |= (start < 0) | ((starts < end) & (ends > start))
            touched += int(hit.sum())
    return touched, total


def attacks(
    folder: Path,
    host: str,
    documents: list[str],
    share: float,
    *,
    each: int,
    rng: np.random.Generator,
) -> None:
    what = []
    for part in ("text", "code"):
        for kind, those in json.loads(
            (folder / "bipia" / f"{part}_attack_train.json").read_text(encoding="utf-8")
        ).items():
            what += [
                (f"{part}: {kind}", attack, place)
                for attack in those
                for place in planting.PLACES
                for _ in range(each)
            ]
    what = [what[i] for i in rng.permutation(len(what))]
    size = max(1, int(len(documents) * share))
    found = defaultdict(list)
    for low in range(0, len(what), size):
        texts, held = list(documents), {}
        for row, (kind, attack, place) in zip(
            rng.choice(len(documents), size, replace=False), what[low : low + size], strict=False
        ):
            its = planting.plant(documents[row], attack, place)
            texts[row], held[row] = its.text, (kind, place, its)
        findings = topic_shift(texts, [host] * len(texts))
        spans = defaultdict(list)
        for row, start, end in findings.loc[
            findings["rule"] == "inside_document", ["row", "start", "end"]
        ].itertuples(index=False):
            spans[row].append((start, end))
        for row, (kind, place, its) in held.items():
            hit = any(start < its.end and end > its.start for start, end in spans[row])
            group = (
                "plain"
                if kind.partition(": ")[2] in PLAIN
                else "code"
                if kind.startswith("code")
                else "reply"
            )
            for name in {kind, f"all {group}"} if each > 1 else {f"all {group}"}:
                found[name, "any"].append(hit)
                found[name, place].append(hit)
    for name in sorted({name for name, _ in found}):
        shares = {
            place: round(float(np.mean(found[name, place])), 3)
            for place in ("any", *planting.PLACES)
        }
        print(
            json.dumps(
                {
                    "bench": "topic_shift",
                    "host": host,
                    "poisoned_share": share,
                    "attack": name,
                    "planted": len(found[name, "any"]),
                    **shares,
                }
            )
        )


def growth(texts: list[str]) -> None:
    """Seconds for more and more documents of ten sentences."""
    sentences = [line for text in texts for line in text.split(". ") if len(line) > 40]
    for size in (2_500, 5_000, 10_000):
        documents = [
            ". ".join(sentences[(i * 10 + j * 7) % len(sentences)] for j in range(10)) + "."
            for i in range(size)
        ]
        started, cpu = time.perf_counter(), time.process_time()
        topic_shift(documents, ["growth"] * size)
        print(
            json.dumps(
                {
                    "bench": "topic_shift",
                    "documents": size,
                    "seconds": round(time.perf_counter() - started, 2),
                    "cpu_seconds": round(time.process_time() - cpu, 2),
                }
            )
        )


def main() -> None:
    folder = data_folder()
    if folder is None:
        skipped("topic_shift", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    rng = np.random.default_rng(SEED)
    corpora = planting.corpora(folder)
    corpora["pandas"] = planting.docstrings("pandas")
    for name in ("xquad", "pandas", "scifact", "distractors", "clapnq"):
        findings = topic_shift(corpora[name], [name] * len(corpora[name]))
        shown = {"documents": len(corpora[name])}
        for rule in ("inside_document", "against_source"):
            touched, total = chunks_warned(corpora[name], findings[findings["rule"] == rule])
            shown |= {
                "chunks": total,
                f"{rule}_chunks": touched,
                f"{rule}_share": round(touched / total, 4),
            }
        print(json.dumps({"bench": "topic_shift", "clean": name, **shown}))
    strangers = {
        "pandas": corpora["distractors"][::20],
        "scifact": corpora["distractors"][::20],
        "xquad": corpora["scifact"][::150],
    }
    for host, those in strangers.items():
        findings = topic_shift([*corpora[host], *those], [host] * (len(corpora[host]) + len(those)))
        rows = set(findings.loc[findings["rule"] == "against_source", "row"])
        hit = sum(row in rows for row in range(len(corpora[host]), len(corpora[host]) + len(those)))
        print(
            json.dumps(
                {
                    "bench": "topic_shift",
                    "host": host,
                    "strangers": len(those),
                    "against_source_found": round(hit / len(those), 3),
                }
            )
        )
    for host in ("xquad", "pandas"):
        attacks(folder, host, corpora[host], SHARE, each=DOCUMENTS_EACH, rng=rng)
        attacks(folder, host, corpora[host], LARGE_SHARE, each=1, rng=rng)
    growth(corpora["scifact"])


if __name__ == "__main__":
    main()
