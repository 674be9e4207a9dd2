"""Runs the nodes of a pipeline: as threads, or as processes here."""

from seedx.launch.nodes import Node
from seedx.launch.processes import Processes

__all__ = ["Node", "Processes"]
