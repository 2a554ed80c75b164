"""Versions of stages: a digest of everything that decides what a stage computes.

After a change of code, no old result is reused. A version covers the definitions that a stage
function reaches by name inside the package. It also covers plug-ins, and the data files and
libraries that these definitions name. Comments, docstrings and positions do not count. Modules that
only a configuration chooses (strategy kinds, corpus loaders) count when the stage names them.
"""

import ast
import contextlib
import fnmatch
import functools
import hashlib
import importlib.util
import json
import platform
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final, TypeGuard

from rag_eval.storage.artifacts import write_text
from rag_eval.storage.hashing import canonical_json, digest, file_hash

PACKAGE: Final = "rag_eval"
CHOSEN: Final = (f"{PACKAGE}.retrieval.kinds", f"{PACKAGE}.corpus.loaders")
"""Packages whose modules a configuration chooses. Their `__init__` reaches none of them."""
DISTRIBUTIONS: Final = {
    "Stemmer": "pystemmer",
    "markdown_it": "markdown-it-py",
    "re2": "google-re2",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Distributions whose name differs from the module."""
BENEATH: Final = {"ir_measures": ("pytrec-eval-terrier",)}
"""Library -> other distributions that compute the results of the library."""
NOT_COMPUTING: Final = frozenset(
    "cryptography dagster httpx jinja2 markupsafe mlflow openai psycopg pydantic"
    " pydantic_settings rich sqlalchemy starlette threadpoolctl tomlkit typer uvicorn yaml".split()
)
"""Libraries that cannot change a figure, because they only store, show or transport data."""
PASSIVE: Final = frozenset(
    "cache cached_property contextmanager dataclass dataclass_transform final lru_cache"
    " overload runtime_checkable".split()
)
"""Decorators that register nothing. A definition with another decorator counts with its module."""
IN_THE_KEY: Final = frozenset(
    {
        (f"{PACKAGE}.core.config", "GoldSetConfig"),
        (f"{PACKAGE}.core.settings", "Settings"),
        (f"{PACKAGE}.pipeline.evaluation", "Evaluation"),
        (f"{PACKAGE}.pipeline.runner", "Work"),
    }
)
"""Classes that a version leaves out, because the key of a stage has the values read from them."""
MAX_NAME: Final = 200
_FINDS_DATA: Final = re.compile(r"\b(__file__|resources|PackageLoader|package_data)\b")
_IMPORT_PATH: Final = re.compile(rf"{PACKAGE}(\.[a-z_][a-z0-9_]*|\.\*)+")
Definition = tuple[str, int]
"""A statement of a module: the name of the module and the number of the statement."""


class _Statement(ast.NodeTransformer):
    """Remove docstrings and imports from a statement, and collect the names in it."""

    def __init__(self) -> None:
        self.uses: set[str] = set()
        self.imports: dict[str, tuple[str, str]] = {}
        self.libraries: dict[str, str] = {}
        self.strings: set[str] = set()

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None  # the docstring of a module, class, function or attribute
        return self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        for alias in node.names:
            self._imported(alias.asname or alias.name.partition(".")[0], alias.name, "")
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        if node.level:
            raise ValueError("relative imports are not used in this package")
        for alias in node.names:
            self._imported(alias.asname or alias.name, node.module or "", alias.name)
        return None

    def _imported(self, local: str, module: str, name: str) -> None:
        top = module.partition(".")[0]
        if top == PACKAGE:
            self.imports[local] = (module, name)
        elif top not in sys.stdlib_module_names:
            self.libraries[local] = top

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name):
            self.uses.add(f"{node.value.id}.{node.attr}")
            return node
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        self.uses.add(node.id)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            self.strings.add(node.value)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        parts = [
            part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "*"
            for part in node.values
        ]
        self.strings.add("".join(parts))
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = self._annotation(node.annotation)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = self._annotation(node.annotation) or node.annotation
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = self._annotation(node.returns)
        return self._scope(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = self._annotation(node.returns)
        return self._scope(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return self._scope(node)

    def _scope(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> ast.AST:
        """Visit a function. Names that the function binds do not refer to the module."""
        outside, self.uses = self.uses, set()
        bound = {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}
        bound |= {
            part.id
            for part in ast.walk(node)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        }
        self.generic_visit(node)
        inside = {use for use in self.uses if use.partition(".")[0] not in bound}
        self.uses = outside | inside
        return node

    def _annotation(self, node: ast.expr | None) -> ast.expr | None:
        """Read the names in a quoted annotation."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.parse(node.value, mode="eval").body
        if node is not None:
            self.visit(node)
        return node


def _is_type_checking(node: ast.stmt) -> TypeGuard[ast.If]:
    """Check whether a statement only holds imports for annotations."""
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def _defined(node: ast.stmt) -> list[str]:
    """Find the names that a statement defines in the module."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
    names = {
        part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
    }
    return sorted(names)


def _has_effects(node: ast.stmt) -> bool:
    """Check whether a statement may do more than define names. It then counts with its module."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        parts = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
        names = {one.attr if isinstance(one, ast.Attribute) else ast.unparse(one) for one in parts}
        return not names <= PASSIVE
    return not isinstance(node, ast.Assign | ast.AnnAssign)


def analyse(source: str, data: Mapping[str, Collection[str]]) -> dict[str, Any]:
    """Analyse one module.

    Parameters
    ----------
    source
        Source code of the module.
    data
        `names` and `folders` of the package's data files.

    Returns
    -------
    dict
        statements: for each a digest of its tree, the names it defines, the names it uses (`a`, or
        `a.b` for an attribute), its own imports, the data files and own modules that its
        strings may name, and whether it counts with its module. imports: local name -> own
        module and name. libraries: local name -> top-level module.
    """
    whole, statements = _Statement(), []
    if not _FINDS_DATA.search(source):  # its file names refer to a home or a gold set
        data = dict.fromkeys(data, ())
    body = ast.parse(source).body
    for node in body:
        for part in node.body if _is_type_checking(node) else [node]:
            if isinstance(part, ast.Import | ast.ImportFrom):
                whole.visit(part)
            elif (told := _statement(part, data)) is not None:
                statements.append(told)
    return {"statements": statements, "imports": whole.imports, "libraries": whole.libraries}


def _statement(node: ast.stmt, data: Mapping[str, Collection[str]]) -> dict[str, Any] | None:
    defines, has_effects, found = _defined(node), _has_effects(node), _Statement()
    tree = found.visit(node)
    if tree is None:
        return None
    named = {text for text in found.strings if text.strip("*") and len(text) < MAX_NAME}
    last = {f"*{text}" if text.startswith(".") else text.rpartition("/")[2] for text in named}
    files = {
        text
        for text in last
        if text in data["folders"] or any(fnmatch.fnmatchcase(name, text) for name in data["names"])
    }
    return {
        "tree": hashlib.sha256(ast.dump(tree, annotate_fields=False).encode()).hexdigest(),
        "defines": defines,
        "uses": sorted(found.uses),
        "imports": found.imports,
        "libraries": sorted(found.libraries.values()),
        "files": sorted(files),
        "modules": sorted(text for text in named if _IMPORT_PATH.fullmatch(text)),
        "has_effects": has_effects,
    }


class Versions:
    """Compute versions of stages.

    Parameters
    ----------
    caches
        Cache files of analyses by the hash of their source. The first writable one is used.
    root
        Folder of the package.
    """

    def __init__(self, *caches: Path, root: Path | None = None) -> None:
        self._root = root or Path(__file__).resolve().parents[1]
        self._caches = caches
        self._known: dict[str, dict[str, Any]] = {}
        for cache in caches:
            self._known |= _read_cache(cache)
        self._used: dict[str, dict[str, Any]] = {}
        self._modules: dict[str, dict[str, Any]] = {}
        self._reads: dict[Definition, dict[str, list[Definition]]] = {}
        self._defines: dict[str, dict[str, list[Definition]]] = {}
        self._new = False

    def of(
        self, module: str, name: str, chosen: Iterable[str] = (), plugins: Iterable[str] = ()
    ) -> str:
        """Compute the version of a stage.

        Parameters
        ----------
        module, name
            The stage function.
        chosen
            Modules of the package that only the configuration chooses.
        plugins
            Modules outside the package that the configuration, the settings or an entry point name.
        """
        reached = self.reached(module, name, chosen)
        libraries = {name for one in reached for name in self._libraries(one)} - NOT_COMPUTING
        files = {path for one in reached for path in self.data_files(one)}
        parts = {
            "code": sorted(self._record(one) for one in reached),
            "data": sorted({file_hash(path) for path in files}),
            "libraries": {name: library_version(name) for name in sorted(libraries)},
            "plugins": {name: plugin_version(name) for name in sorted(set(plugins))},
            "python": ".".join(platform.python_version_tuple()[:2]),
        }
        self._keep()
        return digest(parts)

    def reached(self, module: str, name: str, chosen: Iterable[str] = ()) -> frozenset[Definition]:
        """Find every definition that a function reaches by name, including the function."""
        found: set[Definition] = set()
        left = [*self._defined(module, name), *(one for part in chosen for one in self._all(part))]
        while left:
            one = left.pop()
            if one not in found:
                found.add(one)
                left += [target for targets in self._targets(one).values() for target in targets]
                left += self._own(one[0])[""]
        return frozenset(found)

    def name_of(self, definition: Definition) -> str:
        """Name a definition for people: its module and the names that it defines."""
        names = self._statement(definition)["defines"]
        return f"{definition[0]}.{'/'.join(names) or definition[1]}"

    def data_files(self, definition: Definition) -> list[Path]:
        """List the data files that a definition names.

        The files are in the folder of its module, or in a package or folder that it also names.
        """
        about = self._statement(definition)
        if not about["files"]:
            return []
        packages = [name for name in self._find_modules(about) if self._is_package(name)]
        folders = [self._sources[name].parent for name in (definition[0], *packages)]
        return sorted(
            path
            for path in self._data
            if any(
                _is_named(path.relative_to(folder).parts, about["files"])
                for folder in folders
                if path.is_relative_to(folder)
            )
        )

    @functools.cached_property
    def _sources(self) -> dict[str, Path]:
        """Map every module of the package to its file."""
        found = {}
        for path in self._root.rglob("*.py"):
            parts = path.relative_to(self._root).with_suffix("").parts
            kept = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join((PACKAGE, *kept))] = path
        return found

    @functools.cached_property
    def _data(self) -> list[Path]:
        files = (path for path in self._root.rglob("*") if path.is_file())
        others = (path for path in files if path.suffix not in {".py", ".pyc", ".typed"})
        return sorted(path for path in others if "__pycache__" not in path.parts)

    @functools.cached_property
    def _names(self) -> dict[str, list[str]]:
        """Find the names of the data files and of their folders."""
        return {
            "names": sorted({path.name for path in self._data}),
            "folders": sorted({path.parent.name for path in self._data}),
        }

    @functools.cached_property
    def _analyser(self) -> str:
        """Identify the inputs of an analysis besides the source."""
        return digest([platform.python_version(), self._names, file_hash(Path(__file__))])

    def _module(self, module: str) -> dict[str, Any]:
        """Analyse a module, or return the cached analysis."""
        if module not in self._modules:
            source = self._sources[module].read_text(encoding="utf-8")
            key = digest([source, self._analyser])
            if key not in self._known:
                self._known[key], self._new = analyse(source, self._names), True
            self._modules[module] = self._used[key] = self._known[key]
        return self._modules[module]

    def _statement(self, definition: Definition) -> dict[str, Any]:
        found: dict[str, Any] = self._module(definition[0])["statements"][definition[1]]
        return found

    def _keep(self) -> None:
        if not self._new:
            return
        for cache in self._caches:
            with contextlib.suppress(OSError):  # the installation may be read-only for this user
                write_text(cache, canonical_json(self._used))
                break
        self._new = False

    def _is_package(self, module: str) -> bool:
        return module in self._sources and self._sources[module].name == "__init__.py"

    def _all(self, module: str) -> list[Definition]:
        """Find every definition of a module."""
        return [(module, at) for at in range(len(self._module(module)["statements"]))]

    def _own(self, module: str) -> dict[str, list[Definition]]:
        """Map names to definitions of a module.

        The empty name has the definitions that count whenever the module is reached.
        """
        if module not in self._defines:
            names: dict[str, list[Definition]] = {"": []}
            for at, part in enumerate(self._module(module)["statements"]):
                for name in part["defines"]:
                    names.setdefault(name, []).append((module, at))
                if part["has_effects"]:
                    names[""].append((module, at))
            self._defines[module] = names
        return self._defines[module]

    def _defined(self, module: str, name: str) -> list[Definition]:
        """Find the definitions behind a name, or the whole module when they are unclear."""
        if (module, name) in IN_THE_KEY:
            return []
        if name in self._own(module):
            return self._own(module)[name]
        about = self._module(module)
        if name in about["imports"]:
            place, inner = about["imports"][name]
            return self._imported(place, inner)
        return [] if name in about["libraries"] else self._all(module)

    def _imported(self, module: str, name: str, attribute: str = "") -> list[Definition]:
        """Find the definitions behind an imported name, or behind an attribute of a module."""
        inner = f"{module}.{name}" if name else module
        if inner in self._sources:
            return self._defined(inner, attribute) if attribute and name else self._all(inner)
        return self._defined(module, name) if module in self._sources else []

    def _find_modules(self, about: Mapping[str, Any]) -> Iterator[str]:
        """Find the modules whose names match the strings of a definition as patterns."""
        for pattern in about["modules"]:
            yield from fnmatch.filter(self._sources, pattern)

    def _targets(self, definition: Definition) -> dict[str, list[Definition]]:
        """Find the definitions behind each name that a definition uses, by that name."""
        if definition not in self._reads:
            found = self._find_targets(definition)
            inside = f"{definition[0]}." if definition[0] in CHOSEN else "\0"
            self._reads[definition] = {
                name: [one for one in targets if not one[0].startswith(inside)]
                for name, targets in found.items()
            }
        return self._reads[definition]

    def _find_targets(self, definition: Definition) -> dict[str, list[Definition]]:
        module = definition[0]
        about, whole, own = self._statement(definition), self._module(module), self._own(module)
        found: dict[str, list[Definition]] = {}
        for use in about["uses"]:
            name, _, attribute = use.partition(".")
            if name in own and name not in about["imports"]:
                found[use] = self._defined(module, name)
            elif name in about["imports"] or name in whole["imports"]:
                place, inner = about["imports"].get(name) or whole["imports"][name]
                found[use] = self._imported(place, inner, attribute)
        for name in self._find_modules(about):
            if not self._is_package(name) and not name.startswith(CHOSEN):
                found[f"={name.rpartition('.')[2]}"] = self._all(name)
        return found

    def _libraries(self, definition: Definition) -> set[str]:
        """Find the top-level names of the libraries that a definition uses."""
        about = self._statement(definition)
        whole = self._module(definition[0])["libraries"]
        used = {use.partition(".")[0] for use in about["uses"]}
        return {*about["libraries"], *(whole[name] for name in used if name in whole)}

    def _record(self, definition: Definition) -> list[Any]:
        """Digest the trees of a definition and of the definitions behind its names."""
        targets = self._targets(definition).items()
        named = {(use, self._statement(one)["tree"]) for use, found in targets for one in found}
        return [self._statement(definition)["tree"], sorted(named)]


