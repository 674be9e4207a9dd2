"""Comparison of a run's speed with the cost of its parts; see `__main__`."""
