"""Corpus: load documents with their revision, mask personal data, and cut the text into chunks."""
