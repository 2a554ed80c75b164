"""Recorded outputs become answers with evidence, outcomes and citations, also from [n] markers."""

import json
import re
from pathlib import Path

import pytest

from rag_eval.answers.evidence import Library
from rag_eval.answers.recorded import RecordedAnswers
from rag_eval.core.errors import InputError, ProblemList
from rag_eval.core.loader import Chunker
from rag_eval.core.strategy import Identity
from rag_eval.corpus.chunking import chunk_documents
from rag_eval.corpus.loaders.folder import Folder
from rag_eval.corpus.loaders.recorded import Recorded, read_outputs
from rag_eval.corpus.loading import load_corpus
from rag_eval.corpus.markers import read_marks

CASES = json.loads(Path(__file__).with_name("recorded_cases.json").read_text(encoding="utf-8"))
TEXT = "# Terns\n\nTerns fly far.\nThey eat fish.\n\n# Gulls\n\nGulls eat anything.\n"


def write(tmp_path, rows):
    path = tmp_path / "outputs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return read_outputs(path, ProblemList())


def maker(tmp_path, spec=None):
    """Return (RecordedAnswers, documents, chunks) of a corpus, by default of the contexts alone."""
    spec = spec or Recorded(loader="recorded", path="outputs.jsonl")
    loaded = load_corpus(spec, tmp_path)
    documents, sections = loaded.documents, loaded.sections
    chunks = chunk_documents(documents, sections, spec.chunker)
    library = Library(documents, sections, chunks, Identity("external:x", ""))
    has_corpus = spec.has_whole_documents
    return RecordedAnswers(library, documents, has_corpus=has_corpus), documents, chunks


@pytest.fixture
def answer(tmp_path):
    """Return a function that turns the fields of one output into its answer."""

    def make(**values):
        filler = {"query_id": "other", "answer": "x", "contexts": ["some text"]}
        outputs = write(tmp_path, [{"query_id": "q1", **values}, filler])
        return maker(tmp_path)[0].answer(outputs[0])[0]

    return make


