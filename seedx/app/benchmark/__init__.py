"""Measures a run against what its own work costs; see `main`."""
