"""Texts -> unit vectors: one file a source of vectors, and the cache that keeps them by (text hash, model)."""