def _is_named(inside: tuple[str, ...], names: Collection[str]) -> bool:
    """Check whether patterns match a file beside a module, or the folder that holds the file."""
    if len(inside) == 1:
        return any(fnmatch.fnmatchcase(inside[0], name) for name in names)
    return inside[0] in names


def _read_cache(path: Path) -> dict[str, dict[str, Any]]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # an absent or damaged cache is made again
        return {}
    return known if isinstance(known, dict) else {}


def package_cache() -> Path:
    """Return the place of the cache beside the package's compiled modules."""
    compiled = importlib.util.cache_from_source(str(Path(__file__).resolve()))
    return Path(compiled).with_name("versions.json")


@functools.cache
def shared_versions(home: Path) -> Versions:
    """Return the versions of this process. The cache is beside the package, else in the home."""
    return Versions(package_cache(), home / "cache" / "versions.json")


@functools.cache
def library_version(name: str) -> str:
    """Return installed versions of a library and its `BENEATH`; empty when none is installed."""
    found = []
    for distribution in (DISTRIBUTIONS.get(name, name), *BENEATH.get(name, ())):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(metadata.version(distribution))
    return " ".join(found)


def plugin_version(module: str) -> list[str]:
    """Return versions and SHA-256 of the sources of a module or package outside this package."""
    top = module.partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        return []
    origin = Path(spec.origin)
    sources = sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]
    return [library_version(top), *(file_hash(path) for path in sources)]
