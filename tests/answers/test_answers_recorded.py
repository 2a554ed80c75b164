"""Recorded outputs become answers with evidence, citations and outcomes, also from [n] markers."""

import json
import re

import pytest

from rag_eval.answers.recorded import RecordedAnswers
from rag_eval.core.loader import Chunker
from rag_eval.corpus.chunking import chunk_documents
from rag_eval.corpus.loaders.folder import Folder
from rag_eval.corpus.loaders.recorded import Recorded, read_outputs
from rag_eval.corpus.loading import load_corpus

TEXT = "# Terns\n\nTerns fly far.\nThey eat fish.\n\n# Gulls\n\nGulls eat anything.\n"


@pytest.fixture
def answer(tmp_path):
    """One output -> its answer, over the contexts alone."""

    def _answer(**values):
        path = tmp_path / "outputs.jsonl"
        filler = {"query_id": "other", "answer": "x", "contexts": ["some text"]}
        path.write_text(
            "\n".join(json.dumps(row) for row in ({"query_id": "q1", **values}, filler)),
            encoding="utf-8",
        )
        spec = Recorded(loader="recorded", path="outputs.jsonl")
        loaded = load_corpus(spec, tmp_path)
        maker = RecordedAnswers(
            loaded.documents,
            chunk_documents(loaded.documents, loaded.sections, spec.chunker),
            "external:x",
        )
        return maker.answer(read_outputs(path)[0])[0]

    return _answer


@pytest.fixture
def birds(tmp_path):
    """A real corpus of one document, cut into sections."""
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "birds.md").write_text(TEXT, encoding="utf-8")
    spec = Folder(loader="folder", path="docs", chunker=Chunker(kind="markdown"))
    loaded = load_corpus(spec, tmp_path)
    chunks = chunk_documents(loaded.documents, loaded.sections, spec.chunker)

    def _answer(**values):
        path = tmp_path / "outputs.jsonl"
        path.write_text(json.dumps({"query_id": "q1", **values}), encoding="utf-8")
        maker = RecordedAnswers(loaded.documents, chunks, "external:x")
        return maker.answer(read_outputs(path)[0])[0]

    return _answer, loaded.documents, chunks


def spans(found):
    return [(span.segment, span.evidence, span.doc_id) for span in found.citations]


def test_markers_point_to_contexts(answer):
    found = answer(
        answer="Terns fly far [2]. They eat fish [1][3]. Who knows [0].",
        contexts=["Fish.", {"id": "t", "text": "Terns."}],
    )
    assert found.text == "Terns fly far. They eat fish. Who knows."
    assert spans(found) == [
        (0, 1, "t"),
        (1, 0, found.evidence[0].chunk.doc_id),
        (1, -1, "[3]"),
        (2, -1, "[0]"),
    ]
    assert [(span.start, span.end) for span in found.citations] == [
        (0, 6),
        (0, 5),
        (-1, -1),
        (-1, -1),
    ]
    assert (found.outcome, found.mode, found.top_k) == ("answered", "recorded", 2)


def test_the_same_context_twice_keeps_the_numbers_right(answer):
    found = answer(answer="One [3].", contexts=["A.", "A.", "B."])
    assert found.citations[0].evidence == 2
    assert found.evidence[2].chunk.text == "B."


def test_evidence_carries_its_payload(answer):
    found = answer(
        answer="x",
        contexts=[
            {"doc_id": "a", "text": "one\ntwo\nthree", "score": 7.5, "url": "https://a.example"},
            "plain",
        ],
    )
    first, second = found.evidence
    assert (first.token, first.first_line, first.last_line, first.kind) == (
        "a:1-3",
        1,
        3,
        "recorded",
    )
    assert (
        first.chunk.score_raw,
        first.chunk.score_norm,
        first.chunk.k_pos,
        first.chunk.source_url,
    ) == (7.5, 1.0, 1, "https://a.example")
    assert (second.chunk.score_raw, second.chunk.k_final) == (0.5, 2)
    assert first.chunk.tokens == 3
    assert first.chunk.rev


def test_outcomes(answer):
    contexts = ["some"]
    assert answer(answer=None, error="timed out", contexts=contexts).codes == ("no_answer",)
    assert answer(answer=" [1] ", contexts=contexts).codes == ("empty_answer",)
    assert answer(answer="NOT FOUND", contexts=contexts).outcome == "not_found"
    assert (
        answer(
            answer="I don't have enough information to answer this [1].", contexts=contexts
        ).outcome
        == "insufficient_evidence"
    )
    assert (
        answer(answer="Nothing of use.", verdict="not found", contexts=contexts).outcome
        == "not_found"
    )
    assert answer(answer="It is.", verdict="SUPPORTED", contexts=contexts).verdict == "SUPPORTED"
    assert answer(answer="It was not found in the wild.", contexts=contexts).outcome == "answered"


