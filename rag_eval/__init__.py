"""Evaluate retrieval for RAG systems and estimate how often the retriever misses evidence."""

__version__ = "0.1.0"
