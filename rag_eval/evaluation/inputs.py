"""What is to be evaluated: a gold set folder, or any BEIR folder; and the stores that an evaluation works with."""

import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rag_eval.evaluation.progress import Progress, Silent
from rag_eval.gold.configuration import discover, load_config
from rag_eval.gold.loading import GoldSet, load_beir_gold, load_gold
from rag_eval.records.configuration_parts import Embedding
from rag_eval.records.gold_set import Beir, GoldSetConfig, Hybrid, Iterative, Strategy, Vector
from rag_eval.records.problems import InputError, Problem
from rag_eval.retrieval.embedding.source import Places
from rag_eval.settings import Settings
from rag_eval.storage.artifacts import Artifact, ArtifactStore, Parts
from rag_eval.storage.code import code_version
from rag_eval.storage.hashing import digest

T = TypeVar("T")

BEIR_STRATEGIES: tuple[dict[str, Any], ...] = (
    {"name": "bm25", "kind": "bm25"},
    {"name": "vector", "kind": "vector"},
    {"name": "hybrid", "kind": "hybrid"},
)
BEIR_K = (1, 5, 10, 20, 100)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One gold set to be evaluated, and where its results go.

    Parameters
    ----------
    config
        What to evaluate.
    base
        Folder that relative paths of the configuration start from.
    settings
        The installation's settings.
    split
        For a plain BEIR folder: the split that is judged; else None.
    progress
        Where progress is shown.
    known
        Whether it is one of the gold sets, and so a partition of the asset graph.
    partial
        Whether strategies were left out or their vectors replaced: then its report never stands for the gold set as it is configured.
    """

    config: GoldSetConfig
    base: Path
    settings: Settings
    split: str | None = None
    progress: Progress = dataclasses.field(default_factory=Silent)
    partial: bool = False
    known: bool = True

    @functools.cached_property
    def gold(self) -> GoldSet:
        """The gold set, read and checked."""
        return (
            load_gold(self.base, self.config)
            if self.split is None
            else load_beir_gold(self.base, self.split)
        )

    @functools.cached_property
    def store(self) -> ArtifactStore:
        """The artifact store of the home."""
        return ArtifactStore(self.settings.home / "artifacts")

    @property
    def places(self) -> Places:
        """Where embeddings are read and kept."""
        return Places(self.base, self.settings.home / "embeddings", self.store)

    @property
    def reports(self) -> Path:
        """The gold set's own folder of reports."""
        return self.settings.reports / self.config.name

    @functools.cached_property
    def _made(self) -> dict[tuple[str, str], Artifact]:
        return {}

    def memo(self, stage: str, key: str, make: Callable[[], Parts]) -> Artifact:
        """Return the stored artifact or make it; within one evaluation `reused` keeps saying whether it was there at the start."""
        if (stage, key) not in self._made:
            self._made[stage, key] = self.store.memo(stage, key, make)
        return self._made[stage, key]

    @functools.cached_property
    def _results(self) -> dict[str, Any]:
        return {}

    def once(self, name: str, step: Callable[[], T]) -> T:
        """Run a step once within this evaluation; later calls get the same result."""
        if name not in self._results:
            self._results[name] = step()
        result: T = self._results[name]
        return result

    def key(self, stage: str, *parts: object) -> str:
        """Memo key of a stage: its name, the code version and everything it reads."""
        return digest([stage, code_version(), *parts])


def _with_vectors(strategy: Strategy, vectors: Path) -> Strategy:
    if isinstance(strategy, (Vector, Hybrid)):
        return strategy.model_copy(update={"embedding": Embedding(vectors=str(vectors.resolve()))})
    return strategy