@pytest.fixture
def birds(tmp_path):
    """Return the maker of answers over a folder with one document."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "birds.md").write_text(TEXT, encoding="utf-8")
    spec = Folder(loader="folder", path="docs", chunker=Chunker(kind="markdown"))
    return maker(tmp_path, spec)


def spans(found):
    return [(span.segment, span.evidence, span.doc_id) for span in found.citations]


def test_markers_point_to_contexts(answer):
    found = answer(
        answer="Terns fly far [2]. They eat fish [1][3]. Who knows [0].",
        contexts=["Fish.", {"id": "t", "text": "Terns."}],
    )
    assert found.text == "Terns fly far. They eat fish. Who knows."
    fish = found.evidence[0].chunk.doc_id
    assert spans(found) == [(0, 1, "t"), (1, 0, fish), (1, -1, "[3]"), (2, -1, "[0]")]
    places = [(span.start, span.end) for span in found.citations]
    assert places == [(0, 6), (0, 5), (-1, -1), (-1, -1)]
    assert (found.outcome, found.mode, found.top_k) == ("answered", "recorded", 2)


def test_evidence_carries_its_payload_and_the_answer_its_cost(answer):
    url = "https://a.example"
    context = {"doc_id": "a", "text": "one\ntwo\nthree", "score": 7.5, "url": url, "page": "iv"}
    found = answer(answer="x", contexts=[context, "plain"], tokens_in=5, tokens_out=7, seconds=1.5)
    first, second = found.evidence
    lines = (first.token, first.first_line, first.last_line, first.kind)
    assert lines == ("a:1-3", 1, 3, "recorded")
    chunk = first.chunk
    scores = (chunk.score_raw, chunk.score_norm, chunk.k_pos, chunk.source_url, chunk.tokens)
    assert scores == (7.5, 1.0, 1, url, 3)
    assert (chunk.page, second.chunk.page) == ("iv", None)
    assert chunk.rev
    assert (second.chunk.score_raw, second.chunk.k_final) == (0.5, 2)
    assert (found.tokens_in, found.tokens_out) == (5, 7)


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ({"answer": None, "error": "timed out"}, "no_answer"),
        ({"error": "no atlas", "fix": "index one"}, "contract_error_reply"),
        ({"answer": " [1] "}, "empty_answer"),
        ({"answer": "NOT FOUND"}, "not_found"),
        ({"answer": "I don't have enough information [1]."}, "insufficient_evidence"),
        ({"answer": "Nothing of use.", "verdict": "not found"}, "not_found"),
        ({"answer": "It is.", "verdict": "SUPPORTED"}, "answered"),
        ({"answer": "It was not found in the wild."}, "answered"),
    ],
)
def test_outcomes(answer, values, outcome):
    found = answer(contexts=["some"], **values)
    assert (found.codes or (found.outcome,)) == (outcome,)
    assert (found.outcome in {"failed", "contract_error_reply"}) == bool(found.codes)
    if outcome == "answered":
        assert found.verdict == values.get("verdict", "")


CONTEXTS = [
    {"id": "a.md", "text": "one\ntwo\nthree"},
    {"id": "b", "text": "bee", "url": "https://b.example"},
]


# citation, then place in the evidence, doc_id, start and end of its span
@pytest.mark.parametrize(("citation", "expected"), CASES["stated"])
def test_stated_citations(answer, citation, expected):
    (span,) = answer(answer="x", citations=[citation], contexts=CONTEXTS).citations
    assert [span.evidence, span.doc_id, span.start, span.end] == expected
    if isinstance(citation, dict) and citation.get("quote") == "four":
        assert (span.quote, span.segment) == ("four", 0)


@pytest.mark.parametrize(
    ("text", "citations", "expected"),
    [
        ("x [1].", [1, 2, "a.md"], [(0, 0, "a.md"), (0, 1, "b")]),
        ("Ex [1]. Why.", [2], [(0, 0, "a.md"), (-1, 1, "b")]),
        # names one line of a.md, which supports the sentence with the marker
        ("x [1].", ["a.md:2"], [(0, 0, "a.md"), (0, 0, "a.md")]),
        ("Ex [1]. Why [1].", ["a.md:2"], [(0, 0, "a.md"), (1, 0, "a.md"), (-1, 0, "a.md")]),
        ("x [7].", [7], [(0, -1, "[7]")]),
    ],
)
def test_citations_of_markers_are_not_counted_twice(answer, text, citations, expected):
    assert spans(answer(answer=text, citations=citations, contexts=CONTEXTS)) == expected


@pytest.mark.parametrize(
    ("text", "segments", "expected"),
    [
        ("One. Two.", [-1, 1], [-1, 1]),
        ("One. Two.", [0, 2], [0, -1]),  # a number that the answer lacks
        ("One.", [-1, 7], [0, 0]),
        ("See x[1]. Two.", [1, 1], [1, 1]),
        ("One [2]. Two.", None, [0, -1]),
    ],
)
def test_segments_of_the_auditable_block(answer, text, segments, expected):
    cited = [{"snippet_id": "a.md"}, {"snippet_id": "b"}]
    found = answer(answer=text, citations=cited, segments=segments, contexts=CONTEXTS)
    assert [span.segment for span in found.citations] == expected
    assert found.text == (text if segments else "One. Two.")


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"citations": [{"doc_id": "b", "segment": "intro"}]}, "bad_segment"),
        ({"citations": [{"doc_id": "b", "segment": -2}]}, "bad_segment"),
        ({"citations": ["b"], "segments": ["0"]}, "bad_segment"),
        ({"citations": ["b"], "segments": [0, 1]}, "wrong_length"),
    ],
)
def test_segments_that_no_sentence_has_are_refused(answer, values, code):
    with pytest.raises(InputError) as caught:
        answer(answer="One. Two.", contexts=CONTEXTS, **values)
    assert [problem.code for problem in caught.value.problems] == [code]


def test_without_contexts_a_marker_is_a_citation_of_the_list(answer):
    cited = [{"snippet_id": "x"}, {"snippet_id": "y"}]
    found = answer(answer="One [2]. Two [2] [3].", citations=cited, contexts=[])
    assert spans(found) == [(0, -1, "y"), (1, -1, "y"), (1, -1, "[3]"), (-1, -1, "x")]


def test_ids_of_the_corpus_get_its_payload(birds, tmp_path):
    answers, documents, chunks = birds
    gulls = chunks[chunks["section_id"].str.contains("gulls")].iloc[0]
    contexts = [
        {"id": gulls["chunk_id"], "text": gulls["text"]},
        {"id": "birds.md", "text": "They eat fish."},
        {"id": "birds.md", "text": "They eat bread."},
        {"id": gulls["chunk_id"]},
    ]
    (output,) = write(tmp_path, [{"query_id": "q1", "answer": "Gulls [1].", "contexts": contexts}])
    by_chunk, by_text, invented, by_id_alone = answers.answer(output)[0].evidence
    chunk = by_chunk.chunk
    place = (chunk.doc_id, chunk.snippet_id, chunk.offsets.start, chunk.rev, by_chunk.token)
    rev = documents["rev"][0]
    assert place == ("birds.md", gulls["chunk_id"], gulls["start"], rev, "birds.md:6-8")
    assert (by_text.chunk.text, by_text.token) == ("They eat fish.", "birds.md:4")
    assert by_text.chunk.snippet_id in set(chunks["chunk_id"])
    # The corpus lacks this text, so the text becomes a document of its own.
    assert invented.chunk.snippet_id not in set(chunks["chunk_id"])
    assert invented.chunk.rev != rev
    assert by_id_alone.chunk.text == gulls["text"]
    for piece in (by_chunk, by_text, by_id_alone):
        offsets = piece.chunk.offsets
        assert documents["text"][0][offsets.start : offsets.end] == piece.chunk.text


def test_citations_of_real_systems(shared_data, tmp_path):
    """The recorded answers of six systems in ExpertQA carry citations in several forms.

    Every number in brackets is read, and forms such as (Passage ID 2). A number is out of range
    only if the answer lacks its attribution.
    """
    samples = {}
    for name in ("rand_test.jsonl", "rand_val.jsonl"):
        for line in (shared_data / "expertqa" / name).read_text(encoding="utf-8").splitlines():
            sample = json.loads(line)
            samples.setdefault(sample["question"], sample["answers"])
    rows = []
    for number, (asked, systems) in enumerate(samples.items()):
        for system, held in systems.items():
            sources = [one.partition("] ")[2].strip() for one in held["attribution"]]
            contexts = [{"id": source, "text": source, "url": source} for source in sources]
            row = {"query_id": f"{number}-{system}", "question": asked}
            rows.append({**row, "answer": held["answer_string"], "contexts": contexts})
    outputs = write(tmp_path, rows)
    read = maker(tmp_path)[0]
    answers = [read.answer(output)[0] for output in outputs]
    outcomes = [one.outcome for one in answers]
    assert len(answers) == 436
    assert (outcomes.count("not_found"), outcomes.count("answered")) == (1, 435)
    assert sum(len(one.citations) for one in answers) == 2684  # each once in a segment
    assert sum(span.evidence < 0 for one in answers for span in one.citations) == 2
    for output, one in zip(outputs, answers, strict=True):
        numbers = {int(number) for number in re.findall(r"\[(\d+)\]", output.answer)}
        assert {span.evidence for span in one.citations} >= {
            number - 1 if 1 <= number <= len(output.contexts) else -1 for number in numbers
        }
        known = [(span.segment, span.evidence) for span in one.citations if span.evidence >= 0]
        assert len(known) == len(set(known))
        assert not re.search(r"\[\d{1,3}\]", one.text)
        assert all(span.segment >= 0 for span in one.citations)
        for span in one.citations:
            assert span.evidence < 0 or one.evidence[span.evidence].chunk.doc_id == span.doc_id


def test_an_id_of_the_recording_resolves_to_the_snippet_of_the_corpus(birds, tmp_path):
    answers, _, chunks = birds
    context = {"doc_id": "birds.md", "id": "mine-7", "text": "They eat fish."}
    cited = [{"snippet_id": "mine-7"}, {"number": 1, "snippet_id": "mine-8"}]
    row = {"query_id": "q", "answer": "Fish.", "contexts": [context], "citations": cited}
    (output,) = write(tmp_path, [row])
    answer, payloads = answers.answer(output)
    assert payloads[0]["snippet_id"] in set(chunks["chunk_id"])
    assert payloads[0]["snippet_id"] == answer.evidence[0].chunk.snippet_id
    assert payloads[1]["snippet_id"] == "mine-8"


def test_cited_snippets_of_the_corpus_stand_in_for_missing_contexts(birds, tmp_path):
    answers, _, chunks = birds
    gulls = chunks[chunks["section_id"].str.contains("gulls")].iloc[0]
    place = {"start": int(gulls["start"]) + 9, "end": int(gulls["end"]) - 1}
    cited = {"snippet_id": gulls["chunk_id"], "offsets": place}
    row = {"query_id": "q", "answer": "Anything.", "citations": [{"snippet_id": ["x"]}, "x", cited]}
    (output,) = write(tmp_path, [{**row, "deltaS": 0.5, "lambda": "recursive"}])
    answer, payloads = answers.answer(output)
    (item,) = answer.evidence
    assert item.chunk.snippet_id == gulls["chunk_id"]
    assert [span.evidence for span in answer.citations] == [-1, -1, 0]
    assert (answer.citations[2].start, answer.citations[2].end) == tuple(place.values())
    assert (answer.delta_s, answer.lambda_state, payloads[2]) == (0.5, "recursive", cited)


def test_payloads_that_the_system_states_stay_with_their_citation(tmp_path):
    whole = {"doc_id": "a", "snippet_id": "a1", "rev": "7", "number": 1, "mine": "x"}
    whole["offsets"] = {"start": 900, "end": 920, "unit": "char"}
    terns = [{"doc_id": "a", "id": "a1", "text": "Terns fly."}]
    rows = [
        ("behind", "Terns fly [1].", terns, [whole, {"number": 1, "quote": ""}]),
        ("alone", "Terns fly.", terns, [{**whole, "number": None}, {"number": 1}]),
        ("tokens", "Terns fly [1].", ["Terns fly."], ["1"]),
    ]
    keys = ("query_id", "answer", "contexts", "citations")
    outputs = write(tmp_path, [dict(zip(keys, row, strict=True)) for row in rows])
    read = maker(tmp_path)[0]
    found = {output.query_id: read.answer(output) for output in outputs}
    stated = {
        query_id: [payload is not None for payload in payloads]
        for query_id, (_, payloads) in found.items()
    }
    assert stated == {"behind": [True], "alone": [True, False], "tokens": [False]}
    answer, payloads = found["alone"]
    assert payloads[0]["rev"] == "7"
    assert "mine" not in payloads[0]
    # Offsets of the system's own document lie outside the passage, so the named passage counts.
    assert [(span.evidence, span.start, span.end) for span in answer.citations] == [(0, 0, 10)] * 2


# ---- Markers


# answer, text, [segment, number] of each marker
@pytest.mark.parametrize(("answer", "text", "citations"), CASES["marked"])
def test_markers(answer, text, citations):
    plain, found, _ = read_marks(answer)
    assert plain == text
    assert [number for _, number in found] == [number for _, number in citations]
    if "```" not in answer:  # the splitter may see a code block and its sentence as one or two
        assert found == [tuple(citation) for citation in citations]


def test_texts_that_resemble_markers_are_counted_and_named_once(tmp_path):
    said = {"one": "So [1]. So [1a].", "two": "So [1 vs 2] and \u3010x1\u3011."}
    rows = [{"query_id": name, "answer": text, "contexts": ["x"]} for name, text in said.items()]
    outputs, warnings = write(tmp_path, rows), ProblemList()
    maker(tmp_path)[0].answer_all(outputs, said, warnings)
    (warning,) = warnings.listed()
    assert (warning.code, warning.severity, warning.line) == ("unread_markers", "warning", 1)
    assert warning.message.startswith("3 texts")
    assert "[1a]" in warning.found
