"""The shipped gold set keeps its promises: counts, distinct wordings, no quotations."""

import re

import pytest
import Stemmer

from rag_eval.corpus.loading import load_corpus
from rag_eval.gold.configuration import load_config
from rag_eval.gold.lint import lint
from rag_eval.gold.loading import load_gold

WORD = re.compile(r"[a-z0-9]+")
QUOTE_WORDS = 6
stem = Stemmer.Stemmer("porter").stemWord


@pytest.fixture(scope="module")
def shipped(project_root):
    folder = project_root / "gold_sets" / "pandas_api"
    config = load_config(folder)
    return load_gold(folder, config), load_corpus(config.corpus, folder)


def words(text):
    return WORD.findall(text.lower())


def wordings(gold):
    paraphrases = gold.paraphrases.groupby("query_id")["text"].apply(list)
    return {
        query: [text, *paraphrases[query]]
        for query, text in zip(gold.queries["query_id"], gold.queries["text"], strict=True)
    }


def targets(gold, corpus):
    """Return the targets and document rows of each query."""
    row_of = {name: row for row, names in enumerate(corpus.documents["names"]) for name in names}
    return (
        gold.judgements.assign(row=gold.judgements["target"].map(row_of))
        .groupby("query_id")[["target", "row"]]
        .agg(list)
    )


def test_counts(shipped):
    gold, corpus = shipped
    answerable = gold.queries["answerable"]
    assert answerable.sum() >= 120
    assert (~answerable).sum() >= 12
    assert (gold.paraphrases.groupby("query_id").size() == 3).all()
    assert gold.paraphrases["query_id"].nunique() == len(gold.queries)
    assert set(gold.anchors["query_id"]) == set(gold.queries.loc[answerable, "query_id"])
    assert 900 <= len(corpus.documents) <= 1200


def test_lints_clean(shipped):
    gold, corpus = shipped
    assert [str(problem) for problem in lint(gold, corpus.documents, corpus.sections)] == []


def test_half_of_the_questions_avoid_the_words_of_the_targets_name(shipped):
    gold, corpus = shipped
    found = targets(gold, corpus)
    texts = dict(zip(gold.queries["query_id"], gold.queries["text"], strict=True))
    avoid = 0
    for query, names in found["target"].items():
        name_stems = {
            stem(word)
            for name in names
            for word in words(name.rsplit(".", 1)[-1].replace("_", " "))
        }
        avoid += not name_stems & {stem(word) for word in words(texts[query])}
    assert avoid / len(found) >= 0.5


def test_no_wording_quotes_its_docstring(shipped):
    gold, corpus = shipped
    documents = corpus.documents["text"].tolist()

    def shingles(text):
        found = words(text)
        return {tuple(found[at : at + QUOTE_WORDS]) for at in range(len(found) - QUOTE_WORDS + 1)}

    asked = wordings(gold)
    quoting = {
        query
        for query, rows in targets(gold, corpus)["row"].items()
        for row in rows
        for text in asked[query]
        if shingles(text) & shingles(documents[int(row)])
    }
    assert quoting == set()


def test_wordings_of_a_question_are_different_in_their_words(shipped):
    gold, _ = shipped
    alike = []
    for query, texts in wordings(gold).items():
        bags = [{stem(word) for word in words(text)} for text in texts]
        alike += [
            query
            for at, a in enumerate(bags)
            for b in bags[at + 1 :]
            if len(a & b) / len(a | b) > 0.6
        ]
    assert alike == []
