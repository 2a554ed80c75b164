"""The lint command: list every problem of a gold set, also of the names and files it needs.

A run meets each name where it is used, after minutes of work. `rag-eval lint` asks for all at once.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

from rag_eval.answers.evidence import apply_override
from rag_eval.answers.plugins import load_plugins
from rag_eval.core.errors import InputError, Problem, ProblemList
from rag_eval.core.settings import ChatVerifier
from rag_eval.corpus.loaders.recorded import read_outputs
from rag_eval.gold.configuration import CONFIG_FILE
from rag_eval.gold.lint import blocked_problems, identical_ids, lint, sparse_sections
from rag_eval.gold.loading import GoldSet, read_gold, variants
from rag_eval.gold.resolving import resolve as resolve_gold
from rag_eval.pipeline.corpus import (
    AdmittedChunks,
    CorpusChunks,
    CorpusSnapshot,
    find_blocked_gold,
)
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.stages import open_runner
from rag_eval.retrieval.embedders import read_vectors
from rag_eval.retrieval.external import read_run
from rag_eval.retrieval.outside import Outside
from rag_eval.retrieval.strategies import find_reranker


def list_unmet_needs(evaluation: Evaluation, gold: GoldSet) -> list[Problem]:
    """List the problems of names and files that a run of the gold set would refuse."""
    problems = ProblemList()
    place = str(evaluation.base / CONFIG_FILE)
    for need in (*_needs_of_strategies(evaluation, gold), *_needs_of_answers(evaluation, gold)):
        try:
            need()
        except InputError as error:
            problems.extend(
                dataclasses.replace(problem, file=problem.file or place)
                for problem in error.problems
            )
    return list(problems.listed())


def _needs_of_strategies(evaluation: Evaluation, gold: GoldSet) -> Iterator[Callable[[], object]]:
    settings, base = evaluation.settings, evaluation.base
    for spec in evaluation.config.strategies:
        if isinstance(spec, Outside):
            yield partial(spec.source_kind, settings)
        for field, name in spec.files().items():
            if field == "run_file":
                yield partial(read_run, base / name, variants(gold))
            else:
                yield partial(_read_outputs, evaluation, name)
        if spec.rerank is not None and spec.rerank.kind != "mmr":
            yield partial(find_reranker, spec.rerank.kind, settings.rerankers)
        for embedding in spec.embeddings().values():
            if embedding.vectors is not None:
                yield partial(read_vectors, base / embedding.vectors)
        if spec.chats_with is not None:
            field = f"strategies.{spec.name}.endpoint"
            yield partial(settings.find_endpoint, spec.chats_with, field)


def _needs_of_answers(evaluation: Evaluation, gold: GoldSet) -> Iterator[Callable[[], object]]:
    settings, answers = evaluation.settings, evaluation.config.answers
    if answers is None:
        return
    overrides = [gold.overrides.get(query_id) for query_id in gold.queries["query_id"]]
    asked = [apply_override(answers, override) for override in dict.fromkeys(overrides)]
    modes = {question_answers.mode for question_answers in asked or [answers]}
    yield partial(load_plugins, answers)
    if "llm" in modes:
        yield partial(settings.find_endpoint, answers.endpoint, "answers.endpoint")
    if "recorded" in modes and answers.recorded is not None:
        yield partial(_read_outputs, evaluation, answers.recorded)
    verifier = settings.verifiers.get(answers.verifier or "")
    if isinstance(verifier, ChatVerifier):
        field = f"verifiers.{answers.verifier}.endpoint"
        yield partial(settings.find_endpoint, verifier.endpoint, field)
    if settings.feature_ragas_eval:
        yield partial(settings.find_endpoint, answers.endpoint, "answers.endpoint")


def _read_outputs(evaluation: Evaluation, name: str) -> None:
    """Read recorded outputs, unless they are the corpus, which is read anyway."""
    if name not in evaluation.config.corpus.files().values():
        problems = ProblemList()
        read_outputs(evaluation.base / name, problems)
        problems.raise_errors()


def lint_gold_set(evaluation: Evaluation) -> list[Problem]:
    """Check a gold set against the current corpus.

    Faulty files are checked as far as they can be read. A gold set without errors is also checked
    against the poisoning guard. Raises InputError if the corpus cannot be used.
    """
    runner = open_runner(evaluation)
    gold = read_gold(evaluation.base, evaluation.config)
    unmet = list_unmet_needs(evaluation, gold)
    try:
        corpus = runner.get(CorpusSnapshot)
    except InputError as error:
        raise InputError([*unmet, *error.problems]) from error
    documents, sections = corpus.documents, corpus.sections
    problems = [*unmet, *lint(gold, documents, sections)]
    if any(problem.severity == "error" for problem in problems):
        return problems
    try:
        admitted = runner.get(AdmittedChunks)
    except InputError as error:
        return [*problems, *error.problems]
    qrels = resolve_gold(gold, documents, sections, admitted.chunks).qrels
    blocked = find_blocked_gold(qrels["document"], runner.get(CorpusChunks), admitted)
    sparse = sparse_sections(qrels["section"]) if gold.layout == "own" else []
    identical = (
        [] if evaluation.config.ignore_identical_ids else identical_ids(gold.queries, documents)
    )
    return [*problems, *sparse, *blocked_problems(blocked), *identical]
