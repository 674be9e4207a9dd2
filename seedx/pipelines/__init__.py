"""Topologies: where inference runs, what crosses the network, who updates."""
