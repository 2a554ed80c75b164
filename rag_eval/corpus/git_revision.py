"""What git knows about a folder: its commit, and the commit that last changed each file with its date.

Belongs here: the calls of git. A folder outside a work tree, or a machine without git, gives None.
"""

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rag_eval.corpus import dates

_TIMEOUT_S = 60
# a repository's own configuration must not start programs, and a status must not write to the repository
_SAFE = (
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.untrackedCache=false",
    "-c",
    "log.showSignature=false",
    "-c",
    "core.quotePath=false",
)


@dataclasses.dataclass(frozen=True, slots=True)
class GitRevisions:
    """What git says of a folder; paths are relative to it.

    Parameters
    ----------
    head
        Commit of the work tree.
    last_commit
        Commit that last changed each committed file.
    last_date
        Committer's date of that commit, the day in UTC (YYYY-MM-DD). Files that the oldest commit of a shallow clone would date are left out:
        git shows them all as made in it, and what changed them before is not there. Empty where the commit has an impossible date.
    dirty
        Files that differ from HEAD.
    missing
        Files that HEAD has and the folder has no more: deleted or renamed, any name.
    """

    head: str
    last_commit: Mapping[str, str]
    last_date: Mapping[str, str]
    dirty: frozenset[str]
    missing: frozenset[str]


def _environment() -> dict[str, str]:
    """Return ours without GIT_DIR and its kin, which a hook sets and which would point git elsewhere."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    return kept | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def _git(folder: Path, *arguments: str) -> str | None:
    program = shutil.which("git")
    if program is None or not folder.is_dir():
        return None
    command = [program, *_SAFE, "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_TIMEOUT_S, check=False, env=_environment()
        )  # noqa: S603 - fixed arguments, no shell
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "surrogateescape") if done.returncode == 0 else None


def head(folder: Path) -> tuple[str, str] | None:
    """Commit of the work tree that holds the folder, and the folder's path in it (`""` or `docs/`); one call of some milliseconds."""
    answer = _git(folder, "rev-parse", "--show-prefix", "HEAD")
    if answer is None:
        return None
    prefix, _, commit = answer.removesuffix("\n").rpartition("\n")
    return commit, prefix


def _status(answer: str) -> Iterator[tuple[str, bool]]:
    """Paths of `git status --porcelain -z`, and whether HEAD has the path and the index or the work tree has not; a rename names two."""
    entries = iter(answer.split("\0"))
    for entry in entries:
        if entry:
            staged, unstaged = entry[0], entry[1]
            yield entry[3:], staged == "D" or (unstaged == "D" and staged not in "ARC")
            if staged in "RC" or unstaged in "RC":
                yield next(entries, ""), "R" in entry[:2]


def _log(answer: str) -> Iterator[tuple[str, str, str]]:
    """Path, commit and the commit's seconds since 1970 of `git log --name-only -z`, newest first.

    A commit stands behind an empty entry, which no file name can imitate.
    """
    entries = iter(answer.split("\0"))
    commit = seconds = ""
    for entry in entries:
        if entry:
            yield entry.removeprefix("\n"), commit, seconds
        else:
            commit, _, seconds = next(entries, "").partition(" ")


def _boundary(folder: Path) -> frozenset[str]:
    """Oldest commits of a shallow clone; none in a whole one."""
    answer = _git(folder, "rev-parse", "--git-path", "shallow")
    place = None if answer is None else folder / answer.removesuffix("\n")
    return (
        frozenset(place.read_text(encoding="ascii").split())
        if place is not None and place.is_file()
        else frozenset()
    )


def _changes(folder: Path, prefix: str) -> dict[str, bool] | None:
    """Files of the folder that differ from HEAD, and whether each is gone."""
    status = _git(folder, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--", ".")
    return (
        None
        if status is None
        else {
            path.removeprefix(prefix): gone
            for path, gone in _status(status)
            if path.startswith(prefix)
        }
    )


def standing(folder: Path, wanted: Iterable[str]) -> list[str]:
    """Everything in git, beside the files themselves, that decides what `revisions` says of them: the commit, where a shallow clone begins, and which differ.

    A file can come to differ without a changed byte, for example by `git rm --cached`. Empty outside a work tree.
    """
    place = head(folder)
    changed = None if place is None else _changes(folder, place[1])
    if place is None or changed is None:
        return []
    return [
        place[0],
        *sorted(_boundary(folder)),
        "differing",
        *sorted(changed.keys() & set(wanted)),
    ]


def revisions(folder: Path, wanted: Iterable[str]) -> GitRevisions | None:
    """Revisions and dates of these files of a folder, from one `git log` and one `git status` over the whole folder."""
    place = head(folder)
    if place is None:
        return None
    commit, prefix = place
    log = _git(
        folder,
        "log",
        "--format=%x00%H %ct",
        "--name-only",
        "--no-renames",
        "--relative",
        "-z",
        "--",
        ".",
    )
    changed = _changes(folder, prefix)
    if log is None or changed is None:
        return None
    files = set(wanted)
    last: dict[str, str] = {}
    seconds: dict[str, str] = {}
    for path, changed_in, at in _log(log):
        if path in files and path not in last:
            last[path], seconds[path] = changed_in, at
    oldest = _boundary(folder)
    dated = {
        path: dates.of_seconds(int(at)) for path, at in seconds.items() if last[path] not in oldest
    }
    missing = frozenset(path for path, gone in changed.items() if gone and path not in files)
    return GitRevisions(commit, last, dated, frozenset(changed.keys() & files), missing)
