"""Gates: judge the measures of a run and give a verdict with reason codes."""
