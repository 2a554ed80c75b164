"""Citations: payload rules, matching against gold, traces, projections from other frameworks."""
