"""Open gold sets, BEIR folders and recorded outputs for evaluation, and check gold sets."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from rag_eval.answers.evidence import apply_override
from rag_eval.answers.plugins import load_plugins
from rag_eval.core.config import GoldSetConfig
from rag_eval.core.errors import InputError, Place, Problem, ProblemList
from rag_eval.core.parts import Embedding
from rag_eval.core.rows import find_file
from rag_eval.core.settings import ChatVerifier, Settings
from rag_eval.corpus.loaders.recorded import read_outputs
from rag_eval.gates.verdict import find_faults
from rag_eval.gold.configuration import CONFIG_FILE, discover, load_config, permitted
from rag_eval.gold.lint import identical_ids, lint, sparse_sections
from rag_eval.gold.loading import GoldSet, read_gold, variants
from rag_eval.gold.resolving import resolve as resolve_gold
from rag_eval.pipeline.corpus import (
    AdmittedChunks,
    CorpusChunks,
    CorpusSnapshot,
    find_blocked_gold,
)
from rag_eval.pipeline.evaluation import Evaluation, Progress
from rag_eval.pipeline.stages import open_runner
from rag_eval.retrieval.embedding.embedders import read_vectors
from rag_eval.retrieval.kinds.external import read_run
from rag_eval.retrieval.outside import Outside
from rag_eval.retrieval.strategies import find_reranker
from rag_eval.trust.trust_report import blocked_problems

OUTPUTS_FILE = "outputs.jsonl"

# ---- Open


def adjust(
    config: GoldSetConfig, strategies: tuple[str, ...] = (), vectors: Path | None = None
) -> GoldSetConfig:
    """Keep only the named strategies, and optionally read all vectors from a file.

    Raises InputError if a strategy does not exist, or if an iterative strategy needs vectors of
    texts that the file lacks.
    """
    by_name = {strategy.name: strategy for strategy in config.strategies}
    if unknown := ", ".join(name for name in strategies if name not in by_name):
        more: Place = {"field": "--strategy", "found": unknown, "accepted": ", ".join(by_name)}
        raise InputError.of("unknown_strategy", f"{config.name} has no such strategy", **more)
    # An iterative strategy searches with its base strategy, so the base stays too.
    left = {*strategies, *(by_name[name].base_name for name in strategies)} or by_name.keys()
    chosen = [strategy for name, strategy in by_name.items() if name in left]
    if vectors is not None:
        if not vectors.is_file():
            raise InputError.of("vectors_missing", "no such file", vectors, field="--vectors")
        embedding = Embedding(vectors=str(vectors.resolve()))
        chosen = [strategy.with_embedding(embedding) for strategy in chosen]
    answers = config.answers
    # Without the strategy of the answers, the primary strategy gives the evidence.
    if answers is not None and answers.strategy not in left:
        answers = answers.model_copy(update={"strategy": None})
    primary = config.primary if config.primary in left else None
    changes = {"strategies": tuple(chosen), "primary": primary, "answers": answers}
    adjusted = config.model_copy(update=changes)
    accepted = "strategies without such rounds, named with --strategy"
    faults = filter(None, map(adjusted.vectors_of_rounds, chosen))
    if problems := [
        Problem("vectors_of_rounds", fault, field="--vectors", accepted=accepted)
        for fault in faults
    ]:  # pydantic does not validate a copy
        raise InputError(problems)
    return adjusted


def select_gold_sets(gold_sets: Path, names: list[str], *, every: bool = False) -> list[Path]:
    """Return the folders of the named gold sets; default: the gold sets of the nightly job.

    `every` selects all gold sets when no name is given. Raises InputError if a name does not exist,
    or if there is no gold set.
    """
    folders = discover(gold_sets)
    if unknown := ", ".join(name for name in names if name not in folders):
        more: Place = {"found": unknown, "accepted": ", ".join(folders) or "none is here"}
        raise InputError.of("unknown_gold_set", "no such gold set", gold_sets, **more)
    if names:
        return [folders[name] for name in names]
    chosen = [folder for folder in folders.values() if every or load_config(folder).nightly]
    if not chosen:
        accepted = "a folder with gold_set.yaml; start one with rag-eval init"
        raise InputError.of("no_gold_set", "no gold set to run", gold_sets, accepted=accepted)
    return chosen


def _permit(config: GoldSetConfig, folder: Path, settings: Settings) -> GoldSetConfig:
    """Check that a configuration stays within the limits of the settings."""
    if config.answers is not None and config.answers.verifier is not None:
        settings.find_verifier(config.answers.verifier)
    return permitted(config, folder, settings, find_faults(config))


def open_gold_set(
    folder: Path,
    settings: Settings,
    *,
    strategies: tuple[str, ...] = (),
    vectors: Path | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Open a gold set folder. Raises InputError if the configuration cannot be used."""
    config = adjust(_permit(load_config(folder), folder, settings), strategies, vectors)
    partial_run = bool(strategies or vectors)
    return Evaluation(
        config, folder, settings, progress=progress or Progress(), partial=partial_run
    )


