import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.corpus.analyzer import Analyzer
from rag_eval.trust.wording import (
    LEAST_TERMS,
    LEAST_WORDS,
    RESEMBLANCE,
    NearWording,
    Vocabulary,
    find_exact,
)

WORDS = st.lists(
    st.sampled_from("what who oak elm ash yew fir bay box tea the of".split()), max_size=14
)


def join(rows):
    return [" ".join(words) for words in rows]


@given(st.lists(WORDS, max_size=5), st.lists(WORDS, max_size=6))
def test_the_exact_search_is_a_search_of_lists(queries, texts):
    vocabulary = Vocabulary()
    windows = find_exact(vocabulary.read(join(queries)), vocabulary.read(join(texts)))
    found = zip(windows.query, windows.text, windows.start, windows.end, strict=True)
    assert {tuple(map(int, row)) for row in found} == {
        (query, text, at, at + len(words))
        for query, words in enumerate(queries)
        if len(words) >= LEAST_WORDS
        for text, row in enumerate(texts)
        for at in range(len(row) - len(words) + 1)
        if row[at : at + len(words)] == words
    }


@given(st.lists(WORDS, max_size=5), st.lists(WORDS, max_size=6))
def test_the_tolerant_search_misses_no_window(queries, texts):
    vocabulary = Vocabulary()
    asked = vocabulary.read(join(queries))
    n_terms = vocabulary.n_terms
    read = vocabulary.read(join(texts))
    must = [vocabulary.term("what") if "what" in words else -1 for words in queries]
    wanted = np.ones(len(queries), dtype=bool)
    windows = NearWording(asked, n_terms, np.array(must, dtype=np.int64), wanted).find(read)
    stems = Analyzer()
    terms_of = [set(row) for row in stems.index(join(queries))]
    rows = stems.index(join(texts))
    slow = set()
    for query, terms in enumerate(terms_of):
        for text, row in enumerate(rows):
            for low in range(len(row)):
                for high in range(low + 1, min(len(row), low + int(len(terms) / RESEMBLANCE)) + 1):
                    window = set(row[low:high])
                    like = len(window & terms) >= RESEMBLANCE * len(window | terms) - 1e-9
                    holds = "what" not in queries[query] or stems.vocabulary["what"] in window
                    if len(terms) >= LEAST_TERMS and like and row[low] in terms and holds:
                        slow.add((query, text))
    assert set(zip(windows.query.tolist(), windows.text.tolist(), strict=True)) == slow
