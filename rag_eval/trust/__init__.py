"""Source trust and the poisoning guard: which documents may be believed, and which chunks must not be retrieved."""
