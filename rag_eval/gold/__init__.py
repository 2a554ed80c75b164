"""Gold set -> linted -> variants (query x paraphrase)."""
