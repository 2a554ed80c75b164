"""Provenance, quotes, sections and the two path gates."""

import json

import pandas as pd
import pytest
from answer_corpus import evidence, library, scored
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.answers.gates import find_quote, judge, path_faults, unmarked
from rag_eval.answers.paths import find_paths
from rag_eval.answers.reply_parts import Citation

WEST, SOUTH, SETUP = "docs/capitals.md#west", "docs/capitals.md#south", "docs/setup.md#setup"

PATHS = [
    ("see docs/guide.md for more", ["docs/guide.md"]),
    ("(docs/guide.md)", ["docs/guide.md"]),
    ("`setup.py`", ["setup.py"]),
    ("**setup.py**", ["setup.py"]),
    ("_config.yml is read", ["_config.yml"]),
    ("__init__.py is empty.", ["__init__.py"]),
    ("It is in config.yaml.", ["config.yaml"]),
    ("data.tar.gz, notes.txt; x.csv", ["data.tar.gz", "notes.txt", "x.csv"]),
    ("README.md:12", ["README.md:12"]),
    ("README.md:12-14.", ["README.md:12-14"]),
    ("x:12", ["x:12"]),
    ("[docs/a.md:3]", ["docs/a.md:3"]),
    ("/etc/passwd", ["/etc/passwd"]),
    ("edit /etc/hosts, then", ["/etc/hosts"]),
    ("./run.sh", ["./run.sh"]),
    ("../other/file", ["../other/file"]),
    ("~/notes", ["~/notes"]),
    (r"C:\Windows\system32", [r"C:\Windows\system32"]),
    (r"\\server\share", [r"\\server\share"]),
    (r"src\app.py", [r"src\app.py"]),
    ("src/app", ["src/app"]),
    ("src/", ["src/"]),
    ("pandas/core/frame.py", ["pandas/core/frame.py"]),
    ("a/b/c/d", ["a/b/c/d"]),
    (".github/workflows", [".github/workflows"]),
    (".gitignore", [".gitignore"]),
    ("https://example.org/a?b=1", ["https://example.org/a?b=1"]),
    ("[text](https://example.org/a).", ["https://example.org/a"]),
    ("see:https://example.org/a.", ["https://example.org/a"]),
    ("https://en.wikipedia.org/wiki/X_(y)", ["https://en.wikipedia.org/wiki/X_(y)"]),
    ("www.example.org", ["www.example.org"]),
    ("file:///etc/passwd", ["file:///etc/passwd"]),
    ("s3://bucket/key", ["s3://bucket/key"]),
    ("<docs/a.md>", ["docs/a.md"]),
    ('"docs/a.md"', ["docs/a.md"]),
    ("docs/a.md—and", ["docs/a.md"]),
    ("path=docs/a.md", ["docs/a.md"]),
    ("guide.md#install", ["guide.md#install"]),
    ("größe/übersicht.md", ["größe/übersicht.md"]),
    ("文档/指南.md", ["文档/指南.md"]),
    ("server.log", ["server.log"]),
    ("localhost:8080", ["localhost:8080"]),
    *(
        (path, [path])
        for path in (
            "etc/passwd",
            "var/log",
            "config/secrets",
            "home/alice",
            "evil.example.com/x",
            "http:evil.com/x",
            "localhost:8080/x",
            "10.0.0.1/secret",
            "ada@host.org/x",
        )
    ),
    *(
        (f"the {name}.", [name])
        for name in (
            "Makefile",
            "Dockerfile",
            "id_rsa",
            ".env.production",
            "secret.env.local",
            "Server.log",
        )
    ),
    *(
        (text, ["hidden.md"])
        for text in (
            "hidden.md\u200b",
            "\u2060hidden\u00ad.md",
            "hidden.md\u3164",
            "hidden.md。",
            "hidden.m\ufe0fd",
        )
    ),
    # ordinary words
    *(
        (text, [])
        for text in (
            "home/office",
            "dev/prod",
            "root/row",
            "10.0.0.1/24",
            "df.info/df.describe",
            "Booking.com/Expedia.com",
            "process.env.HOME",
            "Math.log(x)",
            "a.m./p.m.",
            "a:12/3",
            "http: the",
            "etc.",
        )
    ),
    ("and/or", []),
    ("he/she", []),
    ("read/write access", []),
    ("input/output", []),
    ("TCP/IP", []),
    ("public/private", []),
    ("include/exclude", []),
    ("yes/no/maybe", []),
    ("n/a", []),
    ("km/h and m/s", []),
    ("1/2", []),
    ("24/7", []),
    ("2024/01/31", []),
    ("01/02/2024", []),
    ("12:30", []),
    ("at 12:30-13:45", []),
    ("2024-01-31T10:30", []),
    ("a ratio of 3:1", []),
    ("UTC+2:30", []),
    ("3.14", []),
    ("v1.2.3", []),
    ("version 2.0.1-rc1", []),
    ("e.g. this, i.e. that, etc.", []),
    ("U.S. and Ph.D.", []),
    ("DataFrame.sort_values", []),
    ("pandas.DataFrame", []),
    ("Series.diff", []),
    ("np.log(x)", []),
    ("np.log", []),
    ("response.json()", []),
    ("df.loc and .iloc", []),
    ("Node.js", []),
    (r"\alpha + \beta", []),
    (r"\d+", []),
    ("10 km/h on 5/6", []),
    ("The end.Then it began", []),
    ("* item", []),
    ("*.py files", []),
    ("a - b", []),
    ("100%", []),
    ("$5/month", []),
    ("and / or", []),
    ("note: 5 items", []),
    ("500 B.C. in D.C., by J.R. of the U.S.C.", []),
    ("(mg)/kg and CD4+/CD8", []),
    ("s3:// and gcs:// addresses", []),
    (".tar.gz archives", []),
    (r"\\n and \\r\\n", []),
    ("df.c", []),
    ("main.c and analysis.R", ["main.c", "analysis.R"]),
    ("tests/test_a.py::test_b", ["tests/test_a.py"]),
    ("guide.md:2nd line", ["guide.md"]),
    ("...", []),
    ("", []),
]


