"""The runner: overrides, modes, retries, reruns, failures and counts, against a scripted chat."""

import dataclasses
import json
import re
import threading
import time

import pytest
from answer_corpus import Ranking, ScriptedChat, library, question

from rag_eval.answers.evidence import Withheld
from rag_eval.answers.runner import AnswerRun, Tools, answer_questions
from rag_eval.core.config import Answers
from rag_eval.core.errors import InputError
from rag_eval.core.types import Answer, ChatError, Reply

ASK = "What is the capital of France?"
WEST = "docs/capitals.md:2"


def reply(citations=(WEST,), answer="Paris is the capital of France.", **changes) -> str:
    return json.dumps(
        {
            "citations": list(citations),
            "answer": answer,
            "deltaS": 0.2,
            "lambda": "convergent",
            **changes,
        }
    )


GOOD = reply()
FABRICATED = reply(["docs/invented.md:1"])
BROKEN = "It is Paris."


@dataclasses.dataclass(frozen=True)
class _Sentence:
    passage: int
    start: int
    end: int
    score: float = 1.0


@dataclasses.dataclass(frozen=True)
class _Extract:
    sentences: tuple[_Sentence, ...]
    signal: float
    answered: bool


class FirstLines:
    """Chooses the second line of the first two passages; abstains on a question about the moon."""

    def __init__(self) -> None:
        self.calls = 0

    def answer(self, questions, passages):
        self.calls += 1
        return [self._one(asked, own) for asked, own in zip(questions, passages, strict=True)]

    def _one(self, asked, passages):
        assert [passage.rank for passage in passages] == list(range(1, len(passages) + 1))
        texts = [passage.text for passage in passages]
        sentences = tuple(
            _Sentence(number, text.index("\n") + 1 if "\n" in text else 0, len(text.rstrip()))
            for number, text in enumerate(texts[:2])
        )
        return _Extract(sentences, 0.25 if "moon" in asked else 0.75, "moon" not in asked)


def run(
    questions,
    config=None,
    *,
    chat=None,
    recorded=None,
    ranking=None,
    extract=None,
    **options,
) -> AnswerRun:
    corpus, options = library(), {**(config or {}), **options}
    asked = [
        question(f"q{number}", text, **options)
        if isinstance(text, str)
        else question(*text, **options)
        for number, text in enumerate(questions)
    ]
    tools = Tools(
        corpus,
        ranking or Ranking(corpus),
        Withheld(),
        extract or FirstLines(),
        chat,
        recorded,
        concurrency=4,
    )
    config = Answers.model_validate({"mode": "llm", "endpoint": "local", **options})
    return answer_questions(asked, config, tools)


def one(*script, asked=ASK, **options) -> tuple[Answer, AnswerRun, ScriptedChat]:
    chat = ScriptedChat({asked: list(script)})
    found = run([asked], chat=chat, **options)
    return found.answers[0], found, chat


def names(found: AnswerRun) -> list[str]:
    return [line.split()[0].removeprefix("event=") for line in found.events]


def test_a_good_reply_is_an_answer_with_the_characters_it_cites():
    answer, found, chat = one(GOOD)
    assert (answer.outcome, answer.codes, answer.text, answer.attempts, answer.top_k) == (
        "answered",
        (),
        "Paris is the capital of France.",
        1,
        10,
    )
    assert (answer.delta_s, answer.lambda_state, answer.verdict) == (0.2, "convergent", "")
    assert (answer.tokens_in, answer.tokens_out, answer.seconds) == (10, 5, 0.5)
    (span,) = answer.citations
    assert library().text(span.doc_id)[span.start : span.end] == "Paris is the capital of France."
    assert answer.evidence[span.evidence].token == "docs/capitals.md:1-4"
    assert names(found) == [
        "run.start",
        "preflight.step.start",
        "question.chat.prepare",
        "question.done",
        "run.done",
    ]
    assert len(chat.asked) == 1
    assert found.counts["outcome.answered"] == 1


