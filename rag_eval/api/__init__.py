"""The Python API: evaluate runs, compare runs, and calibrate miss rates, on frames."""
