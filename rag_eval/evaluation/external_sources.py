"""External sources of an evaluation: opened once, and their identity before anything is asked."""

from pathlib import Path

from rag_eval.evaluation.inputs import Evaluation
from rag_eval.records.gold_set import External
from rag_eval.retrieval.external_http import HttpSource
from rag_eval.retrieval.external_port import PortSource
from rag_eval.retrieval.external_source import (
    SourceKind,
    external_index_hash,
    list_path,
    open_source,
    source_kind,
)


def kind_of(evaluation: Evaluation, spec: External) -> SourceKind:
    """Say what an external strategy asks."""
    return source_kind(spec, evaluation.settings.sources)


def list_of(evaluation: Evaluation, spec: External) -> Path:
    """Path of a strategy's run file or recorded outputs."""
    return list_path(spec, evaluation.base)


def source_of(evaluation: Evaluation, spec: External) -> HttpSource | PortSource:
    """Open a strategy's endpoint or import path, once an evaluation."""
    settings = evaluation.settings
    return evaluation.once(
        f"source {spec.source}", lambda: open_source(spec, settings.sources, settings.external)
    )


def external_identity(evaluation: Evaluation, spec: External) -> dict[str, str]:
    """Name an external strategy's index_hash. Its embed_model is not ours to compute: what a port states about it stands in its run.

    Raises
    ------
    InputError
        The settings enable no such source, it cannot be loaded, or the file is not there: told before anything is indexed or asked.
    """
    kind = kind_of(evaluation, spec)
    source = source_of(evaluation, spec) if kind in {"http", "import"} else None
    stated = source.stated if isinstance(source, PortSource) else {}
    return {
        "index_hash": external_index_hash(spec, kind, evaluation.base, stated),
        "embed_model": "",
    }
