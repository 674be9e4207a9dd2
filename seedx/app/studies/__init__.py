"""Several runs together: comparisons, sweeps, searches."""
