"""Retrieval uncertainty: signals, miss rates, calibration, outcomes, iterative retrieval."""
