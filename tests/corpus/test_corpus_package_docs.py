"""The package loader chooses which names become documents, and which code it imports."""

import importlib
import json
import site
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from rag_eval.core.config import GoldSetConfig
from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.corpus.loaders.package_docs import PackageDocs
from rag_eval.corpus.loading import load_corpus
from rag_eval.gold.configuration import permitted

INIT = '''
"""Package."""
import warnings
from shelf import public, hidden
from shelf.core import Base, Child, function

__all__ = ["Base", "Child", "function", "alias", "constant", "public", "hidden"]
alias = function
constant = 3


def __getattr__(name):
    if name == "old":
        warnings.warn("old", DeprecationWarning)
        return 1
    raise AttributeError(name)
'''
CORE = '''
class Loud:
    def __get__(self, instance, owner):
        import warnings
        warnings.warn("deprecated", FutureWarning)
        raise RuntimeError("no access")


class Accessor:
    """Accessor docs."""

    def lower(self):
        """Lower docs."""


class Base:
    """Base docs.

    First
        indented
    """

    loud = Loud()
    acc = Accessor
    number = 3

    def method(self):
        """Method docs."""

    def _private(self):
        """Private."""

    @property
    def size(self):
        """Size docs."""


class Child(Base):
    def own(self):
        """Own docs."""


def function():
    """Function docs."""
'''


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    package = tmp_path / "site" / "shelf"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(INIT)
    (package / "core.py").write_text(CORE)
    (package / "public.py").write_text('__all__ = ["p"]\ndef p():\n    """P docs."""\n')
    (package / "hidden.py").write_text('def h():\n    """H docs."""\n')
    info = tmp_path / "site" / "shelf-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1.2\n")
    files = ("__init__", "core", "public", "hidden")
    (info / "RECORD").write_text("".join(f"shelf/{name}.py,sha256=x,1\n" for name in files))
    folders = [str(tmp_path / "site"), *site.getsitepackages()]
    monkeypatch.setattr(site, "getsitepackages", lambda: folders)
    yield info
    for name in [name for name in sys.modules if name.split(".")[0] == "shelf"]:
        del sys.modules[name]


def load(**options):
    given = {"loader": "package_docs", "package": "shelf", **options}
    return load_corpus(PackageDocs(**given), Path())


def test_names_share_a_document_when_their_docstring_is_equal(shelf):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        corpus = load()
    names = {row.doc_id: row.names for row in corpus.documents.itertuples()}
    assert names == {
        "shelf.Base": ["shelf.Base"],
        "shelf.Base.acc": ["shelf.Base.acc", "shelf.Child.acc"],
        "shelf.Base.acc.lower": ["shelf.Base.acc.lower", "shelf.Child.acc.lower"],
        "shelf.Base.method": ["shelf.Base.method", "shelf.Child.method"],
        "shelf.Base.size": ["shelf.Base.size", "shelf.Child.size"],
        "shelf.Child.own": ["shelf.Child.own"],
        "shelf.function": ["shelf.function", "shelf.alias"],
    }
    documents = corpus.documents.set_index("doc_id")
    assert documents["text"]["shelf.Base"] == "Base docs.\n\nFirst\n    indented"
    assert documents["source_url"]["shelf.Base"] == "python:shelf.Base"
    assert set(documents["rev"]) == {"1.2"}
    assert set(documents["kind"]) == {"numpydoc"}
    assert corpus.about.corpus_rev == "shelf==1.2"


