"""Hypothesis without deadlines: no test may depend on the clock."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
