"""Runs of pipelines while their processes, peers and disk fail; see `main`."""
