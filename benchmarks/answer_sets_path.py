"""Import the answer sets of the tests, so that tests and benchmarks judge citations equally."""

import sys

from timing import ROOT

sys.path.insert(0, str(ROOT / "tests" / "reference"))

import answer_sets

__all__ = ["answer_sets"]
