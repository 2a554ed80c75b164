"""Fixtures of the tests of measures."""

import importlib.util

import pytest


@pytest.fixture(scope="session")
def reference(shared_data):
    """Return the reference implementation of intervals, which lies beside the public data."""
    path = shared_data.parent / "tools" / "overlap_interval.py"
    if not path.is_file():
        pytest.skip(f"no reference implementation at {path}")
    spec = importlib.util.spec_from_file_location("overlap_interval", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
