"""Types of fields that the settings and `gold_set.yaml` share, and classes chosen by name.

They stand apart from the rules of `fields`, because the library evaluates without pydantic.
"""

import dataclasses
import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Annotated, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema

from rag_eval.core.errors import InputError, Problem

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME)]

ConfigValue = str | int | float | bool
BUILT_IN_MODEL = re.compile(
    r"lsa-[1-9]\d{0,3}|all-MiniLM-L6-v2|chroma:(?:default|onnx_mini_lm_l6_v2)"
)
"""Models that compute on this machine and need no configuration."""
MODELS = (
    "lsa-<dimensions>, all-MiniLM-L6-v2, chroma:default, chroma:onnx_mini_lm_l6_v2, "
    "or the name of an entry of `embeddings` in settings.toml"
)
NAME_AN_ENTRY = "name an entry of `embeddings` in settings.toml"


class Part(BaseModel):
    """A part of `gold_set.yaml`; unknown keys are refused, and the fields cannot be set."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class Embedding(Part):
    """Turns texts into vectors: a built-in model, an entry of the settings, or a file of vectors.

    A gold set gives no `config`, which can hold an address; only `from_settings` fills it.
    """

    model: str | None = Field(default=None, description=MODELS)
    config: dict[str, ConfigValue] = Field(default_factory=dict)
    vectors: str | None = None
    """An .npz file with `sha256` and `vectors`."""

    @classmethod
    def from_settings(cls, function: str, config: Mapping[str, ConfigValue]) -> "Embedding":
        """Make the embedding of a Chroma function that the settings configure."""
        return Embedding.model_construct(
            model=f"chroma:{function}", config=dict(config), vectors=None
        )

    @property
    def is_named(self) -> bool:
        """Whether `model` is the name of an entry of the settings."""
        return (
            self.model is not None
            and re.fullmatch(NAME, self.model) is not None
            and (BUILT_IN_MODEL.fullmatch(self.model) is None)
        )

    @model_validator(mode="before")
    @classmethod
    def _has_no_config(cls, data: object) -> object:
        if isinstance(data, Mapping) and (unknown := data.keys() - {"model", "vectors"}):
            reason = "a gold set gives no address, key, variable or configuration"
            raise ValueError(f"{min(unknown)}: {reason}; {NAME_AN_ENTRY}")
        return data

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.model is None) == (self.vectors is None):
            raise ValueError("give either model or vectors")
        if (
            self.model is not None
            and BUILT_IN_MODEL.fullmatch(self.model) is None
            and (not self.is_named or self.model.startswith("lsa-"))
        ):
            raise ValueError(f"accepted models: {MODELS}")
        return self


# ---- Classes that a configuration chooses by name: built in, or added by entry points.

Kind = TypeVar("Kind", bound=BaseModel)
FOREIGN = (Exception, SystemExit)
"""Exceptions of imported code that become errors; an interrupt still ends the evaluation."""


def _refuse(message: str, group: str, cause: str, accepted: str | None = None) -> InputError:
    field = f"entry point of {group}"
    return InputError(Problem("kind_unusable", message, None, None, field, cause, accepted))


def load_classes(
    base: type[Kind], tag: str, built_in: Mapping[str, str], group: str
) -> dict[str, type[Kind]]:
    """Load `built_in` classes (name -> `module:class`), then those of the entry points of `group`.

    Each must be a subclass of `base` whose field `tag` has the type `Literal[name]`. Raises
    InputError (`kind_unusable`) if one cannot be imported, does not fit, or has a name twice.
    """
    classes: dict[str, type[Kind]] = {}
    added = ((point.name, point.value) for point in metadata.entry_points(group=group))
    for name, path in [*built_in.items(), *added]:
        if name in classes:
            raise _refuse(f"two of these are called {name}", group, path, "a name of its own")
        module, _, attribute = path.partition(":")
        try:
            kind = getattr(importlib.import_module(module), attribute)
        except FOREIGN as error:
            reason = f"{path}: {type(error).__name__}: {error}"
            raise _refuse(f"{name} cannot be loaded", group, reason) from error
        is_kind = isinstance(kind, type) and issubclass(kind, base)
        if not is_kind or get_args(kind.model_fields[tag].annotation) != (name,):
            accepted = f'a subclass of {base.__name__} with `{tag}: Literal["{name}"]`'
            raise _refuse(f"{name} is no such class", group, path, accepted)
        classes[name] = kind
    return classes


@dataclasses.dataclass(frozen=True)
class AnyClass:
    """Tells pydantic to choose a class by its tag. `load` lists the classes at the first use.

    The model of such a field needs `defer_build`.
    """

    tag: str
    load: Callable[[], Mapping[str, type[BaseModel]]]

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Make the union of all classes."""
        choices = {name: handler.generate_schema(kind) for name, kind in self.load().items()}
        return core_schema.tagged_union_schema(choices, discriminator=self.tag)


# ---- The extras of this package.

_EXTRAS = {
    "nightly": ("typer", "rich", "sqlalchemy", "dagster", "mlflow", "chromadb"),
    "plots": ("matplotlib",),
    "documents": ("pypdf", "selectolax"),
}
"""Modules that stand for an extra; pip installs an extra as a whole."""


def explain_missing(name: str, extra: str = "nightly") -> str:
    """Say in one line how to install the packages that `name` needs; empty if they are there."""
    missing = [module for module in _EXTRAS[extra] if importlib.util.find_spec(module) is None]
    if not missing:
        return ""
    needed = f"{name} needs packages that are not installed ({', '.join(missing)})."
    return f'{needed} Install them: pip install "rag-eval[{extra}]"'
