"""Open gold sets, BEIR folders and recorded outputs for evaluation, with stores and progress."""

import contextlib
import dataclasses
import functools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rag_eval.core.config import (
    BinaryTarget,
    GoldSetConfig,
    Status,
)
from rag_eval.core.errors import Embedding, InputError, Problem, quoted
from rag_eval.core.settings import Settings
from rag_eval.corpus.loaders.recorded import read_outputs
from rag_eval.gold.configuration import discover, gold_set_name, load_config, permitted
from rag_eval.retrieval.embedding.source import Places
from rag_eval.retrieval.kinds.external import Sources
from rag_eval.storage.artifacts import ArtifactStore, write_text
from rag_eval.storage.hashing import canonical_json, digest
from rag_eval.uncertainty.drift import NAME_DIGITS, Drift, WatchState

if TYPE_CHECKING:
    from rich.console import Console

# ---- Stored calibrators: immutable JSON files, the accepted calibrators, and drift watches.

MAX_BYTES: Final = 100_000_000
_ID = re.compile(r"[0-9a-f]{16,64}")
_MOMENT: Final = r"^([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,15}Z)?$"
"""Pattern of a time in the format of outcomes, or of an empty text."""


class Accepted(BaseModel):
    """The calibrator of a strategy's claims, and its status."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    calibrator_id: str = Field(pattern=r"^[0-9a-f]{16,64}$")
    strategy_fingerprint: str
    status: Status
    at: str


def calibrator_id(body: dict[str, Any]) -> str:
    """Hash a calibrator without its creation time."""
    return digest(
        {
            key: value
            for key, value in body.items()
            if key not in {"calibrator_id", "fitted_at", "fitted_until"}
        },
        32,
    )


def keep_calibrator(home: Path, body: dict[str, Any]) -> str:
    """Write a new calibrator, and return its id."""
    name = calibrator_id(body)
    path = home / "calibrators" / f"{name}.json"
    if not path.is_file():
        write_text(path, f"{canonical_json({**body, 'calibrator_id': name})}\n")
    return name


def read_calibrator(home: Path, name: str) -> dict[str, Any]:
    """Read a calibrator.

    Raises
    ------
    InputError
        The file is absent or was changed.
    """
    path = home / "calibrators" / f"{name}.json"
    if not _ID.fullmatch(name) or not path.is_file() or path.stat().st_size > MAX_BYTES:
        raise InputError(
            Problem(
                "calibrator_missing",
                "there is no calibrator of this id",
                file=str(home / "calibrators"),
                found=name,
                accepted="an id that rag-eval calibrate shows",
            )
        )
    body: Any = None
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        whole = isinstance(body, dict) and body.get("calibrator_id") == name == calibrator_id(body)
    except (ValueError, RecursionError):
        # The file is no JSON, has numbers outside JSON, or is nested too deep.
        whole = False
    if not whole:
        raise InputError(
            Problem(
                "calibrator_damaged",
                "not as it was written; move it away and run rag-eval calibrate",
                file=str(path),
                found=name,
            )
        )
    kept: dict[str, Any] = body
    return kept


def _path(  # noqa: PLR0917 - the parts of a path, in their order
    home: Path,
    folder: Literal["accepted", "watches"],
    gold_set: str,
    strategy: str,
    target: BinaryTarget,
    k: int,
) -> Path:
    return (
        home
        / "calibrators"
        / folder
        / gold_set_name(gold_set)
        / gold_set_name(strategy)
        / f"{target}@{k}.json"
    )


def accept_calibrator(
    home: Path, gold_set: str, strategy: str, target: BinaryTarget, k: int, *, accepted: Accepted
) -> None:
    """Set the calibrator for later runs. The caller must hold the lock of the home."""
    write_text(
        _path(home, "accepted", gold_set, strategy, target, k),
        f"{canonical_json(accepted.model_dump(mode='json'))}\n",
    )


def accepted_calibrator(
    home: Path, gold_set: str, strategy: str, target: BinaryTarget, k: int
) -> Accepted | None:
    """Read the accepted calibrator; None without one.

    Raises
    ------
    InputError
        The file was changed.
    """
    path = _path(home, "accepted", gold_set, strategy, target, k)
    if not path.is_file():
        return None
    try:
        return Accepted.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise InputError(
            Problem(
                "accepted_damaged",
                "not as it was written; move it away and run rag-eval calibrate",
                file=str(path),
                found=error.errors()[0]["msg"],
            )
        ) from None


class _Watch(BaseModel):
    """The stored state of a drift watch; fields as in `WatchState`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    fingerprint: str = Field(min_length=1)
    drift: dict[str, Any]
    since: str = Field(pattern=_MOMENT)
    fed: frozenset[Annotated[str, Field(pattern=rf"^[0-9a-f]{{{NAME_DIGITS}}}$")]]
    demoted_at: str = Field(pattern=_MOMENT)


