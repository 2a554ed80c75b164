"""FK019: which answers leave what was retrieved unused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.measures.phrases import acknowledges_nothing_found, refers_to_sources
from rag_eval.measures.retrieval_gap import VIOLATIONS, Gap, retrieval_gaps

PYTHON = (
    "Python uses indentation for code blocks.",
    "Python supports object-oriented programming.",
)
FRANCE = ("The capital of France is Paris.",)
TOWER = (
    "The Eiffel Tower was completed in 1889. It is 330 metres tall. Gustave Eiffel's company built it for the World's Fair.",
    "It is repainted every seven years.",
)
CODE = (
    "Use `DataFrame.sort_values(by)` to sort rows by a column. `DataFrame.sort_index()` sorts by labels.",
)
LEAVE = (
    "Employees receive 25 days of paid leave a year. Unused days expire in March.",
    "Requests go to the line manager.",
)

CASES = [
    # the five of the issue
    (PYTHON, "JavaScript is a dynamically typed language.", "content_unused"),
    (FRANCE, "The capital of Germany is Berlin.", "content_unused"),
    (
        PYTHON[:1],
        "According to the retrieved documentation, Python uses indentation for code blocks.",
        "refers_to_sources",
    ),
    (FRANCE, "Paris is the capital of France.", "content_used"),
    ((), "I don't have enough information to answer this.", "no_retrieval"),
    # references
    (FRANCE, "The provided context states that it is Paris.", "refers_to_sources"),
    (FRANCE, "It is the City of Light [1].", "refers_to_sources"),
    (FRANCE, "It is the City of Light[1].", "refers_to_sources"),
    (FRANCE, "As described in the documents, it lies on the Seine.", "refers_to_sources"),
    (
        FRANCE,
        "Based on the provided information, it is the city on the Seine.",
        "refers_to_sources",
    ),
    (FRANCE, "It lies on the Seine. Source: geography.md", "refers_to_sources"),
    (FRANCE, "It lies on the Seine (source: geography.md).", "refers_to_sources"),
    (FRANCE, "Document 1 says so.", "refers_to_sources"),
    (FRANCE, "The passage does not only list it, the passage explains it.", "refers_to_sources"),
    (FRANCE, "Not only do the documents mention it, they are clear.", "refers_to_sources"),
    (
        FRANCE,
        "According to the docs, whales are fish.",
        "refers_to_sources",
    ),  # false, but a reference
    (PYTHON, "According to the documentation, it does not support goto.", "refers_to_sources"),
    (FRANCE, "Laut der Dokumentation liegt sie an der Seine.", "refers_to_sources"),
    (FRANCE, "Selon les documents fournis, c'est la ville lumière.", "refers_to_sources"),
    (FRANCE, "Según los documentos, es la ciudad de la luz.", "refers_to_sources"),
    (FRANCE, "Secondo la documentazione, si trova sulla Senna.", "refers_to_sources"),
    (FRANCE, "根据文档，它位于塞纳河畔。", "refers_to_sources"),
    (FRANCE, "資料によると、セーヌ川のほとりにあります。", "refers_to_sources"),
    (FRANCE, "문서에 따르면 센강에 있습니다.", "refers_to_sources"),
    (FRANCE, "Согласно документам, он стоит на Сене.", "refers_to_sources"),
    (FRANCE, "VERDICT=YES\nCITATIONS=geo.md:3-4\nIt lies on the Seine.", "refers_to_sources"),
    # references that are none
    (
        FRANCE,
        "The documents do not matter, from my own knowledge: Berlin lies on the Spree.",
        "content_unused",
    ),
    (FRANCE, "Without looking at the sources, Berlin lies on the Spree.", "content_unused"),
    (
        FRANCE,
        "This is not based on the provided context, but Berlin lies on the Spree.",
        "content_unused",
    ),
    (
        FRANCE,
        "Ignoring what is in the retrieved documents, Berlin lies on the Spree.",
        "content_unused",
    ),
    (
        FRANCE,
        "Instead of going by the provided documents: Berlin lies on the Spree.",
        "content_unused",
    ),
    (
        FRANCE,
        "I answer from memory rather than from the provided passages: Berlin lies on the Spree.",
        "content_unused",
    ),
    (FRANCE, "The sources were ignored. Berlin lies on the Spree.", "content_unused"),
    (FRANCE, "Regardless of the provided context, Berlin lies on the Spree.", "content_unused"),
    (FRANCE, "Ohne die Dokumente zu lesen: Berlin liegt an der Spree.", "content_unused"),
    (FRANCE, "In the context of sports, football is popular.", "content_unused"),
    (FRANCE, "The source of the Danube lies in the Black Forest.", "content_unused"),
    (FRANCE, "It is open source software written in Rust.", "content_unused"),
    (FRANCE, "Berlin lies on the Spree [7].", "content_unused"),  # there is one source
    (CODE, "Write `rows[1]` and be done.", "content_unused"),
    (CODE, "x = [1, 2] makes a list.", "content_unused"),
    (FRANCE, "The evidence shows that smoking harms lungs.", "content_unused"),
    # acknowledgements
    (FRANCE, "I could not find any information on this.", "acknowledged"),
    (FRANCE, "The documents do not mention Berlin.", "acknowledged"),
    (FRANCE, "The retrieved documents are not relevant to the question.", "acknowledged"),
    (FRANCE, "NOT FOUND", "acknowledged"),
    (FRANCE, "INSUFFICIENT EVIDENCE: the year is missing.", "acknowledged"),
    (FRANCE, "I don't know.", "acknowledged"),
    (FRANCE, "There is nothing about mountains in the provided passages.", "acknowledged"),
    (FRANCE, "No relevant information was found.", "acknowledged"),
    (FRANCE, "This is not covered in the documentation.", "acknowledged"),
    (FRANCE, "Unfortunately, the provided context doesn't contain the answer.", "acknowledged"),
    (FRANCE, "I don't have enough information to answer this.", "acknowledged"),
    (FRANCE, "None of the documents answers this.", "acknowledged"),
    (FRANCE, "Die Dokumente enthalten dazu keine Angaben.", "acknowledged"),
    (FRANCE, "Das weiß ich nicht, es wurden keine Informationen gefunden.", "acknowledged"),
    (FRANCE, "Les documents ne mentionnent pas cette ville.", "acknowledged"),
    (FRANCE, "No se encontró información sobre este tema.", "acknowledged"),
    (FRANCE, "Não encontrei informações sobre isso.", "acknowledged"),
    (FRANCE, "Non ho trovato informazioni.", "acknowledged"),
    (FRANCE, "В документах нет информации об этом.", "acknowledged"),
    (FRANCE, "没有找到相关信息。", "acknowledged"),
    (FRANCE, "関連する情報は見つかりませんでした。", "acknowledged"),
    (FRANCE, "관련 정보를 찾을 수 없습니다.", "acknowledged"),
    (FRANCE, "لم أجد معلومات عن ذلك.", "acknowledged"),
    # words that acknowledge nothing
    (FRANCE, "There is no shortage of information about Berlin.", "content_unused"),
    (FRANCE, "I don't know about you, but I like Berlin.", "content_unused"),
    (FRANCE, "The server answers 404 NOT FOUND for such paths.", "content_unused"),
    (FRANCE, "You could not find a better city than Berlin.", "content_unused"),
    (FRANCE, "There is no evidence that whales are fish.", "content_unused"),
    # use and no use of content
    (TOWER, "The tower was completed in 1889 by the company of Gustave Eiffel.", "content_used"),
    (TOWER, "The tower was completed in 1887.", "content_unused"),
    (TOWER, "The tower is 300 metres tall.", "content_unused"),
    (TOWER, "The tower is 330 metres tall.", "content_used"),
    (TOWER, "It is repainted every 7 years.", "content_used"),
    (TOWER, "It is repainted every 12 years.", "content_unused"),
    (TOWER, "Albert Speer's company built it for Germania.", "content_unused"),
    (TOWER, "The tower is great.", "content_unused"),
    (TOWER, "Metres.", "content_used"),  # one word, and all of the answer stands there
    (TOWER, "Kilometres.", "content_unused"),
    (CODE, "Call df.sort_values() to sort the rows by a column.", "content_used"),
    (CODE, "Call `numpy.argsort` on the array.", "content_unused"),
    (CODE, "```python\nframe.groupby('a').sum()\n```", "content_unused"),
    (LEAVE, "You get 25 days of paid leave.", "content_used"),
    (LEAVE, "You get 30 days of paid leave.", "content_unused"),
    (
        LEAVE,
        "- Employees receive 25 days of paid leave\n- Unused days expire in March",
        "content_used",
    ),
    (
        LEAVE,
        "Holidays matter. Many people travel abroad. Mountains are lovely. Unused days expire in March. Enjoy the beach!",
        "content_used",
    ),
    (
        LEAVE,
        "Holidays matter. Many people travel abroad. Mountains are lovely. Enjoy the beach!",
        "content_unused",
    ),
    (PYTHON, "Python is great.", "content_unused"),
    (PYTHON, "Object-oriented programming is supported by Python.", "content_used"),
    # other languages
    (
        ("Paris ist die Hauptstadt von Frankreich.",),
        "Im Text heißt es: „Paris ist die Hauptstadt von Frankreich.“",
        "refers_to_sources",
    ),
    (
        ("Paris ist die Hauptstadt von Frankreich.",),
        "My neighbour told me over dinner that they write „Paris ist die Hauptstadt von Frankreich“ somewhere.",
        "content_used",
    ),
    (
        ("Paris ist die Hauptstadt von Frankreich.",),
        "My neighbour told me over dinner that they write „Berlin liegt an der schönen Spree“ somewhere.",
        "content_unused",
    ),
    (
        ("法国的首都是巴黎。",),
        "The answer in a word of the locals is 「法国的首都是巴黎」, or so they told my neighbour.",
        "content_used",
    ),
    (
        ("Paris ist die Hauptstadt von Frankreich.",),
        "It says „Paris ist die Hauptstadt von Frankreich“.",
        "content_used",
    ),
    (
        ("Paris est la capitale de la France.",),
        "La capitale de la France est Paris.",
        "content_used",
    ),
    (("Paris est la capitale de la France.",), "Berlin se trouve en Allemagne.", "content_unused"),
    (("法国的首都是巴黎。",), "巴黎是法国的首都。", "content_used"),
    (("法国的首都是巴黎。",), "柏林在德国。", "content_unused"),
    (("日本の首都は東京です。",), "東京は日本の首都です。", "content_used"),
    (("Столица России — Москва.",), "Москва — столица России.", "content_used"),
    (
        FRANCE,
        "Die Hauptstadt Frankreichs ist die Stadt an der Seine.",
        "content_unused",
    ),  # only translated: words cannot tell
    # nothing said, nothing retrieved
    (FRANCE, "", "empty_answer"),
    (FRANCE, " \n\t", "empty_answer"),
    (FRANCE, "...", "empty_answer"),
    (FRANCE, "?!—", "empty_answer"),
    (FRANCE, "Yes.", "content_unused"),
    ((), "", "no_retrieval"),
    (("", "  "), "Berlin lies on the Spree.", "no_retrieval"),
    ((), "Berlin lies on the Spree.", "no_retrieval"),
]


@pytest.mark.parametrize(
    ("retrieved", "answer", "reason"), CASES, ids=[case[1][:40] or "(empty)" for case in CASES]
)
def test_verdict(retrieved, answer, reason):
    (found,) = retrieval_gaps([answer], [retrieved])
    assert (found.reason, found.violation) == (reason, reason in VIOLATIONS)


def test_the_batch_is_judged_as_its_members_are():
    reasons = [
        found.reason
        for found in retrieval_gaps([case[1] for case in CASES], [case[0] for case in CASES])
    ]
    differing = [
        (case, reason) for case, reason in zip(CASES, reasons, strict=True) if case[2] != reason
    ]
    # the batch's own document frequencies weigh words otherwise; references and acknowledgements stay
    assert all(reason.startswith("content_") for _, reason in differing)
    assert len(differing) <= 0.05 * len(CASES)


def test_human_answers_use_their_own_passage_and_no_other(shared_data):
    rows = [
        json.loads(line)
        for line in (shared_data / "clapnq" / "clapnq_dev_answerable.jsonl")
        .read_text(encoding="utf-8")
        .splitlines()
    ]
    answers, passages = (
        [row["output"][0]["answer"] for row in rows],
        [row["passages"][0]["text"] for row in rows],
    )
    own = retrieval_gaps(answers, [[passage] for passage in passages])
    other = retrieval_gaps(answers, [[passage] for passage in passages[1:] + passages[:1]])
    assert sum(found.violation for found in own) <= 0.02 * len(rows)
    assert sum(found.violation for found in other) >= 0.98 * len(rows)
    assert {found.reason for found in own + other} <= {
        "content_used",
        "content_unused",
    }  # no phrase is seen where there is none


def test_there_are_at_least_sixty_cases_of_our_own():
    assert len(CASES) - 5 >= 60
    assert len({case[:2] for case in CASES}) == len(CASES)


@pytest.mark.parametrize(
    "answer", ["Berlin lies on the Spree.", "", "Without the documents: Berlin."]
)
def test_retrieval_that_sets_the_tone_is_exempt(answer):
    assert retrieval_gaps([answer], [FRANCE], purposes=["context"])[0] == Gap(
        violation=False, reason="context_only"
    )


def test_structured_citations_count():
    assert retrieval_gaps(["Berlin.", "Berlin."], [FRANCE, FRANCE], cites=[True, False]) == [
        Gap(violation=False, reason="cited"),
        Gap(violation=True, reason="content_unused"),
    ]


def test_what_decided_is_named_and_short():
    (reference, used) = retrieval_gaps(
        ["As described in the documents, so it is.", "Paris is the capital of France. " * 40],
        [FRANCE, FRANCE],
    )
    assert reference.detail == "As described in the documents"
    assert used.detail == "Paris is the capital of France."
    assert len(retrieval_gaps(["paris france capital " * 400], [FRANCE])[0].detail) <= 120


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="differ in length"):
        retrieval_gaps(["a"], [])
    with pytest.raises(ValueError, match="differ in length"):
        retrieval_gaps(["a"], [FRANCE], cites=[True, False])


@given(st.text(max_size=400))
@settings(max_examples=200, deadline=None)
def test_any_text_can_be_judged(text):
    (found,) = retrieval_gaps([text], [FRANCE])
    assert found.violation == (found.reason in VIOLATIONS)


@pytest.mark.parametrize(
    "text",
    [
        "the provided " * 5000,
        "no relevant " * 5000,
        "(source" * 5000,
        "[1" * 20_000,
        "```" * 9999,
        "I could not find " * 3000,
        "there is no " * 4000,
    ],
)
def test_hostile_repetition_is_read_in_linear_time(text):
    refers_to_sources(text)
    acknowledges_nothing_found(text)