def test_costs_are_kept(answer):
    found = answer(answer="x", tokens_in=5, tokens_out=7, seconds=1.5)
    assert (found.tokens_in, found.tokens_out, found.seconds) == (5, 7, 1.5)


CONTEXTS = [{"id": "a.md", "text": "one\ntwo\nthree"}, {"id": "b", "text": "bee"}]
STATED = [
    (1, (0, "a.md", 0, 13)),
    (0, (-1, "[0]", -1, -1)),
    (10**30, (-1, "[1001]", -1, -1)),
    ("[2]", (1, "b", 0, 3)),
    ("2", (1, "b", 0, 3)),
    ("b", (1, "b", 0, 3)),
    ("c", (-1, "c", -1, -1)),
    ("a.md:2", (0, "a.md", 4, 7)),
    ("a.md:2-3", (0, "a.md", 4, 13)),
    ("a.md:9", (-1, "a.md", -1, -1)),
    ("a.md:3-2", (-1, "a.md", -1, -1)),
    ("c.md:1", (-1, "c.md", -1, -1)),
    ({"doc_id": "a.md"}, (0, "a.md", 0, 13)),
    ({"doc_id": "a.md", "offsets": {"start": 4, "end": 7, "unit": "char"}}, (0, "a.md", 4, 7)),
    ({"doc_id": "a.md", "offsets": {"start": 40, "end": 70}}, (-1, "a.md", 40, 70)),
    ({"doc_id": "a.md", "quote": "two"}, (0, "a.md", 4, 7)),
    ({"doc_id": "a.md", "quote": "four"}, (0, "a.md", 0, 13)),
    ({"number": 2, "quote": "bee"}, (1, "b", 0, 3)),
    ({"number": 3, "quote": "bee"}, (-1, "[3]", -1, -1)),
    ({"doc_id": "a.md", "snippet_id": "none"}, (-1, "a.md", -1, -1)),
    ({}, (-1, "", -1, -1)),
    ({"doc_id": 5, "offsets": "x", "segment": "y", "quote": 1}, (-1, "", -1, -1)),
]


@pytest.mark.parametrize(("citation", "expected"), STATED)
def test_stated_citations(answer, citation, expected):
    (span,) = answer(answer="x", citations=[citation], contexts=CONTEXTS).citations
    assert (span.evidence, span.doc_id, span.start, span.end) == expected


def test_quotes_and_segments_of_payloads_stay(answer):
    (span,) = answer(
        answer="x", citations=[{"doc_id": "a.md", "quote": "four", "segment": 0}], contexts=CONTEXTS
    ).citations
    assert (span.quote, span.segment) == ("four", 0)


def test_what_markers_cite_already_is_not_counted_twice(answer):
    assert spans(answer(answer="x [1].", citations=[1, 2, "a.md"], contexts=CONTEXTS)) == [
        (0, 0, "a.md"),
        (-1, 1, "b"),
    ]
    assert (
        len(answer(answer="x [1].", citations=["a.md:2"], contexts=CONTEXTS).citations) == 2
    )  # finer than the marker
    assert spans(answer(answer="x [7].", citations=[7], contexts=CONTEXTS)) == [(0, -1, "[7]")]


def test_ids_of_the_corpus_get_its_payload(birds):
    answer, documents, chunks = birds
    gulls = chunks[chunks["section_id"].str.contains("gulls")].iloc[0]
    contexts = [
        {"id": gulls["chunk_id"], "text": gulls["text"]},
        {"id": "birds.md", "text": "They eat fish."},
        {"id": "birds.md", "text": "They eat bread."},
        {"id": gulls["chunk_id"]},
    ]
    by_chunk, by_text, invented, by_id_alone = answer(
        answer="Gulls eat anything [1].", contexts=contexts
    ).evidence
    assert (by_chunk.chunk.doc_id, by_chunk.chunk.snippet_id, by_chunk.chunk.offsets.start) == (
        "birds.md",
        gulls["chunk_id"],
        gulls["start"],
    )
    assert by_chunk.chunk.rev == documents["rev"][0]
    assert by_chunk.token == "birds.md:6-8"
    assert (by_text.chunk.text, by_text.token) == ("They eat fish.", "birds.md:4")
    assert by_text.chunk.snippet_id in set(chunks["chunk_id"])
    assert invented.chunk.snippet_id not in set(
        chunks["chunk_id"]
    )  # the corpus does not say this: a document of its own
    assert invented.chunk.rev != documents["rev"][0]
    assert by_id_alone.chunk.text == gulls["text"]
    for piece in (by_chunk, by_text, by_id_alone):
        assert (
            documents["text"][0][piece.chunk.offsets.start : piece.chunk.offsets.end]
            == piece.chunk.text
        )


