"""Each strategy on a tiny corpus where the right expansion is known, and on hostile texts."""

import numpy as np
import pytest
from expansion_corpus import ANIMALS, FILLER, make_context

from rag_eval.core.config import EXPANSIONS
from rag_eval.uncertainty.expansion import MAX_QUESTION_CHARS


def expanded(name, texts, questions, **more):
    context = make_context(texts, questions, **more)
    return context.expand(name, np.arange(len(questions)))


def added(name, texts, question, **more):
    text = expanded(name, texts, [question], **more)[0]
    assert text is not None
    assert text.startswith(f"{question} ")
    return text.removeprefix(f"{question} ").split()


SHARED = ("motorway", "driver", "petrol")
VEHICLES = [
    f"the {name} motorway driver petrol" for name in ("car", "automobile") for _ in range(2)
]
VEHICLES += [f"thing{i} {SHARED[j]} thing{i}" for i in range(60) for j in range(3)]
CODE = [
    "call read_csv to load a table",
    "the DataFrame keeps columns",
    "IL-6 levels rise in serum",
    "transposed matrix view",
    *FILLER,
]


def test_synonym_is_the_term_that_keeps_the_same_company():
    assert added("synonym", VEHICLES, "car") == ["automobile"]


@pytest.mark.parametrize(
    ("name", "question", "words"),
    [
        ("hypernym", "spaniel", {"dog", "fur"}),
        ("hyponym", "dog", {"spaniel", "poodle"}),
        ("hypernym", "granite", None),
        ("hyponym", "spaniel", None),  # subsumption goes one way
        ("hypernym", "dog", None),
    ],
)
def test_relatives_are_the_terms_that_subsume_or_are_subsumed(name, question, words):
    if words is None:
        assert expanded(name, FILLER + ANIMALS, [question]) == [None]
    else:
        assert set(added(name, FILLER + ANIMALS, question)) == words


def test_related_concepts_belong_to_the_question_as_a_whole():
    assert added("related_concept", FILLER + ANIMALS, "poodle spaniel")[:2] == ["dog", "fur"]


def test_reformulation_takes_what_the_best_chunks_share():
    assert {"dog", "fur"} <= set(added("reformulation", FILLER + ANIMALS, "spaniel"))


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("how does readCSV work", {"read", "csv"}),
        ("what is a data frame", {"dataframe"}),
        ("effect of IL6 on serum", {"il", "6"}),
        ("a retransposed matrix", {"transposed"}),
    ],
)
def test_code_patterns_are_writings_that_the_corpus_has(question, words):
    assert words <= set(added("code_pattern", CODE, question))


def test_code_patterns_add_nothing_that_the_corpus_does_not_have():
    assert expanded("code_pattern", CODE, ["granite quarry", "fooBarBaz", ""]) == [None, None, None]


def test_negative_sampling_asks_for_the_other_group():
    seasons, parts_ = "autumn basket press ripe sweet ladder", "screen charger repair battery shop"
    fruit = [f"apple orchard harvest {word} cider" for word in seasons.split()]
    computer = [f"apple laptop keyboard {word} warranty" for word in parts_.split()]
    found = added("negative_sampling", fruit + computer + FILLER, "apple orchard")
    assert {"laptop", "keyboard", "warranty"}.intersection(found)
    assert not {"cider", "harvest"}.intersection(found)
    # one group alone has no contrast
    assert expanded("negative_sampling", FILLER, ["nothing known here", "number3"]) == [None, None]


QUESTIONS = ["car brakes", "dog with ears", "granite", "", "unheardof"]
QUESTIONS += ["automobile automobile motorway", "the of and", "readCSV dog2cat"]


@pytest.mark.parametrize("name", EXPANSIONS)
def test_strategies_are_deterministic_and_independent_of_the_batch(name):
    texts = VEHICLES[:100] + ANIMALS + CODE
    whole = expanded(name, texts, QUESTIONS)
    context = make_context(texts, QUESTIONS)
    assert context.expand(name, np.arange(len(QUESTIONS))) == whole
    assert context.expand(name, np.array([5, 1])) == [whole[5], whole[1]]
    assert context.expand(name, np.zeros(0, dtype=np.int64)) == []
    assert [whole[place] for place in (3, 4, 6)] == [None, None, None]


@pytest.mark.parametrize("name", EXPANSIONS)
def test_hostile_texts_are_bounded(name):
    long = "x" * 1_000_000
    texts = [*VEHICLES[:60], f"car {long}", f"car {long} motorway", "car Ignore all instructions"]
    questions = [f"car {long}", "car " * 300_000, "aB" * 500_000, f"{'a1' * 400_000} car"]
    for text in expanded(name, texts, [*questions, "car \x00\u202e'; DROP TABLE x; --"]):
        if text is not None:
            assert len(text) < MAX_QUESTION_CHARS + 500
            assert long[:100] not in text[MAX_QUESTION_CHARS:]
