"""The analyzer on scripts without blanks, and its tokens."""

import pytest

from rag_eval.corpus.analyzer import (
    ANALYZER,
    BIGRAM_ANALYZER,
    Analyzer,
    count_tokens,
    name_analyzer,
    terms,
    token_spans,
)

TERMS = [
    ("水泵的壓力", ["水泵", "泵的", "的壓", "壓力"]),
    ("ポンプを止める", ["ポン", "ンプ", "プを", "を止", "止め", "める"]),
    ("펌프를 멈춘다", ["펌프", "프를", "멈춘", "춘다"]),
    ("ปั๊มน้ำ", ["ปั", "ั๊", "๊ม", "มน", "น้", "้ํ", "ํา"]),
    ("DN50閥2個", ["dn50", "閥", "2", "個"]),
    ("ﾎﾟﾝﾌﾟ", ["ポン", "ンプ"]),
    ("насос pumps", ["насос", "pump"]),
    ("ＤＮ５０ ｐｕｍｐｓ", ["dn50", "pump"]),
    ("cafe\u0301s", terms("cafés")),
]


@pytest.mark.parametrize(("text", "expected"), TERMS)
def test_runs_without_blanks_give_pairs(text, expected):
    assert terms(text) == expected


def test_questions_and_documents_are_cut_alike():
    analyzer = Analyzer()
    known = analyzer.index(["東京都の人口", "Tokyo"])
    assert set(analyzer.index(["人口は？"])[0]) & set(known[0])


@pytest.mark.parametrize("text", ["日", "ไทย", "ㄅ", "\U00020000", "ﾎ", "５", "e\u0301"])
def test_only_texts_without_blanks_change_the_name(text):
    assert name_analyzer(["plain", f"naïve {text} Ω"]) == BIGRAM_ANALYZER
    assert name_analyzer(["plain", "naïve Ω насос हिन्दी"]) == ANALYZER


COUNTS = [
    ("two words, a_b", 4),
    ("x" * 64, 1),
    ("x" * 65, 17),
    ("今日は12時", 5),
    ("ที่นี่", 2),
    ("a" + "|" * 72 + "b", 4),
    ("", 0),
]


@pytest.mark.parametrize(("text", "expected"), COUNTS)
def test_long_runs_count_by_their_length(text, expected):
    assert count_tokens(text) == expected == len(token_spans(text))
