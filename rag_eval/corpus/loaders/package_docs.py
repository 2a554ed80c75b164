"""Loader `package_docs`: the docstrings of an installed package's public names.

Importing a module runs its code. The package must therefore come from a distribution that is
installed in the environment, and each module from a file that the RECORD of this distribution
lists. While modules are imported and walked, Python finds installed packages and the standard
library only: no working folder, and no editable package.
"""

import contextlib
import email.utils
import fnmatch
import importlib.util
import inspect
import itertools
import platform
import re
import site
import sys
import sysconfig
import types
import warnings
from collections.abc import Collection, Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal

from pydantic import Field

from rag_eval.core.errors import InputError
from rag_eval.core.loader import Chunker, Loader, RawCorpus, RawDocument
from rag_eval.core.parts import FOREIGN
from rag_eval.corpus.chunking import numpydoc_sections
from rag_eval.corpus.loading import empty_corpus
from rag_eval.storage.hashing import text_hash

Documented = tuple[str, str, str]
"""Name, docstring and the object's own qualified name."""


# ---- Which files may be imported


def _installed_folders() -> list[str]:
    """List the folders of installed packages; paths that a .pth file adds are not among them."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [*site.getsitepackages(), *user]


def _find_distribution(package: str) -> tuple[metadata.Distribution, str]:
    """Find the distribution whose RECORD lists the package (an editable one lists none)."""
    lists_package = re.compile(rf"^{re.escape(package)}(?:/|\.[^/]+?,)", re.MULTILINE)
    folders = _installed_folders()
    named = metadata.distributions(name=package, path=folders)
    for distribution in itertools.chain(named, metadata.distributions(path=folders)):
        record = distribution.read_text("RECORD")
        if record is not None and lists_package.search(record):
            return distribution, record
    message = "no distribution that is installed in the environment holds this package"
    accepted = "the import name of an installed package, which is not editable"
    field = "corpus.package"
    raise InputError.of("not_installed", message, field=field, found=package, accepted=accepted)


def _find_author(distribution: metadata.Distribution) -> str:
    """Return the author, else the names beside the e-mail addresses of authors."""
    about = distribution.metadata
    addresses = email.utils.getaddresses(about.get_all("Author-email") or [])
    authors = about.get_all("Author") or [name for name, _ in addresses]
    return ", ".join(filter(None, authors))


@contextlib.contextmanager
def _only_environment() -> Iterator[None]:
    """Let Python find the standard library and installed packages only."""
    library, before = sysconfig.get_path("stdlib"), sys.path[:]
    sys.path[:] = [library, str(Path(library, "lib-dynload")), *_installed_folders()]
    try:
        yield
    finally:
        sys.path[:] = before


def _import(name: str, files: Collection[Path]) -> types.ModuleType:
    """Import a module and the packages above it."""
    # another file of the same name may come first, or may have been imported before
    accepted = "a module that the distribution's RECORD lists"
    for above in itertools.accumulate(name.split("."), "{}.{}".format):
        code, message = "foreign_module", "the module is not a file of the distribution"
        try:
            spec = importlib.util.find_spec(above)
            if spec is not None and Path(spec.origin or "").resolve() in files:
                importlib.import_module(above)
                continue
        except FOREIGN as error:
            code, message = "not_importable", f"it raises {type(error).__name__}: {error}"
        field = "corpus.modules"
        raise InputError.of(code, message, field=field, found=above, accepted=accepted)
    return sys.modules[name]


# ---- The walk over public names


def _public(owner: object) -> Iterator[tuple[str, object]]:
    """Yield the public names of a class, or of a module by its `__all__`, with their values."""
    is_module = isinstance(owner, types.ModuleType)
    names = getattr(owner, "__all__", dir(owner)) if is_module else dir(owner)
    for name in sorted({name for name in names if not name.startswith("_")}):
        with contextlib.suppress(*FOREIGN):  # a descriptor may raise anything
            yield name, getattr(owner, name)


def _read_docstring(name: str, value: object) -> Iterator[Documented]:
    if text := inspect.getdoc(value):
        owner = value.fget if isinstance(value, property) else value
        yield name, text, getattr(owner, "__qualname__", "")


def _belongs(value: object, package: str) -> bool:
    return str(getattr(value, "__module__", "")).split(".")[0] == package


def _walk_class(cls: type, prefix: str, package: str, *, depth: int = 0) -> Iterator[Documented]:
    for name, value in _public(cls):
        qualified = f"{prefix}.{name}"
        if inspect.isclass(value):
            if _belongs(value, package) and depth == 0:  # classes in it repeat the classes above
                yield from _read_docstring(qualified, value)
                yield from _walk_class(value, qualified, package, depth=1)
        elif value.__doc__ != type(value).__doc__:  # else it documents the type, not this name
            yield from _read_docstring(qualified, value)


def _walk_module(module: types.ModuleType, package: str) -> Iterator[Documented]:
    for name, value in _public(module):
        qualified = f"{module.__name__}.{name}"
        if inspect.isclass(value) and _belongs(value, package):
            if value.__doc__:  # else getdoc returns the docstring of a base class
                yield from _read_docstring(qualified, value)
            yield from _walk_class(value, qualified, package)
        elif callable(value) and _belongs(value, package):
            yield from _read_docstring(qualified, value)


def _choose_name(names: dict[str, str]) -> str:
    """Choose the least nested of the names that end with the object's qualified name."""
    qualified = [name for name, own in names.items() if own and f".{name}".endswith(f".{own}")]
    return min(qualified or names, key=lambda name: (name.count("."), name))


