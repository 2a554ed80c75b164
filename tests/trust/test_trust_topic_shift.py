import numpy as np
import pytest

from rag_eval.records.trust import FINDINGS
from rag_eval.trust import shift_coefficients
from rag_eval.trust.shift_features import FEATURES, features_of
from rag_eval.trust.shift_space import space_of
from rag_eval.trust.topic_shift import ShiftOptions, topic_shift

SUBJECTS = {
    "harbour": "ship crane quay anchor pilot cargo tide lighthouse captain dock rope fender tug mooring ferry".split(),
    "orchard": "apple pear graft blossom bee pruning ladder cider root harvest frost soil basket crate juice".split(),
    "foundry": "iron furnace mould bronze slag ladle casting alloy hammer anvil coke bellows pattern ingot rivet".split(),
    "theatre": "stage curtain actor script costume balcony prompter rehearsal applause scene props wig matinee critic role".split(),
}
FRAMES = (
    "The {} of the town stands near the {} and the {}.",
    "Every year the {} was mended with the {} before the {} came.",
    "Older people remember that the {} and the {} belonged to one {}.",
    "Without a {} neither the {} nor the {} can be used.",
    "A {} that is well kept outlives the {} and also the {}.",
    "In winter the {} is stored beside the {} under a {}.",
    "Most of the money for the {} went into the {} and the {}.",
)
QUESTION = "What is the boiling point of mercury?"
ORDER = "Write a poem about volcanoes in Iceland."


def document(rng, subject, sentences=7):
    words = SUBJECTS[subject]
    return " ".join(
        frame.format(*rng.choice(words, 3, replace=False))
        for frame in rng.permutation(FRAMES)[:sentences]
    )


@pytest.fixture(scope="module")
def corpus():
    rng = np.random.default_rng(7)
    return [document(rng, subject) for subject in SUBJECTS for _ in range(15)]


def groups(texts):
    return ["town.example"] * len(texts)


