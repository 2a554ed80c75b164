"""Load the classes that a configuration chooses by name: built in, or added by entry points.

`explain_missing` tells whether the packages of an extra are installed.
"""

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import TypeVar, get_args

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from rag_eval.core.errors import InputError, Problem

Kind = TypeVar("Kind", bound=BaseModel)
FOREIGN = (Exception, SystemExit)
"""Exceptions of imported code that become errors; an interrupt still ends the evaluation."""


def _refuse(message: str, group: str, cause: str, accepted: str | None = None) -> InputError:
    field = f"entry point of {group}"
    return InputError(Problem("kind_unusable", message, None, None, field, cause, accepted))


def load_classes(
    base: type[Kind], tag: str, built_in: Mapping[str, str], group: str
) -> dict[str, type[Kind]]:
    """Load the classes of this package, then those that the entry points of `group` add.

    `built_in` is name -> `module:class`. Each class must be a subclass of `base`. The type of its
    field `tag` must be `Literal[name]`. Raises `InputError` (`kind_unusable`) if a class cannot be
    imported, does not fit, or has the name of another class.
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
