"""Index identity, engines, strategies and the retrieval port. One order everywhere: score descending, then section_id, then snippet_id."""