def _make_config(name: str, values: Mapping[str, object]) -> GoldSetConfig:
    """Make the configuration of a set without one; `name` is made valid."""
    valid = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[:64] or "unnamed"
    return GoldSetConfig.model_validate({"name": valid, "seeds": (13,), "nightly": False, **values})


def open_beir(
    folder: Path,
    split: str,
    settings: Settings,
    *,
    strategies: tuple[str, ...] = (),
    vectors: Path | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Open any BEIR folder: `corpus.jsonl`, `queries.jsonl`, `qrels/<split>.tsv`.

    The strategies are bm25, vector and hybrid over whole documents. A file of vectors switches
    masking off, because its vectors are keyed by the exact texts. Raises InputError if the folder
    is no BEIR folder.
    """
    for part in ("corpus.jsonl", "queries.jsonl"):
        if not find_file(folder / part).is_file():
            accepted = "a folder with corpus.jsonl, queries.jsonl and qrels/<split>.tsv"
            message = f"{part} is missing"
            raise InputError.of("not_beir", message, folder, field="--beir", accepted=accepted)
    kinds = ("bm25", "vector", "hybrid")
    values = {
        "version": split,
        "corpus": {"loader": "beir", "path": ".", "mask_pii": vectors is None},
        "k": (1, 5, 10, 20, 100),
        "strategies": [{"name": kind, "kind": kind} for kind in kinds],
    }
    config = _make_config(f"{folder.resolve().name}-{split}", values)
    config = adjust(_permit(config, folder, settings), strategies, vectors)
    progress = progress or Progress()
    return Evaluation(config, folder, settings, split=split, progress=progress, known=False)


def open_recorded(
    place: Path, settings: Settings, *, progress: Progress | None = None
) -> Evaluation:
    """Open recorded outputs of another system: their contexts are the corpus.

    `place` is the .jsonl file, or a folder with `outputs.jsonl`. `queries.jsonl`, `qrels.tsv` and
    `answers.jsonl` in the same folder are the gold. Without them the outputs give the questions,
    and figures that need judgements are null. Raises InputError if there are no outputs.
    """
    outputs = place if place.is_file() else place / OUTPUTS_FILE
    if not outputs.is_file():
        message, accepted = "there are no recorded outputs", f"a folder with {OUTPUTS_FILE}"
        raise InputError.of("no_outputs", message, place, field="--recorded", accepted=accepted)
    folder, file = outputs.parent, outputs.name
    values = {
        "corpus": {"loader": "recorded", "path": file},
        "k": (1, 5, 10, 20),
        "strategies": ({"name": "recorded", "kind": "external", "recorded": file},),
        "answers": {"mode": "recorded", "recorded": file},
    }
    config = _make_config(folder.resolve().name if file == OUTPUTS_FILE else outputs.stem, values)
    config = _permit(config, folder, settings)
    return Evaluation(config, folder, settings, progress=progress or Progress(), known=False)


# ---- Check. A run meets each name where it is used, after minutes of work; lint asks for all.


def _needs_of_strategies(evaluation: Evaluation, gold: GoldSet) -> Iterator[Callable[[], object]]:
    """Yield functions that raise InputError for names and files that a run would refuse."""
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
        judge = settings.ragas_endpoint or answers.endpoint
        yield partial(settings.find_endpoint, judge, "ragas_endpoint")


def _read_outputs(evaluation: Evaluation, name: str) -> None:
    """Read recorded outputs, unless they are the corpus, which is read anyway."""
    if name not in evaluation.config.corpus.files().values():
        read_outputs(evaluation.base / name, ProblemList())


def lint_gold_set(evaluation: Evaluation) -> list[Problem]:
    """Check a gold set against the current corpus.

    Faulty files are checked as far as they can be read. A gold set without errors is also checked
    against the poisoning guard. Raises InputError if the corpus cannot be used.
    """
    runner = open_runner(evaluation)
    gold, unmet = read_gold(evaluation.base, evaluation.config), ProblemList()
    place = str(evaluation.base / CONFIG_FILE)
    for need in (*_needs_of_strategies(evaluation, gold), *_needs_of_answers(evaluation, gold)):
        try:
            need()
        except InputError as error:
            unmet.extend(
                dataclasses.replace(problem, file=problem.file or place)
                for problem in error.problems
            )
    try:
        corpus = runner.get(CorpusSnapshot)
    except InputError as error:
        raise InputError([*unmet.listed(), *error.problems]) from error
    documents, sections = corpus.documents, corpus.sections
    problems = [*unmet.listed(), *lint(gold, documents, sections)]
    if any(problem.severity == "error" for problem in problems):
        return problems
    try:
        admitted = runner.get(AdmittedChunks)
    except InputError as error:
        return [*problems, *error.problems]
    qrels = resolve_gold(gold, documents, sections, admitted.chunks).qrels
    blocked = find_blocked_gold(qrels["document"], runner.get(CorpusChunks), admitted)
    problems += sparse_sections(qrels["section"]) if gold.layout == "own" else []
    problems += blocked_problems(blocked)
    if not evaluation.config.ignore_identical_ids:
        problems += identical_ids(gold.queries, documents)
    return problems
