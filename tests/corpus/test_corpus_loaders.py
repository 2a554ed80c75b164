"""Loaders of other packages: found by entry point, and refused with their name."""

import sys
import types
from importlib.metadata import EntryPoint
from typing import Literal

import pytest

from rag_eval.core import parts
from rag_eval.core.errors import InputError
from rag_eval.core.loader import GROUP, LOADERS, Chunker, Loader, RawCorpus
from rag_eval.core.parts import load_classes


class Wiki(Loader):
    """Loader that reads no documents."""

    loader: Literal["wiki"]
    chunker: Chunker = Chunker(kind="whole")

    def identity(self, base):
        return [str(base)]

    def read(self, base):
        return RawCorpus([], rev=str(base))


@pytest.fixture
def entry_points(monkeypatch):
    def install(*points):
        module = types.ModuleType("wiki_loader")
        module.Wiki = Wiki
        monkeypatch.setitem(sys.modules, "wiki_loader", module)
        found = [EntryPoint(name, value, GROUP) for name, value in points]
        monkeypatch.setattr(
            parts.metadata, "entry_points", lambda group: found if group == GROUP else []
        )

    return install


def test_a_package_adds_a_loader(entry_points):
    entry_points(("wiki", "wiki_loader:Wiki"))
    assert load_classes(Loader, "loader", LOADERS, GROUP)["wiki"] is Wiki


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("folder", "wiki_loader:Wiki", "two of these are called folder"),
        ("wiki", "wiki_loader:Gone", "wiki cannot be loaded"),
        ("other", "wiki_loader:Wiki", "other is no such class"),
    ],
)
def test_an_unusable_loader_is_named(entry_points, name, value, reason):
    entry_points((name, value))
    with pytest.raises(InputError, match=reason):
        load_classes(Loader, "loader", LOADERS, GROUP)