@pytest.mark.parametrize(("text", "expected"), PATHS, ids=[text[:40] for text, _ in PATHS])
def test_paths_are_told_from_ordinary_words(text, expected):
    assert list(find_paths(text)) == expected


def test_verbatim_text_of_a_cited_item_passes_both_gates():
    """Of real documentation, full of addresses and file names: what stands in a cited item is known."""
    for name in (
        "read_csv",
        "DataFrame",
        "read_parquet",
        "read_sql",
        "to_datetime",
        "merge",
        "concat",
        "read_excel",
        "HDFStore",
        "Series",
    ):
        item = library().evidence(scored("api.rst", "s", getattr(pd, name).__doc__), "retrieve")
        assert item is not None
        assert path_faults(item.chunk.text, [item], [Citation("api.rst", 1, item.last_line)]) == []


def test_a_folder_of_the_evidence_makes_a_path_of_two_plain_words():
    assert find_paths("content/posts") == ()
    assert find_paths("content/posts", {"content"}) == ("content/posts",)


@given(st.text(alphabet="ab/.\\:1-_#~ (\"'*", max_size=60))
def test_finding_paths_never_fails_and_finds_pieces_of_the_text(text):
    assert all(path in text for path in find_paths(text))


def test_finding_paths_in_hostile_text_takes_linear_time():
    for text in (
        "a" * 200_000,
        "a:" * 100_000,
        "/" * 200_000,
        "a/" * 100_000,
        "." * 200_000,
        "a.b" * 70_000,
        "http://" * 30_000,
        "(" * 100_000 + "a.py",
        "_" * 200_000 + "x",
    ):
        find_paths(text)  # a quadratic search would run into the suite's time limit


