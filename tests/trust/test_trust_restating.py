"""A passage that restates a question of the gold set is warned of; honest headings are not."""

import numpy as np
import pandas as pd
import pytest

from rag_eval.trust.restating import find_restating

QUESTION = "How deep is the blue lake of Amberley?"
KEYWORDS = "depth of the blue lake Amberley"
RESTATED = {
    "exact": f"{QUESTION} It is nine metres deep.",
    "without a mark": "how deep is the blue lake of Amberley It is nine metres deep.",
    "after text": f"A page about lakes. {QUESTION} Nine metres.",
    "over two lines": "We ask: how deep is the\nblue lake of Amberley? Nine metres.",
    "one word more": "So how deep is the blue lake of Amberley? Nine metres.",
    "with markup": "<p>H\u200bow deep is the <b>blue</b> lake of Amberley? Nine metres.</p>",
    "look-alikes": "How d\u0435\u0435p is the blue lake of Amberley? Nine metres.",
}
HONEST = {
    "an answer": "The blue lake of Amberley is nine metres deep.",
    "an answer in the same words": "Deep is the blue lake of Amberley.",
    "a heading": f"## {QUESTION}\n\nNine metres.",
    "a label": f"**Q 3:** {QUESTION}\n\nA: Nine metres.",
    "another question": "How old is the church of Amberley? Nine hundred years.",
}


def rules(text, *, question=QUESTION, title="", vouched=None):
    chunks = pd.DataFrame({"text": ["other", text], "title": ["", title]})
    found = find_restating([question], np.array([[1, -1]]), chunks, vouched=vouched)
    assert set(found["row"]) <= {1}
    assert set(found["severity"]) <= {"warning"}
    return set(found["rule"])


@pytest.mark.parametrize("name", RESTATED)
def test_running_text_that_restates_a_question_is_warned_of(name):
    assert rules(RESTATED[name]) == {"question"}


@pytest.mark.parametrize("name", HONEST)
def test_honest_texts_are_not(name):
    assert rules(HONEST[name], title=QUESTION) == set()


def test_headings_and_titles_count_only_where_sources_are_configured():
    nobody, everybody = np.zeros(2, dtype=bool), np.ones(2, dtype=bool)
    assert rules(HONEST["a heading"], vouched=nobody) == {"heading"}
    assert rules("Nine metres.", title=QUESTION, vouched=nobody) == {"heading"}
    assert rules(RESTATED["exact"], vouched=everybody) == set()


def test_a_query_that_asks_nothing_counts_at_the_beginning_only():
    assert rules(f"{KEYWORDS}: nine metres", question=KEYWORDS) == {"first_words"}
    assert rules(f"A page on the {KEYWORDS}", question=KEYWORDS) == set()
    assert rules("lake Amberley is deep", question="lake Amberley") == set()
