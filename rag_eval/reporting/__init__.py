"""Outputs of an evaluation: the report, tables, TREC runs, MLflow record and terminal table."""
