"""Storage: content-addressed artifacts, the SQL store, atomic files and hashes."""
