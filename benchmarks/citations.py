"""Validate 10,000 citations, against jsonschema on the same records.

Ours tries every rule: structure, live index and quotes. The reference tries the structure alone,
with one validator for all records. Half of the quotes differ from their source in white space, and
one citation in ten breaks a rule. Prints one JSON line; `ratio` is ours / reference.
"""

import json
from importlib import resources

import jsonschema
import numpy as np
import pandas as pd
from timing import alternate, report

from rag_eval.citations.payload import LiveIndex, validate
from rag_eval.corpus.analyzer import ANALYZER

N, DOCUMENTS, CHUNKS, WORDS, REPEATS, BAR, BAR_S = 10_000, 500, 8, 120, 5, 1.0, 1.0
BROKEN = (
    {"rev": "old"},
    {"index_hash": "bm25s:old"},
    {"snippet_id": "made-up"},
    {"quote": "Nobody said this."},
    {"k_pos": None},
    {"offsets": [1, 2]},
)


def main() -> None:
    rng = np.random.default_rng(13)
    vocabulary = np.array([f"w{number}\u00e9" for number in range(5000)])
    documents, sections, chunks = [], [], []
    for number in range(DOCUMENTS):
        parts = [
            " ".join(vocabulary[rng.integers(0, len(vocabulary), WORDS)]) + ".\n"
            for _ in range(CHUNKS)
        ]
        name, starts = f"d{number}.md", np.cumsum([0, *map(len, parts)]).tolist()
        documents.append({"doc_id": name, "text": "".join(parts), "rev": f"r{number}"})
        for place in range(CHUNKS):
            span = {
                "doc_id": name,
                "section_id": f"{name}#{place}",
                "start": starts[place],
                "end": starts[place + 1],
            }
            sections.append(span)
            chunks.append({**span, "chunk_id": f"{number}-{place}"})
    live = LiveIndex(
        pd.DataFrame(documents), pd.DataFrame(sections), pd.DataFrame(chunks), {"bm25s:1"}, ANALYZER
    )
    records = []
    for number, pick in enumerate(rng.integers(0, len(chunks), N).tolist()):
        chunk = chunks[pick]
        text = live.texts[chunk["doc_id"]][chunk["start"] : chunk["end"]]
        record = {
            "doc_id": chunk["doc_id"],
            "section_id": chunk["section_id"],
            "snippet_id": chunk["chunk_id"],
            "source_url": f"https://example.org/{chunk['doc_id']}",
            "offsets": {"start": chunk["start"], "end": chunk["end"], "unit": "char"},
            "tokens": WORDS,
            "index_hash": "bm25s:1",
            "embed_model": "",
            "analyzer": ANALYZER,
            "rev": live.revs[chunk["doc_id"]],
            "score_raw": 3.5,
            "score_norm": 0.5,
            "k_pos": 1,
            "k_final": 1,
            "query_id": f"q{number // 5}",
            "segment": number % 5,
            "quote": text.replace(" ", "\n ") if number % 2 else text,
            "cited_before_answer": True,
        }
        records.append(record | (BROKEN[number // 10 % len(BROKEN)] if number % 10 == 0 else {}))
    published = resources.files("rag_eval.core") / "citation_payload.schema.json"
    definitions = json.loads(published.read_text(encoding="utf-8"))["$defs"]
    schema = jsonschema.Draft202012Validator({"$ref": "#/$defs/record", "$defs": definitions})
    verdicts = validate(records, live)
    if verdicts.counts["ok"] != N - N // 10:
        raise SystemExit(f"{verdicts.counts['ok']} of {N} ok")
    seconds = alternate(
        {
            "ours": lambda: validate(records, live),
            "reference": lambda: [schema.is_valid(record) for record in records],
        },
        REPEATS,
    )
    report("citations", seconds["ours"], seconds["reference"], BAR, n=N, bar_s=BAR_S)


if __name__ == "__main__":
    main()