def test_sections_are_left_out_by_their_heading(shelf):
    code = '''
def f():
    """F.

    See Also
    --------
    g : G.

    Notes
    -----
    See Also is no heading here.
    """

def g():
    """F.

    Notes
    -----
    See Also is no heading here.
    """
'''
    (shelf.parent / "shelf" / "__init__.py").write_text(code)
    documents = load(exclude_sections=("See Also",)).documents
    assert documents["names"].tolist() == [["shelf.f", "shelf.g"]]
    assert documents["text"].tolist() == ["F.\n\nNotes\n-----\nSee Also is no heading here."]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"modules": ("shelf.gone",)}, "foreign_module"),
        ({"modules": ("json",)}, "foreign_module"),
        ({"package": "no_such_package_here"}, "not_installed"),
        ({"package": "rag_eval"}, "not_installed"),  # editable
    ],
)
def test_what_cannot_be_walked_is_an_error(shelf, options, code):
    with pytest.raises(InputError, match=code):
        load(**options)


def test_identity_follows_version_and_record_without_importing(shelf):
    spec = PackageDocs(loader="package_docs", package="shelf")
    first = spec.identity(Path())
    (shelf / "RECORD").write_text("shelf/__init__.py,sha256=y,1\n")
    importlib.invalidate_caches()
    assert spec.identity(Path()) != first
    assert "shelf" not in sys.modules


# ---- Which code an import may run


def leave_mark(folder, name, mark):
    """Write a package that leaves a file behind when it is imported."""
    (folder / name).mkdir(parents=True)
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\n"
    (folder / name / "__init__.py").write_text(code)


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Return a working folder, which stands first on Python's path."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gold_sets", {"package": "gold_sets"}),
        ("shelf", {}),  # a folder with the name of the installed package
        ("beside", {}),  # a package that the installed package imports
        ("shelf/more", {"modules": ("shelf.more",)}),
    ],
)
def test_no_code_of_the_working_folder_is_imported(shelf, work, name, options):
    core = shelf.parent / "shelf" / "core.py"
    core.write_text(f"try:\n    import beside\nexcept ImportError:\n    pass\n{core.read_text()}")
    leave_mark(work, name, work / "mark")
    if options:
        with pytest.raises(InputError, match=r"not_installed|foreign_module"):
            load(**options)
    else:
        assert "shelf.function" in set(load().documents["doc_id"])
    assert not (work / "mark").exists()
    assert str(work) in sys.path


def test_a_module_that_another_file_gave_before_is_refused(shelf, work):
    leave_mark(work, "shelf", work / "mark")
    importlib.invalidate_caches()
    importlib.import_module("shelf")
    with pytest.raises(InputError, match="foreign_module"):
        load()


@pytest.mark.parametrize("raised", ["SystemExit(0)", "SystemExit(2)", "ValueError()"])
def test_what_an_import_raises_is_an_error_of_the_corpus(shelf, raised):
    (shelf.parent / "shelf" / "__init__.py").write_text(f"raise {raised}")
    with pytest.raises(InputError, match="not_importable"):
        load()


@pytest.mark.parametrize(
    ("allowed", "is_allowed"), [(("pandas",), False), (("shelf",), True), (("Shelf",), True)]
)
def test_settings_name_the_distributions_that_are_imported(shelf, tmp_path, allowed, is_allowed):
    corpus = {"loader": "package_docs", "package": "shelf"}
    values = {"name": "x", "corpus": corpus, "strategies": [{"name": "bm25", "kind": "bm25"}]}
    (tmp_path / "gold_set.yaml").write_text(json.dumps(values))
    config, settings = GoldSetConfig(**values), Settings(package_docs=allowed)
    if is_allowed:
        assert permitted(config, tmp_path, settings).corpus.package == "shelf"
    else:
        with pytest.raises(InputError, match=r"gold_set.yaml:1: error package_not_allowed .*shelf"):
            permitted(config, tmp_path, settings)
    assert "shelf" not in sys.modules
    assert shelf.exists()


def test_a_folder_of_the_working_folder_hides_no_installed_package(tmp_path):
    for name in ("pandas", "pydantic", "typer"):
        leave_mark(tmp_path, name, tmp_path / "mark")
    command = [sys.executable, "-m", "rag_eval", "lint"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "missing_folder" in done.stderr
    assert not (tmp_path / "mark").exists()
