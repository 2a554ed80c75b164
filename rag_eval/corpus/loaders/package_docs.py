"""Loader `package_docs`: the docstrings of an installed package's public names.

Importing a module runs its code. The package must therefore come from a distribution that is
installed in the environment, and each module from a file that the RECORD of this distribution
lists. While modules are imported and walked, Python finds installed packages and the standard
library only: no working folder, and no editable package.

The author of every docstring is the author in the distribution's metadata. No source states a date
of docstrings.
"""

import contextlib
import email.utils
import fnmatch
import importlib.machinery
import importlib.util
import inspect
import platform
import re
import site
import sys
import sysconfig
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal

from pydantic import Field

from rag_eval.core.errors import InputError
from rag_eval.core.loader import Chunker, Loader, RawCorpus, RawDocument
from rag_eval.core.parts import FOREIGN
from rag_eval.corpus.chunking import numpydoc_sections
from rag_eval.corpus.source import empty_corpus
from rag_eval.storage.hashing import text_hash

# ---- Which distribution holds a package, without importing it


def _installed_folders() -> list[str]:
    """List the folders of installed packages; paths that a .pth file adds are not among them."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [*site.getsitepackages(), *user]


def _refuse(code: str, message: str, field: str, value: str, accepted: str) -> InputError:
    return InputError.of(code, message, field=f"corpus.{field}", found=value, accepted=accepted)


def _find_distribution(package: str) -> tuple[metadata.Distribution, str]:
    """Find the distribution whose RECORD lists the package, with its RECORD; raises InputError.

    The RECORD of an editable distribution lists no module.
    """
    lists_package = re.compile(rf"^{re.escape(package)}(?:/|\.[^/]+?,)", re.MULTILINE)
    for name in (package, None):  # all distributions come last: this reads every RECORD
        context = metadata.DistributionFinder.Context(name=name, path=_installed_folders())
        every = metadata.distributions(context=context)
        for distribution in sorted(every, key=lambda candidate: candidate.name):
            record = distribution.read_text("RECORD")
            if record is not None and lists_package.search(record):
                return distribution, record
    message = "no distribution that is installed in the environment holds this package"
    accepted = "the import name of an installed package, which is not editable"
    raise _refuse("not_installed", message, "package", package, accepted)


def _find_author(distribution: metadata.Distribution) -> str:
    """Name the author, else the names beside the e-mail addresses of authors."""
    addresses = map(str, distribution.metadata.get_all("Author-email") or ())
    names = [name for name, _ in email.utils.getaddresses(list(addresses))]
    authors = map(str, distribution.metadata.get_all("Author") or names)
    return ", ".join(filter(None, authors))


# ---- Imports

ModuleFiles = Mapping[str, Sequence[Path]]
"""The modules of a package, each with the files of the distribution that may hold it."""


def _list_modules(package: str) -> ModuleFiles:
    """List the modules that the distribution's RECORD lists."""
    modules: dict[str, list[Path]] = {}
    endings = tuple(importlib.machinery.all_suffixes())
    for file in _find_distribution(package)[0].files or ():
        stem = file.name.partition(".")[0]
        parts = file.parts[:-1] if stem == "__init__" else (*file.parts[:-1], stem)
        if file.name.endswith(endings) and parts and parts[0] == package:
            modules.setdefault(".".join(parts), []).append(Path(file.locate()).resolve())
    return modules


@contextlib.contextmanager
def _only_environment() -> Iterator[None]:
    """Let Python find the standard library and installed packages only."""
    library, before = sysconfig.get_path("stdlib"), sys.path[:]
    sys.path[:] = [library, str(Path(library, "lib-dynload")), *_installed_folders()]
    try:
        yield
    finally:
        sys.path[:] = before


def _import(name: str, modules: ModuleFiles) -> types.ModuleType:
    """Import a module and the packages above it.

    The file of each is compared before its code runs, because another file of the same name may
    come first, or may have been imported before.
    """
    parts = name.split(".")
    accepted = "a module that the distribution's RECORD lists"
    for end in range(1, len(parts) + 1):
        above = ".".join(parts[:end])
        try:
            spec = importlib.util.find_spec(above)
            origin = Path(spec.origin or "").resolve() if spec is not None else None
            if origin in modules.get(above, ()):
                importlib.import_module(above)
                continue
        except FOREIGN as error:
            message = f"the module cannot be imported: {type(error).__name__}: {error}"
            raise _refuse("not_importable", message, "modules", above, accepted) from error
        message = "the module is not a file of the distribution"
        place = above if origin is None else f"{above}: {origin}"
        raise _refuse("foreign_module", message, "modules", place, accepted)
    return sys.modules[name]


# ---- The walk over public names

_MAX_CLASS_DEPTH = 2
"""Levels of classes below a class; deeper classes repeat the classes above."""
Documented = tuple[str, str, str]
"""Name, docstring and the object's own qualified name."""


def _read_docstring(name: str, value: object) -> Iterator[Documented]:
    """Yield name, cleaned docstring and own qualified name; skip empty docstrings."""
    try:
        text = inspect.getdoc(value)
    except FOREIGN:  # __doc__ may be a property that raises anything
        return
    if isinstance(text, str) and text.strip():
        owner = value.fget if isinstance(value, property) else value
        qualname = getattr(owner, "__qualname__", "")
        yield name, text, qualname if isinstance(qualname, str) else ""


def _attribute(owner: object, name: str) -> object | None:
    try:
        return getattr(owner, name)  # type: ignore[no-any-return]  # any object
    except FOREIGN:  # a descriptor may raise anything
        return None


def _belongs(value: object, package: str) -> bool:
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and module.split(".")[0] == package


