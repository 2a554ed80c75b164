"""Score the sentences of answers, and judge whether the answers use their evidence (FK019)."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from rag_eval.answers.chat import async_client
from rag_eval.core.arrays import FloatArray
from rag_eval.core.settings import Endpoint
from rag_eval.core.types import Answer
from rag_eval.corpus.analyzer import DocumentFrequencies, count_documents
from rag_eval.measures.answers import Faithfulness, Sample, faithfulness_figure
from rag_eval.measures.answers import judge_faithfulness as judge_samples
from rag_eval.measures.citation_support import SentenceSupport, citation_support
from rag_eval.measures.overlap import SharedGold
from rag_eval.measures.support import BAR, Cites, Gap, Purpose, Score, groundedness, retrieval_gaps

UNCHECKED = ("failed", "contract_error_reply")
"""Outcomes of questions without an answer, which FK019 therefore skips."""


@dataclasses.dataclass(frozen=True)
class ScoredAnswers:
    """Scores of answers in their order.

    `groundedness` and `supported` are [n]. `citing` has the sentences of each answer that cite
    something and have a verdict. `gaps` are the results of FK019 by the position of the answer.
    """

    groundedness: FloatArray
    supported: FloatArray
    citing: list[list[SentenceSupport]]
    gaps: dict[int, Gap]

    @property
    def unsupported(self) -> list[list[SentenceSupport]]:
        """The sentences of each answer that their citations do not support."""
        return [
            [sentence for sentence in sentences if not sentence.supported]
            for sentences in self.citing
        ]


def score_answers(
    answers: Sequence[Answer],
    corpus_texts: Sequence[str],
    purpose: Purpose,
    score: Score | None,
    bar: float = BAR,
) -> ScoredAnswers:
    """Score answers on their evidence; words weigh by how rare they are in `corpus_texts`.

    A verifier `score` takes the place of the comparison of words, whose bar of support is `bar`.
    FK019 compares words in any case.
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
    return ScoredAnswers(grounded.value, grounded.supported, citing, gaps)


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