class PackageDocs(Loader):
    """Docstrings of an installed package."""

    loader: Literal["package_docs"]
    package: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Import name of an installed package."""
    modules: tuple[str, ...] = Field(
        default=(),
        description="dotted modules whose public names are walked; default: the package",
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

    def _walk(self, distribution: metadata.Distribution) -> Iterator[Documented]:
        """Yield the docstrings of public names without the sections and names left out."""
        files = {Path(file.locate()).resolve() for file in distribution.files or ()}
        excluded = re.compile("|".join(map(fnmatch.translate, self.exclude)) or r"(?!)")
        for module in sorted({*self.modules} or {self.package}):
            for name, docstring, own in _walk_module(_import(module, files), self.package):
                text = docstring
                if self.exclude_sections:
                    parts = numpydoc_sections("", "", text)
                    kept = (part for part in parts if part.title not in self.exclude_sections)
                    text = "".join(text[part.start : part.end] for part in kept).rstrip()
                if len(text) >= self.min_chars and not excluded.match(name):
                    yield name, text, own

    def read(self, base: Path) -> RawCorpus:
        """Read the docstrings of public names; equal docstrings become one document.

        The author of each is that of the distribution. No source states a date of docstrings.
        """
        del base
        distribution, _ = _find_distribution(self.package)
        names_of: dict[str, dict[str, str]] = {}
        with warnings.catch_warnings(), _only_environment():
            warnings.simplefilter("ignore")  # the walk looks at deprecated attributes, which warn
            for name, text, own in self._walk(distribution):
                names_of.setdefault(text, {})[name] = own
        if not names_of:
            accepted = "modules with docstrings that exclude and min_chars leave over"
            raise empty_corpus("no docstring was found", self.package, accepted)
        author, version = _find_author(distribution), distribution.version
        documents = [
            RawDocument(
                doc_id := _choose_name(names),
                doc_id,
                text,
                f"python:{doc_id}",
                "numpydoc",
                text.encode("utf-8", "surrogatepass"),
                rev=version,
                names=tuple(sorted(names.keys() - {doc_id})),
                author=author,
            )
            for text, names in names_of.items()
        ]
        return RawCorpus(documents, rev=f"{self.package}=={version}")
