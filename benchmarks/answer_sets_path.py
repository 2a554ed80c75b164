"""The sets of the extractive answerer's tests, for the benchmarks: one loader, one definition of a right citation."""

import sys

from timing import ROOT

sys.path.insert(0, str(ROOT / "tests" / "reference"))

import answer_sets  # noqa: E402 - the folder is only now on the path

__all__ = ["answer_sets"]