CASES = [
    # body, citations, codes
    ("Paris is the capital.", ["docs/capitals.md:2"], []),
    ("Paris is the capital.", ["docs/capitals.md:1-4"], []),
    (
        "Paris is the capital.",
        ["docs/capitals.md:2", "docs/setup.md:1-4"],
        ["cross_section_reuse"],
    ),  # an answer of one sentence
    (
        "Paris is the capital. Pip installs.",
        ["docs/capitals.md:2", "docs/setup.md:1-4"],
        [],
    ),  # which sentence rests on which is not said
    ("- Paris\n- Pip", ["docs/capitals.md:2", "docs/setup.md:1-4"], []),
    ("[docs/capitals.md:2]", ["docs/capitals.md:2"], ["empty_answer"]),
    ("Paris is the capital.", ["docs/capitals.md:7"], ["unknown_snippet"]),
    (
        "Paris is the capital.",
        ["docs/capitals.md:4-5"],
        ["unknown_snippet"],
    ),  # two items, and neither has both lines
    ("Paris is the capital.", ["docs/other.md:1"], ["unknown_snippet"]),
    ("Paris is the capital.", ["capitals.md:2"], ["unknown_snippet"]),
    ("Paris is the capital.", ["docs/capitals.md:2", "docs/other.md:1"], ["unknown_snippet"]),
    ("Paris is the capital.", ["docs/capitals.md:4"], ["bad_offsets"]),
    ("It is in docs/capitals.md.", ["docs/capitals.md:2"], []),
    ("It is in capitals.md.", ["docs/capitals.md:2"], []),
    ("It is in docs/capitals.md:2.", ["docs/capitals.md:2"], []),
    ("It is in docs/capitals.md:2.", ["docs/capitals.md:1-3"], []),
    ("It is in docs/capitals.md:3.", ["docs/capitals.md:2"], ["path_not_cited"]),
    ("It is in docs/capitals.md:99.", ["docs/capitals.md:2"], ["path_not_in_evidence"]),
    ("See https://example.org/docs/capitals.md.", ["docs/capitals.md:2"], []),
    (
        "See https://example.org/docs/capitals.md?x=1",
        ["docs/capitals.md:2"],
        ["path_not_in_evidence"],
    ),
    ("See https://evil.example/docs/capitals.md", ["docs/capitals.md:2"], ["path_not_in_evidence"]),
    ("Settings are in config/app.yaml.", ["docs/setup.md:3"], []),
    ("Settings are in config/app.yaml.", ["docs/setup.md:1"], []),  # in the text of a cited item
    ("Settings are in app.yaml.", ["docs/setup.md:3"], []),
    ("Settings are in config/app.yml.", ["docs/setup.md:3"], ["path_not_in_evidence"]),
    ("Settings are in config/app.yaml.bak.", ["docs/setup.md:3"], ["path_not_in_evidence"]),
    ("Settings are in pp.yaml.", ["docs/setup.md:3"], ["path_not_in_evidence"]),
    ("Settings are in /config/app.yaml.", ["docs/setup.md:3"], ["path_not_in_evidence"]),
    ("Settings are in config/app.yaml.", ["docs/capitals.md:2"], ["path_not_cited"]),
    (
        "Settings are in config/app.yaml and /etc/passwd.",
        ["docs/capitals.md:2"],
        ["path_not_in_evidence", "path_not_cited"],
    ),
    ("Run ./run.sh", ["docs/setup.md:4"], []),
    ("Run run.sh", ["docs/setup.md:4"], []),
    ("Run ./stop.sh", ["docs/setup.md:4"], ["path_not_in_evidence"]),
    ("See docs/setup.md and/or ask, e.g. 1/2 of it.", ["docs/setup.md:2"], []),
    ("See docs/setup.md.", ["docs/capitals.md:2"], ["path_not_cited"]),
    ("Use sort_values from api/frame.py.", ["api/frame.py:1"], []),
    (r"Use api\frame.py.", ["api/frame.py:1"], []),
    # inline marks
    (
        "Paris [docs/capitals.md:2]. Pip [docs/setup.md:2].",
        ["docs/capitals.md:2", "docs/setup.md:2"],
        [],
    ),
    (
        "Paris and pip [docs/capitals.md:2] [docs/setup.md:2].",
        ["docs/capitals.md:2", "docs/setup.md:2"],
        ["cross_section_reuse"],
    ),
    (
        "Paris and Rome [docs/capitals.md:2][docs/capitals.md:5].",
        ["docs/capitals.md:2", "docs/capitals.md:5"],
        ["cross_section_reuse"],
    ),
    (
        "Paris and Berlin [docs/capitals.md:2][docs/capitals.md:3].",
        ["docs/capitals.md:2", "docs/capitals.md:3"],
        [],
    ),
    ("Paris [docs/capitals.md:3].", ["docs/capitals.md:2"], ["path_not_cited"]),
    ("Paris [docs/none.md:3].", ["docs/capitals.md:2"], ["unknown_snippet"]),
]


