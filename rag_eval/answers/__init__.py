"""Answers: write or read an answer from evidence, check its contract, then retry or fail closed."""
