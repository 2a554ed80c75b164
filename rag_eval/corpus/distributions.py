"""Which distribution an importable package comes from, who made it, and what identifies its content, without importing it.

Belongs here: reading of `*.dist-info`. Packages with no record of their files (standard library, editable installs, a folder on the path)
are identified by their Python sources.
"""

import dataclasses
import email.utils
import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import re
import sys
from pathlib import Path

from rag_eval.records.problems import InputError, Problem
from rag_eval.storage.hashing import lines_hash, text_hash

SHORT = 12
_AUTHOR_FIELDS = ("Author", "Maintainer", "Author-email", "Maintainer-email")


@dataclasses.dataclass(frozen=True, slots=True)
class Installed:
    """An installed package: its version (with a source hash where the version alone does not tell the content), its record's hash, and its author."""

    package: str
    version: str
    content: str
    author: str = ""

    def identity(self) -> list[str]:
        """Everything that decides the docstrings; inherited ones come from Python itself."""
        return [self.package, self.version, self.content, self.author, platform.python_version()]


def _records(distribution: importlib.metadata.Distribution, package: str) -> str | None:
    """RECORD text if it lists files of this package."""
    record = distribution.read_text("RECORD")
    owns = record is not None and re.search(
        rf"^{re.escape(package)}(?:/|\.[^/]+?,)", record, re.MULTILINE
    )
    return record if owns else None


def _is_editable(distribution: importlib.metadata.Distribution) -> bool:
    direct = distribution.read_text("direct_url.json")
    return direct is not None and bool(json.loads(direct).get("dir_info", {}).get("editable"))


def _distribution(package: str) -> importlib.metadata.Distribution | None:
    try:
        same_name = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        same_name = None
    if same_name is not None and (_records(same_name, package) or _is_editable(same_name)):
        return same_name
    # slow (reads every record), so only for packages that are named unlike their distribution
    names = importlib.metadata.packages_distributions().get(package, [])
    return importlib.metadata.distribution(min(names)) if names else same_name


def _sources_hash(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None:
        accepted = "the import name of a package in this environment"
        raise InputError(
            Problem(
                "not_installed",
                "the package is not installed",
                field="corpus.package",
                found=package,
                accepted=accepted,
            )
        )
    if spec.submodule_search_locations:
        roots = [Path(place) for place in spec.submodule_search_locations]
        files = sorted(
            (path.relative_to(root).as_posix(), path)
            for root in roots
            for path in root.rglob("*.py")
        )
    else:
        files = [(package, Path(spec.origin))] if spec.has_location and spec.origin else []
    return lines_hash(
        f"{name}:{hashlib.sha256(path.read_bytes()).hexdigest()}" for name, path in files
    )


def _author(distribution: importlib.metadata.Distribution) -> str:
    """Author that the metadata names, else its maintainer, else the names beside their e-mail addresses; empty where there are none."""
    fields = {
        name: [str(value).strip() for value in distribution.metadata.get_all(name) or ()]
        for name in _AUTHOR_FIELDS
    }
    for name, values in fields.items():
        names = (
            [found for found, _ in email.utils.getaddresses(values)]
            if name.endswith("-email")
            else values
        )
        # UNKNOWN is what older build tools wrote for nothing
        known = [found.strip() for found in names if found.strip() not in {"", "UNKNOWN"}]
        if known:
            return ", ".join(known)
    return ""


def find(package: str) -> Installed:
    """Find the installed package.

    Raises
    ------
    InputError
        It is not installed.
    """
    distribution = None if package in sys.stdlib_module_names else _distribution(package)
    record = _records(distribution, package) if distribution is not None else None
    author = "" if distribution is None else _author(distribution)
    if distribution is not None and record is not None:
        return Installed(package, distribution.version, text_hash(record), author)
    content = _sources_hash(package)
    if package in sys.stdlib_module_names:
        return Installed(package, platform.python_version(), content)
    version = distribution.version if distribution is not None else "0"
    return Installed(package, f"{version}+sources.{content[:SHORT]}", content, author)
