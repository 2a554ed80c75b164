"""Kinds of retrieval strategies, one class a file. `rag_eval.core.strategy` lists them."""
