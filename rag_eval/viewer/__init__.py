"""Pages of kept runs in a browser, and the review of drafts."""