def test_citations_of_real_systems(shared_data, tmp_path):
    """The recorded answers of six systems in ExpertQA carry [n] citations.

    Every bracketed number is read. A number is out of range only where its attribution is missing.
    """
    rows, expected, seen = [], 0, set()
    for name in ("rand_test.jsonl", "rand_val.jsonl"):
        for line in (shared_data / "expertqa" / name).read_text(encoding="utf-8").splitlines():
            sample = json.loads(line)
            if sample["question"] in seen:
                continue
            seen.add(sample["question"])
            for system, given in sample["answers"].items():
                numbered = [
                    re.fullmatch(r"\[(\d+)\] (.*)", one, re.DOTALL) for one in given["attribution"]
                ]
                assert all(
                    match and int(match[1]) == place
                    for place, match in enumerate(numbered, start=1)
                )
                contexts = [
                    {"id": f"{match[2].strip()}", "text": match[2].strip(), "url": match[2].strip()}
                    for match in numbered
                ]
                rows.append(
                    {
                        "query_id": f"{len(seen)}-{system}",
                        "question": sample["question"],
                        "answer": given["answer_string"],
                        "contexts": contexts,
                    }
                )
                expected += len(re.findall(r"\[\d+\]", given["answer_string"]))
    path = tmp_path / "outputs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    spec = Recorded(loader="recorded", path="outputs.jsonl")
    loaded = load_corpus(spec, tmp_path)
    outputs = read_outputs(path)
    maker = RecordedAnswers(
        loaded.documents,
        chunk_documents(loaded.documents, loaded.sections, spec.chunker),
        "external:x",
    )
    answers = [maker.answer(output)[0] for output in outputs]
    citations = [span for found in answers for span in found.citations]
    outside = [span for span in citations if span.evidence < 0]
    assert len(answers) == 436
    assert len(citations) == expected == 2684
    assert len(outside) == 2  # an answer counts on past its last source
    assert [one.outcome for one in answers].count("not_found") == 1
    assert {one.outcome for one in answers} == {"answered", "not_found"}
    assert not any(re.search(r"\[\d{1,3}\]", one.text) for one in answers)
    assert all(span.segment >= 0 for span in citations)
    assert all(
        one.evidence[span.evidence].chunk.doc_id == span.doc_id
        for one in answers
        for span in one.citations
        if span.evidence >= 0
    )
    for output, one in zip(outputs, answers, strict=True):
        numbers = [int(number) for number in re.findall(r"\[(\d+)\]", output.answer)]
        assert [span.evidence for span in one.citations] == [
            number - 1 if 1 <= number <= len(output.contexts) else -1 for number in numbers
        ]


def test_payloads_that_the_system_states_stay_with_their_citation(tmp_path):
    path = tmp_path / "outputs.jsonl"
    whole = {
        "doc_id": "a",
        "snippet_id": "a1",
        "rev": "7",
        "number": 1,
        "mine": "x",
        "offsets": {"start": 900, "end": 920, "unit": "char"},
    }
    rows = [
        {
            "query_id": "behind",
            "answer": "Terns fly [1].",
            "contexts": [{"doc_id": "a", "id": "a1", "text": "Terns fly."}],
            "citations": [whole, {"number": 1, "quote": ""}],
        },
        {
            "query_id": "alone",
            "answer": "Terns fly.",
            "contexts": [{"doc_id": "a", "id": "a1", "text": "Terns fly."}],
            "citations": [{**whole, "number": None}, {"number": 1}],
        },
        {
            "query_id": "tokens",
            "answer": "Terns fly [1].",
            "contexts": ["Terns fly."],
            "citations": ["1"],
        },
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    loaded = load_corpus(Recorded(loader="recorded", path="outputs.jsonl"), tmp_path)
    maker = RecordedAnswers(
        loaded.documents,
        chunk_documents(loaded.documents, loaded.sections, Chunker(kind="whole")),
        "external:x",
    )
    outputs = read_outputs(path)
    found = {output.query_id: maker.answer(output) for output in outputs}
    stated = {query_id: list(payloads) for query_id, (_, payloads) in found.items()}
    assert stated == {"behind": [0], "alone": [0], "tokens": []}
    payload = found["alone"][1][0]
    assert payload["rev"] == "7"
    assert "mine" not in payload
    # Offsets of the system's own document lie outside the passage, so the named passage counts.
    cited = found["alone"][0].citations
    assert [(span.evidence, span.start, span.end) for span in cited] == [(0, 0, 10), (0, 0, 10)]
