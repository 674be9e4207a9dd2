"""Runs the nodes of a pipeline: as processes here, on a cluster, or joined."""

from seedx.launch.addresses import Addresses, is_address
from seedx.launch.config import Config, check_resources
from seedx.launch.nodes import Node, kind

__all__ = [
  "Addresses",
  "Config",
  "Node",
  "check_resources",
  "is_address",
  "kind",
]
