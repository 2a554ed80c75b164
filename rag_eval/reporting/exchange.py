"""Files that other tools read: Parquet and TREC of every run, CSV and ragas on demand.

A topic is one wording of a question. Its id, qid, is the query_id for the original wording, and
`query_id/paraphrase_id` for every other wording. Neither id holds a slash.
"""

import gzip
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.core.arrays import Float32Array, FloatArray, IntArray
from rag_eval.core.fields import encode_id
from rag_eval.core.types import Answer
from rag_eval.corpus.masking import masked_text

ORIGINAL: Final = "original"
RAGAS_FILE: Final = "ragas.jsonl"


class StrategyRankings(NamedTuple):
    """The stored run of a strategy (RUN), the units of its rows, and the seed of the TREC file."""

    run: pd.DataFrame
    units: pd.DataFrame
    seed: int


def exchange_files(
    per_query: pd.DataFrame,
    qrels: pd.DataFrame,
    variants: pd.DataFrame,
    rankings: Mapping[str, StrategyRankings],
) -> dict[str, bytes]:
    """Make the files of a run by name: tables as Parquet, rankings and judgements as TREC.

    `per_query` has the ranking measures by question and wording, `qrels` the QRELS of documents,
    and `variants` VARIANTS.
    """
    wordings = zip(variants["query_id"], variants["paraphrase_id"], strict=True)
    topics = [query if wording == ORIGINAL else f"{query}/{wording}" for query, wording in wordings]
    named = variants.assign(qid=topics)
    runs = [_rank_documents(name, ranked, named) for name, ranked in rankings.items()]
    questions = named.assign(text=[masked_text(text) for text in variants["text"]])
    tables = {
        "questions": questions[["qid", *variants.columns]],
        "qrels": qrels.rename(columns={"item_id": "docno", "gain": "relevance"}),
        "per-query": per_query,
        "runs": pd.concat(runs, ignore_index=True),
    }
    files: dict[str, bytes] = {
        f"{name}.parquet": table.to_parquet(
            None, index=False, compression="zstd", compression_level=9
        )
        for name, table in tables.items()
    }
    judged = zip(_tokens(qrels["query_id"]), _tokens(qrels["item_id"]), qrels["gain"], strict=True)
    lines = [f"{query} 0 {item} {gain}\n" for query, item, gain in judged]
    files["qrels.trec"] = "".join(lines).encode()
    for frame, (name, ranked) in zip(runs, rankings.items(), strict=True):
        first = frame[(frame["seed"] == ranked.seed) & (frame["paraphrase_id"] == ORIGINAL)]
        run, is_large = _trec_run(first), len(first) > PLAIN_ROWS
        files[f"run-{name}.trec{'.gz' * is_large}"] = (
            gzip.compress(run, mtime=0) if is_large else run
        )
    return files


# ---- Topics, and the long form of a run.


PLAIN_ROWS = 10_000
"""Largest number of rows of a TREC run that is not compressed, about half a megabyte."""


def _rank_documents(
    strategy: str, ranked: StrategyRankings, variants: pd.DataFrame
) -> pd.DataFrame:
    """List the ranked documents of every wording and seed, each at the rank of its best chunk.

    `variants` is VARIANTS with qid, the topic of each row.
    """
    run = ranked.run.sort_values(["seed", "variant", "k_final"])
    row, named = run["chunk"].to_numpy(), variants.iloc[run["variant"].to_numpy()]
    unit = "chunk_id" if "chunk_id" in ranked.units else "unit_id"
    frame = pd.DataFrame(
        {
            "strategy": strategy,
            "seed": run["seed"].to_numpy(),
            **{name: named[name].array for name in ("qid", "query_id", "paraphrase_id")},
            "docno": ranked.units["doc_id"].array[row],
            "rank": 0,
            "score": run["score_raw"].to_numpy(),
            "chunk_id": ranked.units[unit].array[row],
        }
    ).drop_duplicates(["seed", "qid", "docno"], ignore_index=True)
    frame["rank"] = frame.groupby(["seed", "qid"], sort=False).cumcount() + 1
    return frame


# ---- TREC.


