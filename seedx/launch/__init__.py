"""The launch of a pipeline's nodes: as processes, on a cluster, by joining."""
