import json
import tomllib
from pathlib import Path

import pytest

from rag_eval.answers.abstention import MAX_CHARS, abstention

FOLDER = Path(__file__).parent
CASES = json.loads((FOLDER / "abstention_cases.json").read_text(encoding="utf-8"))
BENCHMARK = tomllib.loads((FOLDER / "refusals.toml").read_text(encoding="utf-8"))
LANGUAGES = ["en", "de", "fr", "es", "it", "pt", "ru", "zh"]


@pytest.mark.parametrize("text", CASES["abstain"])
def test_acknowledgement_abstains(text):
    assert abstention(text)


@pytest.mark.parametrize("text", CASES["answer"])
def test_answer_does_not_abstain(text):
    assert abstention(text) is None


def test_two_kinds_are_told_apart():
    assert abstention("NOT FOUND") == "not_found"
    assert abstention("INSUFFICIENT EVIDENCE: no date") == "insufficient_evidence"
    assert abstention("No relevant information was found.") == "not_found"
    assert abstention("There is not enough information to answer this.") == "insufficient_evidence"


def share(texts):
    return sum(abstention(text) is not None for text in texts) / len(texts)


@pytest.mark.parametrize("half", ["held_out", "development"])
def test_refusals_are_found_and_answers_are_not(half):
    groups = BENCHMARK[half]
    assert list(groups) == LANGUAGES
    texts = {
        kind: [text for group in groups.values() for text in group[kind]]
        for kind in ("refusals", "answers")
    }
    assert min(map(len, texts.values())) >= 80
    assert share(texts["refusals"]) >= 0.90
    assert share(texts["answers"]) <= 0.02


@pytest.mark.parametrize("language", LANGUAGES)
def test_refusals_of_each_language_are_found(language):
    assert share(BENCHMARK["held_out"][language]["refusals"]) >= 0.80


@pytest.mark.parametrize(
    ("tail", "is_refusal"),
    [
        ("", True),
        (" Please ask the vendor.", True),
        (" They only describe the installation.", True),
        (" Generally, such pumps cost 40 euros.", False),
        (" It is probably 40 euros.", False),
        ("\n\n- Pump A: 40 euros", False),
        (" x" * MAX_CHARS, False),
    ],
)
def test_a_refusal_with_more_than_courtesies_is_an_answer(tail, is_refusal):
    assert bool(abstention(f"The documents do not mention the price.{tail}")) is is_refusal