def _list_names(owner: object) -> list[str]:
    """List the public names of a class, or of a module by its `__all__`."""
    names: Iterable[object] = dir(owner)
    if isinstance(owner, types.ModuleType):
        names = getattr(owner, "__all__", names)
    public = {name for name in names if isinstance(name, str) and not name.startswith("_")}
    return sorted(public)


def _walk_class(
    cls: type, prefix: str, package: str, above: tuple[type, ...]
) -> Iterator[Documented]:
    for name in _list_names(cls):
        value = _attribute(cls, name)
        qualified = f"{prefix}.{name}"
        if inspect.isclass(value):
            if _belongs(value, package) and value not in above and len(above) < _MAX_CLASS_DEPTH:
                yield from _read_docstring(qualified, value)
                yield from _walk_class(value, qualified, package, (*above, cls))
            continue
        static = inspect.getattr_static(cls, name, None)
        described = callable(value) or isinstance(static, property) or hasattr(static, "__get__")
        # An instance that shows its type's docstring documents the type, not this name.
        is_own = getattr(type(value), "__doc__", None) != getattr(value, "__doc__", None)
        if value is not None and described and is_own:
            yield from _read_docstring(qualified, value)


def _walk_module(module: types.ModuleType, package: str) -> Iterator[Documented]:
    for name in _list_names(module):
        value = _attribute(module, name)
        qualified = f"{module.__name__}.{name}"
        if value is None or inspect.ismodule(value) or not _belongs(value, package):
            continue
        if inspect.isclass(value):
            if value.__doc__:  # else getdoc returns the docstring of a base class
                yield from _read_docstring(qualified, value)
            yield from _walk_class(value, qualified, package, ())
        elif callable(value):
            yield from _read_docstring(qualified, value)


def _walk_modules(root: types.ModuleType, modules: ModuleFiles) -> Iterator[types.ModuleType]:
    """Yield the package, and below it every public module that declares `__all__`."""
    yield root
    for name in _list_names(root):
        value = _attribute(root, name)
        below = f"{root.__name__}.{name}"
        if (
            isinstance(value, types.ModuleType)
            and value.__name__ == below
            and below in modules
            and hasattr(value, "__all__")
        ):
            yield from _walk_modules(value, modules)


def _choose_name(names: dict[str, str]) -> str:
    """Choose a name that ends with the qualified name of the object.

    Of several such names, choose the least nested name, then the first by alphabet.
    """
    qualified = [
        name
        for name, qualname in names.items()
        if qualname and (name == qualname or name.endswith(f".{qualname}"))
    ]
    return min(qualified or names, key=lambda name: (name.count("."), name))


class PackageDocs(Loader):
    """Docstrings of an installed package."""

    loader: Literal["package_docs"]
    package: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Import name of an installed package."""
    modules: tuple[str, ...] = Field(
        default=(),
        description="dotted modules whose public names are walked; default: the package and every "
        "public submodule with __all__",
    )
    exclude: tuple[str, ...] = Field(
        default=(), description="shell patterns of qualified names to leave out"
    )
    exclude_sections: tuple[str, ...] = Field(
        default=(), description="headings of docstring sections to leave out, such as See Also"
    )
    min_chars: int = Field(default=0, ge=0)
    """Shorter docstrings are left out."""
    chunker: Chunker = Chunker(kind="numpydoc")

    def identity(self, base: Path) -> list[str]:
        """Identify the package and the Python version, because docstrings inherit from Python."""
        del base
        distribution, record = _find_distribution(self.package)
        parts = [distribution.version, text_hash(record), _find_author(distribution)]
        return [self.package, *parts, platform.python_version()]

    def distributions(self) -> dict[tuple[str | int, ...], str]:
        """Return the distribution of the package, by field."""
        return {("package",): _find_distribution(self.package)[0].name}

    def _modules(self) -> list[types.ModuleType]:
        modules = _list_modules(self.package)
        if self.modules:
            return [_import(name, modules) for name in sorted(set(self.modules))]
        return list(_walk_modules(_import(self.package, modules), modules))

    def _drop_sections(self, text: str) -> str:
        if not self.exclude_sections:
            return text
        sections = numpydoc_sections("", "", text)
        parts = (part for part in sections if part.title not in self.exclude_sections)
        return "".join(text[part.start : part.end] for part in parts).rstrip()

    def read(self, base: Path) -> RawCorpus:
        """Read the docstrings of public names; equal docstrings become one document."""
        del base
        distribution, _ = _find_distribution(self.package)
        author = _find_author(distribution)
        patterns = "|".join(map(fnmatch.translate, self.exclude))
        excluded = re.compile(patterns or r"(?!)")
        by_text: dict[str, dict[str, str]] = {}
        with warnings.catch_warnings(), _only_environment():
            warnings.simplefilter("ignore")  # the walk looks at deprecated attributes, which warn
            for module in self._modules():
                for name, docstring, qualname in _walk_module(module, self.package):
                    text = self._drop_sections(docstring)
                    if len(text) >= self.min_chars and not excluded.match(name):
                        by_text.setdefault(text, {})[name] = qualname
        if not by_text:
            accepted = "modules with docstrings that exclude and min_chars leave over"
            raise empty_corpus("no docstring was found", self.package, accepted)
        documents = []
        for text, names in by_text.items():
            doc_id = _choose_name(names)
            documents.append(
                RawDocument(
                    doc_id,
                    doc_id,
                    text,
                    f"python:{doc_id}",
                    "numpydoc",
                    text.encode("utf-8", "surrogatepass"),
                    rev=distribution.version,
                    names=tuple(sorted(names.keys() - {doc_id})),
                    author=author,
                )
            )
        return RawCorpus(documents, rev=f"{self.package}=={distribution.version}")
