"""The kind `external`: the user's own retriever, or rankings that were made beforehand."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from rag_eval.core.errors import InputError, Name, Problem
from rag_eval.core.settings import Settings
from rag_eval.core.strategy import Identity, IdentityInputs, Strategy
from rag_eval.storage.hashing import digest, file_hash

SourceKind = Literal["http", "import", "run_file", "recorded"]


class External(Strategy):
    """A name that the settings map to an import path or URL, a TREC run, or recorded outputs."""

    kind: Literal["external"]
    source: Name | None = Field(default=None, description="a name under `sources` of the settings")
    run_file: str | None = Field(default=None, description="a TREC run; relative to the gold set")
    recorded: str | None = Field(
        default=None,
        description="recorded outputs (JSONL); their contexts, in order, are the ranking",
    )
    top_k: int | None = Field(
        default=None, ge=1, le=1000, description="chunks asked for; default: the gold set's depth"
    )
    own_units: ClassVar[bool] = True

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if sum(given is not None for given in (self.source, self.run_file, self.recorded)) != 1:
            raise ValueError("give exactly one of source, run_file and recorded")
        if self.rerank is not None:
            raise ValueError(
                "an external retriever ranks by itself; rerank is for strategies that run here"
            )
        return self

    def files(self) -> dict[str, str]:
        """Return the run file or the recorded outputs."""
        named = {"run_file": self.run_file, "recorded": self.recorded}
        return {field: path for field, path in named.items() if path is not None}

    @property
    def store_name(self) -> str:
        """Name the source."""
        return f"external:{self.source or 'file'}"

    def identity(self, inputs: IdentityInputs) -> Identity:
        """Name the source, its kind, what a port states of its index, and the hash of a file.

        The address is no part of it: a service that moves stays the same. A service's version is
        not known before it is asked, so it stands beside the figures.
        """
        kind = self.source_kind(inputs.settings)
        content = file_hash(self.list_path(inputs.folder)) if self.files() else ""
        stated = dict(inputs.stated())
        return Identity(f"external:{digest([self.source or '', kind, stated, content])}", "")

    def source_kind(self, settings: Settings) -> SourceKind:
        """Say what is asked. Raises `InputError` (`unknown_source`)."""
        if self.source is None:
            return "recorded" if self.run_file is None else "run_file"
        address = settings.sources.get(self.source)
        if address is None:
            raise InputError(
                Problem(
                    "unknown_source",
                    "the settings enable no source of this name, "
                    f"which strategy {self.name} asks for",
                    field="source",
                    found=self.source,
                    accepted=(", ".join(sorted(settings.sources)) or "none is enabled")
                    + " (enable one with RAG_EVAL_SOURCES or under [sources] of settings.toml)",
                )
            )
        return "http" if address.startswith(("http://", "https://")) else "import"

    def list_path(self, folder: Path) -> Path:
        """Path of the run file or recorded outputs. Raises `InputError` (`missing_file`)."""
        ((field, name),) = self.files().items()
        path = folder / name
        if not path.is_file():
            raise InputError(
                Problem(
                    "missing_file",
                    f"strategy {self.name}: no such file",
                    file=str(path),
                    field=field,
                    found=name,
                    accepted="a path relative to the gold set",
                )
            )
        return path
