"""Evaluate retrieval for RAG systems: how often does the retriever miss what the answer needed, and how sure are we."""

__version__ = "0.1.0"
