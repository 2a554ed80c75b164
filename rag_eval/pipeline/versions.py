"""Versions of stages: a digest of everything that decides what a stage computes.

After a change of code, no old result is reused. A version covers the modules that the module of a
stage function reaches by import inside the package. It also covers plug-ins, and the data files
and libraries that these modules name. Comments, docstrings and positions do not count. Modules
that only a configuration chooses (strategy kinds, corpus loaders) count when the stage names them.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import json
import platform
import sys
from collections.abc import Collection, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

from rag_eval.storage.files import write_text
from rag_eval.storage.hashing import canonical_json, digest, file_hash, text_hash

PACKAGE: Final = "rag_eval"
CHOSEN: Final = (f"{PACKAGE}.retrieval.kinds", f"{PACKAGE}.corpus.loaders")
"""Packages whose modules a configuration chooses. Imports inside them are not followed."""
CARRIERS: Final = frozenset((f"{PACKAGE}.pipeline.evaluation", f"{PACKAGE}.pipeline.runner"))
"""Modules that carry inputs to every stage. They count, but their imports are not followed."""
DISTRIBUTIONS: Final = {
    "Stemmer": "pystemmer",
    "markdown_it": "markdown-it-py",
    "re2": "google-re2",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Distributions whose name differs from the module."""
DATA: Final = (".json", ".toml")
"""Endings of the package's data files that a stage may read."""
BENEATH: Final = {"ir_measures": ("pytrec-eval-terrier",)}
"""Library -> other distributions that compute the results of the library."""
NOT_COMPUTING: Final = frozenset(
    "cryptography dagster httpx jinja2 markupsafe mlflow openai psycopg"
    " pydantic pydantic_settings rich sqlalchemy starlette threadpoolctl tomlkit typer uvicorn"
    " yaml".split()
)
"""Libraries that cannot change a figure, because they only store, show or transport data."""


class Module(NamedTuple):
    """Digest of a module's tree, the own modules and libraries it imports, and files it names."""

    tree: str
    imports: set[str]
    libraries: set[str]
    files: set[str]


def _analyse(source: str) -> Module:
    """Analyse the source code of one module, without docstrings and imports for annotations."""
    names, libraries, files = set[str](), set[str](), set[str]()

    def show(part: object) -> object:
        """Turn a part of the tree into nested lists, and note what it imports and names."""
        if isinstance(part, list):
            return [show(statement) for statement in part if not _is_passive(statement)]
        if not isinstance(part, ast.AST):
            if isinstance(part, str) and part.endswith(DATA) and not part.startswith("/"):
                files.add(part)
            return part
        if isinstance(part, ast.Import):
            libraries.update(alias.name.partition(".")[0] for alias in part.names)
        elif isinstance(part, ast.ImportFrom) and part.module is not None:
            top = part.module.partition(".")[0]
            libraries.add(top)
            if top == PACKAGE:
                names.update(f"{part.module}.{alias.name}" for alias in part.names)
                part.module = PACKAGE  # a renamed module costs nothing
        return [type(part).__name__, *[show(getattr(part, field)) for field in part._fields]]

    tree = hashlib.sha256(repr(show(ast.parse(source))).encode()).hexdigest()
    return Module(tree, names, libraries - sys.stdlib_module_names - {PACKAGE}, files)


