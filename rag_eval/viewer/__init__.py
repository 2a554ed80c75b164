"""The evidence viewer shows kept runs in a local browser and records feedback as outcomes."""
