"""Answers: evidence -> answer (deterministic, llm or recorded) -> contract -> retry or fail closed."""
