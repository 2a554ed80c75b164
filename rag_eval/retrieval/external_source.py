"""A configured external strategy -> what to ask, and its identity.

Belongs here: names of the settings, and `index_hash` of what is not ours. A gold set is data: it names sources, the settings say where they are.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from rag_eval.records.gold_set import External
from rag_eval.records.problems import InputError, Problem
from rag_eval.retrieval.external_http import HttpSource
from rag_eval.retrieval.external_port import PortSource, load_port
from rag_eval.settings import ExternalLimits
from rag_eval.storage.hashing import digest, file_hash

SourceKind = Literal["http", "import", "run_file", "recorded"]


def source_kind(spec: External, sources: Mapping[str, str]) -> SourceKind:
    """Say what a strategy asks.

    Raises
    ------
    InputError
        `unknown_source`: the settings enable no such name.
    """
    if spec.source is None:
        return "recorded" if spec.run_file is None else "run_file"
    if spec.source not in sources:
        raise InputError(
            Problem(
                "unknown_source",
                f"the settings enable no source of this name, which strategy {spec.name} asks for",
                field="source",
                found=spec.source,
                accepted=(", ".join(sorted(sources)) or "none is enabled")
                + " (enable one with RAG_EVAL_SOURCES or under [sources] of settings.toml)",
            )
        )
    return "http" if sources[spec.source].startswith(("http://", "https://")) else "import"


def open_source(
    spec: External, sources: Mapping[str, str], limits: ExternalLimits
) -> HttpSource | PortSource:
    """Open the endpoint or the import path that a strategy names.

    Raises
    ------
    InputError
        `unknown_source`, `source_unusable`.
    """
    kind = source_kind(spec, sources)
    if spec.source is None:
        raise ValueError(f"{spec.name} is a {kind}, which is read and not asked")
    path = sources[spec.source]
    return HttpSource(path, limits) if kind == "http" else PortSource(load_port(spec.source, path))


def list_path(spec: External, base: Path) -> Path:
    """Path of the run file or of the recorded outputs.

    Raises
    ------
    InputError
        `missing_file`.
    """
    name = spec.run_file if spec.run_file is not None else spec.recorded or ""
    path = base / name
    if not path.is_file():
        field = "run_file" if spec.run_file is not None else "recorded"
        raise InputError(
            Problem(
                "missing_file",
                f"strategy {spec.name}: no such file",
                file=str(path),
                field=field,
                found=name,
                accepted="a path relative to the gold set",
            )
        )
    return path


def external_index_hash(
    spec: External, kind: SourceKind, base: Path, stated: Mapping[str, object]
) -> str:
    """Identity of an index that is not ours: the source's name and kind, what a port's stats state, the hash of a file.

    The address is no part of it: the same service under another address is the same. What an endpoint serves is not known before it is
    asked; the version that its replies state stands beside the figures.
    """
    content = file_hash(list_path(spec, base)) if kind in {"run_file", "recorded"} else ""
    return f"external:{digest([spec.source or '', kind, dict(stated), content])}"
