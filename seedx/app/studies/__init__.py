"""Studies: comparisons and sweeps of several runs."""
