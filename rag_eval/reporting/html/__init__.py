"""The HTML report: one self-contained page for each run."""
