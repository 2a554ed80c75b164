"""Loader `package_docs`: the docstrings of an installed package's public names.

Belongs here: the walk and which names share a document. Nothing is executed but imports and attribute access. Every docstring's author is the
one that the distribution's metadata names; when a docstring was last changed nobody says.
"""

import fnmatch
import importlib
import inspect
import re
import types
import warnings
from collections.abc import Iterator
from pathlib import Path

from rag_eval.corpus import distributions
from rag_eval.corpus.raw_documents import RawCorpus, RawDocument
from rag_eval.records.gold_set import PackageDocs
from rag_eval.records.problems import InputError, Problem

_MAX_CLASS_DEPTH = (
    2  # a class, an accessor or nested class of it, and one below: deeper repeats what stands above
)


def identity(spec: PackageDocs, base: Path) -> list[str]:
    """Name, version and content of the installed package; nothing is imported."""
    del base
    return distributions.find(spec.package).identity()


def _found(name: str, value: object) -> tuple[str, str, str] | None:
    """Name, cleaned docstring and the object's own qualified name; None where there is no text."""
    try:
        text = inspect.getdoc(value)
    except Exception:  # noqa: BLE001 - __doc__ may be a property of the walked package that raises anything
        return None
    if not isinstance(text, str) or not text.strip():
        return None
    owner = value.fget if isinstance(value, property) else value
    qualname = getattr(owner, "__qualname__", "")
    return name, text, qualname if isinstance(qualname, str) else ""


def _attribute(owner: object, name: str) -> object | None:
    try:
        return getattr(owner, name)  # type: ignore[no-any-return]  # attributes are of any type
    except Exception:  # noqa: BLE001 - a descriptor of the walked package may raise anything; then it has no documentation
        return None


def _belongs(value: object, package: str) -> bool:
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and module.split(".")[0] == package


def _public(names: Iterator[str] | list[str]) -> list[str]:
    return sorted(name for name in set(names) if isinstance(name, str) and not name.startswith("_"))


def _walk_class(
    cls: type, prefix: str, package: str, above: tuple[type, ...]
) -> Iterator[tuple[str, str, str]]:
    for name in _public(dir(cls)):
        value = _attribute(cls, name)
        qualified = f"{prefix}.{name}"
        if inspect.isclass(value):
            if _belongs(value, package) and value not in above and len(above) < _MAX_CLASS_DEPTH:
                if found := _found(qualified, value):
                    yield found
                yield from _walk_class(value, qualified, package, (*above, cls))
            continue
        static = inspect.getattr_static(cls, name, None)
        described = callable(value) or isinstance(static, property) or hasattr(static, "__get__")
        # an instance that shows its type's docstring documents the type, not this name
        if (
            value is not None
            and described
            and getattr(type(value), "__doc__", None) != getattr(value, "__doc__", None)
        ):
            found = _found(qualified, value)
            if found:
                yield found


def _walk_module(module: types.ModuleType, package: str) -> Iterator[tuple[str, str, str]]:
    names = getattr(module, "__all__", None)
    for name in _public(list(names) if names is not None else dir(module)):
        value = _attribute(module, name)
        qualified = f"{module.__name__}.{name}"
        if value is None or inspect.ismodule(value) or not _belongs(value, package):
            continue
        if inspect.isclass(value):
            # a class without a docstring of its own would show its base class's
            if value.__doc__ and (found := _found(qualified, value)):
                yield found
            yield from _walk_class(value, qualified, package, ())
        elif callable(value) and (found := _found(qualified, value)):
            yield found


def _public_modules(root: types.ModuleType) -> Iterator[types.ModuleType]:
    """Yield the package, and below it every module that its parent makes public and that declares `__all__`."""
    yield root
    names = getattr(root, "__all__", None)
    for name in _public(list(names) if names is not None else dir(root)):
        value = _attribute(root, name)
        if (
            isinstance(value, types.ModuleType)
            and value.__name__ == f"{root.__name__}.{name}"
            and hasattr(value, "__all__")
        ):
            yield from _public_modules(value)


def _import(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise InputError(
            Problem(
                "not_importable",
                f"the module cannot be imported: {type(error).__name__}: {error}",
                field="corpus.modules",
                found=name,
                accepted="a module of the installed package",
            )
        ) from error


def _modules(spec: PackageDocs) -> list[types.ModuleType]:
    outside = [name for name in spec.modules if name.split(".")[0] != spec.package]
    if outside:
        accepted = f"{spec.package} or {spec.package}.<module>"
        raise InputError(
            [
                Problem(
                    "foreign_module",
                    "the module is of another package",
                    field="corpus.modules",
                    found=name,
                    accepted=accepted,
                )
                for name in outside
            ]
        )
    if spec.modules:
        return [_import(name) for name in sorted(set(spec.modules))]
    return list(_public_modules(_import(spec.package)))


def _canonical(names: dict[str, str]) -> str:
    """Choose the name that ends with its object's own qualified name; else, and among several, the least nested, then the first by alphabet."""
    own = [
        name
        for name, qualname in names.items()
        if qualname and (name == qualname or name.endswith(f".{qualname}"))
    ]
    return min(own or names, key=lambda name: (name.count("."), name))


def load(spec: PackageDocs, base: Path) -> RawCorpus:
    """Read the docstrings of the public names; equal docstrings are one document with several names.

    Raises
    ------
    InputError
        The package is not installed, a module cannot be imported, or nothing is left after `exclude` and `min_chars`.
    """
    del base
    installed = distributions.find(spec.package)
    excluded = re.compile(
        "|".join(fnmatch.translate(pattern) for pattern in spec.exclude) or r"(?!)"
    )
    by_text: dict[str, dict[str, str]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # deprecated attributes warn when they are looked at, and the walk looks at all of them
        for module in _modules(spec):
            for name, text, qualname in _walk_module(module, spec.package):
                if len(text) >= spec.min_chars and not excluded.match(name):
                    by_text.setdefault(text, {})[name] = qualname
    documents = []
    for text, names in by_text.items():
        doc_id = _canonical(names)
        others = tuple(sorted(names.keys() - {doc_id}))
        source = text.encode("utf-8", "surrogatepass")
        documents.append(
            RawDocument(
                doc_id,
                doc_id,
                text,
                f"python:{doc_id}",
                "numpydoc",
                rev=installed.version,
                names=others,
                author=installed.author,
                source=source,
            )
        )
    if not documents:
        accepted = "modules with docstrings that exclude and min_chars leave over"
        raise InputError(
            Problem(
                "empty_corpus",
                "no docstring was found",
                field="corpus",
                found=spec.package,
                accepted=accepted,
            )
        )
    return RawCorpus(documents, rev=f"{spec.package}=={installed.version}")
