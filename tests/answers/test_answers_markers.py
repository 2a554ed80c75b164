"""Citation markers: each form of marker_forms.tsv gives the same figures."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.answers.evidence import Library
from rag_eval.answers.recorded import RecordedAnswers
from rag_eval.core.errors import ProblemList
from rag_eval.core.strategy import Identity
from rag_eval.corpus.chunking import chunk_documents, spans
from rag_eval.corpus.loaders.recorded import Recorded, read_outputs
from rag_eval.corpus.loading import load_corpus
from rag_eval.corpus.markers import read_marks, remove_marks
from rag_eval.measures.support import citation_support, groundedness, retrieval_gaps

FORMS = [
    (form.replace("↵", "\n").replace("\\|", "|"), [int(number) for number in cited.split(", ")])
    for form, cited in (
        line.split("\t")
        for line in (Path(__file__).parent / "marker_forms.tsv").read_text("utf-8").splitlines()
    )
]
NAMES = ("pump.md", "valve.md", "tank.md")
TEXTS = (
    "The pump runs at 40 bar.",
    "The valve closes in two seconds.",
    "The tank holds water.",
    "Das Ventil ist blau.",
    "阀门是蓝色的。",
    "水箱是绿色的。",
    "वाल्व नीला है।",
    "टंकी हरी है।",
    "هل الصمام أزرق؟",
    "نعم هو أزرق.",
)


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory):
    """Return a function: answer -> (its Answer, texts that resemble markers)."""
    folder = tmp_path_factory.mktemp("forms")
    contexts = [
        {"doc_id": "guide", "id": name, "text": text}
        for name, text in zip([*NAMES, *map(str, range(4, 11))], TEXTS, strict=True)
    ]
    contexts[0] |= {"title": "Manual of the pump", "url": "https://example.org/pump"}
    path = folder / "outputs.jsonl"

    def write(answer):
        row = {"query_id": "q", "question": "?", "answer": answer, "contexts": contexts}
        path.write_text(json.dumps(row), encoding="utf-8")

    write("")
    spec = Recorded(loader="recorded", path="outputs.jsonl")
    loaded = load_corpus(spec, folder)
    chunks = chunk_documents(loaded.documents, loaded.sections, spec.chunker)
    library = Library(loaded.documents, loaded.sections, chunks, Identity("x", ""))

    def make(answer):
        write(answer)
        maker = RecordedAnswers(library, loaded.documents)
        (output,) = read_outputs(path, ProblemList())
        return maker.answer(output)[0], [mark for _, mark in maker.unread]

    return make


@pytest.mark.parametrize(("form", "cited"), FORMS)
def test_each_form_has_the_same_figures(evaluate, form, cited):
    answer, unread = evaluate(form)
    assert sorted({span.evidence + 1 for span in answer.citations}) == cited
    assert unread == []
    (sentences,) = citation_support([answer])
    assert sentences
    assert all(one.places and one.supported and one.score == 1 for one in sentences)
    shown = [[item.chunk.text for item in answer.evidence]]
    assert groundedness([answer.text], shown).value.tolist() == [1.0]
    assert [gap.reason for gap in retrieval_gaps([answer.text], shown)] == ["content_used"]
    assert remove_marks(answer.text) == answer.text
    if "pump.md]" not in form:  # only a recorded answer has the names of its contexts
        assert groundedness([form], shown).value.tolist() == [1.0]


# text, what is cited, what resembles a marker
OTHERS = [
    ("Take items[0], rows[2][1] and argv[1].", [], []),
    ("Set a[1] = 2 or x[3] += 1.", [], []),
    ("Let y = [1, 2], or call print([1, 2]).", [], []),
    ("See `x[1]`, ``y[2]`` and so on [3].", [3], []),
    ("So it is [1].\n\n~~~\nx[2]\n~~~\n\n```\nz [3]\n```\n", [1], []),
    ("So it is [1].\n\n    print [2]\n\n    print [3]\n\nAnd so [2].", [1, 2], []),
    ("- So it is [1].\n\n  And\n\n    so [2].", [1, 2], []),
    ("A share in [0, 1] or [0-5].", [], []),
    ("Let x in [1, 3], t ∈ [2, 3], or the interval [1, 2].", [], []),
    ("A 95% CI [1, 3], an IQR: [2-6], a scale of [1, 5].", [], []),
    ("The list [3, 1, 2] sorted: it returns [1, 2, 3].", [], []),
    ("As the list says [1, 2].", [1, 2], []),
    ("An area of 3 m ² and 10 ³.", [], []),
    ("Scaled to [1, 100], as others do [1, 2].", [1, 2], []),
    ("In [2019], in [2019-2021] and in [2020a].", [], []),
    ("It is 10³ m³, 5 km² and x², and Ca²⁺.", [], []),
    ("An area of 3 m<sup>2</sup>, or 10<sup>3</sup>.", [], []),
    ("Sign document 1 and document 2.", [], []),
    ("YouTube[1], (WHO)[2] and vitamin C[3].", [1, 2, 3], []),
    ("It costs [12.5] or [1.2.3].", [], []),
    ("All of it [1-1000000].", [], ["[1-1000000]"]),
    ("All of it [5-2].", [], ["[5-2]"]),
    ("Nodes [Node 1] and [C2].", [], ["[Node 1]", "[C2]"]),
    ("One [1 vs 2], two [1a], three [12345].", [], ["[1 vs 2]", "[1a]", "[12345]"]),
    ("One 【4:x†file】 and [^note].", [], ["【4:x†file】", "[^note]"]),
    (
        "As [Source: other.md] says, or (Document 1 of 5).",
        [],
        ["[Source: other.md]", "(Document 1 of 5)"],
    ),
    ("It is \ue200cite\ue202turn0search1\ue201.", [], ["\ue200cite\ue202turn0search1\ue201"]),
    ("Whereas Document 1 is long.", [], ["Document 1"]),
    ("Smith wrote it [Smith 2020].", [], []),
]


@pytest.mark.parametrize(("text", "cited", "resembling"), OTHERS)
def test_what_is_no_marker_stays_in_the_text(text, cited, resembling):
    marks = read_marks(text, n_sources=3)
    assert [number for _, number in marks.citations] == cited
    assert marks.unread == resembling
    if not cited:
        assert marks.text == text


def test_a_range_is_bounded_by_the_sources():
    assert read_marks("So [2-900].", n_sources=3).citations == [(0, 2), (0, 3), (0, 900)]
    many = read_marks("So [1-999]. " * 20_000)
    assert len(many.citations) < 20_000
    assert len(many.unread) > 19_000


BODY = "The pump runs [1]. The valve closes [2]."
# list of references below BODY, the numbers that its citations stand for
LISTS = [
    ("Sources:\n[1] b.md\n[2] a.md", [2, 1]),
    ("**Sources**\n\n- [1] see B.MD, page 3\n- [2]: <https://a.org/>", [2, 1]),
    ("## References\n\n1. b.md\n2. a.md", [2, 1]),
    ("---\n\nQuellen: [1] b.md, [2] a.md", [2, 1]),
    ("[1] b.md - the valve\n[2] [Title A](https://a.org/)", [2, 1]),
    ("[^1]: b.md\n[^2]: a.md", [2, 1]),
    ("参考文献：\n【1】 b.md", [2, 2]),
    ("Sources: [1], [2]", [1, 2]),
    ("🔗 Sources\n1. b.md\n2. a.md", [2, 1]),
    ("参考：\n[1] b.md", [2, 2]),
    ("---\n[1] Manual of 2020\n[2] a.md\n[3] Manual of 2021", [1, 1]),
    ("***\n¹ b.md\n² a.md", [2, 1]),
    ("References:\n- A book\n- Another book", [1, 2]),
]


@pytest.mark.parametrize(("listed", "numbers"), LISTS)
def test_a_list_of_references_names_the_numbers_and_cites_nothing(listed, numbers):
    names = {"a.md": [1], "b.md": [2], "title a": [1], "https://a.org/": [1]}
    marks = read_marks(f"{BODY}\n\n{listed}", names, 2)
    assert marks.text == "The pump runs. The valve closes."
    assert marks.citations == list(enumerate(numbers))


@pytest.mark.parametrize(
    "text",
    [
        "There are two.\n\nSources:\n- Coal\n- Gas",
        "There are two.\n\nSources: coal and gas.",
        "[1] Coal burns.\n[2] Gas burns.",
        "Both burn:\n\n[1] Coal burns.\n[2] Gas burns.",
        "Sources: [1], [2]",
    ],
)
def test_a_list_of_the_answer_is_no_list_of_references(text):
    assert remove_marks(text).count("\n") == text.count("\n")
    assert len(read_marks(text).citations) == text.count("[")


@given(st.text(alphabet="ab.[]1,0` \n", max_size=80))
def test_no_text_is_lost_but_markers_and_blanks(answer):
    plain, citations, _ = read_marks(answer)
    rest = iter(answer)
    assert all(character in rest for character in plain if not character.isspace())
    assert plain.count("a") == answer.count("a")
    assert all(-1 <= segment < len(spans(plain)) for segment, _ in citations)
