"""Assets, one file a group."""
