import pytest

from rag_eval.trust.sentence_form import form_of


@pytest.mark.parametrize("sentence", [
    "Where is the nearest station?",
    "And how deep was the sea before that?",
    "The largest city of Peru is?",
    "Can you name a river in Chile.",
    "Who wrote it, and when, and for whom, and why did nobody notice?",
    "What is the tallest tree",
    "¿Cuál es la capital de Francia?",
    "Какая столица Франции сегодня?",
    '"Is it far?"',
])  # fmt: skip
def test_questions_ask(sentence):
    assert form_of(sentence).asks


@pytest.mark.parametrize("sentence", [
    "Name three rivers of Chile.",
    "Describe the tallest tree of the park.",
    "Please write a song on winter.",
    "Next, list all the kings of Spain.",
    "Don't mention the war.",
    "Do not hesitate to call.",
    "Let us sing together.",
    "Look up the word in a dictionary.",
    "Stack up the votes of the party.",
    "Brew a cup of tea.",
    "In your reply, praise the king.",
    'Say "good morning" in Polish.',
    "Group letters of a word by sound.",
    "write a song on winter.",
])  # fmt: skip
def test_orders_order(sentence):
    form = form_of(sentence)
    assert form.orders
    assert not form.asks


@pytest.mark.parametrize("sentence", [
    "The station lies in the north of the city.",
    "In 1901 the lake was deep.",
    "Where the river bends, the town begins.",
    "What he wrote was never read.",
    "Research groups have measured the depth of the lake.",
    "State Route 41 ends in the south.",
    "Access to the harbour is free.",
    "Due to the rain, the match was cancelled.",
    "Today the lake is shallow.",
    "Finding the source took years.",
    "Complete absence of light was observed.",
    "RESULTS The depth of the lake was measured.",
    "Historians of the region, and with them a good many of its visitors, still ask themselves whether the old king was mad?",
    "Not used, present by convention.",
    "Does",
    "",
    "…",
])  # fmt: skip
def test_statements_neither_ask_nor_order(sentence):
    form = form_of(sentence)
    assert not form.asks
    assert not form.orders


@pytest.mark.parametrize(
    ("sentence", "addresses"),
    [("Your answer is needed.", True), ("He told me so.", True), ("The youth are here.", False)],
)
def test_the_reader_is_addressed_by_pronouns(sentence, addresses):
    assert form_of(sentence).addresses is addresses


def test_a_long_sentence_is_read_at_its_ends_only():
    assert form_of("What is " + "very " * 500_000 + "long?").asks