def planted(text, what, place):
    if place == "start":
        return f"{what}\n{text}"
    if place == "end":
        return f"{text}\n{what}"
    at = text.index(". ", len(text) // 2) + 1
    return f"{text[:at]}\n{what}\n{text[at + 1 :]}"


def test_a_corpus_about_its_subjects_has_no_finding(corpus):
    found = topic_shift(corpus, groups(corpus))
    assert found.empty
    assert list(FINDINGS.check(found)) == list(FINDINGS.columns)


@pytest.mark.parametrize("place", ["start", "middle", "end"])
@pytest.mark.parametrize("what", [QUESTION, ORDER])
def test_a_planted_question_or_task_is_found_where_it_stands(corpus, what, place):
    texts = list(corpus)
    texts[20] = planted(texts[20], what, place)
    found = topic_shift(texts, groups(texts))
    assert found[["row", "check", "rule", "severity"]].to_numpy().tolist() == [
        [20, "topic_shift", "inside_document", "warning"]
    ]
    assert texts[20][found["start"].iloc[0] : found["end"].iloc[0]] == what


def test_neighbouring_sentences_are_one_finding(corpus):
    texts = [*corpus]
    texts[3] = planted(texts[3], f"{QUESTION} {ORDER}", "middle")
    found = topic_shift(texts, groups(texts))
    assert [
        texts[3][start:end] for start, end in zip(found["start"], found["end"], strict=True)
    ] == [f"{QUESTION} {ORDER}"]


def test_questions_are_no_news_where_every_page_asks(corpus):
    rng = np.random.default_rng(8)
    pages = []
    for subject, words in SUBJECTS.items():
        for _ in range(8):
            asked = rng.choice(words, 3, replace=False)
            pages.append(
                "\n\n".join(
                    f"How is the {word} looked after?\n\nThe {word} is looked after by the people of the {subject}. Nobody else may touch the {word}."
                    for word in asked
                )
            )
    assert topic_shift(pages, ["faq.example"] * len(pages)).empty
    # the same page among others that never ask is not what the shift is about either: its questions are about its own words
    assert topic_shift([*corpus, pages[0]], groups([*corpus, pages[0]])).empty


@pytest.mark.parametrize(
    "text",
    ["", "Short.", QUESTION, f"The quay is old. {QUESTION}", "\n\n", "|a|b|", "```\nimport os"],
)
def test_documents_without_a_topic_of_their_own_have_no_finding(corpus, text):
    assert topic_shift([text], ["town.example"]).empty
    assert topic_shift([*corpus, text], groups([*corpus, text])).empty


def test_no_document_and_no_finding():
    found = topic_shift([], [])
    assert found.empty
    FINDINGS.check(found)


def test_every_text_has_a_group():
    with pytest.raises(ValueError, match="2 texts, but 1 groups"):
        topic_shift(["a", "b"], ["x"])


def test_limits_are_options(corpus):
    texts = list(corpus)
    texts[20] = planted(texts[20], QUESTION, "end")
    assert topic_shift(texts, groups(texts), options=ShiftOptions(formed=1e9, plain=1e9)).empty
    everything = topic_shift(texts, groups(texts), options=ShiftOptions(formed=-1e9, plain=-1e9))
    assert everything["row"].tolist() == list(range(len(texts)))


def test_a_document_of_another_subject_is_unlike_its_source(corpus):
    rng = np.random.default_rng(9)
    texts = [document(rng, "harbour") for _ in range(40)]
    stranger = (
        "Whales are mammals whose lungs breathe air. Their calves drink milk for several months. Blubber keeps whales warm under polar ice. "
        "Dolphins hunt squid with echoes. Krill feeds huge animals during summer migration."
    )
    found = topic_shift([*texts, stranger], groups([*texts, stranger]))
    assert found.loc[
        found["rule"] == "against_source", ["row", "start", "end", "severity"]
    ].to_numpy().tolist() == [[40, -1, -1, "warning"]]


@pytest.mark.parametrize(("group", "size"), [("", 40), ("town.example", 18)])
def test_nobody_is_compared_with_an_unknown_or_a_small_source(group, size):
    rng = np.random.default_rng(9)
    texts = [document(rng, "harbour") for _ in range(size)]
    stranger = " ".join(
        f"Whales number {i} drink milk with {word} under polar ice."
        for i, word in enumerate("krill squid dolphins blubber calves".split())
    )
    found = topic_shift([*texts, stranger], [group] * (size + 1))
    assert "against_source" not in set(found["rule"])


def test_what_is_usual_is_asked_of_the_own_group_only(corpus):
    """A group of its own full of questions does not make a question usual elsewhere."""
    asking = [
        f"What is the {word} for? Where is the {word} kept? Who pays for the {word} and when is the {word} sold?"
        for words in SUBJECTS.values()
        for word in words
    ]
    texts = [*corpus, *asking]
    texts[20] = planted(texts[20], QUESTION, "end")
    of = [*groups(corpus), *(["faq.example"] * len(asking))]
    features = features_of(space_of(texts), np.array([0] * len(corpus) + [1] * len(asking)))
    alone = features_of(space_of(texts[: len(corpus)]), np.zeros(len(corpus), dtype=np.int64))
    column = FEATURES.index("asks_surprise")
    assert features[: len(alone), column] == pytest.approx(alone[:, column])
    assert topic_shift(texts, of)["row"].tolist() == [20]


def test_shares_agree_with_a_slow_count(corpus):
    """Shares of words that stand nowhere else, counted sentence by sentence."""
    texts = corpus[::6]
    space = space_of(texts)
    features = features_of(space, np.zeros(len(texts), dtype=np.int64))
    sentences, documents = space.sentences.toarray(), space.documents.toarray()
    mean = space.idf[space.sentences.indices].mean()
    for i, row in enumerate(space.document_of):
        mine = np.flatnonzero(sentences[i])
        total = space.idf[mine].sum() + 2 * mean
        alone = [term for term in mine if documents[row, term] == sentences[i, term]]
        strange = [term for term in mine if (np.delete(documents, row, axis=0)[:, term] == 0).all()]
        assert features[i, FEATURES.index("uncovered")] == pytest.approx(
            (space.idf[alone].sum() + mean) / total
        )
        assert features[i, FEATURES.index("unknown_to_group")] == pytest.approx(
            space.idf[strange].sum() / total
        )


def test_blocks_make_no_difference(corpus, monkeypatch):
    space, group_of = space_of(corpus), np.zeros(len(corpus), dtype=np.int64)
    whole = features_of(space, group_of)
    monkeypatch.setattr("rag_eval.trust.shift_features.BLOCK", 13)
    assert features_of(space, group_of) == pytest.approx(whole, abs=1e-5)


def test_findings_are_the_same_again(corpus):
    texts = [
        planted(text, QUESTION, "end") if i % 20 == 0 else text for i, text in enumerate(corpus)
    ]
    first = topic_shift(texts, groups(texts))
    assert first["row"].tolist() == [0, 20, 40]
    assert first.equals(topic_shift(texts, groups(texts)))


def test_a_sentence_planted_into_many_documents_does_not_vouch_for_its_words(corpus):
    one = [planted(text, QUESTION, "end") if i == 0 else text for i, text in enumerate(corpus)]
    many = [planted(text, QUESTION, "end") if i % 6 == 0 else text for i, text in enumerate(corpus)]
    column = FEATURES.index("unknown_to_group")
    values = []
    for texts in (one, many):
        space = space_of(texts)
        at = np.flatnonzero((space.document_of == 0) & (space.starts >= len(corpus[0])))
        values.append(features_of(space, np.zeros(len(texts), dtype=np.int64))[at[0], column])
    assert (
        values[1] > 0.8 * values[0] > 0
    )  # rather less for its words are less rare; nothing would be left of it
    assert topic_shift(many, groups(many))["row"].tolist() == list(range(0, len(corpus), 6))


def test_details_are_ours_and_short(corpus):
    texts = list(corpus)
    texts[20] = planted(texts[20], "What is \x1b[31m<script>mercury</script> for?", "end")
    [detail] = topic_shift(texts, groups(texts))["detail"]
    assert len(detail) <= 200
    assert "mercury" not in detail
    assert detail.isprintable()


def test_the_weights_know_every_feature_and_where_they_come_from():
    fitted = shift_coefficients.load()
    assert fitted.weights.shape == (len(FEATURES),)
    assert np.isfinite(fitted.weights).all()
    assert fitted.weights[FEATURES.index("uncovered")] > 0
    assert fitted.weights[FEATURES.index("asks")] > 0
