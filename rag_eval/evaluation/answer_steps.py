"""Answer stage: every question answered from the evidence of one strategy, as `answers` of the gold set says.

Belongs here: which answerers are used and when an answer is kept. How a question is answered is `rag_eval.answers.runner`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.answers.chat import ChatClient
from rag_eval.answers.chat_cache import ChatCache
from rag_eval.answers.events import Events
from rag_eval.answers.evidence import Library
from rag_eval.answers.extractive import Extractive, TermWeights
from rag_eval.answers.questions import Question, plan
from rag_eval.answers.recorded import RecordedAnswers, recorded_answers, recorded_payloads
from rag_eval.answers.runner import AnswerRun, EmptyEvidenceError, answer_questions
from rag_eval.answers.tools import Tools
from rag_eval.corpus.recorded import read_outputs
from rag_eval.evaluation.answer_frames import to_frames
from rag_eval.evaluation.corpus_steps import corpus_snapshot
from rag_eval.evaluation.evidence_steps import StoredRetrieval
from rag_eval.evaluation.guard_steps import withheld
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.trust_steps import admitted_chunks
from rag_eval.records.answer_settings import Answers
from rag_eval.records.answers import Answer, Mode
from rag_eval.records.configuration_parts import Embedding
from rag_eval.records.gold_set import Bm25, External, Hybrid
from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.retrieval.embedding.source import EmbeddingSource
from rag_eval.retrieval.synonyms.expansion import Expansion
from rag_eval.settings import Endpoint
from rag_eval.storage.artifacts import Artifact
from rag_eval.storage.hashing import digest, file_hash

_Stated = dict[str, list[list[Any]]]

DONE = "event=question.done "
KEPT_CHAT = "chat"
"""Folder of the home that keeps replies."""


def answers_strategy(evaluation: Evaluation, config: Answers) -> str:
    """Name the strategy whose retrieval is the evidence."""
    return config.strategy or evaluation.config.primary_strategy


def answers_embedding(runs: Runs, config: Answers) -> Embedding:
    """Choose what the deterministic mode compares sentences with: its own embedding, that of the strategy, else lsa-256."""
    if config.embedding is not None:
        return config.embedding
    spec = runs.evaluation.config.base_of(runs.spec(answers_strategy(runs.evaluation, config)))
    return (
        Embedding(model="lsa-256")
        if isinstance(spec, Bm25 | External) or spec.embedding.vectors is not None
        else spec.embedding
    )


def answers_expansion(runs: Runs, config: Answers) -> Expansion | None:
    """Load the synonyms that questions are read with: those of the strategy."""
    spec = runs.evaluation.config.base_of(runs.spec(answers_strategy(runs.evaluation, config)))
    return (
        Expansion.load(spec.expand)
        if isinstance(spec, Bm25 | Hybrid) and spec.expand is not None
        else None
    )


def extractor(
    config: Answers, texts: Sequence[str], source: EmbeddingSource, expansion: Expansion | None
) -> Extractive:
    """Make the extractive answerer of a corpus: its chunk texts say which words are rare, the source what sentences mean, the expansion what else is meant."""
    kind: Literal["sentence", "lsa"] = (
        "lsa" if (source.spec.model or "").startswith("lsa-") else "sentence"
    )

    def embed(sentences: Sequence[str]) -> npt.NDArray[np.float32]:
        return source.text_vectors(list(sentences))

    return Extractive(
        embed,
        embedding=kind,
        max_sentences=config.max_sentences,
        abstain_below=config.abstain_below,
        term_weights=TermWeights.of_texts(texts),
        expansion=expansion,
    )


def _endpoint(evaluation: Evaluation, config: Answers) -> Endpoint:
    endpoints = evaluation.settings.endpoints
    if config.endpoint is None or config.endpoint not in endpoints:
        raise InputError(
            Problem(
                "unknown_endpoint",
                "the settings enable no chat endpoint of this name",
                file="gold_set.yaml",
                field="answers.endpoint",
                found=config.endpoint or "nothing",
                accepted=", ".join(sorted(endpoints)) or "none is enabled; see RAG_EVAL_ENDPOINTS",
            )
        )
    return endpoints[config.endpoint]


def recorded_file(evaluation: Evaluation, config: Answers) -> Path | None:
    """Path of the recorded outputs."""
    return None if config.recorded is None else evaluation.base / config.recorded


def _questions(runs: Runs) -> list[Question]:
    queries, overrides = runs.gold.queries, runs.evaluation.gold.overrides
    return [
        Question(query_id, text, overrides.get(query_id))
        for query_id, text in zip(
            queries["query_id"].tolist(), queries["text"].tolist(), strict=True
        )
    ]


def answers(runs: Runs) -> Artifact | None:
    """Answer every question in its own wording; None where the gold set has no `answers`.

    Parts: answers, cited, evidence (frames of `answer_frames`), preflights, rejected (JSON), stated (JSON: query_id -> [place of the citation, the
    payload that the recorded output states for it]), events (text), about.

    Raises
    ------
    InputError
        A mode, validator, endpoint or file cannot be used, or a question has no evidence and `strict_fail_on_empty_evidence` is on.
    """
    config = runs.evaluation.config.answers
    return (
        None if config is None else runs.evaluation.once("answers", lambda: _answers(runs, config))
    )


def _answers(runs: Runs, config: Answers) -> Artifact:
    evaluation = runs.evaluation
    name, questions = answers_strategy(evaluation, config), _questions(runs)
    modes: set[Mode] = {plan(question, config).mode for question in questions}
    run = runs.artifact(name)
    inputs: list[Any] = [
        config.model_dump(mode="json"),
        [
            [q.query_id, q.text, q.override and q.override.model_dump(mode="json")]
            for q in questions
        ],
        name,
        run.key,
        admitted_chunks(evaluation).key,
        withheld(evaluation)[1],
    ]
    if "deterministic" in modes:
        inputs.append(runs.opened().index.source(answers_embedding(runs, config)).model)
    recorded = recorded_file(evaluation, config)
    if "recorded" in modes and recorded is not None and recorded.is_file():
        inputs.append(file_hash(recorded))
    key = evaluation.key("answers", *inputs)
    if "llm" not in modes and not config.validators:
        return evaluation.memo(
            "answers",
            key,
            lambda: {
                name: part
                for name, part in _made(runs, config, questions, modes).items()
                if name != "usage"
            },
        )
    # replies come from the cache where they are known, what failed is asked again, and a validator is code that may have changed: such answers
    # are made by every run and kept by what they are
    parts = _made(runs, config, questions, modes)
    runs.answer_usage = parts.pop(
        "usage"
    )  # of this run, whatever earlier runs paid for the same answers
    return evaluation.memo(
        "answers",
        evaluation.key("answers", key, parts["about"]["hash"], parts["rejected"]),
        lambda: parts,
    )


def answers_hash(frames: Mapping[str, pd.DataFrame]) -> str:
    """Hash of what was answered and cited from what; tokens depend on the cache and are no part of it."""
    return digest(
        [
            frames["answers"].drop(columns=["tokens_in", "tokens_out"]).to_json(orient="split"),
            *(frames[name].to_json(orient="split") for name in ("cited", "evidence")),
        ]
    )


def _tools(
    runs: Runs,
    config: Answers,
    questions: Sequence[Question],
    modes: set[Mode],
    chat: ChatClient | None,
) -> tuple[Tools, _Stated]:
    """What answering works with, and the payloads that recorded outputs state."""
    evaluation = runs.evaluation
    corpus, chunks = corpus_snapshot(evaluation), admitted_chunks(evaluation).frame("chunks")
    documents = corpus.frame("documents")
    stored = StoredRetrieval(runs, answers_strategy(evaluation, config))
    library = Library(
        documents,
        corpus.frame("sections"),
        chunks,
        index_hash=stored.index_hash,
        embed_model=stored.embed_model,
    )
    extract = (
        extractor(
            config,
            _indexed_texts(chunks),
            runs.opened().index.source(answers_embedding(runs, config)),
            answers_expansion(runs, config),
        )
        if "deterministic" in modes
        else None
    )
    recorded: dict[str, Answer] | None = None
    stated: _Stated = {}
    path = recorded_file(evaluation, config)
    if "recorded" in modes and path is not None:
        maker = RecordedAnswers(documents, chunks, stored.index_hash, stored.embed_model)
        outputs, query_ids = (
            read_outputs(path),
            [
                question.query_id
                for question in questions
                if plan(question, config).mode == "recorded"
            ],
        )
        recorded = {
            answer.query_id: answer for answer in recorded_answers(query_ids, outputs, maker)
        }
        stated = {
            query_id: [[place, dict(payload)] for place, payload in found.items()]
            for query_id, found in recorded_payloads(query_ids, outputs, maker).items()
        }
    return Tools(
        library,
        stored,
        extract,
        chat,
        recorded,
        concurrency=_endpoint(evaluation, config).concurrency if chat else 1,
        withheld=withheld(evaluation)[0],
    ), stated


def _indexed_texts(chunks: pd.DataFrame) -> list[str]:
    """Chunks as they are indexed: the title, then the text."""
    return [
        f"{title} {text}".strip()
        for title, text in zip(chunks["title"].tolist(), chunks["text"].tolist(), strict=True)
    ]


def _made(
    runs: Runs, config: Answers, questions: Sequence[Question], modes: set[Mode]
) -> dict[str, Any]:
    evaluation = runs.evaluation
    endpoint = _endpoint(evaluation, config) if "llm" in modes else None
    chat = (
        ChatClient(endpoint, ChatCache(evaluation.settings.home / KEPT_CHAT)) if endpoint else None
    )
    tools, stated = _tools(runs, config, questions, modes, chat)
    with evaluation.progress.step(
        f"Answering ({', '.join(sorted(modes))})", len(questions), "questions"
    ) as advance:
        try:
            made = answer_questions(
                questions,
                config,
                tools,
                Events(lambda line: advance(1) if line.startswith(DONE) else None),
            )
        except EmptyEvidenceError as error:
            raise InputError(
                Problem(
                    "empty_evidence",
                    quoted(str(error), 2000),
                    field="answers.strict_fail_on_empty_evidence",
                    found=f"{len(error.query_ids)} questions",
                )
            ) from error
    frames = to_frames(made.answers)
    return {
        **frames,
        "preflights": list(made.preflights),
        "rejected": list(made.rejected),
        "stated": stated,
        "events.log": "".join(f"{line}\n" for line in made.events).encode(),
        "about": {
            **_about(runs, config, made, modes),
            "hash": answers_hash(frames),
            "model": endpoint.model if endpoint else "",
        },
        "usage": _usage(chat, len(questions)),
    }


def _about(runs: Runs, config: Answers, made: AnswerRun, modes: set[Mode]) -> dict[str, Any]:
    embedding = (
        runs.opened().index.source(answers_embedding(runs, config)).model
        if "deterministic" in modes
        else ""
    )
    return {
        "strategy": answers_strategy(runs.evaluation, config),
        "modes": sorted(modes),
        "embedding": embedding,
        "counts": made.counts,
    }


def _usage(chat: ChatClient | None, n_questions: int) -> dict[str, Any]:
    """What the endpoint was asked for and what the cache saved; empty where no model answers. `cost_per_1k` is what 1,000 questions cost without the cache."""
    if chat is None:
        return {}
    totals = chat.totals()
    names = (
        "requests",
        "retries",
        "cached",
        "tokens_in",
        "tokens_out",
        "saved_tokens_in",
        "saved_tokens_out",
        "usage_missing",
        "cost",
        "saved_cost",
    )
    return {
        **{name: getattr(totals, name) for name in names},
        "n_questions": n_questions,
        "cost_per_1k": 1000 * (totals.cost + totals.saved_cost) / max(n_questions, 1),
    }
