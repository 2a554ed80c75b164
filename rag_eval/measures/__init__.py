"""What a run is worth: ranking, stability and their statistics, all as functions of arrays."""