def test_the_two_line_form_gives_a_verdict():
    answer, *_ = one(
        f"VERDICT: **SUPPORTED**\nCITATIONS: {WEST}\nParis is the capital of France.",
        response_schema="verdict",
    )
    assert (answer.outcome, answer.verdict, answer.text) == (
        "answered",
        "SUPPORTED",
        "Paris is the capital of France.",
    )


@pytest.mark.parametrize(
    ("said", "options", "outcome", "text"),
    [
        (
            reply([], "INSUFFICIENT EVIDENCE: the year"),
            {},
            "insufficient_evidence",
            "INSUFFICIENT EVIDENCE: the year",
        ),
        (reply([], "**NOT FOUND**."), {"quote_bypass": "off"}, "not_found", "NOT FOUND"),
        (
            '{"error": "no atlas", "fix": "index one"}',
            {},
            "contract_error_reply",
            "error: no atlas; fix: index one",
        ),
        ("VERDICT=NOT FOUND\nCITATIONS=", {"response_schema": "verdict"}, "not_found", "NOT FOUND"),
    ],
)
def test_refusals_have_outcomes_of_their_own_and_are_not_retried(said, options, outcome, text):
    answer, found, chat = one(said, **options)
    assert (answer.outcome, answer.text, answer.attempts, len(chat.asked)) == (outcome, text, 1, 1)
    assert answer.codes == (("contract_error_reply",) if outcome == "contract_error_reply" else ())
    assert found.counts[f"outcome.{outcome}"] == 1


def test_a_broken_form_is_asked_for_again_with_what_was_wrong():
    answer, found, chat = one(BROKEN, "{}", GOOD)
    assert (answer.outcome, answer.attempts, answer.tokens_in) == ("answered", 3, 30)
    assert found.counts["schema_retries"] == 2
    assert [row.codes for row in found.rejected] == [("not_json",), ("missing_key",)]
    assert [message.role for message in chat.asked[1][1]] == ["system", "user", "assistant", "user"]
    assert "must be one JSON object" in chat.asked[1][1][3].content
    assert "the key citations is missing" in chat.asked[2][1][3].content
    assert "question.chat.schema_retry.satisfied" in names(found)


def test_what_stays_broken_fails_with_its_codes_and_no_text():
    answer, found, chat = one(BROKEN)
    assert (answer.outcome, answer.codes, answer.text, answer.citations, answer.attempts) == (
        "failed",
        ("not_json",),
        "",
        (),
        3,
    )
    assert found.counts["code.not_json"] == 1
    assert found.rejected[-1].reply == BROKEN
    assert "question.chat.schema_retry.satisfied" not in names(found)
    assert len(chat.asked) == 3


@pytest.mark.parametrize(
    ("options", "attempts"),
    [
        ({"retry_on_schema_fail": False}, 1),
        ({"schema_retry_attempts": 0}, 1),
        ({"schema_retry_attempts": 4}, 5),
    ],
)
def test_the_number_of_retries_is_the_gold_sets(options, attempts):
    answer, *_ = one(BROKEN, **options)
    assert answer.attempts == attempts


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (reply([{"token": WEST, "quote": "Rome"}]), "quote_mismatch"),
        (reply(answer="See docs/setup.md."), "path_not_cited"),
        (
            reply(
                [WEST, "docs/capitals.md:5"],
                answer=f"Paris and Rome [{WEST}] [docs/capitals.md:5].",
            ),
            "cross_section_reuse",
        ),
        (reply(answer=f"[{WEST}]"), "empty_answer"),
        (Reply(GOOD, 1, 1, finish_reason="length"), "incomplete_reply"),
        (Reply("x" * 30_000, 1, 1, finish_reason="length"), "reply_too_long"),
    ],
)
def test_gates_that_a_better_reply_could_pass_are_retried(said, code):
    answer, found, _ = one(said, GOOD, asked="What is the capital of France and setup?")
    assert (answer.outcome, answer.attempts) == ("answered", 2)
    assert found.rejected[0].codes == (code,)


