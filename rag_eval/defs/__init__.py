"""Dagster: the only place that imports it. Assets call the stage functions of `rag_eval.evaluation`; no domain logic belongs here."""
