"""Topologies: where inference runs, what crosses the network, what learns."""
