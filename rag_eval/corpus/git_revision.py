"""What git knows about a folder: its commit and the commit that last changed each file.

Belongs here: the calls of git. A folder outside a work tree, or a machine without git, gives None.
"""

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_TIMEOUT_S = 60
# a repository's own configuration must not start programs, and a status must not write to the repository
_SAFE = ("-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false", "-c", "log.showSignature=false", "-c", "core.quotePath=false")


@dataclasses.dataclass(frozen=True, slots=True)
class GitRevisions:
    """What git says of a folder; paths are relative to it.

    Parameters
    ----------
    head
        Commit of the work tree.
    last_commit
        Commit that last changed each committed file.
    dirty
        Files that differ from HEAD.
    missing
        Files that HEAD has and the folder has no more: deleted or renamed, any name.
    """

    head: str
    last_commit: Mapping[str, str]
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
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False, env=_environment())  # noqa: S603 - fixed arguments, no shell
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


def _log(answer: str) -> Iterator[tuple[str, str]]:
    """Path and commit of `git log --name-only -z`, newest first."""
    commit = ""
    for entry in answer.split("\0"):
        if entry.startswith("\1"):
            commit = entry[1:]
        elif entry:
            yield entry.removeprefix("\n"), commit


def revisions(folder: Path, wanted: Iterable[str]) -> GitRevisions | None:
    """Revisions of these files of a folder, from one `git log` and one `git status` over the whole folder."""
    place = head(folder)
    if place is None:
        return None
    commit, prefix = place
    log = _git(folder, "log", "--format=%x01%H", "--name-only", "--no-renames", "--relative", "-z", "--", ".")
    status = _git(folder, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--", ".")
    if log is None or status is None:
        return None
    files = set(wanted)
    last: dict[str, str] = {}
    for path, changed_in in _log(log):
        if path in files:
            last.setdefault(path, changed_in)
    changed = {path.removeprefix(prefix): gone for path, gone in _status(status) if path.startswith(prefix)}
    return GitRevisions(commit, last, frozenset(changed.keys() & files), frozenset(path for path, gone in changed.items() if gone and path not in files))