def _citation(token):
    doc, _, lines = token.rpartition(":")
    first, _, last = lines.partition("-")
    return Citation(doc, int(first), int(last or first))


@pytest.mark.parametrize(
    ("body", "cited", "codes"),
    CASES,
    ids=[f"{number}-{body[:30]}" for number, (body, _, _) in enumerate(CASES)],
)
def test_an_answer_is_held_against_its_evidence(body, cited, codes):
    judged = judge(body, [_citation(token) for token in cited], evidence())
    assert [fault.code for fault in judged.faults] == codes
    json.dumps(judged.text)


def test_cited_lines_become_characters_of_the_document():
    judged = judge("Berlin.", [Citation("docs/capitals.md", 3, 3)], evidence(SOUTH, WEST))
    (span,) = judged.citations
    assert (span.segment, span.evidence, span.doc_id) == (-1, 1, "docs/capitals.md")
    item = evidence(SOUTH, WEST)[1]
    assert (
        item.chunk.text[span.start - item.chunk.offsets.start : span.end - item.chunk.offsets.start]
        == "Berlin is the capital of Germany."
    )


@pytest.mark.parametrize(
    ("quote", "code", "text"),
    [
        ("Berlin is the capital", None, "Berlin is the capital"),
        ("Berlin  is\nthe capital", None, "Berlin is the capital"),
        ("Paris is the capital of France. Berlin", None, "Paris is the capital of France.\nBerlin"),
        ("berlin is the capital", "quote_mismatch", None),
        ("Rome is the capital", "quote_mismatch", None),
    ],
)
def test_a_quote_must_stand_in_the_cited_lines(quote, code, text):
    judged = judge("Berlin.", [Citation("docs/capitals.md", 2, 3, quote)], evidence())
    assert [fault.code for fault in judged.faults] == ([code] if code else [])
    if text:
        (span,) = judged.citations
        item = evidence()[span.evidence]
        base = item.chunk.offsets.start
        assert span.quote == text == item.chunk.text[span.start - base : span.end - base]


def test_a_whitelisted_pair_of_sections_may_share_a_sentence():
    body, cited = (
        "Paris and pip [docs/capitals.md:2] [docs/setup.md:2].",
        [Citation("docs/capitals.md", 2, 2), Citation("docs/setup.md", 2, 2)],
    )
    assert not judge(body, cited, evidence(), cross_section_allowed=[(SETUP, WEST)]).faults
    assert judge(body, cited, evidence(), cross_section_allowed=[(SETUP, SOUTH)]).faults


def test_marks_leave_the_text_and_number_its_sentences():
    text, marks = unmarked(
        "Paris is the capital [docs/capitals.md:2]. Rome lies on the Tiber. [docs/capitals.md:5-6] Done [1]."
    )
    assert text == "Paris is the capital. Rome lies on the Tiber. Done [1]."
    assert [(sentence, citation.first) for sentence, citation in marks] == [(0, 2), (1, 5)]


def test_a_refusal_may_name_paths_of_the_question_only():
    refusal = "INSUFFICIENT EVIDENCE: what deploy/prod.yaml says"
    assert not path_faults(refusal, evidence(), [], "What does deploy/prod.yaml say?")
    assert [fault.code for fault in path_faults(refusal, evidence(), [], "What is said?")] == [
        "path_not_in_evidence"
    ]


def test_an_answer_that_names_hundreds_of_paths_is_not_searched_for():
    assert [
        fault.code
        for fault in path_faults(" ".join(f"f{n}.py" for n in range(600)), evidence(), [])
    ] == ["path_not_cited"]


@given(st.text(max_size=30), st.text(max_size=60))
def test_find_quote_agrees_with_a_search_in_normalised_text(quote, text):
    found = find_quote(quote, text, 0, len(text))
    if found:
        assert text[slice(*found)].split() == quote.split()
    elif quote.split():
        assert " ".join(quote.split()) not in text
