"""Measurement of a run against the cost of its own work; see `main`."""
