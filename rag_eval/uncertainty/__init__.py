"""Retrieval uncertainty: signals, miss rates, their calibration from outcomes, expansion and iterative retrieval."""
