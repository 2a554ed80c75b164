"""What an evaluation leaves behind: retrieval-metrics.json, tables, TREC runs, the MLflow record, the terminal table."""
