"""Open gold sets, BEIR folders and recorded outputs of other systems for evaluation."""

import re
from pathlib import Path

from rag_eval.core.config import GoldSetConfig
from rag_eval.core.errors import InputError, Problem
from rag_eval.core.parts import Embedding
from rag_eval.core.rows import find_file
from rag_eval.core.settings import Settings
from rag_eval.gates.verdict import find_faults
from rag_eval.gold.configuration import discover, load_config, permitted
from rag_eval.pipeline.evaluation import Evaluation, Progress


def adjust(
    config: GoldSetConfig, strategies: tuple[str, ...] = (), vectors: Path | None = None
) -> GoldSetConfig:
    """Keep only the named strategies, and optionally read all vectors from a file.

    Raises InputError if a strategy does not exist, or if an iterative strategy needs vectors of
    texts that the file lacks.
    """
    names = [strategy.name for strategy in config.strategies]
    if unknown := ", ".join(name for name in strategies if name not in names):
        message, accepted = f"{config.name} has no such strategy", ", ".join(names)
        raise InputError.of(
            "unknown_strategy", message, field="--strategy", found=unknown, accepted=accepted
        )
    # An iterative strategy searches with its base strategy, so the base stays too.
    bases = {strategy.base_name for strategy in config.strategies if strategy.name in strategies}
    chosen = [
        strategy
        for strategy in config.strategies
        if not strategies or strategy.name in strategies or strategy.name in bases
    ]
    if vectors is not None:
        if not vectors.is_file():
            raise InputError.of("vectors_missing", "no such file", vectors, field="--vectors")
        embedding = Embedding(vectors=str(vectors.resolve()))
        chosen = [strategy.with_embedding(embedding) for strategy in chosen]
    left = {strategy.name for strategy in chosen}
    primary = config.primary if config.primary in left else None
    answers = config.answers
    # Without the strategy of the answers, the primary strategy gives the evidence.
    if answers is not None and answers.strategy not in left:
        answers = answers.model_copy(update={"strategy": None})
    adjusted = config.model_copy(
        update={"strategies": tuple(chosen), "primary": primary, "answers": answers}
    )
    accepted = "strategies without such rounds, named with --strategy"
    if faults := [
        Problem("vectors_of_rounds", fault, field="--vectors", accepted=accepted)
        for strategy in chosen
        if (fault := adjusted.vectors_of_rounds(strategy))
    ]:  # pydantic does not validate a copy
        raise InputError(faults)
    return adjusted


def select_gold_sets(gold_sets: Path, names: list[str], *, every: bool = False) -> list[Path]:
    """Return the folders of the named gold sets; default: the gold sets of the nightly job.

    `every` selects all gold sets when no name is given. Raises InputError if a name does not exist,
    or if there is no gold set.
    """
    folders = discover(gold_sets)
    if unknown := ", ".join(name for name in names if name not in folders):
        accepted = ", ".join(folders) or "none is here"
        raise InputError.of(
            "unknown_gold_set", "no such gold set", gold_sets, found=unknown, accepted=accepted
        )
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
    partial = bool(strategies or vectors)
    return Evaluation(config, folder, settings, progress=progress or Progress(), partial=partial)


def _make_name(*parts: str) -> str:
    """Make a valid name of a gold set from the names of files."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", "-".join(parts)).strip("-_")[:64] or "unnamed"


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
    config = GoldSetConfig.model_validate(
        {
            "name": _make_name(folder.resolve().name, split),
            "version": split,
            "corpus": {"loader": "beir", "path": ".", "mask_pii": vectors is None},
            "k": (1, 5, 10, 20, 100),
            "seeds": (13,),
            "strategies": [{"name": kind, "kind": kind} for kind in ("bm25", "vector", "hybrid")],
            "nightly": False,
        }
    )
    config = adjust(_permit(config, folder, settings), strategies, vectors)
    progress = progress or Progress()
    return Evaluation(config, folder, settings, split=split, progress=progress, known=False)


OUTPUTS_FILE = "outputs.jsonl"


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
    stem = outputs.parent.resolve().name if outputs.name == OUTPUTS_FILE else outputs.stem
    config = GoldSetConfig.model_validate(
        {
            "name": _make_name(stem),
            "corpus": {"loader": "recorded", "path": outputs.name},
            "k": (1, 5, 10, 20),
            "seeds": (13,),
            "strategies": ({"name": "recorded", "kind": "external", "recorded": outputs.name},),
            "answers": {"mode": "recorded", "recorded": outputs.name},
            "nightly": False,
        }
    )
    config = _permit(config, outputs.parent, settings)
    return Evaluation(
        config, outputs.parent, settings, progress=progress or Progress(), known=False
    )
