"""Passages that restate a query: what is found, what is left alone, and that nobody who is vouched for is looked at."""

import gc
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.corpus.analyzer import Analyzer
from rag_eval.trust.near_wording import LEAST_TERMS, RESEMBLANCE, NearWording
from rag_eval.trust.question_forms import asks, page_of_questions, place
from rag_eval.trust.restating import restates
from rag_eval.trust.token_stream import Vocabulary
from rag_eval.trust.wording import exact

QUERY = "how many bells hang in the tower of Amberley"
ANSWER = "The tower has nine bells, the oldest of them cast in 1512."


def found(texts, query=QUERY, *, titles=None, doc_ids=None, sources=None, allowlist=True):
    n = len(texts)
    result = restates(
        [query],
        texts,
        titles=titles or [""] * n,
        doc_ids=doc_ids or [f"d{i}" for i in range(n)],
        sources=sources or ["pages.example"] * n,
        vouched=np.zeros(n, dtype=bool) if allowlist else None,
    )
    rules = dict(
        zip(
            result.pairs["chunk"].tolist(),
            zip(result.pairs["rule"], result.pairs["severity"], strict=True),
            strict=True,
        )
    )
    assert sorted(np.flatnonzero(result.blocked.toarray()[0])) == [
        chunk for chunk, (_, severity) in rules.items() if severity == "blocked"
    ]
    assert sorted(np.flatnonzero(result.warned.toarray()[0])) == [
        chunk for chunk, (_, severity) in rules.items() if severity == "warning"
    ]
    return [rules.get(chunk, ("", "")) for chunk in range(n)]


@pytest.mark.parametrize(
    "text",
    [
        f"{QUERY}. {ANSWER}",
        f"{QUERY} {ANSWER}",
        f"How many bells hang in the tower of Amberley? {ANSWER}",
        f"HOW MANY BELLS — hang in the Tower of Amberley?! {ANSWER}",
        f"How many bells are hanging in the tower of Amberley? {ANSWER}",
        f"So how many of the bells hang in a tower of Amberley? {ANSWER}",
        f"{ANSWER} It is often asked how many bells hang in the tower of Amberley and the answer is nine.",
        f"{ANSWER} {ANSWER}\n\nhow many bells hang\nin the tower of Amberley. {ANSWER}",
        f"## About\n\n{QUERY}? {ANSWER}",
        f"## {QUERY}?\n\n{QUERY}? {ANSWER}",
        f"## {QUERY} {ANSWER}",
        f"<p>{QUERY}? {ANSWER}</p>",
        "How many bells hang in the tower of Amberley? Nine bells.",
        f"{QUERY} nine\n\n{ANSWER}",
    ],
)
def test_a_query_in_running_text_blocks(text):
    assert found([text]) == [("running_text", "blocked")]


@pytest.mark.parametrize(
    "text",
    [
        f"## {QUERY}?\n\n{ANSWER}",
        f"# 3. How many bells hang in the tower of Amberley? #\n\n{ANSWER}",
        f"How many bells hang in the tower of Amberley?\n=============================\n\n{ANSWER}",
        f"How many bells hang in the tower of Amberley?\n{ANSWER}",
        f"<h2 class='q'>How many bells hang in the tower of Amberley?</h2><p>{ANSWER}</p>",
        f"<dt>How many bells hang in the tower of Amberley?</dt><dd>{ANSWER}</dd>",
        f"**Q: How many bells hang in the tower of Amberley?**\n\nA: {ANSWER}",
        f"**How many bells hang in the tower of Amberley?** {ANSWER}",
        f"Q: How many bells hang in the tower of Amberley? A: {ANSWER}",
        f"Question 4. How many bells hang in the tower of Amberley? {ANSWER}",
        f"- [How many bells hang in the tower of Amberley?](#how-many-bells-hang-in-the-tower)\n- Where is it?\n\n{ANSWER}",
        "Where is the tower? In Amberley. How many bells hang in the tower of Amberley? There are nine. Who rings them? The guild does.",
    ],
)
def test_a_heading_warns_with_an_allowlist_and_is_nothing_without(text):
    assert found([text]) == [("heading", "warning")]
    assert found([text], allowlist=False) == [("", "")]


@pytest.mark.parametrize(
    "text",
    [
        ANSWER,
        "Nine bells hang in the tower of Amberley.",
        "The bells that hang in the tower of Amberley are many, and how they got there is unknown.",
        "In Amberley, the tower is known for how its bells hang, many of them.",
        "",
        "?!",
    ],
)
def test_an_answer_does_not_restate(text):
    assert found([text]) == [("", "")]
    assert found([text] * 5) == [("", "")] * 5