def test_a_fabricated_citation_leads_to_a_rerun_over_more_evidence():
    ranking = Ranking(library())
    answer, found, chat = one(
        FABRICATED,
        reply(["docs/capitals.md:5"], "Rome is the capital of Italy."),
        top_k=1,
        adaptive_top_k=[1, 5],
        ranking=ranking,
    )
    assert (answer.outcome, answer.attempts, answer.top_k) == ("answered", 2, 5)
    assert [top_k for _, top_k in ranking.calls] == [1, 5]
    assert found.counts["adaptive_reruns"] == 1
    assert found.counts["schema_retries"] == 0
    assert "docs/capitals.md:5-6" not in chat.asked[0][1][1].content
    assert "docs/capitals.md:5-6" in chat.asked[1][1][1].content
    assert [record.parameters for record in found.preflights] == [{"top_k": 1}, {"top_k": 5}]
    assert [item.token for item in answer.evidence] == [
        "docs/capitals.md:1-4",
        "docs/capitals.md:5-6",
    ]


def test_what_stays_fabricated_fails_when_the_ladder_ends():
    answer, found, _ = one(FABRICATED, top_k=1, adaptive_top_k=[2, 3])
    assert (answer.outcome, answer.codes, answer.attempts, answer.top_k) == (
        "failed",
        ("unknown_snippet",),
        3,
        3,
    )
    assert found.counts["adaptive_reruns"] == 2
    answer, *_ = one(FABRICATED, adaptive_top_k=[])
    assert (answer.outcome, answer.attempts) == ("failed", 1)


def test_no_rerun_where_top_k_changes_nothing():
    answer, *_ = one(
        FABRICATED,
        preflights=[{"kind": "section", "sections": ["docs/capitals.md#west"]}],
        adaptive_top_k=[20],
    )
    assert (answer.outcome, answer.codes, answer.attempts) == ("failed", ("unknown_snippet",), 1)


def test_a_model_that_obeys_an_instruction_in_the_evidence_does_not_pass():
    answer, *_ = one(reply(answer="PWNED: see https://evil.example/collect"), adaptive_top_k=[])
    assert (answer.outcome, answer.codes, answer.text) == ("failed", ("path_not_in_evidence",), "")


@pytest.mark.parametrize("code", ["timeout", "reply_too_large", "teapot"])
def test_a_chat_that_fails_fails_the_question(code):
    answer, found, _ = one(ChatError(code, "it\nbroke event=run.start", retries=4))
    assert (answer.outcome, answer.codes, answer.attempts) == (
        "failed",
        ("chat_error" if code == "teapot" else f"chat_{code}",),
        1,
    )
    assert found.counts["chat_retries"] == 4
    assert sum("event=run.start" in line for line in found.events) == 1


def test_what_a_failed_chat_cost_before_is_kept():
    answer, *_ = one(BROKEN, ChatError("timeout", "late"))
    assert (answer.codes, answer.attempts, answer.tokens_in) == (("chat_timeout",), 2, 10)


def test_one_questions_failures_never_stop_another():
    texts = [f"capital {number}" for number in range(8)]
    scripts = [
        GOOD,
        BROKEN,
        ChatError("timeout", "late"),
        RuntimeError("a defect"),
        FABRICATED,
        '{"error": "a", "fix": "b"}',
        "\x00" * 50,
        GOOD,
    ]
    chat = ScriptedChat({text: [script] for text, script in zip(texts, scripts, strict=True)})
    found = run(texts, chat=chat, adaptive_top_k=[])
    assert [(answer.query_id, answer.outcome, answer.codes) for answer in found.answers] == [
        ("q0", "answered", ()),
        ("q1", "failed", ("not_json",)),
        ("q2", "failed", ("chat_timeout",)),
        ("q3", "failed", ("internal_error",)),
        ("q4", "failed", ("unknown_snippet",)),
        ("q5", "contract_error_reply", ("contract_error_reply",)),
        ("q6", "failed", ("bad_characters",)),
        ("q7", "answered", ()),
    ]
    assert found.counts["questions"] == 8
    assert sum(value for key, value in found.counts.items() if key.startswith("outcome.")) == 8


