"""Projections of real objects of LangChain, LlamaIndex and Semantic Kernel.

A missing framework skips its tests, or fails them with RAG_EVAL_REQUIRE_INTEGRATIONS=1.
"""

import dataclasses
import importlib
import os

import pydantic
import pytest

from rag_eval.citations.payload import validate
from rag_eval.citations.projections import from_langchain, from_llama_index, from_semantic_kernel
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
WHOLE = {**FIELDS, "k_pos": 1, "score_raw": 0.75}


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
    return framework("langchain_core.documents").Document(
        page_content=TEXT, metadata=fields, **more
    )


def llama_index(fields, score=0.75, **more):
    schema = framework("llama_index.core.schema")
    return schema.NodeWithScore(
        node=schema.TextNode(text=TEXT, metadata=fields, **more), score=score
    )


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
    return lambda fields, given=None: project(
        make(fields), {"k_pos": 1} if given is None else given
    )


def codes(caught):
    return [problem.code for problem in caught.value.problems]


def test_fields_under_their_own_names(made):
    assert made(FIELDS) == WHOLE
    assert validate([made(FIELDS)]).passed


def test_optional_fields_come_along_and_others_stay_behind(made):
    assert made(
        {**FIELDS, "page": 3, "score_norm": 0.5, "rerank_score": 2.0, "k_final": 1, "colour": "red"}
    ) == {**WHOLE, "page": 3, "score_norm": 0.5, "rerank_score": 2.0, "k_final": 1}


def test_what_is_given_fills_and_never_overrides(made):
    said = {
        name: value
        for name, value in FIELDS.items()
        if name not in {"index_hash", "analyzer", "embed_model"}
    }
    assert (
        made(
            said,
            {
                "k_pos": 1,
                "index_hash": "faiss:1",
                "analyzer": "english-porter-1",
                "embed_model": "",
                "rev": "other",
                "score_raw": 0.1,
            },
        )
        == WHOLE
    )


@pytest.mark.parametrize("name", REQUIRED)
@pytest.mark.parametrize("value", [..., None, 3.5], ids=repr)
def test_a_missing_field_is_an_error_with_its_code(request, made, name, value):
    fields = {key: held for key, held in FIELDS.items() if key != name}
    if value is not ...:
        fields[name] = value
    node_has_an_id = name == "snippet_id" and "llama_index" in request.node.callspec.params["made"]
    if node_has_an_id and value in (..., None):
        assert made(fields)["snippet_id"]  # LlamaIndex gives every node an id
        return
    with pytest.raises(InputError) as caught:
        made(fields)
    assert codes(caught) == [
        "bad_offsets" if name == "offsets" and value not in (..., None) else f"missing_{name}"
    ]
    assert caught.value.problems[0].field == name


def test_everything_that_is_missing_is_named_at_once(made):
    with pytest.raises(InputError) as caught:
        made({"doc_id": "retries.md", "snippet_id": "s2"}, {})
    assert codes(caught) == [
        *(f"missing_{name}" for name in REQUIRED if name not in {"doc_id", "snippet_id"}),
        "trace_incomplete",
    ]


@pytest.mark.parametrize("project", [from_langchain, from_llama_index, from_semantic_kernel])
@pytest.mark.parametrize(
    "nonsense",
    [None, WHOLE, type("Document", (), {"metadata": FIELDS, "id": "s2"})()],
    ids=["none", "mapping", "look-alike"],
)
def test_object_of_no_framework_is_refused(project, nonsense):
    with pytest.raises(TypeError, match=f"found {type(nonsense).__name__}, accepted"):
        project(nonsense)


def test_langchain_keeps_some_fields_in_places_of_its_own():
    said = {
        name: value
        for name, value in FIELDS.items()
        if name not in {"snippet_id", "source_url", "offsets"}
    }
    document = langchain({**said, "source": FIELDS["source_url"], "start_index": 18}, id="s2")
    assert from_langchain(document, 0.75, {"k_pos": 1}) == WHOLE
    with pytest.raises(InputError) as caught:
        from_langchain(document, given={"k_pos": 1})
    assert codes(caught) == ["missing_score"]
    with pytest.raises(InputError) as caught:
        from_langchain(
            langchain({**said, "source": FIELDS["source_url"], "start_index": "18"}, id="s2"),
            0.75,
            {"k_pos": 1},
        )
    assert codes(caught) == ["bad_offsets"]


def test_llama_index_keeps_some_fields_in_places_of_its_own():
    schema = framework("llama_index.core.schema")
    source = schema.RelatedNodeInfo(node_id="retries.md")
    said = {
        name: value
        for name, value in FIELDS.items()
        if name not in {"snippet_id", "doc_id", "offsets"}
    }
    node = {
        "id_": "s2",
        "start_char_idx": 18,
        "end_char_idx": 18 + len(TEXT),
        "relationships": {schema.NodeRelationship.SOURCE: source},
    }
    assert from_llama_index(llama_index({**said, "page_label": "iv"}, **node), {"k_pos": 1}) == {
        **WHOLE,
        "page": "iv",
    }
    with pytest.raises(InputError) as caught:
        from_llama_index(llama_index(said, score=None, **node), {"k_pos": 1})
    assert codes(caught) == ["missing_score"]


def test_llama_index_nodes_without_text_are_refused():
    schema = framework("llama_index.core.schema")
    with pytest.raises(TypeError, match="found a NodeWithScore of"):
        from_llama_index(schema.NodeWithScore(node=schema.Node(metadata=FIELDS), score=0.5))


class Model(pydantic.BaseModel):
    doc_id: str
    section_id: str
    snippet_id: str
    source_url: str
    offsets: dict[str, object]
    tokens: int
    index_hash: str
    embed_model: str
    analyzer: str
    rev: str


Row = dataclasses.make_dataclass("Row", REQUIRED)


@pytest.mark.parametrize(
    "record", [Model(**FIELDS), Row(**FIELDS), FIELDS], ids=["pydantic", "dataclass", "mapping"]
)
def test_semantic_kernel_records_of_every_kind(record):
    assert from_semantic_kernel(semantic_kernel(record), {"k_pos": 1}) == WHOLE
    with pytest.raises(InputError) as caught:
        from_semantic_kernel(semantic_kernel(record, score=None), {"k_pos": 1})
    assert codes(caught) == ["missing_score"]


def test_semantic_kernel_text_results_know_only_their_link():
    text_search = framework("semantic_kernel.data.text_search")
    result = text_search.TextSearchResult(name="Retries", value=TEXT, link=FIELDS["source_url"])
    given = {name: value for name, value in WHOLE.items() if name != "source_url"}
    assert from_semantic_kernel(result, given) == WHOLE
    with pytest.raises(InputError) as caught:
        from_semantic_kernel(result)
    assert codes(caught) == [
        *(f"missing_{name}" for name in REQUIRED if name != "source_url"),
        "missing_score",
        "trace_incomplete",
    ]
    with pytest.raises(InputError) as caught:
        from_semantic_kernel(text_search.TextSearchResult(value=TEXT), given)
    assert codes(caught) == ["missing_source_url"]
