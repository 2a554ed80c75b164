"""Loaders of other packages: found by entry point, and refused with their name."""

import sys
import types
from importlib.metadata import EntryPoint
from typing import Literal

import pytest

from rag_eval.core import parts
from rag_eval.core.errors import InputError
from rag_eval.core.loader import GROUP, LOADERS, Chunker, Loader
from rag_eval.core.parts import load_classes


class Wiki(Loader):
    """Loader of another package."""

    loader: Literal["wiki"]
    chunker: Chunker = Chunker(kind="whole")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("wiki", "wiki_loader:Wiki", ""),
        ("folder", "wiki_loader:Wiki", "two of these are called folder"),
        ("wiki", "wiki_loader:Gone", "wiki cannot be loaded"),
        ("other", "wiki_loader:Wiki", "other is no such class"),
    ],
)
def test_a_package_adds_a_loader_or_is_named(monkeypatch, name, value, reason):
    module = types.ModuleType("wiki_loader")
    module.Wiki = Wiki
    monkeypatch.setitem(sys.modules, "wiki_loader", module)
    points = {GROUP: [EntryPoint(name, value, GROUP)]}
    monkeypatch.setattr(parts.metadata, "entry_points", lambda group: points.get(group, []))
    if not reason:
        assert load_classes(Loader, "loader", LOADERS, GROUP)["wiki"] is Wiki
        return
    with pytest.raises(InputError, match=reason):
        load_classes(Loader, "loader", LOADERS, GROUP)
