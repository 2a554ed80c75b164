"""Measures in, verdict with reason codes out."""
