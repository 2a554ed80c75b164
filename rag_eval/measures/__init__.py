"""Measures of a run: ranking, stability and their statistics, all as functions of arrays."""
