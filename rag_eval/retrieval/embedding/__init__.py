"""Sources of vectors: built-in models, files of vectors, and their cache."""
