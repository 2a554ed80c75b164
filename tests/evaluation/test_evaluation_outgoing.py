"""An answer leaves the home masked. Its quotes and all text beside it are snippets; ids stay."""

from answer_corpus import scored

from rag_eval.core.types import Answer, CitedSpan, Evidence
from rag_eval.pipeline.exports import _outgoing_row
from rag_eval.reporting.outgoing import Outgoing
from rag_eval.reporting.report import _outgoing_body

VALUE = "jane.doe@" + "example.org"
SOURCE = " ".join(f"word{number}" for number in range(100))


def item(doc_id="a.md"):
    return Evidence(f"{doc_id}:1", scored(doc_id, "s", SOURCE), "retrieve", 1, 1)


def answer(text, citations, evidence=None):
    return Answer(
        "q",
        "llm",
        "answered",
        text=text,
        citations=tuple(citations),
        evidence=tuple(evidence or (item(),)),
    )


def span(start, end, evidence=0, text=SOURCE, doc_id="a.md"):
    return CitedSpan(0, evidence, doc_id, start, end, text[start:end])


def test_a_short_quote_stays_whole_a_long_one_is_cut_and_the_answer_is_whole():
    (quote,) = Outgoing(answer(SOURCE, [span(0, 150)])).quotes
    assert quote.fields == {"quote": SOURCE[:150]}
    assert quote.source_url == "https://example.org/a.md"
    long = Outgoing(answer(SOURCE, [span(0, len(SOURCE))]))
    (quote,) = long.quotes
    assert long.text == SOURCE
    assert quote.fields == {"quote": SOURCE[:199] + "…", "quote_chars": len(SOURCE)}


def test_records_keep_their_ids_and_offsets():
    found = Outgoing(
        answer(SOURCE, [span(0, len(SOURCE)), CitedSpan(0, -1, f"says {VALUE}: {SOURCE}", -1, -1)])
    )
    stated = {
        "query_id": "q",
        "doc_id": "a.md",
        "snippet_id": "snippet-a.md",
        "offsets": {"start": 0, "end": 9, "unit": "char"},
        "quote": SOURCE,
        "source_url": f"https://example.org/{VALUE}",
        "page": f"of {VALUE} {SOURCE}",
    }
    line = found.record(stated, 0)
    assert {name: line[name] for name in ("query_id", "doc_id", "snippet_id", "offsets")} == {
        name: stated[name] for name in ("query_id", "doc_id", "snippet_id", "offsets")
    }
    assert line["quote_chars"] == len(SOURCE)
    assert VALUE not in str(line)
    assert SOURCE[:201] not in str(line)
    fabricated = found.record(
        {"query_id": "q", "in_evidence": False, "doc_id": f"says {VALUE}: {SOURCE}"}, 1
    )
    assert len(fabricated["doc_id"]) <= 200
    assert VALUE not in fabricated["doc_id"]
    assert found.quotes[1].source_url is None


def test_rejected_replies_and_preflights():
    found = Outgoing(answer("x", []))
    row = _outgoing_row(
        {
            "query_id": "q",
            "reply": f"{VALUE} {SOURCE}",
            "messages": [f"no {VALUE}"],
            "codes": ["schema"],
        },
        found,
    )
    assert VALUE not in str(row)
    assert SOURCE[:201] not in row["reply"]
    assert row["codes"] == ["schema"]
    assert _outgoing_row({"query_id": "q", "question": f"who is {VALUE}"}, None)[
        "question"
    ].startswith("who is [email")


def test_the_report_masks_what_it_says_and_keeps_its_hashes():
    warning = {
        "code": "c",
        "message": "m",
        "file": "f",
        "line": 1,
        "field": None,
        "found": f"{VALUE} {SOURCE}",
        "accepted": None,
        "severity": "warning",
    }
    body = {
        "gold": {"hash": "4111111111111111", "warnings": [warning]},
        "strategies": [{"first_failure": f"raised: {VALUE}"}],
        "n": 1,
    }
    left = _outgoing_body(body)
    assert left["gold"]["hash"] == "4111111111111111"
    assert len(left["gold"]["warnings"][0]["found"]) <= 200
    assert VALUE not in str(left)
    assert left["n"] == 1
    assert VALUE in str(body)  # the stage's own result is unchanged
