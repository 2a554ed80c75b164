"""Loaders, one file for each source of documents."""
