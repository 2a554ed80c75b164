"""The evidence viewer: kept runs in a browser on this machine, and the feedback that becomes outcomes."""
