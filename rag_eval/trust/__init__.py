"""Source trust and the poisoning guard, which blocks suspicious chunks from retrieval."""