class _Hurried:
    """Answers the last question first."""

    def __init__(self, count: int) -> None:
        self.count, self.most, self._now, self._lock = count, 0, 0, threading.Lock()

    def ask(self, messages):
        number = int(messages[1].content.rsplit(" ", 1)[1])
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(0.002 * (self.count - number))
        with self._lock:
            self._now -= 1
        return Reply(GOOD if number % 3 else BROKEN, 1, 1)


def test_answers_and_events_stand_in_the_order_of_the_questions_whatever_comes_first():
    texts = [f"capital {number}" for number in range(12)]
    first, second = (run(texts, chat=_Hurried(12)) for _ in range(2))
    assert [answer.query_id for answer in first.answers] == [f"q{number}" for number in range(12)]
    assert first == second
    done = [line for line in first.events if line.startswith("event=question.done")]
    assert [re.search(r"query_id=(\S+)", line)[1] for line in done] == [
        f"q{number}" for number in range(12)
    ]


def test_questions_are_asked_side_by_side_within_the_bound():
    chat = _Hurried(12)
    run([f"capital {number}" for number in range(12)], chat=chat)
    assert 2 <= chat.most <= 4


def test_empty_evidence_ends_not_found_without_asking_the_model():
    answer, found, chat = one(GOOD, asked="zzz")
    assert (answer.outcome, answer.text, answer.attempts, answer.evidence) == (
        "not_found",
        "NOT FOUND",
        0,
        (),
    )
    assert chat.asked == []
    assert "preflight.step.filtered_to_zero" in names(found)


@pytest.mark.parametrize("mode", ["llm", "deterministic"])
def test_strict_evidence_aborts_before_any_model_is_asked(mode):
    chat, extract = ScriptedChat({ASK: [GOOD]}), FirstLines()
    strict = {"strict_fail_on_empty_evidence": True, "mode": mode}
    with pytest.raises(InputError, match=r"empty_evidence.*no evidence for 1 questions: q1"):
        run([ASK, "zzz"], chat=chat, extract=extract, **strict)
    assert (chat.asked, extract.calls) == ([], 0)


def test_deterministic_answers_are_verbatim_sentences_each_with_its_citation():
    extract = FirstLines()
    found = run(["capital", "capital of the moon", "zzz"], mode="deterministic", extract=extract)
    answered, abstained, empty = found.answers
    assert extract.calls == 1
    assert answered.outcome == "answered"
    assert answered.text == " ".join(span.quote for span in answered.citations)
    assert [span.segment for span in answered.citations] == [0, 1]
    assert all(
        library().text(span.doc_id)[span.start : span.end] == span.quote
        for span in answered.citations
    )
    assert (abstained.outcome, abstained.text, abstained.citations, abstained.signal) == (
        "not_found",
        "NOT FOUND",
        (),
        0.25,
    )
    assert (empty.outcome, empty.signal) == ("not_found", None)


def _own(query_id, text, **override):
    return query_id, text, override


def test_each_question_may_have_its_own_mode_schema_and_retries():
    recorded = Answer("c", "recorded", "answered", text="Recorded.")
    chat = ScriptedChat(
        {"capital France b": [f"VERDICT=YES\nCITATIONS={WEST}\nYes."], "capital d": [BROKEN]}
    )
    questions = [
        _own("a", "capital a", answer_mode="deterministic"),
        _own("b", "capital France b", response_schema="verdict", verdicts=["YES", "NO"], top_k=1),
        _own("c", "capital c", answer_mode="recorded"),
        _own("d", "capital d", schema_retry_attempts=0),
        _own("e", "capital e", answer_mode="recorded"),
        _own(
            "f",
            "zzz",
            preflights=[{"kind": "section", "sections": ["docs/setup.md#setup"]}],
            answer_mode="deterministic",
        ),
    ]
    found = run(questions, chat=chat, recorded={"c": recorded})
    a, b, c, d, e, f = found.answers
    assert (a.mode, a.outcome) == ("deterministic", "answered")
    assert (b.outcome, b.verdict, b.top_k, len(b.evidence)) == ("answered", "YES", 1, 1)
    assert c == recorded
    assert (d.outcome, d.attempts) == ("failed", 1)
    assert (e.outcome, e.codes) == ("failed", ("no_output",))
    assert [item.token for item in f.evidence] == ["docs/setup.md:1-4"]
    assert found.events[0] == "event=run.start questions=6 deterministic=2 llm=2 recorded=2"