def keep_watch(
    home: Path, gold_set: str, strategy: str, target: BinaryTarget, k: int, *, state: WatchState
) -> None:
    """Store the state of a drift watch atomically. The caller must hold the lock of the home."""
    body = {
        "schema_version": 1,
        "fingerprint": state.fingerprint,
        "drift": state.drift.to_json(),
        "since": state.since,
        "fed": sorted(state.fed),
        "demoted_at": state.demoted_at,
    }
    write_text(_path(home, "watches", gold_set, strategy, target, k), f"{canonical_json(body)}\n")


def kept_watch(
    home: Path, gold_set: str, strategy: str, target: BinaryTarget, k: int
) -> WatchState | None:
    """Read the state of a drift watch; None without one.

    Raises
    ------
    InputError
        The file was changed.
    """
    path = _path(home, "watches", gold_set, strategy, target, k)
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_BYTES:
        raise _watch_damaged(path, f"more than {MAX_BYTES:,} bytes")
    try:
        read = _Watch.model_validate_json(path.read_bytes())
        drift = Drift.from_json(read.drift)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise _watch_damaged(path, message) from None
    except ValueError as error:
        raise _watch_damaged(path, str(error)) from None
    if not read.fed.issuperset(drift.groups):
        raise _watch_damaged(path, "groups that were never fed")
    return WatchState(read.fingerprint, drift, read.since, read.fed, read.demoted_at)


def _watch_damaged(path: Path, found: str) -> InputError:
    return InputError(
        Problem(
            "drift_damaged",
            "not as it was written; move it away, and the watch starts anew from the outcomes",
            file=str(path),
            found=quoted(found, 200),
        )
    )


# ---- Progress of slow steps: a bar on a terminal, plain lines in a log, or nothing.

LINE_EVERY_S = 5.0


class Advance(Protocol):
    """Callback for progress: the number of new units, and a note on the units so far."""

    def __call__(self, count: int, note: str = "", /) -> None:
        """Show progress."""
        ...


class Progress(Protocol):
    """Display of progress."""

    def step(
        self, title: str, total: int | None = None, unit: str = ""
    ) -> contextlib.AbstractContextManager[Advance]:
        """Open a step. The context manager gives a callback that takes the number of new units."""
        ...


class Silent:
    """Progress display that shows nothing."""

    @contextlib.contextmanager
    def step(
        self,
        title: str,  # noqa: ARG002 - the protocol's signature
        total: int | None = None,  # noqa: ARG002 - of the protocol
        unit: str = "",  # noqa: ARG002 - of the protocol
    ) -> Iterator[Advance]:
        """Run the step."""
        yield lambda _, __="": None


