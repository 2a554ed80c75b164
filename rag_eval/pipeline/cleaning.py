"""Remove unused files from a home.

Roots are the remaining kept runs and the newest results of every gold set (`record/`). Every
accepted baseline is a run that stays. An artifact stays when a root names it, or when an artifact
that stays was made from it.
Outcomes, calibrators, watches, baselines and chat replies are never touched.
"""

import dataclasses
import datetime as dt
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from rag_eval.pipeline.stages import STAGES
from rag_eval.storage.artifacts import DAMAGED, HOME_FOLDERS, PARTIAL, home_lock

_KEY: Final = re.compile(r"[0-9a-f]{16,64}")
_RUN_TIME: Final = "%Y%m%dT%H%M%S"


@dataclasses.dataclass(frozen=True)
class Freed:
    """Number of removed files and folders of one kind, and their size in bytes."""

    what: str
    count: int
    size: int


def clean(
    home: Path,
    keep: int | None = None,
    older_than: int | None = None,
    now: dt.datetime | None = None,
) -> list[Freed]:
    """Remove old runs, the artifacts that only they need, and leftovers of killed runs.

    Parameters
    ----------
    home
        The home. Nobody else may write to it meanwhile.
    keep
        Number of runs of each gold set that stay; default: all.
    older_than
        Age in days at which a run is removed; default: no limit. The newest run of each gold set
        stays.
    now
        Reference time of ages; default: the present.

    Raises
    ------
    InputError
        `home_busy`: a run is writing to the home.
    """
    with home_lock(home):
        now = now or dt.datetime.now(dt.UTC)
        freed = [_remove("half-written or damaged", _leftovers(home))]
        freed.append(_remove("files of kept runs", _old_runs(home, keep, older_than, now)))
        texts = _root_texts(home)
        reached = _reach(home / "artifacts", texts)
        freed.append(_remove("artifacts", _unreached(home / "artifacts", reached)))
        texts += [path.read_text("utf-8") for folder in reached for path in folder.glob("*.json")]
        freed.append(_remove("embeddings", _unused_embeddings(home / "embeddings", texts)))
    return freed


def _leftovers(home: Path) -> Iterator[Path]:
    for pattern in (DAMAGED, PARTIAL):
        for folder in HOME_FOLDERS:
            yield from home.glob(f"{folder}/{pattern}*".lstrip("/"))


def _old_runs(
    home: Path, keep: int | None, older_than: int | None, now: dt.datetime
) -> Iterator[Path]:
    by_gold_set = defaultdict(list)
    histories = [path.read_text(encoding="utf-8") for path in home.glob("baselines/*/*.jsonl")]
    for path in sorted((home / "runs").glob("*.json"), reverse=True):
        try:
            by_gold_set[json.loads(path.read_text(encoding="utf-8"))["gold_set"]].append(path)
        except (ValueError, KeyError, TypeError):
            continue  # the run stays, because its gold set is unknown
    for paths in by_gold_set.values():
        for place, path in enumerate(paths[1:], 1):
            made = dt.datetime.strptime(path.name[:15], _RUN_TIME).replace(tzinfo=dt.UTC)
            if any(path.stem in history for history in histories):
                continue
            is_old = older_than is not None and now - made > dt.timedelta(days=older_than)
            if is_old or (keep is not None and place >= keep):
                yield path
                yield from path.parent.glob(f"{path.stem}.summary*")


def _root_texts(home: Path) -> list[str]:
    paths = (path for pattern in ("runs/*.json", "record/*/*.json") for path in home.glob(pattern))
    return [path.read_text(encoding="utf-8", errors="replace") for path in paths if path.is_file()]


def _reach(artifacts: Path, texts: list[str]) -> set[Path]:
    """Find the folders of the artifacts that texts name, and of all artifacts behind them."""
    by_key = defaultdict(list)
    for folder in artifacts.glob("*/*"):
        by_key[folder.name].append(folder)
    left = [folder for text in texts for key in set(_KEY.findall(text)) for folder in by_key[key]]
    reached: set[Path] = set()
    while left:
        folder = left.pop()
        if folder not in reached:
            reached.add(folder)
            left += [artifacts / kind / key for kind, key in _made_from(folder)]
    return {folder for folder in reached if folder.is_dir()}


def _made_from(folder: Path) -> list[tuple[str, str]]:
    try:
        about = json.loads((folder / "artifact.json").read_text(encoding="utf-8"))
        return [(str(kind), str(key)) for kind, key in about["made_from"]]
    except (OSError, ValueError, KeyError, TypeError):  # damaged
        return []


def _unreached(artifacts: Path, reached: set[Path]) -> list[Path]:
    """List the unreached artifacts of stages, and of the parts of work that artifacts name.

    Fitted models and other judgements stay, because they are not results of stages.
    """
    folders = [folder for folder in artifacts.glob("*/*") if folder.is_dir()]
    kinds = {stage.name for stage in STAGES}
    kinds |= {kind for folder in folders for kind, _ in _made_from(folder)}
    return [one for one in folders if one.parent.name in kinds and one not in reached]


def _unused_embeddings(embeddings: Path, texts: list[str]) -> Iterator[Path]:
    for path in embeddings.glob("*/model.json"):
        model = json.loads(path.read_text(encoding="utf-8"))["model"].removesuffix(" questions")
        if not any(json.dumps(model) in text for text in texts):
            yield path.parent


def _remove(what: str, paths: Iterable[Path]) -> Freed:
    """Remove files and folders.

    Each path is renamed first. After a crash, `_leftovers` finds the partly removed folder.
    """
    count = size = 0
    for path in list(paths):
        files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
        # Removing a link to a file of another artifact frees no space.
        size += sum(one.stat().st_size for one in files if one.stat().st_nlink == 1)
        count += 1
        aside = path.with_name(f"{PARTIAL}{path.name}")
        path.rename(aside)
        if aside.is_dir():
            shutil.rmtree(aside)
        else:
            aside.unlink()
    return Freed(what, count, size)
