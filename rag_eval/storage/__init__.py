"""Where things are kept: content-addressed artifacts, atomic files, hashes."""
