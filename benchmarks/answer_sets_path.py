"""The sets of the extractive answerer's tests, for the benchmarks: one loader, one definition of a right citation."""

import sys

from timing import ROOT

sys.path.insert(0, str(ROOT / "tests" / "reference"))

import answer_sets

__all__ = ["answer_sets"]
