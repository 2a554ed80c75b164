"""The shipped gold set keeps its promises: counts, no fault, and questions of users' own words."""

import pytest

from rag_eval.corpus.loading import load_corpus
from rag_eval.gold.configuration import load_config
from rag_eval.gold.lint import lint
from rag_eval.gold.loading import load_gold


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
