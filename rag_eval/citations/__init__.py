"""Citations: payload rules, matching against gold, traces, projections from the frameworks of the field."""
