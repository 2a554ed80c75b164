"""Score the sentences of answers, and judge whether the answers use their evidence (FK019)."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from rag_eval.answers.chat import async_client
from rag_eval.core.settings import Endpoint
from rag_eval.core.types import Answer
from rag_eval.corpus.analyzer import DocumentFrequencies, count_documents
from rag_eval.measures.answers import Faithfulness, Sample, faithfulness_figure
from rag_eval.measures.answers import judge_faithfulness as judge_samples
from rag_eval.measures.citation_support import SentenceSupport, citation_support
from rag_eval.measures.overlap import SharedGold
from rag_eval.measures.support import Cites, Gap, Purpose, Score, groundedness, retrieval_gaps

UNCHECKED = ("failed", "contract_error_reply")
"""Outcomes of questions without an answer, which FK019 therefore skips."""


class ScoredAnswers(NamedTuple):
    """Scores of answers: a row of ANSWER_MEASURES for each, and the reasons behind them.

    `unsupported` are the sentences that their citations do not support, by query_id. `gaps` are the
    results of FK019 by the position of the answer.
    """

    per_question: pd.DataFrame
    unsupported: dict[str, list[SentenceSupport]]
    gaps: dict[int, Gap]


def score_answers(
    answers: Sequence[Answer],
    counts: pd.DataFrame,
    corpus_texts: Sequence[str],
    *,
    purpose: Purpose,
    score: Score | None,
    bar: float,
) -> ScoredAnswers:
    """Score answers on their evidence; words weigh by how rare they are in `corpus_texts`.

    `counts` are the counts of citations of each question. A verifier `score` takes the place of the
    comparison of words, whose bar of support is `bar`. FK019 compares words in any case.
    """
    frequencies = count_documents(corpus_texts)
    is_answered = [answer.outcome == "answered" for answer in answers]
    texts = [answer.text if has else "" for answer, has in zip(answers, is_answered, strict=True)]
    evidence = [[item.chunk.text for item in answer.evidence] for answer in answers]
    grounded = groundedness(texts, evidence, frequencies, bar)
    support = citation_support(answers, frequencies, bar=bar)
    gaps = find_gaps(answers, support, purpose, frequencies)
    if score is not None:
        premises = ["\n\n".join(evidence[at]) for at in grounded.answer_of.tolist()]
        grounded = grounded.rescored(score(grounded.sentences, premises))
        support = citation_support(answers, frequencies, score, bar)
    citing = [
        [one for one in sentences if has and one.places and not math.isnan(one.score)]
        for sentences, has in zip(support, is_answered, strict=True)
    ]
    per_question = counts.assign(
        outcome=[answer.outcome for answer in answers],
        groundedness=grounded.value,
        supported=grounded.supported,
        n_citing=list(map(len, citing)),
        n_upheld=[sum(sentence.supported for sentence in sentences) for sentences in citing],
        gap=[at in gaps and gaps[at].violation for at in range(len(answers))],
        gap_reason=[
            gaps[at].reason if at in gaps else answer.outcome for at, answer in enumerate(answers)
        ],
    )
    unsupported = {
        answer.query_id: weak
        for answer, sentences in zip(answers, citing, strict=True)
        if (weak := [sentence for sentence in sentences if not sentence.supported])
    }
    return ScoredAnswers(per_question, unsupported, gaps)


def find_gaps(
    answers: Sequence[Answer],
    support: Sequence[Sequence[SentenceSupport]],
    purpose: Purpose,
    frequencies: DocumentFrequencies | None = None,
) -> dict[int, Gap]:
    """Check FK019 on every answer, and return the results by the position of the answer.

    `support` are the sentences of each answer with their citations. Answers with an outcome in
    UNCHECKED are left out.
    """
    checked = [at for at, answer in enumerate(answers) if answer.outcome not in UNCHECKED]
    verdicts = retrieval_gaps(
        [answers[at].text for at in checked],
        [[item.chunk.text for item in answers[at].evidence] for at in checked],
        cites=[_cites(answers[at], support[at]) for at in checked],
        purpose=purpose,
        frequencies=frequencies,
    )
    return dict(zip(checked, verdicts, strict=True))


def _cites(answer: Answer, sentences: Sequence[SentenceSupport]) -> Cites:
    """Tell whether citations support a sentence, if only partly; None without a citation."""
    cited = [sentence for sentence in sentences if sentence.places]
    if answer.outcome != "answered" or not cited:
        return None
    return any(sentence.verdict != "unsupported" for sentence in cited)


def judge_faithfulness(
    answers: Sequence[Answer],
    questions: Mapping[str, str],
    gold: SharedGold,
    judge: tuple[str, Endpoint],
    rate: float,
) -> Faithfulness:
    """Let a chat endpoint judge a share `rate` of the answers through ragas.

    `questions` are texts by query_id, `judge` is the name of the endpoint with the endpoint.
    """
    name, endpoint = judge
    samples = [
        Sample(
            answer.query_id,
            questions[answer.query_id],
            answer.text if answer.outcome == "answered" else "",
            [item.chunk.text for item in answer.evidence],
        )
        for answer in answers
    ]
    verdicts = judge_samples(samples, lambda: async_client(endpoint), endpoint, rate)
    return faithfulness_figure(verdicts, gold, rate=rate, judge=(name, endpoint.model))
