"""Turn search results of LangChain, LlamaIndex and Semantic Kernel into citation payloads.

No framework is imported: the caller of a framework's object has imported the framework, so the
object's class is looked up among the loaded modules. Any other object raises TypeError.

Every payload field may stand under its own name in the object's metadata (LangChain, LlamaIndex)
or record (Semantic Kernel). Each function names further places. `given` adds facts that only the
caller knows (`index_hash`, `analyzer`, `k_pos`, ...) and never overrides the object. A field that
is still missing or impossible raises InputError with its code.
"""

import sys
from collections.abc import Mapping
from typing import Any

from rag_eval.citations.payload import validate
from rag_eval.core.errors import InputError, Problem, quoted
from rag_eval.core.types import FIXES, PAYLOAD_FIELDS

Given = Mapping[str, Any]
Payload = dict[str, object]


def _is(value: object, path: str) -> bool:
    module, _, name = path.rpartition(".")
    cls = getattr(sys.modules.get(module), name, None)
    return isinstance(cls, type) and isinstance(value, cls)


def _refuse(value: object, accepted: str) -> TypeError:
    return TypeError(f"found {type(value).__name__}, accepted {accepted}")


def _join(*sources: Mapping[str, Any] | None) -> Payload:
    """Join mappings to a checked payload; the first mapping with a field counts."""
    payload: Payload = {}
    for source in reversed(sources):
        fields = source or {}
        payload |= {name: fields[name] for name in PAYLOAD_FIELDS if fields.get(name) is not None}
    problems = [
        Problem(
            code,
            FIXES[code],
            field=field or None,
            found=quoted(payload.get(field.partition(".")[0], "nothing")),
            accepted="see citation_payload.schema.json",
        )
        for code, field in validate([payload]).failures[0]
    ]
    if problems:
        raise InputError(problems)
    return payload


def _range(start: object, end: object) -> Payload | None:
    return None if start is None else {"start": start, "end": end, "unit": "char"}


def from_langchain(
    document: Any, score: float | None = None, given: Given | None = None
) -> Payload:
    """Make the payload of a `langchain_core.documents.Document`.

    `id` is the snippet_id, `source` the source_url. `start` and `end`, or `start_index`, which text
    splitters write with `add_start_index=True`, and the text's length are the offsets. `score` of
    `similarity_search_with_score`, else `score` of the metadata, is score_raw; `k` is k_pos.
    """
    if not _is(document, "langchain_core.documents.base.Document"):
        raise _refuse(document, "a langchain_core.documents.Document")
    metadata: Mapping[str, Any] = document.metadata
    start, end = metadata.get("start", metadata.get("start_index")), metadata.get("end")
    if end is None and isinstance(start, int):
        end = start + len(document.page_content)
    elsewhere = {
        "snippet_id": document.id,
        "source_url": metadata.get("source"),
        "offsets": _range(start, end),
        "score_raw": metadata.get("score") if score is None else score,
        "k_pos": metadata.get("k"),
    }
    return _join(metadata, elsewhere, given)


def from_llama_index(result: Any, given: Given | None = None) -> Payload:
    """Make the payload of a `llama_index.core.schema.NodeWithScore` of a text node.

    `node_id` is the snippet_id, `ref_doc_id` the doc_id, `page_label` the page, `score` score_raw.
    `start_char_idx` and `end_char_idx` are the offsets.
    """
    if not _is(result, "llama_index.core.schema.NodeWithScore"):
        raise _refuse(result, "a llama_index.core.schema.NodeWithScore")
    node = result.node
    if not hasattr(node, "start_char_idx"):
        raise TypeError(
            f"found a NodeWithScore of {type(node).__name__}, accepted one of a TextNode"
        )
    elsewhere = {
        "doc_id": node.ref_doc_id,
        "snippet_id": node.node_id,
        "offsets": _range(node.start_char_idx, node.end_char_idx),
        "page": node.metadata.get("page_label"),
        "score_raw": result.score,
    }
    return _join(node.metadata, elsewhere, given)


def from_semantic_kernel(result: Any, given: Given | None = None) -> Payload:
    """Make the payload of a VectorSearchResult or a TextSearchResult of `semantic_kernel.data`.

    A vector result's record (a mapping, or an object with such attributes) has the fields; `score`
    is score_raw. A text result has only `link`, the source_url.
    """
    if _is(result, "semantic_kernel.data.vector.VectorSearchResult"):
        record = result.record
        if not isinstance(record, Mapping):
            record = {name: getattr(record, name, None) for name in PAYLOAD_FIELDS}
        return _join(record, {"score_raw": result.score}, given)
    if _is(result, "semantic_kernel.data.text_search.TextSearchResult"):
        return _join({"source_url": result.link}, given)
    accepted = "a VectorSearchResult or a TextSearchResult of semantic_kernel.data"
    raise _refuse(result, accepted)