class Lines:
    """Plain lines for a log: at the start of a step, every few seconds, and at its end.

    The last line has the duration.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    @contextlib.contextmanager
    def step(self, title: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        """Run the step between its two lines."""
        started = last = time.monotonic()
        done, said = 0, ""

        def advance(count: int, note: str = "", /) -> None:
            nonlocal done, last, said
            done += count
            said = f", {note}" if note else ""
            if time.monotonic() - last > LINE_EVERY_S:
                last = time.monotonic()
                self._write(
                    f"  {title}: {done:,}{f' of {total:,}' if total else ''} {unit}".rstrip() + said
                )

        self._write(f"{title}{f' ({total:,} {unit})' if total else ''} ...")
        yield advance
        self._write(f"  {title}: done in {time.monotonic() - started:.1f} s{said}")


class Bars:
    """One bar per step on a terminal."""

    def __init__(self, console: "Console") -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )
        from rich.progress import Progress as RichProgress

        self._bars = RichProgress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=False,
        )
        self._open = 0

    @contextlib.contextmanager
    def step(
        self,
        title: str,
        total: int | None = None,
        unit: str = "",  # noqa: ARG002 - bars show counts without their unit
    ) -> Iterator[Advance]:
        """Run the step under a bar. Nested steps share one display."""
        if self._open == 0:
            self._bars.start()
        self._open += 1
        task = self._bars.add_task(title, total=total or 1)
        try:

            def advance(count: int, note: str = "", /) -> None:
                if total:
                    self._bars.update(
                        task, advance=count, description=f"{title} ({note})" if note else title
                    )

            yield advance
            self._bars.update(task, completed=total or 1)
        finally:
            self._open -= 1
            if self._open == 0:
                self._bars.stop()
                for done in self._bars.task_ids:
                    self._bars.remove_task(done)


# ---- Evaluations: a gold set folder or any BEIR folder, and the stores for its results.

if TYPE_CHECKING:
    from rag_eval.pipeline.runner import Runner

BEIR_STRATEGIES: tuple[dict[str, Any], ...] = (
    {"name": "bm25", "kind": "bm25"},
    {"name": "vector", "kind": "vector"},
    {"name": "hybrid", "kind": "hybrid"},
)
BEIR_K = (1, 5, 10, 20, 100)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One gold set with the places for its results.

    Parameters
    ----------
    config
        Configuration of the gold set.
    base
        Base folder of relative paths in the configuration.
    settings
        The installation's settings.
    split
        Judged split of a plain BEIR folder; else None.
    progress
        Display of progress.
    known
        Whether the gold set is a partition of the asset graph.
    partial
        Whether strategies were left out or their vectors were replaced. The report of a partial
        evaluation never represents the configured gold set.
    use_record
        Whether to read the last recorded results of inputs that this process has not made. A step
        of a Dagster job does this.
    tags
        Tags of the MLflow run.
    """

    config: GoldSetConfig
    base: Path
    settings: Settings
    split: str | None = None
    progress: Progress = dataclasses.field(default_factory=Silent)
    partial: bool = False
    known: bool = True
    use_record: bool = False
    tags: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def store(self) -> ArtifactStore:
        """The artifact store of the home."""
        return ArtifactStore(self.settings.home / "artifacts")

    @functools.cached_property
    def sources(self) -> Sources:
        """The outside sources of the strategies."""
        return Sources(self.settings)

    @property
    def is_recorded(self) -> bool:
        """Whether later processes may find the results by the name of the gold set."""
        return self.known and not self.partial

    @property
    def is_primary(self) -> bool:
        """Whether the top of the folder of reports also shows this report."""
        return self.is_recorded and self.config.name == self.settings.primary_gold_set

    @functools.cached_property
    def runner(self) -> "Runner":
        """The runner of the stages."""
        from rag_eval.pipeline.runner import Runner
        from rag_eval.pipeline.stages import STAGES
        from rag_eval.pipeline.versions import shared_versions

        versions = shared_versions(self.settings.home)
        return Runner(self, STAGES, versions, use_record=self.use_record)

    @property
    def places(self) -> Places:
        """The folders of embeddings, and the store of fitted models."""
        return Places(self.base, self.settings.home / "embeddings", self.store)

    @property
    def reports(self) -> Path:
        """The gold set's own folder of reports."""
        return self.settings.reports / self.config.name


def adjust(
    config: GoldSetConfig, strategies: tuple[str, ...] = (), vectors: Path | None = None
) -> GoldSetConfig:
    """Keep only the named strategies, and optionally read all vectors from a file.

    Raises
    ------
    InputError
        A strategy or the file does not exist, or an iterative strategy needs vectors of texts that
        the file lacks.
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
    # An iterative strategy searches with its base strategy, so the base stays too.
    bases = {strategy.base_name for strategy in config.strategies if strategy.name in strategies}
    kept = [
        strategy
        for strategy in config.strategies
        if not strategies or strategy.name in strategies or strategy.name in bases
    ]
    if vectors is not None:
        embedding = Embedding(vectors=str(vectors.resolve()))
        kept = [strategy.with_embedding(embedding) for strategy in kept]
    left = {strategy.name for strategy in kept}
    primary = config.primary if config.primary in left else None
    answers = config.answers
    # Without the strategy of the answers, the primary strategy gives the evidence.
    if answers is not None and answers.strategy not in left:
        answers = answers.model_copy(update={"strategy": None})
    adjusted = config.model_copy(
        update={"strategies": tuple(kept), "primary": primary, "answers": answers}
    )
    faults = [fault for strategy in kept if (fault := adjusted.vectors_of_rounds(strategy))]
    if faults:  # pydantic does not validate a copy
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
    """Return the folders of the named gold sets; default: the gold sets of the nightly job.

    `every` selects all gold sets when no name is given.

    Raises
    ------
    InputError
        A name does not exist, or there is no gold set.
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


