"""Read traces back, from log lines and from the table, by other means than the writer's."""

import json
import operator
import re

from rag_eval.pipeline.exports import NO_DELTA_S, RAG_TRACES, Trace
from rag_eval.storage.sql import SqlStore

FIELDS = {
    "ts": str,
    "qid": str,
    "seg": int,
    "delta_s": float,
    "lambda_state": str,
    "k": int,
    "store": str,
    "index_hash": str,
    "embed_model": str,
    "citations": str,
    "scores": float,
    "kpos": int,
    "kfinal": int,
    "section_id": str,
    "rev": str,
}
KEYS = (
    "ts qid seg deltaS lambda k store index_hash embed citations scores kpos kfinal section_id rev"
)
_VALUE = r'(?:"(?:[^"\\]|\\.)*"|[^\s",\[\]]+)'


def _read(token: str, kind: type) -> object:
    if token == "-":
        return "" if kind is str else None
    return kind(json.loads(token) if token.startswith('"') else token)


def parse(text: str) -> dict:
    """Read a line of traces.log into the fields that it carries; ValueError for anything else."""
    one, found, at = re.compile(rf"(\w+)=(\[(?:{_VALUE},?)*\]|{_VALUE})(?: |$)"), {}, 0
    for key, (field, kind) in zip(KEYS.split(), FIELDS.items(), strict=True):
        match = one.match(text, at)
        if not match or match[1] != key:
            raise ValueError(f"no {key} at {at} of {text!r}")
        listed = field in ("citations", "scores", "kpos", "kfinal")
        found[field] = (
            tuple(_read(item, kind) for item in re.findall(_VALUE, match[2][1:-1]))
            if listed
            else _read(match[2], kind)
        )
        at = match.end()
    if at != len(text):
        raise ValueError(f"more than a trace: {text!r}")
    return found


def read_traces(store: SqlStore, **where: str) -> list[Trace]:
    """Read the rows of `rag_traces`, sorted by their keys; `k` is None without a column for it."""
    store.create(RAG_TRACES)
    with store.reading() as transaction:
        rows = transaction.select(RAG_TRACES, where)
    found = []
    for row in rows:
        values = {}
        for column in RAG_TRACES.columns:
            value = row[column.name] or "" if column.kind == "text" else row[column.name]
            name = "delta_s" if column.name == "deltaS" else column.name
            values[name] = tuple(value) if type(value) is list else value
        moment = values["ts"].isoformat(timespec="milliseconds")
        values["ts"] = f"{moment.removesuffix('.000')}Z"
        values["delta_s"] = None if values["delta_s"] == NO_DELTA_S else values["delta_s"]
        found.append(Trace(**values))
    key = operator.attrgetter("run_id", "strategy", "qid", "paraphrase_id", "seed", "seg")
    return sorted(found, key=key)
