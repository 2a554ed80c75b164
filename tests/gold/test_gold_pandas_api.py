"""The shipped gold set keeps its promises: counts, no fault, and questions of users' own words."""

import re

import pytest
import Stemmer

from rag_eval.corpus.loading import load_corpus
from rag_eval.gold.configuration import load_config
from rag_eval.gold.lint import lint
from rag_eval.gold.loading import load_gold

stem = Stemmer.Stemmer("porter").stemWord


@pytest.fixture(scope="module")
def shipped(project_root):
    folder = project_root / "gold_sets" / "pandas_api"
    config = load_config(folder)
    return load_gold(folder, config), load_corpus(config.corpus, folder)


def test_counts(shipped):
    gold, corpus = shipped
    answerable = gold.queries["answerable"]
    assert answerable.sum() >= 200
    assert (~answerable).sum() >= 40
    assert (gold.paraphrases.groupby("query_id").size() == 3).all()
    assert gold.paraphrases["query_id"].nunique() == len(gold.queries)
    assert set(gold.anchors["query_id"]) == set(gold.queries.loc[answerable, "query_id"])
    assert 900 <= len(corpus.documents) <= 1200


def test_lints_clean(shipped):
    gold, corpus = shipped
    assert [str(problem) for problem in lint(gold, corpus.documents, corpus.sections)] == []


def words(text):
    return re.findall("[a-z0-9]+", text.lower())


def stems(text):
    return {stem(word) for word in words(text)}


def test_nine_in_ten_questions_avoid_the_words_of_the_targets_name(shipped):
    gold, _ = shipped
    targets = gold.judgements.groupby("query_id")["target"].agg(list)
    texts = gold.queries.set_index("query_id")["text"]
    named = [
        query
        for query, names in targets.items()
        if stems(texts[query])
        & stems(" ".join(name.rsplit(".", 1)[-1].replace("_", " ") for name in names))
    ]
    assert len(named) / len(targets) <= 0.1
