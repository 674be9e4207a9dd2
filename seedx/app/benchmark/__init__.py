"""Comparison of a run's speed with the cost of its own work; see `main`."""
