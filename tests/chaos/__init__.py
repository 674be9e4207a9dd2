"""Runs of pipelines whose processes, peers and disk fail; see `trials`."""
