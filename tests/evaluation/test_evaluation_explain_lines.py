"""`explain` prints readable verdicts of one question, and hostile text has no effect."""

import dataclasses

from answer_corpus import scored

from rag_eval.core.types import Answer, CitedSpan, Evidence
from rag_eval.measures.support import SentenceSupport
from rag_eval.reporting.outgoing import CitationVerdict, Explanation, GoldSpan

HOSTILE = "\x1b[31mred\nevent=run.start \u202e[bold]<script>"


def explain(explanation):
    return list(explanation.lines())


def chunk(text="Jobs are kept for 30 days."):
    return dataclasses.replace(scored("storage.md", "kept", text), score_norm=0.9)


def explained(**changes):
    text = changes.pop("text", "Jobs are kept for 30 days.")
    answer = Answer(
        "keep",
        "deterministic",
        "answered",
        text=text,
        citations=(
            CitedSpan(0, 0, "storage.md", 0, 26, text),
            CitedSpan(1, -1, "ghost.md", -1, -1),
        ),
        evidence=(Evidence("storage.md:1-3", chunk(text), "retrieve", 1, 3),),
        signal=0.71,
    )
    base = Explanation(
        run_id="r1",
        gold_set="tiny",
        strategy="bm25",
        question="How long are jobs kept?",
        answerable=True,
        answer=answer,
        verdicts=(
            CitationVerdict("ok", "", correct=True),
            CitationVerdict("unknown_snippet", "snippet_id", correct=False),
        ),
        targets=("storage.md",),
        spans=(
            GoldSpan("storage.md", 0, 26, text, cited=True),
            GoldSpan("alerts.md", 4, 9, "other", cited=False),
        ),
        measures={"coverage": 0.5, "groundedness": 1.0, "supported": 1.0, "gap_reason": "cited"},
    )
    return Explanation(
        **{**{name: getattr(base, name) for name in base.__dataclass_fields__}, **changes}
    )


def test_it_says_what_was_asked_answered_cited_and_right():
    missed = (("hybrid", "No list had it in its first 1000."),)
    shown = "\n".join(explain(explained(threshold=0.667, misses=missed)))
    for part in (
        "How long are jobs kept?",
        "signal 0.71; it answers from 0.667",
        "1. storage.md:1-3  matches the gold",
        "2. ghost.md  unknown_snippet [snippet_id]: reject the answer",
        "cited   storage.md [0, 26)",
        "missed  alerts.md [4, 9)",
        "rank 1, score 0.900  <- cited, gold document",
        "coverage 0.50; groundedness 1.00; use of what was retrieved: cited",
        "  missed by hybrid: No list had it in its first 1000.",
    ):
        assert part in shown


def test_a_sentence_that_its_citations_do_not_support_is_named():
    weak = SentenceSupport(
        1,
        "Jobs are never kept.",
        (0, 1),
        0.2,
        "partly",
        "Kept.",
        "never",
        ("brown", "cows", "graze"),
    )
    shown = explain(explained(unsupported=(weak,)))
    at = shown.index(
        "  sentence 2 is only partly supported by storage.md:1-3, ghost.md (score 0.20)"
    )
    assert shown[at + 1 : at + 5] == [
        "     Jobs are never kept.",
        "     the best passage that it cites: Kept.",
        "     conflict: never",
        "     words that it lacks: brown cows graze",
    ]


def test_evidence_that_the_guard_warns_of_says_so():
    name = chunk().snippet_id
    shown = explain(explained(findings={name: "warning: pattern.x, \x1b[31m"}))
    at = next(place for place, line in enumerate(shown) if "storage.md:1-3  retrieve" in line)
    assert shown[at + 1] == "      poisoning guard: warning: pattern.x, \\u001b[31m"
    assert not [line for line in explain(explained()) if "poisoning guard" in line]


def test_hostile_text_neither_breaks_a_line_nor_reaches_the_terminal():
    lines = explain(explained(text=HOSTILE, question=HOSTILE))
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("event=") for line in lines)


def test_personal_data_shows_nowhere_and_the_address_stands_beside_the_source():
    value = "jane.doe@" + "example.org"
    lines = explain(
        explained(
            text=f"Write to {value} now.",
            question=f"Who is {value}?",
            spans=(
                GoldSpan(
                    "a.md", 0, 9, value, cited=False, source_url=f"https://example.org/{value}"
                ),
            ),
        )
    )
    shown = "\n".join(lines)
    assert value not in shown
    assert "[email" in next(line for line in lines if "Who is" in line)
    # the citation and the piece of evidence
    assert sum(line.endswith("  https://example.org/storage.md") for line in lines) == 2
    assert any(
        line.endswith("  https://example.org/[email" + "█" * (len(value) - 6)) for line in lines
    )
