"""Dagster's assets, checks, resources and jobs. No other package imports Dagster.

Assets call the stage functions of `rag_eval.pipeline`. This package holds no domain logic.
"""
