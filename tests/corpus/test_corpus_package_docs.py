"""The package loader chooses which names become documents, and gives them ids."""

import base64
import datetime as dt
import hashlib
import importlib
import sys
import warnings
from pathlib import Path

import pytest

from rag_eval.core.config import Trust
from rag_eval.core.errors import InputError
from rag_eval.corpus.loaders.package_docs import PackageDocs
from rag_eval.corpus.loading import identify, load_corpus
from rag_eval.trust.sources import judge_sources

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
    (info / "RECORD").write_text("shelf/__init__.py,sha256=x,1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
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
        "shelf.public.p": ["shelf.public.p"],
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
        ({"modules": ("shelf.gone",)}, "not_importable"),
        ({"modules": ("json",)}, "foreign_module"),
        ({"min_chars": 999}, "empty_corpus"),
        ({"package": "no_such_package_here"}, "not_installed"),
    ],
)
def test_what_cannot_be_walked_is_an_error(shelf, options, code):
    with pytest.raises(InputError, match=code):
        load(**options)


def test_identity_follows_version_and_record_without_importing(shelf):
    spec = PackageDocs(loader="package_docs", package="shelf")
    first = identify(spec, Path())
    (shelf / "RECORD").write_text("shelf/__init__.py,sha256=y,1\n")
    importlib.invalidate_caches()
    assert identify(spec, Path()) != first
    assert "shelf" not in sys.modules


def record(shelf):
    lines = []
    for path in sorted((shelf.parent / "shelf").iterdir()):
        digest = hashlib.sha256(path.read_bytes()).digest()
        text = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        lines.append(f"shelf/{path.name},sha256={text},{path.stat().st_size}")
    (shelf / "RECORD").write_text("\n".join([*lines, "shelf-1.2.dist-info/RECORD,,", ""]))


def test_hashes_of_the_record_vouch_for_docstrings(shelf):
    record(shelf)
    corpus = load()
    assert set(corpus.sources["signature"]) == {"valid"}
    trusted = Trust(domains=("python:shelf",))
    for config, state, points in (
        (trusted, "valid", 0.7),
        (trusted.model_copy(update={"keys": {"us": "x"}}), "missing", 0.4),
        (Trust(), "not_configured", None),
    ):
        facts, _ = judge_sources(corpus.sources, config, None, None, dt.date(2026, 1, 1))
        assert set(facts["signature_state"]) == {state}
        if points is not None:  # an unknown date counts as old: times 0.7
            assert facts["trust"].tolist() == pytest.approx([points * 0.7] * len(facts))


def test_one_changed_file_of_a_package_leaves_nothing_vouched_for(shelf):
    record(shelf)
    with (shelf.parent / "shelf" / "hidden.py").open("a") as stream:
        stream.write("# edited")
    assert set(load().sources["signature"]) == {"missing"}