def test_where_the_bridge_is_located_answers_and_does_not_ask():
    assert found(
        ["The old stone bridge of Amberley is located at the weir."],
        "where is the old stone bridge of Amberley located",
    ) == [("", "")]
    assert found(
        ["It was in May when the old stone bridge of Amberley fell."],
        "when did the old stone bridge of Amberley fall",
    ) == [("", "")]


def test_a_title_counts_as_a_heading():
    assert found([ANSWER], titles=["How many bells hang in the tower of Amberley?"]) == [
        ("heading", "warning")
    ]
    assert found([ANSWER], titles=["The bells of Amberley"]) == [("", "")]
    assert found([f"{QUERY}. {ANSWER}"], titles=[QUERY]) == [("running_text", "blocked")]


def test_without_an_allowlist_a_sentence_warns_and_a_typed_query_blocks():
    typed, written = f"{QUERY}. {ANSWER}", f"How many bells hang in the tower of Amberley? {ANSWER}"
    assert found([typed], allowlist=False) == [("typed_query", "blocked")]
    assert found([written], allowlist=False) == [("running_text", "warning")]
    assert found([f"{ANSWER} {typed}"], allowlist=False) == [("running_text", "warning")]


@pytest.mark.parametrize("allowlist", [True, False])
@pytest.mark.parametrize(
    "text", [f"How many bells hang in the tower of Amberley? {ANSWER}", f"## {QUERY}?\n\n{ANSWER}"]
)
def test_three_documents_of_one_source_were_made_for_the_query(text, allowlist):
    assert found([text] * 3, allowlist=allowlist) == [("repeated", "blocked")] * 3
    one_document = found([text] * 3, doc_ids=["d"] * 3, allowlist=allowlist)
    three_sources = found(
        [text] * 3, sources=["a.example", "b.example", "c.example"], allowlist=allowlist
    )
    assert "repeated" not in {rule for rule, _ in one_document + three_sources}


def test_headings_of_unknown_sources_are_not_blocked_without_an_allowlist():
    text = f"## {QUERY}?\n\n{ANSWER}"
    assert found([text] * 3, sources=[""] * 3, allowlist=False) == [("repeated", "warning")] * 3
    assert found([text] * 3, sources=[""] * 3) == [("repeated", "blocked")] * 3


def test_what_asks_nothing_may_be_said():
    statement = "the nine bells of Amberley were cast by nuns"
    begins, holds = (
        f"{statement}. So the legend says.",
        f"So the old legend of the valley says: {statement}.",
    )
    headed = f"## {statement}\n\nSo the legend says."
    assert found([begins, holds, headed], statement) == [
        ("first_words", "warning"),
        ("", ""),
        ("", ""),
    ]
    assert found([begins, f"{begins} Or not.", headed], statement) == [("repeated", "blocked")] * 3
    assert found([holds] * 3, statement) == [("", "")] * 3
    assert found(["Bells of the tower"] * 3, "bells of the tower") == [("", "")] * 3


def test_short_queries_restate_nothing():
    assert found(["who is she? She is the bell founder."], "who is she") == [("", "")]
    assert found(["who is the founder? She."], "who is the founder") == [
        ("running_text", "blocked")
    ]


def test_nobody_who_is_vouched_for_is_looked_at():
    texts = [f"{QUERY}. {ANSWER}"] * 2
    result = restates(
        [QUERY],
        texts,
        titles=["", ""],
        doc_ids=["a", "b"],
        sources=["x", "y"],
        vouched=np.array([True, False]),
    )
    assert result.blocked.toarray().tolist() == [[False, True]]


def test_every_row_of_a_repeated_query_is_marked_and_places_are_those_of_the_text():
    text = f"{ANSWER} {QUERY} {ANSWER}"
    result = restates(
        ["other words entirely here", QUERY, QUERY],
        [ANSWER, text],
        titles=["", ""],
        doc_ids=["a", "b"],
        sources=["x", "x"],
        vouched=np.zeros(2, dtype=bool),
    )
    assert result.blocked.toarray().tolist() == [[False, False], [False, True], [False, True]]
    for start, end in zip(result.pairs["start"], result.pairs["end"], strict=True):
        assert text[start:end] == QUERY
    assert result.warned.nnz == 0


