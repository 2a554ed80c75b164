"""Words that say the same: a versioned list of everyday words for documentation words, and how a question is widened by it."""
