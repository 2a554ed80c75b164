"""Which answers acknowledge that they have none, and which only sound like it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.answers.abstaining import abstains, abstention

ABSTAIN = [
    "NOT FOUND",
    "NOT FOUND.",
    "**NOT FOUND**",
    "VERDICT=NOT FOUND",
    "VERDICT=NOT FOUND\nCITATIONS=",
    "NOT FOUND. The documents do not mention it.",
    "INSUFFICIENT EVIDENCE: the answer is not in the passages.",
    "INSUFFICIENT EVIDENCE: an answer to the question of who won is not given.",
    "VERDICT: NOT FOUND\nCITATIONS=\nNothing on this.",
    "NOT FOUND: the evidence does not cover the year 1901",
    "INSUFFICIENT EVIDENCE\n- the year of the treaty\n- who signed it",
    "INSUFFICIENT EVIDENCE: the passages name no date.",
    "I don't have enough information to answer this.",
    "I don’t have enough information to answer this.",
    "I do not have enough information to answer that question.",
    "I'm sorry, but I don't have enough information to answer this question.",
    "I am sorry, I do not have any information about that.",
    "Sorry, I don't know.",
    "I don't know.",
    "I do not know the answer to this question.",
    "I don't know who wrote it.",
    "I'm not sure.",
    "We do not have sufficient context to answer.",
    "Unfortunately, the provided context does not contain the answer.",
    "Unfortunately, the provided documents do not mention this topic [1][2].",
    "The context does not provide enough information to answer the question.",
    "The provided passages do not contain any information about the population of Mars.",
    "The retrieved documents don't address this question.",
    "The documents do not say.",
    "None of the provided documents mention this.",
    "None of the sources answers the question.",
    "Nothing in the context addresses this.",
    "The text does not specify when the bridge was built.",
    "Based on the provided context, I cannot answer this question.",
    "Based on the information provided, it is not possible to determine who won.",
    "According to the retrieved documents, there is no information about opening hours.",
    "I cannot answer this question based on the provided context.",
    "I cannot determine the answer from the given passages.",
    "I could not find any relevant information in the documents.",
    "I couldn't find an answer to your question.",
    "I was unable to find relevant information about this.",
    "I can't find this in the provided sources.",
    "I found no relevant information.",
    "No relevant information was found.",
    "No relevant documents were found.",
    "No information is available on this topic.",
    "No answer found.",
    "There is no information about this in the provided documents.",
    "There is not enough information to determine whether the product is vegan.",
    "There isn't enough context to answer this.",
    "There is insufficient evidence to answer the question.",
    "Not enough information.",
    "Insufficient information to answer the question.",
    "The answer is not available in the context.",
    "The answer cannot be found in the provided text.",
    "This question cannot be answered from the given documents.",
    "The question can't be answered with the available information.",
    "This is not mentioned in the provided documents.",
    "The provided information is not sufficient to answer the question.",
    "The evidence is insufficient to answer the question.",
    "The search results are not relevant to the question.",
    "It is impossible to say.",
    "Unanswerable",
    "N/A",
    "Unknown.",
    "I don't have enough information to answer this. Please provide more context.",
    "I'm sorry. I couldn't find anything about it. Let me know if you have other questions!",
    "The context does not mention it; I cannot answer.",
    "I have no idea.",
    "I don't have access to any documents about this.",
    "It seems that the provided documents do not contain information on this.",
]

ANSWER = [
    "NOT FOUND. The answer is Paris, though.",
    "NOT FOUND: Paris is the capital.",
    "NOT FOUND\nThe capital is Paris.",
    "VERDICT=NOT FOUND\nCITATIONS=a.md:3\nThe capital is Paris.",
    "INSUFFICIENT EVIDENCE: the answer is Paris, 42 per cent, take aspirin.",
    "INSUFFICIENT EVIDENCE. Final answer: Paris",
    "INSUFFICIENT EVIDENCE: " + "the year of the treaty, " * 30,
    "",
    "   ",
    "Paris.",
    "Not found in the wild since 1900, the bird is considered extinct.",
    "The tern is not found in Africa.",
    "NOT FOUND errors (404) mean that the page is missing.",
    "A KeyError is raised when the key is not found.",
    "The key was not found in the cache, so it is computed.",
    "If no match is found, the function returns None.",
    "The server returns 404 when a document cannot be found.",
    "I have enough information to answer this: it is Paris.",
    "I do have enough information to answer.",
    "It is not true that there is no information about it.",
    "I don't have enough information to answer this, but Paris is the capital of France.",
    "I don't have enough information to answer this. Paris is the capital of France.",
    "Although I cannot find any exact figure, it is about 40 %.",
    "I'm not sure, but it is probably Paris.",
    "I don't know of any country that is larger than Russia.",
    "I don't know; perhaps Paris.",
    "There is no evidence that vaccines cause autism.",
    "There is no evidence for life on Mars.",
    "There is insufficient evidence to conclude that coffee prevents cancer.",
    "There is no data type for that in SQL.",
    "I cannot find any evidence that the moon is hollow.",
    "The evidence does not support the claim.",
    "The study does not provide a mechanism.",
    "The function does not provide a default.",
    "The text does not mention the king until chapter three.",
    "The documents do not mention Paris, but they name Berlin as the capital.",
    "The documents do not mention the price. It costs 40 euros.",
    "The provided document does not contain a signature.",
    "The law does not mention software.",
    "No.",
    "No, it is not possible.",
    "No one has found the treasure.",
    "No information system is perfectly secure.",
    "No documents are needed for a visit of under 90 days.",
    "None of the planets has a ring as large as Saturn's.",
    "Nothing is known about his childhood, and his birth is dated to 1564.",
    "Unknown at first, the virus was named in 1983.",
    "Unknown keys are refused.",
    "You cannot answer a call while the phone is locked.",
    "He could not find the answer and resigned.",
    "The committee was unable to find a solution.",
    "I can't help with that.",
    "I cannot recommend this drug.",
    "According to the retrieved documentation, Python uses indentation for code blocks.",
    "Insufficient evidence was presented at the trial, and the jury acquitted him.",
    "The question cannot be answered with yes or no because both treaties apply, and the later one prevails.",
    "Please note that Paris is the capital of France.",
    "You can check that Python uses indentation.",
    "JavaScript is a dynamically typed language.",
    "The answer is 42.",
    "The answer is not 42.",
    "It is impossible to travel faster than light.",
    "It was not found in the wild.",
    "It was not mentioned in the treaty of 1648.",
    "I could not find it in the kitchen.",
    "I found nothing in the drawer.",
]


@pytest.mark.parametrize("text", ABSTAIN)
def test_an_acknowledgement_abstains(text):
    assert abstains(text)


@pytest.mark.parametrize("text", ANSWER)
def test_an_answer_does_not_abstain(text):
    assert not abstains(text)


def test_the_two_kinds_are_told_apart():
    assert abstention("NOT FOUND") == "not_found"
    assert abstention("INSUFFICIENT EVIDENCE: no date") == "insufficient_evidence"
    assert abstention("No relevant information was found.") == "not_found"
    assert abstention("There is not enough information to answer this.") == "insufficient_evidence"


@given(st.text(max_size=300))
def test_any_text_is_judged(text):
    assert abstains(text) in {True, False}


@pytest.mark.parametrize(
    "piece",
    [
        "I cannot find the ",
        "the provided context ",
        "No relevant ",
        "based on the context the ",
        "any ",
        "[1]",
        "- ",
        "sorry, but ",
    ],
)
def test_long_repetitions_come_to_an_end(piece):
    assert not abstains(
        piece * (2000 // len(piece))
    )  # a pattern that backtracks without end would meet the suite's time limit
