"""Kinds of retrieval strategies, one class in each file. `rag_eval.core.strategy` lists them."""
