"""`require_citation_support` passes no reply over a small library that says more than it cites."""

import functools
import json
from collections import Counter
from collections.abc import Container
from pathlib import Path

from answer_corpus import Ranking, ScriptedChat, library, question

from rag_eval.answers.answering import Tools, answer_questions
from rag_eval.core.config import Answers

HERE = Path(__file__).parent
LIBRARY = {
    doc_id: "\n".join(lines)
    for doc_id, lines in json.loads(
        (HERE / "adversarial_library.json").read_text(encoding="ascii")
    ).items()
}
REPLIES = [
    json.loads(line)
    for line in (HERE / "adversarial_replies.jsonl").read_text(encoding="ascii").splitlines()
]
"""Each reply has a kind and either the whole `reply`, or its `answer` and what it `cites`."""


def text_of(reply: dict) -> str:
    if "reply" in reply:
        return reply["reply"]
    content = {"citations": reply["cites"], "answer": reply["answer"]}
    return json.dumps(content | {"deltaS": None, "lambda": None})


@functools.cache
def outcomes(*validators: str) -> list[tuple[str, tuple[str, ...]]]:
    """Answer one question with each reply and all documents as evidence."""
    lines = {doc_id: text.count("\n") + 1 for doc_id, text in LIBRARY.items()}
    corpus = library(LIBRARY, {doc_id: [("whole", 1, last)] for doc_id, last in lines.items()})
    options = {
        "mode": "llm",
        "endpoint": "local",
        "schema_retry_attempts": 0,
        "adaptive_top_k": [],
        "validators": [{"name": name} for name in validators],
        "preflights": [{"kind": "section", "sections": [f"{doc_id}#whole" for doc_id in LIBRARY]}],
    }
    asked = {f"What is said {number}?": [text_of(one)] for number, one in enumerate(REPLIES)}
    questions = [question(text, text, **options) for text in asked]
    tools = Tools(corpus, Ranking(corpus), None, chat=ScriptedChat(asked), concurrency=4)
    run = answer_questions(questions, Answers.model_validate(options), tools)
    messages = {row.query_id: row.messages for row in run.rejected}
    return [(one.outcome, messages.get(one.query_id, ())) for one in run.answers]


def replies_that_end(outcome: str, kinds: Container[str]) -> list[tuple]:
    pairs = zip(REPLIES, outcomes("require_citation_support"), strict=True)
    return [
        (one["kind"], one.get("answer") or one["reply"], *messages)
        for one, (end, messages) in pairs
        if end == outcome and one["kind"] in kinds
    ]


def test_the_cases_hold_many_of_each_kind_and_pass_without_the_validator():
    counts = Counter(one["kind"] for one in REPLIES)
    assert counts["honest"] >= 30
    assert counts.total() - counts["honest"] >= 190
    broken = {"malformed", "wrong_quote", "fabricated"}
    ended = zip(REPLIES, outcomes(), strict=True)
    assert all((one["kind"] in broken) == (end == "failed") for one, (end, _) in ended)


def test_no_reply_passes_that_the_cited_text_does_not_say():
    kinds = {one["kind"] for one in REPLIES} - {"honest"}
    passing = Counter(kind for kind, _ in replies_that_end("answered", kinds))
    # an exchange of names across a passive, and words of another clause, are not noticed
    assert passing == {"swapped": 1, "negated": 1, "number": 1, "antonym": 1}


def test_most_honest_replies_pass():
    """A few are rejected, because words alone do not show that they are right."""
    assert len(replies_that_end("failed", {"honest"})) <= 4


def test_a_rejection_names_sentence_and_reason():
    reasons = {
        "negated": 'conflicts with what it cites: "not built"',
        "shuffled": "is not supported by what it cites.",
        "invented": "has words that what it cites lacks: gift, daughter",
    }
    for kind, reason in reasons.items():
        _, _, message = replies_that_end("failed", {kind})[0]
        assert message.startswith("require_citation_support: sentence 1 (The Grey Lighthouse")
        assert reason in message