def _is_passive(node: object) -> bool:
    """Tell whether a statement is a docstring, or holds imports for annotations."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


_OWN_HASH: Final = file_hash(Path(__file__))
_ANALYSED: Final[dict[str, list[Any]]] = {}
"""Fields of `Module`, sets as lists, by the hash of a source and of the code that analysed it."""


class Versions:
    """Compute versions of stages; `root` is the folder of the package.

    `cache` is a file that keeps the analysis of each module by the hash of its source, because
    analysing the whole package takes a second.
    """

    def __init__(self, root: Path | None = None, cache: Path | None = None) -> None:
        self._root, self._cache = root or Path(__file__).resolve().parents[1], cache
        self._modules: dict[str, Module] = {}
        self._known: dict[tuple[str, ...], str] = {}
        if cache is not None:
            with contextlib.suppress(OSError, ValueError):
                _ANALYSED.update(json.loads(cache.read_text(encoding="utf-8")))
        self._n_cached = 0 if cache is None or not cache.is_file() else len(_ANALYSED)

    def of(self, module: str, chosen: Iterable[str] = ()) -> str:
        """Compute the version of the stages in a module.

        `chosen` are modules that only the configuration, the settings or an entry point name.
        """
        key = (module, *sorted(set(chosen)))
        if key not in self._known:
            self._known[key] = self._compute(key)
            if self._cache is not None and self._n_cached < len(_ANALYSED):
                write_text(self._cache, canonical_json(_ANALYSED))
                self._n_cached = len(_ANALYSED)
        return self._known[key]

    def _compute(self, names: Collection[str]) -> str:
        plugins = {name for name in names if name not in self._sources}
        reached = self.reached(set(names) - plugins)
        libraries = {name for module in reached for name in self._module(module).libraries}
        parts = {
            "code": sorted(self._module(module).tree for module in reached),
            "data": sorted({file_hash(path) for path in self.data_files(reached)}),
            "libraries": {name: library_version(name) for name in libraries - NOT_COMPUTING},
            "plugins": {name: _plugin_version(name) for name in plugins},
            "python": ".".join(platform.python_version_tuple()[:2]),
        }
        return digest(parts)

    def reached(self, modules: Collection[str]) -> set[str]:
        """Find every module of the package that modules reach by import, themselves included."""
        modules_met, left = set[str](), list(modules)
        while left:
            module = left.pop()
            if module in modules_met:
                continue
            modules_met.add(module)
            imports = set() if module in CARRIERS else self._module(module).imports
            for name in imports:
                target = name if name in self._sources else name.rpartition(".")[0]
                if target in self._sources and not (module in CHOSEN and target.startswith(module)):
                    left.append(target)
        return modules_met

    def data_files(self, modules: Iterable[str]) -> set[Path]:
        """List the data files that modules name, and that stand in or below a module's folder.

        A name can be a pattern such as `rules/*.toml`.
        """
        globs = ((self._sources[name].parent, self._module(name).files) for name in modules)
        paths = (path for folder, names in globs for name in names for path in folder.glob(name))
        return {path for path in paths if path.is_file()}

    @functools.cached_property
    def _sources(self) -> dict[str, Path]:
        """Map every module of the package to its file."""
        file_of = {}
        for path in self._root.rglob("*.py"):
            parts = path.relative_to(self._root).with_suffix("").parts
            dotted = parts[:-1] if parts[-1] == "__init__" else parts
            file_of[".".join((PACKAGE, *dotted))] = path
        return file_of

    def _module(self, module: str) -> Module:
        if module not in self._modules:
            source = self._sources[module].read_text(encoding="utf-8")
            key = text_hash(_OWN_HASH + source)
            if key not in _ANALYSED:
                tree, *names = _analyse(source)
                _ANALYSED[key] = [tree, *map(sorted, names)]
            tree, *names = _ANALYSED[key]
            self._modules[module] = Module(tree, *map(set, names))
        return self._modules[module]


@functools.cache
def shared_versions(cache: Path | None = None) -> Versions:
    """Return the versions of the installed package, which each process computes once."""
    return Versions(cache=cache)


@functools.cache
def library_version(name: str) -> str:
    """Return installed versions of a library and its `BENEATH`; empty when none is installed."""
    versions = []
    for distribution in (DISTRIBUTIONS.get(name, name), *BENEATH.get(name, ())):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(metadata.version(distribution))
    return " ".join(versions)


def _plugin_version(module: str) -> list[str]:
    """Return versions and SHA-256 of the sources of a module or package outside this package."""
    top = module.partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        return []
    origin = Path(spec.origin)
    sources = sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]
    return [library_version(top), *(file_hash(path) for path in sources)]
