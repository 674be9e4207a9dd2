"""Agents: pure functions that act and learn, in any pipeline."""

from seedx.agents.base import Agent, AgentState

__all__ = ["Agent", "AgentState"]