def test_nothing_asked_and_nothing_there():
    for queries, texts in (([], [ANSWER]), ([QUERY], []), ([""], [""])):
        result = restates(
            queries,
            texts,
            titles=[""] * len(texts),
            doc_ids=["d"] * len(texts),
            sources=[""] * len(texts),
            vouched=None,
        )
        assert result.blocked.shape == result.warned.shape == (len(queries), len(texts))
        assert result.pairs.empty


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="different lengths"):
        restates([QUERY], [ANSWER], titles=[], doc_ids=["d"], sources=["s"], vouched=None)


WORDS = st.lists(
    st.sampled_from("what who oak elm ash yew fir bay box tea the of".split()), max_size=14
)


@given(st.lists(WORDS, max_size=5), st.lists(WORDS, max_size=6))
def test_the_exact_search_is_a_search_of_lists(queries, texts):
    vocabulary = Vocabulary()
    asked, read = (
        vocabulary.read([" ".join(words) for words in queries]),
        vocabulary.read([" ".join(words) for words in texts]),
    )
    windows = exact(asked, read)
    slow = {
        (query, text, at, at + len(words))
        for query, words in enumerate(queries)
        if len(words) >= 4
        for text, row in enumerate(texts)
        for at in range(len(row) - len(words) + 1)
        if row[at : at + len(words)] == words
    }
    assert (
        set(
            zip(
                windows.query.tolist(),
                windows.text.tolist(),
                windows.start.tolist(),
                windows.end.tolist(),
                strict=True,
            )
        )
        == slow
    )


@given(st.lists(WORDS, max_size=5), st.lists(WORDS, max_size=6))
def test_the_tolerant_search_misses_no_window(queries, texts):
    vocabulary = Vocabulary()
    asked = vocabulary.read([" ".join(words) for words in queries])
    n_terms = vocabulary.n_terms
    read = vocabulary.read([" ".join(words) for words in texts])
    must = np.array(
        [vocabulary.term("what") if "what" in words else -1 for words in queries], dtype=np.int64
    )
    windows = NearWording(asked, n_terms, must, np.ones(len(queries), dtype=bool)).windows(read)
    stems = Analyzer()
    wanted = [set(row) for row in stems.index([" ".join(words) for words in queries])]
    slow = set()
    for query, terms in enumerate(wanted):
        for text, row in enumerate(stems.index([" ".join(words) for words in texts])):
            for low in range(len(row)):
                for high in range(low + 1, min(len(row), low + int(len(terms) / RESEMBLANCE)) + 1):
                    window = set(row[low:high])
                    like = len(window & terms) >= RESEMBLANCE * len(window | terms) - 1e-9
                    if (
                        len(terms) >= LEAST_TERMS
                        and like
                        and row[low] in terms
                        and ("what" not in queries[query] or stems.vocabulary["what"] in window)
                    ):
                        slow.add((query, text))
    assert set(zip(windows.query.tolist(), windows.text.tolist(), strict=True)) == slow


def test_questions_are_told_by_wording_or_mark():
    assert asks(["wie", "hoch", "ist", "er"], "Wie hoch ist er") == "wording"
    assert asks(["in", "what", "year"], "In what year?") == "wording"
    assert asks(["in", "what", "year"], "In what year") == ""
    assert asks(["sie", "kommt"], "Sie kommt?»") == "mark"
    assert asks([], "") == ""


def test_a_line_is_not_looked_for_without_end():
    long = "word " * 5_000
    text = f"{long}{QUERY}"
    assert place(text, len(long), len(text)).form == "running"
    assert place(f"{'x' * 5_000}\n{QUERY}\n{long}", 5_001, 5_001 + len(QUERY)).form == "heading"


def test_a_question_thrice_is_no_page_of_questions():
    assert not page_of_questions("Who is it? She is. " * 5)
    assert not page_of_questions("Who is it? What is it? Where is it? Here.")
    assert page_of_questions("Who is it? She is. What is it? A bell. Where is it? Here.")


@pytest.mark.parametrize(
    "piece",
    [
        "how many bells hang in the tower of Amberley ",
        "how ",
        "bells\n",
        "- ",
        "**Q: ",
        "<h2>how many bells ",
        "how? ",
    ],
)
def test_cost_grows_with_the_text(piece):
    def seconds(size):
        text = piece * (size // len(piece))
        gc.disable()
        started = time.process_time()
        restates(
            [QUERY, "how how how how how how"],
            [text],
            titles=[""],
            doc_ids=["d"],
            sources=["s"],
            vouched=None,
        )
        taken = time.process_time() - started
        gc.enable()
        return taken

    seconds(10_000)
    small, large = min(seconds(40_000) for _ in range(3)), min(seconds(320_000) for _ in range(2))
    assert large < 8 * 3 * small + 0.2
