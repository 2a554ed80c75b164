"""Projections of real objects of LangChain, LlamaIndex and Semantic Kernel.

A missing framework skips its tests, or fails them with RAG_EVAL_REQUIRE_INTEGRATIONS=1.
"""

import dataclasses
import importlib
import os

import pydantic
import pytest

from rag_eval.citations.payload import (
    from_langchain,
    from_llama_index,
    from_semantic_kernel,
    validate,
)
from rag_eval.core.errors import InputError
from rag_eval.core.types import REQUIRED

TEXT = "A failed job is tried three more times."
FIELDS = {
    "doc_id": "retries.md",
    "section_id": "retries.md#count",
    "snippet_id": "s2",
    "source_url": "https://example.org/retries",
    "offsets": {"start": 18, "end": 18 + len(TEXT), "unit": "char"},
    "tokens": 8,
    "index_hash": "faiss:1",
    "embed_model": "",
    "analyzer": "english-porter-1",
    "rev": "r1",
}
RANK = {"k_pos": 1}
WHOLE = {**FIELDS, **RANK, "score_raw": 0.75}


def framework(module):
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        message = (
            f"{module} is not installed ({error}); `make test-integrations` runs this test in an "
            "environment that has it"
        )
        if os.environ.get("RAG_EVAL_REQUIRE_INTEGRATIONS") == "1":
            pytest.fail(message)
        pytest.skip(message)


def langchain(fields, **more):
    documents = framework("langchain_core.documents")
    return documents.Document(page_content=TEXT, metadata=fields, **more)


def llama_index(fields, score=0.75, **more):
    schema = framework("llama_index.core.schema")
    node = schema.TextNode(text=TEXT, metadata=fields, **more)
    return schema.NodeWithScore(node=node, score=score)


def semantic_kernel(record, score=0.75):
    return framework("semantic_kernel.data.vector").VectorSearchResult(record=record, score=score)


MAKERS = {
    "langchain": (langchain, lambda result, given: from_langchain(result, 0.75, given)),
    "llama_index": (llama_index, from_llama_index),
    "semantic_kernel": (semantic_kernel, from_semantic_kernel),
}


@pytest.fixture(params=sorted(MAKERS))
def made(request):
    """Return the payload of a framework's result from its own fields and the given fields."""
    make, project = MAKERS[request.param]
    return lambda fields, given=RANK: project(make(fields), given)


def without(fields, *names):
    return {name: value for name, value in fields.items() if name not in names}


def codes(project, *args):
    """Return the codes of the error that a projection raises."""
    with pytest.raises(InputError) as caught:
        project(*args)
    return [problem.code for problem in caught.value.problems]


def test_fields_under_their_own_names(made):
    assert made(FIELDS) == WHOLE
    assert validate([made(FIELDS)]).passed
    optional = {"page": 3, "score_norm": 0.5, "rerank_score": 2.0, "k_final": 1}
    assert made({**FIELDS, **optional, "colour": "red"}) == {**WHOLE, **optional}


def test_given_fields_fill_and_never_override(made):
    own = ("index_hash", "analyzer", "embed_model")
    given = {**RANK, **{name: FIELDS[name] for name in own}, "rev": "other", "score_raw": 0.1}
    assert made(without(FIELDS, *own), given) == WHOLE


@pytest.mark.parametrize("name", REQUIRED)
@pytest.mark.parametrize("value", [..., None, 3.5], ids=repr)
def test_missing_field_is_an_error_with_its_code(request, made, name, value):
    fields = without(FIELDS, name) | ({} if value is ... else {name: value})
    node_has_an_id = name == "snippet_id" and "llama_index" in request.node.callspec.params["made"]
    if node_has_an_id and value in (..., None):
        assert made(fields)["snippet_id"]  # LlamaIndex gives every node an id
        return
    with pytest.raises(InputError) as caught:
        made(fields)
    (problem,) = caught.value.problems
    is_odd = name == "offsets" and value not in (..., None)
    assert (problem.code, problem.field) == ("bad_offsets" if is_odd else f"missing_{name}", name)


LOOK_ALIKE = type("Document", (), {"metadata": FIELDS, "id": "s2"})()


@pytest.mark.parametrize("project", [from_langchain, from_llama_index, from_semantic_kernel])
@pytest.mark.parametrize("other", [None, WHOLE, LOOK_ALIKE], ids=["none", "mapping", "look-alike"])
def test_object_of_no_framework_is_refused(project, other):
    with pytest.raises(TypeError, match=f"found {type(other).__name__}, accepted"):
        project(other)


def test_langchain_keeps_some_fields_in_places_of_its_own():
    own = without(FIELDS, "snippet_id", "source_url", "offsets") | {"source": FIELDS["source_url"]}
    document = langchain({**own, "start_index": 18}, id="s2")
    assert from_langchain(document, 0.75, RANK) == WHOLE
    assert codes(from_langchain, document, None, RANK) == ["missing_score"]
    places = {"start": 18, "end": 18 + len(TEXT), "score": 0.75, "k": 1}
    assert from_langchain(langchain({**own, **places}, id="s2")) == WHOLE
    assert (
        from_langchain(langchain({**own, **places, "score": 0.1, "end": None}, id="s2"), 0.75)
        == WHOLE
    )
    odd = langchain({**own, "start_index": "18"}, id="s2")
    assert codes(from_langchain, odd, 0.75, RANK) == ["bad_offsets"]


def test_llama_index_keeps_some_fields_in_places_of_its_own():
    schema = framework("llama_index.core.schema")
    source = schema.RelatedNodeInfo(node_id="retries.md")
    own = without(FIELDS, "snippet_id", "doc_id", "offsets")
    node = {"id_": "s2", "start_char_idx": 18, "end_char_idx": 18 + len(TEXT)}
    node["relationships"] = {schema.NodeRelationship.SOURCE: source}
    found = from_llama_index(llama_index({**own, "page_label": "iv"}, **node), RANK)
    assert found == {**WHOLE, "page": "iv"}
    scoreless = llama_index(own, score=None, **node)
    assert codes(from_llama_index, scoreless, RANK) == ["missing_score"]
    with pytest.raises(TypeError, match="found a NodeWithScore of"):
        from_llama_index(schema.NodeWithScore(node=schema.Node(metadata=FIELDS), score=0.5))


Model = pydantic.create_model("Model", **dict.fromkeys(REQUIRED, (object, ...)))
Row = dataclasses.make_dataclass("Row", REQUIRED)


@pytest.mark.parametrize(
    "record", [Model(**FIELDS), Row(**FIELDS), FIELDS], ids=["pydantic", "dataclass", "mapping"]
)
def test_semantic_kernel_records_of_every_kind(record):
    assert from_semantic_kernel(semantic_kernel(record), RANK) == WHOLE
    scoreless = semantic_kernel(record, score=None)
    assert codes(from_semantic_kernel, scoreless, RANK) == ["missing_score"]


def test_semantic_kernel_text_results_know_only_their_link():
    make = framework("semantic_kernel.data.text_search").TextSearchResult
    result = make(name="Retries", value=TEXT, link=FIELDS["source_url"])
    given = without(WHOLE, "source_url")
    assert from_semantic_kernel(result, given) == WHOLE
    missing = [f"missing_{name}" for name in REQUIRED if name != "source_url"]
    assert codes(from_semantic_kernel, result) == [*missing, "missing_score", "trace_incomplete"]
    assert codes(from_semantic_kernel, make(value=TEXT), given) == ["missing_source_url"]
