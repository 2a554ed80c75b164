"""Panels of the HTML report, one module each, in the order of `rag_eval.reporting.html.page`."""
