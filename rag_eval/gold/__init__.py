"""Gold sets: read and lint a gold set, and make a variant of every query and paraphrase."""
