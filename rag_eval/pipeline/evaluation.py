"""One gold set with the places of its results, and the progress of slow steps."""

import contextlib
import dataclasses
import functools
import json
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Protocol

from rag_eval.core.config import GoldSetConfig
from rag_eval.core.settings import Settings
from rag_eval.retrieval.embedding.source import Places
from rag_eval.retrieval.outside import Sources
from rag_eval.storage.artifacts import Artifact, ArtifactStore
from rag_eval.storage.home import Home, open_home
from rag_eval.storage.locks import WriteLock

# ---- Progress of slow steps: plain lines, or nothing.

_log = logging.getLogger(__name__)
LINE_EVERY_S = 5.0
LEFT_FROM = 0.05
"""Share of a step from which its time left is known: models are loaded before the first units."""


class Advance(Protocol):
    """Callback for progress: the number of new units, and a note on the units so far."""

    def __call__(self, count: int, note: str = "", /) -> None:
        """Show progress."""
        ...


class Progress:
    """Display of progress; this class shows nothing."""

    def step(
        self,
        title: str,  # noqa: ARG002 - of the subclasses
        total: int | None = None,  # noqa: ARG002 - of the subclasses
        unit: str = "",  # noqa: ARG002 - of the subclasses
    ) -> contextlib.AbstractContextManager[Advance]:
        """Open a step. The context manager gives a callback that takes the number of new units."""
        return contextlib.nullcontext(lambda _, __="": None)

    def say(self, line: str) -> None:
        """Show a line that a person must see, such as why the work stands still."""
        _log.warning(line)


class Lines(Progress):
    """Plain lines: at the start of a step, ever more rarely, and at the end.

    The last line has the duration. A step of less than a second has none.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    @contextlib.contextmanager
    def step(self, title: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        """Run the step between its two lines."""
        started = last = time.monotonic()
        done, remark = 0, ""

        def advance(count: int, note: str = "", /) -> None:
            nonlocal done, last, remark
            done += count
            remark = f", {note}" if note else ""
            now = time.monotonic()
            if now - last > max(LINE_EVERY_S, (now - started) / 4) and done != total:
                last, of, left = now, "", ""
                if total:
                    of = f" of {total:,}"
                if total and done >= total * LEFT_FROM:
                    left = f", about {(now - started) * (total - done) / done:.0f} s left"
                self._write(f"  {title}: {done:,}{of} {unit}".rstrip() + remark + left)

        self._write(f"{title}{f' ({total:,} {unit})' if total else ''} ...")
        yield advance
        if remark or time.monotonic() - started >= 1:
            self._write(f"  {title}: done in {time.monotonic() - started:.1f} s{remark}")

    def say(self, line: str) -> None:
        """Write the line."""
        self._write(line)


# ---- Evaluations: a gold set folder or any BEIR folder, and the stores for its results.

REPORTS = "reports"
"""Folder of a home in an object store that holds the reports of all gold sets."""


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """One gold set with the places for its results. Relative paths start from `base`."""

    config: GoldSetConfig
    base: Path
    settings: Settings
    split: str | None = None
    """Judged split of a plain BEIR folder; else None."""
    progress: Progress = dataclasses.field(default_factory=Progress)
    partial: bool = False
    """Whether strategies were left out or their vectors were replaced. The report of a partial
    evaluation never represents the configured gold set."""
    known: bool = True
    """Whether the gold set is a partition of the asset graph."""
    use_record: bool = False
    """Whether to read the last recorded results of inputs that this process has not made. A step
    of a Dagster job does this."""
    tags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Tags of the MLflow run."""

    @functools.cached_property
    def home(self) -> Home:
        """The home of all results."""
        return open_home(self.settings)

    @functools.cached_property
    def store(self) -> ArtifactStore:
        """The artifact store of the home."""
        return ArtifactStore(self.home)

    @functools.cached_property
    def lock(self) -> WriteLock:
        """The right to write this gold set's results."""
        return WriteLock(self.settings, self.config.name, self.progress.say)

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

    def record_of(self, node: str) -> str:
        """Name the file of the home that names the last artifact of a node."""
        return f"record/{self.config.name}/{node}.json"

    def find_recorded(self, node: str) -> Artifact | None:
        """Open the last recorded artifact of a node; None when it is absent or damaged."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            place = json.loads(self.home.read(self.record_of(node)))
            return self.store.whole(str(place["kind"]), str(place["key"]))
        return None

    @property
    def n_workers(self) -> int:
        """Number of processes for the shards of a large corpus."""
        return self.settings.shard_workers or os.cpu_count() or 1

    @functools.cached_property
    def pool(self) -> ProcessPoolExecutor:
        """The processes for the shards of a large corpus, which start when they get work."""
        spawn = multiprocessing.get_context("spawn")  # a fork would copy the threads of libraries
        return ProcessPoolExecutor(self.n_workers, spawn)

    def close_pool(self) -> None:
        """End the processes of the pool."""
        pool = vars(self).pop("pool", None)
        if pool is not None:
            pool.shutdown(cancel_futures=True)

    @property
    def places(self) -> Places:
        """The folders and the home of an embedding."""
        return Places(self.base, self.home)

    @property
    def reports(self) -> Path:
        """The gold set's own folder of reports."""
        return self.settings.reports / self.config.name

    @property
    def shared_reports(self) -> str:
        """Name of the folder of the reports in an object store."""
        return f"{REPORTS}/{self.config.name}"


def chosen_kinds(evaluation: Evaluation, strategy: str) -> list[str]:
    """Name the modules of kinds and rerankers of a strategy and its base, or of all strategies."""
    config, rerankers = evaluation.config, evaluation.settings.rerankers
    chosen = [spec for spec in config.strategies if strategy in {"", spec.name}]
    concerned = [*chosen, *(config.base_of(spec) for spec in chosen)]
    modules = {type(spec).__module__ for spec in concerned}
    modules |= {
        rerankers[spec.rerank.kind].partition(":")[0]
        for spec in concerned
        if spec.rerank is not None and spec.rerank.kind in rerankers
    }
    return sorted(modules)
