"""Runs the nodes of a pipeline: as threads, as processes here, or joined."""

from seedx.launch.addresses import Addresses, is_address
from seedx.launch.nodes import Node, kind
from seedx.launch.processes import Processes

__all__ = ["Addresses", "Node", "Processes", "is_address", "kind"]
