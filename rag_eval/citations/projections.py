"""From the search results of LangChain, LlamaIndex and Semantic Kernel to the citation payload.

Belongs here: which attribute of a framework's object becomes which payload field. No framework is imported: an object of one can only
exist where its caller has imported it, so its class is looked up among the loaded modules, and anything else is refused by its type.

Every payload field may stand under its own name in the object's metadata (LangChain, LlamaIndex) or record (Semantic Kernel). What a framework
keeps elsewhere is read from there where the metadata does not say it, as each function's docstring lists. `given` adds what only the
caller knows (`index_hash`, `analyzer`, `k_pos`, ...); it never overrides what the object says. What is still missing is an error with the
code `missing_<field>`; nothing is guessed.
"""

import sys
from collections.abc import Mapping
from typing import Any

from rag_eval.citations.payload import problems_of
from rag_eval.records.citation import PAYLOAD_FIELDS
from rag_eval.records.problems import InputError

Given = Mapping[str, Any]
Payload = dict[str, Any]

_LANGCHAIN = ("langchain_core.documents.base", "Document")
_LLAMA_INDEX = ("llama_index.core.schema", "NodeWithScore")
_SK_VECTOR = ("semantic_kernel.data.vector", "VectorSearchResult")
_SK_TEXT = ("semantic_kernel.data.text_search", "TextSearchResult")


def _is(value: object, *classes: tuple[str, str]) -> bool:
    loaded = [getattr(sys.modules.get(module), name, None) for module, name in classes]
    return any(isinstance(cls, type) and isinstance(value, cls) for cls in loaded)


def _finished(
    said: Mapping[str, Any], elsewhere: Mapping[str, Any], given: Given | None
) -> Payload:
    """Join the sources of a payload, the first that says a field counting, and refuse what is not a whole payload.

    Raises
    ------
    InputError
        A field is missing or impossible; the problems carry the codes of `rag_eval.records.citation`.
    """
    payload: Payload = {}
    for name in PAYLOAD_FIELDS:
        value = next(
            (
                source[name]
                for source in (said, elsewhere, given or {})
                if source.get(name) is not None
            ),
            None,
        )
        if value is not None:
            payload[name] = value
    problems = problems_of(payload)
    if problems:
        raise InputError(problems)
    return payload


def _range(start: object, end: object) -> Payload | None:
    """Offsets in characters; None where no start is known."""
    return None if start is None else {"start": start, "end": end, "unit": "char"}


def from_langchain(
    document: object, score: float | None = None, given: Given | None = None
) -> Payload:
    """Payload of a `langchain_core.documents.Document`.

    Parameters
    ----------
    document
        Its `id` is the snippet_id, and of its metadata `source` the source_url, `start_index` with the length of the text the offsets (what LangChain's text
        splitters write with `add_start_index=True`).
    score
        The second part of what `similarity_search_with_score` returns: score_raw.
    given
        Fields that only the caller knows.

    Raises
    ------
    TypeError
        It is no such document.
    InputError
        A field is missing or impossible, with its code.
    """
    if not _is(document, _LANGCHAIN):
        raise TypeError(
            f"found {type(document).__name__}, accepted a langchain_core.documents.Document"
        )
    loose: Any = document
    metadata: Mapping[str, Any] = loose.metadata
    start = metadata.get("start_index")
    end = start + len(loose.page_content) if isinstance(start, int) else None
    elsewhere = {
        "snippet_id": loose.id,
        "source_url": metadata.get("source"),
        "offsets": _range(start, end),
        "score_raw": score,
    }
    return _finished(metadata, elsewhere, given)


def from_llama_index(result: object, given: Given | None = None) -> Payload:
    """Payload of a `llama_index.core.schema.NodeWithScore`.

    Parameters
    ----------
    result
        Its node's `node_id` is the snippet_id, `ref_doc_id` the doc_id, `start_char_idx` and `end_char_idx` the offsets, `page_label` of the
        metadata the page; its `score` is score_raw.
    given
        Fields that only the caller knows.

    Raises
    ------
    TypeError
        It is no such result, or its node holds no text.
    InputError
        A field is missing or impossible, with its code.
    """
    if not _is(result, _LLAMA_INDEX):
        raise TypeError(
            f"found {type(result).__name__}, accepted a llama_index.core.schema.NodeWithScore"
        )
    loose: Any = result
    node = loose.node
    if not hasattr(node, "start_char_idx"):
        raise TypeError(
            f"found a NodeWithScore of {type(node).__name__}, accepted one of a TextNode"
        )
    elsewhere = {
        "doc_id": node.ref_doc_id,
        "snippet_id": node.node_id,
        "offsets": _range(node.start_char_idx, node.end_char_idx),
        "page": node.metadata.get("page_label"),
        "score_raw": loose.score,
    }
    return _finished(node.metadata, elsewhere, given)


def from_semantic_kernel(result: object, given: Given | None = None) -> Payload:
    """Payload of a `semantic_kernel.data.vector.VectorSearchResult` or a `semantic_kernel.data.text_search.TextSearchResult`.

    Parameters
    ----------
    result
        Of a vector search the record says the fields under their own names (a mapping, a pydantic model, a dataclass or any object with such attributes) and
        `score` is score_raw. A text search result has only a name, a text and a link: `link` is the source_url, and everything else must be given.
    given
        Fields that only the caller knows.

    Raises
    ------
    TypeError
        It is neither.
    InputError
        A field is missing or impossible, with its code.
    """
    loose: Any = result
    if _is(result, _SK_VECTOR):
        record = loose.record
        said = (
            record
            if isinstance(record, Mapping)
            else {name: getattr(record, name, None) for name in PAYLOAD_FIELDS}
        )
        return _finished(said, {"score_raw": loose.score}, given)
    if _is(result, _SK_TEXT):
        return _finished({}, {"source_url": loose.link}, given)
    raise TypeError(
        f"found {type(result).__name__}, accepted a VectorSearchResult or a TextSearchResult of semantic_kernel.data"
    )