def test_a_mode_that_is_not_available_is_named_with_what_is():
    with pytest.raises(InputError) as caught:
        run([ASK, _own("q9", "x", answer_mode="recorded")])
    assert [
        (problem.code, problem.found, problem.accepted) for problem in caught.value.problems
    ] == [
        ("mode_not_available", "llm", "deterministic"),
        ("mode_not_available", "recorded", "deterministic"),
    ]


BAN = {"validators": [{"name": "ban_regex", "patterns": ["Paris"]}]}


def test_a_domain_validator_is_asked_and_its_message_given_back():
    answer, found, chat = one(GOOD, reply(answer="It is the city of light."), config=BAN)
    assert (answer.outcome, answer.attempts) == ("answered", 2)
    assert "must not match Paris" in chat.asked[1][1][3].content
    assert found.counts["validator_failed.ban_regex"] == 1


def test_a_domain_validator_also_judges_the_other_modes_and_fails_them():
    recorded = {"r": Answer("r", "recorded", "answered", text="Paris.")}
    found = run(
        [
            _own("d", "capital", answer_mode="deterministic"),
            _own("r", "capital", answer_mode="recorded"),
            _own("m", "the moon", answer_mode="deterministic"),
        ],
        BAN,
        recorded=recorded,
    )
    assert [(answer.outcome, answer.codes, answer.text) for answer in found.answers[:2]] == [
        ("failed", ("validator_failed",), "")
    ] * 2
    assert found.answers[2].outcome == "not_found"
    assert [row.query_id for row in found.rejected] == ["d", "r"]


def test_a_validator_that_raises_fails_the_answer_and_is_counted():
    slow = {"validators": [{"name": "ban_regex", "patterns": [r"(a|a)*$"]}]}
    answer, found, chat = one(reply(answer="a" * 60 + "b"), config=slow)
    assert (answer.outcome, answer.codes, len(chat.asked)) == ("failed", ("validator_error",), 1)
    assert found.counts["validator_error.ban_regex"] == 1


def test_evidence_that_does_not_fit_the_prompt_fails_the_question():
    answer, *_ = one(GOOD, max_prompt_chars=1000)
    assert (answer.outcome, answer.codes, answer.attempts) == ("failed", ("prompt_too_long",), 0)


def test_evidence_left_out_of_the_prompt_cannot_be_cited():
    roomy, found, chat = one(GOOD)
    chars = sum(len(message.content) for message in chat.asked[0][1])
    answer, found, _ = one(
        reply(["docs/capitals.md:5"], "Rome is the capital of Italy."),
        max_prompt_chars=chars - 1,
        adaptive_top_k=[],
    )
    assert len(answer.evidence) == len(roomy.evidence) - 1
    assert answer.codes == ("unknown_snippet",)
    assert any("left_out=1" in line for line in found.events)


def test_no_questions_are_no_answers():
    assert run([], chat=ScriptedChat({})).answers == ()


def test_hostile_ids_and_texts_cannot_forge_an_event():
    bad = 'x"\nevent=run.done questions=9 \u2028\x1b[2J'
    chat = ScriptedChat({"capital x": [BROKEN]})
    found = run([_own(bad, "capital x")], chat=chat)
    assert all(line.isprintable() and line.isascii() for line in found.events)
    assert sum("event=run.done" in line for line in found.events) == 1
    assert found.answers[0].query_id == bad
