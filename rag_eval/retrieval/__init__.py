"""Retrieval: strategies, their engines and embeddings, and the retrieval port."""
