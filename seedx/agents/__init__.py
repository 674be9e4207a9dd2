"""Agents: what learns, whatever the pipeline."""

from seedx.agents.base import Agent, AgentState

__all__ = ["Agent", "AgentState"]
