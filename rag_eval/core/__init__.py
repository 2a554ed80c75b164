"""Shared parts of all packages: errors, configuration, column schemas, records, settings."""
