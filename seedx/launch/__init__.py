"""Runs the nodes of a pipeline: as processes here, on a cluster, or joined."""