def adjust(
    config: GoldSetConfig, strategies: tuple[str, ...] = (), vectors: Path | None = None
) -> GoldSetConfig:
    """Keep only the named strategies, and let vector and hybrid strategies read their vectors from a file.

    Raises
    ------
    InputError
        A name that the gold set does not have, a file that is not there, or an iterative strategy that would have to embed by it.
    """
    names = [strategy.name for strategy in config.strategies]
    unknown = [name for name in strategies if name not in names]
    if unknown:
        raise InputError(
            Problem(
                "unknown_strategy",
                f"{config.name} has no such strategy",
                field="--strategy",
                found=", ".join(unknown),
                accepted=", ".join(names),
            )
        )
    if vectors is not None and not vectors.is_file():
        raise InputError(
            Problem("vectors_missing", "no such file", file=str(vectors), field="--vectors")
        )
    bases = {
        strategy.base
        for strategy in config.strategies
        if isinstance(strategy, Iterative) and strategy.name in strategies
    }  # an iterative strategy asks its base
    kept = [
        strategy
        for strategy in config.strategies
        if not strategies or strategy.name in strategies or strategy.name in bases
    ]
    if vectors is not None:
        kept = [_with_vectors(strategy, vectors) for strategy in kept]
    left = {strategy.name for strategy in kept}
    primary = config.primary if config.primary in left else None
    answers = config.answers
    if (
        answers is not None and answers.strategy not in left
    ):  # the evidence is then that of the primary strategy, and the report says so
        answers = answers.model_copy(update={"strategy": None})
    adjusted = config.model_copy(
        update={"strategies": tuple(kept), "primary": primary, "answers": answers}
    )
    faults = [
        fault
        for strategy in kept
        if isinstance(strategy, Iterative) and (fault := adjusted.vectors_of_rounds(strategy))
    ]
    if faults:  # a copy is not checked as a configuration is
        raise InputError(
            [
                Problem(
                    "vectors_of_rounds",
                    fault,
                    field="--vectors",
                    accepted="strategies without such rounds, named with --strategy",
                )
                for fault in faults
            ]
        )
    return adjusted


def select_gold_sets(gold_sets: Path, names: list[str], *, every: bool = False) -> list[Path]:
    """Choose folders of gold sets: those named, else all of the nightly job (or all there are).

    Raises
    ------
    InputError
        A name that is not there, or none to choose from.
    """
    there = discover(gold_sets)
    unknown = [name for name in names if name not in there]
    if unknown:
        raise InputError(
            Problem(
                "unknown_gold_set",
                "no such gold set",
                file=str(gold_sets),
                found=", ".join(unknown),
                accepted=", ".join(there) or "none is here",
            )
        )
    if names:
        return [there[name] for name in names]
    chosen = [folder for folder in there.values() if every or load_config(folder).nightly]
    if not chosen:
        raise InputError(
            Problem(
                "no_gold_set",
                "no gold set to run",
                file=str(gold_sets),
                accepted="a folder with gold_set.yaml; start one with rag-eval init",
            )
        )
    return chosen


def open_gold_set(
    folder: Path,
    settings: Settings,
    *,
    strategies: tuple[str, ...] = (),
    vectors: Path | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Open a gold set folder for evaluation.

    Raises
    ------
    InputError
        The configuration cannot be used.
    """
    config = adjust(load_config(folder), strategies, vectors)
    return Evaluation(
        config, folder, settings, progress=progress or Silent(), partial=bool(strategies or vectors)
    )


def open_beir(
    folder: Path,
    split: str,
    settings: Settings,
    *,
    strategies: tuple[str, ...] = (),
    vectors: Path | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Open any BEIR folder: `corpus.jsonl`, `queries.jsonl`, `qrels/<split>.tsv`; bm25, vector and hybrid over whole documents.

    With a file of vectors nothing is masked: its vectors are keyed by the exact texts, and a masked text would have none.

    Raises
    ------
    InputError
        It is not a BEIR folder.
    """
    for part in ("corpus.jsonl", "queries.jsonl"):
        if not (folder / part).is_file():
            raise InputError(
                Problem(
                    "not_beir",
                    f"{part} is missing",
                    file=str(folder),
                    field="--beir",
                    accepted="a folder with corpus.jsonl, queries.jsonl and qrels/<split>.tsv",
                )
            )
    name = (
        re.sub(r"[^A-Za-z0-9_-]+", "-", f"{folder.resolve().name}-{split}").strip("-_")[:64]
        or "beir"
    )
    config = GoldSetConfig.model_validate(
        {
            "name": name,
            "version": split,
            "corpus": Beir(loader="beir", path=".", mask_pii=vectors is None).model_dump(),
            "k": BEIR_K,
            "seeds": (13,),
            "strategies": BEIR_STRATEGIES,
            "nightly": False,
        }
    )
    return Evaluation(
        adjust(config, strategies, vectors),
        folder,
        settings,
        split=split,
        progress=progress or Silent(),
        known=False,
    )