def permit(config: GoldSetConfig, folder: Path, settings: Settings) -> GoldSetConfig:
    """Check that a configuration stays within the limits of the settings.

    Raises
    ------
    InputError
        `outside_gold_set`, `unknown_embedding`.
    """
    known = {
        name: Embedding.from_settings(entry.function, entry.config)
        for name, entry in settings.embeddings.items()
    }
    return permitted(config, folder, settings.corpus_roots, known)


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
    config = adjust(permit(load_config(folder), folder, settings), strategies, vectors)
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
    """Open any BEIR folder: `corpus.jsonl`, `queries.jsonl`, `qrels/<split>.tsv`.

    The strategies are bm25, vector and hybrid over whole documents. A file of vectors switches
    masking off, because its vectors are keyed by the exact texts.

    Raises
    ------
    InputError
        The folder is no BEIR folder.
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
            "corpus": {"loader": "beir", "path": ".", "mask_pii": vectors is None},
            "k": BEIR_K,
            "seeds": (13,),
            "strategies": BEIR_STRATEGIES,
            "nightly": False,
        }
    )
    config = adjust(permit(config, folder, settings), strategies, vectors)
    return Evaluation(
        config, folder, settings, split=split, progress=progress or Silent(), known=False
    )


# ---- Recorded outputs of another system: no corpus, and gold only in the same folder.

OUTPUTS_FILE = "outputs.jsonl"
STRATEGY = "recorded"
GOLD_FILES = frozenset(
    {"queries.jsonl", "answers.jsonl", "evidence.jsonl", "paraphrases.jsonl", "corpus.jsonl"}
)
"""File names of gold. In a folder, these files are never taken for outputs."""
K = (1, 5, 10, 20)


def outputs_file(place: Path) -> Path:
    """Find the file of outputs.

    `place` is the file itself or a folder. A folder has the file `outputs.jsonl`, or a single
    .jsonl file besides the files of gold.

    Raises
    ------
    InputError
        `no_outputs`, `several_outputs`.
    """
    if place.is_file():
        return place
    if (place / OUTPUTS_FILE).is_file():
        return place / OUTPUTS_FILE
    found = (
        sorted(path for path in place.glob("*.jsonl") if path.name not in GOLD_FILES)
        if place.is_dir()
        else []
    )
    if len(found) == 1:
        return found[0]
    accepted = (
        f"a .jsonl file, or a folder with {OUTPUTS_FILE} or a single .jsonl file beside the gold"
    )
    if found:
        raise InputError(
            Problem(
                "several_outputs",
                "which of these files holds the outputs?",
                str(place),
                field="--recorded",
                found=", ".join(path.name for path in found[:20]),
                accepted=accepted,
            )
        )
    raise InputError(
        Problem(
            "no_outputs",
            "there are no recorded outputs",
            str(place),
            field="--recorded",
            accepted=accepted,
        )
    )


def recorded_configuration(outputs: Path) -> dict[str, Any]:
    """Build the configuration of recorded outputs.

    The contexts are the corpus, their order is the only ranking, and the answers are the recorded
    ones.
    """
    stem = outputs.parent.resolve().name if outputs.name == OUTPUTS_FILE else outputs.stem
    return {
        "name": re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:64] or "recorded",
        "description": "recorded outputs; the contexts are the corpus",
        "corpus": {"loader": "recorded", "path": outputs.name},
        "k": K,
        "seeds": (13,),
        "strategies": ({"name": STRATEGY, "kind": "external", "recorded": outputs.name},),
        "answers": {"mode": "recorded", "recorded": outputs.name},
        "nightly": False,
    }


def open_recorded(
    place: Path, settings: Settings, *, progress: Progress | None = None
) -> Evaluation:
    """Open recorded outputs for evaluation.

    Parameters
    ----------
    place
        The .jsonl file, or a folder with it. `queries.jsonl`, `qrels.tsv` and `answers.jsonl` in
        the same folder are the gold. Without them the outputs give the questions, and figures
        that need judgements are null.

    Raises
    ------
    InputError
        There are no outputs, they cannot be read, or none has a context.
    """
    outputs = outputs_file(place)
    recorded = read_outputs(outputs)
    if not any(context.text for output in recorded for context in output.contexts):
        raise InputError(
            Problem(
                "empty_corpus",
                "no output has a context with a text,"
                " so there is nothing that an answer could rest on",
                str(outputs),
                field="contexts",
                accepted="contexts in at least one output",
            )
        )
    try:
        config = GoldSetConfig.model_validate(recorded_configuration(outputs))
    except ValidationError as error:
        raise InputError(
            [
                Problem(
                    "bad_value",
                    str(item["msg"]),
                    str(outputs),
                    field=".".join(map(str, item["loc"])),
                )
                for item in error.errors(include_url=False)
            ]
        ) from error
    config = permit(config, outputs.parent, settings)
    return Evaluation(config, outputs.parent, settings, progress=progress or Silent(), known=False)
