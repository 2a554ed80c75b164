"""Remove unused files from a home.

Roots are the remaining kept runs and the newest results of every gold set (`record/`). Every
accepted baseline is a run that stays. An artifact stays when a root names it, or when an artifact
that stays was made from it.
Outcomes, calibrators, baselines, accepted manifests and chat replies are never touched.
"""

import dataclasses
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from rag_eval.core.settings import Settings
from rag_eval.pipeline.history import RUNS
from rag_eval.pipeline.stages import STAGES
from rag_eval.retrieval.embedding.source import EMBEDDINGS, MODEL_FILE
from rag_eval.storage.artifacts import ARTIFACT_FILE, ARTIFACTS
from rag_eval.storage.home import DAMAGED, HOME_FOLDERS, PARTIAL, Home, open_home
from rag_eval.storage.locks import WriteLock

_KEY: Final = re.compile(r"[0-9a-f]{16,64}")
A_DAY_S: Final = 86_400.0
"""Age in seconds at which an object store's files may go: a run may still need younger ones."""


@dataclasses.dataclass(frozen=True)
class Freed:
    """Number of removed files and folders of one kind, and their size in bytes."""

    what: str
    count: int
    size: int


def clean(settings: Settings, keep: int | None = None) -> list[Freed]:
    """Remove old runs, the artifacts that only they need, and leftovers of killed runs.

    `keep` is the number of runs of each gold set that stay; default: all. In an object store,
    artifacts of the last day stay, because other workers may need them. Raises InputError
    (`home_busy`) if runs still write to the home after `wait_s`.
    """
    home = open_home(settings)

    def remove(what: str, names: Iterable[str]) -> Freed:
        sizes = [home.remove(name) for name in list(names)]
        return Freed(what, len(sizes), sum(sizes))

    with WriteLock(settings):
        freed = [remove("half-written or damaged", _leftovers(home))]
        freed.append(remove("files of kept runs", _old_runs(home, keep)))
        texts = [_text(home, name) for name in (*home.names(RUNS), *home.names("record"))]
        artifacts = _artifacts(home)
        made_from = {name: _made_from(home, name) for name in artifacts}
        reached = _reach(made_from, texts)
        # Fitted models and other judgements stay, because they are not results of stages.
        kinds = {stage.name for stage in STAGES}
        kinds |= {name.split("/")[1] for names in made_from.values() for name in names}
        unreached = [
            name
            for name, parts in artifacts.items()
            if name.split("/")[1] in kinds and name not in reached and _is_old(home, parts)
        ]
        freed.append(remove("artifacts", unreached))
        parts = (part for name in reached for part in artifacts[name] if part.endswith(".json"))
        texts += [_text(home, part) for part in parts]
        freed.append(remove("embeddings", _unused_embeddings(home, texts)))
    return freed


def _leftovers(home: Home) -> Iterator[str]:
    """List what killed runs left, and in an object store the uploads that were never published."""
    if home.is_remote:
        for name, parts in _artifacts(home).items():
            if f"{name}/{ARTIFACT_FILE}" not in parts and _is_old(home, parts):
                yield name
        return
    for pattern in (DAMAGED, PARTIAL):
        for folder in HOME_FOLDERS:
            for path in home.folder.glob(f"{folder}/{pattern}*".lstrip("/")):
                yield path.relative_to(home.folder).as_posix()


def _is_old(home: Home, names: Iterable[str]) -> bool:
    return not home.is_remote or all(home.age_s(name) > A_DAY_S for name in names)


def _text(home: Home, name: str) -> str:
    return home.read(name).decode(errors="replace")


def _old_runs(home: Home, keep: int | None) -> Iterator[str]:
    """List the files of all but the newest runs of each gold set, without accepted ones."""
    names, by_gold_set = home.names(RUNS), defaultdict(list)
    histories = " ".join(_text(home, name) for name in home.names("baselines"))
    for name in reversed(names):
        if Path(name).match(f"{RUNS}/*.json"):
            try:
                by_gold_set[json.loads(home.read(name))["gold_set"]].append(Path(name).stem)
            except (ValueError, KeyError, TypeError):
                continue  # the run stays, because its gold set is unknown
    for run_ids in by_gold_set.values():
        for run_id in run_ids[keep:] if keep else ():
            if run_id not in histories:
                yield from (name for name in names if Path(name).name.startswith(f"{run_id}."))


def _artifacts(home: Home) -> dict[str, list[str]]:
    """List the names of the files of each artifact, by the name of its folder."""
    by_folder = defaultdict(list)
    for name in home.names(ARTIFACTS):
        if name.count("/") > len(("artifacts", "stage")):
            by_folder["/".join(name.split("/")[:3])].append(name)
    return by_folder


def _made_from(home: Home, artifact: str) -> list[str]:
    try:
        record = json.loads(home.read(f"{artifact}/{ARTIFACT_FILE}"))
        return [f"{ARTIFACTS}/{kind}/{key}" for kind, key in record["made_from"]]
    except (OSError, ValueError, KeyError, TypeError):  # damaged
        return []


def _reach(made_from: dict[str, list[str]], texts: list[str]) -> set[str]:
    """Find the artifacts that texts name, and all artifacts behind them."""
    keys = {key for text in texts for key in _KEY.findall(text)}
    left = [name for name in made_from if name.rpartition("/")[2] in keys]
    reached: set[str] = set()
    while left:
        name = left.pop()
        if name in made_from and name not in reached:
            reached.add(name)
            left += made_from[name]
    return reached


def _unused_embeddings(home: Home, texts: list[str]) -> Iterator[str]:
    for name in home.names(EMBEDDINGS):
        folder, _, file = name.rpartition("/")
        if file == MODEL_FILE:
            model = json.loads(home.read(name))["model"].removesuffix(" questions")
            if not any(json.dumps(model) in text for text in texts) and _is_old(home, [name]):
                yield folder
