"""The shipped gold set keeps its promises: counts, no fault, and questions of users' own words."""

import re

import pandas as pd
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


def test_no_wording_shares_six_words_with_a_target(shipped):
    gold, corpus = shipped
    texts = dict(zip(corpus.documents["doc_id"], corpus.documents["text"], strict=True))
    doc_of = {name: row.doc_id for row in corpus.documents.itertuples() for name in row.names}
    judged = {doc_of[target] for target in gold.judgements["target"]}
    runs = {doc_id: set(runs_of_six(texts[doc_id])) for doc_id in judged}
    wordings = pd.concat([gold.queries, gold.paraphrases]).groupby("query_id")["text"].agg(list)
    shared = [
        (text, run)
        for query_id, target in gold.judgements[["query_id", "target"]].itertuples(index=False)
        for text in wordings[query_id]
        for run in runs_of_six(text)
        if run in runs[doc_of[target]]
    ]
    assert shared == []


def runs_of_six(text):
    return list(zip(*(words(text)[start:] for start in range(6)), strict=False))
