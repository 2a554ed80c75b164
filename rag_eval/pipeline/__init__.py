"""Stages of an evaluation. The Dagster assets and `rag-eval run` both call them."""