def trec_scores(frame: pd.DataFrame) -> tuple[Float32Array, bool]:
    """Return scores that order a run as its ranks do, and whether they are 1 / rank.

    The score is the retriever's own. Tools order a run by its scores, so equal scores become
    slightly different. Scores that rise along a ranking do not explain it, for example after a
    rerank step. Then the score is 1 / rank.
    """
    topic = pd.factorize(frame["qid"])[0]
    scores = frame["score"].to_numpy(dtype=np.float64)
    is_same = topic[1:] == topic[:-1]
    rises = not np.isfinite(scores).all() or bool((np.diff(scores)[is_same] > 0).any())
    if rises:
        scores = 1 / frame["rank"].to_numpy(dtype=np.float64)
    return _separate_ties(scores, topic), rises


def _trec_run(frame: pd.DataFrame) -> bytes:
    """Write the ranked documents of one strategy and seed: `qid Q0 docno rank score tag`.

    The scores are `trec_scores`; after 1 / rank the tag ends with `:1/rank`.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    scores, rises = trec_scores(frame)
    tags = frame["strategy"] + ":1/rank" * rises
    columns: dict[str, object] = {
        "qid": _tokens(frame["qid"]),
        "Q0": "Q0",
        "docno": _tokens(frame["docno"]),
        "rank": frame["rank"],
        "score": scores,
        "tag": _tokens(tags),
    }
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pandas(pd.DataFrame(columns), preserve_index=False)
    options = arrow_csv.WriteOptions(include_header=False, delimiter=" ", quoting_style="none")
    arrow_csv.write_csv(table, sink, options)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _separate_ties(scores: FloatArray, topic: IntArray) -> Float32Array:
    """Lower equal scores of a topic by the smallest steps of a 32-bit float, to keep their order.

    trec_eval holds scores in 32 bits. `scores` [n] never rise within a topic; `topic` [n] has the
    rows of a topic side by side.

    Examples
    --------
    >>> _separate_ties(np.array([2.0, 2.0, 1.0]), np.array([0, 0, 0])).round(6).tolist()
    [2.0, 2.0, 1.0]
    """
    bits = np.asarray(scores, dtype=np.float32).view(np.int32).astype(np.int64)
    # Neighbouring floats have neighbouring numbers; those of negative floats run backwards.
    number = pd.Series(np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF)))
    groups = number.groupby(topic, sort=False)
    place = groups.cumcount()
    lowest = (number + place).groupby(topic, sort=False).cummin()
    lowered: IntArray = np.asarray(lowest - place, dtype=np.int64)
    back = np.where(lowered >= 0, lowered, 0x80000000 - lowered).astype(np.uint32)
    return back.view(np.float32)


def _tokens(texts: pd.Series) -> npt.NDArray[np.object_]:
    """Encode ids for the columns of a TREC file."""
    codes, distinct = pd.factorize(texts)
    return np.array([encode_id(text) for text in distinct], dtype=object)[codes]


# ---- ragas.


def ragas_samples(
    answers: Iterable[Answer], questions: pd.DataFrame, qrels: pd.DataFrame, spans: pd.DataFrame
) -> str:
    """Write answers as samples of a ragas EvaluationDataset, one JSON object a line.

    `questions` is QUERIES, `qrels` the QRELS of documents, and `spans` has query_id and text of
    the quoted evidence. Texts are masked. An answer that failed or abstained is an empty response.
    """
    text_of = dict(zip(questions["query_id"], questions["text"], strict=True))
    relevant = qrels[qrels["gain"] > 0].groupby("query_id")["item_id"].agg(list).to_dict()
    quoted = spans.groupby("query_id")["text"].agg(list).to_dict()
    lines = []
    for answer in answers:
        chunks = [item.chunk for item in answer.evidence]
        sample: dict[str, Any] = {
            "user_input": masked_text(text_of[answer.query_id]),
            "retrieved_contexts": [masked_text(chunk.text) for chunk in chunks],
            "retrieved_context_ids": [chunk.doc_id for chunk in chunks],
            "response": masked_text(answer.text) if answer.outcome == "answered" else "",
            "reference_contexts": [masked_text(text) for text in quoted.get(answer.query_id, [])],
            "reference_context_ids": relevant.get(answer.query_id, []),
        }
        lines.append(json.dumps(sample, ensure_ascii=False))
    return "".join(f"{line}\n" for line in lines)
